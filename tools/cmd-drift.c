/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <stdio.h>
#include <string.h>

#include "drift-advice.h"
#include "drift-ask.h"
#include "drift-file.h"
#include "drift-files.h"
#include "drift-report.h"
#include "image.h"
#include "interrupt.h"
#include "tools.h"

enum {
  KEY_HISTORY = 0x2000,
  KEY_RECORD,
  KEY_CSV,
  KEY_FILES,
  KEY_ADVISE,
  KEY_IF_DESTROYED,
  KEY_HTML,
  KEY_SVG,
  KEY_MEMORY,
  KEY_FORECAST,
  KEY_RATIO_BELOW,
  KEY_ALERT,
};

static const struct argp_option options[] = {
  { "history", KEY_HISTORY, NULL, 0,
    "Show the recorded samples instead of the present", 0 },
  { "record", KEY_RECORD, NULL, 0,
    "Record the present figures as a "
    "sample",
    0 },
  { "files", KEY_FILES, NULL, 0,
    "Also show which files, and what else, the diverged data belongs to", 0 },
  { "advise", KEY_ADVISE, NULL, 0,
    "Also show what to do about it, and how much each step would save", 0 },
  { "if-destroyed", KEY_IF_DESTROYED, "NAME...", 0,
    "Add how much destroying all of these volumes and snapshots would free",
    0 },
  { "csv", KEY_CSV, NULL, 0, "Print a table for spreadsheets", 0 },
  { "html", KEY_HTML, "FILE", 0,
    "Write a page with charts of the history to FILE ('-': stdout); --files "
    "adds the causes, --advise also what to do",
    0 },
  { "svg", KEY_SVG, "FILE", 0,
    "Write charts of the history to FILE ('-': stdout)", 0 },
  { "memory", KEY_MEMORY, "SIZE", 0, "Memory for the comparison", 0 },
  { "forecast", KEY_FORECAST, NULL, 0,
    "Show the forecast in full instead of the current figures", 0 },
  { "ratio-below", KEY_RATIO_BELOW, "RATIO", 0,
    "Forecast when the dedup ratio will fall below RATIO", 0 },
  { "alert", KEY_ALERT, NULL, 0,
    "Only print the present alerts; exit status 1 if there are any", 0 },
  { 0 }
};

struct drift_options {
  struct options common; /* first: parsers get a pointer to it */
  bool history, record, csv, forecast, alert, files, advise;
  double ratio_below; /* 0: the pool's property */
  const char *html, *svg;
  uint64_t memory; /* 0: the engine's default */
  json_t *names;   /* --if-destroyed; NULL: not given */
};

/* What follows the name of a destroyed snapshot in all output, and may follow
 * it here.
 */
#define DESTROYED " (destroyed)"

static void
check_name (const struct options *opts, const char *name)
{
  char *copy = copy_string (name), *at = strchr (copy, '@');
  const size_t len = strlen (copy), suffix = strlen (DESTROYED);

  if (at != NULL && len > suffix &&
      strcmp (copy + len - suffix, DESTROYED) == 0)
    copy[len - suffix] = '\0';
  if (at != NULL)
    *at = '\0';
  if (nbdedup_volume_check_name (copy) == -1 ||
      (at != NULL && nbdedup_volume_check_name (at + 1) == -1))
    usage_error (opts, "%s", nbdedup_error ());
  free (copy);
}

static void
add_name (struct drift_options *opts, const char *name)
{
  json_t *string = json_string (name);

  if (string == NULL)
    usage_error (&opts->common, "an argument is not valid UTF-8");
  check_name (&opts->common, name);
  json_array_append_new (opts->names, string);
}

/* All words up to the next option. */
static void
parse_names (struct drift_options *opts, const char *arg,
             struct argp_state *state)
{
  if (*arg == '-')
    usage_error (&opts->common,
                 "--if-destroyed needs the names of volumes "
                 "or snapshots");
  if (opts->names == NULL)
    opts->names = json_array ();
  add_name (opts, arg);
  while (state->next < state->argc && *state->argv[state->next] != '-')
    add_name (opts, state->argv[state->next++]);
}

static const char *
file_name (const struct drift_options *opts, const char *option,
           const char *name)
{
  if (*name == '\0')
    usage_error (&opts->common, "%s needs the name of a file", option);
  return name;
}

static double
parse_ratio (const struct drift_options *opts, const char *arg)
{
  const size_t digits = strspn (arg, "0123456789.");
  const char *point = strchr (arg, '.');
  const double ratio = strtod (arg, NULL);

  if (arg[digits] != '\0' || (point && strchr (point + 1, '.')) || ratio <= 1)
    usage_error (&opts->common,
                 "--ratio-below '%s': must be a number above 1, "
                 "such as 2 or 1.5",
                 arg);
  return ratio;
}

static error_t
parse (int key, char *arg, struct argp_state *state)
{
  struct drift_options *opts = state->input;
  char min[HUMAN_MAX];

  switch (key) {
  case KEY_HISTORY:
    opts->history = true;
    return 0;
  case KEY_RECORD:
    opts->record = true;
    return 0;
  case KEY_CSV:
    opts->csv = true;
    return 0;
  case KEY_FORECAST:
    opts->forecast = true;
    return 0;
  case KEY_RATIO_BELOW:
    opts->ratio_below = parse_ratio (opts, arg);
    return 0;
  case KEY_ALERT:
    opts->alert = true;
    return 0;
  case KEY_FILES:
    opts->files = true;
    return 0;
  case KEY_ADVISE:
    opts->advise = true;
    return 0;
  case KEY_IF_DESTROYED:
    parse_names (opts, arg, state);
    return 0;
  case KEY_HTML:
    opts->html = file_name (opts, "--html", arg);
    return 0;
  case KEY_SVG:
    opts->svg = file_name (opts, "--svg", arg);
    return 0;
  case KEY_MEMORY:
    opts->memory = options_size (state, "--memory", arg);
    if (opts->memory < NBDEDUP_DRIFT_MEMORY_MIN)
      usage_error (&opts->common, "--memory '%s': at least %s is needed", arg,
                   human_bytes (NBDEDUP_DRIFT_MEMORY_MIN, min));
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

static bool
is_stdout (const char *file)
{
  return file != NULL && strcmp (file, "-") == 0;
}

static bool
makes_files (const struct drift_options *opts)
{
  return opts->html != NULL || opts->svg != NULL;
}

/* Does the command print a report?  With --html or --svg only if the user also
 * names another form.
 */
static bool
prints (const struct drift_options *opts)
{
  return !makes_files (opts) || opts->history || opts->common.json || opts->csv;
}

/* Must the engine compute the present figures? */
static bool
needs_present (const struct drift_options *opts)
{
  const bool only_freed = opts->names != NULL && opts->common.nr_args == 0;

  return opts->record || makes_files (opts) || (!opts->history && !only_freed);
}

/* Must the command look into the clones' file systems? */
static bool
looks_inside (const struct drift_options *opts)
{
  return opts->files || opts->advise;
}

/* --alert computes nothing. */
static void
check_alert (const struct drift_options *opts)
{
  if (opts->history || opts->record || opts->csv || opts->forecast ||
      looks_inside (opts) || opts->ratio_below > 0 || opts->names != NULL ||
      opts->memory > 0 || makes_files (opts))
    usage_error (&opts->common,
                 "--alert can be used only with the name of a "
                 "golden image and --json");
}

static void
check_options (const struct drift_options *opts)
{
  const struct options *common = &opts->common;
  const char *name = common->args[0];
  const char *at = name == NULL ? NULL : strchr (name, '@');

  if (name != NULL && at == NULL)
    usage_error (common,
                 "'%s' is not a golden image: give a snapshot, as in "
                 "%s@v1, or no name for all golden images",
                 name, name);
  if (name != NULL) {
    check_snapshot_name (common, name);
    check_name (common, name);
  }
  if (opts->alert)
    check_alert (opts);
  if ((opts->forecast || opts->ratio_below > 0) && !needs_present (opts))
    usage_error (common,
                 "--forecast and --ratio-below are of the present "
                 "figures: they cannot be used with only --%s",
                 opts->history ? "history" : "if-destroyed");
  if (opts->forecast && (opts->csv || opts->history))
    usage_error (common, "--forecast cannot be used with --csv or --history");
  if (common->json && opts->csv)
    usage_error (common, "--json or --csv, not both");
  if (looks_inside (opts) &&
      (opts->history || opts->record || opts->csv || opts->names != NULL ||
       opts->svg != NULL))
    usage_error (common,
                 "--%s cannot be used with --history, --record, "
                 "--csv, --if-destroyed or --svg",
                 opts->files ? "files" : "advise");
  if (looks_inside (opts) && (opts->forecast || opts->ratio_below > 0))
    usage_error (common,
                 "--%s cannot be used with --forecast or "
                 "--ratio-below",
                 opts->files ? "files" : "advise");
  if (opts->names != NULL && (opts->history || opts->csv || makes_files (opts)))
    usage_error (common,
                 "--if-destroyed cannot be used with --history, --csv, "
                 "--html or --svg");
  if (opts->names != NULL && opts->record && name == NULL)
    usage_error (common,
                 "--if-destroyed with --record needs the name of a "
                 "golden image");
  if ((is_stdout (opts->html) || is_stdout (opts->svg)) && prints (opts))
    usage_error (common, "only one report can go to standard output");
  if (opts->html != NULL && opts->svg != NULL &&
      strcmp (opts->html, opts->svg) == 0)
    usage_error (common, "--html and --svg need different files");
  if (opts->memory > 0 && !needs_present (opts) && opts->names == NULL)
    usage_error (common,
                 "--memory cannot be used with --history, which only "
                 "reads samples");
}

/* The requested data; NULL: not requested. */
struct results {
  json_t *present, *history, *freed;
};

/* The page has forecasts, which are no part of a frozen moment. */
static void
move_forecasts (json_t *from, json_t *to)
{
  json_t *others = drift_documents (from), *other;
  json_t *documents = drift_documents (to), *document;
  size_t i, j;

  json_array_foreach (documents, i, document)
    json_array_foreach (others, j, other)
      if (drift_same_golden (other, document))
        json_object_set (document, "forecast",
                         json_object_get (other, "forecast"));
  json_decref (documents);
  json_decref (others);
}

static int
get_files (const struct drift_options *opts, struct results *results)
{
  const struct options *common = &opts->common;
  const char *golden = common->args[0];
  const bool has_page = opts->html != NULL;
  json_t *forecasts;

  results->present = drift_files_ask (common, golden, opts->memory,
                                      (opts->advise ? DRIFT_ADVICE : 0) |
                                        (has_page ? DRIFT_MAPS : 0));
  if (results->present == NULL)
    return -1;
  if (!has_page)
    return 0;
  forecasts = drift_ask_present (common, golden, false, 0, opts->memory);
  if (forecasts == NULL)
    return -1;
  move_forecasts (forecasts, results->present);
  json_decref (forecasts);
  return 0;
}

static int
get_results (const struct drift_options *opts, struct results *results)
{
  const struct options *common = &opts->common;
  const char *golden = common->args[0];

  if (looks_inside (opts))
    return get_files (opts, results);
  if (needs_present (opts) &&
      (results->present = drift_ask_present (common, golden, opts->record,
                                             opts->ratio_below,
                                             opts->memory)) == NULL)
    return -1;
  if (opts->history &&
      (results->history = drift_ask_history (common, golden)) == NULL)
    return -1;
  if (opts->names != NULL &&
      (results->freed = drift_ask_freed (common, opts->names, opts->memory)) ==
        NULL)
    return -1;
  return 0;
}

static int
save_files (const struct drift_options *opts, const struct results *results)
{
  json_t *documents = drift_documents (results->present);
  json_t *histories = drift_ask_histories (&opts->common, documents);
  int r = 0;

  json_decref (documents);
  if (histories == NULL)
    return -1;
  if (opts->html != NULL)
    r = drift_save (opts->html, drift_write_html, histories);
  if (r == 0 && opts->svg != NULL)
    r = drift_save (opts->svg, drift_write_svg, histories);
  json_decref (histories);
  return r == 0 ? 0 : (fail ("drift: %s", image_error ()), -1);
}

/* Without --forecast a document has the keys that a sample has, so that both
 * can be compared.  Maps are for the page.
 */
static void
drop_extras (json_t *answer)
{
  json_t *documents = drift_documents (answer), *document, *clone;
  size_t i, j;

  json_array_foreach (documents, i, document) {
    json_object_del (document, "forecast");
    json_array_foreach (json_object_get (document, "clones"), j, clone)
      json_object_del (clone, "map");
  }
  json_decref (documents);
}

static void
print_machine (const struct drift_options *opts, const struct results *results)
{
  json_t *document = json_incref (opts->history ? results->history
                                                : results->present);
  json_t *documents;

  if (opts->history)
    json_object_set_new (document, "samples",
                         drift_by_time (json_object_get (document, "samples")));

  if (opts->csv) {
    documents = opts->history
      ? json_incref (json_object_get (document, "samples"))
      : drift_documents (document);
    drift_print_csv (documents);
    json_decref (documents);
  }
  else {
    if (document == NULL)
      document = json_object ();
    else if (!opts->forecast && opts->ratio_below == 0)
      drop_extras (document);
    if (results->freed != NULL)
      json_object_set (document, "if_destroyed", results->freed);
    print_json (document);
  }
  json_decref (document);
}

static void
print_text (const struct drift_options *opts, const struct results *results)
{
  json_t *list;

  if (opts->history) {
    list = drift_histories (json_object_get (results->history, "samples"));
    drift_print_history (list);
    json_decref (list);
  }
  else if (results->present != NULL) {
    list = drift_documents (results->present);
    if (opts->forecast)
      drift_print_forecasts (list);
    else
      drift_print (list);
    if (opts->files)
      drift_files_print (list);
    if (opts->advise)
      drift_advice_print (list);
    json_decref (list);
  }
  if (results->freed != NULL && results->present != NULL)
    putchar ('\n');
  if (results->freed != NULL)
    drift_print_freed (results->freed, opts->names);
}

/* The exit statuses of monitoring plugins, as "status" has them. */
#define STATUS_ALERTS 1
#define STATUS_UNKNOWN 3

static int
show_alerts (const struct drift_options *opts)
{
  json_t *alerts, *document;
  int r;

  set_failure_status (STATUS_UNKNOWN);
  alerts = drift_ask_alerts (&opts->common, opts->common.args[0]);
  if (alerts == NULL)
    return STATUS_UNKNOWN;
  r = json_array_size (alerts) > 0 ? STATUS_ALERTS : EXIT_SUCCESS;
  if (opts->common.json) {
    document = check_memory (json_pack ("{s:O}", "alerts", alerts));
    print_json (document);
    json_decref (document);
  }
  else
    drift_print_alerts (alerts);
  json_decref (alerts);
  return r;
}

int
cmd_drift (int argc, char **argv, const char *pool)
{
  struct drift_options opts = { .common = { .pool = pool, .max_args = 1 } };
  struct results results = { NULL, NULL, NULL };
  int r;

  options_parse (&opts.common, argc, argv, options, parse, "[NAME@SNAP]",
                 "Show how far the clones of golden image NAME@SNAP, or of "
                 "all golden images, have diverged: how much they still share "
                 "with it, how much with each other, and how much only one of "
                 "them has.",
                 OPTIONS_READS | OPTIONS_JSON | OPTIONS_PROGRESS);
  check_options (&opts);
  interrupt_catch ();
  if (opts.alert)
    return show_alerts (&opts);
  r = get_results (&opts, &results);
  if (r == 0 && makes_files (&opts))
    r = save_files (&opts, &results);
  if (r == 0 && prints (&opts)) {
    if (opts.common.json || opts.csv)
      print_machine (&opts, &results);
    else
      print_text (&opts, &results);
  }
  json_decref (results.present);
  json_decref (results.history);
  json_decref (results.freed);
  json_decref (opts.names);
  return r == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

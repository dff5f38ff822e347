/* SPDX-License-Identifier: BSD-3-Clause */

/* Scrub.  With --from: scrub, search the user's images for the content of
 * damaged records, and check the damage again.
 *
 * The command opens the images first, to find an unreadable one before hours
 * are spent.  It reads them in this process, confined like import's: a server
 * opens no file that a user names, and accepts content only with the right
 * digest.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "copy.h"
#include "image.h"
#include "interrupt.h"
#include "progress.h"
#include "tools.h"

enum {
  KEY_FROM = 0x2000,
  KEY_FORMAT,
  KEY_ALLOW_BACKING,
  KEY_RATE,
  KEY_RESTART,
};

#define SOURCES_MAX 16

static const struct argp_option options[] = {
  { "from", KEY_FROM, "FILE", 0,
    "Repair damaged records from this image; may be given several times", 0 },
  { "rate", KEY_RATE, "SIZE", 0,
    "Read at most SIZE bytes of records a second; none: no limit; default: "
    "the property scrub-rate, if the pool is served",
    0 },
  { "restart", KEY_RESTART, NULL, 0,
    "Start at the beginning, also if an earlier scrub was stopped", 0 },
  { "format", KEY_FORMAT, "FORMAT", 0,
    "The images' format, as for import; default: by name and first bytes", 0 },
  { "allow-backing", KEY_ALLOW_BACKING, NULL, 0,
    "Also read the files on this machine that the images refer to", 0 },
  { 0 }
};

struct scrub {
  struct options common; /* first: parsers get a pointer to it */
  const char *format;
  bool allow_backing;
  bool has_rate, restart;
  uint64_t rate; /* 0: no limit */
  const char *files[SOURCES_MAX];
  struct image *sources[SOURCES_MAX]; /* owned */
  unsigned nr_sources;
  struct nbdedup_client *client; /* owned */
  struct progress progress;
};

static error_t
parse (int key, char *arg, struct argp_state *state)
{
  struct scrub *sc = state->input;

  switch (key) {
  case KEY_FROM:
    if (sc->nr_sources == SOURCES_MAX)
      usage_error (&sc->common, "--from is given more than %d times",
                   SOURCES_MAX);
    if (*arg == '\0')
      usage_error (&sc->common, "--from needs the name of a file");
    sc->files[sc->nr_sources++] = arg;
    return 0;
  case KEY_RATE:
    sc->has_rate = true;
    sc->rate = 0;
    if (strcmp (arg, "none") != 0) {
      sc->rate = options_size (state, "rate", arg);
      if (sc->rate == 0)
        usage_error (&sc->common,
                     "rate 0: the scrub would never end: use none "
                     "for no limit");
    }
    return 0;
  case KEY_RESTART:
    sc->restart = true;
    return 0;
  case KEY_FORMAT:
    sc->format = arg;
    return 0;
  case KEY_ALLOW_BACKING:
    sc->allow_backing = true;
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

/*----------------------------------------------------------------------
 * The result
 */

/* The engine names the first of many here, and all once in "affected". */
static void
print_heirs (const json_t *place)
{
  const json_t *named = json_object_get (place, "inherited_by");
  const uint64_t nr = json_size (place, "heirs");
  json_t *name;
  size_t i;

  if (nr > 0)
    printf (", inherited by");
  json_array_foreach (named, i, name)
    printf (" %s", json_string_value (name));
  if (nr > json_array_size (named))
    printf (" and %" PRIu64 " more (--json lists all)",
            nr - json_array_size (named));
}

static void
print_scrub (const json_t *result)
{
  const uint64_t hidden = json_size (result, "hidden_blocks");
  const uint64_t summaries = json_size (result, "summary_errors");
  const uint64_t repaired = json_size (result, "repaired_records");
  char buf[HUMAN_MAX];
  json_t *damaged, *page;
  size_t i;

  json_array_foreach (json_object_get (result, "metadata"), i, page)
    printf ("%s\n", json_string_value (page));
  json_array_foreach (json_object_get (result, "damaged"), i, damaged) {
    printf ("%s: %" PRIu64 " bytes at offset %" PRIu64 " are damaged",
            json_text (damaged, "name"), json_size (damaged, "length"),
            json_size (damaged, "offset"));
    print_heirs (damaged);
    putchar ('\n');
  }
  if (hidden > 0)
    printf ("%" PRIu64 " damaged block%s in no volume or snapshot any more: "
            "each that inherited %s has other data there\n",
            hidden, hidden == 1 ? " is" : "s are", hidden == 1 ? "it" : "them");
  if (repaired > 0)
    printf ("%" PRIu64 " record%s damaged, and %s written again\n", repaired,
            repaired == 1 ? " was" : "s were", repaired == 1 ? "was" : "were");
  if (summaries > 0)
    printf ("%" PRIu64 " summar%s damaged or missing, and %s written again\n",
            summaries, summaries == 1 ? "y was" : "ies were",
            summaries == 1 ? "was" : "were");
  printf ("%" PRIu64 " records, %s verified\n", json_size (result, "records"),
          human_bytes (json_size (result, "bytes"), buf));
}

static int
judge (const struct options *opts, const json_t *result)
{
  const uint64_t lost = json_size (result, "lost_blocks");
  const uint64_t pages = json_size (result, "metadata_errors");
  const uint64_t records = json_size (result, "errors") - lost - pages -
    json_size (result, "summary_errors");

  if (records > 0)
    return fail ("scrub: %s: %" PRIu64 " record%s damaged: repair %s with an "
                 "image that has the same data (--from FILE), or write those "
                 "blocks again",
                 opts->pool, records, records == 1 ? " is" : "s are",
                 records == 1 ? "it" : "them");
  if (lost > 0)
    return fail ("scrub: %s: %" PRIu64 " block%s lost, and cannot be read "
                 "until written again: restore %s from a backup",
                 opts->pool, lost, lost == 1 ? " is" : "s are",
                 lost == 1 ? "it" : "them");
  if (pages > 0)
    return fail ("scrub: %s: %" PRIu64 " page%s of pool.db %s damaged: run "
                 "nbdedup check --repair",
                 opts->pool, pages, pages == 1 ? "" : "s",
                 pages == 1 ? "is" : "are");
  return EXIT_SUCCESS;
}

/*----------------------------------------------------------------------
 * With images
 */

static int
on_progress (void *opaque, uint64_t done, uint64_t total)
{
  progress_update (opaque, done, total);
  return interrupted ();
}

static json_t *
make_args (const struct scrub *sc)
{
  json_t *args = json_object ();

  if (sc->has_rate)
    json_object_set_new (args, "rate", json_integer ((json_int_t) sc->rate));
  if (sc->restart)
    json_object_set_new (args, "restart", json_true ());
  return args;
}

/* NULL: reported. */
static json_t *
call (struct scrub *sc, const char *flag)
{
  json_t *args = make_args (sc), *result;

  json_object_set_new (args, flag, json_true ());
  progress_start (&sc->progress, "scrub", PROGRESS_PARTS, sc->common.progress);
  need_all_args ("scrub");
  result = nbdedup_client_call (sc->client, "scrub", args, on_progress,
                                &sc->progress);
  if (result != NULL)
    progress_complete (&sc->progress);
  progress_end (&sc->progress);
  json_decref (args);
  if (result == NULL)
    fail ("scrub: %s", nbdedup_error ());
  return result;
}

static int
fail_image (void)
{
  if (interrupted ())
    fail ("scrub: interrupted");
  else
    fail ("scrub: %s", image_error ());
  return -1;
}

static int
open_sources (struct scrub *sc)
{
  char *detected;
  unsigned i;

  for (i = 0; i < sc->nr_sources; ++i) {
    sc->sources[i] = image_open_source (sc->files[i], sc->format,
                                        sc->allow_backing, &detected);
    if (sc->sources[i] == NULL)
      return fail_image ();
    if (detected != NULL)
      note ("scrub: %s: is read as %s; --format raw reads its bytes as they "
            "are",
            sc->files[i], detected);
    free (detected);
  }
  return 0;
}

static int
look_into (struct scrub *sc, struct image *source, struct image *target)
{
  uint64_t offset = 0;
  int r;

  progress_start (&sc->progress, "scrub --from", PROGRESS_BYTES,
                  sc->common.progress);
  r = copy_images (source, target, &offset,
                   source->is_stream ? UINT64_MAX : source->size, NULL,
                   &sc->progress);
  progress_end (&sc->progress);
  return r == -1 || interrupted () ? fail_image () : 0;
}

static int
repair (struct scrub *sc, const json_t *result)
{
  struct nbdedup_finder *finder = nbdedup_finder_new (
    json_object_get (result, "wanted"));
  struct image *target;
  unsigned i;
  int r = 0;

  if (finder == NULL) {
    fail ("scrub: %s", nbdedup_error ());
    return -1;
  }
  if (nbdedup_finder_block_size (finder) != 0) {
    target = image_finder_new (finder, sc->client);
    for (i = 0; i < sc->nr_sources && r == 0; ++i)
      r = look_into (sc, sc->sources[i], target);
    image_close (target, true);
  }
  nbdedup_finder_free (finder);
  return r;
}

/* NULL: reported.  What was found in one image is not lost if another one
 * cannot be read.
 */
static json_t *
scrub_from (struct scrub *sc)
{
  json_t *first, *result = NULL;
  int r;

  if (open_sources (sc) == -1 ||
      (sc->client = client_open (&sc->common)) == NULL ||
      (first = call (sc, "wanted")) == NULL)
    return NULL;
  r = repair (sc, first);
  if (!interrupted ())
    result = call (sc, "again");
  if (result != NULL)
    json_object_set (result, "metadata", json_object_get (first, "metadata"));
  json_decref (first);
  if (r == -1) {
    json_decref (result);
    return NULL;
  }
  return result;
}

static json_t *
scrub (struct scrub *sc)
{
  json_t *result;
  unsigned i;

  interrupt_catch ();
  if (sc->nr_sources == 0)
    return run (&sc->common, make_args (sc));
  result = scrub_from (sc);
  for (i = 0; i < sc->nr_sources; ++i)
    image_close (sc->sources[i], true);
  if (nbdedup_client_close (sc->client) == -1 && result != NULL) {
    fail ("scrub: %s", nbdedup_error ());
    json_decref (result);
    return NULL;
  }
  return result;
}

int
cmd_scrub (int argc, char **argv, const char *pool)
{
  struct scrub sc = { .common = { .pool = pool } };
  json_t *result;
  unsigned i;
  int r;

  options_parse (&sc.common, argc, argv, options, parse, "",
                 "Read and verify every record, and every page of both copies "
                 "of pool.db. Rewrites damaged data from another copy, or from "
                 "an image given by --from. Exits 1 if anything stays damaged, "
                 "and prints which parts of volumes are affected.",
                 OPTIONS_READS | OPTIONS_JSON | OPTIONS_PROGRESS);
  if (sc.nr_sources > 0 && sc.common.read_only != NBDEDUP_READ_ONLY_OFF)
    usage_error (&sc.common,
                 "--from repairs the pool: it cannot be used with "
                 "--read-only");
  if (sc.nr_sources > 0)
    sc.common.reads = false;
  if (sc.nr_sources == 0 && (sc.format != NULL || sc.allow_backing))
    usage_error (&sc.common, "--format and --allow-backing need --from");
  for (i = 0; i < sc.nr_sources; ++i)
    image_check_source (&sc.common, sc.files[i], sc.format);
  result = scrub (&sc);
  if (result == NULL)
    return EXIT_FAILURE;
  if (sc.common.json)
    print_json (result);
  else
    print_scrub (result);
  r = judge (&sc.common, result);
  json_decref (result);
  return r;
}

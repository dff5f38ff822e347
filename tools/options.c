/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tools.h"

enum {
  KEY_JSON = 0x1000,
  KEY_PROGRESS,
  KEY_READ_ONLY,
  KEY_USAGE,
};

static enum nbdedup_read_only default_read_only;

/* After a number above this no digit may follow: JSON's integers have 63 bits.
 */
#define NUMBER_MAX (UINT64_C (922337203685477580) - 1)

/* For help.  Errors of getopt begin with argv[0], like all others. */
static const char *program_name = "nbdedup";

/* For an error getopt prints one line, and argp another one, which refers to
 * --help.
 */
static void
hide_errors_of_argp (struct argp_state *state)
{
  static FILE *nowhere;

  if (nowhere == NULL)
    nowhere = fopen ("/dev/null", "w");
  if (nowhere != NULL)
    state->err_stream = nowhere;
}

static error_t
parse_help (int key, char *arg, struct argp_state *state)
{
  (void) arg;
  state->name = (char *) program_name;
  switch (key) {
  case ARGP_KEY_INIT:
    hide_errors_of_argp (state);
    return 0;
  case '?':
  case 'h':
    argp_state_help (state, stdout, ARGP_HELP_STD_HELP);
    return 0;
  case KEY_USAGE:
    argp_state_help (state, stdout, ARGP_HELP_USAGE | ARGP_HELP_EXIT_OK);
    return 0;
  case 'V':
    printf ("%s\n", argp_program_version);
    exit (EXIT_SUCCESS);
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

static error_t
parse_pool (int key, char *arg, struct argp_state *state)
{
  struct options *opts = state->input;

  if (key != 'p')
    return ARGP_ERR_UNKNOWN;
  opts->pool = arg;
  return 0;
}

bool
parse_read_only (const char *arg, enum nbdedup_read_only *read_only)
{
  *read_only = arg == NULL ? NBDEDUP_READ_ONLY_ON : NBDEDUP_READ_ONLY_FORCE;
  return arg == NULL || strcmp (arg, "force") == 0;
}

static error_t
parse_reads (int key, char *arg, struct argp_state *state)
{
  struct options *opts = state->input;

  if (key != KEY_READ_ONLY)
    return ARGP_ERR_UNKNOWN;
  if (!parse_read_only (arg, &opts->read_only))
    usage_error (opts, "--read-only=%s: the only value is 'force'", arg);
  return 0;
}

void
options_set_read_only (enum nbdedup_read_only read_only)
{
  default_read_only = read_only;
}

static error_t
parse_json (int key, char *arg, struct argp_state *state)
{
  struct options *opts = state->input;

  (void) arg;
  if (key != KEY_JSON)
    return ARGP_ERR_UNKNOWN;
  opts->json = true;
  return 0;
}

static error_t
parse_progress (int key, char *arg, struct argp_state *state)
{
  struct options *opts = state->input;

  (void) arg;
  if (key != KEY_PROGRESS)
    return ARGP_ERR_UNKNOWN;
  opts->progress = true;
  return 0;
}

static const struct argp_option pool_options[] = {
  { "pool", 'p', "POOL", 0, "The pool's directory; default: $NBDEDUP_POOL",
    10 },
  { 0 }
};

static const struct argp_option reads_options[] = {
  { "read-only", KEY_READ_ONLY, "force", OPTION_ARG_OPTIONAL, READ_ONLY_DOC,
    10 },
  { 0 }
};

/* Of a command that refuses it: in no help. */
static const struct argp_option changes_options[] = {
  { "read-only", KEY_READ_ONLY, "force", OPTION_ARG_OPTIONAL | OPTION_HIDDEN,
    NULL, 10 },
  { 0 }
};

static const struct argp_option json_options[] = {
  { "json", KEY_JSON, NULL, 0, "Print one JSON document", 9 }, { 0 }
};

static const struct argp_option progress_options[] = {
  { "progress", KEY_PROGRESS, NULL, 0,
    "Show progress even if stderr is no terminal", 9 },
  { 0 }
};

static const struct argp pool_argp = {
  .options = pool_options,
  .parser = parse_pool,
};
static const struct argp reads_argp = {
  .options = reads_options,
  .parser = parse_reads,
};
static const struct argp changes_argp = {
  .options = changes_options,
  .parser = parse_reads,
};
static const struct argp json_argp = {
  .options = json_options,
  .parser = parse_json,
};
static const struct argp progress_argp = {
  .options = progress_options,
  .parser = parse_progress,
};

const struct argp help_argp = {
  .options =
    (const struct argp_option[]) {
      { "help", '?', NULL, 0, "Give this help list", -1 },
      { NULL, 'h', NULL, OPTION_ALIAS, NULL, -1 },
      { "usage", KEY_USAGE, NULL, 0, "Give a short usage message", -1 },
      { "version", 'V', NULL, 0, "Print program version", -1 },
      { 0 } },
  .parser = parse_help,
};

/* The input of options_parse's parser. */
struct parse {
  struct options *opts;
  argp_parser_t parser; /* the command's own, or NULL */
  unsigned nr_children;
};

static error_t
parse_command (int key, char *arg, struct argp_state *state)
{
  struct parse *parse = state->input;
  struct options *opts = parse->opts;
  error_t err;
  unsigned i;

  switch (key) {
  case ARGP_KEY_INIT:
    for (i = 0; i < parse->nr_children; ++i)
      state->child_inputs[i] = opts;
    return 0;

  case ARGP_KEY_ARG:
    if (opts->nr_args == opts->max_args)
      usage_error (opts, "unexpected argument '%s'", arg);
    /* A variable of a script that is not set. */
    if (*arg == '\0')
      usage_error (opts, "argument %u is empty", opts->nr_args + 1);
    (opts->list ? opts->list : opts->args)[opts->nr_args++] = arg;
    return 0;

  case ARGP_KEY_END:
    if (opts->nr_args < opts->min_args)
      usage_error (opts, "too few arguments");
    return 0;
  }

  if (parse->parser == NULL)
    return ARGP_ERR_UNKNOWN;
  state->input = opts;
  err = parse->parser (key, arg, state);
  state->input = parse;
  return err;
}

/* getopt would take "-1" for an option, and say no more. */
static void
check_words (const struct options *opts, char **argv)
{
  unsigned i;

  for (i = 1; argv[i] != NULL && strcmp (argv[i], "--") != 0; ++i)
    if (argv[i][0] == '-' && argv[i][1] >= '0' && argv[i][1] <= '9' &&
        argv[i - 1][0] != '-')
      usage_error (opts,
                   "'%s': no size and no number is negative, and -- must come "
                   "before a name that begins with '-'",
                   argv[i]);
}

void
options_parse (struct options *opts, int argc, char **argv,
               const struct argp_option *options, argp_parser_t parser,
               const char *args_doc, const char *doc, unsigned children)
{
  struct argp_child child[6] = { { 0 } };
  struct parse parse = { .opts = opts, .parser = parser };
  const struct argp argp = {
    .options = options,
    .parser = parse_command,
    .args_doc = args_doc,
    .doc = doc,
    .children = child,
  };
  error_t err;

  opts->command = strchr (argv[0], ' ') + 1;
  program_name = argv[0];
  argv[0] = make_string ("nbdedup: %s", opts->command);
  set_command (opts->command);
  opts->read_only = default_read_only;
  opts->reads = (children & OPTIONS_READS) == OPTIONS_READS;
  check_words (opts, argv);
  child[parse.nr_children++].argp = &help_argp;
  if (children & OPTIONS_JSON)
    child[parse.nr_children++].argp = &json_argp;
  if (children & OPTIONS_PROGRESS)
    child[parse.nr_children++].argp = &progress_argp;
  if (children & OPTIONS_POOL) {
    child[parse.nr_children++].argp = &pool_argp;
    child[parse.nr_children++].argp = opts->reads ? &reads_argp : &changes_argp;
  }

  err = argp_parse (&argp, argc, argv, ARGP_NO_HELP, NULL, &parse);
  if (err != 0)
    usage_error (opts, "%s", strerror (err));
  if (opts->pool != NULL && *opts->pool == '\0')
    usage_error (opts, "--pool is empty: give the pool's directory");
  if ((children & OPTIONS_POOL) && !opts->reads)
    refuse_read_only (opts);
}

void
refuse_read_only (const struct options *opts)
{
  if (opts->read_only != NBDEDUP_READ_ONLY_OFF)
    usage_error (opts,
                 "this command changes the pool, which --read-only "
                 "forbids");
}

void
need_pool (const struct options *opts)
{
  if (opts->pool == NULL)
    usage_error (opts, "which pool? Give -p POOL or set NBDEDUP_POOL");
}

const char *
parse_size (const char *arg, uint64_t *size)
{
  return nbdedup_parse_size (arg, size) == 0 ? NULL : nbdedup_error ();
}

uint64_t
options_size (struct argp_state *state, const char *what, const char *arg)
{
  const struct options *opts = state->input;
  uint64_t size;
  const char *why = parse_size (arg, &size);

  if (why != NULL)
    usage_error (opts, "%s '%s': %s", what, arg, why);
  return size;
}

uint64_t
options_number (struct argp_state *state, const char *what, const char *arg)
{
  const struct options *opts = state->input;
  uint64_t n = 0;
  const char *p;

  for (p = arg; *p >= '0' && *p <= '9' && n <= NUMBER_MAX; ++p)
    n = n * 10 + (uint64_t) (*p - '0');
  if (p == arg || *p != '\0')
    usage_error (opts, "%s '%s': not a number, or too large", what, arg);
  return n;
}

void
check_snapshot_name (const struct options *opts, const char *name)
{
  const char *at = strchr (name, '@');

  if (at == NULL || at == name || at[1] == '\0')
    usage_error (opts, "'%s' is not a snapshot's name, NAME@SNAP", name);
}

void
usage_error (const struct options *opts, const char *fmt, ...)
{
  va_list ap;

  fprintf (stderr, "nbdedup: %s: ", opts->command);
  va_start (ap, fmt);
  vfprintf (stderr, fmt, ap);
  va_end (ap);
  fprintf (stderr, " (see 'nbdedup %s --help')\n", opts->command);
  exit (argp_err_exit_status);
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* nbdedup [-p POOL] COMMAND ...: find the command and run it. */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tools.h"

static const struct command {
  const char *name;
  const char *summary;
  int (*run) (int argc, char **argv, const char *pool);
} commands[] = {
  { "init", "make a pool", cmd_init },
  { "create", "make an empty volume", cmd_create },
  { "list", "list volumes and snapshots", cmd_list },
  { "get", "show properties", cmd_get },
  { "set", "change a property", cmd_set },
  { "resize", "change a volume's size", cmd_resize },
  { "rename", "rename a volume or a snapshot", cmd_rename },
  { "destroy", "destroy a volume or a snapshot, free its space", cmd_destroy },
  { "snapshot", "freeze the state of a volume, or of several", cmd_snapshot },
  { "clone", "make volumes from a snapshot", cmd_clone },
  { "rollback", "set a volume back to a snapshot", cmd_rollback },
  { "rebase", "make a volume inherit from another snapshot", cmd_rebase },
  { "import", "make a volume from a disk image", cmd_import },
  { "export", "write a volume to a disk image", cmd_export },
  { "diff", "print what differs between two snapshots", cmd_diff },
  { "stat", "show space and ratios", cmd_stat },
  { "status", "report the pool's health, for people and monitoring",
    cmd_status },
  { "top", "show what clients do, live", cmd_top },
  { "history", "show what was done to the pool, by whom and when",
    cmd_history },
  { "drift", "show how far clones have diverged", cmd_drift },
  { "compact", "give free space back to the file system", cmd_compact },
  { "scrub", "read, verify and repair all data", cmd_scrub },
  { "check", "verify all metadata, and repair it", cmd_check },
  { "prune", "make the dedup table smaller", cmd_prune },
  { "rewrite", "recompress a volume with its current compression setting",
    cmd_rewrite },
  { "recover", "bring back a pool whose pool.db is lost", cmd_recover },
  { "estimate", "report what images would take in a pool", cmd_estimate },
  { "bench", "time hashes and codecs on this machine", cmd_bench },
};

#define NR_COMMANDS (sizeof commands / sizeof commands[0])

const char *argp_program_version = PACKAGE_STRING;

enum { KEY_READ_ONLY = 0x1000 };

struct main_options {
  const char *pool;
  enum nbdedup_read_only read_only;
  int command; /* its index in argv; 0: none */
};

static error_t
parse_main (int key, char *arg, struct argp_state *state)
{
  struct main_options *opts = state->input;

  switch (key) {
  case 'p':
    opts->pool = arg;
    return 0;
  case KEY_READ_ONLY:
    if (!parse_read_only (arg, &opts->read_only)) {
      note ("--read-only=%s: the only value is 'force' (see 'nbdedup --help')",
            arg);
      exit (EXIT_USAGE);
    }
    return 0;
  case ARGP_KEY_ARG:
    /* The rest belongs to the command. */
    opts->command = state->next - 1;
    state->next = state->argc;
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

/* The list of commands, in front of the options. */
static char *
help_commands (int key, const char *text, void *input)
{
  char *help = NULL;
  size_t len, i;
  FILE *fp;

  (void) input;
  if (key != ARGP_KEY_HELP_POST_DOC)
    return (char *) text;
  fp = open_memstream (&help, &len);
  if (fp == NULL)
    return (char *) text;
  fprintf (fp, "Commands:\n");
  for (i = 0; i < NR_COMMANDS; ++i)
    fprintf (fp, "  %-10s %s\n", commands[i].name, commands[i].summary);
  fprintf (fp,
           "\nSee also 'nbdedup COMMAND --help', nbdedup(1) and "
           "nbdedup-COMMAND(1).");
  if (fclose (fp) != 0) {
    free (help);
    return (char *) text;
  }
  return help;
}

static const struct argp_option main_options[] = {
  { "pool", 'p', "POOL", 0, "The pool's directory; default: $NBDEDUP_POOL", 0 },
  { "read-only", KEY_READ_ONLY, "force", OPTION_ARG_OPTIONAL, READ_ONLY_DOC,
    0 },
  { 0 }
};

static const struct argp main_argp = {
  .options = main_options,
  .parser = parse_main,
  .args_doc = "COMMAND [ARGUMENT...]",
  .doc = "Manage pools of deduplicated, compressed volumes.\v ",
  .children = (const struct argp_child[]) { { .argp = &help_argp }, { 0 } },
  .help_filter = help_commands,
};

/* If a standard stream was closed from the start, the first file opened would
 * get its number: the pool's lock, which messages and figures would overwrite.
 * Occupy the number with a descriptor that cannot be used in its direction, so
 * that users of the stream still get EBADF.
 */
static int
hold_standard_streams (void)
{
  int fd;

  for (fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd)
    if (fcntl (fd, F_GETFD) == -1 && errno == EBADF &&
        open ("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) == -1)
      return fail ("/dev/null: %s", strerror (errno));
  return EXIT_SUCCESS;
}

/* After one command, events of normal operation are of no interest. */
static void
log_line (enum nbdedup_log_level level, const char *line)
{
  if (level != NBDEDUP_LOG_INFO)
    fprintf (stderr, "nbdedup: %s\n", line);
}

/* The command prints its own result. */
static void
log_event (const struct nbdedup_event *event)
{
  if (!nbdedup_event_journal (event) && event->level != NBDEDUP_LOG_INFO &&
      event->message[0])
    fprintf (stderr, "nbdedup: %s: %s\n", event->pool, event->message);
}

int
main (int argc, char **argv)
{
  static char name[] = "nbdedup";
  struct main_options opts = { .pool = getenv ("NBDEDUP_POOL") };
  size_t i;

  if (argc < 1)
    return EXIT_USAGE;
  if (hold_standard_streams () != EXIT_SUCCESS)
    return EXIT_FAILURE;
  argv[0] = name; /* for getopt's messages */
  argp_err_exit_status = EXIT_USAGE;
  /* These are write errors like others. */
  signal (SIGPIPE, SIG_IGN);
  signal (SIGXFSZ, SIG_IGN);
  check_stdout_at_exit ();
  nbdedup_set_log (log_line);
  nbdedup_set_event_log (log_event);
  watch_json_memory ();

  if (opts.pool != NULL && *opts.pool == 0)
    opts.pool = NULL;
  if (argp_parse (&main_argp, argc, argv, ARGP_IN_ORDER | ARGP_NO_HELP, NULL,
                  &opts) != 0)
    return EXIT_USAGE;
  if (opts.command == 0) {
    note ("no command given (see 'nbdedup --help')");
    return EXIT_USAGE;
  }

  options_set_read_only (opts.read_only);
  argc -= opts.command;
  argv += opts.command;
  for (i = 0; i < NR_COMMANDS; ++i)
    if (strcmp (argv[0], commands[i].name) == 0) {
      argv[0] = make_string ("nbdedup %s", argv[0]);
      return commands[i].run (argc, argv, opts.pool);
    }
  note ("%s: unknown command (see 'nbdedup --help')", argv[0]);
  return EXIT_USAGE;
}

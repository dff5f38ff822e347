/* SPDX-License-Identifier: BSD-3-Clause */

/* Shared by the commands.
 *
 * Each command is a function 'cmd_NAME (argc, argv, pool)': argv[0] is
 * "nbdedup NAME", 'pool' is the pool given before the command name (or in
 * $NBDEDUP_POOL), or NULL.  It returns the exit status: EXIT_SUCCESS or
 * EXIT_FAILURE; for wrong usage it exits with EXIT_USAGE.
 */

#ifndef NBDEDUP_TOOLS_H
#define NBDEDUP_TOOLS_H

#include <argp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <jansson.h>

#include "nbdedup.h"

#define EXIT_USAGE 2

extern int cmd_init (int argc, char **argv, const char *pool);
extern int cmd_create (int argc, char **argv, const char *pool);
extern int cmd_list (int argc, char **argv, const char *pool);
extern int cmd_get (int argc, char **argv, const char *pool);
extern int cmd_set (int argc, char **argv, const char *pool);
extern int cmd_resize (int argc, char **argv, const char *pool);
extern int cmd_rename (int argc, char **argv, const char *pool);
extern int cmd_destroy (int argc, char **argv, const char *pool);
extern int cmd_snapshot (int argc, char **argv, const char *pool);
extern int cmd_clone (int argc, char **argv, const char *pool);
extern int cmd_compact (int argc, char **argv, const char *pool);
extern int cmd_rollback (int argc, char **argv, const char *pool);
extern int cmd_rebase (int argc, char **argv, const char *pool);
extern int cmd_stat (int argc, char **argv, const char *pool);
extern int cmd_status (int argc, char **argv, const char *pool);
extern int cmd_top (int argc, char **argv, const char *pool);
extern int cmd_history (int argc, char **argv, const char *pool);
extern int cmd_check (int argc, char **argv, const char *pool);
extern int cmd_scrub (int argc, char **argv, const char *pool);
extern int cmd_prune (int argc, char **argv, const char *pool);
extern int cmd_rewrite (int argc, char **argv, const char *pool);
extern int cmd_recover (int argc, char **argv, const char *pool);
extern int cmd_import (int argc, char **argv, const char *pool);
extern int cmd_estimate (int argc, char **argv, const char *pool);
extern int cmd_export (int argc, char **argv, const char *pool);
extern int cmd_diff (int argc, char **argv, const char *pool);
extern int cmd_drift (int argc, char **argv, const char *pool);
extern int cmd_bench (int argc, char **argv, const char *pool);

/*----------------------------------------------------------------------
 * options.c: the common part of the command lines
 */

#define ARGS_MAX 2

struct options {
  const char *command; /* "create" */
  const char *pool;
  bool json;
  bool progress;
  bool reads; /* takes --read-only; false if it will change the pool */
  enum nbdedup_read_only read_only;
  bool repair;                /* open the pool for a repair */
  const char *args[ARGS_MAX]; /* the words that are not options ... */
  const char **list;          /* ... or, if not NULL, here: max_args */
  unsigned nr_args;
  unsigned min_args, max_args; /* how many the command takes */
};

/* Parse a command line.  'options' (may be NULL) and 'parser' are the
 * command's own; its parser gets 'opts' as state->input and returns
 * ARGP_ERR_UNKNOWN for what it does not know.  'args_doc' and 'doc' are
 * argp's; 'children' is a set of the flags below.  Exits for wrong usage,
 * --help and --version.
 */
#define OPTIONS_POOL 1     /* -p POOL */
#define OPTIONS_JSON 2     /* --json */
#define OPTIONS_PROGRESS 4 /* --progress */
/* Also --read-only, which is wrong usage without this. */
#define OPTIONS_READS (8 | OPTIONS_POOL)
extern void options_parse (struct options *opts, int argc, char **argv,
                           const struct argp_option *options,
                           argp_parser_t parser, const char *args_doc,
                           const char *doc, unsigned children);

/* The value of "--read-only[=force]" (NULL: none); false: it has no other. */
extern bool
parse_read_only (const char *arg, enum nbdedup_read_only *read_only);
/* Exit for wrong usage if --read-only was given. */
extern void refuse_read_only (const struct options *opts);
/* The option came before the command's name. */
extern void options_set_read_only (enum nbdedup_read_only read_only);
#define READ_ONLY_DOC                                                          \
  "Write to no file of the pool; =force: even if flushed data is missing "     \
  "from what can be read"

/* For a parser: the value of an option, or exit for wrong usage. */
extern uint64_t
options_size (struct argp_state *state, const char *what, const char *arg);

/* The same for a count: decimal digits. */
extern uint64_t
options_number (struct argp_state *state, const char *what, const char *arg);

/* Exit for wrong usage unless 'name' is "NAME@SNAP".  The engine checks the
 * characters of both.
 */
extern void check_snapshot_name (const struct options *opts, const char *name);

/* Exit for wrong usage unless a pool was given. */
extern void need_pool (const struct options *opts);

/* "16M" -> bytes.  Returns NULL, or the reason why it is not a size. */
extern const char *parse_size (const char *arg, uint64_t *size);

/* --help, -h, --usage and --version, and one line for an error that argp finds:
 * as a child, with ARGP_NO_HELP.
 */
extern const struct argp help_argp;

/* Exit for wrong usage with one line; the status is argp_err_exit_status. */
extern void usage_error (const struct options *opts, const char *fmt, ...)
  __attribute__ ((noreturn, format (printf, 2, 3)));

/*----------------------------------------------------------------------
 * output.c
 */

/* One line "nbdedup: ..." on stderr; fail returns EXIT_FAILURE. */
extern void note (const char *fmt, ...) __attribute__ ((format (printf, 1, 2)));
extern int fail (const char *fmt, ...) __attribute__ ((format (printf, 1, 2)));

/* At exit: if the output could not be written, exit with status 1, or the
 * status that was set.
 */
extern void check_stdout_at_exit (void);
extern void set_failure_status (int status);
/* Begin the messages about standard output with "COMMAND: ".  'command' is
 * copied.
 */
extern void set_command (const char *command);

/* memory.c: if there is no memory the program prints "out of memory" and ends.
 * The caller owns the results.
 */
extern void *check_memory (void *p);
extern char *copy_string (const char *s);
extern char *make_string (const char *fmt, ...)
  __attribute__ ((format (printf, 1, 2)));
extern char *make_string_va (const char *fmt, va_list ap)
  __attribute__ ((format (printf, 1, 0)));

/* Call write until all is written; -1 and errno. */
extern int write_all (int fd, const char *p, size_t len);

/* The document and a newline. */
extern void print_json (const json_t *json);

/* "1.5 GiB", with at most three digits; returns 'buf'. */
#define HUMAN_MAX 32
extern const char *human_bytes (uint64_t bytes, char buf[HUMAN_MAX]);

/* In the form of --block-size; returns 'buf'. */
extern const char *block_size_text (uint64_t bytes, char buf[HUMAN_MAX]);

/* Sizes in JSON documents: missing or negative ones count as 0. */
extern uint64_t json_size (const json_t *object, const char *key);
extern const char *json_text (const json_t *object, const char *key);
/* A new array of the same objects in the natural order of their "name": desk2
 * comes before desk10.
 */
extern json_t *json_sorted (const json_t *objects);

/* A table: cells are added row by row (copied), printed with the columns
 * aligned.  'align' has one letter for each column: l or r.
 */
struct table;
extern struct table *table_new (const char *align);
extern void table_add (struct table *table, const char *fmt, ...)
  __attribute__ ((format (printf, 2, 3)));
extern void table_print (struct table *table); /* and free it */

/*----------------------------------------------------------------------
 * run.c: a command that is one call of the engine
 */

/* Open the pool that the options name; NULL: reported. */
extern struct nbdedup_client *client_open (const struct options *opts);

/* A JSON object from a json_pack format; exits if that fails, which happens
 * only for an argument that is not UTF-8.
 */
extern json_t *pack_args (const struct options *opts, const char *fmt, ...);

/* Call it first; then need_all_args exits if there was no memory for a piece of
 * the arguments.  So do run and pack_args.
 */
extern void watch_json_memory (void);
extern void need_all_args (const char *command);

/* Open the pool, call 'command' (taking the reference to 'args', which may
 * be NULL), close.  The result is a new reference; NULL: reported.  Exits for
 * wrong usage if the engine fails with EINVAL, which means that no pool would
 * accept the arguments.
 */
extern json_t *run (const struct options *opts, json_t *args);

/* The same for one of the engine's commands that has another name. */
extern json_t *
run_other (const struct options *opts, const char *command, json_t *args);

/* As run, for a command whose result does not matter: an exit status. */
extern int run_silently (const struct options *opts, json_t *args);

#endif /* NBDEDUP_TOOLS_H */

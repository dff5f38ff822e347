/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "interrupt.h"
#include "progress.h"
#include "tools.h"
#include "wait.h"

/* Retries if servers end, one after the other, during the request. */
#define TRIES_MAX 10

struct nbdedup_client *
client_open (const struct options *opts)
{
  struct nbdedup_settings settings;
  struct nbdedup_client *client;
  char who[64];

  need_pool (opts);
  snprintf (who, sizeof who, "nbdedup %s", opts->command);
  nbdedup_settings_init (&settings);
  settings.read_only = opts->read_only;
  settings.only_reads = opts->reads;
  settings.repair = opts->repair;
  wait_set_command (opts->command);
  client = nbdedup_client_open (opts->pool, &settings, who, wait_for_pool);
  if (client == NULL)
    fail ("%s: %s%s", opts->command, nbdedup_error (),
          errno == EBUSY ? wait_advice () : "");
  return client;
}

/* Without memory jansson leaves out an optional argument ("s*"), which would
 * change the command.
 */
static bool piece_missing;

static void *
json_memory (size_t size)
{
  void *p = malloc (size);

  if (p == NULL)
    piece_missing = true;
  return p;
}

void
watch_json_memory (void)
{
  json_set_alloc_funcs (json_memory, free);
}

/* Also covers additions to arguments that are packed already. */
void
need_all_args (const char *command)
{
  if (piece_missing)
    exit (fail ("%s: no memory", command));
}

json_t *
pack_args (const struct options *opts, const char *fmt, ...)
{
  json_error_t err;
  json_t *args;
  va_list ap;

  va_start (ap, fmt);
  args = json_vpack_ex (&err, 0, fmt, ap);
  va_end (ap);
  if (args == NULL && json_error_code (&err) == json_error_invalid_utf8)
    usage_error (opts, "an argument is not valid UTF-8");
  if (args == NULL)
    exit (fail ("%s: no memory", opts->command));
  need_all_args (opts->command);
  return args;
}

static int
on_progress (void *opaque, uint64_t done, uint64_t total)
{
  progress_update (opaque, done, total);
  return interrupted (); /* only if the command catches signals */
}

/* Call once; sets 'again' if the server ended before it began the command. */
static json_t *
call (const struct options *opts, const char *command, json_t *args,
      bool *again)
{
  char *misuse = NULL;
  struct nbdedup_client *client;
  struct progress progress;
  json_t *result;

  *again = false;
  need_all_args (opts->command);
  client = client_open (opts);
  if (client == NULL)
    return NULL;
  progress_start (&progress, opts->command, PROGRESS_PARTS, opts->progress);
  result = nbdedup_client_call (client, command, args, on_progress, &progress);
  *again = result == NULL && errno == ESHUTDOWN;
  if (result == NULL && errno == EINVAL)
    misuse = copy_string (nbdedup_error ());
  if (result != NULL)
    progress_complete (&progress);
  progress_end (&progress);
  if (result == NULL && !*again && misuse == NULL)
    fail ("%s: %s", opts->command, nbdedup_error ());

  /* If the pool was opened here, this makes the changes durable. */
  if (nbdedup_client_close (client) == -1 && result != NULL) {
    fail ("%s: %s", opts->command, nbdedup_error ());
    json_decref (result);
    result = NULL;
  }
  if (misuse)
    usage_error (opts, "%s", misuse);
  return result;
}

json_t *
run (const struct options *opts, json_t *args)
{
  return run_other (opts, opts->command, args);
}

json_t *
run_other (const struct options *opts, const char *command, json_t *args)
{
  struct options own = *opts;
  unsigned tries = 0;
  json_t *result;
  bool again;

  if (args == NULL)
    args = json_object ();
  if (nbdedup_command_changes (command, args)) {
    refuse_read_only (opts);
    own.reads = false;
  }
  do {
    result = call (&own, command, args, &again);
  } while (again && ++tries < TRIES_MAX);
  if (again)
    fail ("%s: the server went away", opts->command);
  json_decref (args);
  return result;
}

int
run_silently (const struct options *opts, json_t *args)
{
  json_t *result = run (opts, args);

  json_decref (result);
  return result == NULL ? EXIT_FAILURE : EXIT_SUCCESS;
}

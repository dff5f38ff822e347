/* SPDX-License-Identifier: BSD-3-Clause */

/* Shared by the test programs that have one pool open. */

#ifndef NBDEDUP_POOL_UTIL_H
#define NBDEDUP_POOL_UTIL_H

#include <inttypes.h>
#include <jansson.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "nbdedup.h"
#include "rigs/testutil.h"

extern struct nbdedup_pool *pool; /* the program's own */

#define must(call)                                                             \
  do {                                                                         \
    if ((call) != 0)                                                           \
      die ("%s line %d: %s: %s", __func__, __LINE__, #call, nbdedup_error ()); \
  } while (0)

/* The function takes the reference of 'args'.  The result is a new one. */
static inline json_t *
call (const char *command, json_t *args)
{
  json_t *result = nbdedup_call (pool, command, args);

  json_decref (args);
  if (result == NULL)
    die ("%s: %s", command, nbdedup_error ());
  return result;
}

static inline void
run (const char *command, json_t *args)
{
  json_decref (call (command, args));
}

static inline json_int_t
number (const json_t *object, const char *key)
{
  return json_integer_value (json_object_get (object, key));
}

/* A figure of the pool as "stat" has it. */
static inline uint64_t
pool_figure (const char *key)
{
  json_t *stat = call ("stat", NULL);
  json_t *n = json_object_get (json_object_get (stat, "pool"), key);
  uint64_t figure = (uint64_t) json_integer_value (n);

  if (!json_is_integer (n))
    die ("stat has no figure \"%s\"", key);
  json_decref (stat);
  return figure;
}

/* Open 'pool' with the default settings, as the program 'name'. */
static inline void
open_default (const char *directory, const char *name)
{
  pool = nbdedup_pool_open (directory, NULL, name, 0);
  if (pool == NULL)
    die ("open: %s", nbdedup_error ());
}

/* Open a volume for reading and writing. */
static inline struct nbdedup_volume *
open_volume (const char *name)
{
  struct nbdedup_volume *v = nbdedup_volume_open (pool, name, 0, -1, NULL);

  if (v == NULL)
    die ("%s: %s", name, nbdedup_error ());
  return v;
}

/* The same, or open a snapshot, "vol@snap", for reading. */
static inline struct nbdedup_volume *
open_name (const char *name)
{
  struct nbdedup_volume *v = nbdedup_volume_open (pool, name,
                                                  strchr (name, '@')
                                                    ? NBDEDUP_VOLUME_READONLY
                                                    : 0,
                                                  -1, NULL);

  if (v == NULL)
    die ("%s: %s", name, nbdedup_error ());
  return v;
}

/* "check" must find no error. */
static inline void
check_pool (void)
{
  json_t *result = call ("check", NULL), *text;
  size_t i;

  json_array_foreach (json_object_get (result, "problems"), i, text)
    fprintf (stderr, "check: %s\n", json_string_value (text));
  if (json_integer_value (json_object_get (result, "errors")) != 0)
    die ("check found errors");
  json_decref (result);
}

/* End this process, a child, with the pool open.  It ends by a signal, so that
 * no leak checker runs.
 */
static inline void
crash (void)
{
  kill (getpid (), SIGKILL);
  abort ();
}

/* Wait for a child, which must end by crash. */
static inline void
expect_crash (pid_t pid)
{
  int status;

  if (pid == -1 || waitpid (pid, &status, 0) != pid || !WIFSIGNALED (status) ||
      WTERMSIG (status) != SIGKILL)
    die ("the process that was to crash did not");
}

#endif /* NBDEDUP_POOL_UTIL_H */

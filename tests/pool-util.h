/* SPDX-License-Identifier: BSD-3-Clause */

/* What test programs that open a pool share. */

#ifndef NBDEDUP_POOL_UTIL_H
#define NBDEDUP_POOL_UTIL_H

#include <errno.h>
#include <jansson.h>
#include <limits.h>

#include "nbdedup.h"
#include "testutil.h"

#define must(call)                                              \
  do {                                                          \
    if ((call) != 0)                                            \
      die ("%s line %d: %s: %s", __func__, __LINE__, #call,     \
           nbdedup_error ());                                   \
  } while (0)

#define expect(condition)                                       \
  do {                                                          \
    if (!(condition))                                           \
      die ("%s line %d: not true: %s", __func__, __LINE__,      \
           #condition);                                         \
  } while (0)

/* 'args' is given away; the result is a new reference. */
static inline json_t *
pool_call (struct nbdedup_pool *pool, const char *command, json_t *args)
{
  json_t *result = nbdedup_call (pool, command, args);

  json_decref (args);
  if (result == NULL)
    die ("%s: %s", command, nbdedup_error ());
  return result;
}

static inline void
pool_run (struct nbdedup_pool *pool, const char *command, json_t *args)
{
  json_decref (pool_call (pool, command, args));
}

/* A new directory in 'parent'. */
static inline void
make_directory (char path[PATH_MAX], const char *parent, const char *name)
{
  int n = snprintf (path, PATH_MAX, "%s/%s-XXXXXX", parent, name);

  if (n >= PATH_MAX || mkdtemp (path) == NULL)
    die ("%s: %s", path, strerror (errno));
}

static inline void
remove_directory (const char *path)
{
  char command[PATH_MAX + 20];

  snprintf (command, sizeof command, "rm -rf '%s'", path);
  if (system (command) != 0)
    die ("%s", command);
}

#endif /* NBDEDUP_POOL_UTIL_H */

/* SPDX-License-Identifier: BSD-3-Clause */

/* See drift-copy.h. */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <limits.h>

#include "models/drift-copy.h"
#include "models/lineage-model.h"

json_t *
call (struct nbdedup_pool *p, const char *command, json_t *args)
{
  json_t *result = engine_call (p, command, args);

  if (result == NULL)
    die ("%s: %s", command, nbdedup_error ());
  return result;
}

struct nbdedup_pool *
open_pool (const char *path, const struct nbdedup_settings *settings)
{
  struct nbdedup_pool *p = nbdedup_pool_open (path, settings, "test-drift", 0);

  if (p == NULL)
    die ("open: %s", nbdedup_error ());
  return p;
}

void
close_pool (struct nbdedup_pool *p)
{
  if (nbdedup_pool_close (p) == -1)
    die ("close: %s", nbdedup_error ());
}

void
drain (struct nbdedup_pool *p)
{
  json_decref (call (p, "create",
                     json_pack ("{s:s, s:i}", "name", "drain", "size", 4096)));
  json_decref (
    call (p, "destroy", json_pack ("{s:s, s:b}", "name", "drain", "wait", 1)));
}

static uint64_t
stored_bytes (struct nbdedup_pool *p)
{
  json_t *stat = call (p, "stat", NULL);
  uint64_t n = json_number (json_object_get (stat, "pool"), "stored_bytes");

  json_decref (stat);
  return n;
}

static int
by_string (const void *a, const void *b)
{
  return strcmp (json_string_value (*(json_t *const *) a),
                 json_string_value (*(json_t *const *) b));
}

/* True if both arrays have the same strings, in any order. */
static bool
same_strings (json_t *x, json_t *y)
{
  size_t i, nr = json_array_size (x);
  json_t **a, **b;
  bool same = nr == json_array_size (y);

  if (!same)
    return false;
  a = xcalloc (nr, sizeof a[0]);
  b = xcalloc (nr, sizeof b[0]);
  for (i = 0; i < nr; ++i) {
    a[i] = json_array_get (x, i);
    b[i] = json_array_get (y, i);
  }
  qsort (a, nr, sizeof a[0], by_string);
  qsort (b, nr, sizeof b[0], by_string);
  for (i = 0; i < nr && same; ++i)
    same = json_equal (a[i], b[i]);
  free (a);
  free (b);
  return same;
}

/* Destroy them all, in order.  Returns the names that were destroyed. */
static json_t *
destroy_all (struct nbdedup_pool *p, const struct promise *promise)
{
  json_t *destroyed = json_array (), *result;
  unsigned i;

  for (i = 0; i < promise->nr; ++i) {
    result = engine_call (p, "destroy",
                          json_pack ("{s:s, s:b, s:b, s:b}", "name",
                                     promise->names[i], "recursive", 1, "force",
                                     1, "wait", 1));
    /* Gone with an earlier one, or named twice. */
    if (result == NULL && errno != ENOENT)
      die ("destroy %s: %s", promise->names[i], nbdedup_error ());
    json_array_extend (destroyed, json_object_get (result, "destroyed"));
    json_decref (result);
  }
  return destroyed;
}

/* Space that is already being freed is freed before the measurement. */
bool
keep_promise (const char *directory, const struct promise *p)
{
  struct nbdedup_pool *copy_pool;
  char copy[PATH_MAX + 8], command[2 * PATH_MAX + 40];
  char all[MAX_SET * 64] = "";
  json_t *destroyed;
  uint64_t before, freed;
  unsigned i;

  snprintf (copy, sizeof copy, "%s.copy", directory);
  snprintf (command, sizeof command, "cp -r --sparse=always '%s' '%s'",
            directory, copy);
  if (system (command) != 0)
    die ("%s", command);
  copy_pool = open_pool (copy, NULL);
  drain (copy_pool);
  before = stored_bytes (copy_pool);
  destroyed = destroy_all (copy_pool, p);
  freed = before - stored_bytes (copy_pool);
  for (i = 0; i < p->nr; ++i) {
    strcat (all, " ");
    strcat (all, p->names[i]);
  }
  if (freed != p->freed_bytes)
    die ("destroying%s gives back %" PRIu64 " bytes, %s said %" PRIu64, all,
         freed, p->destroyed ? "drift-freed" : "only_here_bytes",
         p->freed_bytes);
  if (p->destroyed && !same_strings (destroyed, p->destroyed))
    die ("destroying%s destroys %s, drift-freed said %s", all,
         json_dumps (destroyed, 0), json_dumps (p->destroyed, 0));
  json_decref (destroyed);
  close_pool (copy_pool);
  remove_directory (copy);
  return freed > 0;
}

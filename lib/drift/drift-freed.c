/* SPDX-License-Identifier: BSD-3-Clause */

/* What would come back if volumes or snapshots were destroyed: the records
 * whose every reference is given back (moment-fates.c, tally.h).
 */

#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "core/engine.h"
#include "drift/drift-int.h"
#include "drift/tally.h"
#include "meta/meta.h"

struct adder {
  struct tally *tally;
  uint32_t who;
  struct drift_progress *progress;
};

static int
add (void *opaque, uint64_t addr)
{
  struct adder *a = opaque;

  if (tally_count (a->tally) % 65536 == 0 &&
      drift_progress (a->progress, a->progress->done + 1) == -1)
    return -1;
  return tally_add_release (a->tally, addr, a->who);
}

/*----------------------------------------------------------------------
 * Names that go together
 */

struct names {
  struct moment_name **p;       /* owned */
  size_t nr;
};

static int
add_name (struct names *names, struct moment_name *n)
{
  struct moment_name **p;
  size_t i;

  for (i = 0; i < names->nr; ++i)
    if (names->p[i] == n)
      return 0;
  if ((names->nr & (names->nr - 1)) == 0) {
    p = realloc (names->p, (names->nr ? 2 * names->nr : 1) * sizeof *p);
    if (p == NULL)
      return nbdedup_fail (ENOMEM, "no memory");
    names->p = p;
  }
  names->p[names->nr++] = n;
  return 0;
}

/* A volume does not go without its snapshots. */
static int
add_with_snapshots (struct moment *m, struct names *names,
                    struct moment_name *n)
{
  size_t i;

  if (add_name (names, n) == -1)
    return -1;
  for (i = 0; i < n->nr_snapshots; ++i)
    if (add_name (names, &m->names[n->first_snapshot + i]) == -1)
      return -1;
  return 0;
}

int
freed_add_members (struct moment *m, struct tally *t,
                   const struct drift_member *members, uint32_t nr,
                   struct drift_progress *progress)
{
  struct adder a = { t, 0, progress };
  struct names names = { NULL, 0 };
  int r = fates_background (m, add, &a);

  /* Their own layers' pointers have been added with their contents. */
  for (a.who = 1; a.who < nr && r == 0; ++a.who) {
    names.nr = 0;
    r = add_with_snapshots (m, &names, members[a.who].name);
    if (r == 0)
      r = fates_without (m, names.p, names.nr, members[a.who].name->layer,
                         add, &a);
    if (r == 0)
      r = drift_progress (progress, progress->done);
  }
  free (names.p);
  return r;
}

/*----------------------------------------------------------------------
 * One set of names
 */

struct one {
  struct drift_progress progress;
  uint64_t passed;
};

static int
step (void *opaque, uint64_t done)
{
  struct one *one = opaque;

  return drift_progress (&one->progress, one->passed + done);
}

static uint64_t
estimate_items (const struct names *names)
{
  uint64_t items = 0;
  size_t i;

  for (i = 0; i < names->nr; ++i)
    items += names->p[i]->layer->pointers;
  return items;
}

static int
freed_bytes (struct moment *m, const struct names *names,
             uint64_t memory_bytes, struct one *one, uint64_t *bytes)
{
  struct tally *t = tally_new (m, memory_bytes);
  struct adder a = { t, 0, &one->progress };
  uint64_t freed[2] = { 0, 0 };
  int r;

  if (t == NULL)
    return -1;
  one->progress.total = 2 * estimate_items (names);
  fates_begin (m);
  r = fates_background (m, add, &a);
  a.who = 1;
  if (r == 0)
    r = fates_without (m, names->p, names->nr, NULL, add, &a);
  one->passed = tally_count (t);
  one->progress.total = 2 * tally_count (t);
  if (r == 0)
    r = tally_run (t, freed, 1, NULL, step, one);
  tally_free (t);
  *bytes = freed[1] * m->sector_bytes;
  return r;
}

static int
find_names (struct moment *m, struct names *names, json_t *list)
{
  struct moment_name *n;
  json_t *name;
  size_t i;

  json_array_foreach (list, i, name) {
    if (!json_is_string (name))
      return nbdedup_fail (EINVAL, "names: not an array of strings");
    n = moment_find (m, json_string_value (name));
    if (n == NULL || add_with_snapshots (m, names, n) == -1)
      return -1;
  }
  return 0;
}

static json_t *
names_json (const struct names *names, uint64_t bytes)
{
  json_t *list = json_array ();
  size_t i;

  for (i = 0; i < names->nr; ++i)
    json_array_append_new (list, json_string (names->p[i]->name));
  return json_pack ("{s:o, s:I}", "names", list, "freed_bytes",
                    (json_int_t) bytes);
}

json_t *
drift_freed_run (struct nbdedup_pool *pool, json_t *list,
                 uint64_t memory_bytes, nbdedup_progress_fn *progress,
                 void *opaque)
{
  struct names names = { NULL, 0 };
  json_t *result = NULL;
  struct moment m;
  struct one one = { .progress = { .fn = progress, .opaque = opaque } };
  uint64_t bytes;

  if (drift_memory (pool, &memory_bytes) == -1 ||
      drift_begin (pool, &m, &one.progress) == -1)
    return NULL;
  if (find_names (&m, &names, list) == 0 &&
      freed_bytes (&m, &names, memory_bytes, &one, &bytes) == 0)
    result = names_json (&names, bytes);
  free (names.p);
  drift_end (pool, &m);
  return result;
}

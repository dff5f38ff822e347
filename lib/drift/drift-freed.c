/* SPDX-License-Identifier: BSD-3-Clause */

/* The space that destroying volumes or snapshots would free: that of records
 * which lose all references (view-reclaim.c, record-join.h).
 */

#include <config.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "core/engine.h"
#include "drift/drift-int.h"
#include "drift/record-join.h"
#include "meta/meta.h"

struct adder {
  struct record_join *join;
  uint32_t who;
  struct drift_progress *progress;
};

static int
add (void *opaque, uint64_t addr)
{
  struct adder *a = opaque;

  if (record_join_count (a->join) % 65536 == 0 &&
      drift_progress (a->progress, a->progress->done + 1) == -1)
    return -1;
  return record_join_add_release (a->join, addr, a->who);
}

/*----------------------------------------------------------------------
 * Names that are destroyed together
 */

struct names {
  struct view_name **p; /* owned */
  size_t nr;
};

static int
add_name (struct names *names, struct view_name *n)
{
  size_t i;

  assert (n->layer != NULL); /* a destroyed one frees nothing */
  for (i = 0; i < names->nr; ++i)
    if (names->p[i] == n)
      return 0;
  return array_push (&names->p, &names->nr, n);
}

/* Destroying a volume includes its snapshots. */
static int
add_with_snapshots (struct view *v, struct names *names, struct view_name *n)
{
  size_t i;

  assert (n->nr_snapshots == 0 ||
          n->first_snapshot + n->nr_snapshots <= v->nr_names);
  if (add_name (names, n) == -1)
    return -1;
  for (i = 0; i < n->nr_snapshots; ++i)
    if (add_name (names, &v->names[n->first_snapshot + i]) == -1)
      return -1;
  return 0;
}

int
freed_add_members (struct view *v, struct record_join *t,
                   const struct drift_member *members, uint32_t nr,
                   struct drift_progress *progress)
{
  struct adder a = { t, 0, progress };
  struct names names = { NULL, 0 };
  const struct view_layer *own;
  int r = reclaim_background (v, add, &a);

  assert (nr > 0); /* members[0] is the golden image */
  /* The pointers of the members' own layers have been added with their
   * contents, except for a layer that stands for a merged golden image.
   */
  for (a.who = 1; a.who < nr && r == 0; ++a.who) {
    own = members[a.who].name->layer;
    names.nr = 0;
    r = add_with_snapshots (v, &names, members[a.who].name);
    if (r == 0)
      r = reclaim_without (v, names.p, names.nr,
                           own == members[0].name->layer ? NULL : own, add, &a);
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
freed_bytes (struct view *v, const struct names *names, uint64_t memory_bytes,
             struct one *one, uint64_t *bytes)
{
  struct record_join *t = record_join_new (v, memory_bytes);
  struct adder a = { t, 0, &one->progress };
  uint64_t freed[2] = { 0, 0 };
  int r;

  if (t == NULL)
    return -1;
  one->progress.total = 2 * estimate_items (names);
  reclaim_begin (v);
  r = reclaim_background (v, add, &a);
  a.who = 1;
  if (r == 0)
    r = reclaim_without (v, names->p, names->nr, NULL, add, &a);
  one->passed = record_join_count (t);
  one->progress.total = 2 * record_join_count (t);
  if (r == 0)
    r = record_join_run (t, freed, 1, NULL, step, one);
  record_join_free (t);
  *bytes = freed[1] * v->sector_bytes;
  return r;
}

static int
find_names (struct view *v, struct names *names, json_t *list)
{
  struct view_name *n;
  json_t *name;
  size_t i;

  json_array_foreach (list, i, name) {
    if (!json_is_string (name))
      return nbdedup_fail (EINVAL, "names: not an array of strings");
    n = view_find (v, json_string_value (name));
    if (n == NULL || add_with_snapshots (v, names, n) == -1)
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
drift_freed_run (struct nbdedup_pool *pool, json_t *list, uint64_t memory_bytes,
                 nbdedup_progress_fn *progress, void *opaque)
{
  struct names names = { NULL, 0 };
  json_t *result = NULL;
  struct view v;
  struct one one = { .progress = { .fn = progress, .opaque = opaque } };
  uint64_t bytes;

  if (drift_memory (pool, &memory_bytes) == -1 ||
      drift_begin (pool, &v, &one.progress) == -1)
    return NULL;
  if (find_names (&v, &names, list) == 0 &&
      freed_bytes (&v, &names, memory_bytes, &one, &bytes) == 0)
    result = names_json (&names, bytes);
  free (names.p);
  drift_end (pool, &v);
  return result;
}

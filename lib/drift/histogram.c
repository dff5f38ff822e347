/* SPDX-License-Identifier: BSD-3-Clause */

/* The records by reference count: powers of two, as zpool status -D.
 *
 * For the pool this scans all records.  For a volume, or a golden image and
 * its clones, it finds the records of their blocks, each once, by the golden
 * image's pointers and the clones' own (record-join.h).  A record's count is
 * always that of the pool: the number of pointers in all maps.
 */

#include <config.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "core/engine.h"
#include "drift/drift-int.h"
#include "drift/histogram.h"
#include "drift/record-join.h"
#include "meta/meta.h"

#define STEP 8192u /* records between calls of progress */

struct bucket {
  uint64_t records, record_bytes, stored_bytes, references;
};

struct histogram {
  uint32_t sector_bytes;
  struct bucket buckets[49]; /* a count has 48 bits */
  uint64_t addr;             /* of the last record */
  struct drift_progress *progress;
  uint64_t passed; /* items done */
};

static struct bucket *
add_record (struct histogram *h, const struct record *r)
{
  struct bucket *b;

  assert (r->refcount > 0 && r->refcount <= RECORD_REFCOUNT_MAX);
  b = &h->buckets[63 - __builtin_clzll (r->refcount)];
  b->records++;
  b->record_bytes += r->lsize;
  b->stored_bytes += (uint64_t) sectors_of (r->ptr.psize, h->sector_bytes) *
    h->sector_bytes;
  return b;
}

static int
add_group (void *opaque, uint64_t group, const uint8_t *buf, size_t len)
{
  struct histogram *h = opaque;
  uint64_t before = h->passed;
  struct record r;
  size_t off = 0;
  int n;

  while ((n = record_next (group, buf, len, &off, &r)) != 0) {
    if (n == -1)
      return -1;
    if (r.refcount > 0 && !(r.flags & RECORD_COPY))
      add_record (h, &r)->references += r.refcount;
    h->passed++;
  }
  return h->passed / STEP == before / STEP
    ? 0
    : drift_progress (h->progress, h->passed);
}

/* For some blocks, which come sorted by record. */
static int
add_content (void *opaque, const struct record *r, uint32_t who, uint64_t block)
{
  struct histogram *h = opaque;

  (void) who;
  (void) block;
  if (r->refcount == 0)
    return nbdedup_fail (EIO,
                         "pool.db: a map refers to a record whose "
                         "reference count is 0: run nbdedup check");
  if (r->ptr.addr != h->addr)
    add_record (h, r);
  h->addr = r->ptr.addr;
  h->buckets[63 - __builtin_clzll (r->refcount)].references++;
  return 0;
}

static json_t *
histogram_json (const struct histogram *h)
{
  json_t *array = json_array ();
  const struct bucket *b;
  unsigned i;

  for (i = 0; i < sizeof h->buckets / sizeof h->buckets[0]; ++i) {
    b = &h->buckets[i];
    if (b->records)
      json_array_append_new (array,
                             json_pack ("{s:I, s:I, s:I, s:I, s:I}", "refcount",
                                        (json_int_t) 1 << i, "records",
                                        (json_int_t) b->records, "record_bytes",
                                        (json_int_t) b->record_bytes,
                                        "stored_bytes",
                                        (json_int_t) b->stored_bytes,
                                        "references",
                                        (json_int_t) b->references));
  }
  return array;
}

/*----------------------------------------------------------------------
 * Of a volume, or of a golden image and its clones
 */

static int
add_layers (struct view *v, struct record_join *t, struct view_name *name,
            const struct view_layer *bottom, struct histogram *h)
{
  struct walk *w = walk_new (v, name->layer, bottom);
  struct pointer ptr;
  struct leaf leaf;
  uint64_t leaf_nr, top;
  unsigned i;
  int r;

  if (w == NULL)
    return -1;
  while ((r = walk_next (w, &leaf_nr, &leaf, &top)) == 1) {
    for (i = 0; i < LEAF_BLOCKS && r != -1; ++i)
      if (leaf.state[i] == MAP_POINTER &&
          (pointer_unpack (leaf.ptr[i], name->layer->block_size, &ptr) == -1 ||
           record_join_add_content (t, ptr.addr, 0, 0, false) == -1))
        r = -1;
    if (r != -1 && leaf_nr % 1024 == 0)
      r = drift_progress (h->progress, h->passed + record_join_count (t));
    if (r == -1)
      break;
  }
  walk_free (w);
  return r;
}

static int
add_clone_set (struct view *v, struct record_join *t, struct view_name *name,
               struct histogram *h)
{
  size_t i;
  int r = add_layers (v, t, name, NULL, h);

  for (i = 0; i < v->nr_names && r == 0 && name->is_snapshot; ++i) {
    r = view_is_clone_of (v, &v->names[i], name);
    if (r == 1)
      r = add_layers (v, t, &v->names[i], name->layer, h);
  }
  return r;
}

static int
step (void *opaque, uint64_t done)
{
  struct histogram *h = opaque;

  return drift_progress (h->progress, h->passed + done);
}

static json_t *
histogram_of (struct view *v, const char *name, uint64_t memory_bytes,
              struct drift_progress *progress)
{
  struct histogram h = {
    .sector_bytes = v->sector_bytes,
    .progress = progress,
    .passed = progress->done,
  };
  struct view_name *n = view_find (v, name);
  struct record_join *t;
  int r;

  if (n == NULL || (t = record_join_new (v, memory_bytes)) == NULL)
    return NULL;
  r = add_clone_set (v, t, n, &h);
  progress->total = h.passed + 2 * record_join_count (t);
  h.passed += record_join_count (t);
  if (r == 0)
    r = record_join_run (t, NULL, 0, add_content, step, &h);
  record_join_free (t);
  return r == 0 ? json_pack ("{s:s, s:o}", "name", n->name, "histogram",
                             histogram_json (&h))
                : NULL;
}

int
histogram_add (struct nbdedup_pool *pool, const char *name, json_t *stat,
               nbdedup_progress_fn *progress, void *opaque)
{
  uint64_t memory_bytes = 0;
  struct meta_state state;
  json_t *ddt = NULL;
  struct view v;
  struct drift_progress p = { .fn = progress, .opaque = opaque };
  struct histogram h = {
    .sector_bytes = pool->sector_bytes,
    .progress = &p,
  };
  int r;

  if (drift_memory (pool, &memory_bytes) == -1 ||
      drift_begin (pool, &v, &p) == -1)
    return -1;
  r = meta_state_get (v.c, &state);
  if (r == 0) {
    p.total = state.records;
    r = meta_record_scan (v.c, 0, add_group, &h);
  }
  if (r == 0) {
    json_object_set_new (json_object_get (json_object_get (stat, "pool"),
                                          "ddt"),
                         "histogram", histogram_json (&h));
    if (name && (ddt = histogram_of (&v, name, memory_bytes, &p)) == NULL)
      r = -1;
    if (ddt)
      json_object_set_new (stat, "ddt", ddt);
  }
  drift_end (pool, &v);
  return r;
}

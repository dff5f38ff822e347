/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "core/engine.h"
#include "data/sync.h"
#include "disk/sorter.h"
#include "drift/class-map.h"
#include "drift/drift-int.h"
#include "drift/golden.h"
#include "drift/record-join.h"
#include "meta/meta.h"

struct comparison {
  struct view *v;
  struct view_name golden;      /* a copy: of a destroyed one with a layer */
  bool is_merged;               /* its content has changed by a merge */
  struct drift_member *members; /* owned; the golden image, its clones */
  uint32_t nr;
  struct record_join *join; /* owned */
  struct classes *classes;  /* owned */
  struct class_map *map;    /* not owned; NULL: only figures are wanted */
  uint64_t *freed;          /* owned; sectors, by member */
  struct fleet_contents fleet;
  struct drift_progress *progress;
  uint64_t passed; /* items of the passes before this one */
};

int
drift_progress (struct drift_progress *p, uint64_t done)
{
  p->done = done;
  if (p->total < done)
    p->total = done;
  if (p->fn && p->fn (p->opaque, p->done, p->total) != 0)
    return nbdedup_fail (EINTR, "interrupted");
  return p->view ? view_check (p->view) : 0;
}

static int
look (void *opaque)
{
  struct drift_progress *p = opaque;

  return drift_progress (p, p->done);
}

int
drift_lock (struct nbdedup_pool *pool, struct drift_progress *progress)
{
  return turn_take (&pool->drift_turn, &pool->drift, look, progress);
}

void
drift_unlock (struct nbdedup_pool *pool)
{
  turn_give (&pool->drift_turn, &pool->drift);
}

void
drift_watch (struct view *v, struct drift_progress *progress)
{
  v->look = look;
  v->opaque = progress;
  progress->view = v;
}

int
drift_begin (struct nbdedup_pool *pool, struct view *v,
             struct drift_progress *progress)
{
  int r;

  if (drift_lock (pool, progress) == -1)
    return -1;
  r = pool_sync_for_view (pool);
  if (r == 0) {
    WITH_LOCK (&pool->admin);
    r = view_open (pool, v);
  }
  if (r == -1) {
    drift_unlock (pool);
    return -1;
  }
  drift_watch (v, progress);
  return 0;
}

void
drift_end (struct nbdedup_pool *pool, struct view *v)
{
  assert_held (&pool->drift);
  view_close (v);
  drift_unlock (pool);
}

/*----------------------------------------------------------------------
 * The members
 */

static int
add_member (struct comparison *f, struct view_name *name)
{
  if (f->nr == RECORD_JOIN_WHO_MAX)
    return nbdedup_fail (E2BIG, "%s: more than %u clones", name->name,
                         RECORD_JOIN_WHO_MAX - 1);
  assert (f->nr <= f->v->nr_names);
  f->members[f->nr++].name = name;
  return 0;
}

/* A merged golden image has what its clones have in common, beyond its old end,
 * too.
 */
static int
find_merged (struct comparison *f)
{
  uint32_t i;

  f->is_merged = true;
  f->golden.layer = golden_of_clones (f->v, f->members, f->nr);
  for (i = 1; i < f->nr; ++i)
    if (f->golden.size < f->members[i].name->size)
      f->golden.size = f->members[i].name->size;
  return f->golden.layer ? 0 : -1;
}

/* Find the layer with, or instead of, a destroyed golden image's content. */
static int
find_remains (struct comparison *f)
{
  if (f->nr == 1)
    return nbdedup_fail (ENOENT, "%s has no clones left", f->golden.name);
  f->golden.layer = f->golden.remains;
  return f->golden.layer ? 0 : find_merged (f);
}

/* Volumes are sorted by name. */
static int
find_members (struct comparison *f, const struct view_name *golden)
{
  size_t i;
  int r;

  f->members = calloc (f->v->nr_names + 1, sizeof *f->members);
  if (f->members == NULL)
    return nbdedup_fail (ENOMEM, "no memory");
  f->golden = *golden;
  if (add_member (f, &f->golden) == -1)
    return -1;
  for (i = 0; i < f->v->nr_names; ++i) {
    r = view_is_clone_of (f->v, &f->v->names[i], golden);
    if (r == -1 || (r == 1 && add_member (f, &f->v->names[i]) == -1))
      return -1;
  }
  if (golden->layer == NULL && find_remains (f) == -1)
    return -1;
  f->freed = calloc (f->nr, sizeof *f->freed);
  return f->freed ? 0 : nbdedup_fail (ENOMEM, "no memory");
}

/*----------------------------------------------------------------------
 * First pass: pointers
 */

static int
add_leaf (struct comparison *f, uint32_t who, uint64_t leaf_nr,
          const struct leaf *leaf, uint64_t top)
{
  struct drift_member *member = &f->members[who];
  struct pointer ptr;
  unsigned i;

  assert (who < f->nr);
  for (i = 0; i < LEAF_BLOCKS; ++i) {
    if (leaf->state[i] != MAP_POINTER)
      continue;
    if (pointer_unpack (leaf->ptr[i], member->name->layer->block_size, &ptr) ==
          -1 ||
        record_join_add_content (f->join, ptr.addr, who,
                                 leaf_nr * LEAF_BLOCKS + i,
                                 who != 0 && top >> i & 1) == -1)
      return -1;
    member->own++;
  }
  return 0;
}

/* What the class map has besides contents: the golden image's blocks, and those
 * of a clone that are zero although the golden image may have some there.
 */
struct map_filler {
  struct class_map *map; /* not owned; NULL: there is none */
  uint32_t who;
  /* Of a clone: it does not show the golden image's blocks from 'from' (its
   * least size since it was cloned) to 'end' (where one of them ends).
   */
  uint64_t from, end;
};

static uint64_t
blocks_of_name (const struct view_name *n)
{
  const uint32_t block_size = n->layer->block_size;

  return n->size / block_size + (n->size % block_size != 0);
}

static struct map_filler
map_filler (const struct comparison *f, uint32_t who)
{
  const struct view_name *golden = f->members[0].name;
  const struct view_name *name = f->members[who].name;
  struct map_filler m = { f->map, who, UINT64_MAX, blocks_of_name (name) };
  const struct view_layer *l;

  if (blocks_of_name (golden) < m.end)
    m.end = blocks_of_name (golden);
  for (l = name->layer; who != 0 && l && l != golden->layer; l = l->parent)
    if (l->overlap < m.from)
      m.from = l->overlap;
  return m;
}

/* Add the hidden blocks below 'block'. */
static int
map_hidden (struct map_filler *m, uint64_t block)
{
  const uint64_t from = m->from, end = block < m->end ? block : m->end;

  if (m->map == NULL || from >= end)
    return 0;
  m->from = end;
  return class_map_add_run (m->map, m->who, from, end - from, CLASS_ZERO);
}

/* Does the map get this block from here?  Contents come with their classes. */
static bool
is_mapped (const struct map_filler *m, uint64_t block, unsigned state)
{
  return m->who == 0 ? state == MAP_POINTER
                     : state == MAP_HOLE ||
      (state == MAP_INHERIT && block >= m->from && block < m->end);
}

static int
map_leaf (struct map_filler *m, uint64_t leaf_nr, const struct leaf *leaf)
{
  const uint64_t first = leaf_nr * LEAF_BLOCKS;
  unsigned i, j;

  if (m->map == NULL)
    return 0;
  if (map_hidden (m, first) == -1)
    return -1;
  for (i = 0; i < LEAF_BLOCKS; i = j) {
    const bool mapped = is_mapped (m, first + i, leaf->state[i]);

    for (j = i + 1;
         j < LEAF_BLOCKS && is_mapped (m, first + j, leaf->state[j]) == mapped;
         ++j)
      ;
    if (mapped &&
        class_map_add_run (m->map, m->who, first + i, j - i,
                           m->who == 0 ? CLASS_SAME : CLASS_ZERO) == -1)
      return -1;
  }
  if (m->from < first + LEAF_BLOCKS)
    m->from = first + LEAF_BLOCKS;
  return 0;
}

/* Add all contents of the golden image, or of a clone those above it.
 * Destroying a clone also drops the references of its own layer.
 */
static int
add_contents (struct comparison *f, uint32_t who)
{
  struct view_layer *golden = f->members[0].name->layer;
  struct map_filler filler = map_filler (f, who);
  struct walk *w;
  struct leaf leaf;
  uint64_t leaf_nr, top, n = 0;
  int r;

  w = walk_new (f->v, f->members[who].name->layer, who ? golden : NULL);
  if (w == NULL)
    return -1;
  while ((r = walk_next (w, &leaf_nr, &leaf, &top)) == 1) {
    r = add_leaf (f, who, leaf_nr, &leaf, top);
    if (r == 0)
      r = map_leaf (&filler, leaf_nr, &leaf);
    if (r == 0 && ++n % 1024 == 0)
      r = drift_progress (f->progress, f->passed + record_join_count (f->join));
    if (r == -1)
      break;
  }
  walk_free (w);
  return r == -1 ? -1 : map_hidden (&filler, UINT64_MAX);
}

/* Take the count of all blocks from pool.db.  Blocks that are not own are
 * inherited, hence the golden image's at the same place.
 */
static int
count_blocks (struct comparison *f)
{
  struct drift_member *member;
  uint32_t i;

  for (i = 0; i < f->nr; ++i) {
    member = &f->members[i];
    member->logical = member->name->layer->blocks;
    if (member->own > member->logical ||
        (i == 0 && member->own != member->logical))
      return nbdedup_fail (EIO,
                           "pool.db: %s has %" PRIu64 " blocks, but its "
                           "layer counts %" PRIu64 ": run nbdedup check",
                           member->name->name, member->own, member->logical);
  }
  return 0;
}

/* Is a layer below 'top'? */
static bool
stands_on (const struct view_layer *top, const struct view_layer *l)
{
  for (; top; top = top->parent)
    if (top == l)
      return true;
  return false;
}

static uint64_t
estimate_items (const struct comparison *f)
{
  const struct view_layer *golden = f->members[0].name->layer, *l;
  uint64_t items = golden->blocks;
  uint32_t i;

  for (i = 1; i < f->nr; ++i)
    for (l = f->members[i].name->layer; l && l != golden; l = l->parent)
      items += l->pointers;
  return items;
}

static int
scan (struct comparison *f)
{
  uint32_t i;

  for (i = 0; i < f->nr; ++i) {
    if (!stands_on (f->members[i].name->layer, f->members[0].name->layer))
      return nbdedup_fail (EIO,
                           "pool.db: %s does not descend from %s, its "
                           "golden image: run nbdedup check",
                           f->members[i].name->name, f->members[0].name->name);
    if (add_contents (f, i) == -1)
      return -1;
  }
  if (count_blocks (f) == -1)
    return -1;
  return freed_add_members (f->v, f->join, f->members, f->nr, f->progress);
}

/*----------------------------------------------------------------------
 * The other passes
 */

static int
add_content (void *opaque, const struct record *record, uint32_t who,
             uint64_t block)
{
  struct comparison *f = opaque;

  return classes_add (f->classes, &record->digest,
                      sectors_of (record->ptr.psize, f->v->sector_bytes), who,
                      block);
}

static int
step (void *opaque, uint64_t done)
{
  struct comparison *f = opaque;

  return drift_progress (f->progress, f->passed + done);
}

static int
run_passes (struct comparison *f, struct drift_progress *p)
{
  uint64_t begin = p->done;

  f->passed = begin;
  p->total = begin + 3 * estimate_items (f);
  if (scan (f) == -1)
    return -1;
  f->passed = begin + record_join_count (f->join);
  p->total = f->passed + 2 * record_join_count (f->join);
  if (drift_progress (p, f->passed) == -1 ||
      record_join_run (f->join, f->freed, f->nr - 1, add_content, step, f) ==
        -1)
    return -1;
  f->passed += record_join_count (f->join);
  p->total = f->passed + classes_count (f->classes);
  if (drift_progress (p, f->passed) == -1)
    return -1;
  return classes_run (f->classes, &f->fleet, p);
}

/*----------------------------------------------------------------------
 * The document
 */

static json_t *
clone_json (const struct comparison *f, uint32_t i)
{
  const struct drift_member *c = &f->members[i];
  uint32_t block_size = c->name->layer->block_size;
  uint64_t blocks = c->name->size / block_size +
    (c->name->size % block_size != 0);
  uint64_t inherited = c->logical - c->own;

  return json_pack ("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "name",
                    c->name->name, "zero", (json_int_t) (blocks - c->logical),
                    "golden_same", (json_int_t) (inherited + c->golden_same),
                    "golden_moved", (json_int_t) c->golden_moved, "sibling",
                    (json_int_t) c->sibling, "unique", (json_int_t) c->unique,
                    "logical", (json_int_t) c->logical, "only_here_bytes",
                    (json_int_t) (f->freed[i] * f->v->sector_bytes));
}

static json_t *
fleet_json (const struct comparison *f)
{
  uint64_t logical = 0, distinct = f->fleet.distinct;
  uint32_t i;

  for (i = 0; i < f->nr; ++i)
    logical += f->members[i].logical;
  return json_pack ("{s:I, s:I, s:o, s:I}", "logical", (json_int_t) logical,
                    "distinct", (json_int_t) distinct, "dedup_ratio",
                    distinct == 0
                      ? json_null ()
                      : json_real ((double) logical / (double) distinct),
                    "distinct_stored_bytes",
                    (json_int_t) (f->fleet.distinct_sectors *
                                  f->v->sector_bytes));
}

static json_t *
comparison_json (const struct comparison *f, uint64_t now)
{
  json_t *clones = json_array (), *document;
  uint32_t i;

  for (i = 1; i < f->nr; ++i)
    json_array_append_new (clones, clone_json (f, i));
  document = json_pack ("{s:s, s:I, s:I, s:I, s:o, s:o}", "golden",
                        f->golden.name, "time", (json_int_t) now, "block_size",
                        (json_int_t) f->golden.layer->block_size,
                        "golden_blocks", (json_int_t) f->members[0].logical,
                        "clones", clones, "fleet", fleet_json (f));
  if (document && f->is_merged)
    json_object_set_new (document, "golden_merged", json_true ());
  /* The last key, as in samples. */
  if (document &&
      json_object_set_new (document, GOLDEN_ID,
                           json_integer ((json_int_t) f->golden.id)) == -1) {
    json_decref (document);
    return nbdedup_fail_null (ENOMEM, "no memory for a document");
  }
  return document;
}

static int
make_map (struct comparison *f, uint64_t memory_bytes,
          struct drift_blocks *blocks)
{
  uint32_t i;

  f->map = blocks->map = class_map_new (f->v, memory_bytes);
  blocks->golden = f->golden;
  blocks->clones = calloc (f->nr, sizeof *blocks->clones);
  if (blocks->map == NULL)
    return -1;
  if (blocks->clones == NULL)
    return nbdedup_fail (ENOMEM, "no memory");
  for (i = 1; i < f->nr; ++i)
    blocks->clones[blocks->nr++] = f->members[i].name;
  return 0;
}

void
drift_blocks_free (struct drift_blocks *blocks)
{
  class_map_free (blocks->map);
  free (blocks->clones);
  *blocks = (struct drift_blocks) { .map = NULL };
}

/* This reads all blocks of the clone set again for each golden image, although
 * images that are based on each other share clones.
 */
json_t *
drift_measure (struct view *v, const struct view_name *golden,
               uint64_t memory_bytes, uint64_t now,
               struct drift_progress *progress, struct drift_blocks *blocks)
{
  struct comparison f = { .v = v, .progress = progress };
  const uint64_t part = memory_bytes / (blocks ? 4 : 3);
  json_t *result = NULL;

  if (find_members (&f, golden) == 0 &&
      (blocks == NULL || make_map (&f, part, blocks) == 0) &&
      (f.join = record_join_new (v, part)) != NULL &&
      (f.classes = classes_new (v, f.members, f.nr,
                                memory_bytes - (blocks ? 2 * part : part))) !=
        NULL) {
    classes_set_map (f.classes, f.map);
    if (run_passes (&f, progress) == 0)
      result = comparison_json (&f, now);
  }
  classes_free (f.classes);
  record_join_free (f.join);
  free (f.freed);
  free (f.members);
  return result;
}

/*----------------------------------------------------------------------
 * All golden images
 */

static json_t *
run_all (struct view *v, uint64_t memory_bytes, uint64_t now,
         struct drift_progress *progress)
{
  CLEANUP_JSON json_t *documents = json_array ();
  json_t *document;
  size_t nr, i;
  CLEANUP_FREE struct view_name **goldens = goldens_find (v, &nr);

  if (goldens == NULL)
    return NULL;
  for (i = 0; i < nr; ++i) {
    document = drift_measure (v, goldens[i], memory_bytes, now, progress, NULL);
    if (document == NULL)
      return NULL;
    json_array_append_new (documents, document);
  }
  return json_pack ("{s:O}", "goldens", documents);
}

static json_t *
run_one (struct view *v, const struct drift_golden *which,
         uint64_t memory_bytes, uint64_t now, struct drift_progress *progress)
{
  struct view_name *golden = which->id ? golden_find_id (v, which->id)
                                       : golden_find (v, which->name);

  return golden ? drift_measure (v, golden, memory_bytes, now, progress, NULL)
                : NULL;
}

int
drift_memory (struct nbdedup_pool *pool, uint64_t *memory_bytes)
{
  uint64_t most = DRIFT_MEMORY_DEFAULT;

  if (*memory_bytes == 0) {
    /* A server with a small memory budget must not use more. */
    *memory_bytes = pool->settings.ddt_cache_bytes / 8;
    if (*memory_bytes < DRIFT_MEMORY_MIN)
      *memory_bytes = DRIFT_MEMORY_MIN;
    if (*memory_bytes > most)
      *memory_bytes = most;
  }
  if (*memory_bytes < DRIFT_MEMORY_MIN)
    return nbdedup_fail (EINVAL,
                         "%" PRIu64 " bytes of memory are too few: at "
                         "least %" PRIu64 " are needed",
                         *memory_bytes, DRIFT_MEMORY_MIN);
  assert (*memory_bytes / 4 >= SORTER_MEMORY_MIN); /* drift_measure */
  return 0;
}

json_t *
drift_run (struct nbdedup_pool *pool, struct drift_golden which,
           uint64_t memory_bytes, nbdedup_progress_fn *progress, void *opaque)
{
  json_t *result;
  struct view v;
  struct drift_progress p = { .fn = progress, .opaque = opaque };
  uint64_t now;

  if (drift_memory (pool, &memory_bytes) == -1 ||
      drift_begin (pool, &v, &p) == -1)
    return NULL;
  now = clock_wall_s ();
  reclaim_begin (&v);
  result = which.name == NULL && which.id == 0
    ? run_all (&v, memory_bytes, now, &p)
    : run_one (&v, &which, memory_bytes, now, &p);
  drift_end (pool, &v);
  return result;
}

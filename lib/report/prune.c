/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "core/ddt.h"
#include "core/engine.h"
#include "core/fold-index.h"
#include "core/fold-summary.h"
#include "core/notes.h"
#include "core/txg.h"
#include "data/sync.h"
#include "disk/store.h"
#include "format/segment.h"
#include "meta/meta-index.h"
#include "report/index-flag.h"
#include "report/prune.h"

/* Groups of records that one transaction changes; and if there is no room for
 * those.
 */
#define STEP_GROUPS 64u
#define STEP_GROUPS_MIN 4u
/* Rows of records to read at once; the reader is free in between. */
#define SCAN_ROWS 64
/* Summary chunks to keep in memory. */
#define CHUNKS 16u
/* Births are counted in so many classes of equal length. */
#define CLASSES 65536u
#define BIRTH_UNKNOWN UINT64_MAX
/* How often to look whether the index is merged. */
#define LOOK_MS 20

struct chunk {
  uint64_t addr; /* 0: none */
  uint8_t bytes[SUMMARY_CHUNK_MAX];
};

struct prune {
  struct nbdedup_pool *pool;
  const struct prune_args *args;
  nbdedup_progress_fn *progress;
  void *opaque;
  uint64_t done, total; /* records, for progress */

  /* The scan: */
  int (*fn) (struct prune *p, const struct record *r);
  struct meta_conn *c;
  uint64_t next_group, end_group;
  struct segment_map *map; /* owned; of this segment, or NULL */
  uint64_t segment;        /* UINT64_MAX: none yet */
  struct chunk chunks[CHUNKS];

  /* What is old: records of classes before this one, and so many of it. */
  uint64_t class, class_rest;
  unsigned class_shift;
  uint64_t bound;    /* with an age: born in this fold, or before */
  uint64_t *nr_born; /* owned; CLASSES of them */
  uint64_t unshared;

  /* Old records to be pruned, by address. */
  struct record_name *victims; /* owned */
  size_t nr_victims;
  unsigned step_groups;
  uint64_t pruned;

  /* The step's, in the folding thread. */
  size_t first, end; /* of 'victims' */
  uint64_t *hidden;  /* owned; ddt_end_prune is due */
  size_t nr_hidden;
  struct index_entry *ops; /* owned */
  size_t nr_ops;
  bool merging;
};

static int
go_on (struct prune *p)
{
  const uint64_t done = p->done < p->total ? p->done : p->total;

  if (p->progress && p->progress (p->opaque, done, p->total) != 0)
    return nbdedup_fail (EINTR,
                         "interrupted: the entries pruned so far stay "
                         "pruned");
  return 0;
}

/*----------------------------------------------------------------------
 * The age of a record
 */

/* The summary chunk that has the record's slot; NULL: it is not known. */
static const struct chunk *
get_chunk (struct prune *p, const struct record *r)
{
  const uint32_t sector_bytes = p->pool->sector_bytes;
  const unsigned index = r->slot / summary_chunk_slots (sector_bytes);
  struct chunk *chunk = &p->chunks[index % CHUNKS];
  uint64_t addr;

  if (p->map == NULL || index >= p->map->nr_chunks ||
      p->map->chunks[index] == SEGMENT_CHUNK_LOST)
    return NULL;
  addr = p->map->id * p->map->nr_sectors + p->map->chunks[index];
  if (chunk->addr == addr)
    return chunk;
  chunk->addr = 0;
  if (store_read (p->pool->store, addr, chunk->bytes,
                  summary_chunk_bytes (sector_bytes)) == -1)
    return NULL;
  chunk->addr = addr;
  return chunk;
}

/* A fold may write the chunk just now.  If its slot cannot be read the record
 * counts as young.
 */
static uint64_t
birth_of (struct prune *p, const struct record *r)
{
  const struct chunk *chunk = get_chunk (p, r);
  struct summary_chunk place = {
    .uuid = p->pool->uuid,
    .sector_bytes = p->pool->sector_bytes,
    .index = r->slot / summary_chunk_slots (p->pool->sector_bytes),
  };
  uint64_t birth;

  if (chunk == NULL)
    return BIRTH_UNKNOWN;
  place.addr = chunk->addr;
  return summary_find_birth (&place, chunk->bytes, r, &birth) ? birth
                                                              : BIRTH_UNKNOWN;
}

static uint64_t
class_of (const struct prune *p, uint64_t birth)
{
  const uint64_t class = birth >> p->class_shift;

  return class < CLASSES ? class : CLASSES - 1;
}

static bool
is_old (struct prune *p, const struct record *r)
{
  uint64_t class;

  if (p->args->has_age)
    return p->bound == UINT64_MAX || birth_of (p, r) <= p->bound;
  class = class_of (p, birth_of (p, r));
  if (class != p->class)
    return class < p->class;
  if (p->class_rest == 0)
    return false;
  p->class_rest--;
  return true;
}

/*----------------------------------------------------------------------
 * The scan
 */

static bool
is_candidate (const struct record *r)
{
  return r->flags & RECORD_INDEXED && !(r->flags & RECORD_COPY) &&
    r->refcount == 1;
}

/* The map of the segment in which the group lies. */
static void
load_segment (struct prune *p, uint64_t group)
{
  const uint64_t segment = group * RECORD_GROUP_SECTORS /
    (SEGMENT_BYTES / p->pool->sector_bytes);
  struct blob b CLEANUP_BLOB = { NULL };
  unsigned i;

  if (p->segment == segment)
    return;
  segment_map_free (p->map);
  p->map = NULL;
  p->segment = segment;
  for (i = 0; i < CHUNKS; ++i)
    p->chunks[i].addr = 0;
  if (meta_segment_get (p->c, segment, &b) == 1)
    p->map = segment_map_unpack (segment, p->pool->sector_bytes, b.p, b.len);
}

static int
scan_group (void *opaque, uint64_t group, const uint8_t *buf, size_t len)
{
  struct prune *p = opaque;
  struct record r;
  size_t off = 0;

  if (group >= p->end_group) {
    p->next_group = group;
    return 1;
  }
  load_segment (p, group);
  /* check reports a row that is damaged. */
  while (record_next (group, buf, len, &off, &r) == 1) {
    p->done += !(r.flags & RECORD_COPY);
    if (is_candidate (&r) && p->fn (p, &r) == -1)
      return -1;
  }
  return 0;
}

/* Call 'fn' for each record that may be pruned, and 'after' from time to time,
 * without a reader.
 */
static int
scan (struct prune *p, int (*fn) (struct prune *p, const struct record *r),
      int (*after) (struct prune *p))
{
  uint64_t first;
  int r;

  p->fn = fn;
  p->next_group = 0;
  do {
    first = p->next_group;
    p->end_group = first + SCAN_ROWS;
    p->segment = UINT64_MAX; /* it may have changed */
    p->c = meta_reader_get (p->pool->meta);
    r = meta_record_scan (p->c, first, scan_group, p);
    meta_reader_put (p->pool->meta, p->c);
    if (r != -1 && (after (p) == -1 || go_on (p) == -1))
      r = -1;
  } while (r != -1 && p->next_group > first);
  return r == -1 ? -1 : 0;
}

/*----------------------------------------------------------------------
 * Which records are old?
 */

static int
count_birth (struct prune *p, const struct record *r)
{
  p->nr_born[class_of (p, birth_of (p, r))]++;
  p->unshared++;
  return 0;
}

static int
do_nothing (struct prune *p)
{
  (void) p;
  return 0;
}

static int
find_percent (struct prune *p, const struct meta_state *state)
{
  uint64_t target;

  while (state->fold >> p->class_shift >= CLASSES - 1)
    p->class_shift++;
  p->nr_born = calloc (CLASSES, sizeof *p->nr_born);
  if (p->nr_born == NULL)
    return nbdedup_fail (ENOMEM, "no memory to prune");
  if (scan (p, count_birth, do_nothing) == -1)
    return -1;
  target = p->unshared / 100 * p->args->percent +
    p->unshared % 100 * p->args->percent / 100;
  for (p->class = 0; p->class < CLASSES - 1 && p->nr_born[p->class] <= target;
       ++p->class)
    target -= p->nr_born[p->class];
  assert (p->class < CLASSES);
  p->class_rest = target;
  return 0;
}

/* 1; 0: nothing can be that old. */
static int
find_bound (struct prune *p, const struct meta_state *state)
{
  p->total = state->records * (p->args->has_age ? 1 : 2);
  if (!p->args->has_age)
    return find_percent (p, state) == -1 ? -1 : 1;
  p->bound = UINT64_MAX;
  return p->args->age_s == 0 ||
    notes_fold_of_age (p->pool->notes, p->args->age_s, &p->bound);
}

/*----------------------------------------------------------------------
 * A step, in the folding thread
 */

static void
end_hiding (struct prune *p)
{
  ddt_end_prune (p->pool->ddt, p->hidden, p->nr_hidden);
  p->nr_hidden = 0;
}

/* 1: the record leaves the index; 0: it must not. */
static int
prune_record (void *opaque, const struct record *r)
{
  struct prune *p = opaque;
  struct index_entry e;

  if (!is_candidate (r))
    return 0;
  index_entry_make (&r->digest, r->ptr.addr, &e);
  e.removed = true;
  if (array_push (&p->ops, &p->nr_ops, e) == -1 ||
      array_push (&p->hidden, &p->nr_hidden, r->ptr.addr) == -1)
    return -1;
  if (ddt_try_prune (p->pool->ddt, r->ptr.addr, &r->digest))
    return 1;
  p->nr_ops--;
  p->nr_hidden--;
  return 0;
}

/* Runs again if the transaction has to be repeated. */
static int
prune_step (void *arg, struct meta_conn *c, struct meta_state *state)
{
  struct prune *p = arg;

  end_hiding (p);
  p->nr_ops = 0;
  if (state->features_compat & FEATURE_COMPAT_RECORDS_LOST)
    return nbdedup_fail (EIO,
                         "parts of table \"record\" of pool.db are lost: "
                         "run nbdedup check --repair first");
  if (index_flag_change (c, p->victims + p->first, p->end - p->first,
                         prune_record, p) == -1)
    return -1;
  assert (p->nr_hidden == p->nr_ops); /* each left the index, and lookups */
  return fold_index (c, p->ops, p->nr_ops, &state->index_entries,
                     txg_index_merges (p->pool->txg), false);
}

/* After the commit. */
static void
step_done (void *arg)
{
  struct prune *p = arg;
  struct index_runs runs;

  quiesce_wait (&p->pool->quiesce);
  p->pruned += p->nr_hidden;
  end_hiding (p);
  if (meta_index_runs (meta_writer (p->pool->meta), &runs) == 0)
    ddt_set_runs (p->pool->ddt, &runs);
}

/*----------------------------------------------------------------------
 * Steps
 */

static int
try_step (struct prune *p)
{
  uint64_t pages;

  p->end = p->first +
    index_flag_groups (p->victims + p->first, p->nr_victims - p->first,
                       p->step_groups);
  assert (p->end > p->first && p->end <= p->nr_victims);
  pages = index_flag_pages (p->step_groups, p->end - p->first);
  WITH_LOCK (&p->pool->admin);
  return txg_run_large (p->pool->txg, pages, prune_step, step_done, p);
}

static int
run_step (struct prune *p)
{
  int r = try_step (p);

  if (r == -1 && errno == ENOSPC && p->step_groups > STEP_GROUPS_MIN) {
    end_hiding (p);
    p->step_groups = STEP_GROUPS_MIN;
    r = try_step (p);
  }
  end_hiding (p); /* of a step that failed */
  if (r == -1 && errno == ENOSPC)
    return nbdedup_fail (ENOSPC,
                         "no room in pool.db: prune needs some before "
                         "it gives any back: free some space on its file "
                         "system");
  return r;
}

static int
run_steps (struct prune *p)
{
  for (p->first = 0; p->first < p->nr_victims; p->first = p->end)
    if (run_step (p) == -1 || go_on (p) == -1)
      return -1;
  p->nr_victims = 0;
  return 0;
}

static int
note_old (struct prune *p, const struct record *r)
{
  if (!is_old (p, r))
    return 0;
  if (p->args->dry_run) {
    p->pruned++;
    return 0;
  }
  return array_push (&p->victims, &p->nr_victims,
                     (struct record_name) { r->ptr.addr, r->digest });
}

static void
ask_for_merge (void *arg)
{
  struct prune *p = arg;

  txg_shrink_index (p->pool->txg);
}

static void
look_at_merge (void *arg)
{
  struct prune *p = arg;

  p->merging = txg_is_shrinking_index (p->pool->txg);
}

/* Each fold does a part. */
static int
shrink_index (struct prune *p)
{
  int r = txg_run (p->pool->txg, NULL, ask_for_merge, p);

  for (p->merging = true; r == 0 && p->merging;) {
    r = txg_run (p->pool->txg, NULL, look_at_merge, p);
    if (r == 0)
      r = go_on (p);
    if (r == 0 && p->merging)
      clock_sleep_ms (LOOK_MS);
  }
  return r;
}

static json_t *
prune (struct prune *p)
{
  struct meta_state before, after;
  int r;

  if (pool_sync (p->pool) == -1)
    return NULL;
  txg_get_state (p->pool->txg, &before);
  r = find_bound (p, &before);
  if (r == 1)
    r = scan (p, note_old, run_steps);
  /* Also if there was nothing: an earlier prune may have been interrupted. */
  if (r == 0 && !p->args->dry_run)
    r = shrink_index (p);
  if (r == -1)
    return NULL;
  txg_get_state (p->pool->txg, &after);
  if (p->args->dry_run)
    after.index_entries = before.index_entries - p->pruned;
  return json_pack ("{s:I, s:I, s:I}", "entries_before",
                    (json_int_t) before.index_entries, "entries_after",
                    (json_int_t) after.index_entries, "pruned_entries",
                    (json_int_t) p->pruned);
}

static void
free_memory (struct prune *p)
{
  assert (p->nr_hidden == 0); /* else lookups would miss them for good */
  segment_map_free (p->map);
  free (p->nr_born);
  free (p->victims);
  free (p->hidden);
  free (p->ops);
  free (p);
}

json_t *
prune_run (struct nbdedup_pool *pool, const struct prune_args *args,
           nbdedup_progress_fn *progress, void *opaque)
{
  struct prune *p = calloc (1, sizeof *p);
  json_t *result;
  int err;

  if (p == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory to prune");
  p->pool = pool;
  p->args = args;
  p->progress = progress;
  p->opaque = opaque;
  p->segment = UINT64_MAX;
  p->step_groups = STEP_GROUPS;
  result = prune (p);
  err = errno;
  free_memory (p);
  errno = err;
  return result;
}

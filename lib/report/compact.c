/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/xxh3.h"
#include "core/engine.h"
#include "core/moves.h"
#include "core/txg.h"
#include "data/capacity.h"
#include "data/sync.h"
#include "disk/room.h"
#include "disk/store.h"
#include "meta/meta.h"
#include "report/compact.h"
#include "report/mover.h"
#include "space/space.h"

/* A batch takes at most this part of the free space. */
#define FREE_PART 8
/* The smallest batch that is tried when space is short. */
#define BATCH_BYTES_MIN (UINT64_C (64) << 10)
/* While others hold the moves back, or the WAL cannot be restarted. */
#define HELD_MS 50

struct copying {
  struct nbdedup_pool *pool;
  struct moves_batch batch; /* 'nr': those in their new place */
  size_t nr_found;          /* of batch.p */
  struct mover mover;
};

/* The records of a group.  Copies stay where they are: they must be in another
 * segment than their record.
 */
static int
collect_group (struct copying *c, uint64_t group, const struct blob *row)
{
  struct record r;
  size_t off = 0;
  int n;

  while ((n = record_next (group, row->p, row->len, &off, &r)) == 1)
    if (r.refcount > 0 && !(r.flags & RECORD_COPY) &&
        array_push (&c->batch.p, &c->nr_found,
                    (struct move) {
                      .record = r,
                      .old = r.ptr,
                    }) == -1)
      return -1;
  return n;
}

static int
collect_segment (struct copying *c, struct meta_conn *conn, uint64_t segment)
{
  const uint64_t sectors = SEGMENT_BYTES / c->pool->sector_bytes;
  struct blob row CLEANUP_BLOB = { NULL };
  uint64_t group;

  for (group = segment * sectors / RECORD_GROUP_SECTORS;
       group * RECORD_GROUP_SECTORS < (segment + 1) * sectors; ++group)
    if (meta_record_get (conn, group, &row) == -1 ||
        collect_group (c, group, &row) == -1)
      return -1;
  return 0;
}

/* The segments with as many records as one batch may have. */
static int
collect (struct copying *c)
{
  struct meta_conn *conn = meta_reader_get (c->pool->meta);
  struct moves_batch *b = &c->batch;
  unsigned i;
  size_t nr;
  int r = 0;

  for (i = 0; i < b->nr_segments; ++i) {
    nr = c->nr_found;
    r = collect_segment (c, conn, b->segments[i]);
    if (r == -1 || c->nr_found > MOVES_MAX) {
      c->nr_found = nr;
      break;
    }
  }
  meta_reader_put (c->pool->meta, conn);
  (void) space_undrain (c->pool->space, b->segments + i, b->nr_segments - i);
  b->nr_segments = i;
  return r;
}

/* 1; 0: the record is damaged, and stays; -1. */
static int
read_old (struct copying *c, const struct record *r)
{
  const uint32_t sector = c->pool->sector_bytes;
  uint8_t *p = mover_room (&c->mover,
                           (size_t) sectors_of (r->ptr.psize, sector) * sector);

  if (p == NULL)
    return -1;
  return store_read (c->pool->store, r->ptr.addr, p, r->ptr.psize) == 0 &&
    xxh3_64 (p, r->ptr.psize) == r->ptr.cksum;
}

/* The same. */
static int
copy_record (struct copying *c, struct move *m)
{
  int r = read_old (c, &m->record);

  assert (m->record.refcount > 0 && !(m->record.flags & RECORD_COPY));
  if (r != 1)
    return r;
  m->record.flags &= RECORD_INDEXED;
  return mover_place (&c->mover, m) == -1 ? -1 : 1;
}

static int
copy_all (struct copying *c)
{
  struct moves_batch *b = &c->batch;
  size_t i;
  int r = 0;

  for (i = 0; i < c->nr_found && r != -1; ++i) {
    assert (b->nr <= i); /* it overtakes none that is to come */
    b->p[b->nr] = b->p[i];
    r = copy_record (c, &b->p[b->nr]);
    b->nr += r == 1;
  }
  return r == -1 || mover_write (&c->mover) == -1 ? -1 : 0;
}

static int
fill_batch (struct copying *c, uint64_t max_bytes)
{
  struct moves_batch *b = &c->batch;

  assert_held (&c->pool->moves->one);
  assert (!c->pool->moves->under_way);
  b->segments = calloc (MOVES_SEGMENTS_MAX, sizeof *b->segments);
  if (b->segments == NULL)
    return nbdedup_fail (ENOMEM, "no memory to move records");
  if (mover_init (&c->mover, c->pool) == -1)
    return -1;
  b->nr_segments = space_drain (c->pool->space, max_bytes, b->segments,
                                MOVES_SEGMENTS_MAX);
  if (collect (c) == -1)
    return -1;
  assert (c->nr_found <= MOVES_MAX && b->nr_segments <= MOVES_SEGMENTS_MAX);
  if (c->nr_found == 0)
    return 0;
  if (txg_reserve (c->pool->txg, (unsigned) c->nr_found, ROOM_NEW) == -1)
    return -1;
  b->reserved = (unsigned) c->nr_found;
  return copy_all (c);
}

static int
begin_batch (struct nbdedup_pool *pool, uint64_t max_bytes)
{
  struct copying c = { .pool = pool };
  int r = fill_batch (&c, max_bytes), err = errno;
  size_t nr = c.batch.nr;

  mover_free (&c.mover);
  if (r == 0 && nr > 0 && moves_begin (pool->moves, &c.batch))
    return (int) nr;
  txg_unreserve (pool->txg, c.batch.reserved);
  moves_give_back (pool->moves, &c.batch);
  errno = err;
  return r;
}

/* A file system that is almost full has no room for the pages that a large
 * batch may change.  A smaller one empties the segments with the fewest
 * records, and so makes room for the next.
 */
int
compact_begin (struct nbdedup_pool *pool, uint64_t max_bytes)
{
  int r;

  do
    r = begin_batch (pool, max_bytes);
  while (r == -1 && errno == ENOSPC && (max_bytes /= 2) >= BATCH_BYTES_MIN);
  return r;
}

/* Records move to free sectors of other segments first, and those are most of
 * the room in a file system that "records" fills.
 */
uint64_t
compact_bytes (struct nbdedup_pool *pool, uint64_t most)
{
  struct capacity cap;
  struct space_info info;
  uint64_t room;

  if (capacity_used (pool, &cap) == -1)
    return 0;
  space_get_info (pool->space, &info);
  room = cap.free_bytes;
  if (info.free_bytes > info.reserved_bytes)
    room += info.free_bytes - info.reserved_bytes;
  if (most > room / FREE_PART)
    most = room / FREE_PART;
  return most < SEGMENT_BYTES ? 0 : most;
}

/*----------------------------------------------------------------------
 * The command
 */

struct compaction {
  struct nbdedup_pool *pool;
  uint64_t first; /* bytes that could come back */
  nbdedup_progress_fn *progress;
  void *opaque;
};

static uint64_t
get_waste (struct nbdedup_pool *pool)
{
  struct space_info info;

  space_get_info (pool->space, &info);
  return info.waste_bytes;
}

int
compact_step (struct nbdedup_pool *pool, unsigned rows)
{
  if (meta_is_frozen (pool->meta)) {
    clock_sleep_ms (HELD_MS);
    return 0;
  }
  pool->moves->rows = rows;
  return txg_run (pool->txg, NULL, NULL, NULL);
}

/* The folds' part of a batch. */
static int
sweep (struct compaction *c)
{
  struct moves *m = c->pool->moves;
  uint64_t waste;
  bool stopped = false;

  assert_held (&m->one);
  while (m->under_way) {
    if (compact_step (c->pool, COMPACT_ROWS) == -1)
      return -1;
    waste = get_waste (c->pool);
    if (c->progress && !stopped &&
        c->progress (c->opaque, waste < c->first ? c->first - waste : 0,
                     c->first) != 0)
      stopped = m->end = true;
  }
  return stopped ? nbdedup_fail (EINTR,
                                 "interrupted; the records moved so far "
                                 "stay in their new places")
                 : 0;
}

/* 1: go on; 0: no more comes of it; -1. */
static int
run_batch (struct compaction *c)
{
  const uint64_t bytes = compact_bytes (c->pool, COMPACT_BATCH_BYTES);
  const uint64_t waste = get_waste (c->pool);
  const uint64_t emptied = c->pool->moves->emptied;
  int r;

  assert_held (&c->pool->moves->one);
  if (bytes == 0)
    return nbdedup_fail (ENOSPC,
                         "there is no room to which records could "
                         "move: free some space on the file system of "
                         "\"records\"");
  /* The server's thread may have ended in the middle of a batch. */
  r = c->pool->moves->under_way ? 1 : compact_begin (c->pool, bytes);
  if (r > 0)
    r = sweep (c);
  if (r == -1)
    return -1;
  if (moves_are_held (c->pool->moves)) {
    clock_sleep_ms (HELD_MS);
    return 1;
  }
  return c->pool->moves->emptied > emptied &&
    get_waste (c->pool) + SEGMENT_BYTES <= waste;
}

/* While another command has its turn. */
static int
look (void *opaque)
{
  struct compaction *c = opaque;

  return c->progress && c->progress (c->opaque, 0, c->first) != 0
    ? nbdedup_fail (EINTR, "interrupted")
    : 0;
}

static int
compact (struct compaction *c)
{
  struct moves *m = c->pool->moves;
  int r;

  if (turn_take (&m->turn, &m->one, look, c) == -1)
    return -1;
  do
    r = txg_check (c->pool->txg) == -1 ? -1 : run_batch (c);
  while (r == 1);
  turn_give (&m->turn, &m->one);
  return r;
}

json_t *
compact_run (struct nbdedup_pool *pool, nbdedup_progress_fn *progress,
             void *opaque)
{
  struct compaction c = {
    .pool = pool,
    .progress = progress,
    .opaque = opaque,
  };
  const uint64_t records = pool->moves->moved;
  const uint64_t bytes = pool->moves->moved_bytes;

  if (pool_sync (pool) == -1)
    return NULL;
  c.first = get_waste (pool);
  if (compact (&c) == -1 || txg_make_room (pool->txg, false) == -1)
    return NULL;
  return json_pack ("{s:I, s:I, s:I}", "moved_records",
                    (json_int_t) (pool->moves->moved - records), "moved_bytes",
                    (json_int_t) (pool->moves->moved_bytes - bytes),
                    "file_bytes", (json_int_t) store_file_bytes (pool->store));
}

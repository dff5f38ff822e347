/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/background.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/invariant.h"
#include "base/log.h"
#include "base/priority.h"
#include "core/ddt.h"
#include "core/engine.h"
#include "core/txg.h"
#include "data/capacity.h"
#include "data/verify.h"
#include "data/watch.h"
#include "disk/room.h"
#include "disk/store.h"
#include "meta/meta.h"
#include "report/copier.h"
#include "report/scrub.h"
#include "space/space.h"

/* Records that folds have reported; if there are more the copier scans all. */
#define QUEUE_MAX 65536
/* Rows of records to read at once; no reader is held in between. */
#define SCAN_ROWS 64
/* After a failure for lack of room or space. */
#define FULL_MS 2000
/* After another failure. */
#define RETRY_MS 60000

struct copier {
  struct nbdedup_pool *pool; /* not owned */
  struct background thread;  /* wakes up when there is work */
  atomic_uint_fast64_t made;

  /* The thread's own. */
  struct verifier v;
  bool scanning;
  uint64_t next_group;
  uint64_t *found; /* owned; by the scan, to be checked */
  size_t nr_found, at;
  uint64_t begun_ms, bytes; /* for the pace */

  struct lock lock; /* protects everything below; innermost */
  uint64_t *queue;  /* owned; a ring */
  size_t first, nr;
  bool look; /* scan all records */
  bool busy; /* with a record, or with a scan */
};

static void
copier_assert_consistent_locked (struct copier *s)
{
  assert_held (&s->lock);
  assert (s->first < QUEUE_MAX && s->nr <= QUEUE_MAX);
}
DEFINE_WITH_CONSISTENT (copier)

/*----------------------------------------------------------------------
 * One record
 */

struct source {
  struct record record;
  uint64_t segments[COPIES_MAX]; /* of the record and its copies */
  unsigned nr_segments;
};

static uint64_t
segment_of (const struct nbdedup_pool *pool, uint64_t addr)
{
  return addr / (SEGMENT_BYTES / pool->sector_bytes);
}

/* Does the record lack copies, and is it undamaged?  Then its stored bytes are
 * in v->raw.  Between quiesce_enter and quiesce_leave.
 */
static int
look_at (struct nbdedup_pool *pool, struct meta_conn *c, struct verifier *v,
         uint64_t addr, struct source *src)
{
  struct blob row CLEANUP_BLOB = { NULL };
  uint64_t copies[COPIES_BESIDE];
  unsigned nr, i, wanted;
  int r = meta_record_find (c, addr, &row, &src->record);

  if (r != 1 || src->record.flags & RECORD_COPY)
    return r == -1 ? -1 : 0;
  wanted = copies_wanted (&pool->copies, src->record.refcount);
  if (wanted == 0)
    return 0;
  if (meta_copies_get (c, addr, copies, &nr) == -1)
    return -1;
  assert (nr <= COPIES_BESIDE && wanted <= COPIES_BESIDE);
  if (nr > wanted) /* left by an earlier session */
    copies_look (&pool->copies);
  /* The scrub reports damaged records. */
  if (nr >= wanted || verify_read (v, &src->record) == NULL)
    return 0;
  src->segments[0] = segment_of (pool, addr);
  for (i = 0; i < nr; ++i)
    src->segments[i + 1] = segment_of (pool, copies[i]);
  src->nr_segments = nr + 1;
  return (int) (wanted - nr);
}

/* Inside a txg. */
static int
write_copy (struct nbdedup_pool *pool, struct source *src,
            const uint8_t *stored)
{
  struct record copy = src->record;
  uint32_t nr_sectors = sectors_of (copy.ptr.psize, pool->sector_bytes);
  struct placement place;
  int err;

  if (txg_check (pool->txg) == -1 ||
      space_alloc_apart (pool->space, nr_sectors, src->segments,
                         src->nr_segments, &place) == -1)
    return -1;
  copy.ptr.addr = place.addr;
  copy.slot = place.slot;
  copy.flags = RECORD_COPY;
  copy.refcount = 0; /* the fold adds this txg's */
  if (store_write (pool->store, place.addr, stored,
                   (size_t) nr_sectors * pool->sector_bytes) == 0 &&
      ddt_insert_copy (pool->ddt, &copy, place.chunk_addr,
                       src->record.ptr.addr) == 0) {
    assert (src->nr_segments < COPIES_MAX);
    src->segments[src->nr_segments++] = segment_of (pool, place.addr);
    return 0;
  }
  err = errno;
  space_undo (pool->space, &place, nr_sectors);
  errno = err;
  return -1;
}

static int
make_copy (struct nbdedup_pool *pool, struct source *src, const uint8_t *stored)
{
  uint64_t pages;
  int r, err;

  if (txg_reserve (pool->txg, 1, ROOM_NEW) == -1)
    return -1;
  r = space_reserve (pool->space, src->record.lsize, 1);
  if (r == 0) {
    txg_throttle (pool->txg);
    pages = txg_enter (pool->txg, 1, ROOM_BLOCK_PAGES);
    r = write_copy (pool, src, stored);
    err = errno;
    txg_return (pool->txg, pages, NULL);
    txg_leave (pool->txg);
    space_unreserve (pool->space, src->record.lsize, 1);
    errno = err;
  }
  err = errno;
  txg_unreserve (pool->txg, 1);
  errno = err;
  return r;
}

int
copier_copy (struct nbdedup_pool *pool, struct verifier *v, uint64_t addr,
             uint64_t *bytes)
{
  struct meta_conn *c = meta_reader_get (pool->meta);
  unsigned ticket = quiesce_enter (&pool->quiesce);
  struct source src;
  int lacking = look_at (pool, c, v, addr, &src), i;

  quiesce_leave (&pool->quiesce, ticket);
  meta_reader_put (pool->meta, c);
  if (lacking <= 0)
    return lacking;
  /* Whole sectors, padded with zeroes. */
  memset (v->raw + src.record.ptr.psize, 0,
          (size_t) sectors_of (src.record.ptr.psize, pool->sector_bytes) *
              pool->sector_bytes -
            src.record.ptr.psize);
  for (i = 0; i < lacking; ++i) {
    if (make_copy (pool, &src, v->raw) == -1)
      return -1;
    *bytes += src.record.ptr.psize;
  }
  return lacking;
}

/*----------------------------------------------------------------------
 * The next record
 */

void
copier_note (struct copier *s, const uint64_t *addrs, size_t nr)
{
  size_t i;

  if (s == NULL)
    return;
  WITH_LOCK (&s->lock);
  WITH_CONSISTENT (copier, s);

  for (i = 0; i < nr && s->nr < QUEUE_MAX; ++i)
    s->queue[(s->first + s->nr++) % QUEUE_MAX] = addrs[i];
  s->look |= i < nr;
  cond_signal (&s->thread.wake);
}

void
copier_look_again (struct copier *s)
{
  if (s == NULL)
    return;
  WITH_LOCK (&s->lock);
  s->look = true;
  cond_signal (&s->thread.wake);
}

static int
note_group (void *opaque, uint64_t group, const uint8_t *buf, size_t len)
{
  struct copier *s = opaque;
  struct record r;
  size_t off = 0;

  if (group >= s->next_group + SCAN_ROWS ||
      s->nr_found >= SCAN_ROWS * RECORD_GROUP_SECTORS) {
    s->next_group = group;
    return 1;
  }
  /* check reports a row that is damaged. */
  while (record_next (group, buf, len, &off, &r) == 1)
    if (!(r.flags & RECORD_COPY) &&
        copies_wanted (&s->pool->copies, r.refcount) > 0 &&
        s->nr_found < SCAN_ROWS * RECORD_GROUP_SECTORS)
      s->found[s->nr_found++] = r.ptr.addr;
  return 0;
}

/* Read the next rows of table "record". */
static int
scan_some (struct copier *s)
{
  struct meta_conn *c = meta_reader_get (s->pool->meta);
  uint64_t first = s->next_group;
  int r;

  assert (s->scanning && s->at == s->nr_found);
  s->nr_found = s->at = 0;
  r = meta_record_scan (c, first, note_group, s);
  meta_reader_put (s->pool->meta, c);
  if (r == 0 && s->next_group == first)
    s->scanning = false;
  return r;
}

/* The next record: 1; 0: there is none at the moment; -1. */
static int
take (struct copier *s, uint64_t *addr)
{
  if (s->at < s->nr_found) {
    *addr = s->found[s->at++];
    return 1;
  }
  {
    WITH_LOCK (&s->lock);
    WITH_CONSISTENT (copier, s);

    if (s->look && !s->scanning) {
      s->look = false;
      s->scanning = s->pool->copies.nr > 1;
      s->next_group = 0;
    }
    if (s->nr > 0) {
      *addr = s->queue[s->first];
      s->first = (s->first + 1) % QUEUE_MAX;
      s->nr--;
      return 1;
    }
  }
  return s->scanning && scan_some (s) == -1 ? -1 : 0;
}

/*----------------------------------------------------------------------
 * The thread
 */

/* Wait until there is work.  False: stop. */
static bool
wait_for_work (struct copier *s)
{
  WITH_LOCK (&s->lock);
  s->busy = s->scanning || s->at < s->nr_found;
  while (!s->thread.stop && !s->busy && !s->look && s->nr == 0) {
    s->begun_ms = 0;
    lock_wait (&s->lock, &s->thread.wake);
  }
  s->busy = true;
  return !s->thread.stop;
}

static bool
has_room (struct nbdedup_pool *pool)
{
  struct capacity cap;
  unsigned most = pool->watch->full_warn;

  if (most > COPIER_FULL_PERCENT)
    most = COPIER_FULL_PERCENT;
  return txg_check (pool->txg) == 0 && !pool->watch->full &&
    !txg_is_stuck (pool->txg) && capacity_used (pool, &cap) == 0 &&
    cap.used_percent < most;
}

/* Not faster than scrub-rate. */
static void
keep_pace (struct copier *s, uint64_t bytes)
{
  uint64_t rate = s->pool->scrub->rate, now = clock_ms (), due;

  if (rate == 0 || bytes == 0)
    return;
  if (s->begun_ms == 0 || now - s->begun_ms > FULL_MS) {
    s->begun_ms = now;
    s->bytes = 0;
  }
  s->bytes += bytes;
  due = s->begun_ms + s->bytes * 1000 / rate;
  while (now < due && background_wait_ms (&s->thread, due - now))
    now = clock_ms ();
}

static void
copying_failed (struct copier *s)
{
  bool full = errno == ENOSPC;

  if (!full)
    nbdedup_log (NBDEDUP_LOG_WARNING,
                 "%s: the copier could not copy a record, "
                 "and will try again: %s",
                 s->pool->path, nbdedup_error ());
  /* The scan finds the record again. */
  copier_look_again (s);
  background_wait_ms (&s->thread, full ? FULL_MS : RETRY_MS);
}

static void *
copier_thread (void *arg)
{
  struct copier *s = arg;
  uint64_t addr, bytes;
  int r;

  thread_lower_priority ();
  while (wait_for_work (s)) {
    if (!has_room (s->pool)) {
      background_wait_ms (&s->thread, FULL_MS);
      continue;
    }
    bytes = 0;
    r = take (s, &addr);
    if (r == 1)
      r = copier_copy (s->pool, &s->v, addr, &bytes);
    if (r == -1)
      copying_failed (s);
    else
      s->made += (uint64_t) r;
    keep_pace (s, bytes);
  }
  return NULL;
}

struct copier *
copier_start (struct nbdedup_pool *pool)
{
  struct copier *s = calloc (1, sizeof *s);

  if (s == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  s->pool = pool;
  s->look = pool->copies.nr > 1;
  lock_init (&s->lock);
  background_init (&s->thread, &s->lock);
  s->queue = calloc (QUEUE_MAX, sizeof *s->queue);
  s->found = calloc (SCAN_ROWS * RECORD_GROUP_SECTORS, sizeof *s->found);
  if (s->queue == NULL || s->found == NULL ||
      verifier_init (&s->v, pool) == -1) {
    copier_free (s);
    return nbdedup_fail_null (ENOMEM, "no memory to copy records");
  }
  if (background_start (&s->thread, copier_thread, s) == 0)
    return s;
  copier_free (s);
  return NULL;
}

void
copier_cancel (struct copier *s)
{
  if (s)
    background_cancel (&s->thread);
}

void
copier_stop (struct copier *s)
{
  if (s)
    background_stop (&s->thread);
}

void
copier_free (struct copier *s)
{
  if (s == NULL)
    return;
  background_destroy (&s->thread);
  verifier_free (&s->v);
  free (s->found);
  free (s->queue);
  lock_destroy (&s->lock);
  free (s);
}

json_t *
copier_status (struct copier *s)
{
  size_t waiting;
  bool looking;

  if (s == NULL)
    return NULL;
  {
    WITH_LOCK (&s->lock);
    waiting = s->nr;
    looking = s->look || s->busy;
  }
  return json_pack ("{s:I, s:b, s:I, s:I}", "waiting", (json_int_t) waiting,
                    "looking", (int) looking, "made", (json_int_t) s->made,
                    "reads", (json_int_t) s->pool->copy_reads);
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* Room in the WAL for a fold and for merges of the hash index: a part of
 * txg-fold.c.
 */

#include <config.h>

#include <assert.h>

#include "base/clock.h"
#include "core/txg-int.h"
#include "disk/room.h"
#include "meta/meta.h"
#include "space/space.h"

/* Retry interval for room that merges of the hash index would like to have. */
#define MERGE_RETRY_MS 10000
/* So many pages the WAL has at most: 256 MiB.
 * What the fold is promised is less than that (parts.wal_max_bytes).
 */
#define WAL_MAX_PAGES 32768u
/* 2 and 128 MiB; and the part of the free space that they may take. */
#define MERGE_PAGES_MIN 256u
#define MERGE_PAGES_MAX 16384u
#define MERGE_SHARE 4

/* May the WAL get so large before it is restarted? */
static bool
may_grow (struct txg *t, uint64_t pages)
{
  return pages <= t->parts.wal_max_bytes / META_PAGE_BYTES;
}

/* Is there room behind the WAL's content, or can there be? */
static bool
wal_has_room (struct txg *t, uint64_t need)
{
  struct meta_pages p;

  meta_get_pages (t->parts.meta, &p);
  return p.wal_used + need <= p.wal_allocated ||
    (may_grow (t, p.wal_used + need) &&
     meta_allocate (t->parts.meta, 0, p.wal_used + need) == 0);
}

/* Restart the WAL, for it lacks the room. */
static void
make_room (struct txg *t, uint64_t need)
{
  /* Replay does not count its changes, and the WAL's content is not known. */
  if (t->has_thread && meta_restart_wal (t->parts.meta, META_RESTART) &&
      wal_has_room (t, need))
    return;
  meta_restart_wal (t->parts.meta, META_TRUNCATE);
  if (meta_allocate (t->parts.meta, 0, need) == 0)
    return;
  meta_restart_wal (t->parts.meta, META_EXPEL);
  /* If this fails, the transaction reports it. */
  (void) meta_allocate (t->parts.meta, 0, need);
}

void
txg_prepare_wal (struct txg *t, uint64_t extra)
{
  const uint64_t need = room_fold_pages (t->room, extra);
  const uint64_t start = clock_ms ();
  const bool is_full = meta_wal_is_full (t->parts.meta, need);

  assert (t->folding); /* room_cut came before */
  if (is_full) {
    txg_expect_restart (t);
    meta_restart_wal (t->parts.meta, META_RESTART);
  }
  if (!t->has_thread || !wal_has_room (t, need)) {
    if (!is_full)
      txg_expect_restart (t);
    make_room (t, need);
  }
  else if (!is_full)
    return;
  txg_restarted (t, clock_ms () - start);
}

void
txg_postpone_merges (struct txg *t)
{
  t->merge_after_ms = clock_ms () + MERGE_RETRY_MS;
  t->gives_back = true;
}

/* The promise is far more than a fold writes, so it says nothing about the room
 * that this one needs.
 */
uint64_t
txg_merge_room (struct txg *t, uint64_t extra, uint64_t wanted)
{
  const uint64_t now = clock_ms (), fold = room_fold_pages (t->room, extra);
  struct meta_pages p;
  uint64_t most;

  if (!t->has_thread || wanted == 0 || now < t->merge_after_ms)
    return 0;
  if (wanted > MERGE_PAGES_MAX)
    wanted = MERGE_PAGES_MAX;
  if (fold + wanted > WAL_MAX_PAGES)
    wanted = fold < WAL_MAX_PAGES ? WAL_MAX_PAGES - fold : 0;
  meta_get_pages (t->parts.meta, &p);
  if (p.wal_used + fold + wanted > WAL_MAX_PAGES &&
      meta_restart_wal (t->parts.meta, META_RESTART))
    meta_get_pages (t->parts.meta, &p);
  if (p.wal_used + fold + wanted <= p.wal_allocated)
    return wanted;
  most = meta_free_pages (t->parts.meta) / MERGE_SHARE;
  if (most < MERGE_PAGES_MIN && space_settle (t->parts.space))
    most = meta_free_pages (t->parts.meta) / MERGE_SHARE;
  if (wanted <= most || most >= MERGE_PAGES_MIN)
    return wanted < most ? wanted : most;
  t->merge_after_ms = now + MERGE_RETRY_MS;
  return 0;
}

uint64_t
txg_wal_pages (struct txg *t)
{
  struct meta_pages p;

  meta_get_pages (t->parts.meta, &p);
  return p.wal_used;
}

bool
txg_wal_is_too_large (struct txg *t)
{
  struct meta_pages p;

  meta_get_pages (t->parts.meta, &p);
  return p.wal_allocated > WAL_MAX_PAGES;
}

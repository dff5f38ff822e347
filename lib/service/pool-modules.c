/* SPDX-License-Identifier: BSD-3-Clause */

/* The modules of an open pool: their shares of ddt-cache, what they ask of each
 * other, and what they load from pool.db.
 */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <sys/statvfs.h>

#include "base/backoff.h"
#include "base/clock.h"
#include "base/error.h"
#include "core/ddt.h"
#include "core/engine.h"
#include "core/filter.h"
#include "core/map.h"
#include "core/moves.h"
#include "core/notes.h"
#include "core/record-cache.h"
#include "core/txg.h"
#include "data/watch.h"
#include "data/writeback.h"
#include "disk/lockfile.h"
#include "disk/store.h"
#include "estimate/sizing.h"
#include "meta/meta-index.h"
#include "meta/meta.h"
#include "report/copier.h"
#include "report/mend.h"
#include "service/pool.h"
#include "space/space.h"
#include "volume/volume.h"

/* Shares of ddt-cache, with POOL_SHARE_SQLITE.  The pending txgs matter most
 * for writes, DDT entries and leaves for hits and reads.  In a large pool most
 * of the DDT's share is its filter.
 *
 * The pending txgs have a limit: writers may have to wait for the fold of one,
 * and it takes as long as it is large.
 */
#define SHARE_PENDING 8
#define PENDING_MAX_BYTES (UINT64_C (32) << 20)
#define SHARE_DDT(bytes) ((bytes) / 8 * 5)
#define SHARE_LEAVES 16
#define SHARE_SPACE 16

_Static_assert (DDT_FILTER_BUDGET (SHARE_DDT (64)) == SIZING_FILTER_SHARE &&
                  FILTER_BITS == SIZING_FILTER_BITS,
                "estimate recommends another ddt-cache");

/* The rest of 256 MiB is for merges of the hash index (txg-wal.c). */
#define WAL_MAX_BYTES (UINT64_C (192) << 20)
#define FS_PER_WAL 16

#define TELL_MS 100

static int
load_segment (void *opaque, uint64_t segment, uint8_t **buf, size_t *len)
{
  struct nbdedup_pool *pool = opaque;
  struct meta_conn *c = meta_reader_get (pool->meta);
  struct blob b = { NULL };
  unsigned tries = 0;
  int r;

  /* Answered writes wait for this: they must not fail for lack of memory. */
  do
    r = meta_segment_get (c, segment, &b);
  while (r == -1 && errno == ENOMEM && backoff_sleep (&tries));
  meta_reader_put (pool->meta, c);
  if (r == 1) {
    *buf = b.p;
    *len = b.len;
  }
  else
    blob_free (&b);
  return r;
}

static int
add_segment (void *opaque, uint64_t segment, uint32_t nr_free,
             uint32_t largest_run)
{
  struct nbdedup_pool *pool = opaque;
  uint64_t length;

  if (store_length (pool->store, &length) == -1)
    return -1;
  if ((segment + 1) * SEGMENT_BYTES > length)
    return nbdedup_fail (EIO,
                         "%s/records: has only %" PRIu64 " bytes, fewer "
                         "than pool.db says: it was truncated; restore it from "
                         "a backup",
                         pool->path, length);
  return space_add_segment (pool->space, segment, nr_free, largest_run);
}

static void
forget_record (void *opaque, uint64_t addr)
{
  struct nbdedup_pool *pool = opaque;

  record_cache_forget (pool->records, addr);
}

static struct layer *
find_layer (void *opaque, uint64_t id)
{
  return volumes_find_layer (((struct nbdedup_pool *) opaque)->volumes, id);
}

static void
each_background (void *opaque, void (*fn) (void *, struct layer *), void *arg)
{
  struct nbdedup_pool *pool = opaque;

  volumes_each_background (pool->volumes, fn, arg);
}

static void
layer_gone (void *opaque, struct layer *layer)
{
  volumes_layer_gone (((struct nbdedup_pool *) opaque)->volumes, layer);
}

static int
mend (void *opaque, struct meta_state *state)
{
  return mend_run (opaque, state);
}

static void
reached (void *opaque, const uint64_t *addrs, size_t nr)
{
  copier_note (((struct nbdedup_pool *) opaque)->copier, addrs, nr);
}

static void
folded (void *opaque)
{
  watch_look (opaque, false);
}

/* Dropping a leaf's references takes about 8 KiB.  Use a quarter of the txgs'
 * budget; with more, writers would wait for each such fold.
 */
static unsigned
background_rows (uint64_t pending_budget_bytes)
{
  uint64_t rows = pending_budget_bytes / 4 / 8192;

  return rows < 64 ? 64 : rows > 2048 ? 2048 : (unsigned) rows;
}

/* The WAL's share of its file system, for room allocated in advance. */
static uint64_t
wal_max (const char *path)
{
  struct statvfs fs;
  uint64_t bytes;

  if (statvfs (path, &fs) == -1)
    return WAL_MAX_BYTES;
  bytes = (uint64_t) fs.f_blocks * fs.f_frsize / FS_PER_WAL;
  return bytes < WAL_MAX_BYTES ? bytes : WAL_MAX_BYTES;
}

/* For "status": its fold follows the last batch. */
static void
replayed (void *opaque, uint64_t done, uint64_t total)
{
  struct nbdedup_pool *pool = opaque;
  const uint64_t now = clock_ms ();

  if (done < total && now - pool->told_ms < TELL_MS)
    return;
  lockfile_tell (pool->lock_fd, "recovery", done, total);
  pool->told_ms = now;
}

int
pool_make_modules (struct nbdedup_pool *pool, const struct meta_state *state)
{
  const struct nbdedup_settings *s = &pool->settings;
  bool keep = s->primarycache != NBDEDUP_CACHE_NONE;
  uint64_t budget = s->ddt_cache_bytes;
  uint64_t pending = budget / SHARE_PENDING < PENDING_MAX_BYTES
    ? budget / SHARE_PENDING
    : PENDING_MAX_BYTES;
  struct space_ops ops = { load_segment, pool };
  struct txg_parts parts;

  assert (pool->meta != NULL && pool->store != NULL && pool->txg == NULL);
  pool->volumes = volumes_new (pool);
  pool->space = space_new (pool->store, &ops, budget / SHARE_SPACE);
  pool->moves = pool->space ? moves_new (pool->space, state->sector_bytes)
                            : NULL;
  pool->map = map_new (pool->meta, keep ? budget / SHARE_LEAVES : 0);
  pool->ddt = ddt_new (pool->meta, keep ? SHARE_DDT (budget) : 0);
  pool->records = record_cache_new (
    s->primarycache == NBDEDUP_CACHE_ALL ? s->record_cache_bytes : 0);
  pool->writeback = writeback_new (pool, s->dirty_max_bytes);
  if (pool->volumes == NULL || pool->space == NULL || pool->moves == NULL ||
      pool->map == NULL || pool->ddt == NULL || pool->records == NULL ||
      pool->writeback == NULL)
    return -1;
  ddt_set_index_entries (pool->ddt, state->index_entries);
  parts = (struct txg_parts) {
    .meta = pool->meta,
    .store = pool->store,
    .space = pool->space,
    .journal = pool->journal,
    .map = pool->map,
    .ddt = pool->ddt,
    .quiesce = &pool->quiesce,
    .copies = &pool->copies,
    .moves = pool->moves,
    .notes = pool->notes,
    .events = pool->events,
    .wal_max_bytes = wal_max (pool->path),
    .readonly = s->read_only != NBDEDUP_READ_ONLY_OFF,
    .repairing = s->repair,
    .background_rows = background_rows (pending),
    .find_layer = find_layer,
    .each_background = each_background,
    .layer_gone = layer_gone,
    .mend = mend,
    .forget_record = forget_record,
    .reached = reached,
    .folded = folded,
    .replayed = s->read_only == NBDEDUP_READ_ONLY_OFF ? replayed : NULL,
    .opaque = pool,
  };
  pool->txg = txg_new (&parts, state, pending);
  return pool->txg ? 0 : -1;
}

/* Damage to the index must not keep the pool closed: then lookups find nothing
 * until a fold has mended it.
 */
static void
load_index_runs (struct nbdedup_pool *pool)
{
  struct meta_conn *c = meta_reader_get (pool->meta);
  struct index_runs runs;

  if (meta_index_runs (c, &runs) == 0)
    ddt_set_runs (pool->ddt, &runs);
  meta_reader_put (pool->meta, c);
}

int
pool_load (struct nbdedup_pool *pool)
{
  assert (pool->txg != NULL);
  load_index_runs (pool);
  notes_load (pool->notes, meta_writer (pool->meta));
  if (meta_segment_scan (meta_writer (pool->meta), add_segment, pool) == -1)
    return -1;
  return volumes_load (pool->volumes, meta_writer (pool->meta));
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* The capacity follows from the promises that accepting a block needs: new
 * segments from the allocator (space-promise.c), and pages from pool.db and
 * its WAL (room.c).  Neither function has an inverse, so a binary search finds
 * how many blocks fit.  The journal may grow meanwhile, so its possible growth
 * counts as used.
 */

#include <config.h>

#include <assert.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "core/engine.h"
#include "core/pool-property.h"
#include "core/txg.h"
#include "data/capacity.h"
#include "data/volume-types.h"
#include "disk/journal.h"
#include "disk/room.h"
#include "disk/store.h"
#include "meta/meta.h"
#include "space/space.h"

/* A frame of the WAL has a header; file systems have metadata, too. */
#define OVERHEAD(bytes) ((bytes) + (bytes) / 64)

/* A block's lasting share of pool.db: its part of the leaf's row, and for a
 * new record the row and the entry of the hash index; a quarter of a page is
 * empty.
 */
#define LEAF_BYTES 75
#define RECORD_BYTES 96

/* There are nine. */
#define BLOCK_SIZES_MAX 16

struct looking {
  struct nbdedup_pool *pool;
  struct space *space;
  struct space *scratch; /* owned; 'space' of a read-only pool */
  struct store_fs records, files;
  struct space_info info;
  struct room_pages pages;
  uint64_t accepted;      /* blocks that are not folded */
  double dedup, compress; /* ratios of the existing data; 1 if none */
  uint32_t block_sizes[BLOCK_SIZES_MAX];
  unsigned nr_block_sizes;
};

static int
no_segment (void *opaque, uint64_t segment, uint8_t **buf, size_t *len)
{
  (void) opaque;
  (void) segment;
  (void) buf;
  (void) len;
  return 0;
}

static int
add_segment (void *opaque, uint64_t segment, uint32_t nr_free,
             uint32_t largest_run)
{
  return space_add_segment (opaque, segment, nr_free, largest_run);
}

/* A pool that is open read-only has not read its segments. */
static int
read_segments (struct looking *l)
{
  struct nbdedup_pool *pool = l->pool;
  const struct space_ops ops = { no_segment, NULL };
  CLEANUP_FREE char *value = NULL;
  struct meta_conn *c;
  uint64_t max;
  int r;

  l->space = l->scratch = space_new (pool->store, &ops, 0);
  if (l->scratch == NULL)
    return -1;
  c = meta_reader_get (pool->meta);
  r = meta_segment_scan (c, add_segment, l->scratch);
  meta_reader_put (pool->meta, c);
  if (r == 0 && pool_property_get (pool, "max-size", &value) == 0 &&
      nbdedup_parse_size (value, &max) == 0)
    space_set_max (l->scratch, max);
  return r;
}

static int
look_at_files (struct nbdedup_pool *pool, struct store_fs *fs)
{
  struct statvfs vfs;
  struct stat st;

  if (stat (pool->path, &st) == -1 || statvfs (pool->path, &vfs) == -1)
    return nbdedup_fail (EIO, "%s: %s", pool->path, strerror (errno));
  fs->dev = st.st_dev;
  fs->free_bytes = (uint64_t) vfs.f_bavail * vfs.f_frsize;
  fs->total_bytes = (uint64_t) (vfs.f_blocks - vfs.f_bfree + vfs.f_bavail) *
    vfs.f_frsize;
  return 0;
}

uint64_t
capacity_metadata_bytes (const char *path)
{
  DIR *dir = opendir (path);
  uint64_t bytes = 0;
  struct dirent *e;
  struct stat st;

  if (dir == NULL)
    return 0;
  while ((e = readdir (dir)) != NULL)
    if (strcmp (e->d_name, "records") != 0 &&
        fstatat (dirfd (dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
        S_ISREG (st.st_mode))
      bytes += (uint64_t) st.st_blocks * 512;
  closedir (dir);
  return bytes;
}

static double
percent (uint64_t part, uint64_t of)
{
  return of == 0 ? 0 : part >= of ? 100 : 100.0 * (double) part / (double) of;
}

/* The pool's own free sectors stay free when other files fill the disk. */
static double
used_percent (const struct looking *l)
{
  uint64_t spare = l->records.free_bytes + l->info.free_bytes;
  double p,
    most = percent (l->records.total_bytes > spare
                      ? l->records.total_bytes - spare
                      : 0,
                    l->records.total_bytes);

  if (l->files.dev != l->records.dev) {
    p = percent (l->files.total_bytes - l->files.free_bytes,
                 l->files.total_bytes);
    most = p > most ? p : most;
  }
  if (l->info.max_bytes > 0) {
    p = percent (l->info.used_bytes, l->info.max_bytes);
    most = p > most ? p : most;
  }
  assert (most >= 0 && most <= 100);
  return most;
}

static uint64_t
limit_bytes (const struct looking *l)
{
  const uint64_t limit = l->info.used_bytes + l->info.free_bytes +
    l->records.free_bytes;

  return l->info.max_bytes > 0 && l->info.max_bytes < limit ? l->info.max_bytes
                                                            : limit;
}

static int
look (struct looking *l, struct capacity *cap)
{
  struct nbdedup_pool *pool = l->pool;

  l->space = pool->space;
  if (pool->settings.read_only != NBDEDUP_READ_ONLY_OFF &&
      read_segments (l) == -1)
    return -1;
  space_get_info (l->space, &l->info);
  if (store_get_fs (pool->store, l->info.nr_segments, &l->records) == -1 ||
      look_at_files (pool, &l->files) == -1)
    return -1;
  *cap = (struct capacity) {
    .used_bytes = l->info.used_bytes,
    .max_bytes = l->info.max_bytes,
    .free_bytes = l->records.free_bytes,
    .limit_bytes = limit_bytes (l),
    .metadata_free_bytes = l->files.free_bytes,
    .metadata_total_bytes = l->files.total_bytes,
    .metadata_bytes = capacity_metadata_bytes (pool->path),
    .nr_damaged = l->info.nr_damaged,
    .used_percent = used_percent (l),
  };
  return 0;
}

int
capacity_used (struct nbdedup_pool *pool, struct capacity *cap)
{
  struct looking l = { .pool = pool };
  int r = look (&l, cap);

  space_destroy (l.scratch);
  return r;
}

/*----------------------------------------------------------------------
 * How many blocks?
 */

static uint64_t
add_capped (uint64_t a, uint64_t b)
{
  return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/* Is there room for so many new segments, and so much more metadata? */
static bool
fits (const struct looking *l, uint64_t segments, uint64_t metadata)
{
  uint64_t records = l->records.free_bytes;

  if (l->files.dev == l->records.dev)
    return segments <= records / SEGMENT_BYTES &&
      metadata <= records - segments * SEGMENT_BYTES;
  return segments <= records / SEGMENT_BYTES && metadata <= l->files.free_bytes;
}

static bool
fits_at_worst (const struct looking *l, uint32_t block_size, uint64_t nr)
{
  uint64_t pages = room_missing (&l->pages, l->accepted + nr,
                                 l->pool->copies.nr > 1 ? COPIES_MAX : 1);
  uint64_t journal = l->pool->journal && nr > 1
    ? journal_may_grow (l->pool->journal)
    : 0;

  return fits (l, space_segments_for (l->space, block_size, nr),
               OVERHEAD (add_capped (pages * META_PAGE_BYTES, journal)));
}

static bool
fits_likely (const struct looking *l, uint32_t block_size, uint64_t nr)
{
  double bytes = (double) nr * block_size / (l->dedup * l->compress);
  double metadata = (double) nr * (LEAF_BYTES + RECORD_BYTES / l->dedup);
  double spare = (double) l->info.free_bytes;
  uint64_t segments = bytes > spare
    ? (uint64_t) ((bytes - spare) / SEGMENT_BYTES) + 1
    : 0;

  if (l->info.max_bytes > 0 &&
      bytes + (double) (l->info.used_bytes + l->info.reserved_bytes) >
        (double) l->info.max_bytes)
    return false;
  return fits (l, segments, OVERHEAD ((uint64_t) metadata));
}

static uint64_t
most_blocks (const struct looking *l, uint32_t block_size,
             bool (*fit) (const struct looking *l, uint32_t block_size,
                          uint64_t nr))
{
  uint64_t low = 0, high = 1, middle;

  /* This ends at any ratio, because each block takes room in pool.db. */
  while (high < UINT64_C (1) << 40 && fit (l, block_size, high)) {
    low = high;
    high *= 2;
  }
  while (high - low > 1) {
    middle = low + (high - low) / 2;
    assert (low < middle && middle < high);
    if (fit (l, block_size, middle))
      low = middle;
    else
      high = middle;
  }
  return low;
}

static void
note_block_size (struct looking *l, uint32_t block_size)
{
  unsigned i;

  for (i = 0; i < l->nr_block_sizes; ++i)
    if (l->block_sizes[i] == block_size)
      return;
  if (i < BLOCK_SIZES_MAX)
    l->block_sizes[l->nr_block_sizes++] = block_size;
}

/* Get the volumes' block sizes, or that of a new volume, and the ratios of
 * dedup and compression.
 */
static void
look_at_volumes (struct looking *l)
{
  struct nbdedup_pool *pool = l->pool;
  CLEANUP_FREE char *value = NULL;
  const struct volume *v;
  struct meta_state s;
  uint64_t logical = 0, bytes;
  size_t i;

  {
    WITH_LOCK (&pool->volumes->lock);
    for (i = 0; i < pool->volumes->list.nr; ++i) {
      v = pool->volumes->list.p[i];
      note_block_size (l, v->block_size);
      logical += v->layer->blocks * v->block_size;
    }
  }
  if (l->nr_block_sizes == 0)
    note_block_size (l,
                     pool_property_get (pool, "block-size", &value) == 0 &&
                         nbdedup_parse_size (value, &bytes) == 0
                       ? (uint32_t) bytes
                       : BLOCK_SIZE_MIN);
  txg_get_state (pool->txg, &s);
  bytes = (s.stored_sectors - s.copy_sectors) * s.sector_bytes;
  l->dedup = l->compress = 1;
  /* With few blocks, records of destroyed volumes, or of snapshots alone,
   * would give a ratio below 1.
   */
  if (s.record_bytes > 0 && logical > s.record_bytes)
    l->dedup = (double) logical / (double) s.record_bytes;
  if (bytes > 0 && s.record_bytes > bytes)
    l->compress = (double) s.record_bytes / (double) bytes;
}

int
capacity_get (struct nbdedup_pool *pool, struct capacity *cap)
{
  struct looking l = { .pool = pool };
  uint64_t min, likely;
  unsigned i;
  int r = look (&l, cap);

  if (r == 0) {
    look_at_volumes (&l);
    assert (l.nr_block_sizes > 0);
    l.accepted = txg_get_room (pool->txg, &l.pages);
    cap->min_bytes = cap->likely_bytes = UINT64_MAX;
    for (i = 0; i < l.nr_block_sizes; ++i) {
      min = most_blocks (&l, l.block_sizes[i], fits_at_worst) *
        l.block_sizes[i];
      likely = most_blocks (&l, l.block_sizes[i], fits_likely) *
        l.block_sizes[i];
      /* Not even one block can be promised, so likely_bytes is 0, too. */
      if (min == 0)
        likely = 0;
      else if (likely < min)
        likely = min;
      cap->min_bytes = min < cap->min_bytes ? min : cap->min_bytes;
      cap->likely_bytes = likely < cap->likely_bytes ? likely
                                                     : cap->likely_bytes;
    }
    assert (cap->min_bytes <= cap->likely_bytes);
  }
  space_destroy (l.scratch);
  return r;
}

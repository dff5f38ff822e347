/* SPDX-License-Identifier: BSD-3-Clause */

/* Mend tables that follow from others, if some of their pages are lost in all
 * copies of pool.db.
 *
 *   record   The content of a lost page is unknown until "check --repair" has
 *            recounted.  Until then folds tolerate missing records, and free
 *            nothing that could be in use.  A flag in the state records this
 *            (FEATURE_COMPAT_RECORDS_LOST).
 *   count    The records of a lost page's groups are lost, too.
 *   segment  Space maps are rebuilt at once, from the records and the
 *            summaries' chunks.  A map that cannot be rebuilt marks everything
 *            as used, and nothing of it becomes free before the repair.  A
 *            map never marks sectors as free that are not known to be.
 *   ddt      Existing data may be stored a second time.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/log.h"
#include "core/engine.h"
#include "disk/store.h"
#include "format/segment.h"
#include "meta/meta-mend.h"
#include "meta/meta.h"
#include "report/check-int.h"
#include "report/mend.h"

struct table_mend {
  struct nbdedup_pool *pool;
  struct meta_state *state;
  struct derive *derive; /* owned; made when it is needed */
  uint64_t nr_full;      /* segments that are not used */
};

/* The keys of a table of segments or groups that the lost range has. */
static void
get_keys (const struct meta_lost_range *range, uint64_t *first, uint64_t *end)
{
  *first = 0;
  if (range->has_low && range->low.seq >= btree_rowid (0))
    *first = btree_rowid (range->low.seq) + 1;
  if (range->has_high && range->high.seq < btree_rowid (*end))
    *end = range->high.seq < btree_rowid (0) ? 0
                                             : btree_rowid (range->high.seq);
}

static int
lose_records (void *opaque, struct meta_conn *c,
              const struct meta_lost_range *range)
{
  struct table_mend *md = opaque;

  (void) c;
  (void) range;
  md->state->features_compat |= FEATURE_COMPAT_RECORDS_LOST;
  return 0;
}

/* Dead records may be among these, whose sectors are in use again, or will be:
 * so all of them are lost, and what is found of them is made again.
 */
static int
lose_counts (void *opaque, struct meta_conn *c,
             const struct meta_lost_range *range)
{
  uint64_t first, end = ADDR_MAX / RECORD_GROUP_SECTORS + 1;

  get_keys (range, &first, &end);
  if (first < end && meta_record_delete_range (c, first, end - 1) == -1)
    return -1;
  return lose_records (opaque, c, range);
}

/* A map in which all is used, with the chunks that can be found. */
static struct segment_map *
make_full (struct table_mend *md, struct meta_conn *c, uint64_t segment)
{
  struct segment_map *map = segment_map_new (segment, md->pool->sector_bytes);
  CLEANUP_FREE uint16_t *chunks = NULL;
  unsigned nr, i;

  if (map && derive_chunks (md->derive, c, segment, &chunks, &nr) == 1)
    (void) segment_map_set_chunks (map, chunks, nr);
  for (i = 0; map && i < map->nr_sectors; ++i)
    (void) segment_map_set (map, i, 1); /* fails if set already */
  return map;
}

static void
log_full (const struct table_mend *md)
{
  if (md->nr_full > 0)
    nbdedup_log (NBDEDUP_LOG_ERROR,
                 "%s: %" PRIu64 " segments stay unused "
                 "until you run \"nbdedup check --repair\"",
                 md->pool->path, md->nr_full);
}

static int
make_segment (struct table_mend *md, struct meta_conn *c, uint64_t segment)
{
  CLEANUP_FREE uint8_t *buf = NULL;
  struct segment_map *map = NULL;
  unsigned start;
  size_t len;
  int r = 0;

  if (!(md->state->features_compat & FEATURE_COMPAT_RECORDS_LOST))
    r = derive_map (md->derive, c, segment, &map);
  if (r == 0) {
    map = make_full (md, c, segment);
    md->nr_full++;
  }
  if (map == NULL)
    return -1;
  r = 0;
  if (!segment_map_is_empty (map)) {
    buf = segment_map_pack (map, &len);
    r = buf == NULL
      ? -1
      : meta_segment_put (c, segment, map->nr_sectors - map->nr_used,
                          segment_map_largest_run (map, &start), buf, len);
  }
  segment_map_free (map);
  return r;
}

static int
lose_segments (void *opaque, struct meta_conn *c,
               const struct meta_lost_range *range)
{
  struct table_mend *md = opaque;
  uint64_t first, end, bytes;

  if (md->derive == NULL)
    md->derive = derive_new (md->pool);
  if (md->derive == NULL || store_length (md->pool->store, &bytes) == -1)
    return -1;
  end = (bytes + SEGMENT_BYTES - 1) / SEGMENT_BYTES;
  get_keys (range, &first, &end);
  for (; first < end; ++first)
    if (make_segment (md, c, first) == -1)
      return -1;
  return 0;
}

/* Lost entries cost records of known content.  Lost removals leave entries of
 * no record, which no lookup believes.
 */
static int
lose_index (void *opaque, struct meta_conn *c,
            const struct meta_lost_range *range)
{
  (void) opaque;
  (void) c;
  (void) range;
  return 0;
}

/*----------------------------------------------------------------------
 * Space maps on pages that are whole
 */

struct bad_maps {
  struct table_mend *md;
  struct meta_conn *c;
  bool compare;       /* with the records */
  uint64_t *segments; /* owned */
  size_t nr;
};

/* Does the map match the records?  1; 0; -1.  The records decide only if all of
 * them are known and they do not contradict each other.
 */
static int
is_derived (struct bad_maps *bad, const struct segment_map *map)
{
  CLEANUP_FREE uint8_t *found = NULL;
  CLEANUP_FREE uint8_t *wanted = NULL;
  struct segment_map *derived;
  size_t found_len, wanted_len;
  int r;

  if (!bad->compare ||
      bad->md->state->features_compat & FEATURE_COMPAT_RECORDS_LOST)
    return 1;
  r = derive_map (bad->md->derive, bad->c, map->id, &derived);
  if (r != 1)
    return r == 0 ? 1 : -1;
  found = segment_map_pack (map, &found_len);
  wanted = segment_map_pack (derived, &wanted_len);
  segment_map_free (derived);
  if (found == NULL || wanted == NULL)
    return -1;
  return found_len == wanted_len && memcmp (found, wanted, found_len) == 0;
}

static int
judge_segment (void *opaque, uint64_t segment, uint32_t nr_free,
               uint32_t largest_run)
{
  struct bad_maps *bad = opaque;
  struct blob b CLEANUP_BLOB = { NULL };
  struct segment_map *map;
  int good = 0;

  (void) nr_free;
  (void) largest_run;
  if (meta_segment_get (bad->c, segment, &b) == -1)
    return -1;
  map = segment_map_unpack (segment, bad->md->pool->sector_bytes, b.p, b.len);
  if (map == NULL && errno != EIO)
    return -1;
  if (map != NULL)
    good = is_derived (bad, map);
  segment_map_free (map);
  if (good != 0)
    return good == 1 ? 0 : -1;
  return array_push (&bad->segments, &bad->nr, segment);
}

static int
make_bad (struct bad_maps *bad)
{
  int r = meta_begin (bad->c), err;
  size_t i;

  for (i = 0; i < bad->nr && r == 0; ++i) {
    r = meta_segment_delete (bad->c, bad->segments[i]);
    if (r == 0)
      r = make_segment (bad->md, bad->c, bad->segments[i]);
  }
  if (r == 0)
    return meta_commit (bad->c);
  err = errno;
  meta_rollback (bad->c);
  errno = err;
  return -1;
}

int
mend_space_maps (struct nbdedup_pool *pool, struct meta_state *state,
                 bool compare)
{
  struct table_mend md = { .pool = pool, .state = state };
  struct bad_maps bad = {
    .md = &md,
    .c = meta_writer (pool->meta),
    .compare = compare,
  };
  int r = -1, err;

  md.derive = derive_new (pool);
  if (md.derive != NULL)
    r = meta_segment_scan (bad.c, judge_segment, &bad);
  if (r == 0 && bad.nr > 0)
    r = make_bad (&bad);
  if (r == 0 && bad.nr > 0) {
    meta_committed (pool->meta);
    nbdedup_log (NBDEDUP_LOG_ERROR,
                 "%s: pool.db: %zu space maps were "
                 "damaged%s: nbdedup made them again from the records",
                 pool->path, bad.nr,
                 compare ? ", or contradicted the records" : "");
    log_full (&md);
  }
  err = errno;
  free (bad.segments);
  derive_free (md.derive);
  errno = err;
  return r == -1 ? -1 : (int) bad.nr;
}

/*----------------------------------------------------------------------*/

int
mend_tables (struct nbdedup_pool *pool, struct meta_state *state)
{
  static const struct {
    enum meta_mend_table table;
    int (*lose) (void *opaque, struct meta_conn *c,
                 const struct meta_lost_range *range);
    const char *what, *loss;
  } tables[] = {
    { META_MEND_RECORD, lose_records, "the list of records",
      "space freed "
      "there stays in use until \"nbdedup check --repair\" counts again" },
    { META_MEND_COUNT, lose_counts, "the reference counts",
      "space freed of "
      "these records stays in use until \"nbdedup check --repair\" counts "
      "again" },
    { META_MEND_SEGMENT, lose_segments, "the space maps",
      "nbdedup makes it "
      "again from the records" },
    { META_MEND_INDEX, lose_index, "the hash index",
      "known data may be stored "
      "again until you run \"nbdedup check --repair\"" },
  };
  struct table_mend md = { .pool = pool, .state = state };
  char text[512];
  int nr = 0, err = 0, n;
  unsigned i;

  for (i = 0; i < sizeof tables / sizeof tables[0] && err != EBUSY; ++i) {
    const struct meta_mend_ops ops = { tables[i].table, NULL, tables[i].lose,
                                       &md };

    n = meta_mend (pool->meta, &ops, state);
    if (n > 0) {
      nbdedup_log (NBDEDUP_LOG_ERROR,
                   "%s: pool.db: a part of %s is damaged in "
                   "all copies (pages: %d): %s",
                   pool->path, tables[i].what, n, tables[i].loss);
      nr += n;
    }
    else if (n == -1) {
      err = errno;
      snprintf (text, sizeof text, "%s", nbdedup_error ());
    }
  }
  log_full (&md);
  derive_free (md.derive);
  return nr > 0 || err == 0 ? nr : nbdedup_fail (err, "%s", text);
}

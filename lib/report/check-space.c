/* SPDX-License-Identifier: BSD-3-Clause */

/* check --repair: space maps, from the records and the summaries' chunks.
 *
 * The allocator has maps of its own, which are ahead of pool.db's.  So the
 * repair first holds the segment: the allocator places nothing more there.
 * All earlier placements are in pool.db in the transaction of the next fold.
 * That transaction repairs the map; then the allocator reads it.
 */

#include <config.h>

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/log.h"
#include "format/segment.h"
#include "report/check-int.h"
#include "space/space.h"

/* Segments that are held at once. */
#define SEGMENTS_MAX 64

struct held {
  uint64_t segment;
  bool fixed;
  uint32_t nr_free, largest_run;
};

struct scan {
  struct repair *rp;
  struct derive *derive;   /* owned */
  struct segment_map *map; /* owned; of the segment that is read */
  struct seg_row {
    uint64_t segment;
    uint32_t nr_free, largest_run;
  } *rows; /* owned; ascending */
  size_t nr_rows;
  uint64_t next, found; /* segments */
  bool more;
  struct held *held; /* owned; ascending */
  size_t nr_held;
};

static uint64_t
groups_per_segment (const struct repair *rp)
{
  return SEGMENT_BYTES / rp->state->sector_bytes / RECORD_GROUP_SECTORS;
}

/*----------------------------------------------------------------------
 * The correct map
 */

/* 1; 0: it cannot be derived; -1. */
static int
make_map (struct scan *s, uint64_t segment)
{
  segment_map_free (s->map);
  s->map = NULL;
  return derive_map (s->derive, s->rp->c, segment, &s->map);
}

static const struct seg_row *
find_row (const struct scan *s, uint64_t segment)
{
  size_t i = array_position (s->nr_rows, k, s->rows[k].segment < segment);

  return i < s->nr_rows && s->rows[i].segment == segment ? &s->rows[i] : NULL;
}

/* Does pool.db have this map? */
static int
is_stored (struct scan *s, uint64_t segment)
{
  const struct seg_row *row = find_row (s, segment);
  struct blob b CLEANUP_BLOB = { NULL };
  CLEANUP_FREE uint8_t *packed = NULL;
  unsigned start;
  size_t len;
  int r = meta_segment_get (s->rp->c, segment, &b);

  assert (s->map != NULL && s->map->id == segment);
  if (r == -1)
    return -1;
  if (segment_map_is_empty (s->map))
    return r == 0;
  packed = segment_map_pack (s->map, &len);
  if (packed == NULL)
    return -1;
  return row != NULL && b.len == len && memcmp (b.p, packed, len) == 0 &&
    row->nr_free == (uint32_t) (s->map->nr_sectors - s->map->nr_used) &&
    row->largest_run == segment_map_largest_run (s->map, &start);
}

/*----------------------------------------------------------------------
 * Finding
 */

static int
note_row (void *opaque, uint64_t segment, uint32_t nr_free,
          uint32_t largest_run)
{
  struct scan *s = opaque;
  return array_push (&s->rows, &s->nr_rows,
                     (struct seg_row) { segment, nr_free, largest_run });
}

static int
note_group (void *opaque, uint64_t group, const uint8_t *buf, size_t len)
{
  struct scan *s = opaque;

  (void) buf;
  (void) len;
  s->found = group / groups_per_segment (s->rp);
  return 1;
}

/* The next segment that has a row, or records; UINT64_MAX: none. */
static int
find_segment (struct scan *s, uint64_t from)
{
  size_t i = array_position (s->nr_rows, k, s->rows[k].segment < from);

  s->found = UINT64_MAX;
  if (meta_record_scan (s->rp->c, from * groups_per_segment (s->rp), note_group,
                        s) == -1)
    return -1;
  if (i < s->nr_rows && s->rows[i].segment < s->found)
    s->found = s->rows[i].segment;
  return 0;
}

static int
look_at_segment (struct scan *s, uint64_t segment)
{
  int r = make_map (s, segment);

  if (r == 1)
    r = is_stored (s, segment);
  if (r != 0)
    return r == -1 ? -1 : 0;
  return array_push (&s->held, &s->nr_held,
                     (struct held) { .segment = segment });
}

static int
find_wrong (struct repair *rp)
{
  struct scan *s = rp->arg;
  uint64_t segment;

  free (s->rows);
  free (s->held);
  s->rows = NULL;
  s->held = NULL;
  s->nr_rows = s->nr_held = 0;
  s->more = true;
  if (meta_segment_scan (rp->c, note_row, s) == -1)
    return -1;
  for (segment = s->next; s->nr_held < SEGMENTS_MAX; ++segment) {
    if (find_segment (s, segment) == -1)
      return -1;
    segment = s->found;
    if (segment == UINT64_MAX) {
      s->more = false;
      break;
    }
    if (look_at_segment (s, segment) == -1)
      return -1;
  }
  s->found = segment;
  return 0;
}

/*----------------------------------------------------------------------
 * Repairing
 */

static int
put_map (struct scan *s, struct held *h)
{
  CLEANUP_FREE uint8_t *buf = NULL;
  struct segment_map *map = s->map;
  unsigned start;
  size_t len;

  assert (map->id == h->segment);
  h->fixed = true;
  if (segment_map_is_empty (map)) {
    segment_map_reset (map);
    h->nr_free = map->nr_sectors - map->nr_used;
    h->largest_run = segment_map_largest_run (map, &start);
    return meta_segment_delete (s->rp->c, h->segment);
  }
  h->nr_free = map->nr_sectors - map->nr_used;
  h->largest_run = segment_map_largest_run (map, &start);
  buf = segment_map_pack (map, &len);
  return buf == NULL ? -1
                     : meta_segment_put (s->rp->c, h->segment, h->nr_free,
                                         h->largest_run, buf, len);
}

static int
fix_held (struct repair *rp)
{
  struct scan *s = rp->arg;
  struct held *h;
  size_t i;
  int r;

  for (i = 0; i < s->nr_held; ++i) {
    h = &s->held[i];
    h->fixed = false;
    r = make_map (s, h->segment);
    if (r == -1 || (r == 1 && put_map (s, h) == -1))
      return -1;
  }
  return 0;
}

static void
held_done (struct repair *rp)
{
  const struct scan *s = rp->arg;
  const struct held *h;
  size_t i;

  for (i = 0; i < s->nr_held; ++i) {
    h = &s->held[i];
    if (h->fixed)
      space_replace (rp->pool->space, h->segment, h->nr_free, h->largest_run);
    else
      nbdedup_log (NBDEDUP_LOG_ERROR,
                   "%s: check --repair: segment %" PRIu64
                   ": its records overlap, or its summaries are unclear: "
                   "nbdedup stores nothing more there",
                   rp->pool->path, h->segment);
  }
}

static void
hold_all (struct scan *s)
{
  size_t i, n = 0;

  for (i = 0; i < s->nr_held; ++i) {
    if (space_hold (s->rp->pool->space, s->held[i].segment) == 0)
      s->held[n++] = s->held[i];
    else
      nbdedup_log (NBDEDUP_LOG_ERROR, "%s: check --repair: %s",
                   s->rp->pool->path, nbdedup_error ());
  }
  s->nr_held = n;
}

static int
repair_segments (struct scan *s)
{
  struct repair *rp = s->rp;

  do {
    if (repair_pass (rp, find_wrong, NULL, s) == -1)
      return -1;
    s->next = s->found;
    hold_all (s);
    if (s->nr_held > 0 && repair_pass (rp, fix_held, held_done, s) == -1)
      return -1;
  } while (s->more);
  return 0;
}

int
repair_space (struct repair *rp)
{
  struct scan s = { .rp = rp };
  int r = -1;

  /* Sectors without a record may be in use until all records are right. */
  if (!rp->records_are_right)
    return 0;
  s.derive = derive_new (rp->pool);
  if (s.derive != NULL)
    r = repair_segments (&s);
  derive_free (s.derive);
  segment_map_free (s.map);
  free (s.rows);
  free (s.held);
  return r;
}

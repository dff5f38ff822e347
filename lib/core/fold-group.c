/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "core/fold-group.h"
#include "core/fold-int.h"
#include "format/counts.h"

/* The group's row is written without its dead records when they are a quarter
 * of them, or it is written for another reason.
 */
#define DEAD_SHARE 4

struct group *
group_new (void)
{
  struct group *g = calloc (1, sizeof *g);

  return g ?: nbdedup_fail_null (ENOMEM, "no memory for a fold");
}

void
group_free (struct group *g)
{
  if (g == NULL)
    return;
  blob_free (&g->row);
  blob_free (&g->counts);
  free (g);
}

/* The counts contradict the records, or are damaged: the group's records are
 * lost to the fold, as if their row were missing.
 */
static int
lose_group (struct group *g, struct fold *f)
{
  g->nr = 0;
  g->write_row = true;
  return fold_note_contradiction (f);
}

static int
fail_damaged (const struct group *g)
{
  return nbdedup_fail (EIO,
                       "pool.db: the records of group %" PRIu64 " are "
                       "damaged",
                       g->id);
}

static int
add_record (struct group *g, const struct counts *counts, size_t off)
{
  struct record *r = &g->records[g->nr];
  unsigned sector;
  int n;

  n = g->nr == RECORD_GROUP_SECTORS
    ? fail_damaged (g)
    : record_unpack (g->id, g->row.p + off, g->row.len - off, r);
  if (n == -1)
    return -1;
  sector = r->ptr.addr % RECORD_GROUP_SECTORS;
  g->own[sector] = r->refcount;
  if (counts->of[sector] == COUNT_DEAD) {
    if (g->dead[sector])
      return fail_damaged (g);
    g->dead[sector] = true;
    g->nr_dead++;
    return n;
  }
  if (counts->of[sector] != COUNT_SAME)
    r->refcount = counts->of[sector];
  g->nr++;
  return n;
}

int
group_load (struct group *g, struct fold *f, struct meta_conn *c, uint64_t id)
{
  struct counts counts;
  size_t off;
  int n;

  g->id = id;
  g->nr = g->nr_dead = 0;
  g->write_row = g->write_counts = false;
  memset (g->dead, 0, sizeof g->dead);
  if (meta_record_get_parts (c, id, &g->row, &g->counts) == -1)
    return -1;
  if (counts_unpack (id, g->counts.p, g->counts.len, &counts) == -1)
    return lose_group (g, f);
  for (off = 0; off < g->row.len; off += (size_t) n) {
    n = add_record (g, &counts, off);
    if (n == -1) { /* pointers to the rest find it missing */
      g->write_row = true;
      return fold_note_contradiction (f);
    }
  }
  return 0;
}

struct record *
group_find (struct group *g, uint64_t addr)
{
  unsigned i;

  assert (addr / RECORD_GROUP_SECTORS == g->id);
  for (i = 0; i < g->nr; ++i)
    if (g->records[i].ptr.addr == addr)
      return &g->records[i];
  return NULL;
}

void
group_bury (struct group *g, struct record *r)
{
  assert (r >= g->records && r < g->records + g->nr && r->refcount == 0);
  assert (!g->dead[r->ptr.addr % RECORD_GROUP_SECTORS]);
  g->dead[r->ptr.addr % RECORD_GROUP_SECTORS] = true;
  g->nr_dead++;
  g->write_counts = true;
  r->ptr.addr = 0;
}

static void
squeeze (struct group *g)
{
  unsigned i, n = 0;

  for (i = 0; i < g->nr; ++i)
    if (g->records[i].ptr.addr != 0)
      g->records[n++] = g->records[i];
  g->nr = n;
}

/* Only counts have changed, or records have died. */
static int
store_counts (const struct group *g, struct fold *f, struct meta_conn *c)
{
  uint8_t buf[COUNTS_LEN_MAX];
  struct counts counts;
  unsigned i, sector;

  counts_clear (&counts);
  for (i = 0; i < RECORD_GROUP_SECTORS; ++i)
    if (g->dead[i])
      counts.of[i] = COUNT_DEAD;
  for (i = 0; i < g->nr; ++i) {
    sector = g->records[i].ptr.addr % RECORD_GROUP_SECTORS;
    if (g->records[i].refcount != g->own[sector])
      counts.of[sector] = g->records[i].refcount;
  }
  f->state.features_incompat |= FEATURE_INCOMPAT_COUNTS;
  return meta_count_put (c, g->id, buf, counts_pack (&counts, buf));
}

int
group_store (struct group *g, struct fold *f, struct meta_conn *c)
{
  size_t len = 0;
  unsigned i;

  squeeze (g);
  assert (g->nr <= RECORD_GROUP_SECTORS);
  assert (g->nr_dead <= RECORD_GROUP_SECTORS);
  if (g->nr == 0)
    return meta_record_delete (c, g->id);
  if (!g->write_row && g->nr_dead * DEAD_SHARE < g->nr + g->nr_dead)
    return g->write_counts ? store_counts (g, f, c) : 0;
  if (blob_reserve (&g->row, g->nr * RECORD_ENTRY_MAX) == -1)
    return -1;
  for (i = 0; i < g->nr; ++i)
    len += record_pack (&g->records[i], g->row.p + len);
  return meta_record_put (c, g->id, g->row.p, len);
}

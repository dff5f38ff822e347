/* SPDX-License-Identifier: BSD-3-Clause */

/* check --repair: the hash index, from the records; and limbo. */

#include <config.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "core/ddt.h"
#include "core/fold-index.h"
#include "core/txg.h"
#include "format/index-row.h"
#include "report/check-int.h"

struct bad_row {
  unsigned run;
  uint64_t low;
};

struct index_scan {
  struct repair *rp;
  struct index_entry *ops; /* owned; fold_index */
  size_t nr_ops;
  struct bad_row *bad_rows; /* owned */
  size_t nr_bad_rows;
  struct index_runs runs;
  uint64_t next_group, end_group;
  struct blob row;
};

/*----------------------------------------------------------------------
 * Rows out of order, and entries of no record
 */

static int
look_at_row (void *opaque, unsigned run, uint64_t low, const uint8_t *buf,
             size_t len)
{
  struct index_scan *s = opaque;

  if (s->nr_bad_rows >= s->rp->rows) {
    s->rp->more = true;
    return 1;
  }
  return index_row_is_in_order (low, buf, len)
    ? 0
    : array_push (&s->bad_rows, &s->nr_bad_rows, (struct bad_row) { run, low });
}

/* Add the entry, or a negative one, so often. */
static int
add_ops (struct index_scan *s, const struct index_entry *e, int nr)
{
  struct index_entry op = *e;

  op.removed = nr < 0;
  for (; nr != 0; nr += nr < 0 ? 1 : -1)
    if (array_push (&s->ops, &s->nr_ops, op) == -1)
      return -1;
  return 0;
}

/* The index has this entry 'sum' times: once is right if it has a record. */
static int
look_at_entry (struct index_scan *s, const struct index_entry *e, int sum)
{
  struct record r;
  int found = meta_record_find (s->rp->c, e->addr, &s->row, &r);

  if (found == -1)
    return -1;
  if (!found || sum < 0 || !index_entry_matches (e, &r.digest) ||
      !(r.flags & RECORD_INDEXED))
    return add_ops (s, e, -sum);
  return sum == 0 ? 0 : add_ops (s, e, 1 - sum);
}

static int
look_at_entries (struct index_scan *s)
{
  struct index_cursor *cu;
  struct index_entry e;
  int r = -1, sum;

  if (meta_index_runs (s->rp->c, &s->runs) == -1)
    return -1;
  cu = meta_index_cursor (s->rp->c, &s->runs, 0);
  if (cu == NULL)
    return -1;
  while ((r = meta_index_cursor_next (cu, &e, &sum)) == 1) {
    if (s->nr_ops >= s->rp->rows) {
      s->rp->more = true;
      break;
    }
    if (look_at_entry (s, &e, sum) == -1) {
      r = -1;
      break;
    }
  }
  meta_index_cursor_free (cu);
  return r == -1 ? -1 : 0;
}

static void
reset (struct index_scan *s)
{
  free (s->ops);
  free (s->bad_rows);
  s->ops = NULL;
  s->bad_rows = NULL;
  s->nr_ops = s->nr_bad_rows = 0;
}

/* Delete rows that are not in order; add_entries restores their entries. */
static int
drop_rows (struct index_scan *s)
{
  size_t i;

  for (i = 0; i < s->nr_bad_rows; ++i)
    if (meta_index_delete (s->rp->c, s->bad_rows[i].run, s->bad_rows[i].low) ==
        -1)
      return -1;
  return 0;
}

static int
drop_entries (struct repair *rp)
{
  struct index_scan *s = rp->arg;

  reset (s);
  if (meta_index_scan (rp->c, look_at_row, s) == -1 || drop_rows (s) == -1 ||
      (!rp->more && look_at_entries (s) == -1))
    return -1;
  return fold_index (rp->c, s->ops, s->nr_ops, &rp->state->index_entries,
                     txg_index_merges (rp->pool->txg), false);
}

/*----------------------------------------------------------------------
 * Entries that are missing
 */

static int
look_up (struct index_scan *s, const struct record *r)
{
  struct index_entry wanted;
  int sum;

  index_entry_make (&r->digest, r->ptr.addr, &wanted);
  if (meta_index_sum (s->rp->c, &s->runs, &wanted, &sum) == -1)
    return -1;
  return sum > 0 ? 0 : add_ops (s, &wanted, 1 - sum);
}

static int
look_at_group (void *opaque, uint64_t group, const uint8_t *buf, size_t len)
{
  struct index_scan *s = opaque;
  struct record r;
  size_t off = 0;

  if (s->nr_ops >= s->rp->rows) {
    s->end_group = group;
    s->rp->more = true;
    return 1;
  }
  while (record_next (group, buf, len, &off, &r) == 1)
    if (r.flags & RECORD_INDEXED && look_up (s, &r) == -1)
      return -1;
  return 0;
}

static int
add_entries (struct repair *rp)
{
  struct index_scan *s = rp->arg;

  reset (s);
  if (meta_index_runs (rp->c, &s->runs) == -1 ||
      meta_record_scan (rp->c, s->next_group, look_at_group, s) == -1)
    return -1;
  return fold_index (rp->c, s->ops, s->nr_ops, &rp->state->index_entries,
                     txg_index_merges (rp->pool->txg), false);
}

static void
entries_added (struct repair *rp)
{
  struct index_scan *s = rp->arg;

  s->next_group = s->end_group;
}

int
repair_index (struct repair *rp)
{
  struct index_scan s = { .rp = rp };
  int r = 0;

  /* Entries without a record may have one after the next repair. */
  if (rp->records_are_right)
    r = repair_pass (rp, drop_entries, NULL, &s);
  if (r == 0)
    r = repair_pass (rp, add_entries, entries_added, &s);
  reset (&s);
  blob_free (&s.row);
  return r;
}

/*----------------------------------------------------------------------
 * Limbo: exactly the records without references.  (repair_records has added
 * missing ones.)  The next fold checks each again, and frees it.
 */

struct limbo {
  struct repair *rp;
  uint64_t next, end; /* addresses */
  uint64_t *addrs;    /* owned; ascending */
  size_t nr;
  struct blob row;
  size_t nr_dead; /* the first ones: records to check */
};

static int
note_limbo (void *opaque, uint64_t addr)
{
  struct limbo *l = opaque;

  if (addr < l->next)
    return 0;
  if (l->nr == l->rp->rows) {
    l->rp->more = true;
    return 1;
  }
  return array_push (&l->addrs, &l->nr, addr);
}

static int
fix_limbo (struct repair *rp)
{
  struct limbo *l = rp->arg;
  struct record r;
  uint64_t last;
  size_t i;
  int found;

  free (l->addrs);
  l->addrs = NULL;
  l->nr = l->nr_dead = 0;
  if (meta_limbo_scan (rp->c, note_limbo, l) == -1)
    return -1;
  last = l->nr > 0 ? l->addrs[l->nr - 1] : 0;
  for (i = 0; i < l->nr; ++i) {
    found = meta_record_find (rp->c, l->addrs[i], &l->row, &r);
    if (found == -1)
      return -1;
    if (found && r.refcount == 0)
      l->addrs[l->nr_dead++] = l->addrs[i];
    else if (meta_limbo_delete (rp->c, l->addrs[i]) == -1)
      return -1;
  }
  l->end = last + 1;
  return 0;
}

/* Without memory they die when the pool is next opened. */
static void
limbo_done (struct repair *rp)
{
  struct limbo *l = rp->arg;
  size_t i;

  for (i = 0; i < l->nr_dead; ++i)
    ddt_ref (rp->pool->ddt, l->addrs[i], 0);
  l->next = l->end;
}

int
repair_limbo (struct repair *rp)
{
  struct limbo l = { .rp = rp };
  int r = repair_pass (rp, fix_limbo, limbo_done, &l);

  free (l.addrs);
  blob_free (&l.row);
  return r;
}

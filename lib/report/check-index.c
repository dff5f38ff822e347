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
#include "data/verify.h"
#include "report/check-int.h"

struct index_scan {
  struct repair *rp;
  struct fold_index_op *ops;    /* owned */
  size_t nr_ops;
  uint64_t *bad_rows;           /* owned; their lowest prefixes */
  size_t nr_bad_rows;
  bool has_first;
  uint64_t next_group, end_group;
  struct blob row;
};

/*----------------------------------------------------------------------
 * Rows out of order, and entries of no record
 */

/* Ascending by (prefix, address), none twice, none before the row's own, and
 * nothing left over.
 */
static bool
is_row_in_order (uint64_t low, const uint8_t *buf, size_t len)
{
  struct index_entry e, last = { .prefix = low };
  size_t off;

  for (off = 0; off + INDEX_ENTRY_LEN <= len; off += INDEX_ENTRY_LEN) {
    index_entry_unpack (buf + off, &e);
    if (e.prefix < last.prefix ||
        (off > 0 && e.prefix == last.prefix && e.addr <= last.addr))
      return false;
    last = e;
  }
  return off == len;
}

static int
add_op (struct index_scan *s, const struct index_entry *e, bool add)
{
  return array_push (&s->ops, &s->nr_ops,
                     (struct fold_index_op) { .entry = *e, .add = add });
}

static int
look_at_row (void *opaque, uint64_t low, const uint8_t *buf, size_t len)
{
  struct index_scan *s = opaque;
  struct index_entry e;
  struct record r;
  size_t off;
  int found;

  s->has_first |= low == 0;
  if (s->nr_ops + s->nr_bad_rows >= s->rp->rows) {
    s->rp->more = true;
    return 1;
  }
  if (!is_row_in_order (low, buf, len)) {
    return array_push (&s->bad_rows, &s->nr_bad_rows, low);
  }
  for (off = 0; off < len; off += INDEX_ENTRY_LEN) {
    index_entry_unpack (buf + off, &e);
    found = verify_find (s->rp->c, e.addr, &s->row, &r);
    if (found == -1)
      return -1;
    if (!(found && index_entry_matches (&e, &r.digest) &&
          r.flags & RECORD_INDEXED) && add_op (s, &e, false) == -1)
      return -1;
  }
  return 0;
}

static void
reset (struct index_scan *s)
{
  free (s->ops);
  free (s->bad_rows);
  s->ops = NULL;
  s->bad_rows = NULL;
  s->nr_ops = s->nr_bad_rows = 0;
  s->has_first = false;
}

/* Delete rows that are not in order; add_entries restores their entries. */
static int
drop_rows (struct index_scan *s)
{
  struct meta_conn *c = s->rp->c;
  size_t i;

  for (i = 0; i < s->nr_bad_rows; ++i)
    if ((s->bad_rows[i] == 0 ? meta_index_put (c, 0, NULL, 0)
         : meta_index_delete (c, s->bad_rows[i])) == -1)
      return -1;
  return 0;
}

static int
drop_entries (struct repair *rp)
{
  struct index_scan *s = rp->arg;

  reset (s);
  if (meta_index_scan (rp->c, look_at_row, s) == -1 ||
      (!s->has_first && meta_index_put (rp->c, 0, NULL, 0) == -1) ||
      drop_rows (s) == -1)
    return -1;
  return fold_index (rp->c, s->ops, s->nr_ops, &rp->state->index_entries);
}

/*----------------------------------------------------------------------
 * Entries that are missing
 */

static int
look_up (struct index_scan *s, const struct record *r)
{
  struct index_entry wanted, e;
  uint64_t low;
  size_t off;

  index_entry_make (&r->digest, r->ptr.addr, &wanted);
  if (meta_index_get (s->rp->c, wanted.prefix, &low, &s->row) == -1)
    return -1;
  for (off = 0; off < s->row.len; off += INDEX_ENTRY_LEN) {
    index_entry_unpack (s->row.p + off, &e);
    if (e.addr == wanted.addr && index_entry_matches (&e, &r->digest))
      return 0;
  }
  return add_op (s, &wanted, true);
}

static int
look_at_group (void *opaque, uint64_t group, const uint8_t *buf, size_t len)
{
  struct index_scan *s = opaque;
  struct record r;
  size_t off;
  int n;

  if (s->nr_ops >= s->rp->rows) {
    s->end_group = group;
    s->rp->more = true;
    return 1;
  }
  for (off = 0; off < len; off += (size_t) n) {
    n = record_unpack (group, buf + off, len - off, &r);
    if (n == -1)
      break;
    if (r.flags & RECORD_INDEXED && look_up (s, &r) == -1)
      return -1;
  }
  return 0;
}

static int
add_entries (struct repair *rp)
{
  struct index_scan *s = rp->arg;

  reset (s);
  if (meta_record_scan (rp->c, s->next_group, look_at_group, s) == -1)
    return -1;
  return fold_index (rp->c, s->ops, s->nr_ops, &rp->state->index_entries);
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
  uint64_t next, end;           /* addresses */
  uint64_t *addrs;              /* owned; ascending */
  size_t nr;
  struct blob row;
  size_t nr_dead;               /* the first ones: records to check */
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
    found = verify_find (rp->c, l->addrs[i], &l->row, &r);
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

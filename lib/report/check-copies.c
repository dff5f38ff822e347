/* SPDX-License-Identifier: BSD-3-Clause */

/* check --repair: rows of table "copy" that name a missing record, or one that
 * is not a copy.  Their copies lose this reference: repair_records, which
 * counts them next, lets them die, and the copier makes others.
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "report/check-int.h"

struct row {
  uint64_t addr;
  uint64_t copies[COPIES_BESIDE];
  unsigned nr; /* that stay */
};

struct copies_scan {
  struct repair *rp;
  uint64_t next, end; /* addresses */
  struct row *rows;   /* owned; those that change */
  size_t nr;
  struct blob row;
};

/* A damaged row of records counts as empty; repair_records rebuilds it. */
static int
find (struct copies_scan *s, uint64_t addr, struct record *r)
{
  int found = meta_record_find (s->rp->c, addr, &s->row, r);

  return found == -1 && errno == EIO && !meta_is_damaged (s->rp->c) ? 0 : found;
}

/* Is it a copy of this record?  1, 0, -1. */
static int
is_copy_of (struct copies_scan *s, const struct record *primary, uint64_t addr)
{
  struct record r;
  int found = find (s, addr, &r);

  if (found != 1)
    return found;
  return r.flags & RECORD_COPY && r.lsize == primary->lsize &&
    r.ptr.psize == primary->ptr.psize && r.ptr.codec == primary->ptr.codec &&
    r.ptr.cksum == primary->ptr.cksum && r.domain == primary->domain &&
    memcmp (&r.digest, &primary->digest, sizeof r.digest) == 0;
}

static int
judge_row (void *opaque, uint64_t addr, const uint64_t *copies, unsigned nr)
{
  struct copies_scan *s = opaque;
  struct row row = { .addr = addr };
  struct record primary;
  unsigned i;
  int found, good;

  if (s->nr == s->rp->rows) {
    s->end = addr;
    s->rp->more = true;
    return 1;
  }
  found = find (s, addr, &primary);
  if (found == -1)
    return -1;
  for (i = 0; i < nr && found && !(primary.flags & RECORD_COPY); ++i) {
    good = is_copy_of (s, &primary, copies[i]);
    if (good == -1)
      return -1;
    if (good)
      row.copies[row.nr++] = copies[i];
  }
  if (row.nr == nr && nr > 0)
    return 0;
  return array_push (&s->rows, &s->nr, row);
}

static int
fix_copies (struct repair *rp)
{
  struct copies_scan *s = rp->arg;
  size_t i;

  free (s->rows);
  s->rows = NULL;
  s->nr = 0;
  if (meta_copies_scan (rp->c, s->next, judge_row, s) == -1)
    return -1;
  for (i = 0; i < s->nr; ++i)
    if (meta_copies_put (rp->c, s->rows[i].addr, s->rows[i].copies,
                         s->rows[i].nr) == -1)
      return -1;
  return 0;
}

static void
copies_fixed (struct repair *rp)
{
  struct copies_scan *s = rp->arg;

  s->next = s->end;
}

int
repair_copies (struct repair *rp)
{
  struct copies_scan s = { .rp = rp };
  int r = repair_pass (rp, fix_copies, copies_fixed, &s);

  free (s.rows);
  blob_free (&s.row);
  return r;
}

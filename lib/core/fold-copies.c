/* SPDX-License-Identifier: BSD-3-Clause */

/* Step 2 of a fold, third part: copies of records (copies.h).
 *
 * Counts are final by now, so this transaction knows which primaries died,
 * and whether the primaries of new copies are still the same records.  The
 * copier has verified a copy's content; this code checks that the content is
 * that of the primary, by both rows in pool.db.  Surplus copies lose their
 * reference in a second pass over records, and die like other records.
 *
 * Damage to the table must not stop the pool: the fold skips the table, and
 * the copies that it would have freed stay until "check --repair".
 */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "core/fold-int.h"

/* Rows that one fold checks for surplus copies; and copies that it releases
 * for each leaf that it might have freed instead.
 */
#define SCAN_ROWS 16384
#define COPIES_PER_LEAF 32

struct copy_row {
  uint64_t addr;
  uint64_t copies[COPIES_BESIDE];
  unsigned nr;
};

struct change {
  struct fold *f;
  struct meta_conn *c;
  struct addrs released; /* copies */

  /* Rows with surplus copies, to be written after the scan. */
  struct copy_row *rows;
  size_t nr_rows;
  unsigned keep; /* copies of a record, at most */
  size_t max, seen;
  uint64_t cursor; /* where it stopped; 0: at the end */
};

/* Handle a failed access to the table; the return value is -1. */
static int
table_failed (struct change *ch)
{
  ch->f->copies_failed = errno == EIO && meta_is_damaged (ch->c);
  return -1;
}

static int
release (struct change *ch, uint64_t copy)
{
  return array_push (&ch->released.p, &ch->released.nr, copy);
}

/* Release the copies of the primaries that died. */
static int
release_of_dead (struct change *ch, size_t nr_gone)
{
  const struct space_freed *gone = ch->f->gone;
  uint64_t copies[COPIES_BESIDE];
  unsigned nr, k;
  size_t i;
  int r;

  for (i = 0; i < nr_gone; ++i) {
    r = meta_copies_get (ch->c, gone[i].addr, copies, &nr);
    if (r == -1 ||
        (r == 1 && meta_copies_put (ch->c, gone[i].addr, NULL, 0) == -1))
      return table_failed (ch);
    for (k = 0; k < nr; ++k)
      if (release (ch, copies[k]) == -1)
        return -1;
  }
  return 0;
}

static bool
is_same (const struct record *a, const struct record *b)
{
  return a->ptr.psize == b->ptr.psize && a->ptr.codec == b->ptr.codec &&
    a->ptr.cksum == b->ptr.cksum && a->lsize == b->lsize &&
    a->domain == b->domain &&
    memcmp (&a->digest, &b->digest, sizeof a->digest) == 0;
}

/* Since the copier read the primary, another record may have taken its place,
 * or it may have got other copies, or have too few references now.
 */
static int
judge_new (struct change *ch, const struct ddt_change *new)
{
  struct fold *f = ch->f;
  uint64_t copies[COPIES_BESIDE];
  struct record primary;
  unsigned nr;
  int r = fold_find_record (f, ch->c, new->copy_of, &primary);

  assert (new->record &&new->record->flags &RECORD_COPY);
  assert (new->copy_of != new->addr);
  if (r == -1)
    return -1;
  if (r == 0 || primary.flags & RECORD_COPY ||
      !is_same (&primary, new->record) || f->copies_damaged)
    return release (ch, new->addr);
  if (meta_copies_get (ch->c, new->copy_of, copies, &nr) == -1)
    return table_failed (ch);
  if (nr >= copies_wanted (f->parts->copies, primary.refcount))
    return release (ch, new->addr);
  assert (nr < COPIES_BESIDE);
  copies[nr++] = new->addr;
  return meta_copies_put (ch->c, new->copy_of, copies, nr) == -1
    ? table_failed (ch)
    : 0;
}

static int
judge_all_new (struct change *ch)
{
  const struct fold *f = ch->f;
  size_t i;

  for (i = 0; i < f->nr_changes; ++i)
    if (f->changes[i].copy_of != 0 && judge_new (ch, &f->changes[i]) == -1)
      return -1;
  return 0;
}

static int
note_row (void *opaque, uint64_t addr, const uint64_t *copies, unsigned nr)
{
  struct change *ch = opaque;
  struct copy_row *row;

  if (ch->seen == SCAN_ROWS || ch->nr_rows >= ch->max) {
    ch->cursor = addr;
    return 1;
  }
  ch->seen++;
  if (nr <= ch->keep)
    return 0;
  row = array_add (&ch->rows, &ch->nr_rows, sizeof *row);
  if (row == NULL)
    return -1;
  *row = (struct copy_row) { .addr = addr, .nr = nr };
  assert (nr <= COPIES_BESIDE);
  memcpy (row->copies, copies, nr * sizeof *copies);
  return 0;
}

/* "copies" was lowered: check a part of the table in each fold. */
static int
release_surplus (struct change *ch)
{
  struct fold *f = ch->f;
  struct copies *copies = f->parts->copies;
  const struct copy_row *row;
  unsigned k;
  size_t i;

  if (!copies_has_surplus (copies) || fold_background_leaves (f) == 0)
    return 0;
  f->copies_wanted = copies->wanted;
  f->looked_at_copies = true;
  f->copies_cursor = 0;
  if (f->base.copy_sectors == 0)
    return 0;
  ch->keep = copies->nr - 1;
  ch->max = (size_t) fold_background_leaves (f) * COPIES_PER_LEAF /
    COPIES_BESIDE;
  if (meta_copies_scan (ch->c,
                        copies->under_way == f->copies_wanted ? copies->cursor
                                                              : 0,
                        note_row, ch) == -1)
    return errno == ENOMEM ? -1 : table_failed (ch);
  row = ch->rows;
  for (i = 0; i < ch->nr_rows; ++i) {
    if (meta_copies_put (ch->c, row[i].addr, row[i].copies, ch->keep) == -1)
      return table_failed (ch);
    for (k = ch->keep; k < row[i].nr; ++k)
      if (release (ch, row[i].copies[k]) == -1)
        return -1;
  }
  f->copies_cursor = ch->cursor;
  f->has_more |= ch->cursor != 0;
  return 0;
}

static int
change_table (struct change *ch, size_t nr_gone)
{
  const struct fold *f = ch->f;

  if (!f->copies_damaged &&
      ((f->base.copy_sectors > 0 && release_of_dead (ch, nr_gone) == -1) ||
       release_surplus (ch) == -1))
    return -1;
  return judge_all_new (ch);
}

int
fold_copies (struct fold *f, struct meta_conn *c)
{
  struct change ch = { .f = f, .c = c };
  int r = change_table (&ch, f->nr_gone);

  assert (f->state.fold == f->base.fold); /* fold_write_tables counts */
  if (r == 0 && ch.released.nr > 0)
    r = fold_release_copies (f, c, ch.released.p, ch.released.nr);
  if (r == 0 && !f->copies_damaged &&
      f->state.copy_sectors != f->base.copy_sectors &&
      meta_copies_put_sectors (c, f->state.copy_sectors) == -1)
    r = table_failed (&ch);
  free (ch.released.p);
  free (ch.rows);
  return r;
}

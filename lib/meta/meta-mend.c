/* SPDX-License-Identifier: BSD-3-Clause */

/* Repair of a table some of whose pages are lost in all copies.
 *
 * SQLite cannot change a tree with a page that it cannot read.  So the writer
 * temporarily gets substitutes for the lost pages (cksum-graft.h), which are
 * empty but for a row that SQLite needs and whose key is possible there.  Then
 * one ordinary transaction deletes these rows, inserts the caller's rows for
 * the lost range of keys, and writes all the pages that it changes.  A crash
 * before it is durable leaves everything as it was.
 *
 * A row whose data continue on a lost page is lost, too; the substitute for
 * that page ends the data, or continues on others (see below).
 *
 * A lost interior page hides the pages below it: nothing can find them any
 * more, and their rows are lost, too, because pages that SQLite has freed look
 * the same.  But they must not stay in use for ever: the pages in no tree and
 * in no list of free pages ("orphans") are exactly these.  This code makes a
 * small tree of as many of them as its height needs, and the others become the
 * data of one of its rows.  When SQLite deletes the rows it frees the pages.
 *
 * Before the commit SQLite checks the tables (quick_check): each page must be
 * used, and only once.
 */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/backoff.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "format/format.h"
#include "meta/meta-conn.h"
#include "meta/meta-mend.h"
#include "vfs/cksum-graft.h"
#include "vfs/cksum-mirror.h"

/* Deeper than SQLite allows. */
#define DEPTH_MAX 20
/* SQLite never uses the page with this byte. */
#define LOCK_BYTE 0x40000000u
/* Overflow pages of one row: SQLite allows a value of 10^9 bytes. */
#define OVERFLOW_MAX 100000u
#define OVERFLOW_ROWS_MAX 6u

static const struct mended_table {
  const char *name;
  bool index; /* the kind of its b-tree */
  const char *root, *delete, *check;
} tables[] = {
/* clang-format off */
#define TABLE(name, index, key)                                 \
  { name, index,                                                \
    "SELECT rootpage FROM sqlite_schema WHERE name = '" name "'", \
    "DELETE FROM " name " WHERE " key, "PRAGMA quick_check (" name ")" }
  /* clang-format on */
  [META_MEND_LEAF] = TABLE ("leaf", true,
                            "branch = ? AND leaf = ? AND seq = ?"),
  [META_MEND_DELTA] = TABLE ("delta", true,
                             "branch = ? AND area = ? AND seq = ?"),
  [META_MEND_RECORD] = TABLE ("record", false, "rowid = ?"),
  [META_MEND_COUNT] = TABLE ("count", false, "rowid = ?"),
  [META_MEND_SEGMENT] = TABLE ("segment", false, "rowid = ?"),
  [META_MEND_INDEX] = TABLE ("ddt", false, "rowid = ?"),
#undef TABLE
};

struct lost {
  uint32_t number;
  unsigned depth;
  bool overflow;       /* it holds data of a row: ... */
  struct leaf_key key; /* ... the row's key */
  uint32_t nr_behind;  /* ... overflow pages that follow it */
  struct meta_lost_range range;
};

struct mend {
  struct meta *m;
  struct meta_conn *c; /* the writer */
  const struct meta_mend_ops *ops;
  const struct mended_table *table;
  uint32_t nr_pages, root;
  uint8_t *seen;     /* owned; a bit for each page */
  unsigned bottom;   /* depth of the lowest pages; 0: not known */
  struct lost *lost; /* owned */
  size_t nr_lost;
  uint32_t *orphans; /* owned */
  size_t nr_orphans;
  size_t nr_spare;   /* orphans that no tree needs */
  bool with_orphans; /* find and use them */

  struct cksum_graft graft; /* owned */
  struct leaf_key *rows;    /* owned; of the graft, to be deleted */
  size_t nr_rows;
};

/*----------------------------------------------------------------------
 * Finding what is lost, and what is in use
 */

static int
mark (struct mend *md, uint32_t number)
{
  uint8_t *p = &md->seen[number / 8], bit = (uint8_t) (1u << number % 8);

  if (number == 0 || number > md->nr_pages || *p & bit)
    return nbdedup_fail (EIO,
                         "pool.db: page %" PRIu32 " is used twice, or "
                         "does not exist",
                         number);
  *p |= bit;
  return 0;
}

/* Read a page that must not be lost: otherwise the pages that it refers to,
 * which are in use, are unknown.
 */
static int
read_whole (struct mend *md, uint32_t number, uint8_t *buf)
{
  int r;

  if (mark (md, number) == -1)
    return -1;
  r = cksum_page_probe (md->c->db, number, buf);
  return r == 1 ? 0
    : r == -1
    ? -1
    : nbdedup_fail (EIO, "pool.db: page %" PRIu32 " is lost as well", number);
}

static int
mark_overflow (struct mend *md, uint32_t number)
{
  CLEANUP_FREE uint8_t *buf = malloc (META_PAGE_BYTES);

  if (buf == NULL)
    return nbdedup_fail (ENOMEM, "no memory to repair");
  for (; number != 0; number = btree_number (buf, 0))
    if (read_whole (md, number, buf) == -1)
      return -1;
  return 0;
}

static int
mark_tree (struct mend *md, uint32_t number, unsigned depth)
{
  CLEANUP_FREE uint8_t *buf = malloc (META_PAGE_BYTES);
  struct btree_page page;
  struct btree_cell cell;
  unsigned i;

  if (buf == NULL)
    return nbdedup_fail (ENOMEM, "no memory to repair");
  if (depth > DEPTH_MAX)
    return nbdedup_fail (EIO, "pool.db: a tree is too deep");
  if (read_whole (md, number, buf) == -1 ||
      btree_page_open (buf, number, &page) == -1)
    return -1;
  for (i = 0; i < page.nr_cells; ++i)
    if (btree_cell_get (&page, i, &cell) == -1 ||
        mark_overflow (md, cell.overflow) == -1 ||
        (page.interior && mark_tree (md, cell.child, depth + 1) == -1))
      return -1;
  return page.interior ? mark_tree (md, btree_right_child (&page), depth + 1)
                       : 0;
}

static int
mark_free (struct mend *md, uint32_t trunk)
{
  CLEANUP_FREE uint8_t *buf = malloc (META_PAGE_BYTES);
  uint32_t i, nr;

  if (buf == NULL)
    return nbdedup_fail (ENOMEM, "no memory to repair");
  for (; trunk != 0; trunk = btree_number (buf, 0)) {
    if (read_whole (md, trunk, buf) == -1)
      return -1;
    nr = btree_number (buf, 1);
    if (nr > META_PAGE_BYTES / 4 - 2)
      return nbdedup_fail (EIO, "pool.db: the list of free pages is not valid");
    for (i = 0; i < nr; ++i)
      if (mark (md, btree_number (buf, 2 + i)) == -1)
        return -1;
  }
  return 0;
}

static struct lost *
note_lost (struct mend *md, uint32_t number, unsigned depth,
           const struct leaf_key *low, const struct leaf_key *high)
{
  struct lost *l = array_add (&md->lost, &md->nr_lost, sizeof *l);

  if (l == NULL)
    return NULL;
  /* The walk is in the order of the keys. */
  if (l > md->lost)
    assert (
      low != NULL &&
      (!l[-1].range.has_low || leaf_key_compare (&l[-1].range.low, low) <= 0));
  *l = (struct lost) {
    .number = number,
    .depth = depth,
    .range = { .has_low = low != NULL, .has_high = high != NULL },
  };
  if (low)
    l->range.low = *low;
  if (high)
    l->range.high = *high;
  return l;
}

/* Follow the row's data on overflow pages, up to the first lost one. */
static int
walk_overflow (struct mend *md, const struct btree_cell *cell,
               const struct leaf_key *key, unsigned depth)
{
  CLEANUP_FREE uint8_t *buf = malloc (META_PAGE_BYTES);
  uint32_t number = cell->overflow, left = cell->nr_overflow;
  struct leaf_key low = *key, high = *key;
  struct lost *l;
  int r;

  if (buf == NULL)
    return nbdedup_fail (ENOMEM, "no memory to repair");
  for (; left > 0; --left, number = btree_number (buf, 0)) {
    if (mark (md, number) == -1)
      return -1;
    r = cksum_page_probe (md->c->db, number, buf);
    if (r == 1)
      continue;
    low.seq--;
    high.seq++;
    l = r == -1 ? NULL
                : note_lost (md, number, depth, key->seq > 0 ? &low : NULL,
                             high.seq > 0 ? &high : NULL);
    if (l == NULL)
      return -1;
    l->overflow = true;
    l->key = *key;
    l->nr_behind = left - 1;
    return 0;
  }
  return 0;
}

static int
walk_row (struct mend *md, const struct btree_page *page,
          const struct btree_cell *cell, struct leaf_key *key,
          const struct leaf_key *low, const struct leaf_key *high)
{
  const uint8_t *data;
  size_t len;

  if (btree_leaf_row (cell, key, &data, &len) == -1 ||
      (low && leaf_key_compare (low, key) >= 0) ||
      (high && leaf_key_compare (key, high) >= 0))
    return nbdedup_fail (EIO,
                         "pool.db: page %" PRIu32 " of the maps is not "
                         "valid",
                         page->number);
  return md->ops->row (md->ops->opaque, key, data, len);
}

static int walk (struct mend *md, uint32_t number, unsigned depth,
                 const struct leaf_key *low, const struct leaf_key *high);

/* Check a cell, and walk through the pages that it refers to. */
static int
walk_cell (struct mend *md, const struct btree_page *page, unsigned depth,
           const struct btree_cell *cell, struct leaf_key *key,
           const struct leaf_key *low, const struct leaf_key *high)
{
  struct leaf_key end = { 0, 0, btree_rowid (cell->rowid) + 1 };

  if (md->table->index)
    return walk_row (md, page, cell, key, low, high) == -1 ? -1
      : page->interior ? walk (md, cell->child, depth + 1, low, key)
                       : 0;
  *key = (struct leaf_key) { 0, 0, btree_rowid (cell->rowid) };
  if ((low && leaf_key_compare (low, key) >= 0) ||
      (high && leaf_key_compare (key, high) >= 0))
    return nbdedup_fail (EIO,
                         "pool.db: the keys of page %" PRIu32 " are out "
                         "of order",
                         page->number);
  return page->interior
    ? walk (md, cell->child, depth + 1, low, end.seq > 0 ? &end : NULL)
    : walk_overflow (md, cell, key, depth);
}

/* Walk through the part of the table between 'low' and 'high'. */
static int
walk (struct mend *md, uint32_t number, unsigned depth,
      const struct leaf_key *low, const struct leaf_key *high)
{
  CLEANUP_FREE uint8_t *buf = malloc (META_PAGE_BYTES);
  struct leaf_key keys[2];
  struct btree_page page;
  struct btree_cell cell;
  unsigned i;
  int r;

  if (buf == NULL)
    return nbdedup_fail (ENOMEM, "no memory to repair");
  if (depth > DEPTH_MAX || mark (md, number) == -1)
    return -1;
  r = cksum_page_probe (md->c->db, number, buf);
  if (r != 1)
    return r == -1 || note_lost (md, number, depth, low, high) == NULL ? -1 : 0;
  if (btree_page_open (buf, number, &page) == -1)
    return -1;
  if (page.index != md->table->index || (page.nr_cells == 0 && depth > 1) ||
      (!page.interior && md->bottom != 0 && md->bottom != depth))
    return nbdedup_fail (EIO,
                         "pool.db: page %" PRIu32 " does not belong to "
                         "table %s",
                         number, md->table->name);
  if (!page.interior)
    md->bottom = depth;
  for (i = 0; i < page.nr_cells; ++i) {
    if (btree_cell_get (&page, i, &cell) == -1 ||
        walk_cell (md, &page, depth, &cell, &keys[i % 2], low, high) == -1)
      return -1;
    low = &keys[i % 2];
  }
  return page.interior
    ? walk (md, btree_right_child (&page), depth + 1, low, high)
    : 0;
}

static int
mark_others (struct mend *md)
{
  sqlite3_stmt *st = NULL;
  uint32_t root;
  int r = 0, rc = SQLITE_DONE;

  if (sqlite3_prepare_v2 (md->c->db,
                          "SELECT rootpage FROM sqlite_schema "
                          "WHERE rootpage > 0",
                          -1, &st, NULL) != SQLITE_OK)
    return meta_fail (md->c, "preparing to repair");
  while (r == 0 && (rc = sqlite3_step (st)) == SQLITE_ROW) {
    root = (uint32_t) sqlite3_column_int64 (st, 0);
    if (root != md->root)
      r = mark_tree (md, root, 1);
  }
  if (r == 0 && rc != SQLITE_DONE)
    r = meta_fail (md->c, "preparing to repair");
  sqlite3_finalize (st);
  return r == -1 ? -1 : mark_tree (md, 1, 1);
}

static int
find_orphans (struct mend *md, uint32_t free_list)
{
  uint32_t number;

  if (mark_others (md) == -1 || mark_free (md, free_list) == -1)
    return -1;
  for (number = 1; number <= md->nr_pages; ++number) {
    if (md->seen[number / 8] & 1u << number % 8 ||
        number == LOCK_BYTE / META_PAGE_BYTES + 1)
      continue;
    if (array_push (&md->orphans, &md->nr_orphans, number) == -1)
      return -1;
  }
  return 0;
}

/* Find the overflow pages of lost rows.  The repair works without them too; if
 * another tree cannot be read, they leak.
 */
static int
find_leaked (struct mend *md, uint32_t free_list)
{
  md->with_orphans = true;
  if (find_orphans (md, free_list) == 0)
    return 0;
  if (errno != EIO)
    return -1;
  md->with_orphans = false;
  md->nr_orphans = 0;
  return 0;
}

/* The number of levels below a lost page; 0: it is at the bottom. */
static unsigned
height_of (const struct mend *md, const struct lost *l)
{
  assert (l->depth <= md->bottom);
  return md->bottom - l->depth;
}

/* The number of pages below a lost page, if each has two children; or after a
 * lost overflow page.
 */
static size_t
pages_of (const struct mend *md, const struct lost *l)
{
  return l->overflow ? l->nr_behind : ((size_t) 2 << height_of (md, l)) - 2;
}

/* 1; 0: an older pool does not have the table; -1. */
static int
find_root (struct mend *md)
{
  sqlite3_stmt *st = NULL;

  if (sqlite3_prepare_v2 (md->c->db, md->table->root, -1, &st, NULL) !=
      SQLITE_OK)
    return meta_fail (md->c, "preparing to repair");
  if (sqlite3_step (st) == SQLITE_ROW)
    md->root = (uint32_t) sqlite3_column_int64 (st, 0);
  sqlite3_finalize (st);
  return md->root > 0;
}

static int
find (struct mend *md)
{
  CLEANUP_FREE uint8_t *first = malloc (META_PAGE_BYTES);
  bool unknown;
  size_t i;
  int r;

  if (first == NULL)
    return nbdedup_fail (ENOMEM, "no memory to repair");
  r = find_root (md);
  if (r != 1)
    return r;
  if (cksum_page_probe (md->c->db, 1, first) != 1)
    return -1;
  md->nr_pages = btree_number (first, 7);
  md->seen = calloc (md->nr_pages / 8 + 1, 1);
  if (md->seen == NULL)
    return nbdedup_fail (ENOMEM, "no memory to repair");
  if (walk (md, md->root, 1, NULL, NULL) == -1)
    return -1;
  /* If no page at the bottom can be read, take the lowest known ones for the
   * bottom.  What was below them leaks if another tree cannot be read.
   */
  unknown = md->bottom == 0;
  for (i = 0; i < md->nr_lost; ++i)
    if (md->lost[i].depth > md->bottom) {
      if (!unknown)
        return nbdedup_fail (EIO, "pool.db: table %s has pages at two depths",
                             md->table->name);
      md->bottom = md->lost[i].depth;
    }
  for (i = 0; i < md->nr_lost; ++i)
    md->with_orphans |= pages_of (md, &md->lost[i]) > 0;
  return md->nr_lost == 0          ? 0
    : md->with_orphans             ? find_orphans (md, btree_number (first, 8))
    : unknown || !md->table->index ? find_leaked (md, btree_number (first, 8))
                                   : 0;
}

/*----------------------------------------------------------------------
 * The graft
 */

static uint8_t *
add_image (struct mend *md, uint32_t number)
{
  struct cksum_graft_page *p = array_add (&md->graft.p, &md->graft.nr,
                                          sizeof *p);

  if (p == NULL)
    return NULL;
  *p = (struct cksum_graft_page) { number, malloc (META_PAGE_BYTES) };
  return p->image ? p->image
                  : nbdedup_fail_null (ENOMEM, "no memory to repair");
}

static uint8_t *
image_of (const struct mend *md, uint32_t number)
{
  size_t i = 0;

  while (md->graft.p[i].number != number) {
    i++;
    assert (i < md->graft.nr);
  }
  return md->graft.p[i].image;
}

/* Add a row whose key is possible in the range, after the last one. */
static struct leaf_key *
add_row (struct mend *md, const struct lost *l, struct leaf_key *last)
{
  struct leaf_key *key;

  last->seq++;
  if (l->range.has_high && leaf_key_compare (last, &l->range.high) >= 0)
    return nbdedup_fail_null (EIO,
                              "pool.db: page %" PRIu32 " is lost, but no "
                              "row can belong to it",
                              l->number);
  key = array_add (&md->rows, &md->nr_rows, sizeof *key);
  if (key)
    *key = *last;
  return key;
}

static uint32_t
take_orphan (struct mend *md)
{
  assert (md->nr_orphans > 0); /* make_graft has counted them */
  return md->orphans[--md->nr_orphans];
}

/* Chain 'nr' orphans as the data of a row; *first is the first of them. */
static int
graft_data (struct mend *md, uint32_t nr, uint32_t *first)
{
  uint8_t *image;

  *first = 0;
  assert (nr <= md->nr_orphans);
  for (; nr > 0; --nr) {
    image = add_image (md, md->orphans[md->nr_orphans - 1]);
    if (image == NULL)
      return -1;
    btree_make_overflow (image, *first);
    *first = take_orphan (md);
  }
  return 0;
}

/* Add a row whose data are as many spare orphans as possible. */
static int
graft_row (struct mend *md, const struct lost *l, struct leaf_key *last,
           uint32_t left, uint8_t *page)
{
  uint32_t nr = md->nr_spare < OVERFLOW_MAX ? (uint32_t) md->nr_spare
                                            : OVERFLOW_MAX,
           first;
  const struct leaf_key *key = add_row (md, l, last);

  if (key == NULL || graft_data (md, nr, &first) == -1)
    return -1;
  md->nr_spare -= nr;
  btree_add (page, left, key, first, nr);
  return 0;
}

/* Replace a lost overflow page, so that SQLite can delete its row. */
static int
graft_overflow (struct mend *md, const struct lost *l)
{
  uint32_t next;
  uint8_t *image;

  if (graft_data (md, l->nr_behind, &next) == -1)
    return -1;
  image = add_image (md, l->number);
  if (image == NULL)
    return -1;
  btree_make_overflow (image, next);
  return array_push (&md->rows, &md->nr_rows, l->key);
}

/* Replace a lost page by a tree of this height.  There are enough orphans. */
static int
graft_tree (struct mend *md, const struct lost *l, uint32_t number,
            unsigned height, struct leaf_key *last)
{
  uint8_t *image = add_image (md, number);
  uint32_t left;

  if (image == NULL)
    return -1;
  if (height == 0) {
    btree_make (image, md->table->index, 0);
    return graft_row (md, l, last, 0, image);
  }
  left = take_orphan (md);
  btree_make (image, md->table->index, take_orphan (md));
  if (graft_tree (md, l, left, height - 1, last) == -1)
    return -1;
  /* A table b-tree has no row in an interior page, only the last row's key. */
  if (!md->table->index)
    btree_add (image, left, last, 0, 0);
  else if (graft_row (md, l, last, left, image) == -1)
    return -1;
  return graft_tree (md, l, btree_number (image, 2), height - 1, last);
}

/* The page with the last rows of a grafted tree. */
static uint32_t
bottom_right (const struct mend *md, uint32_t number)
{
  const uint8_t *image = image_of (md, number);
  struct btree_page page;

  while (btree_page_open (image, number, &page) == 0 && page.interior) {
    number = btree_right_child (&page);
    image = image_of (md, number);
  }
  return number;
}

static int
compare_pages (const void *a, const void *b)
{
  const struct cksum_graft_page *x = a, *y = b;

  return x->number < y->number ? -1 : x->number > y->number;
}

static int
make_graft (struct mend *md)
{
  size_t need = 0, i;
  unsigned rows = 0;
  struct leaf_key last = { 0, 0, 0 };
  uint8_t *page;

  for (i = 0; i < md->nr_lost; ++i)
    need += pages_of (md, &md->lost[i]);
  if (md->nr_orphans < need)
    return nbdedup_fail (EIO,
                         "pool.db: the repair cannot find the pages below "
                         "a lost page");
  md->nr_spare = md->nr_orphans - need;
  for (i = 0; i < md->nr_lost; ++i) {
    if (md->lost[i].overflow) {
      if (graft_overflow (md, &md->lost[i]) == -1)
        return -1;
      continue;
    }
    last = md->lost[i].range.low; /* zero if there is none */
    if (graft_tree (md, &md->lost[i], md->lost[i].number,
                    height_of (md, &md->lost[i]), &last) == -1)
      return -1;
    page = image_of (md, bottom_right (md, md->lost[i].number));
    for (; md->nr_spare > 0; ++rows)
      if (rows == OVERFLOW_ROWS_MAX)
        return nbdedup_fail (EIO, "pool.db: too much of table %s is lost",
                             md->table->name);
      else if (graft_row (md, &md->lost[i], &last, 0, page) == -1)
        return -1;
  }
  assert (md->nr_orphans == md->nr_spare);
  qsort (md->graft.p, md->graft.nr, sizeof *md->graft.p, compare_pages);
  for (i = 1; i < md->graft.nr; ++i) /* cksum-graft.c searches them */
    assert (md->graft.p[i - 1].number < md->graft.p[i].number);
  return 0;
}

/*----------------------------------------------------------------------
 * The transaction
 */

/* Check only this table if no orphans were used: others may be damaged. */
static int
check_tables (struct mend *md)
{
  sqlite3_stmt *st = NULL;
  const char *text = NULL;
  int r;

  if (sqlite3_prepare_v2 (md->c->db,
                          md->with_orphans ? "PRAGMA quick_check"
                                           : md->table->check,
                          -1, &st, NULL) != SQLITE_OK)
    return meta_fail (md->c, "checking the repair");
  if (sqlite3_step (st) == SQLITE_ROW)
    text = (const char *) sqlite3_column_text (st, 0);
  r = text == NULL ? meta_fail (md->c, "checking the repair")
    : strcmp (text, "ok") == 0
    ? 0
    : nbdedup_fail (EIO, "pool.db: the repair failed: %s", text);
  sqlite3_finalize (st);
  return r;
}

static int
delete_rows (struct mend *md)
{
  sqlite3_stmt *st = NULL;
  const struct leaf_key *key;
  size_t i;
  int rc = SQLITE_DONE, r = 0;

  if (sqlite3_prepare_v2 (md->c->db, md->table->delete, -1, &st, NULL) !=
      SQLITE_OK)
    return meta_fail (md->c, "repairing");
  for (i = 0; i < md->nr_rows && rc == SQLITE_DONE; ++i) {
    key = &md->rows[i];
    sqlite3_bind_int64 (st, 1,
                        (int64_t) (md->table->index ? key->branch
                                                    : btree_rowid (key->seq)));
    if (md->table->index) {
      sqlite3_bind_int64 (st, 2, (int64_t) key->leaf);
      sqlite3_bind_int64 (st, 3, (int64_t) key->seq);
    }
    rc = sqlite3_step (st);
    sqlite3_reset (st);
  }
  if (rc != SQLITE_DONE)
    r = meta_fail (md->c, "repairing");
  sqlite3_finalize (st);
  return r;
}

static int
write_tables (struct mend *md, const struct meta_state *state)
{
  size_t i;

  if (delete_rows (md) == -1)
    return -1;
  for (i = 0; i < md->nr_lost; ++i)
    if (md->ops->lose (md->ops->opaque, md->c, &md->lost[i].range) == -1)
      return -1;
  return meta_state_put (md->c, state) == -1 ? -1 : check_tables (md);
}

static int
transaction (struct mend *md, const struct meta_state *state)
{
  int r, err;

  if (cksum_graft_set (md->c->db, &md->graft) == -1)
    return -1;
  r = meta_begin (md->c);
  if (r == 0) {
    r = write_tables (md, state);
    err = errno;
    if (r == 0)
      r = meta_commit (md->c);
    else {
      meta_rollback (md->c);
      errno = err;
    }
  }
  err = errno;
  (void) cksum_graft_set (md->c->db, NULL);
  errno = err;
  return r;
}

/* Copy all commits to pool.db itself. */
static bool
empty_wal (struct mend *md)
{
  unsigned tries = 0;

  while (!meta_restart_wal (md->m, META_EXPEL))
    if (!backoff_sleep (&tries))
      return false;
  return true;
}

/* SQLite did not write the pages of the graft that it has freed.  They are
 * still bad, and scrub would report them.
 */
static void
blank_free (struct mend *md)
{
  size_t i;

  if (!empty_wal (md))
    return;
  for (i = 0; i < md->graft.nr; ++i)
    (void) cksum_page_blank (md->c->db, md->graft.p[i].number);
}

static void
mend_free (struct mend *md)
{
  size_t i;

  for (i = 0; i < md->graft.nr; ++i)
    free (md->graft.p[i].image);
  free (md->graft.p);
  free (md->rows);
  free (md->orphans);
  free (md->lost);
  free (md->seen);
}

int
meta_mend (struct meta *m, const struct meta_mend_ops *ops,
           const struct meta_state *state)
{
  struct mend md = {
    .m = m,
    .c = meta_writer (m),
    .ops = ops,
    .table = &tables[ops->table],
  };
  int r, err;

  r = empty_wal (&md)
    ? find (&md)
    : nbdedup_fail (EBUSY, "pool.db: a reader still uses its WAL: try again");
  if (r == 0 && md.nr_lost > 0) {
    r = make_graft (&md);
    if (r == 0)
      r = transaction (&md, state);
    if (r == 0) {
      meta_committed (m);
      blank_free (&md);
    }
  }
  err = errno;
  mend_free (&md);
  errno = err;
  return r == -1 ? -1 : (int) md.nr_lost;
}

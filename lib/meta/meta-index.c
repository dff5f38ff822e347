/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "format/index-row.h"
#include "meta/meta-conn.h"
#include "meta/meta-index.h"

static const char reading[] = "reading the hash index";
static const char writing[] = "writing the hash index";

static uint64_t
key_of (unsigned run, uint64_t prefix)
{
  assert (run < INDEX_RUNS);
  return INDEX_KEY (run, prefix);
}

static uint64_t
low_of (uint64_t key)
{
  return key << INDEX_KEY_SHIFT;
}

/* Column 1: a row's entries. */
static int
take_entries (sqlite3_stmt *st, struct blob *b)
{
  const size_t len = (size_t) sqlite3_column_bytes (st, 1);

  if (!index_row_is_packed (len))
    return col_blob (st, 1, b);
  if (blob_reserve (b, index_row_unpacked_max (len)) == -1)
    return -1;
  b->len = index_row_unpack (sqlite3_column_blob (st, 1), len, b->p);
  return 0;
}

/* Key and data of the row that a statement has found. */
static int
take_row (struct meta_conn *c, sqlite3_stmt *st, uint64_t *low, struct blob *b)
{
  int r = step_one (c, st, reading);

  b->len = 0;
  if (r != 1)
    return r;
  *low = low_of (col (st, 0));
  if (take_entries (st, b) == -1)
    return -1;
  if (b->len % INDEX_ENTRY_LEN != 0)
    return nbdedup_fail (EIO,
                         "pool.db: a row of the hash index has "
                         "%zu bytes",
                         b->len);
  return 1;
}

int
meta_index_make (struct meta_conn *c)
{
  static const char find[] =
    "SELECT 1 FROM pragma_table_info ('ddt') WHERE name = 'data'";
  static const char make[] =
    "BEGIN IMMEDIATE; DROP TABLE ddt;"
    "CREATE TABLE ddt (key INTEGER PRIMARY KEY, entries BLOB NOT NULL) STRICT;"
    "UPDATE state SET index_entries = 0; COMMIT";
  sqlite3_stmt *st = NULL;
  int r = -1;

  if (sqlite3_prepare_v2 (c->db, find, -1, &st, NULL) != SQLITE_OK)
    meta_fail (c, reading);
  else
    r = step_one (c, st, reading);
  sqlite3_finalize (st);
  if (r == 1 && meta_exec (c, make, writing) == -1) {
    meta_rollback (c);
    r = -1;
  }
  return r;
}

int
meta_index_runs (struct meta_conn *c, struct index_runs *runs)
{
  USING_STMT (st, c, ST_INDEX_RUN);
  unsigned run = 0;
  int r = 1;

  memset (runs, 0, sizeof *runs);
  while (run < INDEX_RUNS && r == 1) {
    bind_u64 (st, 1, key_of (run, 0));
    r = step_one (c, st, reading);
    if (r == -1)
      return -1;
    if (r == 1) {
      run = (unsigned) (col (st, 0) >> INDEX_RUN_SHIFT);
      assert (run < INDEX_RUNS); /* keys are not negative */
      index_runs_add (runs, run++);
    }
    sqlite3_reset (st);
  }
  return 0;
}

int
meta_index_get (struct meta_conn *c, unsigned run, uint64_t prefix,
                uint64_t *low, struct blob *b)
{
  USING_STMT (st, c, ST_INDEX_GET);

  bind_u64 (st, 1, key_of (run, 0));
  bind_u64 (st, 2, key_of (run, prefix));
  return take_row (c, st, low, b);
}

int
meta_index_from (struct meta_conn *c, unsigned run, uint64_t prefix,
                 uint64_t *low, struct blob *b)
{
  USING_STMT (st, c, ST_INDEX_FROM);

  bind_u64 (st, 1, key_of (run, prefix));
  bind_u64 (st, 2, key_of (run, UINT64_MAX));
  return take_row (c, st, low, b);
}

int
meta_index_put (struct meta_conn *c, unsigned run, uint64_t low,
                const uint8_t *buf, size_t len)
{
  CLEANUP_FREE uint8_t *packed = malloc (len);
  USING_STMT (st, c, ST_INDEX_PUT);
  size_t n;

  if (packed == NULL)
    return nbdedup_fail (ENOMEM, "no memory to write the hash index");
  n = index_row_pack (buf, len, packed);
  bind_u64 (st, 1, key_of (run, low));
  bind_blob (st, 2, n > 0 ? packed : buf, n > 0 ? n : len);
  return meta_run (c, st, writing);
}

static int
delete_keys (struct meta_conn *c, uint64_t first, uint64_t last)
{
  USING_STMT (st, c, ST_INDEX_DELETE);

  bind_u64 (st, 1, first);
  bind_u64 (st, 2, last);
  return meta_run (c, st, writing);
}

int
meta_index_delete (struct meta_conn *c, unsigned run, uint64_t low)
{
  return delete_keys (c, key_of (run, low), key_of (run, low));
}

int
meta_index_delete_before (struct meta_conn *c, unsigned run, uint64_t end)
{
  return key_of (run, end) == key_of (run, 0)
    ? 0
    : delete_keys (c, key_of (run, 0), key_of (run, end) - 1);
}

int
meta_index_delete_run (struct meta_conn *c, unsigned run)
{
  return delete_keys (c, key_of (run, 0), key_of (run, UINT64_MAX));
}

/* Append an entry, packed. */
static int
add_entry (struct blob *b, const struct index_entry *e)
{
  if (blob_reserve (b, b->len + INDEX_ENTRY_LEN) == -1)
    return -1;
  index_entry_pack (e, b->p + b->len);
  b->len += INDEX_ENTRY_LEN;
  return 0;
}

/* The statement's row, column 1. */
static struct index_row
row_of (sqlite3_stmt *st)
{
  const uint8_t *p = sqlite3_column_blob (st, 1);

  return index_row_open (p, (size_t) sqlite3_column_bytes (st, 1));
}

static int
fail_row (void)
{
  return nbdedup_fail (EIO, "pool.db: a row of the hash index is damaged");
}

int
meta_index_find (struct meta_conn *c, unsigned run, uint64_t prefix,
                 struct blob *entries)
{
  USING_STMT (st, c, ST_INDEX_GET);
  struct index_row row;
  struct index_entry e;
  int r;

  entries->len = 0;
  bind_u64 (st, 1, key_of (run, 0));
  bind_u64 (st, 2, key_of (run, prefix));
  r = step_one (c, st, reading);
  if (r != 1)
    return r;
  row = row_of (st);
  while ((r = index_row_next (&row, &e)) == 1 && e.prefix <= prefix)
    if (e.prefix == prefix && add_entry (entries, &e) == -1)
      return -1;
  return r == -1 ? fail_row () : entries->len > 0;
}

int
meta_index_sum (struct meta_conn *c, const struct index_runs *runs,
                const struct index_entry *e, int *sum)
{
  struct blob entries CLEANUP_BLOB = { NULL };
  struct index_entry found;
  unsigned run;
  size_t off;

  *sum = 0;
  for (run = 0; run < INDEX_RUNS; ++run) {
    if (!index_runs_has (runs, run))
      continue;
    if (meta_index_find (c, run, e->prefix, &entries) == -1)
      return -1;
    for (off = 0; off < entries.len; off += INDEX_ENTRY_LEN) {
      index_entry_unpack (entries.p + off, &found);
      if (found.addr == e->addr)
        *sum += found.removed ? -1 : 1;
    }
  }
  return 0;
}

static int
lend_row (sqlite3_stmt *st, struct blob *b,
          int (*fn) (void *opaque, unsigned run, uint64_t low,
                     const uint8_t *buf, size_t len),
          void *opaque)
{
  const uint64_t key = col (st, 0);

  return take_entries (st, b) == -1
    ? -1
    : fn (opaque, (unsigned) (key >> INDEX_RUN_SHIFT), low_of (key), b->p,
          b->len);
}

int
meta_index_scan (struct meta_conn *c,
                 int (*fn) (void *opaque, unsigned run, uint64_t low,
                            const uint8_t *buf, size_t len),
                 void *opaque)
{
  struct blob b CLEANUP_BLOB = { NULL };
  USING_STMT (st, c, ST_INDEX_SCAN);

  return SCAN (c, st, reading, lend_row (st, &b, fn, opaque));
}

static int
range_of_row (sqlite3_stmt *st, uint64_t first, uint64_t last,
              int (*fn) (void *opaque, const struct index_entry *e),
              void *opaque)
{
  struct index_row row = row_of (st);
  struct index_entry e;
  int r;

  while ((r = index_row_next (&row, &e)) == 1 && e.prefix <= last)
    if (e.prefix >= first && fn (opaque, &e) == -1)
      return -1;
  return r == -1 ? fail_row () : 0;
}

static int
range_of_run (struct meta_conn *c, unsigned run, uint64_t first, uint64_t last,
              int (*fn) (void *opaque, const struct index_entry *e),
              void *opaque)
{
  USING_STMT (st, c, ST_INDEX_RANGE);

  bind_u64 (st, 1, key_of (run, 0));
  bind_u64 (st, 2, key_of (run, first));
  bind_u64 (st, 3, key_of (run, last));
  return SCAN (c, st, reading, range_of_row (st, first, last, fn, opaque));
}

int
meta_index_range (struct meta_conn *c, const struct index_runs *runs,
                  uint64_t first, uint64_t last,
                  int (*fn) (void *opaque, const struct index_entry *e),
                  void *opaque)
{
  unsigned run;

  for (run = 0; run < INDEX_RUNS; ++run)
    if (index_runs_has (runs, run) &&
        range_of_run (c, run, first, last, fn, opaque) == -1)
      return -1;
  return 0;
}

/*----------------------------------------------------------------------
 * The cursor
 */

struct run_cursor {
  unsigned run;
  uint64_t low; /* of the row */
  struct blob row;
  size_t off;           /* behind 'e' */
  struct index_entry e; /* the next one; valid unless 'ended' */
  bool ended;
};

struct index_cursor {
  struct meta_conn *c; /* not owned */
  unsigned nr;
  struct run_cursor runs[INDEX_RUNS];
  /* Those that have not ended: a binary heap, the lowest entry first. */
  unsigned nr_left;
  struct run_cursor *heap[INDEX_RUNS];
};

/* Take the run's next entry, from its next row if need be. */
static int
advance (struct index_cursor *cu, struct run_cursor *rc)
{
  int r = 1;

  while (rc->off == rc->row.len) {
    rc->off = 0;
    r = low_of (key_of (0, UINT64_MAX)) == rc->low
      ? 0
      : meta_index_from (cu->c, rc->run, rc->low + INDEX_KEY_STEP, &rc->low,
                         &rc->row);
    if (r != 1)
      break;
  }
  rc->ended = r != 1;
  if (rc->ended)
    return r;
  index_entry_unpack (rc->row.p + rc->off, &rc->e);
  rc->off += INDEX_ENTRY_LEN;
  return 1;
}

/* The run's first entry from 'prefix' on. */
static int
begin (struct index_cursor *cu, struct run_cursor *rc, uint64_t prefix)
{
  int r = meta_index_get (cu->c, rc->run, prefix, &rc->low, &rc->row);

  if (r == 0)
    r = meta_index_from (cu->c, rc->run, prefix, &rc->low, &rc->row);
  rc->ended = r != 1;
  if (r != 1)
    return r;
  do
    r = advance (cu, rc);
  while (r == 1 && rc->e.prefix < prefix);
  return r;
}

static bool
is_before (const struct run_cursor *x, const struct run_cursor *y)
{
  return index_entry_compare (&x->e, &y->e) < 0;
}

/* heap[i] may be higher than what is below it. */
static void
sift_down (struct index_cursor *cu, unsigned i)
{
  struct run_cursor *const rc = cu->heap[i];
  unsigned child;

  for (; (child = 2 * i + 1) < cu->nr_left; i = child) {
    if (child + 1 < cu->nr_left &&
        is_before (cu->heap[child + 1], cu->heap[child]))
      child++;
    if (!is_before (cu->heap[child], rc))
      break;
    cu->heap[i] = cu->heap[child];
  }
  cu->heap[i] = rc;
}

static void
make_heap (struct index_cursor *cu)
{
  unsigned i;

  for (i = 0; i < cu->nr; ++i)
    if (!cu->runs[i].ended)
      cu->heap[cu->nr_left++] = &cu->runs[i];
  for (i = cu->nr_left / 2; i-- > 0;)
    sift_down (cu, i);
}

struct index_cursor *
meta_index_cursor (struct meta_conn *c, const struct index_runs *runs,
                   uint64_t prefix)
{
  struct index_cursor *cu = calloc (1, sizeof *cu);
  unsigned run;

  if (cu == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory to read the hash index");
  cu->c = c;
  for (run = 0; run < INDEX_RUNS; ++run) {
    if (!index_runs_has (runs, run))
      continue;
    cu->runs[cu->nr].run = run;
    if (begin (cu, &cu->runs[cu->nr++], prefix) == -1) {
      meta_index_cursor_free (cu);
      return NULL;
    }
  }
  make_heap (cu);
  return cu;
}

void
meta_index_cursor_free (struct index_cursor *cu)
{
  int err = errno;
  unsigned i;

  if (cu == NULL)
    return;
  for (i = 0; i < cu->nr; ++i)
    blob_free (&cu->runs[i].row);
  free (cu);
  errno = err;
}

/* Take the next entry of the run that has the lowest. */
static int
advance_lowest (struct index_cursor *cu)
{
  struct run_cursor *rc = cu->heap[0];

  if (advance (cu, rc) == -1)
    return -1;
  if (rc->ended)
    cu->heap[0] = cu->heap[--cu->nr_left];
  if (cu->nr_left > 0)
    sift_down (cu, 0);
  return 0;
}

int
meta_index_cursor_next (struct index_cursor *cu, struct index_entry *e,
                        int *sum)
{
  if (cu->nr_left == 0)
    return 0;
  *e = cu->heap[0]->e;
  *sum = 0;
  do {
    *sum += cu->heap[0]->e.removed ? -1 : 1;
    if (advance_lowest (cu) == -1)
      return -1;
  } while (cu->nr_left > 0 && index_entry_compare (&cu->heap[0]->e, e) == 0);
  e->removed = *sum < 0;
  return 1;
}

int
meta_index_cursor_at (const struct index_cursor *cu, uint64_t *prefix)
{
  if (cu->nr_left == 0)
    return 0;
  *prefix = cu->heap[0]->e.prefix;
  return 1;
}

size_t
meta_index_cursor_rest (const struct index_cursor *cu, unsigned run,
                        uint64_t *low, const uint8_t **entries)
{
  const struct run_cursor *rc = cu->runs;

  while (rc->run != run)
    rc++;
  assert (rc < cu->runs + cu->nr);
  if (rc->ended)
    return 0;
  *low = rc->low;
  *entries = rc->row.p + rc->off - INDEX_ENTRY_LEN;
  return rc->row.len - rc->off + INDEX_ENTRY_LEN;
}

static int
count_row (void *opaque, unsigned run, uint64_t low, const uint8_t *buf,
           size_t len)
{
  uint64_t *sum = opaque;
  struct index_entry e;
  size_t off;

  (void) run;
  (void) low;
  for (off = 0; off + INDEX_ENTRY_LEN <= len; off += INDEX_ENTRY_LEN) {
    index_entry_unpack (buf + off, &e);
    *sum += e.removed ? UINT64_MAX : 1;
  }
  return 0;
}

int
meta_index_count (struct meta_conn *c, uint64_t *sum)
{
  *sum = 0;
  return meta_index_scan (c, count_row, sum);
}

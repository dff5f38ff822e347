/* SPDX-License-Identifier: BSD-3-Clause */

/* Damage to one of the files of pool.db and its second copy, or to two.
 *
 * The test copies samples of a pool, one closed and one killed with work in its
 * WAL, and damages one file of the copy, or two: a page, a frame, the whole
 * file, or it puts an older file there.  After damage to one file the pool has
 * all flushed data, accepts writes, and both copies become equal again.  After
 * damage to two files reads are right or fail, or the pool is refused.
 *
 * SWEEP_STEP=N in the environment: only each Nth damage.
 */

#include <config.h>

#include <errno.h>
#include <sqlite3.h>

#include "rigs/failing-reads.h"
#include "rigs/metadata-rig.h"

static unsigned nr_opened[2], nr_refused[2]; /* [readonly] */
static uint64_t step;

static bool
is_left_out (void)
{
  static uint64_t nr;

  return nr++ % step != 0;
}

/* The pool must be refused, or reads must be right or fail with EIO. */
static void
expect_no_lie (const char *dir, bool killed, bool readonly)
{
  struct nbdedup_volume *v;
  unsigned i;

  if ((readonly ? try_open_readonly (dir) : try_open (dir)) == -1) {
    nr_refused[readonly]++;
    return;
  }
  nr_opened[readonly]++;
  v = nbdedup_volume_open (pool, "v", 0, -1, NULL);
  for (i = 0; v != NULL && i < NR_BLOCKS; ++i)
    get (v, i, content_of (i, killed));
  nbdedup_volume_close (v);
  expect (find_late () == 0 || errno == EIO);
  nbdedup_pool_close (pool);
}

static void
each_page (const char *file, bool killed)
{
  const char *sample = killed ? "killed" : "closed";
  uint64_t i, n = size_of (sample, file) / PAGE;

  expect (n > 15);
  for (i = 0; i < n; ++i) {
    if (is_left_out ())
      continue;
    begin_case (sample, "%s, page %" PRIu64 " of %s", sample, i + 1, file);
    flip ("work", file, i * PAGE + 4000);
    expect_readable ("work", killed);
    expect_whole ("work", killed, true);
  }
}

/* The fields that identify our database: the magic string, the room for
 * checksums, the version, the application ID.
 */
static void
test_header (void)
{
  static const unsigned offsets[] = { 3, 20, 63, 70 };
  const char *sample;
  unsigned i, j;

  for (i = 0; i < 4 * sizeof offsets / sizeof offsets[0]; ++i) {
    j = i / 4;
    sample = i & 1 ? "killed" : "closed";
    begin_case (sample, "%s, byte %u of %s", sample, offsets[j],
                metadata_files[i & 2]);
    flip ("work", metadata_files[i & 2], offsets[j]);
    expect_readable ("work", i & 1);
    expect_whole ("work", i & 1, true);
  }
}

static void
test_pages (void)
{
  each_page ("pool.db", false);
  each_page ("pool.db.copy", false);
  each_page ("pool.db", true);
}

static void
test_frames (void)
{
  unsigned f;
  uint64_t at;

  for (f = 1; f < 4; f += 2) {
    expect (size_of ("killed", metadata_files[f]) > 10 * FRAME);
    for (at = 5; at < size_of ("killed", metadata_files[f]); at = at == 5
           ? WAL_HEADER + 4
           : at + (at % FRAME < 100 ? 2000 : FRAME - 2000)) {
      if (is_left_out ())
        continue;
      begin_case ("killed", "byte %" PRIu64 " of %s", at, metadata_files[f]);
      flip ("work", metadata_files[f], at);
      expect_readable ("work", true);
      expect_whole ("work", true, true);
    }
  }
}

/* Both WALs are damaged, but not in the same frame. */
static void
test_both_wals (void)
{
  uint64_t i, n = size_of ("killed", "pool.db-wal") / FRAME;

  for (i = 0; i + 1 < n; ++i) {
    if (is_left_out ())
      continue;
    begin_case ("killed", "frames %" PRIu64 " and %" PRIu64, i, n - 1 - i);
    flip ("work", "pool.db-wal", WAL_HEADER + i * FRAME + 5000);
    if (i != n - 1 - i)
      flip ("work", "pool.db.copy-wal", WAL_HEADER + (n - 1 - i) * FRAME + 9);
    expect_readable ("work", true);
    expect_whole ("work", true, true);
  }
}

static void
one_file (bool killed)
{
  const char *sample = killed ? "killed" : "closed";
  unsigned f, d;

  for (f = 0; f < 4; ++f)
    for (d = 0; d < NR_DAMAGES; ++d) {
      if (!can_spoil (sample, metadata_files[f], (enum damage) d, killed) ||
          is_left_out ())
        continue;
      begin_case (sample, "%s: %s is %s", sample, metadata_files[f],
                  damages[d]);
      spoil ("work", metadata_files[f], (enum damage) d);
      expect_readable ("work", killed);
      /* A directory in the copy's place stays: its owner has to remove it. */
      expect_whole ("work", killed, d != DIRECTORY || f < 2);
    }
}

static void
test_closed (void)
{
  one_file (false);
}

static void
test_killed (void)
{
  one_file (true);
}

/* The damages for pairs.  The others are like one of these. */
static bool
is_half_of_two (const char *file, enum damage damage)
{
  return damage != SHORT && damage != ZEROES && damage != DIRECTORY &&
    can_spoil ("killed", file, damage, true);
}

static void
test_two_files (void)
{
  unsigned f, g, d, e;

  for (f = 0; f < 4; ++f)
    for (g = f + 1; g < 4; ++g)
      for (d = 0; d < NR_DAMAGES; ++d)
        for (e = 0; e < NR_DAMAGES; ++e) {
          if (!is_half_of_two (metadata_files[f], (enum damage) d) ||
              !is_half_of_two (metadata_files[g], (enum damage) e) ||
              is_left_out ())
            continue;
          begin_case ("killed", "%s is %s, %s is %s", metadata_files[f],
                      damages[d], metadata_files[g], damages[e]);
          spoil ("work", metadata_files[f], (enum damage) d);
          spoil ("work", metadata_files[g], (enum damage) e);
          expect_no_lie ("work", true, true);
          expect_no_lie ("work", true, false);
        }
  printf ("two files: %u opened, %u refused; read-only %u, %u\n", nr_opened[0],
          nr_refused[0], nr_opened[1], nr_refused[1]);
}

/* True if the pool works although this page is damaged in both copies. */
static bool
can_do_without (const char *dir, uint64_t page)
{
  static const char sql[] =
    "SELECT 1 FROM dbstat WHERE pageno = ? AND "
    "(name IN ('property', 'limbo', 'copy', 'ddt', 'drift', 'drift_golden', "
    "'segment') OR "
    "name LIKE 'sqlite_autoindex%')";
  static char uri[4 * PATH_MAX];
  sqlite3_stmt *st;
  sqlite3 *db;
  bool r;

  snprintf (uri, sizeof uri, "file:%s?immutable=1", in (dir, "pool.db"));
  if (sqlite3_open_v2 (uri, &db, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI,
                       NULL) != SQLITE_OK ||
      sqlite3_prepare_v2 (db, sql, -1, &st, NULL) != SQLITE_OK) {
    fprintf (stderr, "SQLite has no dbstat: %s\n", sqlite3_errmsg (db));
    sqlite3_close (db);
    return false;
  }
  sqlite3_bind_int64 (st, 1, (sqlite3_int64) page);
  r = sqlite3_step (st) == SQLITE_ROW;
  sqlite3_finalize (st);
  sqlite3_close (db);
  return r;
}

/* The pool opens without tables that can be rebuilt or are not needed.
 * recover makes them again.
 */
static void
test_without (void)
{
  uint64_t i, n = size_of ("closed", "pool.db") / PAGE;
  unsigned nr = 0;
  json_t *result;

  for (i = 0; i < n; ++i) {
    if (!can_do_without ("closed", i + 1) || is_left_out ())
      continue;
    nr++;
    begin_case ("closed", "page %" PRIu64 " of both, done without", i + 1);
    flip ("work", "pool.db", i * PAGE + 8100);
    flip ("work", "pool.db.copy", i * PAGE + 8100);
    if (try_open ("work") == -1)
      die ("%s: %s", doing, nbdedup_error ());
    must (nbdedup_pool_close (pool));
    result = nbdedup_pool_recover (in ("work", "."), false);
    expect (result && json_is_true (json_object_get (result, "recovered")));
    json_decref (result);
    expect_whole ("work", false, true);

    /* And without any copy. */
    copy_pool ("closed", "work");
    must (try_open ("work"));
    set_copy ("off");
    must (nbdedup_pool_close (pool));
    flip ("work", "pool.db", i * PAGE + 8100);
    result = nbdedup_pool_recover (in ("work", "."), false);
    expect (result && json_is_true (json_object_get (result, "recovered")));
    json_decref (result);
    expect_whole ("work", false, false);
  }
  printf ("%u pages are done without\n", nr);
}

static unsigned nr_made_again;

static void
count_made_again (enum nbdedup_log_level level, const char *line)
{
  (void) level;
  nr_made_again += strstr (line, "made it again") != NULL;
}

/* Repair, and have the nth read fail, and the 'nr' - 1 after it.  False: there
 * are fewer.  'page' is damaged; UINT64_MAX: none is, and each table stays.
 */
static bool
recover_with_failing_reads (uint64_t page, unsigned nth, unsigned nr, int error)
{
  json_t *result;
  bool failed;

  begin_case ("single", "read %u fails: %s", nth, strerror (error));
  if (page != UINT64_MAX)
    flip ("work", "pool.db", page * PAGE + 8100);
  nr_made_again = 0;
  fail_reads ("pool.db", nth - 1, nr, error);
  json_decref (nbdedup_pool_recover (in ("work", "."), false));
  failed = reads_have_failed ();
  fail_reads (NULL, 0, 0, 0);
  expect (page != UINT64_MAX || nr_made_again == 0);
  result = nbdedup_pool_recover (in ("work", "."), false);
  if (result == NULL)
    die ("%s: %s", doing, nbdedup_error ());
  json_decref (result);
  expect_whole ("work", false, false);
  return failed;
}

/* No other page suffers when a read fails while a table is made again. */
static void
test_failing_reads (void)
{
  uint64_t page = 0, n = size_of ("closed", "pool.db") / PAGE;
  unsigned nth, i;

  while (page < n && !can_do_without ("closed", page + 1))
    page++;
  if (page == n)
    return; /* SQLite has no dbstat */
  begin_case ("closed", "without a copy");
  must (try_open ("work"));
  set_copy ("off");
  must (nbdedup_pool_close (pool));
  copy_pool ("work", "single");
  nbdedup_set_log (count_made_again);
  /* The VFS repeats a read that fails, except while it blanks pages. */
  for (i = 0; i < 4; ++i) {
    nth = 1;
    while (recover_with_failing_reads (i < 2 ? page : UINT64_MAX, nth,
                                       i < 2 ? 1 : 2, i & 1 ? EIO : ENOMEM))
      nth += 5 * (unsigned) step;
    expect (nth > 20);
  }
  nbdedup_set_log (NULL);
}

/* The same page in both is damaged: reads fail, and never return its bytes. */
static void
test_both_pages (void)
{
  uint64_t i, n = size_of ("closed", "pool.db") / PAGE;
  json_t *result;
  bool noticed;

  for (i = 0; i < n; ++i) {
    snprintf (doing, sizeof doing, "page %" PRIu64 " of both", i + 1);
    if (can_do_without ("closed", i + 1) || is_left_out ())
      continue;
    copy_pool ("closed", "work");
    flip ("work", "pool.db", i * PAGE + 8100);
    flip ("work", "pool.db.copy", i * PAGE + 8100);
    expect_no_lie ("work", false, true);
    expect_no_lie ("work", false, false);
    if (try_open ("work") == -1)
      continue;
    result = nbdedup_call (pool, "check", NULL);
    noticed = result == NULL ||
      json_integer_value (json_object_get (result, "errors")) > 0;
    json_decref (result);
    nbdedup_pool_close (pool);
    expect (noticed);
  }
}

int
main (void)
{
  step = sweep_step ();
  start_samples ();
  test_both_pages ();
  test_failing_reads ();
  test_without ();
  test_closed ();
  test_killed ();
  test_header ();
  test_pages ();
  test_frames ();
  test_both_wals ();
  test_two_files ();
  end_samples ();
  return 0;
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* The second copy of pool.db.
 *
 * Samples of a pool, one closed and one killed with work in its WAL, are
 * copied, and one file of the copy, or two, is damaged: a page, a frame, all
 * of it, or it is of another moment.  After damage to one file everything that
 * was flushed is there, it can be written, and both copies are equal again;
 * after damage to two, what is read is right or the pool is refused.
 */

#include <config.h>
#undef NDEBUG

#include <dirent.h>
#include <sqlite3.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "cleanup.h"
#include "fullio.h"
#include "meta.h"
#include "pool-util.h"
#include "pool.h"

#define BLOCK 4096u
#define NR_BLOCKS 1024u
#define PAGE 8192u
#define FRAME (PAGE + 24)
#define WAL_HEADER 32
#define KILLED 9

#define expect(condition)                                       \
  do {                                                          \
    if (!(condition))                                           \
      die ("%s line %d (%s): not true: %s", __func__, __LINE__, \
           doing, #condition);                                  \
  } while (0)

struct nbdedup_pool *pool;
static char top[PATH_MAX];
static char doing[200];         /* for messages */
static unsigned nr_opened, nr_refused;

/*----------------------------------------------------------------------
 * Files
 */

static const char *
in (const char *dir, const char *file)
{
  static char path[4][3 * PATH_MAX];
  static unsigned i;

  i = (i + 1) % 4;
  snprintf (path[i], sizeof path[i], "%s/%s/%s", top, dir, file);
  return path[i];
}

static void
copy_file (const char *from, const char *to)
{
  static uint8_t buf[1 << 20];
  int in_fd = open (from, O_RDONLY), out;
  uint64_t offset = 0;
  int64_t n;

  if (in_fd == -1) {
    if (unlink (to) == -1 && errno != ENOENT)
      die ("%s: %s", to, strerror (errno));
    return;
  }
  out = open (to, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (out == -1)
    die ("%s: %s", to, strerror (errno));
  while ((n = full_pread (in_fd, buf, sizeof buf, offset)) > 0) {
    /* Most of "records" is holes. */
    if (!all_zero (buf, (size_t) n) &&
        full_pwrite (out, buf, (size_t) n, offset) == -1)
      die ("%s: %s", to, strerror (errno));
    offset += (uint64_t) n;
  }
  if (ftruncate (out, (off_t) offset) == -1)
    die ("%s: %s", to, strerror (errno));
  close (in_fd);
  close (out);
}

static void
copy_pool (const char *from, const char *to)
{
  static char path[2][3 * PATH_MAX];
  struct dirent *e;
  DIR *dir;

  snprintf (path[0], sizeof path[0], "%s/%s", top, from);
  snprintf (path[1], sizeof path[1], "%s/%s", top, to);
  if (access (path[1], F_OK) == 0)
    remove_directory (path[1]);
  if (mkdir (path[1], 0700) == -1 || (dir = opendir (path[0])) == NULL)
    die ("%s: %s", to, strerror (errno));
  while ((e = readdir (dir)) != NULL)
    if (e->d_name[0] != '.' && strcmp (e->d_name, "lock") != 0)
      copy_file (in (from, e->d_name), in (to, e->d_name));
  closedir (dir);
}

static uint32_t
get_be (const uint8_t *p)
{
  return (uint32_t) p[0] << 24 | p[1] << 16 | p[2] << 8 | p[3];
}

/* Bytes of the file that mean something: pool.db and its WAL have room behind
 * them.
 */
static uint64_t
size_of (const char *dir, const char *file)
{
  CLEANUP_CLOSE int fd = open (in (dir, file), O_RDONLY);
  uint8_t header[32], frame[16];
  uint64_t size, pages;
  struct stat st;

  if (fd == -1 || fstat (fd, &st) == -1 || !S_ISREG (st.st_mode))
    return stat (in (dir, file), &st) == 0 ? (uint64_t) st.st_size : 0;
  size = (uint64_t) st.st_size;
  if (full_pread (fd, header, sizeof header, 0) != sizeof header)
    return size;
  if (strcmp (file, "pool.db") == 0) {
    pages = get_be (header + 28);
    return pages * PAGE < size ? pages * PAGE : size;
  }
  if (strstr (file, "-wal") == NULL)
    return size;
  if (get_be (header) == 0)
    return 0;
  for (pages = sizeof header;
       full_pread (fd, frame, sizeof frame, pages) == sizeof frame &&
         memcmp (frame + 8, header + 16, 8) == 0; )
    pages += FRAME;
  return pages;
}

static void
flip (const char *dir, const char *file, uint64_t offset)
{
  int fd = open (in (dir, file), O_RDWR);
  uint8_t byte;

  if (fd == -1 || full_pread (fd, &byte, 1, offset) != 1)
    die ("%s: %s", file, strerror (errno));
  byte ^= 0x10;
  if (full_pwrite (fd, &byte, 1, offset) == -1)
    die ("%s: %s", file, strerror (errno));
  close (fd);
}

/* pool.db has room behind its pages, the copy has not. */
static bool
are_equal (const char *dir, const char *a, const char *b)
{
  static uint8_t buf[2][1 << 20];
  int fd_a = open (in (dir, a), O_RDONLY), fd_b = open (in (dir, b), O_RDONLY);
  int64_t n = -1, m = -2;
  bool same;

  if (fd_a != -1 && fd_b != -1) {
    n = full_pread (fd_a, buf[0], sizeof buf[0], 0);
    m = full_pread (fd_b, buf[1], sizeof buf[1], 0);
    expect (n < (int64_t) sizeof buf[0]);
  }
  if ((uint64_t) n > size_of (dir, a))
    n = (int64_t) size_of (dir, a);
  same = n == m && memcmp (buf[0], buf[1], (size_t) n) == 0;
  if (fd_a != -1)
    close (fd_a);
  if (fd_b != -1)
    close (fd_b);
  return same;
}

/*----------------------------------------------------------------------
 * The disk of the copy
 */

static atomic_uint copy_syncs, copy_wal_syncs;
static atomic_bool copy_fails;

/* Is it the copy's?  Counts. */
static bool
is_copy (int fd)
{
  char link[32], path[PATH_MAX];
  ssize_t n;

  snprintf (link, sizeof link, "/proc/self/fd/%d", fd);
  n = readlink (link, path, sizeof path - 1);
  if (n < 9)
    return false;
  path[n] = '\0';
  if (strcmp (path + n - 5, ".copy") == 0)
    copy_syncs++;
  else if (strcmp (path + n - 9, ".copy-wal") == 0)
    copy_wal_syncs++;
  else
    return false;
  return true;
}

int
fdatasync (int fd)
{
  static int (*real) (int);

  if (real == NULL)
    real = (int (*) (int)) dlsym (RTLD_NEXT, "fdatasync");
  if (is_copy (fd) && copy_fails) {
    errno = EIO;
    return -1;
  }
  return real (fd);
}

/* A disk that fails keeps what it has. */
int
unlink (const char *path)
{
  static int (*real) (const char *);

  if (real == NULL)
    real = (int (*) (const char *)) dlsym (RTLD_NEXT, "unlink");
  if (copy_fails && strstr (path, "pool.db.copy")) {
    errno = EIO;
    return -1;
  }
  return real (path);
}

/*----------------------------------------------------------------------
 * Samples
 */

static int
try_open (const char *dir)
{
  struct nbdedup_settings settings;

  nbdedup_settings_init (&settings);
  settings.nr_workers = 1;
  settings.commit_interval_ms = 1000000;        /* nothing by itself */
  settings.primarycache = NBDEDUP_CACHE_NONE;   /* read from the files */
  settings.record_cache_bytes = 0;
  pool = nbdedup_pool_open (in (dir, "."), &settings, "test", 0);
  return pool ? 0 : -1;
}

static void
fold (void)
{
  must (wb_drain (pool->writeback, NULL));
  must (txg_run (pool->txg, NULL, NULL, NULL));
}

static void
put (struct nbdedup_volume *v, unsigned block, uint64_t content)
{
  uint8_t buf[BLOCK];

  fill_random (buf, BLOCK, content);
  must (nbdedup_volume_write (v, buf, BLOCK, (uint64_t) block * BLOCK));
}

/* 1: right, 0: EIO; anything else ends the test. */
static int
get (struct nbdedup_volume *v, unsigned block, uint64_t content)
{
  uint8_t buf[BLOCK], wanted[BLOCK];

  fill_random (wanted, BLOCK, content);
  if (nbdedup_volume_read (v, buf, BLOCK, (uint64_t) block * BLOCK) == -1)
    return 0;
  if (memcmp (buf, wanted, BLOCK) != 0)
    die ("%s: block %u is not what was written", doing, block);
  return 1;
}

/* What block i of v has: a killed pool's newest writes are in its WAL. */
static bool
is_rewritten (unsigned block)
{
  return block % 5 == 0;
}

static uint64_t
content_of (unsigned block, bool killed)
{
  return killed && is_rewritten (block) ? 100000 + block : 1 + block % 600;
}

static void
write_some (bool killed, unsigned first, unsigned step)
{
  struct nbdedup_volume *v = open_volume ("v");
  unsigned i;

  for (i = first; i < NR_BLOCKS; i += step)
    put (v, i, content_of (i, killed));
  must (nbdedup_volume_flush (v));
  nbdedup_volume_close (v);
  fold ();
}

static void
make_sample (const char *dir)
{
  must (nbdedup_pool_create (in (dir, "."), NULL));
  must (try_open (dir));
  run ("create", json_pack ("{s:s,s:I,s:i}", "name", "v", "size",
                            (json_int_t) NR_BLOCKS * BLOCK, "block-size",
                            BLOCK));
  run ("create", json_pack ("{s:s,s:i,s:s}", "name", "d", "size", 1 << 20,
                            "domain", "other"));
  write_some (false, 0, 1);
  run ("snapshot", json_pack ("{s:s}", "name", "v@s"));
  run ("clone", json_pack ("{s:s,s:s}", "snapshot", "v@s", "name", "w"));
  run ("set", json_pack ("{s:s,s:s}", "property", "compress", "value",
                         "none"));
  run ("drift", json_pack ("{s:b}", "record", 1));
  must (nbdedup_pool_close (pool));
}

static void
set_copy (const char *value)
{
  run ("set", json_pack ("{s:s,s:s}", "property", "metadata-copy", "value",
                         value));
}

/* In a process of its own, which ends as if it had been killed.  In the middle
 * of it the files are copied to 'earlier', then there is a checkpoint.
 */
static void
make_killed (const char *dir, const char *earlier)
{
  unsigned i;
  pid_t pid = fork ();
  int status;

  if (pid == 0) {
    must (try_open (dir));
    for (i = 0; i < 8; ++i) {
      write_some (true, i * 5, 40);
      if (i == 1)
        copy_pool (dir, earlier);
      if (i == 3)
        must (meta_checkpoint (pool->meta));
    }
    _exit (KILLED);
  }
  if (pid == -1 || waitpid (pid, &status, 0) != pid || !WIFEXITED (status) ||
      WEXITSTATUS (status) != KILLED)
    die ("the process that is killed: status %d", status);
}

/* All that was flushed is there, and it can be written. */
static void
expect_whole (const char *dir, bool killed, bool copy_too)
{
  struct meta_copy_status status;
  struct nbdedup_volume *v;
  unsigned i;

  if (try_open (dir) == -1)
    die ("%s: %s", doing, nbdedup_error ());
  v = open_volume ("v");
  for (i = 0; i < NR_BLOCKS; ++i)
    expect (get (v, i, content_of (i, killed)) == 1);
  put (v, 7, 77777);
  must (nbdedup_volume_flush (v));
  fold ();
  expect (get (v, 7, 77777) == 1);
  nbdedup_volume_close (v);
  check_pool ();
  run ("scrub", NULL);
  meta_copy_get_status (pool->meta, &status);
  must (nbdedup_pool_close (pool));
  if (copy_too) {
    expect (status.state == META_COPY_CURRENT);
    expect (are_equal (dir, "pool.db", "pool.db.copy"));
  }
}

/* Right, EIO, or refused. */
static void
expect_no_lie (const char *dir, bool killed)
{
  struct nbdedup_volume *v;
  unsigned i;

  if (try_open (dir) == -1) {
    nr_refused++;
    return;
  }
  nr_opened++;
  v = nbdedup_volume_open (pool, "v", 0, -1, NULL);
  for (i = 0; v != NULL && i < NR_BLOCKS; ++i)
    get (v, i, content_of (i, killed));
  nbdedup_volume_close (v);
  nbdedup_pool_close (pool);
}

/*----------------------------------------------------------------------
 * Damage
 */

static const char *const files[] = {
  "pool.db", "pool.db-wal", "pool.db.copy", "pool.db.copy-wal",
};

enum damage {
  MISSING, EMPTY, SHORT, HALF, ZEROES, NOISE, DIRECTORY, OLD_SESSION,
  EARLIER, NR_DAMAGES
};
static const char *const damages[] = {
  "missing", "empty", "a page short", "cut in half", "zeroes", "noise",
  "a directory", "of the session before", "of a moment before",
};

static void
overwrite (const char *dir, const char *file, bool noise)
{
  uint64_t size = size_of (dir, file);
  uint8_t *buf = xcalloc (1, size + 1);
  int fd = open (in (dir, file), O_WRONLY);

  if (noise)
    fill_random (buf, size, 4711);
  if (fd == -1 || full_pwrite (fd, buf, size, 0) == -1)
    die ("%s: %s", file, strerror (errno));
  close (fd);
  free (buf);
}

static void
spoil (const char *dir, const char *file, enum damage damage)
{
  uint64_t size = size_of (dir, file);

  switch (damage) {
  case MISSING:
    copy_file (in (dir, "no such file"), in (dir, file));
    break;
  case EMPTY:
    expect (truncate (in (dir, file), 0) == 0);
    break;
  case SHORT:
    expect (truncate (in (dir, file), (off_t) (size - PAGE)) == 0);
    break;
  case HALF:
    expect (truncate (in (dir, file), (off_t) (size / 2)) == 0);
    break;
  case ZEROES:
  case NOISE:
    overwrite (dir, file, damage == NOISE);
    break;
  case DIRECTORY:
    copy_file (in (dir, "no such file"), in (dir, file));
    expect (mkdir (in (dir, file), 0700) == 0);
    break;
  case OLD_SESSION:
    copy_file (in ("closed", file), in (dir, file));
    break;
  case EARLIER:
    copy_file (in ("earlier", file), in (dir, file));
    break;
  default:
    abort ();
  }
}

/* A closed pool has no WAL, and its older moments are another test's. */
static bool
can_spoil (const char *dir, const char *file, enum damage damage, bool killed)
{
  /* SQLite opens the WAL itself: a directory is one for the administrator. */
  if (damage == DIRECTORY && strcmp (file, "pool.db-wal") == 0)
    return false;
  return size_of (dir, file) > 2 * PAGE && (killed || damage < OLD_SESSION);
}

/*----------------------------------------------------------------------
 * Cases
 */

static void
each_page (const char *file, bool killed)
{
  const char *sample = killed ? "killed" : "closed";
  uint64_t i, n = size_of (sample, file) / PAGE;

  expect (n > 15);
  for (i = 0; i < n; ++i) {
    snprintf (doing, sizeof doing, "%s, page %" PRIu64 " of %s", sample, i + 1,
              file);
    copy_pool (sample, "work");
    flip ("work", file, i * PAGE + 4000);
    expect_whole ("work", killed, true);
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
    expect (size_of ("killed", files[f]) > 20 * FRAME);
    for (at = 5; at < size_of ("killed", files[f]);
         at = at == 5 ? WAL_HEADER + 4 : at + (at % FRAME < 100 ? 2000
                                               : FRAME - 2000)) {
      snprintf (doing, sizeof doing, "byte %" PRIu64 " of %s", at, files[f]);
      copy_pool ("killed", "work");
      flip ("work", files[f], at);
      expect_whole ("work", true, true);
    }
  }
}

static void
one_file (bool killed)
{
  const char *sample = killed ? "killed" : "closed";
  unsigned f, d;

  for (f = 0; f < 4; ++f)
    for (d = 0; d < NR_DAMAGES; ++d) {
      if (!can_spoil (sample, files[f], (enum damage) d, killed))
        continue;
      snprintf (doing, sizeof doing, "%s: %s is %s", sample, files[f],
                damages[d]);
      copy_pool (sample, "work");
      spoil ("work", files[f], (enum damage) d);
      /* A directory in the copy's place is left for its owner to remove. */
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

static void
test_two_files (void)
{
  unsigned f, g, d, e;

  for (f = 0; f < 4; ++f)
    for (g = f + 1; g < 4; ++g)
      for (d = 0; d < NR_DAMAGES; ++d)
        for (e = 0; e < NR_DAMAGES; ++e) {
          if (d == SHORT || d == ZEROES || d == DIRECTORY || e == SHORT ||
              e == ZEROES || e == DIRECTORY ||
              !can_spoil ("killed", files[f], (enum damage) d, true) ||
              !can_spoil ("killed", files[g], (enum damage) e, true))
            continue;
          snprintf (doing, sizeof doing, "%s is %s, %s is %s", files[f],
                    damages[d], files[g], damages[e]);
          copy_pool ("killed", "work");
          spoil ("work", files[f], (enum damage) d);
          spoil ("work", files[g], (enum damage) e);
          expect_no_lie ("work", true);
        }
  printf ("two files: %u opened, %u refused\n", nr_opened, nr_refused);
}

/* The mark says "current", but the copy is of an older session. */
static void
test_stale_copy (void)
{
  snprintf (doing, sizeof doing, "stale copy");
  copy_pool ("closed", "work");
  must (try_open ("work"));
  write_some (true, 0, 5);
  must (nbdedup_pool_close (pool));
  copy_pool ("work", "newer");
  copy_file (in ("closed", "pool.db.copy"), in ("work", "pool.db.copy"));
  expect_whole ("work", true, true);

  /* An error is better than the past. */
  copy_pool ("newer", "work");
  copy_file (in ("closed", "pool.db.copy"), in ("work", "pool.db.copy"));
  spoil ("work", "pool.db", MISSING);
  expect (try_open ("work") == -1);
}

/* A copy that missed a commit is never used again, though it looks well and
 * was not removed.
 */
static void
test_lost (void)
{
  struct meta_copy_status status;
  pid_t pid = fork ();
  int wait_status;

  snprintf (doing, sizeof doing, "lost copy");
  if (pid == 0) {
    copy_pool ("closed", "work");
    must (try_open ("work"));
    write_some (true, 0, 20);
    copy_fails = true;
    run ("create", json_pack ("{s:s,s:i}", "name", "new", "size", 1 << 20));
    meta_copy_get_status (pool->meta, &status);
    expect (status.state == META_COPY_LOST && status.why[0] != '\0');
    _exit (KILLED);
  }
  expect (waitpid (pid, &wait_status, 0) == pid &&
          WEXITSTATUS (wait_status) == KILLED);
  copy_pool ("work", "lost");
  expect (size_of ("lost", "pool.db.copy") > 0);
  spoil ("work", "pool.db", MISSING);
  spoil ("work", "pool.db-wal", MISSING);
  expect (try_open ("work") == -1);
  copy_file (in ("closed", "pool.db"), in ("work", "pool.db"));
  expect (try_open ("work") == -1);

  copy_pool ("lost", "work");
  must (try_open ("work"));
  nbdedup_volume_close (open_volume ("new"));
  meta_copy_get_status (pool->meta, &status);
  expect (status.state == META_COPY_CURRENT);
  must (nbdedup_pool_close (pool));
  expect (are_equal ("work", "pool.db", "pool.db.copy"));
}

/* What is durable in one is durable in the other. */
static void
test_syncs (void)
{
  unsigned syncs, wal_syncs;

  snprintf (doing, sizeof doing, "syncs");
  copy_pool ("closed", "work");
  must (try_open ("work"));
  write_some (true, 0, 20);
  syncs = copy_syncs;
  wal_syncs = copy_wal_syncs;
  write_some (true, 5, 20);
  expect (copy_wal_syncs > wal_syncs && copy_syncs == syncs);
  must (meta_checkpoint (pool->meta));
  expect (copy_syncs > syncs);
  must (nbdedup_pool_close (pool));
}

/* What damage to this page in both copies does not take away. */
static bool
can_do_without (const char *dir, uint64_t page)
{
  static const char sql[] =
    "SELECT 1 FROM dbstat WHERE pageno = ? AND "
    "(name IN ('property', 'limbo', 'ddt', 'drift', 'drift_golden') OR "
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

/* Tables that can be derived, or done without, keep no pool closed; recover
 * makes them again.
 */
static void
test_without (void)
{
  uint64_t i, n = size_of ("closed", "pool.db") / PAGE;
  unsigned nr = 0;
  json_t *result;

  for (i = 0; i < n; ++i) {
    if (!can_do_without ("closed", i + 1))
      continue;
    nr++;
    snprintf (doing, sizeof doing, "page %" PRIu64 " of both, done without",
              i + 1);
    copy_pool ("closed", "work");
    flip ("work", "pool.db", i * PAGE + 8100);
    flip ("work", "pool.db.copy", i * PAGE + 8100);
    if (try_open ("work") == -1)
      die ("%s: %s", doing, nbdedup_error ());
    must (nbdedup_pool_close (pool));
    result = nbdedup_pool_recover (in ("work", "."));
    expect (result && json_is_true (json_object_get (result, "recovered")));
    json_decref (result);
    expect_whole ("work", false, true);

    /* And without any copy. */
    copy_pool ("closed", "work");
    must (try_open ("work"));
    set_copy ("off");
    must (nbdedup_pool_close (pool));
    flip ("work", "pool.db", i * PAGE + 8100);
    result = nbdedup_pool_recover (in ("work", "."));
    expect (result && json_is_true (json_object_get (result, "recovered")));
    json_decref (result);
    expect_whole ("work", false, false);
  }
  printf ("%u pages are done without\n", nr);
}

/* The same page in both: an error, never what stands there. */
static void
test_both_pages (void)
{
  uint64_t i, n = size_of ("closed", "pool.db") / PAGE;
  json_t *result;
  bool noticed;

  for (i = 0; i < n; ++i) {
    snprintf (doing, sizeof doing, "page %" PRIu64 " of both", i + 1);
    if (can_do_without ("closed", i + 1))
      continue;
    copy_pool ("closed", "work");
    flip ("work", "pool.db", i * PAGE + 8100);
    flip ("work", "pool.db.copy", i * PAGE + 8100);
    expect_no_lie ("work", false);
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

/* Nothing says that it is current. */
static void
test_no_mark (void)
{
  snprintf (doing, sizeof doing, "no mark");
  copy_pool ("killed", "work");
  spoil ("work", "metadata-copy", MISSING);
  expect_whole ("work", true, true);
  copy_pool ("closed", "work");
  spoil ("work", "metadata-copy", MISSING);
  spoil ("work", "pool.db", MISSING);
  expect (try_open ("work") == -1);
  json_decref (nbdedup_pool_recover (in ("work", ".")));
  expect_whole ("work", false, true);
}

/* Pages go bad while the pool is in use. */
static void
test_in_use (void)
{
  uint64_t i, n = size_of ("closed", "pool.db") / PAGE;
  struct meta_copy_status status;
  struct nbdedup_volume *v;
  unsigned b;

  snprintf (doing, sizeof doing, "in use");
  copy_pool ("closed", "work");
  must (try_open ("work"));
  v = open_volume ("v");
  for (i = 0; i < n; ++i) {
    flip ("work", "pool.db", i * PAGE + 4000);
    for (b = 0; b < NR_BLOCKS; ++b)
      expect (get (v, b, content_of (b, false)) == 1);
    put (v, 3, content_of (3, false));
    must (nbdedup_volume_flush (v));
    fold ();
  }
  check_pool ();
  meta_copy_get_status (pool->meta, &status);
  expect (status.taken > 0 && status.repaired == status.taken);
  run ("scrub", NULL);

  /* And frames of its WAL, which nothing has copied yet. */
  for (b = 0; b < 50; ++b)
    put (v, b, content_of (b, true));
  must (nbdedup_volume_flush (v));
  fold ();
  n = size_of ("work", "pool.db-wal") / FRAME;
  expect (n > 3);
  for (i = 0; i < n; ++i)
    flip ("work", "pool.db-wal", WAL_HEADER + i * FRAME + 5000);
  for (b = 50; b < NR_BLOCKS; ++b)
    put (v, b, content_of (b, true));
  must (nbdedup_volume_flush (v));
  nbdedup_volume_close (v);
  fold ();
  check_pool ();
  must (nbdedup_pool_close (pool));
  expect_whole ("work", true, true);
}

/* What is there is somebody's. */
static void
refuse_copy (const char *value)
{
  json_t *args = json_pack ("{s:s,s:s}", "property", "metadata-copy", "value",
                            value);

  expect (nbdedup_call (pool, "set", args) == NULL);
  json_decref (args);
}

static void
test_property (void)
{
  struct meta_copy_status status;

  snprintf (doing, sizeof doing, "property");
  copy_pool ("closed", "work");
  must (try_open ("work"));
  refuse_copy (in ("work", "pool.db"));
  refuse_copy (in ("work", "records"));
  refuse_copy (in ("foreign", "pool.db"));
  refuse_copy (in ("nowhere", "copy"));
  refuse_copy (in ("work", "."));
  refuse_copy ("pool.db.copy2");
  set_copy ("off");
  expect (size_of ("work", "pool.db.copy") == 0 &&
          size_of ("work", "metadata-copy") == 0);
  write_some (true, 0, 20);
  set_copy (in ("closed", "elsewhere"));
  meta_copy_get_status (pool->meta, &status);
  expect (status.state == META_COPY_CURRENT);
  write_some (true, 5, 20);
  must (nbdedup_pool_close (pool));
  expect (size_of ("work", "pool.db.copy") == 0);

  spoil ("work", "pool.db", MISSING);
  must (try_open ("work"));
  write_some (true, 10, 20);
  write_some (true, 15, 20);
  set_copy ("on");
  expect (access (in ("closed", "elsewhere"), F_OK) == -1);
  must (nbdedup_pool_close (pool));
  expect_whole ("work", true, true);
}

/* A copy that is made while the WAL has commits has them, too. */
static void
test_made_late (void)
{
  pid_t pid = fork ();
  int status;

  snprintf (doing, sizeof doing, "made late");
  if (pid == 0) {
    copy_pool ("closed", "work");
    must (try_open ("work"));
    /* Not by commands: after those there is a checkpoint. */
    must (meta_copy_set (pool->meta, "off"));
    /* The second batch knows that the first is in pool.db. */
    write_some (true, 0, 10);
    write_some (true, 5, 10);
    must (meta_copy_set (pool->meta, "on"));
    _exit (KILLED);
  }
  expect (waitpid (pid, &status, 0) == pid && WEXITSTATUS (status) == KILLED);
  spoil ("work", "pool.db", MISSING);
  spoil ("work", "pool.db-wal", MISSING);
  expect_whole ("work", true, true);
}

/* Two pools must not share one copy, and what is another's is not touched. */
static void
test_foreign (void)
{
  struct meta_copy_status status;

  snprintf (doing, sizeof doing, "foreign");
  copy_pool ("closed", "work");
  copy_file (in ("foreign", "pool.db"), in ("work", "pool.db.copy"));
  must (try_open ("work"));
  meta_copy_get_status (pool->meta, &status);
  expect (status.state == META_COPY_LOST);
  must (nbdedup_pool_close (pool));
  copy_file (in ("foreign", "pool.db"), in ("work", "theirs"));
  expect (are_equal ("work", "pool.db.copy", "theirs"));

  copy_pool ("closed", "work");
  copy_file (in ("foreign", "pool.db"), in ("work", "pool.db"));
  expect (try_open ("work") == -1);
}

int
main (void)
{
  make_directory (top, fast_directory (), "metadata-copy");
  expect (mkdir (in (".", "closed"), 0700) == 0);
  make_sample ("closed");
  expect (mkdir (in (".", "foreign"), 0700) == 0);
  make_sample ("foreign");
  copy_pool ("closed", "killed");
  make_killed ("killed", "earlier");

  test_syncs ();
  test_lost ();
  test_both_pages ();
  test_without ();
  test_property ();
  test_stale_copy ();
  test_no_mark ();
  test_made_late ();
  test_foreign ();
  test_in_use ();
  test_closed ();
  test_killed ();
  test_pages ();
  test_frames ();
  test_two_files ();
  remove_directory (top);
  return 0;
}

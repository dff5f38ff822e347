/* SPDX-License-Identifier: BSD-3-Clause */

/* See metadata-rig.h. */

#include <config.h>

#include <dirent.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/fullio.h"
#include "core/engine.h"
#include "core/txg.h"
#include "data/writeback.h"
#include "meta/meta.h"
#include "rigs/metadata-rig.h"

#define BLOCK 4096u

struct nbdedup_pool *pool;
char doing[200];
static char top[PATH_MAX];

/*----------------------------------------------------------------------
 * Files
 */

const char *
in (const char *dir, const char *file)
{
  static char path[4][3 * PATH_MAX];
  static unsigned i;

  i = (i + 1) % 4;
  snprintf (path[i], sizeof path[i], "%s/%s/%s", top, dir, file);
  return path[i];
}

void
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

void
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

static bool has_late; /* the case began with "killed" */

void
begin_case (const char *sample, const char *fmt, ...)
{
  va_list args;

  va_start (args, fmt);
  vsnprintf (doing, sizeof doing, fmt, args);
  va_end (args);
  copy_pool (sample, "work");
  has_late = strcmp (sample, "killed") == 0;
}

static uint32_t
get_be (const uint8_t *p)
{
  return (uint32_t) p[0] << 24 | p[1] << 16 | p[2] << 8 | p[3];
}

uint64_t
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
       memcmp (frame + 8, header + 16, 8) == 0;)
    pages += FRAME;
  return pages;
}

void
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

bool
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
 * Samples
 */

static int
open_sample (const char *dir, enum nbdedup_read_only read_only)
{
  struct nbdedup_settings settings;

  nbdedup_settings_init (&settings);
  settings.nr_workers = 1;
  settings.commit_interval_ms = 1000000;      /* no commits by time */
  settings.primarycache = NBDEDUP_CACHE_NONE; /* read from the files */
  settings.record_cache_bytes = 0;
  settings.read_only = read_only;
  pool = nbdedup_pool_open (in (dir, "."), &settings, "test", 0);
  return pool ? 0 : -1;
}

int
try_open (const char *dir)
{
  return open_sample (dir, NBDEDUP_READ_ONLY_OFF);
}

int
try_open_readonly (const char *dir)
{
  return open_sample (dir, NBDEDUP_READ_ONLY_ON);
}

int
force_open_readonly (const char *dir)
{
  return open_sample (dir, NBDEDUP_READ_ONLY_FORCE);
}

void
fold (void)
{
  must (writeback_drain (pool->writeback, NULL));
  must (txg_run (pool->txg, NULL, NULL, NULL));
}

void
put (struct nbdedup_volume *v, unsigned block, uint64_t content)
{
  uint8_t buf[BLOCK];

  fill_random (buf, BLOCK, content);
  must (nbdedup_volume_write (v, buf, BLOCK, (uint64_t) block * BLOCK));
}

int
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

static bool
is_rewritten (unsigned block)
{
  return block % 5 == 0;
}

uint64_t
content_of (unsigned block, bool killed)
{
  return killed && is_rewritten (block) ? 100000 + block : 1 + block % 600;
}

void
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
  run ("create",
       json_pack ("{s:s,s:I,s:i}", "name", "v", "size",
                  (json_int_t) NR_BLOCKS * BLOCK, "block-size", BLOCK));
  run ("create",
       json_pack ("{s:s,s:i,s:s}", "name", "d", "size", 1 << 20, "domain",
                  "other"));
  write_some (false, 0, 1);
  run ("snapshot", json_pack ("{s:s}", "name", "v@s"));
  run ("clone", json_pack ("{s:s,s:s}", "snapshot", "v@s", "name", "w"));
  run ("set", json_pack ("{s:s,s:s}", "property", "compress", "value", "none"));
  run ("drift", json_pack ("{s:b}", "record", 1));
  must (nbdedup_pool_close (pool));
}

void
set_copy (const char *value)
{
  run ("set",
       json_pack ("{s:s,s:s}", "property", "metadata-copy", "value", value));
}

/* Write in a child process that ends without closing the pool.  In the middle
 * the child copies the files to 'earlier', creates a volume, and makes a
 * checkpoint: so only the databases have that, and the WAL of the end does not.
 */
static void
make_killed (const char *dir, const char *earlier)
{
  unsigned i;
  pid_t pid = fork ();

  if (pid == 0) {
    must (try_open (dir));
    for (i = 0; i < 8; ++i) {
      write_some (true, i * 5, 40);
      if (i == 1)
        copy_pool (dir, earlier);
      if (i == 2)
        run ("create", json_pack ("{s:s,s:i}", "name", "late", "size", 4096));
      if (i == 3)
        must (meta_checkpoint (pool->meta));
    }
    crash ();
  }
  expect_crash (pid);
}

int
find_late (void)
{
  struct nbdedup_volume *v;

  if (!has_late)
    return 0;
  v = nbdedup_volume_open (pool, "late", 0, -1, NULL);
  if (v == NULL)
    return -1;
  nbdedup_volume_close (v);
  return 0;
}

void
expect_readable (const char *dir, bool killed)
{
  struct nbdedup_volume *v;
  unsigned i;

  if (try_open_readonly (dir) == -1)
    die ("%s, read-only: %s", doing, nbdedup_error ());
  v = open_volume ("v");
  for (i = 0; i < NR_BLOCKS; ++i)
    expect (get (v, i, content_of (i, killed)) == 1);
  nbdedup_volume_close (v);
  must (find_late ());
  check_pool ();
  must (nbdedup_pool_close (pool));
}

void
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

/*----------------------------------------------------------------------
 * Damage
 */

const char *const metadata_files[4] = {
  "pool.db",
  "pool.db-wal",
  "pool.db.copy",
  "pool.db.copy-wal",
};

const char *const damages[NR_DAMAGES] = {
  "missing",
  "empty",
  "a page short",
  "cut in half",
  "zeroes",
  "noise",
  "a directory",
  "of the session before",
  "of a moment before",
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

void
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

/* A closed pool has no WAL.  Another test replaces its files by older ones. */
bool
can_spoil (const char *dir, const char *file, enum damage damage, bool killed)
{
  /* SQLite opens the WAL itself, so the administrator has to remove a
   * directory.
   */
  if (damage == DIRECTORY && strcmp (file, "pool.db-wal") == 0)
    return false;
  return size_of (dir, file) > 2 * PAGE && (killed || damage < OLD_SESSION);
}

/*----------------------------------------------------------------------
 * All samples
 */

void
start_samples (void)
{
  make_directory (top, fast_directory (), "metadata");
  expect (mkdir (in (".", "closed"), 0700) == 0);
  make_sample ("closed");
  expect (mkdir (in (".", "foreign"), 0700) == 0);
  make_sample ("foreign");
  copy_pool ("closed", "killed");
  make_killed ("killed", "earlier");
}

void
end_samples (void)
{
  remove_directory (top);
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* After a crash, one copy of pool.db is lost or damaged as well.  The other one
 * must have all flushed data.  This is done only if the file "metadata-copy"
 * says that there are two copies.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "crash/crash-model.h"

#define PAGE 8192
#define MARK_BLOCK 4096
#define MARK_STATE 12

/* A copy has damaged pages that may not have been read yet. */
static bool garbled;

static int
open_file (const char *name, int flags)
{
  char *path;
  int fd;

  if (asprintf (&path, "%s/%s", pool, name) == -1)
    die ("out of memory");
  fd = open (path, flags);
  free (path);
  return fd;
}

static void
remove_file (const char *name)
{
  char *path;

  if (asprintf (&path, "%s/%s", pool, name) == -1)
    die ("out of memory");
  if (unlink (path) == -1 && errno != ENOENT)
    die ("%s: %s", path, strerror (errno));
  free (path);
}

static bool
has_file (const char *name)
{
  int fd = open_file (name, O_RDONLY);

  if (fd != -1)
    close (fd);
  return fd != -1;
}

/* Check the file, too: a copy that has just become pool.db is missing, although
 * the mark still says that it is current.
 */
static bool
is_current (void)
{
  int fd = open_file ("metadata-copy", O_RDONLY);
  uint8_t block[2 * MARK_BLOCK];
  bool r;

  if (fd == -1)
    return false;
  r = pread (fd, block, sizeof block, 0) == sizeof block &&
    block[MARK_STATE] == 1 && block[MARK_BLOCK + MARK_STATE] == 1 &&
    block[0] == 'N' && block[MARK_BLOCK] == 'N';
  close (fd);
  return r && has_file ("pool.db.copy");
}

/* Damage each page or frame of the file with this probability. */
static void
garble (struct rng *rng, const char *name, unsigned percent)
{
  int fd = open_file (name, O_RDWR);
  uint8_t noise[64];
  struct stat st;
  off_t at;

  if (fd == -1)
    return; /* there may be no WAL */
  if (fstat (fd, &st) == -1)
    die ("%s: %s", name, strerror (errno));
  for (at = 0; at < st.st_size; at += PAGE)
    if (rng_percent (rng, percent)) {
      fill_random (noise, sizeof noise, rng_next (rng));
      if (pwrite (fd, noise, sizeof noise, at + rng_below (rng, PAGE / 2)) !=
          sizeof noise)
        die ("%s: %s", name, strerror (errno));
    }
  close (fd);
}

void
damage_metadata (struct rng *rng)
{
  static const char *const names[2][2] = {
    { "pool.db", "pool.db-wal" },
    { "pool.db.copy", "pool.db.copy-wal" },
  };
  const char *const *name = names[rng_percent (rng, 75) ? 0 : 1];
  unsigned kind = rng_below (rng, 5);

  if (server_script || rng_percent (rng, 60) || !is_current ())
    return;
  switch (kind) {
  case 0:
    remove_file (name[0]);
    break;
  case 1:
    remove_file (name[1]);
    break;
  case 2:
    remove_file (name[0]);
    remove_file (name[1]);
    break;
  case 3:
    garble (rng, name[1], rng_between (rng, 1, 50));
    break;
  case 4:
    garble (rng, name[0], rng_between (rng, 1, 20));
    garbled = true;
    break;
  }
  printf ("  damage %u to %s\n", kind, name[0]);
  fflush (stdout);
}

/* Two copies survive one damage, but not two, so scrub in between, as an
 * administrator should.
 */
void
mend_metadata (void)
{
  if (garbled)
    MUST_RUN ("scrub");
  garbled = false;
}

/*----------------------------------------------------------------------
 * For "recover"
 */

static void
copy_file (const char *from, const char *to)
{
  const char *argv[] = { "cp", from, to, NULL };
  int status;
  char *output;

  if (access (from, F_OK) == -1) {
    if (unlink (to) == -1 && errno != ENOENT)
      die ("%s: %s", to, strerror (errno));
    return;
  }
  output = command_output (argv, 60, NULL, NULL, &status);
  if (status != 0)
    die ("cp: %s", output);
  free (output);
}

/* Copy the files out of the pool, or with 'back' into it. */
static void
copy_metadata (bool back)
{
  static const char *const names[] = { "pool.db", "pool.db-wal" };
  char *inside, *outside;
  unsigned i;

  for (i = 0; i < 2; ++i) {
    if (asprintf (&inside, "%s/%s", pool, names[i]) == -1 ||
        asprintf (&outside, "%s/older-%s", dir, names[i]) == -1)
      die ("out of memory");
    copy_file (back ? outside : inside, back ? inside : outside);
    free (inside);
    free (outside);
  }
}

void
keep_metadata (void)
{
  copy_metadata (false);
}

/* Overwrite the whole file, or all pages from a random one on. */
static void
overwrite (struct rng *rng, const char *name)
{
  int fd = open_file (name, O_RDWR);
  uint8_t noise[PAGE];
  struct stat st;
  off_t at;

  if (fd == -1)
    return;
  if (fstat (fd, &st) == -1)
    die ("%s: %s", name, strerror (errno));
  at = rng_percent (rng, 50) ? 0
                             : rng_below (rng, st.st_size / PAGE + 1) * PAGE;
  for (; at < st.st_size; at += PAGE) {
    fill_random (noise, sizeof noise, rng_next (rng));
    if (pwrite (fd, noise, sizeof noise, at) != sizeof noise)
      die ("%s: %s", name, strerror (errno));
  }
  close (fd);
}

static void
cut_short (struct rng *rng, const char *name)
{
  int fd = open_file (name, O_RDWR);
  struct stat st;

  if (fd == -1 || fstat (fd, &st) == -1 ||
      ftruncate (fd, rng_below (rng, st.st_size)) == -1)
    die ("%s: %s", name, strerror (errno));
  close (fd);
}

bool
lose_metadata (struct rng *rng, bool older, bool *needed)
{
  unsigned kind = older ? 6 : rng_below (rng, 6);

  if (!is_current ())
    return false;
  switch (kind) {
  case 0:
    remove_file ("pool.db");
    break;
  case 1:
    remove_file ("pool.db");
    remove_file ("pool.db-wal");
    break;
  case 2:
    remove_file ("pool.db-wal");
    break;
  case 3:
    cut_short (rng, "pool.db");
    break;
  case 4:
    overwrite (rng, "pool.db");
    break;
  case 5:
    overwrite (rng, "pool.db");
    overwrite (rng, "pool.db-wal");
    break;
  case 6:
    copy_metadata (true);
    break;
  }
  *needed = rng_percent (rng, 50);
  if (*needed)
    remove_file ("metadata-copy");
  printf ("  pool.db is lost, kind %u%s\n", kind,
          *needed ? ", and the mark of its copy" : "");
  fflush (stdout);
  return true;
}

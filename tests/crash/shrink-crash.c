/* SPDX-License-Identifier: BSD-3-Clause */

/* A shrink is cut off, and nothing comes back.
 *
 * The power goes (powercut-undo.h) at the first change to a file that
 * "resize --shrink" makes, then at the second, and so on.  The new end cuts a
 * block in two.  Then
 *
 *  - the pool opens;
 *
 *  - the volume has its old size and all of its bytes, or its new size and the
 *    bytes up to there.  If the command had returned it has its new size;
 *
 *  - when it grows again, what the shrink cut off is zeroes;
 *
 *  - the same holds if the record of the block in two has been damaged since
 *    the cut, so that recovery cannot zero the end of that block: then the
 *    volume may refuse to grow until that block is replaced.
 *
 * Each cut comes twice, without and with damage, and in turn for a volume that
 * has its blocks itself and for a clone that inherits them.
 */

#include <config.h>

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "crash/powercut-undo.h"
#include "rigs/pool-util.h"

#define BLOCK 4096u
#define NR_BLOCKS 100u /* more than a leaf of the map has */
#define NR_KEPT 5u
#define KEPT 512u /* bytes of the last block */
#define SIZE ((uint64_t) NR_BLOCKS * BLOCK)
#define LAST ((uint64_t) NR_KEPT * BLOCK)
#define CUT (LAST + KEPT)

struct nbdedup_pool *pool;

static char pool_path[PATH_MAX], undo_path[PATH_MAX];
static uint8_t content[SIZE], found[SIZE];
static unsigned nr_old, nr_new, nr_unfinished;

static json_t *
sized (const char *name, uint64_t size)
{
  return json_pack ("{s:s, s:I, s:b}", "name", name, "size", (json_int_t) size,
                    "shrink", 1);
}

static void
make_volume (bool inherits)
{
  const char *name = inherits ? "golden" : "v";
  struct nbdedup_volume *v;

  run ("create",
       json_pack ("{s:s, s:I, s:i}", "name", name, "size", (json_int_t) SIZE,
                  "block-size", (int) BLOCK));
  v = open_volume (name);
  must (nbdedup_volume_write (v, content, SIZE, 0));
  must (nbdedup_volume_flush (v));
  nbdedup_volume_close (v);
  if (!inherits)
    return;
  run ("snapshot", json_pack ("{s:s}", "name", "golden@s"));
  run ("clone", json_pack ("{s:s, s:s}", "snapshot", "golden@s", "name", "v"));
}

static void
destroy_volumes (bool inherits)
{
  json_t *names = json_pack ("[s]", "v");

  if (inherits)
    json_array_append_new (names, json_string ("golden"));
  run ("destroy",
       json_pack ("{s:o, s:b, s:b}", "names", names, "recursive", 1, "wait",
                  1));
}

/* The child.  It ends with status 0 if it has made all changes. */
static _Noreturn void
shrink_until (unsigned cut)
{
  prctl (PR_SET_PDEATHSIG, SIGKILL);
  powercut_begin (undo_path, pool_path);
  open_default (pool_path, "shrink-crash");
  powercut_after (undo_path, cut, false);
  run ("resize", sized ("v", CUT));
  _exit (EXIT_SUCCESS);
}

/* True if the shrink was cut off. */
static bool
cut_off (unsigned cut, struct rng *rng)
{
  int status;
  pid_t pid;

  fflush (stdout);
  pid = fork ();
  if (pid == -1)
    die ("fork: %s", strerror (errno));
  if (pid == 0)
    shrink_until (cut);
  if (waitpid (pid, &status, 0) == -1)
    die ("waitpid: %s", strerror (errno));
  if (WIFSIGNALED (status) ? WTERMSIG (status) != SIGKILL
                           : WEXITSTATUS (status) != 0)
    die ("the child failed");
  powercut_undo (undo_path, pool_path, rng);
  return WIFSIGNALED (status);
}

/* Damage all records that begin as the last block does: the old one, and the
 * one that the shrink has written.
 */
static void
damage (void)
{
  char path[PATH_MAX + 10];
  uint8_t *records, *p, *end;
  struct stat st;
  int fd;

  snprintf (path, sizeof path, "%s/records", pool_path);
  fd = open (path, O_RDWR);
  if (fd == -1 || fstat (fd, &st) == -1)
    die ("%s: %s", path, strerror (errno));
  records = mmap (NULL, (size_t) st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED,
                  fd, 0);
  if (records == MAP_FAILED)
    die ("%s: %s", path, strerror (errno));
  end = records + st.st_size;
  for (p = records; (p = memmem (p, (size_t) (end - p), content + LAST, 64));
       p += 64)
    p[KEPT / 2] ^= 1;
  munmap (records, (size_t) st.st_size);
  close (fd);
}

static void
expect_content (struct nbdedup_volume *v, uint64_t offset, uint64_t len)
{
  must (nbdedup_volume_read (v, found, (uint32_t) len, offset));
  expect_bytes ("after a cut", "v", BLOCK, offset, len, found,
                content + offset);
}

static void
expect_zeroes (struct nbdedup_volume *v, uint64_t offset)
{
  must (nbdedup_volume_read (v, found, (uint32_t) (SIZE - offset), offset));
  if (!all_zero (found, SIZE - offset))
    die ("what was cut off is back");
}

static void
zero_last_block (void)
{
  struct nbdedup_volume *v = open_volume ("v");

  must (nbdedup_volume_zero (v, KEPT, LAST));
  nbdedup_volume_close (v);
}

/* Let the volume, which has its new size, grow again. */
static void
expect_shrunk (bool damaged)
{
  json_t *args = sized ("v", SIZE), *result;
  struct nbdedup_volume *v;

  result = nbdedup_call (pool, "resize", args);
  if (result == NULL) {
    if (!damaged || errno != EIO)
      die ("resize: %s", nbdedup_error ());
    nr_unfinished++;
    zero_last_block ();
    run ("resize", json_incref (args));
  }
  json_decref (result);
  json_decref (args);
  v = open_volume ("v");
  expect_content (v, 0, LAST);
  expect_zeroes (v, LAST + BLOCK);
  /* Damaged, or replaced; or the record came from the journal again. */
  if (nbdedup_volume_read (v, found, BLOCK, LAST) == -1) {
    if (!damaged || errno != EIO)
      die ("the last block: %s", nbdedup_error ());
  }
  else {
    if (!damaged)
      expect_content (v, LAST, KEPT);
    expect_zeroes (v, CUT);
  }
  nbdedup_volume_close (v);
}

static void
expect_unchanged (bool damaged)
{
  struct nbdedup_volume *v = open_volume ("v");

  expect_content (v, 0, LAST);
  expect_content (v, LAST + BLOCK, SIZE - LAST - BLOCK);
  if (!damaged)
    expect_content (v, LAST, BLOCK);
  nbdedup_volume_close (v);
}

/* True if the shrink was cut off. */
static bool
run_round (unsigned cut, bool inherits, bool damaged, struct rng *rng)
{
  struct nbdedup_volume *v;
  uint64_t size;
  bool is_cut;

  alarm (300);
  fill_random (content, SIZE, rng_next (rng));
  open_default (pool_path, "shrink-crash");
  make_volume (inherits);
  must (nbdedup_pool_close (pool));
  is_cut = cut_off (cut, rng);
  if (damaged)
    damage ();
  open_default (pool_path, "shrink-crash");
  v = open_volume ("v");
  size = nbdedup_volume_size (v);
  nbdedup_volume_close (v);
  if (size == CUT) {
    nr_new++;
    expect_shrunk (damaged);
  }
  else if (size != SIZE || !is_cut)
    die ("the volume has %" PRIu64 " bytes", size);
  else {
    nr_old++;
    expect_unchanged (damaged);
  }
  check_pool ();
  destroy_volumes (inherits);
  must (nbdedup_pool_close (pool));
  return is_cut;
}

int
main (int argc, char **argv)
{
  const uint64_t seed = seed_from_environment ();
  struct rng rng = rng_make (seed, 0);
  unsigned cut = 0, nr_cut;
  char names[PATH_MAX + 2];
  char *directory;

  if (argc != 2) {
    fprintf (stderr, "usage: SEED=S shrink-crash DIRECTORY\n");
    return 2;
  }
  directory = realpath (argv[1], NULL);
  if (directory == NULL)
    die ("%s: %s", argv[1], strerror (errno));
  snprintf (pool_path, sizeof pool_path, "%s/pool", directory);
  snprintf (undo_path, sizeof undo_path, "%s/undo", directory);
  snprintf (names, sizeof names, "%s.d", undo_path);
  if (mkdir (names, 0777) == -1)
    die ("%s: %s", names, strerror (errno));
  printf ("SEED=%" PRIu64 "\n", seed);
  signal (SIGALRM, too_long);
  must (nbdedup_pool_create (pool_path, NULL));
  do {
    cut++;
    nr_cut = run_round (cut, cut & 1, false, &rng);
    nr_cut += run_round (cut, cut & 1, true, &rng);
  } while (nr_cut > 0);
  printf ("%u cuts: %u times the old size, %u times the new one, %u of these "
          "unfinished\n",
          cut - 1, nr_old, nr_new, nr_unfinished);
  if (nr_old == 0 || nr_unfinished == 0)
    die ("no cut came before the new size, or none right after it");
  free (directory);
  return 0;
}

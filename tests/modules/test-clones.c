/* SPDX-License-Identifier: BSD-3-Clause */

/* Very many clones of one image, and very many snapshots of one volume:
 * made, listed, read, and destroyed in any order.  Times are printed, not
 * judged: "make bench-clones" measures.
 *
 * SEED, CLONES and SNAPSHOTS come from the environment.  "make check" does
 * with few of them; CLONES=10000 SNAPSHOTS=1000 is the full size.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <limits.h>

#include "rigs/pool-util.h"

#define BLOCK 4096u
#define NR_BLOCKS 300u /* five leaves */

static char directory[PATH_MAX];
struct nbdedup_pool *pool;
static struct rng rng;
static uint64_t seed;

static void
reopen (void)
{
  must (nbdedup_pool_close (pool));
  open_default (directory, "test-clones");
}

/* Wait until all space is freed, which may take a few folds. */
static void
expect_records (uint64_t expected)
{
  uint64_t n = 0;
  unsigned i;

  for (i = 0; i < 3000; ++i) {
    n = pool_figure ("records");
    if (n == expected && pool_figure ("freeing_bytes") == 0)
      return;
    clock_sleep_ms (20);
  }
  die ("SEED=%" PRIu64 " still %" PRIu64 " records, expected %" PRIu64, seed, n,
       expected);
}

static uint64_t started_ns;

static void
start_clock (void)
{
  started_ns = clock_ns ();
}

static void
print_clock (const char *what, uint64_t nr)
{
  const double s = (clock_ns () - started_ns) / 1e9;

  printf ("%-40s %8.3f s  %9.3f ms each\n", what, s, 1000 * s / nr);
  fflush (stdout);
}

/* A random order of 0 .. nr-1. */
static unsigned *
shuffled (unsigned nr)
{
  unsigned *order = xcalloc (nr, sizeof order[0]), i, j, t;

  for (i = 0; i < nr; ++i)
    order[i] = i;
  for (i = nr; i > 1; --i) {
    j = rng_below (&rng, i);
    t = order[i - 1];
    order[i - 1] = order[j];
    order[j] = t;
  }
  return order;
}

/*----------------------------------------------------------------------
 * Contents: block b in version k.  Version 0 of everything is the image.
 */

static void
fill (uint8_t *buf, unsigned block, uint64_t version)
{
  fill_compressible (buf, BLOCK, seed + version * NR_BLOCKS + block);
}

static void
write_version (struct nbdedup_volume *v, unsigned block, uint64_t version)
{
  uint8_t buf[BLOCK];

  fill (buf, block, version);
  must (nbdedup_volume_write (v, buf, BLOCK, (uint64_t) block * BLOCK));
}

static void
expect_version (struct nbdedup_volume *v, const char *name, unsigned block,
                uint64_t version)
{
  uint8_t buf[BLOCK], expected[BLOCK];

  must (nbdedup_volume_read (v, buf, BLOCK, (uint64_t) block * BLOCK));
  fill (expected, block, version);
  if (memcmp (buf, expected, BLOCK) != 0)
    die ("SEED=%" PRIu64 " %s: block %u is not version %" PRIu64, seed, name,
         block, version);
}

static void
make_image (const char *name)
{
  struct nbdedup_volume *v;
  unsigned b;

  run ("create",
       json_pack ("{s:s, s:i, s:i}", "name", name, "size",
                  (int) (NR_BLOCKS * BLOCK), "block-size", (int) BLOCK));
  v = open_volume (name);
  for (b = 0; b < NR_BLOCKS; ++b)
    write_version (v, b, 0);
  nbdedup_volume_close (v);
}

/*----------------------------------------------------------------------
 * Clones: clone i has version i of block i % NR_BLOCKS if i is a multiple
 * of 7, and block (i + 1) % NR_BLOCKS trimmed if i is one of 11.
 */

static const char *
clone_name (unsigned i)
{
  static char name[32];

  snprintf (name, sizeof name, "web%u", i);
  return name;
}

static void
check_clone (unsigned i, unsigned nr_reads)
{
  struct nbdedup_volume *v = open_volume (clone_name (i));
  unsigned mine = i % NR_BLOCKS, hole = (i + 1) % NR_BLOCKS, b;
  uint8_t buf[BLOCK];

  for (; nr_reads > 0; --nr_reads) {
    b = rng_percent (&rng, 30) ? mine
      : rng_percent (&rng, 30) ? hole
                               : rng_below (&rng, NR_BLOCKS);
    if (b == hole && i % 11 == 0) {
      must (nbdedup_volume_read (v, buf, BLOCK, (uint64_t) b * BLOCK));
      if (!all_zero (buf, BLOCK))
        die ("SEED=%" PRIu64 " %s: block %u is no hole", seed, clone_name (i),
             b);
    }
    else
      expect_version (v, clone_name (i), b, b == mine && i % 7 == 0 ? i : 0);
  }
  nbdedup_volume_close (v);
}

static void
change_clones (unsigned nr)
{
  struct nbdedup_volume *v;
  unsigned i;

  for (i = 1; i <= nr; ++i) {
    if (i % 7 != 0 && i % 11 != 0)
      continue;
    v = open_volume (clone_name (i));
    if (i % 7 == 0)
      write_version (v, i % NR_BLOCKS, i);
    if (i % 11 == 0)
      must (nbdedup_volume_trim (v, BLOCK,
                                 (uint64_t) ((i + 1) % NR_BLOCKS) * BLOCK));
    nbdedup_volume_close (v);
  }
}

static void
expect_listed (unsigned nr_volumes, unsigned nr_names)
{
  json_t *list = call ("list", NULL);
  unsigned n = 0;

  if (json_array_size (json_object_get (list, "volumes")) != nr_volumes)
    die ("list has %zu volumes, expected %u",
         json_array_size (json_object_get (list, "volumes")), nr_volumes);
  json_decref (list);
  must (nbdedup_pool_list (pool, count_export, &n));
  if (n != nr_names)
    die ("%u exports, expected %u", n, nr_names);
}

static void
destroy_clones (unsigned nr)
{
  unsigned *order = shuffled (nr), i, left = nr;

  start_clock ();
  for (i = 0; i < nr; ++i) {
    /* Half-way the image is destroyed, and the clones stay. */
    if (i == nr / 2)
      run ("destroy",
           json_pack ("{s:s, s:b, s:b}", "name", "golden", "recursive", 1,
                      "force", 1));
    run ("destroy",
         json_pack ("{s:s, s:b}", "name", clone_name (order[i] + 1), "wait",
                    i == nr - 1));
    left--;
    if (left > 0 && i % (nr / 20 + 1) == 0)
      check_clone (order[i + 1 + rng_below (&rng, left)] + 1, 20);
    if (i == nr / 2)
      check_pool ();
  }
  print_clock ("destroy clones in any order", nr);
  free (order);
}

static void
test_clones (unsigned nr)
{
  json_t *result;
  unsigned i;

  make_image ("golden");
  run ("snapshot", json_pack ("{s:s}", "name", "golden@v1"));
  start_clock ();
  result = call ("clone",
                 json_pack ("{s:s, s:s, s:i}", "snapshot", "golden@v1", "name",
                            "web", "count", (int) nr));
  print_clock ("clone --count", nr);
  if (json_array_size (json_object_get (result, "clones")) != nr)
    die ("clone: %zu names",
         json_array_size (json_object_get (result, "clones")));
  json_decref (result);
  start_clock ();
  expect_listed (nr + 1, nr + 2);
  print_clock ("list", 1);
  start_clock ();
  change_clones (nr);
  print_clock ("write to every 7th, trim every 11th", nr / 7 + nr / 11 + 1);
  start_clock ();
  reopen ();
  print_clock ("close and open", 1);
  expect_listed (nr + 1, nr + 2);
  start_clock ();
  for (i = 0; i < nr; i += 1 + nr / 500)
    check_clone (i + 1, 10);
  print_clock ("attach and read 10 blocks", nr / (1 + nr / 500));
  start_clock ();
  check_pool ();
  print_clock ("check", 1);
  destroy_clones (nr);
  expect_records (0);
  expect_listed (0, 0);
  check_pool ();
}

/*----------------------------------------------------------------------
 * Snapshots: before snapshot k, block k % NR_BLOCKS gets version k.
 */

static uint64_t
version_in (unsigned snapshot, unsigned block)
{
  if (snapshot < block)
    return 0;
  return block + (snapshot - block) / NR_BLOCKS * NR_BLOCKS;
}

static void
check_snapshot (const char *name, unsigned snapshot, unsigned nr_reads)
{
  struct nbdedup_volume *v = open_volume (name);
  unsigned b;

  for (; nr_reads > 0; --nr_reads) {
    b = rng_percent (&rng, 30) ? snapshot % NR_BLOCKS
                               : rng_below (&rng, NR_BLOCKS);
    expect_version (v, name, b, version_in (snapshot, b));
  }
  nbdedup_volume_close (v);
}

static void
make_snapshots (unsigned nr)
{
  struct nbdedup_volume *v = open_volume ("disk");
  char name[32];
  unsigned k;

  start_clock ();
  for (k = 1; k <= nr; ++k) {
    write_version (v, k % NR_BLOCKS, k);
    snprintf (name, sizeof name, "disk@%u", k);
    run ("snapshot", json_pack ("{s:s}", "name", name));
  }
  print_clock ("write a block, snapshot", nr);
  nbdedup_volume_close (v);
}

static void
destroy_snapshots (unsigned nr)
{
  unsigned *order = shuffled (nr), i, j;
  char name[32];

  start_clock ();
  for (i = 0; i < nr; ++i) {
    snprintf (name, sizeof name, "disk@%u", order[i] + 1);
    run ("destroy",
         json_pack ("{s:s, s:b}", "name", name, "wait", rng_percent (&rng, 2)));
    if (i % (nr / 20 + 1) == 0)
      check_snapshot ("disk", nr, 40);
    if (i % (nr / 20 + 1) == 0 && i + 1 < nr) {
      j = i + 1 + rng_below (&rng, nr - i - 1);
      snprintf (name, sizeof name, "disk@%u", order[j] + 1);
      check_snapshot (name, order[j] + 1, 20);
    }
    if (i == nr / 2)
      check_pool ();
  }
  print_clock ("destroy snapshots in any order", nr);
  free (order);
}

static void
test_snapshots (unsigned nr)
{
  unsigned k;
  char name[32];

  make_image ("disk");
  make_snapshots (nr);
  start_clock ();
  expect_listed (1, nr + 1);
  print_clock ("list", 1);
  start_clock ();
  reopen ();
  print_clock ("close and open", 1);
  start_clock ();
  check_snapshot ("disk", nr, 5 * NR_BLOCKS);
  print_clock ("read blocks, at full depth", 5 * NR_BLOCKS);
  for (k = 1; k <= nr; k += 1 + nr / 100) {
    snprintf (name, sizeof name, "disk@%u", k);
    check_snapshot (name, k, 20);
  }
  start_clock ();
  check_pool ();
  print_clock ("check", 1);
  destroy_snapshots (nr);
  check_snapshot ("disk", nr, 5 * NR_BLOCKS);
  /* There are only the last versions of the blocks. */
  expect_records (NR_BLOCKS);
  check_pool ();
  reopen ();
  check_snapshot ("disk", nr, 5 * NR_BLOCKS);
  run ("destroy", json_pack ("{s:s, s:b}", "name", "disk", "wait", 1));
  expect_records (0);
  check_pool ();
}

int
main (void)
{

  seed = seed_from_environment ();
  printf ("SEED=%" PRIu64 "\n", seed);
  rng = rng_make (seed, 0);
  make_directory (directory, usual_directory (), "test-clones");
  must (nbdedup_pool_create (directory, NULL));
  open_default (directory, "test-clones");
  test_clones (number_from_environment ("CLONES", 600));
  test_snapshots (number_from_environment ("SNAPSHOTS", 200));
  must (nbdedup_pool_close (pool));
  remove_directory (directory);
  return 0;
}

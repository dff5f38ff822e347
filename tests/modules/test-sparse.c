/* SPDX-License-Identifier: BSD-3-Clause */

/* Extents and trims of volumes that are nearly empty: both skip what nothing
 * has ever set, and must not skip a block that is dirty, in a txg, in pool.db,
 * or in a layer below.
 *
 * A volume and a clone of it get random writes and trims at a few places, and
 * are compared with a model.
 */

#include <config.h>

#include "core/map.h"
#include "core/txg.h"
#include "rigs/engine-rig.h"

#define SIZE (UINT64_C (1) << 40)
#define NR_OPERATIONS 400
/* Places of a block, some of them neighbours or in one leaf. */
#define NR_PLACES 24

static uint64_t seed;
static struct rng rng;
static uint64_t places[NR_PLACES]; /* ascending */

static struct disk {
  const char *name;
  struct nbdedup_volume *handle;
  uint64_t content[NR_PLACES]; /* 0: a hole */
} disks[2];
static unsigned nr_disks;

static int
compare_u64 (const void *a, const void *b)
{
  uint64_t x = *(const uint64_t *) a, y = *(const uint64_t *) b;

  return x < y ? -1 : x > y;
}

/* Single ones, and pairs of which the second is at a leaf's edge or near. */
static void
choose_places (void)
{
  static const unsigned near[] = { 1, 63, 64, 65, 1000 };
  unsigned i;

  places[0] = 0;
  places[1] = SIZE / BLOCK - 1;
  for (i = 2; i < NR_PLACES; i += 2) {
    places[i] = rng_below (&rng, SIZE / BLOCK - 2000) / 64 * 64 + 1;
    places[i + 1] = places[i] + near[rng_below (&rng, 5)];
  }
  qsort (places, NR_PLACES, sizeof *places, compare_u64);
  for (i = 1; i < NR_PLACES; ++i)
    expect (places[i] > places[i - 1]);
}

struct expected {
  const struct disk *disk;
  uint64_t at; /* the end of what was reported */
  bool hole;   /* the last one */
};

static bool
is_data (const struct disk *d, uint64_t block)
{
  const uint64_t *p = bsearch (&block, places, NR_PLACES, sizeof *places,
                               compare_u64);

  return p != NULL && d->content[p - places] != 0;
}

/* Extents follow each other, alternate, and agree with the model. */
static int
check_extent (void *opaque, uint64_t offset, uint64_t len, bool hole)
{
  struct expected *e = opaque;
  const uint64_t first = offset / BLOCK, last = (offset + len - 1) / BLOCK;
  uint64_t block;
  unsigned i;

  if (offset != e->at || len == 0 || hole == e->hole)
    die ("SEED=%" PRIu64 ": extent at %" PRIu64 " after %" PRIu64, seed, offset,
         e->at);
  e->at = offset + len;
  e->hole = hole;
  for (i = 0; hole && i < NR_PLACES; ++i)
    if (places[i] >= first && places[i] <= last && e->disk->content[i] != 0)
      die ("SEED=%" PRIu64 ": %s: a hole at block %" PRIu64, seed,
           e->disk->name, places[i]);
  for (block = first; !hole && block <= last; ++block)
    if (!is_data (e->disk, block))
      die ("SEED=%" PRIu64 ": %s: data at block %" PRIu64, seed, e->disk->name,
           block);
  return 0;
}

static void
check_extents (struct disk *d, uint64_t offset, uint64_t len)
{
  struct expected e = { .disk = d, .at = offset };

  e.hole = !is_data (d, offset / BLOCK) ? false : true;
  must (nbdedup_volume_extents (d->handle, len, offset, check_extent, &e));
  expect (e.at == offset + len);
}

static void
check_disk (struct disk *d)
{
  const unsigned i = (unsigned) rng_below (&rng, NR_PLACES);
  const uint64_t from = rng_below (&rng, SIZE);
  uint8_t buf[BLOCK], found[BLOCK];

  check_extents (d, 0, SIZE);
  check_extents (d, from, rng_between (&rng, 1, SIZE - from));
  fill (buf, d->content[i]);
  must (nbdedup_volume_read (d->handle, found, BLOCK, places[i] * BLOCK));
  expect (memcmp (buf, found, BLOCK) == 0);
}

static void
write_place (struct disk *d)
{
  const unsigned i = (unsigned) rng_below (&rng, NR_PLACES);
  uint8_t buf[BLOCK];

  d->content[i] = rng_between (&rng, 1, 100);
  fill (buf, d->content[i]);
  must (nbdedup_volume_write (d->handle, buf, BLOCK, places[i] * BLOCK));
}

/* Whole blocks between two places, the places included or not. */
static void
trim_places (struct disk *d)
{
  uint64_t first = places[rng_below (&rng, NR_PLACES)] + rng_below (&rng, 2);
  uint64_t end = places[rng_below (&rng, NR_PLACES)] + rng_below (&rng, 2);
  unsigned i;

  if (rng_percent (&rng, 20)) {
    first = 0;
    end = SIZE / BLOCK;
  }
  if (first >= end)
    return;
  must (nbdedup_volume_trim (d->handle, (end - first) * BLOCK, first * BLOCK));
  for (i = 0; i < NR_PLACES; ++i)
    if (places[i] >= first && places[i] < end)
      d->content[i] = 0;
}

static void
clone_it (void)
{
  run ("snapshot", json_pack ("{s:s}", "name", "large@1"));
  run ("clone",
       json_pack ("{s:s, s:s}", "snapshot", "large@1", "name", "twin"));
  disks[1] = disks[0];
  disks[1].name = "twin";
  disks[1].handle = open_volume ("twin");
  nr_disks = 2;
}

static void
open_disks (void)
{
  unsigned i;

  for (i = 0; i < nr_disks; ++i)
    disks[i].handle = open_volume (disks[i].name);
}

static void
close_disks (void)
{
  unsigned i;

  for (i = 0; i < nr_disks; ++i)
    nbdedup_volume_close (disks[i].handle);
}

static void
do_something (struct disk *d)
{
  switch (rng_below (&rng, 12)) {
  case 0:
    settle ();
    break;
  case 1:
    must (nbdedup_volume_flush (d->handle));
    break;
  case 2:
    must (txg_run (pool->txg, NULL, NULL, NULL));
    break;
  case 3:
  case 4:
  case 5:
    trim_places (d);
    break;
  default:
    write_place (d);
  }
}

static void
make_large (void)
{
  start (2);
  run ("create",
       json_pack ("{s:s, s:I, s:i}", "name", "large", "size", (json_int_t) SIZE,
                  "block-size", (int) BLOCK));
  memset (disks, 0, sizeof disks);
  disks[0].name = "large";
  nr_disks = 1;
  open_disks ();
}

static void
test_random (void)
{
  const char *text = getenv ("SEED");
  unsigned i, k;

  seed = text ? strtoull (text, NULL, 0) : (uint64_t) time (NULL);
  printf ("SEED=%" PRIu64 "\n", seed);
  rng = rng_make (seed, 0);
  choose_places ();
  make_large ();
  for (i = 0; i < NR_OPERATIONS; ++i) {
    if (i == NR_OPERATIONS / 3)
      clone_it ();
    if (i == NR_OPERATIONS / 3 * 2) {
      close_disks ();
      reopen_pool ();
      open_disks ();
    }
    do_something (&disks[rng_below (&rng, nr_disks)]);
    for (k = 0; k < nr_disks; ++k)
      check_disk (&disks[k]);
  }
  close_disks ();
  end ();
}

/* A terabyte is trimmed, of which two blocks are in use: the txg gets changes
 * of their leaves, and of no others.
 */
static void
test_trim_changes_what_is_there (void)
{
  uint8_t buf[BLOCK];

  make_large ();
  fill (buf, 1);
  must (nbdedup_volume_write (disks[0].handle, buf, BLOCK, SIZE / 2));
  must (nbdedup_volume_write (disks[0].handle, buf, BLOCK, SIZE - BLOCK));
  settle ();
  must (nbdedup_volume_trim (disks[0].handle, SIZE, 0));
  expect (map_pending_bytes (pool->map) < 4096);
  check_extents (&disks[0], 0, SIZE);
  settle ();
  must (nbdedup_volume_trim (disks[0].handle, SIZE, 0));
  expect (map_pending_bytes (pool->map) == 0);
  close_disks ();
  end ();
}

static const struct engine_case cases[] = {
  CASE (random),
  CASE (trim_changes_what_is_there),
  { NULL, NULL },
};

/* test-sparse [NAME...] */
int
main (int argc, char *argv[])
{
  return run_cases (argc, argv, cases);
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* Make a large pool whose clones have diverged, quickly and on little disk,
 * for drift-costs.c to measure.
 *
 *   drift-fleet POOL
 *
 * A golden image of GIB (default 20) GiB, all of it written, and CLONES
 * (default 100) clones; in each, PERCENT (default 5) of the blocks have been
 * written, in runs of up to 256 KiB.  Of the runs 40 % have contents that about
 * ten other clones have, too (upgrades), at the same place or another, 15 %
 * contents that the golden image has elsewhere, 5 % its contents at the same
 * place, and 40 % contents of their own: shares as on a real fleet.  BLOCK
 * (default 16384) is the block size.
 *
 * A block is eight bytes with the number of its content, then zeroes.  It takes
 * one sector, and as much of everything else as any other block.
 */

#include <config.h>

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>

#include "rigs/pool-util.h"

#define RUN_BYTES 262144u
#define NR_THREADS 2

/* Contents: the golden image has 1 and following. */
#define UPGRADES (UINT64_C (1) << 40)
#define UNIQUE (UINT64_C (1) << 48)

struct nbdedup_pool *pool;
static uint64_t nr_blocks, nr_changed; /* of a volume; of a clone */
static uint64_t nr_upgrades;           /* runs that clones share */
static uint32_t block_size;
static unsigned nr_clones, percent;
static atomic_uint next_clone;

static void
write_run (struct nbdedup_volume *v, uint8_t *buf, uint64_t block,
           const uint64_t *contents, unsigned nr)
{
  unsigned i;

  for (i = 0; i < nr; ++i)
    memcpy (buf + (size_t) i * block_size, &contents[i], sizeof contents[i]);
  if (nbdedup_volume_write (v, buf, nr * block_size, block * block_size) == -1)
    die ("write: %s", nbdedup_error ());
}

static void
detach (struct nbdedup_volume *v)
{
  if (nbdedup_volume_flush (v) == -1)
    die ("flush: %s", nbdedup_error ());
  nbdedup_volume_close (v);
}

static unsigned
blocks_of_run (void)
{
  return RUN_BYTES > block_size ? RUN_BYTES / block_size : 1;
}

static void
write_golden (void)
{
  uint8_t *buf = xcalloc (1, RUN_BYTES + block_size);
  struct nbdedup_volume *v;
  uint64_t contents[RUN_BYTES / 4096], block;
  unsigned i, nr = blocks_of_run ();

  run ("create",
       json_pack ("{s:s, s:I, s:I}", "name", "golden", "size",
                  (json_int_t) (nr_blocks * block_size), "block-size",
                  (json_int_t) block_size));
  v = open_volume ("golden");
  for (block = 0; block + nr <= nr_blocks; block += nr) {
    for (i = 0; i < nr; ++i)
      contents[i] = 1 + block + i;
    write_run (v, buf, block, contents, nr);
  }
  detach (v);
  free (buf);
  run ("snapshot", json_pack ("{s:s}", "name", "golden@v1"));
}

/* Pick the first of a run's contents, which have consecutive numbers. */
static uint64_t
pick_contents (struct rng *rng, uint64_t block, uint64_t *unique,
               uint64_t *moved_to)
{
  unsigned kind = rng_below (rng, 100);
  uint64_t upgrade;

  *moved_to = block;
  if (kind < 40) {
    upgrade = rng_below (rng, nr_upgrades);
    if (kind < 30) /* at one place on all machines */
      *moved_to = upgrade * UINT64_C (2654435761) %
        (nr_blocks - blocks_of_run ());
    return UPGRADES + upgrade * blocks_of_run ();
  }
  if (kind < 55)
    return 1 + rng_below (rng, nr_blocks - blocks_of_run ());
  if (kind < 60)
    return 1 + block;
  *unique += blocks_of_run ();
  return *unique;
}

static void
write_clone (unsigned number)
{
  uint8_t *buf = xcalloc (1, RUN_BYTES + block_size);
  uint64_t contents[RUN_BYTES / 4096], first, block, done;
  uint64_t unique = UNIQUE + ((uint64_t) number << 32);
  struct rng rng = rng_make (1, number);
  struct nbdedup_volume *v;
  unsigned i, nr;
  char name[40];

  snprintf (name, sizeof name, "web%u", number);
  v = open_volume (name);
  for (done = 0; done < nr_changed; done += nr) {
    nr = rng_between (&rng, 1, blocks_of_run ());
    block = rng_below (&rng, nr_blocks - blocks_of_run ());
    first = pick_contents (&rng, block, &unique, &block);
    for (i = 0; i < nr; ++i)
      contents[i] = first + i;
    write_run (v, buf, block, contents, nr);
  }
  detach (v);
  free (buf);
}

static void *
write_clones (void *arg)
{
  unsigned number;

  (void) arg;
  while ((number = atomic_fetch_add (&next_clone, 1)) <= nr_clones)
    write_clone (number);
  return NULL;
}

int
main (int argc, char *argv[])
{
  pthread_t threads[NR_THREADS];
  unsigned i;

  if (argc != 2)
    die ("usage: drift-fleet POOL");
  block_size = number_from_environment ("BLOCK", 16384);
  nr_clones = number_from_environment ("CLONES", 100);
  percent = number_from_environment ("PERCENT", 5);
  nr_blocks = (number_from_environment ("GIB", 20) << 30) / block_size;
  nr_changed = nr_blocks * percent / 100;
  if (block_size < 4096 || nr_blocks == 0 || nr_clones == 0 || percent > 100)
    die ("GIB, CLONES, PERCENT or BLOCK makes no sense");
  nr_upgrades = nr_changed * 40 / 100 * nr_clones / 10 / blocks_of_run () + 1;

  if (nbdedup_pool_create (argv[1], NULL) == -1)
    die ("create: %s", nbdedup_error ());
  pool = nbdedup_pool_open (argv[1], NULL, "drift-fleet", 0);
  if (pool == NULL)
    die ("open: %s", nbdedup_error ());
  write_golden ();
  run ("clone",
       json_pack ("{s:s, s:s, s:i}", "snapshot", "golden@v1", "name", "web",
                  "count", (int) nr_clones));
  atomic_init (&next_clone, 1);
  for (i = 0; i < NR_THREADS; ++i)
    if (pthread_create (&threads[i], NULL, write_clones, NULL) != 0)
      die ("pthread_create failed");
  for (i = 0; i < NR_THREADS; ++i)
    pthread_join (threads[i], NULL);
  if (nbdedup_pool_close (pool) == -1)
    die ("close: %s", nbdedup_error ());
  return 0;
}

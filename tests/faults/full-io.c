/* SPDX-License-Identifier: BSD-3-Clause */

/* A volume on a file system that is too small for it.
 *
 *   full-io SOCKET EXPORT OUT
 *
 * Fill it block by block with data that does not compress until ENOSPC.  Then
 * all answered writes must read back, flushes must work, blocks that share no
 * record can be overwritten, again and again, and after a trim there is room
 * again.  OUT gets the contents that the volume must have at the end.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <libnbd.h>
#include <poll.h>

#include "rigs/testutil.h"

#define BLOCK 65536

static struct nbd_handle *nbd;
static uint64_t seed, nr_blocks;
static uint64_t *contents; /* by block: its seed; 0: zeroes */

static void
fill (uint8_t *buf, uint64_t content)
{
  if (content)
    fill_random (buf, BLOCK, content);
  else
    memset (buf, 0, BLOCK);
}

/* Returns 0 or ENOSPC.  Any other error ends the test. */
static int
write_block (uint64_t block, uint64_t content)
{
  static uint8_t buf[BLOCK];

  fill (buf, content);
  if (nbd_pwrite (nbd, buf, BLOCK, block * BLOCK, 0) == 0) {
    contents[block] = content;
    return 0;
  }
  if (nbd_get_errno () != ENOSPC)
    die ("SEED=%" PRIu64 " write of block %" PRIu64 ": %s", seed, block,
         nbd_get_error ());
  return ENOSPC;
}

static void
flush (const char *when)
{
  if (nbd_flush (nbd, 0) == -1)
    die ("SEED=%" PRIu64 " flush %s: %s", seed, when, nbd_get_error ());
}

static void
verify (const char *when)
{
  static uint8_t buf[BLOCK], expected[BLOCK];
  uint64_t i;

  for (i = 0; i < nr_blocks; ++i) {
    if (nbd_pread (nbd, buf, BLOCK, i * BLOCK, 0) == -1)
      die ("SEED=%" PRIu64 " %s: read of block %" PRIu64 ": %s", seed, when, i,
           nbd_get_error ());
    fill (expected, contents[i]);
    if (memcmp (buf, expected, BLOCK) != 0)
      die ("SEED=%" PRIu64 " %s: block %" PRIu64 " is wrong", seed, when, i);
  }
}

/* Write new blocks from 'from' on until 20 writes in a row are refused.
 * Returns the number of blocks written.
 */
static uint64_t
fill_up (uint64_t from, struct rng *rng)
{
  uint64_t i, nr = 0;
  unsigned refused = 0;

  for (i = from; i < nr_blocks && refused < 20; ++i) {
    if (contents[i])
      continue;
    if (write_block (i, rng_next (rng) | 1) == 0) {
      refused = 0;
      nr++;
    }
    else
      refused++;
  }
  if (refused < 20)
    die ("SEED=%" PRIu64 " the file system did not fill up", seed);
  return nr;
}

int
main (int argc, char *argv[])
{
  static uint8_t buf[BLOCK];
  struct rng rng;
  uint64_t i, nr, used = 0;
  unsigned tries, refused;
  FILE *f;

  if (argc != 4)
    die ("usage: full-io SOCKET EXPORT OUT");
  seed = seed_from_environment ();
  printf ("SEED=%" PRIu64 "\n", seed);
  fflush (stdout);
  rng = rng_make (seed, 0);
  alarm (400);

  nbd = nbd_create ();
  if (nbd == NULL || nbd_set_export_name (nbd, argv[2]) == -1 ||
      nbd_connect_unix (nbd, argv[1]) == -1)
    die ("%s", nbd_get_error ());
  nr_blocks = nbd_get_size (nbd) / BLOCK;
  contents = xcalloc (nr_blocks, sizeof contents[0]);

  nr = fill_up (0, &rng);
  printf ("%" PRIu64 " blocks until ENOSPC\n", nr);
  fflush (stdout);
  if (nr < 100)
    die ("SEED=%" PRIu64 " full too early", seed);
  flush ("when full");
  verify ("when full");

  /* These share no record, so the new content gets the space of the old one,
   * perhaps a moment later.
   */
  for (refused = 0, tries = 0; tries < 400; ++tries) {
    uint64_t content = rng_next (&rng) | 1;

    i = rng_below (&rng, nr_blocks);
    if (contents[i] == 0)
      continue;
    for (nr = 0; write_block (i, content) != 0; ++nr) {
      refused++;
      if (nr == 100)
        die ("SEED=%" PRIu64 " a block of a full pool cannot be overwritten",
             seed);
      poll (NULL, 0, 100);
    }
    if (tries % 50 == 49)
      flush ("between overwrites");
  }
  printf ("%u of the overwrites refused at first\n", refused);
  fflush (stdout);
  flush ("after overwriting");
  verify ("after overwriting");

  /* Holes need no room; they make room. */
  for (i = 0; i < nr_blocks; ++i)
    used += contents[i] != 0;
  for (i = 0; i < nr_blocks; i += 2) {
    if (i % 4 == 0 ? nbd_trim (nbd, BLOCK, i * BLOCK, 0) == -1
                   : nbd_zero (nbd, BLOCK, i * BLOCK, 0) == -1)
      die ("SEED=%" PRIu64 " trim or zeroes when full: %s", seed,
           nbd_get_error ());
    used -= contents[i] != 0;
    contents[i] = 0;
  }
  flush ("after trimming");
  verify ("after trimming");

  /* The next fold frees the room. */
  for (nr = 0, tries = 0; nr < used / 2; ++tries) {
    if (tries == 100)
      die ("SEED=%" PRIu64 " only %" PRIu64 " blocks after trimming about "
           "%" PRIu64,
           seed, nr, used);
    nr += fill_up (0, &rng);
    poll (NULL, 0, 100);
  }
  printf ("%" PRIu64 " blocks after trimming\n", nr);
  flush ("when full again");
  verify ("when full again");
  nbd_shutdown (nbd, 0);
  nbd_close (nbd);

  f = fopen (argv[3], "w");
  for (i = 0; f && i < nr_blocks; ++i) {
    fill (buf, contents[i]);
    if (fwrite (buf, 1, BLOCK, f) != BLOCK)
      break;
  }
  if (f == NULL || fclose (f) != 0 || i < nr_blocks)
    die ("%s: %s", argv[3], strerror (errno));
  return 0;
}

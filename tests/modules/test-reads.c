/* SPDX-License-Identifier: BSD-3-Clause */

/* Requests that read many blocks: records that lie side by side are one read of
 * the store (data/read.h: read_run).  See engine-rig.h.
 */

#include <config.h>

#include <fcntl.h>

#include "base/cleanup.h"
#include "core/record-cache.h"
#include "data/writeback.h"
#include "format/format.h"
#include "rigs/engine-rig.h"

#define NR LEAF_BLOCKS /* blocks of a request */

/* What the volume has in its first blocks, and two more. */
static uint8_t wanted[(NR + 2) * BLOCK];

static uint8_t *
wanted_block (unsigned block)
{
  return wanted + (size_t) block * BLOCK;
}

/* Every third block compresses, to a length that depends on the block. */
static void
make_content (unsigned block, uint64_t content)
{
  uint8_t *p = wanted_block (block);

  fill (p, content);
  if (block % 3 == 0)
    memset (p + 100 * (block / 3 + 1), 0, BLOCK - 100 * (block / 3 + 1));
}

static void
write_wanted (unsigned block, unsigned nr)
{
  must (nbdedup_volume_write (handle, wanted_block (block), nr * BLOCK,
                              block * BLOCK));
}

/* All blocks in "records", none in a cache. */
static void
start_with_content (bool compressible)
{
  unsigned i;

  start (1);
  for (i = 0; i < NR + 2; ++i)
    if (compressible)
      make_content (i, i + 1);
    else
      fill (wanted_block (i), i + 1);
  write_wanted (0, NR + 2);
  settle ();
  reopen_pool ();
}

/* Read a range: what is wanted, and not a byte more.  Returns the number of
 * reads of the store.
 */
static unsigned
expect_range (size_t offset, size_t len)
{
  CLEANUP_FREE uint8_t *buf = xmalloc (len + BLOCK);
  const unsigned before = reads_records;
  size_t i;

  memset (buf + len, 0xa5, BLOCK);
  must (nbdedup_volume_read (handle, buf, (uint32_t) len, offset));
  for (i = len; i < len + BLOCK; ++i)
    expect (buf[i] == 0xa5);
  if (memcmp (buf, wanted + offset, len) != 0)
    die ("%zu bytes at %zu are not what was written", len, offset);
  return reads_records - before;
}

static void
test_side_by_side (void)
{
  start_with_content (false);
  expect (expect_range (0, NR * BLOCK) <= 2); /* 256 KiB, 128 KiB at once */
  end ();
}

static void
test_compressed (void)
{
  start_with_content (true);
  expect (expect_range (0, NR * BLOCK) <= 2);
  end ();
}

/* Requests that begin and end inside blocks and leaves. */
static void
test_parts (void)
{
  struct rng rng = { 11 };
  size_t offset, len;
  unsigned i;

  start_with_content (true);
  for (i = 0; i < 200; ++i) {
    if (i % 20 == 0)
      reopen_pool ();
    offset = rng_next (&rng) % (sizeof wanted - 1);
    len = 1 + rng_next (&rng) % (sizeof wanted - offset);
    expect_range (offset, len);
  }
  end ();
}

/* Between the neighbours: a hole, a block that is written again and is in
 * memory only or elsewhere, one with another's record, and one in the cache.
 */
static void
test_mixed (void)
{
  unsigned reads;

  start_with_content (true);
  trim_block (5);
  memset (wanted_block (5), 0, BLOCK);
  make_content (9, 1000);
  write_wanted (9, 1);
  memcpy (wanted_block (13), wanted_block (40), BLOCK);
  write_wanted (13, 1);
  settle ();
  reopen_pool ();
  expect_range (20 * BLOCK, 1);
  stall ();
  make_content (30, 1001);
  write_wanted (30, 1);
  unstall ();
  reads = expect_range (0, NR * BLOCK);
  if (reads < 3 || reads > 12)
    die ("%u reads", reads);
  reopen_pool ();
  expect_range (0, NR * BLOCK);
  end ();
}

/* What is in the cache is not read again, nor are its neighbours that are. */
static void
test_cached (void)
{
  start_with_content (true);
  expect (expect_range (0, NR * BLOCK) > 0);
  expect (expect_range (0, NR * BLOCK) == 0);
  record_cache_forget (pool->records, address_of (7));
  expect (expect_range (0, NR * BLOCK) == 1);
  end ();
}

/* The pool's cache has so much that what is cheap to read comes later. */
static void
take_a_quarter (void)
{
  const size_t quarter = pool->settings.record_cache_bytes / 4;
  CLEANUP_FREE uint8_t *buf = xmalloc (quarter);

  memset (buf, 0xa5, quarter);
  record_cache_put (pool->records, UINT64_MAX, 0, buf, quarter);
  expect (record_cache_has (pool->records, UINT64_MAX));
}

/* A volume with larger blocks in place of "v". */
#define LARGE_BLOCK (4 * BLOCK)

static void
attach_large (void)
{
  nbdedup_volume_close (handle);
  attach_to ("large");
}

/* "large" has the content of "v", and no cache has any of it. */
static void
start_with_large_blocks (void)
{
  start_with_content (false);
  run ("create",
       json_pack ("{s:s,s:I,s:i}", "name", "large", "size",
                  (json_int_t) NR_BLOCKS * BLOCK, "block-size", LARGE_BLOCK));
  attach_large ();
  write_wanted (0, NR + 2);
  settle ();
  reopen_pool ();
  attach_large ();
  take_a_quarter ();
}

/* Blocks that do not compress: one read gets a few that the cache has as well,
 * but not if they are most.
 */
static void
test_few_cached (void)
{
  unsigned i;

  start_with_large_blocks ();
  for (i = 0; i < 8; i += 3) {
    expect (expect_range (i * LARGE_BLOCK, LARGE_BLOCK) == 1);
    expect (!record_cache_has (pool->records, address_of (i)));
    expect (expect_range (i * LARGE_BLOCK, LARGE_BLOCK) == 1);
    expect (record_cache_has (pool->records, address_of (i)));
  }
  expect (expect_range (0, 8 * LARGE_BLOCK) == 1);
  expect (expect_range (0, 8 * LARGE_BLOCK) == 1);
  for (i = 0; i < 8; ++i)
    expect (record_cache_has (pool->records, address_of (i)));
  record_cache_forget (pool->records, address_of (2));
  record_cache_forget (pool->records, address_of (5));
  expect (expect_range (0, 8 * LARGE_BLOCK) == 2);
  end ();

  /* Compressed ones would all have to be decompressed again. */
  start_with_content (true);
  take_a_quarter ();
  expect (expect_range (4 * BLOCK, 1) == 1); /* part of one is kept at once */
  expect (expect_range (4 * BLOCK, BLOCK) == 0);
  expect (expect_range (0, 16 * BLOCK) == 2);
  end ();
}

/* Of small ones that do not compress one read gets all, and none of those comes
 * to the cache; unless they are all there, from reads of each.
 */
static void
test_small (void)
{
  unsigned i;

  start_with_content (false);
  expect (expect_range (0, 16 * BLOCK) == 1);
  expect (expect_range (0, 16 * BLOCK) == 1);
  for (i = 0; i < 15; ++i) {
    expect (!record_cache_has (pool->records, address_of (i)));
    expect_and_cache (i, i + 1);
  }
  expect (expect_range (0, 16 * BLOCK) == 1);
  expect (!record_cache_has (pool->records, address_of (15)));
  expect_and_cache (15, 16);
  expect (expect_range (0, 16 * BLOCK) == 0);
  end ();
}

static void
spoil (unsigned block)
{
  CLEANUP_FREE char *path = pool_file (directory, "records");
  const off_t at = (off_t) address_of (block) * pool->sector_bytes + 7;
  int fd = open (path, O_RDWR | O_CLOEXEC);
  uint8_t byte;

  expect (fd >= 0 && pread (fd, &byte, 1, at) == 1);
  byte ^= 1;
  expect (pwrite (fd, &byte, 1, at) == 1);
  close (fd);
}

/* The request fails, with the damaged block's place, and the others are there.
 */
static void
expect_damage (unsigned block)
{
  CLEANUP_FREE uint8_t *buf = xmalloc (NR * BLOCK);

  expect (nbdedup_volume_read (handle, buf, NR * BLOCK, 0) == -1 &&
          errno == EIO && strstr (nbdedup_error (), "is damaged"));
  if (block > 0)
    expect_range (0, (size_t) block * BLOCK);
  expect_range ((size_t) (block + 1) * BLOCK, (NR - block - 1) * BLOCK);
}

static void
test_damage (void)
{
  static const unsigned places[] = { 0, 1, 20, 21, NR - 1 };
  unsigned i;

  for (i = 0; i < sizeof places / sizeof places[0]; ++i) {
    start_with_content (true);
    spoil (places[i]);
    expect_damage (places[i]);
    close_pool ();
    remove_directory (directory);
  }
}

/* A read that fails costs the run, and not the request, if it works alone. */
static void
test_failed_run (void)
{
  start_with_content (false);
  fail_reads = 1;
  expect_range (0, NR * BLOCK);
  expect (fail_reads == 0);
  end ();
}

static const struct engine_case cases[] = {
  CASE (side_by_side), CASE (compressed), CASE (parts), CASE (mixed),
  CASE (cached),       CASE (few_cached), CASE (small), CASE (damage),
  CASE (failed_run),   { NULL, NULL },
};

/* test-reads [NAME...] */
int
main (int argc, char *argv[])
{
  return run_cases (argc, argv, cases);
}

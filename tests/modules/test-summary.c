/* SPDX-License-Identifier: BSD-3-Clause */

/* The summaries in "records" survive read errors and damage, which are not
 * reported as damage of the data; scrub distinguishes the two.  See
 * engine-rig.h.
 */

#include <config.h>

#include <fcntl.h>

#include "base/cleanup.h"
#include "data/writeback.h"
#include "rigs/engine-rig.h"

#define CHUNK 4096
#define SLOT 64

struct scrubbed {
  json_int_t errors, summary_errors;
  size_t places;
};

static struct scrubbed
scrub (void)
{
  json_t *result = nbdedup_call (pool, "scrub", NULL);
  struct scrubbed s;

  if (result == NULL)
    die ("scrub: %s", nbdedup_error ());
  s = (struct scrubbed) {
    json_integer_value (json_object_get (result, "errors")),
    json_integer_value (json_object_get (result, "summary_errors")),
    json_array_size (json_object_get (result, "damaged")),
  };
  json_decref (result);
  return s;
}

#define expect_scrub(all, summaries, where)                                    \
  do {                                                                         \
    const struct scrubbed _s = scrub ();                                       \
                                                                               \
    if (_s.errors != (all) || _s.summary_errors != (summaries) ||              \
        _s.places != (where))                                                  \
      die ("line %d: scrub: %lld errors, %lld of summaries, %zu places",       \
           __LINE__, (long long) _s.errors, (long long) _s.summary_errors,     \
           _s.places);                                                         \
  } while (0)

static int
open_records (void)
{
  CLEANUP_FREE char *path = pool_file (directory, "records");
  int fd = open (path, O_RDWR | O_CLOEXEC);

  expect (fd >= 0);
  return fd;
}

/* The first chunk's offset in the file. */
static off_t
find_chunk (int fd)
{
  char buf[8];
  off_t off;

  for (off = STORE_HEADER_BYTES;; off += CHUNK) {
    expect (pread (fd, buf, sizeof buf, off) == sizeof buf);
    if (memcmp (buf, "NBDCHUNK", 8) == 0)
      return off;
  }
}

/* Overwrite a part of the first chunk. */
static void
spoil (unsigned offset, unsigned len)
{
  static const uint8_t noise[CHUNK] = { 1, 2, 3 };
  int fd = open_records ();

  expect (pwrite (fd, noise, len, find_chunk (fd) + offset) == (ssize_t) len);
  close (fd);
}

static void
test_read_error_in_a_fold (void)
{
  start (1);
  write_blocks (0, 20, 1);
  settle ();
  write_blocks (20, 20, 100);
  must (writeback_drain (pool->writeback, volume));
  fail_reads = 1;
  settle ();
  expect (fail_reads == 0);
  expect_scrub (0, 0, 0u);
  expect_content (0, 1);
  expect_content (39, 119);
  end ();
}

/* The same with a damaged header, in a fold that also overwrites records. */
static void
test_damaged_header_in_a_fold (void)
{
  start (1);
  write_blocks (0, 20, 1);
  settle ();
  spoil (0, SLOT);
  write_blocks (10, 20, 100);
  settle ();
  expect_scrub (0, 0, 0u);
  spoil (0, CHUNK);
  write_blocks (30, 5, 200);
  settle ();
  expect_scrub (0, 0, 0u);
  end ();
}

/* A place that was a chunk before the segment was freed is not one now. */
static void
test_chunk_that_is_new (void)
{
  unsigned i;

  start (1);
  for (i = 0; i < 3; ++i) {
    write_blocks (0, 200, 1 + 1000 * i);
    settle ();
    expect_scrub (0, 0, 0u);
    must (nbdedup_volume_trim (handle, 200 * BLOCK, 0));
    settle ();
  }
  end ();
}

static unsigned nr_warnings;

static void
count_warnings (enum nbdedup_log_level level, const char *line)
{
  (void) line;
  nr_warnings += level != NBDEDUP_LOG_INFO;
}

static void
write_more (void)
{
  write_blocks (100, 200, 1000);
  must (writeback_drain (pool->writeback, volume));
}

/* Writers go on while a fold runs, and take chunks in a segment whose row that
 * fold writes.  The next fold must not take them for damaged.
 */
static void
test_chunk_of_the_next_txg (void)
{
  start (1);
  nbdedup_set_log (count_warnings);
  write_blocks (0, 20, 1);
  must (writeback_drain (pool->writeback, volume));
  at_sync_of_records = write_more;
  settle ();
  expect (at_sync_of_records == NULL);
  settle ();
  nbdedup_set_log (NULL);
  expect (nr_warnings == 0);
  expect_scrub (0, 0, 0u);
  expect_content (299, 1199);
  end ();
}

static void
test_scrub_writes_again (void)
{
  start (1);
  write_blocks (0, 20, 1);
  settle ();
  expect_scrub (0, 0, 0u);
  spoil (3 * SLOT + 20, 1);
  expect_scrub (1, 1, 0u);
  expect_scrub (0, 0, 0u);
  spoil (0, CHUNK);
  expect_scrub (20, 20, 0u);
  expect_scrub (0, 0, 0u);
  write_blocks (20, 5, 100);
  settle ();
  expect_scrub (0, 0, 0u);
  end ();
}

static void
test_scrub_tells_data_from_summaries (void)
{
  static const uint8_t noise[16] = { 1 };
  int fd;

  start (1);
  write_blocks (0, 20, 1);
  settle ();
  fd = open_records ();
  expect (pwrite (fd, noise, sizeof noise, (off_t) address_of (7) * 512) ==
          sizeof noise);
  close (fd);
  spoil (5 * SLOT, 2 * SLOT);
  expect_scrub (3, 2, 1u);
  expect_scrub (1, 0, 1u);
  write_block (7, 100); /* heals the block */
  settle ();
  expect_scrub (0, 0, 0u);
  end ();
}

static const struct engine_case cases[] = {
  CASE (read_error_in_a_fold),
  CASE (damaged_header_in_a_fold),
  CASE (chunk_that_is_new),
  CASE (chunk_of_the_next_txg),
  CASE (scrub_writes_again),
  CASE (scrub_tells_data_from_summaries),
  { NULL, NULL },
};

/* test-summary [NAME...] */
int
main (int argc, char *argv[])
{
  return run_cases (argc, argv, cases);
}

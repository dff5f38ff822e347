/* SPDX-License-Identifier: BSD-3-Clause */

/* Scrub rewrites damaged records, durably, and no others; it is killed in the
 * middle, and offers come too late.  See engine-rig.h.
 */

#include <config.h>

#include <fcntl.h>

#include "base/cleanup.h"
#include "report/scrub.h"
#include "rigs/engine-rig.h"

/* Expect this many damaged and this many repaired records. */
static void
expect_scrub_at (int line, json_int_t errors, json_int_t repaired)
{
  CLEANUP_JSON json_t *result = nbdedup_call (pool, "scrub", NULL);

  if (result == NULL)
    die ("line %d: scrub: %s", line, nbdedup_error ());
  if (number (result, "errors") != errors ||
      number (result, "repaired_records") != repaired)
    die ("line %d: scrub: %lld errors, %lld repaired", line,
         (long long) number (result, "errors"),
         (long long) number (result, "repaired_records"));
}
#define expect_scrub(errors, repaired)                                         \
  expect_scrub_at (__LINE__, errors, repaired)

static void
put_into_records (uint64_t addr, const void *buf, size_t len)
{
  CLEANUP_FREE char *path = pool_file (directory, "records");
  int fd = open (path, O_RDWR | O_CLOEXEC);

  expect (fd >= 0);
  expect (pwrite (fd, buf, len, (off_t) addr * 512) == (ssize_t) len);
  close (fd);
}

static void
spoil (uint64_t addr)
{
  static const uint8_t noise[1500] = { 1, 2, 3 };

  put_into_records (addr, noise, sizeof noise);
}

static int
offer (uint64_t addr, uint64_t content)
{
  uint8_t buf[BLOCK];

  fill (buf, content);
  return scrub_offer (pool, addr, buf, sizeof buf);
}

static void
test_offer_is_written_and_synced (void)
{
  unsigned before;
  uint64_t addr;

  start (1);
  write_blocks (0, 20, 1);
  settle ();
  addr = address_of (7);
  spoil (addr);
  expect_scrub (1, 0);
  before = syncs_records;
  expect (offer (addr, 9) == 0);
  expect (offer (addr + 1, 8) == 0);
  expect (syncs_records == before);
  expect (offer (addr, 8) == 1);
  expect (syncs_records == before + 1);
  expect (offer (addr, 8) == 0);
  expect (scrub_offer (pool, UINT64_MAX, "", 1) == -1 && errno == EINVAL);
  expect_content (7, 8);
  expect_content (6, 7);
  expect_content (8, 9);
  expect_scrub (0, 0);
  end ();
}

/* The record's sectors have another record by now, or none. */
static void
test_offer_comes_too_late (void)
{
  uint64_t addr;

  start (1);
  write_blocks (0, 1, 1);
  settle ();
  addr = address_of (0);
  trim_block (0);
  settle ();
  spoil (addr);
  expect (offer (addr, 1) == 0);
  write_blocks (1, 1, 2);
  settle ();
  expect (address_of (1) == addr);
  expect (offer (addr, 1) == 0);
  expect_content (1, 2);
  spoil (addr);
  expect (offer (addr, 1) == 0);
  expect (offer (addr, 2) == 1);
  expect_scrub (0, 0);
  end ();
}

static void
test_repaired_from_memory (void)
{
  start (1);
  write_blocks (0, 20, 1);
  settle ();
  expect_and_cache (7, 8);
  spoil (address_of (7));
  expect_scrub (0, 1);
  expect_scrub (0, 0);
  reopen_pool ();
  expect_content (7, 8);
  end ();
}

static uint64_t
die_while_repairing (void)
{
  uint64_t addr = address_of (7);

  spoil (addr);
  crash_at_sync = 1;
  offer (addr, 8);
  return addr;
}

/* A repair was killed, possibly when only a part was written. */
static void
test_killed_while_repairing (void)
{
  uint8_t buf[BLOCK];
  uint64_t addr;

  start (1);
  write_blocks (0, 20, 1);
  settle ();
  close_pool ();
  crash_after (die_while_repairing);
  open_and_attach ();
  addr = address_of (7);
  fill (buf, 8);
  spoil (addr);
  put_into_records (addr, buf, 512);
  expect_scrub (1, 0);
  expect (offer (addr, 8) == 1);
  expect_content (7, 8);
  expect_scrub (0, 0);
  end ();
}

static const struct engine_case cases[] = {
  CASE (offer_is_written_and_synced),
  CASE (offer_comes_too_late),
  CASE (killed_while_repairing),
  CASE (repaired_from_memory),
  { NULL, NULL },
};

/* test-scrub [NAME...] */
int
main (int argc, char *argv[])
{
  return run_cases (argc, argv, cases);
}

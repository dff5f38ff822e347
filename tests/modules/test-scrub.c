/* SPDX-License-Identifier: BSD-3-Clause */

/* Scrub rewrites damaged records, durably, and no others; it is killed in the
 * middle, and offers come too late.  See engine-rig.h.
 */

#include <config.h>

#include <fcntl.h>

#include "base/cleanup.h"
#include "report/scrub.h"
#include "rigs/engine-rig.h"
#include "vfs/cksum-snapshot.h"

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

/* Ends the scrub while it waits for another command, when all readers of
 * pool.db are free.
 */
static int
stop_when_waiting (void *opaque, uint64_t done, uint64_t total)
{
  struct meta_conn *c[NR_READERS];
  unsigned nr = 0, i;

  (void) opaque;
  (void) done;
  (void) total;
  if (turn_awaited () == NULL)
    return 0;
  while (nr < NR_READERS && (c[nr] = meta_reader_try (pool->meta)) != NULL)
    ++nr;
  for (i = 0; i < nr; ++i)
    meta_reader_put (pool->meta, c[i]);
  return nr == NR_READERS ? -1 : 0;
}

static void
scrub_until_it_waits (uint64_t arg)
{
  const struct scrub_args args = { .restart = true };

  (void) arg;
  expect (scrub_run (pool, &args, stop_when_waiting, NULL) == NULL);
  expect (errno == EINTR);
}

static int
go_on (void *opaque)
{
  (void) opaque;
  return 0;
}

/* Another command has the pool for long: a scrub that must name the damage
 * reads nothing meanwhile, which would keep the WAL from starting again, and the
 * user can end it.
 */
static void
test_waits_for_commands_without_a_reader (void)
{
  struct job scrub = { .done = false };
  const uint64_t begun = clock_ms ();

  start (1);
  write_blocks (0, 20, 1);
  settle ();
  spoil (address_of (7));
  expect (turn_take (&pool->admin_turn, &pool->admin, go_on, NULL) == 0);
  job_start (&scrub, scrub_until_it_waits, 0);
  while (!scrub.done) {
    expect (clock_ms () - begun < GIVE_UP_MS);
    clock_sleep_ms (1);
  }
  job_end (&scrub);
  turn_give (&pool->admin_turn, &pool->admin);
  expect_scrub (1, 0);
  expect (offer (address_of (7), 8) == 1);
  end ();
}

/* The space that a frozen reader takes is needed, while it looks for the places
 * of the damage.
 */
static int
give_way (void *opaque, uint64_t done, uint64_t total)
{
  CLEANUP_FREE char *path = pool_file (directory, "pool.db");
  unsigned *nr = opaque;

  (void) done;
  (void) total;
  if (meta_is_frozen (pool->meta)) {
    cksum_snapshots_give_way (path);
    ++*nr;
  }
  return 0;
}

static void
test_names_damage_although_its_reader_gave_way (void)
{
  const struct scrub_args args = { .restart = true };
  CLEANUP_JSON json_t *result = NULL;
  const json_t *place;
  unsigned nr = 0;

  start (1);
  write_blocks (0, 20, 1);
  settle ();
  spoil (address_of (7));
  result = scrub_run (pool, &args, give_way, &nr);
  expect (result != NULL && nr > 0);
  expect (json_array_size (json_object_get (result, "damaged")) == 1);
  place = json_array_get (json_object_get (result, "damaged"), 0);
  expect (number (place, "offset") == 7 * (json_int_t) BLOCK);
  expect (json_array_size (json_object_get (result, "affected")) == 1);
  expect (offer (address_of (7), 8) == 1);
  end ();
}

static const struct engine_case cases[] = {
  CASE (offer_is_written_and_synced),
  CASE (offer_comes_too_late),
  CASE (killed_while_repairing),
  CASE (repaired_from_memory),
  CASE (waits_for_commands_without_a_reader),
  CASE (names_damage_although_its_reader_gave_way),
  { NULL, NULL },
};

/* test-scrub [NAME...] */
int
main (int argc, char *argv[])
{
  return run_cases (argc, argv, cases);
}

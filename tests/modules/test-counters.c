/* SPDX-License-Identifier: BSD-3-Clause */

/* The counters of clients' requests (data/io-counters.h), as the command
 * "counters" has them.
 */

#include <config.h>

#include "core/engine.h"
#include "data/io-counters.h"
#include "rigs/engine-rig.h"

/* The counters, and the object of the volume of this name in them. */
static json_t *counters;

static void
get_counters (void)
{
  json_decref (counters);
  counters = call ("counters", NULL);
}

static const json_t *
find_volume (const char *name)
{
  json_t *v;
  size_t i;

  json_array_foreach (json_object_get (counters, "volumes"), i, v)
    if (strcmp (json_string_value (json_object_get (v, "name")), name) == 0)
      return v;
  return NULL;
}

static json_int_t
figure (const char *key)
{
  const json_t *v = find_volume ("v");

  if (v == NULL || !json_is_integer (json_object_get (v, key)))
    die ("the volume has no figure \"%s\"", key);
  return number (v, key);
}

static json_int_t
figure_in (const char *object, const char *key)
{
  const json_t *o = json_object_get (counters, object);

  if (!json_is_integer (json_object_get (o, key)))
    die ("%s has no figure \"%s\"", object, key);
  return number (o, key);
}

/* So many requests of one kind, which their latencies add up to. */
static void
expect_op (int line, const char *op, json_int_t requests, json_int_t bytes,
           json_int_t errors)
{
  const json_t *o = json_object_get (find_volume ("v"), op);
  const json_t *latency = json_object_get (o, "latency");
  json_int_t sum = 0;
  json_t *n;
  size_t i;

  json_array_foreach (latency, i, n)
    sum += json_integer_value (n);
  if (number (o, "requests") != requests || number (o, "bytes") != bytes ||
      number (o, "errors") != errors)
    die ("line %d: %s: %d requests, %d bytes, %d errors", line, op,
         (int) number (o, "requests"), (int) number (o, "bytes"),
         (int) number (o, "errors"));
  expect (json_array_size (latency) ==
          json_array_size (json_object_get (counters, "bounds_ns")) + 1);
  expect (sum == requests);
  expect ((number (o, "ns") > 0) == (requests > 0));
}
#define expect_op(...) expect_op (__LINE__, __VA_ARGS__)

static void
test_buckets (void)
{
  expect (io_bucket_of (0) == 0);
  expect (io_bucket_of (1000) == 0);
  expect (io_bucket_of (1001) == 1);
  expect (io_bucket_of (2000) == 1);
  expect (io_bucket_of (2001) == 2);
  expect (io_bucket_of (4000) == 2);
  expect (io_bucket_of (io_bucket_ns (IO_BUCKETS - 2)) == IO_BUCKETS - 2);
  expect (io_bucket_of (io_bucket_ns (IO_BUCKETS - 2) + 1) == IO_BUCKETS - 1);
  expect (io_bucket_of (UINT64_MAX) == IO_BUCKETS - 1);
}

static void
test_requests (void)
{
  uint8_t buf[3 * BLOCK] = { 1 };

  start (1);
  get_counters ();
  expect_op ("read", 0, 0, 0);
  must (nbdedup_volume_write (handle, buf, 3 * BLOCK, 0));
  must (nbdedup_volume_write (handle, buf, 100, 5));
  must (nbdedup_volume_read (handle, buf, 700, 13));
  must (nbdedup_volume_flush (handle));
  must (nbdedup_volume_flush_range (handle, BLOCK, 0));
  must (nbdedup_volume_trim (handle, BLOCK, 0));
  must (nbdedup_volume_zero (handle, 2 * BLOCK, 0));
  get_counters ();
  expect_op ("write", 2, 3 * BLOCK + 100, 0);
  expect_op ("read", 1, 700, 0);
  expect_op ("flush", 2, 0, 0);
  expect_op ("trim", 1, BLOCK, 0);
  expect_op ("zero", 1, 2 * BLOCK, 0);
  expect (figure ("requests") == 0);
  end ();
}

/* What fails is an error, and nothing else. */
static void
test_errors (void)
{
  uint8_t buf[BLOCK] = { 1 };
  struct nbdedup_volume *reader;

  start (1);
  expect (nbdedup_volume_read (handle, buf, BLOCK, UINT64_MAX / 2) == -1);
  expect (nbdedup_volume_flush_range (handle, BLOCK, UINT64_MAX / 2) == -1);
  reader = nbdedup_volume_open (pool, "v", NBDEDUP_VOLUME_READONLY, -1, NULL);
  expect (nbdedup_volume_write (reader, buf, BLOCK, 0) == -1);
  expect (errno == EROFS);
  expect (nbdedup_volume_trim (reader, BLOCK, 0) == -1);
  expect (nbdedup_volume_zero (reader, BLOCK, 0) == -1);
  nbdedup_volume_close (reader);
  get_counters ();
  expect_op ("read", 0, 0, 1);
  expect_op ("write", 0, 0, 1);
  expect_op ("flush", 0, 0, 1);
  expect_op ("trim", 0, 0, 1);
  expect_op ("zero", 0, 0, 1);
  expect (figure ("requests") == 0);
  end ();
}

static void
test_dedup (void)
{
  start (1);
  write_block (0, 1);
  write_block (1, 2);
  write_block (2, 2); /* equal to one of the same batch */
  write_block (3, 0);
  must (nbdedup_volume_flush (handle));
  write_block (4, 1); /* equal to one that is stored */
  must (nbdedup_volume_flush (handle));
  get_counters ();
  expect (figure ("dedup_hits") == 2);
  expect (figure ("dedup_misses") == 2);
  expect (figure ("zero_blocks") == 1);
  expect (figure ("stored_bytes") == 2 * BLOCK);
  expect (figure_in ("traffic", "records_written_bytes") >= 2 * BLOCK);
  expect (figure_in ("traffic", "journal_written_bytes") > 0);
  settle ();
  get_counters ();
  expect (figure_in ("activity", "folds") > 0);
  expect (figure_in ("traffic", "wal_written_bytes") > 0);
  end ();
}

static void
expect_cache (json_int_t hits, json_int_t misses)
{
  get_counters ();
  if (figure ("cache_hits") != hits || figure ("cache_misses") != misses)
    die ("%d hits and %d misses", (int) figure ("cache_hits"),
         (int) figure ("cache_misses"));
}

static void
test_cache (void)
{
  uint8_t buf[4 * BLOCK];

  start (1);
  write_blocks (0, 2, 1);
  reopen_pool ();
  expect_cache (0, 0);
  /* Two blocks of data, which come to the cache one by one, and two holes. */
  must (nbdedup_volume_read (handle, buf, BLOCK, 0));
  must (nbdedup_volume_read (handle, buf, 3 * BLOCK, BLOCK));
  expect_cache (0, 2);
  must (nbdedup_volume_read (handle, buf, BLOCK + 1, 0));
  expect_cache (2, 2);
  expect (figure_in ("cache", "record_bytes") >= BLOCK);
  expect (figure_in ("traffic", "records_read_bytes") >= 2 * BLOCK);
  /* A dirty block. */
  write_block (5, 3);
  must (nbdedup_volume_read (handle, buf, 10, 5 * BLOCK));
  expect_cache (3, 2);
  expect (figure ("dirty_bytes") == BLOCK);
  must (nbdedup_volume_flush (handle));
  get_counters ();
  expect (figure ("dirty_bytes") == 0);
  end ();
}

/* A client that leaves leaves its counts, and each is counted once. */
static void
test_clients (void)
{
  struct nbdedup_volume *second;
  uint8_t buf[BLOCK] = { 1 };

  start (1);
  run ("snapshot", json_pack ("{s:s}", "name", "v@s"));
  run ("create", json_pack ("{s:s, s:i}", "name", "idle", "size", 4096));
  second = open_volume ("v");
  must (nbdedup_volume_write (handle, buf, BLOCK, 0));
  must (nbdedup_volume_write (second, buf, BLOCK, 0));
  get_counters ();
  expect (figure ("clients") == 2);
  expect (figure_in ("queues", "clients") == 2);
  expect_op ("write", 2, 2 * BLOCK, 0);
  nbdedup_volume_close (second);
  get_counters ();
  expect (figure ("clients") == 1);
  expect_op ("write", 2, 2 * BLOCK, 0);
  second = open_volume ("v");
  must (nbdedup_volume_write (second, buf, BLOCK, 0));
  nbdedup_volume_close (second);
  second = open_name ("v@s");
  must (nbdedup_volume_read (second, buf, BLOCK, 0));
  nbdedup_volume_close (second);
  get_counters ();
  expect_op ("write", 3, 3 * BLOCK, 0);
  expect (number (json_object_get (find_volume ("v@s"), "read"), "requests") ==
          1);
  expect (find_volume ("idle") == NULL);
  end ();
}

static void
test_queues (void)
{
  const uint64_t begun = clock_ms ();
  struct job flush;

  start (1);
  write_and_stall (&flush, 0, 1);
  get_counters ();
  expect (figure ("requests") == 1);
  expect (figure ("dirty_bytes") == BLOCK);
  expect (figure_in ("queues", "requests") == 1);
  expect (figure_in ("queues", "dirty_bytes") == BLOCK);
  expect (figure_in ("queues", "busy_workers") == 1);
  expect (figure_in ("queues", "workers") == 1);
  unstall ();
  job_end (&flush);
  get_counters ();
  expect (figure ("requests") == 0);
  /* The worker gives the memory back after it has woken the flush. */
  while (figure_in ("queues", "dirty_bytes") +
           figure_in ("queues", "busy_workers") >
         0) {
    expect (clock_ms () - begun < GIVE_UP_MS);
    clock_sleep_ms (1);
    get_counters ();
  }
  end ();
}

static void
do_counters (uint64_t arg)
{
  (void) arg;
  get_counters ();
}

/* Another command is at work. */
static void
test_no_waiting (void)
{
  const uint64_t begun = clock_ms ();
  struct job job;

  start (1);
  lock_acquire (&pool->admin);
  job_start (&job, do_counters, 0);
  while (!job.done && clock_ms () - begun < GIVE_UP_MS)
    clock_sleep_ms (1);
  expect (job.done);
  lock_release (&pool->admin);
  job_end (&job);
  end ();
}

static const struct engine_case cases[] = {
  CASE (buckets), CASE (requests),   CASE (errors),
  CASE (dedup),   CASE (cache),      CASE (clients),
  CASE (queues),  CASE (no_waiting), { NULL, NULL },
};

/* test-counters [NAME...] */
int
main (int argc, char *argv[])
{
  const int r = run_cases (argc, argv, cases);

  json_decref (counters);
  return r;
}

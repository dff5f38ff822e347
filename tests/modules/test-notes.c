/* SPDX-License-Identifier: BSD-3-Clause */

/* The pool's notes: when folds were, and what ddt-quota kept out of the index;
 * over restarts and crashes.  See engine-rig.h.
 */

#include <config.h>

#include <inttypes.h>
#include <stdatomic.h>
#include <time.h>

#include "base/cleanup.h"
#include "core/ddt.h"
#include "core/notes.h"
#include "core/txg.h"
#include "data/writeback-int.h"
#include "meta/meta.h"
#include "rigs/engine-rig.h"

#define HOUR 3600
#define DAY (24 * HOUR)
#define YEAR (365 * (time_t) DAY)
#define NR_STEPS 6

/* The engine's clock of dates. */
static _Atomic time_t clock_s = 1000000000;

time_t
time (time_t *t)
{
  if (t)
    *t = clock_s;
  return clock_s;
}

static uint64_t
fold_now (void)
{
  struct meta_state state;

  txg_get_state (pool->txg, &state);
  return state.fold;
}

/* What "prune --age" would take for the last old fold; 0: there is none. */
static uint64_t
fold_of_age (uint64_t age_s)
{
  uint64_t fold;

  return notes_fold_of_age (pool->notes, age_s, &fold) ? fold : 0;
}

/* A fold that changes the pool's totals. */
static void
make_fold (void)
{
  static uint64_t content = 1;

  write_block (content % NR_BLOCKS, content);
  content++;
  settle ();
}

static size_t
stored_len (void)
{
  struct meta_conn *c = meta_reader_get (pool->meta);
  CLEANUP_FREE char *text = NULL;
  size_t len = 0;

  if (meta_report_get (c, "folds", &text) == 1)
    len = strlen (text);
  meta_reader_put (pool->meta, c);
  return len;
}

/*----------------------------------------------------------------------*/

static void
test_ages (void)
{
  uint64_t first, second;

  start (1);
  make_fold ();
  first = fold_now ();
  expect (fold_of_age (0) == first && fold_of_age (1) == 0);
  clock_s += 100;
  make_fold ();
  make_fold ();
  second = fold_now ();
  expect (fold_of_age (0) == second);
  expect (fold_of_age (1) == first && fold_of_age (100) == first);
  expect (fold_of_age (101) == 0);
  clock_s += 100;
  reopen_pool ();
  expect (fold_of_age (100) == second && fold_of_age (101) == first);
  end ();
}

/* For many years: the times stay few, and each age is known to an eighth. */
static void
test_retention (void)
{
  static const time_t steps[NR_STEPS] = { 1, 60, HOUR, DAY, DAY, 7 * DAY };
  uint64_t age, fold, folds[NR_STEPS * 400 + 1];
  time_t times[NR_STEPS * 400 + 1];
  size_t nr = 0, i, j;

  start (1);
  folds[nr] = fold_of_age (0); /* when the pool was made */
  times[nr++] = clock_s;
  /* The youngest are the closest. */
  for (i = NR_STEPS; i > 0; --i)
    for (j = 0; j < 400; ++j) {
      clock_s += steps[i - 1];
      make_fold ();
      folds[nr] = fold_now ();
      times[nr++] = clock_s;
    }
  expect (stored_len () < 8000);
  for (age = 0; age <= (uint64_t) (clock_s - times[0]); age += 1 + age / 50) {
    fold = fold_of_age (age);
    for (i = 0; i < nr && folds[i] < fold; ++i)
      ;
    expect (i < nr && folds[i] == fold);
    expect ((uint64_t) (clock_s - times[i]) >= age);
    /* The next one that it could have been is not much younger. */
    for (j = i; j + 1 < nr && (uint64_t) (clock_s - times[j + 1]) >= age; ++j)
      ;
    expect ((uint64_t) (times[j] - times[i]) <=
            (uint64_t) (clock_s - times[i]) / 7 + 2);
  }
  end ();
}

/* No record may seem older than it is. */
static void
test_clock_set_back (void)
{
  uint64_t before;

  start (1);
  make_fold ();
  before = fold_now ();
  clock_s += 10 * DAY;
  make_fold ();
  clock_s -= 5 * DAY;
  make_fold ();
  expect (fold_of_age (1) == before && fold_of_age (5 * DAY) == before);
  clock_s += DAY;
  make_fold ();
  expect (fold_of_age (DAY + 1) == before);
  expect (fold_of_age (DAY) > before);
  clock_s = 500; /* an empty battery */
  expect (fold_of_age (0) == 0);
  make_fold ();
  expect (fold_of_age (0) == fold_now () && fold_of_age (1) == 0);
  clock_s = 1000000000;
  end ();
}

/* Records of the time when the clock was slow, and those before it, count from
 * when it was set.
 */
static void
test_slow_clock (void)
{
  uint64_t right, set;

  start (1);
  clock_s += DAY;
  make_fold ();
  right = fold_now ();
  clock_s -= 10 * YEAR;
  expect (fold_of_age (0) == 0);
  make_fold ();
  clock_s += 10;
  make_fold ();
  expect (fold_of_age (10) == fold_now () - 1); /* so long it was at least */
  clock_s += 10 * YEAR;
  expect (fold_of_age (0) == right && fold_of_age (11) < right);
  make_fold ();
  set = fold_now ();
  clock_s += DAY;
  reopen_pool ();
  expect (fold_of_age (DAY) == set);
  expect (fold_of_age (DAY + 10) == right);
  expect (fold_of_age (DAY + 11) < right);
  end ();
}

/* Records of the time when the clock was fast count from when it was set, and
 * do not make later ones unknown.
 */
static void
test_fast_clock (void)
{
  uint64_t right, fast, set;

  start (1);
  make_fold ();
  right = fold_now ();
  clock_s += 10 * YEAR;
  make_fold ();
  fast = fold_now ();
  clock_s += 10 - 10 * YEAR;
  expect (fold_of_age (0) == right && fold_of_age (10) == right);
  make_fold ();
  set = fold_now ();
  expect (set > fast && fold_of_age (0) == set);
  clock_s += DAY;
  make_fold ();
  reopen_pool ();
  expect (fold_of_age (DAY) == set && fold_of_age (DAY + 10) == right);
  /* Then the wrong time is reached. */
  clock_s += 11 * YEAR;
  make_fold ();
  expect (fold_of_age (0) == fold_now () && fold_of_age (YEAR / 2) == fast);
  expect (fold_of_age (11 * YEAR + DAY + 10) == right);
  end ();
}

/* A clock that is right at first, and when someone asks. */
static void
test_clock_of_no_use (void)
{
  static const time_t offsets[] = { 0, 10 * YEAR, -10 * YEAR, 40 * YEAR };
  static time_t births[4000]; /* by fold */
  time_t now = clock_s, offset = 0;
  uint64_t age, fold, nr = 0;
  struct rng rng = rng_make (1, 1);
  unsigned i;

  start (1);
  while (nr <= fold_now ())
    births[nr++] = now;
  for (i = 0; i < 300; ++i) {
    now += 1 + (time_t) rng_below (&rng, DAY);
    if (i > 10 && rng_percent (&rng, 20))
      offset = offsets[rng_below (&rng, 4)];
    clock_s = now + offset;
    make_fold ();
    clock_s = now;
    expect (fold_now () < sizeof births / sizeof births[0]);
    while (nr <= fold_now ())
      births[nr++] = now;
    for (age = 1; age < 1000 * DAY; age *= 3) {
      fold = fold_of_age (age);
      expect (fold == 0 || births[fold] + (time_t) age <= now);
    }
  }
  expect (fold_of_age (100 * DAY) > 0);
  expect (stored_len () < 12000);
  end ();
}

static void
expect_quota (uint64_t blocks)
{
  struct notes_quota quota;

  settle ();
  notes_get_quota (pool->notes, &quota);
  if (quota.blocks != blocks || quota.bytes != blocks * BLOCK)
    die ("over quota: %" PRIu64 " blocks, %" PRIu64 " bytes, expected %" PRIu64
         " blocks",
         quota.blocks, quota.bytes, blocks);
}

/* 21 entries reach a quota of 1K: a batch of each worker may pass it. */
#define QUOTA_ENTRIES 21
#define WORKERS 2

static uint64_t
entries (void)
{
  struct meta_state state;

  settle ();
  txg_get_state (pool->txg, &state);
  expect (ddt_index_entries (pool->ddt) == state.index_entries);
  return state.index_entries;
}

/* Records count before a fold has written them, and no more when they die. */
static void
test_quota_between_folds (void)
{
  const uint64_t most = QUOTA_ENTRIES + WORKERS * BATCH_BLOCKS;
  uint64_t nr;

  start (WORKERS);
  run ("set", json_pack ("{s:s, s:s}", "property", "ddt-quota", "value", "1K"));
  write_blocks (0, 1000, 1);
  must (nbdedup_volume_flush (handle));
  nr = ddt_index_entries (pool->ddt);
  expect (nr >= QUOTA_ENTRIES && nr <= most);
  expect (entries () == nr);
  expect_quota (1000 - nr);
  /* It knows what pool.db has, and what the journal adds. */
  reopen_pool ();
  expect (ddt_index_entries (pool->ddt) == nr);
  write_blocks (0, 1000, 2001);
  expect_quota (2000 - nr - entries ());
  run ("prune", json_pack ("{s:i}", "percent", 100));
  expect (entries () == 0);
  write_blocks (0, 10, 3001);
  must (nbdedup_volume_flush (handle));
  expect (ddt_index_entries (pool->ddt) == 10);
  /* New ones that are overwritten before a fold. */
  write_blocks (0, 10, 4001);
  must (nbdedup_volume_flush (handle));
  expect (entries () == 10);
  end ();
}

static uint64_t
write_over_quota (void)
{
  write_blocks (100, 50, 100);
  settle (); /* durable, with its count */
  write_blocks (200, 30, 200);
  must (nbdedup_volume_flush (handle));
  write_block (230, 230); /* the journal carries it */
  must (nbdedup_volume_flush (handle));
  return 0;
}

/* The next txg counts while a fold writes the counts of the last one. */
static int
write_amid_fold (void *arg, struct meta_conn *c, struct meta_state *state)
{
  (void) arg;
  (void) c;
  (void) state;
  write_blocks (300, 30, 300);
  return nbdedup_volume_flush (handle);
}

static uint64_t
write_around_fold (void)
{
  write_blocks (400, 30, 400);
  must (txg_run (pool->txg, write_amid_fold, NULL, NULL));
  return 0;
}

static uint64_t
write_without_dedup (void)
{
  run ("set",
       json_pack ("{s:s, s:s, s:s}", "property", "dedup", "value", "off",
                  "name", "v"));
  write_blocks (500, 30, 500);
  must (nbdedup_volume_flush (handle));
  return 0;
}

static void
test_quota (void)
{
  start (1);
  run ("set", json_pack ("{s:s, s:s}", "property", "ddt-quota", "value", "1K"));
  write_blocks (0, QUOTA_ENTRIES, 1); /* below it until the last */
  settle ();
  write_blocks (50, 10, 51);
  settle ();
  write_blocks (60, 10, 51); /* not found: they are not in the index */
  expect_quota (10 + 10);
  close_pool ();
  (void) crash_after (write_over_quota);
  (void) crash_after (write_around_fold);
  (void) crash_after (write_without_dedup);
  open_and_attach ();
  expect_quota (20 + 50 + 31 + 2 * 30);
  end ();
}

/* A pool from before there were notes has neither. */
static int
forget_notes (void *arg, struct meta_conn *c, struct meta_state *state)
{
  (void) arg;
  (void) state;
  return meta_report_put (c, "folds", "[1, \"x\"]") == -1 ||
      meta_report_put (c, "ddt-quota", "nonsense") == -1
    ? -1
    : 0;
}

static void
test_nothing_there (void)
{
  start (1);
  make_fold ();
  must (txg_run (pool->txg, forget_notes, NULL, NULL));
  reopen_pool ();
  expect (fold_of_age (1) == 0);
  clock_s += 10;
  make_fold ();
  expect (fold_of_age (10) > 0);
  expect_quota (0);
  end ();
}

int
main (int argc, char *argv[])
{
  static const struct engine_case cases[] = {
    CASE (quota),      CASE (quota_between_folds), CASE (ages),
    CASE (retention),  CASE (clock_set_back),      CASE (slow_clock),
    CASE (fast_clock), CASE (clock_of_no_use),     CASE (nothing_there),
    { NULL, NULL },
  };

  return run_cases (argc, argv, cases);
}

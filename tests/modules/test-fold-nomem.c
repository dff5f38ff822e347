/* SPDX-License-Identifier: BSD-3-Clause */

/* The folding thread gets no memory, once: at its first request, its second,
 * and so on through a whole fold.  The thread tries the fold again, and no
 * client notices.  Also: a client's request that fails for lack of memory loses
 * nothing.
 */

#include <config.h>

#include "core/txg.h"
#include "data/verify.h"
#include "data/writeback.h"
#include "report/copier.h"
#include "rigs/engine-rig.h"

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__

/* A sanitizer's malloc cannot be replaced. */
int
main (void)
{
  return 77;
}

#else

extern void *__libc_malloc (size_t len);
extern void *__libc_calloc (size_t nr, size_t len);
extern void *__libc_realloc (void *p, size_t len);

static pthread_t folder;
static atomic_long countdown; /* to the request that fails; 0: none */
static atomic_bool has_failed;
static atomic_bool lasting;   /* and all that follow fail */
static atomic_bool only_ours; /* SQLite does not call calloc */

static bool
fails (void)
{
  if ((countdown == 0 && !lasting) ||
      !pthread_equal (pthread_self (), folder) ||
      (atomic_fetch_sub (&countdown, 1) != 1 && !(lasting && has_failed)))
    return false;
  has_failed = true;
  errno = ENOMEM;
  return true;
}

void *
malloc (size_t len)
{
  return !only_ours && fails () ? NULL : __libc_malloc (len);
}

void *
calloc (size_t nr, size_t len)
{
  return fails () ? NULL : __libc_calloc (nr, len);
}

void *
realloc (void *p, size_t len)
{
  return !only_ours && fails () ? NULL : __libc_realloc (p, len);
}

/* Give a fold all kinds of work: new records, dying ones, holes, duplicates
 * (and copies: see copy_records).
 */
static void
write_all_kinds (uint64_t nth)
{
  write_blocks (0, 40, 1000 * nth);
  write_blocks (64, 4, 77);
  write_blocks (nth % 100 * 16 + 200, 3, 1000 * nth + 500);
  trim_block (nth % 100 * 16 + 201);
  must (writeback_drain (pool->writeback, NULL));
}

/* Make a copy that the next fold keeps, and one whose record dies in it. */
static void
copy_records (uint64_t nth)
{
  uint64_t bytes = 0;
  struct verifier v;

  must (verifier_init (&v, pool));
  expect (copier_copy (pool, &v, address_of (nth % 100 * 16 + 200), &bytes) ==
          1);
  expect (copier_copy (pool, &v, address_of (0), &bytes) == 1);
  verifier_free (&v);
}

static void
test_fold (void)
{
  uint64_t nth;

  start (1);
  run ("set", json_pack ("{s:s,s:s}", "property", "copies", "value", "2:1"));
  folder = find_folder ();
  has_failed = true;
  for (nth = 1; has_failed; ++nth) {
    write_all_kinds (nth);
    has_failed = false;
    countdown = (long) nth;
    must (txg_run (pool->txg, NULL, NULL, NULL));
    countdown = 0;
    expect_content (39, 1000 * nth + 39);
    expect_content (nth % 100 * 16 + 201, 0);
    check_pool ();
    copy_records (nth);
  }
  printf ("%" PRIu64 " requests\n", nth - 2);
  expect (nth > 20);
  end ();
}

/* The same, but close and open the pool after each fold. */
static void
test_opened_again (void)
{
  uint64_t nth;

  start (1);
  has_failed = true;
  for (nth = 1; has_failed; nth += 7) {
    folder = find_folder ();
    write_all_kinds (nth);
    must (nbdedup_volume_flush (handle));
    has_failed = false;
    countdown = (long) nth;
    must (txg_run (pool->txg, NULL, NULL, NULL));
    countdown = 0;
    reopen_pool ();
    expect_content (39, 1000 * nth + 39);
    expect_content (nth % 100 * 16 + 201, 0);
  }
  end ();
}

/* There is no memory from some moment on.  Unless the fold can do without, the
 * thread that waits for it gets an error in the end.  When there is memory
 * again folds succeed.
 */
static void
try_to_fold (uint64_t arg)
{
  (void) arg;
  expect (txg_run (pool->txg, NULL, NULL, NULL) == 0 || errno == ENOMEM);
}

static void
fold_without_memory (uint64_t nth)
{
  struct job job;
  unsigned ms;

  close_pool (); /* no statement is prepared */
  open_and_attach ();
  folder = find_folder ();
  write_all_kinds (nth);
  has_failed = false;
  lasting = true;
  countdown = (long) nth;
  job_start (&job, try_to_fold, 0);
  for (ms = 0; !job.done; ++ms) {
    if (ms == GIVE_UP_MS)
      die ("request %" PRIu64 ": the fold does not end", nth);
    poll (NULL, 0, 1);
  }
  job_end (&job);
  expect (has_failed);
  lasting = false;
  countdown = 0;
  must (txg_run (pool->txg, NULL, NULL, NULL));
  expect_content (39, 1000 * nth + 39);
  expect_content (nth % 100 * 16 + 201, 0);
  check_pool ();
}

/* How many requests a fold makes. */
static uint64_t
nr_requests (uint64_t nth)
{
  const long many = 1 << 20;
  long left;

  close_pool ();
  open_and_attach ();
  folder = find_folder ();
  write_all_kinds (nth);
  countdown = many;
  must (txg_run (pool->txg, NULL, NULL, NULL));
  left = countdown;
  countdown = 0;
  return (uint64_t) (many - left);
}

static void
test_lasting (void)
{
  const unsigned step = sweep_step ();
  uint64_t nth, nr;

  start (1);
  for (nth = 25; nth < 80; nth += 24 * step)
    fold_without_memory (nth);
  only_ours = true;
  for (nth = 2; nth < 20; nth += 6 * step)
    fold_without_memory (nth);
  /* Most are for records that die. */
  nr = nr_requests (nth);
  fold_without_memory (nr / 2);
  only_ours = false;
  end ();
}

/* A trim that fails keeps an earlier write that is not flushed yet. */
static void
test_trim (void)
{
  start (1);
  write_block (0, 1);
  close_pool (); /* the journal's buffer has no memory */
  open_and_attach ();
  write_block (0, 2);
  folder = pthread_self ();
  has_failed = lasting = true;
  expect (nbdedup_volume_trim (handle, BLOCK, 0) == -1 && errno == ENOMEM);
  lasting = false;
  expect_content (0, 2);
  do_flush (0);
  expect_content (0, 2);
  trim_block (0);
  expect_content (0, 0);
  end ();
}

static const struct engine_case cases[] = {
  CASE (fold), CASE (opened_again), CASE (lasting), CASE (trim), { NULL, NULL },
};

/* test-fold-nomem [NAME...] */
int
main (int argc, char *argv[])
{
  const char *libraries = getenv ("LD_PRELOAD");

  /* valgrind's malloc cannot be replaced either. */
  if (libraries && strstr (libraries, "vgpreload"))
    return 77;
  return run_cases (argc, argv, cases);
}

#endif

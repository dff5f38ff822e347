/* SPDX-License-Identifier: BSD-3-Clause */

/* Threads read ahead of a fold whose rows come from the disk (fold-ahead.h),
 * and of no other; and the fold never waits for a reader of pool.db.
 */

#include <config.h>

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/txg.h"
#include "data/writeback.h"
#include "rigs/engine-rig.h"

#define NR_LEAVES (NR_BLOCKS / LEAF_BLOCKS)

static atomic_bool disk_is_slow; /* nothing that is read was in memory */
static pthread_t folder;
static atomic_uint looks; /* of the folding thread, at a slow disk */
static atomic_uint reads_elsewhere;
static atomic_uint waits_ms;

/* Of the calling thread, instead of libc's. */
int
getrusage (int who, struct rusage *usage)
{
  const int r = (int) syscall (SYS_getrusage, who, usage);

  if (disk_is_slow && pthread_equal (pthread_self (), folder))
    usage->ru_inblock = 100000L * ++looks;
  return r;
}

/* The fold is slow as well: after its second look, at which the threads start,
 * it waits for one of them to read.
 */
static void
count_read (void)
{
  if (!pthread_equal (pthread_self (), folder)) {
    reads_elsewhere++;
    return;
  }
  while (looks > 1 && reads_elsewhere == 0 && waits_ms++ < GIVE_UP_MS / 4)
    poll (NULL, 0, 1);
}

/* Overwrite a block of each leaf, some of them with what others have. */
static void
overwrite (uint64_t content)
{
  unsigned i;

  for (i = 0; i < NR_LEAVES; ++i)
    write_block (i * LEAF_BLOCKS + i, content + i / 2 * 2);
  must (writeback_drain (pool->writeback, NULL));
}

static void
expect_overwritten (uint64_t content)
{
  unsigned i;

  for (i = 0; i < NR_LEAVES; ++i) {
    expect_content (i * LEAF_BLOCKS + i, content + i / 2 * 2);
    expect_content (i * LEAF_BLOCKS + 63 - i, 1 + i * LEAF_BLOCKS + 63 - i);
  }
}

/* Pages that another thread than the fold's reads from pool.db in a fold.  The
 * server has just been started, so its readers have no pages yet.
 */
static unsigned
count_reads_elsewhere (bool is_slow, uint64_t content)
{
  unsigned n;

  reopen_pool ();
  folder = find_folder ();
  overwrite (content);
  reads_elsewhere = looks = waits_ms = 0;
  at_read_of_db = count_read;
  disk_is_slow = is_slow;
  must (txg_run (pool->txg, NULL, NULL, NULL));
  disk_is_slow = false;
  at_read_of_db = NULL;
  n = reads_elsewhere;
  expect_overwritten (content);
  check_pool ();
  return n;
}

static void
test_reads (void)
{
  unsigned slow;

  start (1);
  write_blocks (0, NR_BLOCKS, 1);
  expect (count_reads_elsewhere (false, 10000) == 0);
  slow = count_reads_elsewhere (true, 20000);
  printf ("%u reads ahead\n", slow);
  expect (slow > 0);
  end ();
}

/* A thread that has a reader may wait for the fold. */
static void
test_no_reader (void)
{
  struct job fold;
  unsigned ms;

  start (1);
  write_blocks (0, NR_BLOCKS, 1);
  settle ();
  folder = find_folder ();
  overwrite (10000);
  looks = 0;
  disk_is_slow = true;
  stall ();
  job_start (&fold, do_fold, 0);
  for (ms = 0; !fold.done && ms < GIVE_UP_MS; ++ms)
    poll (NULL, 0, 1);
  expect (fold.done && looks > 1);
  job_end (&fold);
  unstall ();
  disk_is_slow = false;
  expect_overwritten (10000);
  end ();
}

static const struct engine_case cases[] = {
  CASE (reads),
  CASE (no_reader),
  { NULL, NULL },
};

int
main (int argc, char *argv[])
{
  return run_cases (argc, argv, cases);
}

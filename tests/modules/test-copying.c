/* SPDX-License-Identifier: BSD-3-Clause */

/* Threads copy blocks without a lock.  A trap stops a copy half-way: the second
 * half of its buffer is a page without access, and the handler of SIGSEGV waits
 * until the test gives access.  See engine-rig.h.
 */

#include <config.h>

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/record-cache.h"
#include "data/volume-types.h"
#include "data/writeback-int.h"
#include "rigs/engine-rig.h"

static struct {
  uint8_t *area, *buf; /* a block, half of it in the second page */
  size_t page;
  int go[2]; /* a pipe */
  atomic_bool hit;
} trap;

static void
on_fault (int sig, siginfo_t *info, void *context)
{
  const uint8_t *where = info->si_addr;
  char c;

  (void) context;
  if (where < trap.area + trap.page || where >= trap.area + 2 * trap.page ||
      trap.hit) {
    signal (sig, SIG_DFL); /* a bug: the second fault ends the test */
    return;
  }
  trap.hit = true;
  while (read (trap.go[0], &c, 1) != 1)
    ;
  mprotect (trap.area + trap.page, trap.page, PROT_READ | PROT_WRITE);
}

static void
set_trap (uint64_t content)
{
  struct sigaction sa = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };

  if (trap.area == NULL) {
    trap.page = (size_t) sysconf (_SC_PAGESIZE);
    trap.area = mmap (NULL, 2 * trap.page, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    expect (trap.area != MAP_FAILED);
    trap.buf = trap.area + trap.page - BLOCK / 2;
    expect (pipe (trap.go) == 0);
    expect (sigaction (SIGSEGV, &sa, NULL) == 0);
  }
  fill (trap.buf, content);
  trap.hit = false;
  mprotect (trap.area + trap.page, trap.page, PROT_NONE);
}

static void
wait_for (const atomic_bool *flag)
{
  unsigned ms;

  for (ms = 0; !*flag; ++ms) {
    if (ms == GIVE_UP_MS / 4)
      die ("what should go on waits");
    poll (NULL, 0, 1);
  }
}

/* A worker gives back its buffers after it has ended the flush. */
static void
wait_for_memory (void)
{
  unsigned ms;

  for (ms = 0; pool->writeback->memory.bytes > 0; ++ms) {
    if (ms == GIVE_UP_MS / 4)
      die ("a buffer was not given back");
    poll (NULL, 0, 1);
  }
}

static void
release_trap (struct job *j)
{
  expect (!j->done);
  expect (write (trap.go[1], "", 1) == 1);
  job_end (j);
}

static void
do_trapped_write (uint64_t block)
{
  must (nbdedup_volume_write (handle, trap.buf, BLOCK, block * BLOCK));
}

static void
do_trapped_read (uint64_t block)
{
  must (nbdedup_volume_read (handle, trap.buf, BLOCK, block * BLOCK));
}

static void
start_trapped (struct job *j, void (*fn) (uint64_t), uint64_t block,
               uint64_t content)
{
  set_trap (content);
  job_start (j, fn, block);
  wait_for (&trap.hit);
}

static void
expect_trapped (uint64_t content)
{
  uint8_t wanted[BLOCK];

  fill (wanted, content);
  expect (memcmp (trap.buf, wanted, BLOCK) == 0);
}

static bool
has_inflight (void)
{
  WITH_LOCK (&volume->dirty.lock);
  return !TAILQ_EMPTY (&volume->dirty.inflight_list);
}

static void
test_worker_waits_for_a_copy (void)
{
  struct job writer, flush;

  start (2);
  write_block (5, 1);
  start_trapped (&writer, do_trapped_write, 5, 2);
  job_start (&flush, do_flush, 0);
  poll (NULL, 0, A_WHILE_MS);
  expect (!flush.done && !has_inflight ());
  release_trap (&writer);
  job_end (&flush);
  expect_content (5, 2);
  reopen_pool ();
  expect_content (5, 2);
  end ();
}

static void
do_expect (uint64_t content)
{
  expect_content (5, content);
}

static void
test_reader_waits_for_a_copy (void)
{
  struct job writer, reader;

  start (1);
  write_block (5, 1);
  start_trapped (&writer, do_trapped_write, 5, 2);
  job_start (&reader, do_expect, 2);
  poll (NULL, 0, A_WHILE_MS);
  expect (!reader.done);
  release_trap (&writer);
  job_end (&reader);
  end ();
}

/* It is stored, and other blocks need its buffer. */
static void
test_reader_keeps_its_version (void)
{
  struct job reader;

  start (1);
  write_block (5, 1);
  start_trapped (&reader, do_trapped_read, 5, 3);
  do_flush (0);
  expect (!has_inflight ());
  write_blocks (5, 64, 1000);
  release_trap (&reader);
  expect_trapped (1);
  expect_content (5, 1000);
  end ();
}

static void
test_trimmed_under_a_reader (void)
{
  struct job reader;

  start (1);
  write_block (5, 1);
  start_trapped (&reader, do_trapped_read, 5, 3);
  trim_block (5);
  write_blocks (6, 64, 1000);
  release_trap (&reader);
  expect_trapped (1);
  expect_content (5, 0);
  do_flush (0);
  wait_for_memory ();
  end ();
}

static void
do_write_5 (uint64_t content)
{
  write_block (5, content);
}

static void
test_writer_waits_for_a_reader (void)
{
  struct job reader, writer;

  start (1);
  write_block (5, 1);
  start_trapped (&reader, do_trapped_read, 5, 3);
  job_start (&writer, do_write_5, 2);
  poll (NULL, 0, A_WHILE_MS);
  expect (!writer.done);
  release_trap (&reader);
  job_end (&writer);
  expect_trapped (1);
  expect_content (5, 2);
  end ();
}

/* A write that is not answered yet concerns no flush. */
static void
test_new_version_appears_as_a_whole (void)
{
  struct job writer, flush;

  start (1);
  write_block (6, 1);
  start_trapped (&writer, do_trapped_write, 5, 2);
  job_start (&flush, do_flush, 0);
  wait_for (&flush.done);
  job_end (&flush);
  expect_content (5, 0);
  expect_content (6, 1);
  release_trap (&writer);
  expect_content (5, 2);
  settle ();
  expect_content (5, 2);
  end ();
}

/* All that a client can do, besides block 5 of the first volume. */
static void
do_all (uint64_t arg)
{
  struct nbdedup_volume *w = open_volume ("w");
  uint8_t buf[BLOCK];

  (void) arg;
  fill (buf, 7);
  must (nbdedup_volume_write (w, buf, BLOCK, 5 * BLOCK));
  must (nbdedup_volume_write (w, buf, 100, 5 * BLOCK + 50));
  must (nbdedup_volume_read (w, buf, BLOCK, 5 * BLOCK));
  must (nbdedup_volume_flush (w));
  must (nbdedup_volume_trim (w, BLOCK, 5 * BLOCK));
  nbdedup_volume_close (w);
  write_blocks (100, 3, 8);
  trim_block (101);
  must (nbdedup_volume_flush_range (handle, BLOCK, 100 * BLOCK));
  expect_content (102, 10);
}

/* A fold would wait for a reader, so "w" is made before. */
static void
start_two_volumes (void)
{
  start (1);
  run ("create",
       json_pack ("{s:s,s:I,s:i}", "name", "w", "size",
                  (json_int_t) NR_BLOCKS * BLOCK, "block-size", BLOCK));
}

static void
expect_all_go_on (struct job *trapped)
{
  struct job others;

  job_start (&others, do_all, 0);
  wait_for (&others.done);
  job_end (&others);
  release_trap (trapped);
}

static void
test_nothing_waits_for_a_write (void)
{
  struct job writer;

  start_two_volumes ();
  write_block (5, 1);
  start_trapped (&writer, do_trapped_write, 5, 2);
  expect_all_go_on (&writer);
  expect_content (5, 2);
  end ();
}

static void
test_nothing_waits_for_a_read (void)
{
  struct job reader;

  start_two_volumes ();
  write_block (5, 1);
  start_trapped (&reader, do_trapped_read, 5, 2);
  expect_all_go_on (&reader);
  expect_trapped (1);
  end ();
}

/* The cache may drop a record that is being copied. */
static void
test_nothing_waits_for_a_cached_record (void)
{
  struct job reader;

  start_two_volumes ();
  write_blocks (5, 2, 1);
  settle ();
  expect_and_cache (5, 1);
  expect_and_cache (6, 2);
  start_trapped (&reader, do_trapped_read, 5, 3);
  expect_content (6, 2);
  expect_content (5, 1);
  record_cache_forget (pool->records, address_of (5));
  expect_content (5, 1);
  expect_all_go_on (&reader);
  expect_trapped (1);
  end ();
}

static const struct engine_case cases[] = {
  CASE (worker_waits_for_a_copy),
  CASE (reader_waits_for_a_copy),
  CASE (reader_keeps_its_version),
  CASE (trimmed_under_a_reader),
  CASE (writer_waits_for_a_reader),
  CASE (new_version_appears_as_a_whole),
  CASE (nothing_waits_for_a_write),
  CASE (nothing_waits_for_a_read),
  CASE (nothing_waits_for_a_cached_record),
  { NULL, NULL },
};

int
main (int argc, char *argv[])
{
  return run_cases (argc, argv, cases);
}

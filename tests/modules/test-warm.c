/* SPDX-License-Identifier: BSD-3-Clause */

/* The file "warm": caches and the filter of the hash index from one session to
 * the next.  Whatever is in the file, it may cost time, but no data, and no
 * duplicate is missed again and again.  See engine-rig.h.
 */

#include <config.h>

#include <fcntl.h>
#include <sys/stat.h>

#include "core/ddt.h"
#include "core/map.h"
#include "core/record-cache.h"
#include "core/txg.h"
#include "data/volume-types.h"
#include "data/writeback.h"
#include "disk/warm-file.h"
#include "report/warmer.h"
#include "rigs/engine-rig.h"

/* Fewer than the lookups after which the thread makes a filter. */
#define FEW 128u

static uint8_t uuid[UUID_LEN] = { 1, 2, 3 };
static const struct warm_stamp stamp = { 5, 6, 7 };

static const char *
warm_path (void)
{
  static char path[PATH_MAX + 8];

  snprintf (path, sizeof path, "%s/%s", directory, WARM_FILE);
  return path;
}

/*----------------------------------------------------------------------
 * The file
 */

#define NR_WORDS 20000u

static bool
sum_piece (void *opaque, uint64_t offset, const uint8_t *buf, size_t len)
{
  uint64_t *sum = opaque;
  size_t i;

  for (i = 0; i < len; ++i)
    *sum = mix_two (*sum, offset + i) ^ buf[i];
  return true;
}

static void
write_file (const char *path)
{
  static const struct warm_section sections[] = {
    { .type = WARM_RECORDS, .len = 64 },
    { .type = WARM_LEAVES },
    { .type = WARM_FILTER, .part = 3, .len = NR_WORDS * 8, .nr = 11 },
  };
  struct warm_writer *w = warm_writer_new (path, uuid, &stamp);
  uint64_t word, left;
  unsigned i;

  expect (w != NULL);
  for (i = 0; i < 3; ++i) {
    warm_writer_begin (w, &sections[i]);
    for (left = sections[i].len; left > 0; left -= 8) {
      word = mix (left + i);
      warm_writer_put (w, &word, 8);
    }
    warm_writer_end (w);
  }
  expect (warm_writer_finish (w) == 0);
}

/* How many of its sections are whole; die if one is, but is not right. */
static unsigned
whole_sections (const char *path, const uint64_t right[3])
{
  static const struct {
    enum warm_type type;
    unsigned part;
  } names[] = {
    { WARM_RECORDS, 0 },
    { WARM_LEAVES, 0 },
    { WARM_FILTER, 3 },
  };
  struct warm_file *f = warm_file_open (path, uuid);
  const struct warm_section *s;
  unsigned i, nr = 0;
  uint64_t sum;

  for (i = 0; f && i < 3; ++i) {
    s = warm_file_find (f, names[i].type, names[i].part);
    sum = 1;
    if (s == NULL || warm_file_read (f, s, sum_piece, &sum) == -1)
      continue;
    expect (right == NULL || sum == right[i]);
    expect (i < 2 || s->nr == 11);
    nr++;
  }
  warm_file_close (f);
  return nr;
}

static void
get_sums (uint64_t right[3])
{
  unsigned i;
  uint64_t left, word;

  for (i = 0; i < 3; ++i) {
    right[i] = 1;
    for (left = i == 0 ? 64 : i == 1 ? 0 : NR_WORDS * 8; left > 0; left -= 8) {
      word = mix (left + i);
      sum_piece (&right[i], (i == 0 ? 64 : NR_WORDS * 8) - left,
                 (const uint8_t *) &word, 8);
    }
  }
}

static void
change_byte (const char *path, uint64_t offset, uint8_t flip)
{
  int fd = open (path, O_RDWR);
  uint8_t byte;

  expect (fd != -1 && pread (fd, &byte, 1, (off_t) offset) == 1);
  byte ^= flip;
  expect (pwrite (fd, &byte, 1, (off_t) offset) == 1);
  close (fd);
}

/* Every byte of the header and of the small sections, and some of the large
 * one, has been changed, one at a time; and the file cut at many lengths.
 */
static void
test_damaged_file (void)
{
  struct rng rng = rng_make (1, 1);
  uint64_t right[3], at;
  struct stat st;
  unsigned i;

  start (1);
  close_pool ();
  get_sums (right);
  write_file (warm_path ());
  expect (whole_sections (warm_path (), right) == 3);
  expect (stat (warm_path (), &st) == 0 && (st.st_mode & 0777) == 0600);
  for (i = 0; i < 1000; ++i) {
    at = i < 300 ? i : rng_below (&rng, (uint64_t) st.st_size);
    change_byte (warm_path (), at, (uint8_t) (1 << i % 8));
    expect (whole_sections (warm_path (), right) < 3);
    change_byte (warm_path (), at, (uint8_t) (1 << i % 8));
  }
  expect (whole_sections (warm_path (), right) == 3);
  for (at = (uint64_t) st.st_size; at > 0;) {
    at -= at > 400 ? rng_below (&rng, 4096) % (at - 300) + 1 : 1;
    must (truncate (warm_path (), (off_t) at));
    expect (whole_sections (warm_path (), right) < 3);
  }
  open_and_attach ();
  end ();
}

static void
test_foreign_file (void)
{
  const uint8_t other[UUID_LEN] = { 9 };
  const struct warm_stamp later = { 5, 7, 7 };
  struct warm_file *f;

  start (1);
  write_file (warm_path ());
  expect (warm_file_open (warm_path (), other) == NULL);
  f = warm_file_open (warm_path (), uuid);
  expect (f && warm_file_is_of (f, &stamp) && !warm_file_is_of (f, &later));
  must (warm_file_restamp (f, warm_path (), &later));
  warm_file_close (f);
  f = warm_file_open (warm_path (), uuid);
  expect (f && warm_file_is_of (f, &later) && !warm_file_is_of (f, &stamp));
  /* Another file has replaced it: that one is not touched. */
  write_file (warm_path ());
  expect (warm_file_restamp (f, warm_path (), &later) == -1);
  warm_file_close (f);
  expect (!warm_file_fits (directory, UINT64_C (1) << 60));
  end ();
}

/* A link is not followed, and a FIFO does not stop the open. */
static void
test_other_kinds (void)
{
  char elsewhere[PATH_MAX + 16];
  struct stat st;

  start (1);
  close_pool ();
  unlink (warm_path ());
  snprintf (elsewhere, sizeof elsewhere, "%s.elsewhere", directory);
  write_file (elsewhere);
  must (symlink (elsewhere, warm_path ()));
  expect (warm_file_open (warm_path (), uuid) == NULL);
  write_file (warm_path ()); /* in place of the link */
  expect (lstat (warm_path (), &st) == 0 && S_ISREG (st.st_mode));
  must (unlink (elsewhere));
  must (unlink (warm_path ()));
  must (mkfifo (warm_path (), 0600));
  open_and_attach ();
  end ();
}

/*----------------------------------------------------------------------
 * The filter
 */

static struct ddt_info
info (void)
{
  struct ddt_info i;

  ddt_get_info (pool->ddt, &i);
  return i;
}

/* Write new blocks until there is a filter, or at most 'most'; returns the next
 * content.
 */
static uint64_t
make_filter (uint64_t content, unsigned most)
{
  unsigned ms;
  uint64_t first = content;

  for (ms = 0; info ().filter_bytes == 0; ++ms) {
    if (ms == GIVE_UP_MS)
      die ("there is no filter");
    if (content - first < most) {
      write_blocks (0, 64, content);
      content += 64;
      must (writeback_drain (pool->writeback, NULL));
    }
    poll (NULL, 0, 1);
  }
  return content;
}

/* The contents from 'content' on, written where they are not, become no new
 * records.
 */
static void
expect_duplicates (uint64_t content, unsigned nr)
{
  const uint64_t before = pool_figure ("records");

  settle ();
  ddt_forget_clean (pool->ddt);
  write_blocks (NR_BLOCKS / 2, nr, content);
  settle ();
  expect (pool_figure ("records") == before);
}

/* A pool whose file "warm" has a filter with blocks 512 and 600 in it. */
static void
start_with_filter (void)
{
  start (1);
  write_blocks (512, 64, 1000000);
  make_filter (1, UINT_MAX);
  write_blocks (600, 64, 2000000);
  settle ();
}

static void
test_filter_is_read (void)
{
  start_with_filter ();
  reopen_pool ();
  expect (info ().filter_memory > 0 && info ().filter_bytes == 0);
  write_blocks (700, 8, 3000000);
  make_filter (4000000, FEW);
  expect_duplicates (1000000, 64);
  expect_duplicates (2000000, 64);
  expect_duplicates (3000000, 8);
  end ();
}

/* A session that adds nothing, and one whose few blocks asked for no filter,
 * hand it on.
 */
static void
test_filter_is_handed_on (void)
{
  start_with_filter ();
  reopen_pool ();
  expect (info ().filter_memory > 0);
  reopen_pool ();
  expect (info ().filter_memory > 0);
  write_blocks (700, 4, 3000000);
  reopen_pool ();
  expect (info ().filter_memory > 0);
  make_filter (4000000, FEW);
  expect_duplicates (1000000, 64);
  expect_duplicates (2000000, 64);
  expect_duplicates (3000000, 4);
  end ();
}

static uint64_t
write_and_fold (void)
{
  write_blocks (700, 8, 3000000);
  settle ();
  return 0;
}

/* Entries were added after the save, by a session that was killed. */
static void
test_stale_filter (void)
{
  start_with_filter ();
  close_pool ();
  crash_after (write_and_fold);
  open_and_attach ();
  expect (info ().filter_memory == 0);
  make_filter (4000000, UINT_MAX);
  expect_duplicates (1000000, 64);
  expect_duplicates (3000000, 8);
  end ();
}

static uint64_t
only_write (void)
{
  write_blocks (700, 8, 3000000);
  must (nbdedup_volume_flush (handle));
  return 0;
}

/* The same, but the journal still has them. */
static void
test_stale_before_replay (void)
{
  start_with_filter ();
  close_pool ();
  crash_after (only_write);
  open_and_attach ();
  expect (info ().filter_memory == 0);
  make_filter (4000000, UINT_MAX);
  expect_duplicates (3000000, 8);
  end ();
}

static void
write_some (void)
{
  open_and_attach ();
  write_blocks (700, 8, 3000000);
  must (nbdedup_volume_flush (handle));
}

/* Whatever sync of a close a crash comes at, the filter lacks nothing that the
 * index has.
 */
static void
test_crash_while_saving (void)
{
  unsigned nth;
  bool crashed = true;

  for (nth = 1; crashed; ++nth) {
    start_with_filter ();
    close_pool ();
    crashed = crashes_at_sync (nth, write_some, close_pool);
    open_and_attach ();
    expect (crashed || info ().filter_memory > 0);
    if (info ().filter_memory > 0)
      make_filter (4000000, FEW);
    expect_duplicates (1000000, 64);
    expect_duplicates (2000000, 64);
    expect_duplicates (3000000, 8);
    end ();
  }
  expect (nth > 3);
}

/* Lose all bits of every other part of the filter. */
static void
damage_filter (const uint8_t pool_uuid[UUID_LEN])
{
  struct warm_file *f = warm_file_open (warm_path (), pool_uuid);
  const struct warm_section *s;
  uint8_t buf[8192] = { 0 };
  int fd = open (warm_path (), O_WRONLY);
  unsigned i;

  expect (f != NULL && fd != -1);
  for (i = 0; i < 64; i += 2) {
    s = warm_file_find (f, WARM_FILTER, i);
    expect (s != NULL && s->len <= sizeof buf);
    expect (pwrite (fd, buf, s->len, (off_t) s->offset) == (ssize_t) s->len);
  }
  close (fd);
  warm_file_close (f);
}

/* Parts that are damaged are made from the index. */
static void
test_damaged_filter (void)
{
  uint8_t pool_uuid[UUID_LEN];

  start_with_filter ();
  memcpy (pool_uuid, pool->uuid, UUID_LEN);
  close_pool ();
  damage_filter (pool_uuid);
  open_and_attach ();
  write_blocks (700, 8, 3000000);
  make_filter (4000000, UINT_MAX);
  expect_duplicates (1000000, 64);
  expect_duplicates (2000000, 64);
  expect_duplicates (3000000, 8);
  end ();
}

/* A repair may add entries while the saved parts are not read yet. */
static void
test_forgotten_filter (void)
{
  start_with_filter ();
  reopen_pool ();
  expect (info ().filter_memory > 0);
  ddt_forget_filter (pool->ddt);
  write_blocks (700, 8, 3000000);
  settle ();
  reopen_pool ();
  expect (info ().filter_memory == 0);
  end ();
}

/* A filter that does not fit the new budget is not read. */
static void
test_filter_keeps_its_budget (void)
{
  struct nbdedup_settings s;

  start_with_filter ();
  close_pool ();
  nbdedup_settings_init (&s);
  s.ddt_cache_bytes = NBDEDUP_DDT_CACHE_MIN;
  pool = nbdedup_pool_open (directory, &s, "test", 0);
  expect (pool && info ().filter_memory <= NBDEDUP_DDT_CACHE_MIN / 2);
  must (nbdedup_pool_close (pool));
  open_and_attach ();
  expect_duplicates (1000000, 64);
  end ();
}

/*----------------------------------------------------------------------
 * Records and leaves
 */

static void
start_warmer (void)
{
  pool->warmer = warmer_start (pool);
  expect (pool->warmer != NULL);
}

static json_int_t
figure_of_warmer (const char *key)
{
  json_t *status = warmer_status (pool->warmer);
  json_int_t n = number (status, key);

  json_decref (status);
  return n;
}

/* Wait until the thread has loaded this many entries. */
static void
wait_for_load (json_int_t nr)
{
  unsigned ms;

  for (ms = 0;
       figure_of_warmer ("loaded") < nr || figure_of_warmer ("waiting") > 0;
       ++ms) {
    if (ms == GIVE_UP_MS)
      die ("the caches do not fill");
    poll (NULL, 0, 1);
  }
}

static unsigned
nr_cached (uint64_t block, unsigned nr)
{
  unsigned i, found = 0;

  for (i = 0; i < nr; ++i)
    found += record_cache_has (pool->records, address_of (block + i));
  return found;
}

static size_t
nr_leaves (void)
{
  struct map_cached leaves[64];

  return map_list_cached (pool->map, leaves, 64);
}

/* A pool whose file "warm" names the records of blocks 64 to 127. */
static void
start_with_lists (void)
{
  unsigned i;

  start (1);
  write_blocks (0, 256, 1);
  settle ();
  reopen_pool ();
  start_warmer ();
  for (i = 64; i < 128; ++i)
    expect_and_cache (i, i + 1);
  reopen_pool ();
}

static void
test_caches_fill (void)
{
  struct map_cached leaf;

  start_with_lists ();
  expect (nr_leaves () == 0);
  start_warmer ();
  wait_for_load (65);
  expect (map_list_cached (pool->map, &leaf, 1) == 1 && leaf.leaf == 1 &&
          leaf.layer == volume->layer->id && !leaf.resolved);
  expect (nr_cached (64, 64) == 64);
  expect (nr_cached (0, 64) == 0);
  end ();
}

static void
test_read_only_server (void)
{
  struct nbdedup_settings s;
  struct stat before, after;

  start_with_lists ();
  close_pool ();
  expect (stat (warm_path (), &before) == 0);
  nbdedup_settings_init (&s);
  s.read_only = NBDEDUP_READ_ONLY_ON;
  pool = nbdedup_pool_open (directory, &s, "test", NBDEDUP_OPEN_SERVER);
  expect (pool != NULL);
  wait_for_load (65);
  must (nbdedup_pool_close (pool));
  expect (stat (warm_path (), &after) == 0);
  expect (before.st_ino == after.st_ino &&
          before.st_mtim.tv_nsec == after.st_mtim.tv_nsec);
  open_and_attach ();
  end ();
}

/* The read needs neither "records" nor pool.db. */
static void
test_hot_blocks_are_not_read_again (void)
{
  unsigned i;

  start_with_lists ();
  start_warmer ();
  wait_for_load (65);
  stall ();
  fail_reads = 1;
  for (i = 64; i < 128; ++i)
    expect_content (i, i + 1);
  expect (fail_reads == 1);
  fail_reads = 0;
  unstall ();
  end ();
}

/* A clone's reads need the leaves of the frozen layer, too. */
static void
test_resolved_leaves (void)
{
  struct nbdedup_volume *clone;
  uint8_t buf[BLOCK], want[BLOCK];

  start (1);
  write_blocks (0, 64, 1);
  run ("snapshot", json_pack ("{s:s}", "name", "v@s"));
  run ("clone", json_pack ("{s:s, s:s}", "snapshot", "v@s", "name", "c"));
  reopen_pool ();
  start_warmer ();
  clone = open_volume ("c");
  must (nbdedup_volume_read (clone, buf, BLOCK, 5 * BLOCK));
  must (nbdedup_volume_read (clone, buf, BLOCK, 5 * BLOCK)); /* cached now */
  nbdedup_volume_close (clone);
  expect (nr_leaves () == 2);
  reopen_pool ();
  start_warmer ();
  wait_for_load (3);
  expect (nr_leaves () == 2);
  clone = open_volume ("c");
  stall ();
  fail_reads = 1;
  must (nbdedup_volume_read (clone, buf, BLOCK, 5 * BLOCK));
  fail_reads = 0;
  unstall ();
  fill (want, 6);
  expect (memcmp (buf, want, BLOCK) == 0);
  nbdedup_volume_close (clone);
  end ();
}

/* A session that ends before it has loaded all names the rest again; a session
 * without a warmer, as a command's, keeps the lists.
 */
static void
test_lists_are_handed_on (void)
{
  start_with_lists ();
  write_blocks (1000, 200, 5000000);
  reopen_pool ();
  stall (); /* the thread waits at its first leaf */
  start_warmer ();
  while (figure_of_warmer ("waiting") == 0)
    poll (NULL, 0, 1);
  warmer_cancel (pool->warmer);
  unstall ();
  reopen_pool ();
  start_warmer ();
  wait_for_load (65);
  expect (nr_cached (64, 64) == 64);
  end ();
}

static uint64_t
read_and_save (void)
{
  unsigned i;

  start_warmer ();
  for (i = 128; i < 192; ++i)
    expect_and_cache (i, i + 1);
  warmer_save_lists (pool->warmer);
  return 0;
}

/* A killed server has saved the lists a few minutes ago. */
static void
test_lists_are_saved_meanwhile (void)
{
  start (1);
  write_blocks (0, 256, 1);
  settle ();
  close_pool ();
  crash_after (read_and_save);
  open_and_attach ();
  start_warmer ();
  wait_for_load (65);
  expect (nr_cached (128, 64) == 64);
  end ();
}

static uint64_t
replace_and_fold (void)
{
  write_blocks (64, 64, 7000000);
  settle ();
  write_blocks (1000, 200, 8000000);
  settle ();
  return 0;
}

/* The records have died, and their addresses have others. */
static void
test_stale_lists (void)
{
  unsigned i;

  start_with_lists ();
  close_pool ();
  crash_after (replace_and_fold);
  open_and_attach ();
  start_warmer ();
  wait_for_load (1);
  for (i = 64; i < 128; ++i)
    expect_content (i, 7000000 + i - 64);
  for (i = 1000; i < 1200; ++i)
    expect_content (i, 8000000 + i - 1000);
  end ();
}

/* Lists of what there is not: any numbers, with the right checksums. */
static void
test_wrong_lists (void)
{
  static const uint64_t leaves[] = {
    0, 0, UINT64_MAX, UINT64_MAX, 2, UINT64_MAX, 3, 5, 2, 1,
  };
  const struct warm_section s[] = {
    { .type = WARM_RECORDS, .len = 4096 * 8 },
    { .type = WARM_LEAVES, .len = sizeof leaves },
  };
  struct rng rng = rng_make (1, 1);
  struct warm_writer *w;
  uint64_t addr;
  unsigned i;

  start (1);
  write_blocks (0, 256, 1);
  settle ();
  w = warm_writer_new (warm_path (), pool->uuid, NULL);
  expect (w != NULL);
  warm_writer_begin (w, &s[0]);
  for (i = 0; i < 4096; ++i) {
    addr = i < 100 ? UINT64_MAX - i : rng_below (&rng, 1 << (i % 30));
    warm_writer_put (w, &addr, 8);
  }
  warm_writer_end (w);
  warm_writer_begin (w, &s[1]);
  warm_writer_put (w, leaves, sizeof leaves);
  warm_writer_end (w);
  expect (warm_writer_finish (w) == 0);
  start_warmer ();
  wait_for_load (4096 + 5);
  for (i = 0; i < 256; ++i)
    expect_content (i, i + 1);
  end ();
}

/* What clients have read since the open is not dropped for what an earlier
 * session had.
 */
static void
test_cold_records_drop_nothing (void)
{
  struct record_cache *c = record_cache_new (16 * (BLOCK + 128));
  uint8_t buf[BLOCK] = { 0 };
  uint64_t list[32];
  unsigned i;

  expect (c != NULL);
  for (i = 0; i < 8; ++i)
    record_cache_put (c, 100 + i, 1, buf, BLOCK);
  for (i = 0; record_cache_put_cold (c, 200 + i, 1, buf, BLOCK); ++i)
    expect (i < 16);
  expect (i >= 6 && i <= 9);
  for (i = 0; i < 8; ++i)
    expect (record_cache_has (c, 100 + i));
  expect (record_cache_list (c, list, 32) >= 14);
  expect (list[0] == 107 && list[7] == 100 && list[8] == 200);
  record_cache_put (c, 300, 1, buf, BLOCK);
  record_cache_put (c, 301, 1, buf, BLOCK);
  expect (record_cache_has (c, 200) && record_cache_has (c, 100));
  record_cache_free (c);
}

static const struct engine_case cases[] = {
  CASE (damaged_file),
  CASE (foreign_file),
  CASE (other_kinds),
  CASE (stale_filter),
  CASE (stale_before_replay),
  CASE (crash_while_saving),
  CASE (lists_are_saved_meanwhile),
  CASE (stale_lists),
  CASE (filter_is_read),
  CASE (filter_is_handed_on),
  CASE (damaged_filter),
  CASE (forgotten_filter),
  CASE (filter_keeps_its_budget),
  CASE (caches_fill),
  CASE (read_only_server),
  CASE (hot_blocks_are_not_read_again),
  CASE (resolved_leaves),
  CASE (lists_are_handed_on),
  CASE (wrong_lists),
  CASE (cold_records_drop_nothing),
  { NULL, NULL },
};

/* test-warm [NAME...] */
int
main (int argc, char *argv[])
{
  return run_cases (argc, argv, cases);
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* Very many references to one record: 100,000 real ones, and the arithmetic
 * on both sides of 2^32 and at the limit, where the test adds to the stored
 * count instead of writing blocks.
 *
 * REFERENCES comes from the environment.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <limits.h>

#include "core/engine.h"
#include "core/txg.h"
#include "format/format.h"
#include "meta/meta.h"
#include "rigs/pool-util.h"

#define BLOCK 4096u
#define PIECE (UINT32_C (1) << 20)

static char directory[PATH_MAX];
struct nbdedup_pool *pool;
static struct nbdedup_volume *volume;
static uint8_t content[PIECE]; /* the same block, again and again */

static void
attach (void)
{
  volume = open_volume ("v");
}

static uint64_t
nr_errors (void)
{
  json_t *result = call ("check", NULL);
  uint64_t n = json_integer_value (json_object_get (result, "errors"));

  json_decref (result);
  return n;
}

/*----------------------------------------------------------------------
 * The only record
 */

struct only {
  struct record r;
  unsigned nr;
};

static int
note_records (void *opaque, uint64_t group, const uint8_t *buf, size_t len)
{
  struct only *only = opaque;
  size_t off = 0;
  int n;

  while ((n = record_next (group, buf, len, &off, &only->r)) == 1)
    only->nr++;
  return n;
}

static int
find_only (struct meta_conn *c, struct only *only)
{
  memset (only, 0, sizeof *only);
  if (meta_record_scan (c, 0, note_records, only) == -1)
    return -1;
  if (only->nr != 1)
    die ("%u records instead of one", only->nr);
  return 0;
}

static uint64_t
refcount (void)
{
  struct meta_conn *c;
  struct only only;

  must (txg_run (pool->txg, NULL, NULL, NULL));
  c = meta_reader_get (pool->meta);
  must (find_only (c, &only));
  meta_reader_put (pool->meta, c);
  return only.r.refcount;
}

/* Runs inside a fold's transaction. */
static int
add_references (void *arg, struct meta_conn *c, struct meta_state *state)
{
  const int64_t *add = arg;
  uint8_t buf[RECORD_ENTRY_MAX];
  struct only only;

  (void) state;
  if (find_only (c, &only) == -1)
    return -1;
  only.r.refcount += *add;
  return meta_record_put (c, only.r.ptr.addr / RECORD_GROUP_SECTORS, buf,
                          record_pack (&only.r, buf));
}

static void
expect_refcount (uint64_t expected)
{
  uint64_t n = refcount ();

  if (n != expected)
    die ("refcount is %" PRIu64 ", expected %" PRIu64, n, expected);
}

/*----------------------------------------------------------------------
 * Tests
 */

static void
test_pack (void)
{
  static const uint64_t counts[] = {
    0,
    1,
    UINT64_C (0xffffffff),
    UINT64_C (0x100000000),
    UINT64_C (0x100000001),
    RECORD_REFCOUNT_MAX - 1,
    RECORD_REFCOUNT_MAX,
  };
  struct record r = { .ptr = { .addr = 1000, .psize = BLOCK }, .lsize = BLOCK },
                s;
  uint8_t buf[RECORD_ENTRY_MAX];
  size_t i, len;

  for (i = 0; i < sizeof counts / sizeof counts[0]; ++i) {
    r.refcount = counts[i];
    r.flags = i & 1 ? RECORD_INDEXED : 0;
    len = record_pack (&r, buf);
    if (record_unpack (1000 / RECORD_GROUP_SECTORS, buf, len, &s) !=
          (int) len ||
        s.refcount != counts[i] || s.flags != r.flags)
      die ("a count of %" PRIu64 " came back as %" PRIu64, counts[i],
           s.refcount);
  }
}

static void
write_blocks (uint64_t first, uint64_t nr)
{
  uint64_t n;

  for (; nr > 0; nr -= n, first += n) {
    n = nr < PIECE / BLOCK ? nr : PIECE / BLOCK;
    must (nbdedup_volume_write (volume, content, n * BLOCK, first * BLOCK));
  }
  must (nbdedup_volume_flush (volume));
}

static void
read_blocks (uint64_t nr)
{
  uint8_t *buf = xmalloc (PIECE);
  uint64_t n, b;

  for (b = 0; b < nr; b += n) {
    n = nr - b < PIECE / BLOCK ? nr - b : PIECE / BLOCK;
    must (nbdedup_volume_read (volume, buf, n * BLOCK, b * BLOCK));
    if (memcmp (buf, content, n * BLOCK) != 0)
      die ("blocks from %" PRIu64 " differ", b);
  }
  free (buf);
}

static void
test_many (uint64_t nr)
{
  const uint64_t begun = clock_ns ();

  write_blocks (0, nr);
  expect_refcount (nr);
  printf ("%" PRIu64 " references in %.2f s\n", nr,
          (clock_ns () - begun) / 1e9);
  read_blocks (nr);
  must (nbdedup_volume_trim (volume, nr / 2 * BLOCK, 0));
  expect_refcount (nr - nr / 2);
  write_blocks (0, nr / 2);
  expect_refcount (nr);
  if (nr_errors () != 0)
    die ("check found errors with %" PRIu64 " references", nr);
}

/* Test with a stored count of 'base' references. */
static void
test_base (uint64_t nr, uint64_t base)
{
  int64_t add = (int64_t) (base - nr);
  uint64_t b;

  must (txg_run (pool->txg, add_references, NULL, &add));
  expect_refcount (base);
  /* New references must be added without truncation. */
  for (b = 0; b < 40; ++b)
    must (nbdedup_volume_write (volume, content, BLOCK, (nr + b) * BLOCK));
  must (nbdedup_volume_flush (volume));
  expect_refcount (base + 40);
  must (nbdedup_volume_trim (volume, 30 * BLOCK, nr * BLOCK));
  expect_refcount (base + 10);
  if (nr_errors () == 0)
    die ("check does not notice a wrong count of %" PRIu64, base + 10);
  must (nbdedup_volume_trim (volume, 10 * BLOCK, (nr + 30) * BLOCK));
  expect_refcount (base);
  add = -add;
  must (txg_run (pool->txg, add_references, NULL, &add));
  expect_refcount (nr);
  read_blocks (nr);
  if (nr_errors () != 0)
    die ("check found errors after a base of %" PRIu64, base);
}

/* The count can reach the limit, and go down again. */
static void
test_limit (uint64_t nr)
{
  int64_t add = (int64_t) (RECORD_REFCOUNT_MAX - nr);

  must (txg_run (pool->txg, add_references, NULL, &add));
  expect_refcount (RECORD_REFCOUNT_MAX);
  must (nbdedup_volume_trim (volume, BLOCK, 0));
  expect_refcount (RECORD_REFCOUNT_MAX - 1);
  write_blocks (0, 1);
  expect_refcount (RECORD_REFCOUNT_MAX);
  add = -add;
  must (txg_run (pool->txg, add_references, NULL, &add));
  expect_refcount (nr);
}

static void
destroy (uint64_t nr)
{
  json_t *stat;

  nbdedup_volume_close (volume);
  json_decref (
    call ("destroy", json_pack ("{s:s, s:b}", "name", "v", "wait", 1)));
  stat = call ("stat", NULL);
  if (json_integer_value (
        json_object_get (json_object_get (stat, "pool"), "records")) != 0)
    die ("the record survives its %" PRIu64 " references", nr);
  json_decref (stat);
  if (nr_errors () != 0)
    die ("check found errors in the end");
}

int
main (void)
{
  uint64_t nr = number_from_environment ("REFERENCES", 100000);
  unsigned i;

  test_pack ();
  fill_compressible (content, BLOCK, 1);
  for (i = 1; i < PIECE / BLOCK; ++i)
    memcpy (content + i * BLOCK, content, BLOCK);
  make_directory (directory, usual_directory (), "test-references");
  must (nbdedup_pool_create (directory, NULL));
  open_default (directory, "test-references");
  json_decref (call ("create",
                     json_pack ("{s:s, s:I, s:i}", "name", "v", "size",
                                (json_int_t) (nr + 64) * BLOCK, "block-size",
                                (int) BLOCK)));
  attach ();
  test_many (nr);
  test_base (nr, (UINT64_C (1) << 32) - 20);
  test_base (nr, RECORD_REFCOUNT_MAX - 40);
  test_limit (nr);
  nbdedup_volume_close (volume);
  must (nbdedup_pool_close (pool));
  open_default (directory, "test-references");
  attach ();
  read_blocks (nr);
  destroy (nr);
  must (nbdedup_pool_close (pool));
  remove_directory (directory);
  return 0;
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* Packed rows of tables "record" and "ddt": what they give back, how long they
 * are, and rows that are damaged.  See record-row.h and index-row.h.
 */

#include <config.h>

#include <inttypes.h>

#include "base/bytes.h"
#include "format/codec.h"
#include "format/index-row.h"
#include "format/record-row.h"
#include "rigs/testutil.h"

#define NR_ROUNDS 2000
#define GROUP 12345

static uint64_t seed;
static struct rng rng;

#define expect_seed(cond)                                                      \
  do {                                                                         \
    if (!(cond))                                                               \
      die ("SEED=%" PRIu64 " line %d: %s", seed, __LINE__, #cond);             \
  } while (0)

/*----------------------------------------------------------------------
 * Records
 */

/* A record that resembles '*last' in most ways, as in a pool. */
static struct record
next_record (const struct record *last, uint64_t addr)
{
  static const uint64_t counts[] = {
    0, 1, 2, 127, 128, 1 << 20, RECORD_REFCOUNT_MAX,
  };
  struct record r = *last;
  unsigned i;

  r.ptr.addr = addr;
  r.slot++;
  if (rng_percent (&rng, 10))
    r.slot = (uint16_t) rng_next (&rng);
  if (rng_percent (&rng, 10))
    r.lsize = BLOCK_SIZE_MIN << rng_below (&rng, 9);
  r.ptr.codec = rng_percent (&rng, 80) ? CODEC_LZ4 : CODEC_NONE;
  if (r.ptr.codec == CODEC_NONE)
    r.ptr.psize = r.lsize;
  else if (r.ptr.psize > r.lsize || rng_percent (&rng, 50))
    r.ptr.psize = 1 + (uint32_t) rng_below (&rng, r.lsize);
  r.refcount = rng_percent (&rng, 80)
    ? 1
    : counts[rng_below (&rng, sizeof counts / sizeof counts[0])];
  if (rng_percent (&rng, 10))
    r.flags ^= rng_percent (&rng, 50) ? RECORD_INDEXED : RECORD_COPY;
  if (rng_percent (&rng, 10))
    r.domain = rng_percent (&rng, 50) ? 0 : rng_next (&rng);
  r.ptr.cksum = rng_next (&rng);
  for (i = 0; i < DIGEST_LEN; ++i)
    r.digest.b[i] = (uint8_t) rng_next (&rng);
  return r;
}

/* A group's entries, of which at least one; returns their bytes. */
static size_t
make_group (uint8_t entries[RECORD_ROW_MAX])
{
  struct record r = {
    .ptr = { .psize = 4096 },
    .lsize = 4096,
    .flags = RECORD_INDEXED,
  };
  const unsigned most = 1 + (unsigned) rng_below (&rng, 40);
  unsigned sector = rng_percent (&rng, 50)
    ? 0
    : (unsigned) rng_below (&rng, RECORD_GROUP_SECTORS);
  size_t len = 0;

  do {
    r = next_record (&r, GROUP * RECORD_GROUP_SECTORS + sector);
    len += record_pack (&r, entries + len);
    sector += 1 + (unsigned) rng_below (&rng, most);
  } while (sector < RECORD_GROUP_SECTORS);
  return len;
}

/* Read all entries: their number, or -1 if one is damaged. */
static int
count_entries (const uint8_t *entries, size_t len)
{
  size_t off = 0;
  struct record r;
  int n, nr = 0;

  while ((n = record_next (GROUP, entries, len, &off, &r)) == 1)
    nr++;
  return n == -1 ? -1 : nr;
}

/* 'row' is a buffer of its length, so that valgrind and the sanitizers see what
 * is read behind it.
 */
static void
read_damaged (const uint8_t *row, size_t len, bool cut)
{
  static uint8_t out[RECORD_ROW_MAX];
  uint8_t *copy = xmalloc (len);
  size_t n;

  memcpy (copy, row, len);
  if (!cut)
    copy[2 + rng_below (&rng, len - 2)] ^= (uint8_t) (1 << rng_below (&rng, 8));
  expect_seed (record_row_is_packed (copy, len));
  n = record_row_unpack (copy, len, out);
  expect_seed (n <= sizeof out);
  (void) count_entries (out, n);
  free (copy);
}

static void
test_records (void)
{
  static uint8_t in[RECORD_ROW_MAX], out[RECORD_ROW_MAX], row[RECORD_ROW_MAX];
  size_t len, cut, whole = 0;
  unsigned i;
  int n, nr;

  for (i = 0; i < NR_ROUNDS; ++i) {
    len = make_group (in);
    nr = count_entries (in, len);
    n = record_row_pack (GROUP, in, len, row);
    expect_seed (nr > 0 && n > 0 && (size_t) n < len + 4);
    expect_seed (nr == 1 || (size_t) n < len);
    expect_seed (!record_row_is_packed (in, len));
    expect_seed (record_row_is_packed (row, (size_t) n));
    expect_seed (record_row_unpack (row, (size_t) n, out) == len);
    expect_seed (memcmp (in, out, len) == 0);

    read_damaged (row, (size_t) n, false);
    cut = 2 + rng_below (&rng, (uint64_t) n - 2);
    read_damaged (row, cut, true);
    /* What is there until the cut stays; a part of an entry is damage. */
    len = record_row_unpack (row, cut, out);
    expect_seed (count_entries (out, len) < nr);
    expect_seed (memcmp (in, out, len > 0 ? len - 1 : 0) == 0);
    whole += count_entries (out, len) >= 0;
  }
  expect_seed (whole < NR_ROUNDS / 10);
}

/* New blocks of 4 KiB that take a sector each: 40 bytes, what the entry has, and
 * the size.
 */
static void
test_length (void)
{
  static uint8_t in[RECORD_ROW_MAX], row[RECORD_ROW_MAX];
  struct record r = {
    .ptr = { .codec = CODEC_LZ4 },
    .lsize = 4096,
    .flags = RECORD_INDEXED,
    .refcount = 1,
  };
  size_t len = 0;
  unsigned i;

  for (i = 0; i < RECORD_GROUP_SECTORS; ++i) {
    r.ptr.addr = GROUP * RECORD_GROUP_SECTORS + i;
    r.ptr.psize = 300 + i % 200;
    r.slot = (uint16_t) i;
    len += record_pack (&r, in + len);
  }
  expect_seed (record_row_pack (GROUP, in, len, row) ==
               2 + 1 + RECORD_GROUP_SECTORS * (40 + 1 + 2));
}

static void
test_damaged_entries (void)
{
  static uint8_t in[RECORD_ROW_MAX], row[RECORD_ROW_MAX];
  static uint8_t many[2 * RECORD_ROW_MAX];
  size_t len = make_group (in), used = 0;
  struct record r;

  expect_seed (record_row_pack (GROUP, in, len - 1, row) == -1);
  expect_seed (errno == EIO);
  /* More entries than a group can have, to pack and packed. */
  expect_seed (record_unpack (GROUP, in, len, &r) > 0);
  while (used + RECORD_ENTRY_MAX <= sizeof many)
    used += record_pack (&r, many + used);
  expect_seed (record_row_pack (GROUP, many, used, row) == -1);
  expect_seed (errno == EIO);
  put_le16 (row, RECORD_ROW_PACKED);
  memset (row + 2, 0, sizeof row - 2);
  expect_seed (record_row_unpack (row, sizeof row, in) <= sizeof in);
}

/*----------------------------------------------------------------------
 * The hash index
 */

#define ENTRIES_MAX 400

/* Entries with small or large gaps; returns their bytes. */
static size_t
make_entries (uint8_t *buf)
{
  const unsigned nr = 1 + (unsigned) rng_below (&rng, ENTRIES_MAX);
  const uint64_t gap = UINT64_C (1) << rng_between (&rng, 18, 55);
  struct index_entry e = { .prefix = 0 };
  unsigned i;

  for (i = 0; i < nr; ++i) {
    if (!rng_percent (&rng, 5))
      e.prefix += rng_below (&rng, gap) & INDEX_PREFIX_MASK;
    e.addr = rng_next (&rng) % (rng_percent (&rng, 90) ? 1 << 28 : ADDR_MAX);
    e.removed = rng_percent (&rng, 20);
    index_entry_pack (&e, buf + i * INDEX_ENTRY_LEN);
  }
  return nr * INDEX_ENTRY_LEN;
}

static void
unpack_index (const uint8_t *row, size_t len, const uint8_t *wanted,
              size_t wanted_len)
{
  uint8_t *out = xmalloc (index_row_unpacked_max (len));
  uint8_t *copy = xmalloc (len);
  size_t n;

  memcpy (copy, row, len);
  n = index_row_unpack (copy, len, out);
  expect_seed (n <= index_row_unpacked_max (len));
  expect_seed (wanted == NULL ||
               (n == wanted_len && memcmp (out, wanted, n) == 0));
  free (copy);
  free (out);
}

static void
test_index (void)
{
  static uint8_t in[ENTRIES_MAX * INDEX_ENTRY_LEN], row[sizeof in];
  unsigned i, padded = 0, plain = 0;
  size_t len, n;

  for (i = 0; i < NR_ROUNDS; ++i) {
    len = make_entries (in);
    n = index_row_pack (in, len, row);
    plain += n == 0;
    if (n == 0)
      continue;
    expect_seed (n < len && index_row_is_packed (n));
    padded += n % INDEX_ENTRY_LEN == 1 && row[n - 1] == 0;
    unpack_index (row, n, in, len);
    row[rng_below (&rng, n)] ^= (uint8_t) (1 << rng_below (&rng, 8));
    unpack_index (row, n, NULL, 0);
    n = 1 + rng_below (&rng, n);
    if (index_row_is_packed (n))
      unpack_index (row, n, NULL, 0);
  }
  expect_seed (padded > NR_ROUNDS / 50 && plain < NR_ROUNDS / 10);
}

static void
test_odd_entries (void)
{
  static const uint8_t bad[][3] = {
    { 0x80, 0x80, 0x80 },
    { 1, 0x80, 0x80 },
    { 1, 2, 3 },
  };
  uint8_t in[2 * INDEX_ENTRY_LEN], out[64];
  const struct index_entry high = { .prefix = INDEX_PREFIX_MASK, .addr = 1 };
  const struct index_entry low = { .prefix = 0, .addr = ADDR_MAX };
  unsigned i;

  /* Not ascending; and one that would be longer. */
  index_entry_pack (&high, in);
  index_entry_pack (&low, in + INDEX_ENTRY_LEN);
  expect_seed (index_row_pack (in, sizeof in, out) == 0);
  index_entry_pack (
    &(struct index_entry) {
      .prefix = INDEX_PREFIX_MASK,
      .addr = ADDR_MAX,
      .removed = true,
    },
    in);
  expect_seed (index_row_pack (in, INDEX_ENTRY_LEN, out) == 0);

  for (i = 0; i < 3; ++i)
    expect_seed (index_row_unpack (bad[i], 3, out) % INDEX_ENTRY_LEN != 0);
}

int
main (void)
{
  seed = seed_from_environment ();
  rng = rng_make (seed, 0);
  test_records ();
  test_length ();
  test_damaged_entries ();
  test_index ();
  test_odd_entries ();
  return 0;
}

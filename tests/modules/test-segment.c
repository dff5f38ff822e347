/* SPDX-License-Identifier: BSD-3-Clause */

/* Space maps of segments.
 *
 * 1. For every sector size, random operations against a model of plain
 *    arrays; after some of them the map is packed and unpacked again.
 * 2. Every byte of a packed map flipped, every shorter length: EIO.
 * 3. Packed maps with a right checksum and wrong contents: EIO.
 * 4. A segment full of one-sector records, each with a slot.
 * 5. Lost chunks.
 * 6. A record's sectors and slot: both or neither.
 */

#include <config.h>

#undef NDEBUG
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/bytes.h"
#include "base/error.h"
#include "disk/store.h"
#include "format/segment.h"

static unsigned
rnd (unsigned n)
{
  return (unsigned) random () % n;
}

struct model {
  uint8_t sector[8192]; /* 0 free, 1 record, 2 chunk or header */
  uint8_t slot[65536];  /* of placed chunks: 1 = used */
  unsigned nr_chunks;
};

static unsigned
model_largest (const struct model *m, unsigned nr)
{
  unsigned i, run = 0, best = 0;

  for (i = 0; i < nr; ++i) {
    run = m->sector[i] ? 0 : run + 1;
    if (run > best)
      best = run;
  }
  return best;
}

static void
compare (const struct segment_map *map, const struct model *m)
{
  unsigned i, used = 0, slots = 0, start = 0, len, records = 0, covered = 0;
  int run;

  for (i = 0; i < map->nr_sectors; ++i) {
    used += m->sector[i] != 0;
    records += m->sector[i] == 1;
  }
  assert (map->nr_used == used);
  assert (map->nr_chunks == m->nr_chunks);
  for (i = 0; i < map->nr_chunks * map->slots_per_chunk; ++i)
    slots += i % map->slots_per_chunk != 0 && m->slot[i];
  assert (map->nr_slots_used == slots);
  assert (segment_map_nr_free_slots (map) ==
          m->nr_chunks * (map->slots_per_chunk - 1) - slots);
  assert (segment_map_largest_run (map, &start) ==
          model_largest (m, map->nr_sectors));
  for (run = segment_map_next_run (map, 0, &len); run != -1;
       run = segment_map_next_run (map, run + len, &len)) {
    for (i = run; i < run + len; ++i)
      assert (m->sector[i] == 0);
    assert (run + len == map->nr_sectors || m->sector[run + len] != 0);
    covered += len;
  }
  assert (covered == map->nr_sectors - used);
  assert (segment_map_is_empty (map) == (records == 0 && slots == 0));
  run = segment_map_find_slot (map);
  if (run == -1)
    assert (segment_map_nr_free_slots (map) == 0);
  else
    assert (run % map->slots_per_chunk != 0 && !m->slot[run]);
}

static bool
model_is (const struct model *m, unsigned start, unsigned len, unsigned what)
{
  unsigned i;

  for (i = start; i < start + len; ++i)
    if (m->sector[i] != what)
      return false;
  return true;
}

static int
add_chunk (struct segment_map *map, unsigned sector)
{
  return segment_map_place_chunk (map, map->nr_chunks, sector);
}

static struct segment_map *
repack (struct segment_map *map)
{
  uint64_t id = map->id;
  uint32_t sector = map->sector_bytes;
  size_t len;
  uint8_t *buf = segment_map_pack (map, &len);

  assert (buf);
  segment_map_free (map);
  map = segment_map_unpack (id, sector, buf, len);
  if (map == NULL)
    fprintf (stderr, "%s\n", nbdedup_error ());
  assert (map);
  free (buf);
  return map;
}

static void
test_random (uint64_t id, uint32_t sector_bytes)
{
  struct model *m = calloc (1, sizeof *m);
  struct segment_map *map = segment_map_new (id, sector_bytes);
  const unsigned n = SEGMENT_BYTES / sector_bytes;
  unsigned round, a, len, cs, slot, i;
  unsigned nr_slots = 0, nr_records = 0;
  int r;

  assert (m && map && map->nr_sectors == n);
  assert (map->max_chunks * map->slots_per_chunk <= 65536);
  cs = map->chunk_sectors;
  if (id == 0)
    memset (m->sector, 2, STORE_HEADER_BYTES / sector_bytes);
  compare (map, m);

  for (round = 0; round < 4000; ++round) {
    len = 1 + rnd (rnd (4) ? 8 : n / 8);
    a = rnd (n - len + 1);
    switch (rnd (6)) {
    case 0:
    case 1:
      r = segment_map_set (map, a, len);
      assert ((r == 0) == model_is (m, a, len, 0));
      if (r == 0) {
        memset (m->sector + a, 1, len);
        nr_records += len;
      }
      else
        assert (errno == EIO);
      break;
    case 2:
    case 3:
      r = segment_map_clear (map, a, len);
      assert ((r == 0) == model_is (m, a, len, 1));
      if (r == 0) {
        memset (m->sector + a, 0, len);
        nr_records -= len;
      }
      break;
    case 4:
      if (map->nr_chunks == map->max_chunks) {
        assert (add_chunk (map, 0) == -1);
        break;
      }
      if (rnd (3))
        a -= a % cs;
      r = add_chunk (map, a);
      assert ((r == 0) ==
              (a % cs == 0 && a + cs <= n && model_is (m, a, cs, 0)));
      if (r == 0) {
        memset (m->sector + a, 2, cs);
        memset (m->slot + m->nr_chunks * map->slots_per_chunk, 0,
                map->slots_per_chunk);
        m->slot[m->nr_chunks * map->slots_per_chunk] = 1;
        m->nr_chunks++;
      }
      break;
    case 5:
      slot = rnd ((map->nr_chunks + 1) * map->slots_per_chunk);
      if (rnd (2) && segment_map_find_slot (map) != -1)
        slot = segment_map_find_slot (map);
      i = slot / map->slots_per_chunk < map->nr_chunks &&
        slot % map->slots_per_chunk != 0;
      if (rnd (3)) {
        r = segment_map_set_slot (map, slot);
        assert ((r == 0) == (i && !m->slot[slot]));
        if (r == 0) {
          m->slot[slot] = 1;
          nr_slots++;
        }
      }
      else {
        r = segment_map_clear_slot (map, slot);
        assert ((r == 0) == (i && m->slot[slot]));
        if (r == 0) {
          m->slot[slot] = 0;
          nr_slots--;
        }
      }
      break;
    }
    if (round % 16 == 0)
      compare (map, m);
    /* unpack accepts only counts that are possible for records. */
    if (round % 64 == 0 && nr_slots <= nr_records &&
        (nr_slots > 0 || nr_records == 0)) {
      map = repack (map);
      compare (map, m);
    }
  }

  assert (segment_map_set (map, n - 1, 2) == -1);
  assert (segment_map_set (map, n, 1) == -1);
  assert (segment_map_set (map, 0, 0) == -1);
  assert (segment_map_clear (map, UINT32_MAX, 2) == -1);

  /* Empty it. */
  for (i = 0; i < n; ++i)
    if (m->sector[i] == 1) {
      assert (!segment_map_is_empty (map));
      assert (segment_map_clear (map, i, 1) == 0);
      m->sector[i] = 0;
    }
  for (i = 0; i < m->nr_chunks * map->slots_per_chunk; ++i)
    if (i % map->slots_per_chunk != 0 && m->slot[i]) {
      assert (!segment_map_is_empty (map));
      assert (segment_map_clear_slot (map, i) == 0);
      m->slot[i] = 0;
    }
  compare (map, m);
  segment_map_reset (map);
  for (i = id == 0 ? STORE_HEADER_BYTES / sector_bytes : 0; i < n; ++i)
    m->sector[i] = 0;
  m->nr_chunks = 0;
  compare (map, m);
  segment_map_free (map);
  free (m);
}

static void
seal (uint64_t id, uint8_t *buf, size_t len)
{
  uint8_t copy[8192];

  memcpy (copy, buf, 8);
  memcpy (copy + 8, buf + 16, len - 16);
  put_le64 (buf + 8, XXH3_64bits_withSeed (copy, len - 8, id));
}

static void
expect_damaged (uint64_t id, uint32_t sector, const uint8_t *buf, size_t len,
                const char *text)
{
  struct segment_map *map;

  errno = 0;
  map = segment_map_unpack (id, sector, buf, len);
  assert (map == NULL && errno == EIO);
  if (text && !strstr (nbdedup_error (), text)) {
    fprintf (stderr, "expected \"%s\", got: %s\n", text, nbdedup_error ());
    abort ();
  }
}

static void
test_damage (uint64_t id, uint32_t sector)
{
  struct segment_map *map = segment_map_new (id, sector);
  const unsigned cs = map->chunk_sectors;
  const unsigned base = 32 * cs; /* behind the store's header */
  const unsigned map_slots = map->slots_per_chunk;
  uint8_t *buf, bad[8192];
  size_t len, i, chunks, slots;

  assert (add_chunk (map, base) == 0);
  assert (add_chunk (map, base + 2 * cs) == 0);
  assert (segment_map_set (map, base + 4 * cs, 5) == 0);
  assert (segment_map_set_slot (map, 1) == 0);
  assert (segment_map_set_slot (map, map->slots_per_chunk + 1) == 0);
  buf = segment_map_pack (map, &len);
  assert (buf && len < sizeof bad);
  chunks = 16 + map->nr_sectors / 8;
  slots = chunks + 4;

  for (i = 0; i < len; ++i) {
    memcpy (bad, buf, len);
    bad[i] ^= 1 << rnd (8);
    expect_damaged (id, sector, bad, len, NULL);
  }
  for (i = 0; i < len; ++i)
    expect_damaged (id, sector, buf, i, NULL);
  memcpy (bad, buf, len);
  bad[len] = 0;
  expect_damaged (id, sector, bad, len + 1, NULL);
  expect_damaged (id + 1, sector, buf, len, "checksum");

#define BAD(change, text)                                                      \
  do {                                                                         \
    memcpy (bad, buf, len);                                                    \
    change;                                                                    \
    seal (id, bad, len);                                                       \
    expect_damaged (id, sector, bad, len, text);                               \
  } while (0)

  BAD (put_le16 (bad, map->nr_sectors / 2), "number of sectors");
  BAD (bad[4] = 1, "reserved");
  BAD (put_le16 (bad + 2, 0xffff), "too many chunks");
  BAD (put_le16 (bad + 2, 3), "length");
  BAD (put_le16 (bad + chunks, map->nr_sectors), "out of place");
  BAD (put_le16 (bad + chunks, base + 2 * cs), "overlap");
  BAD (put_le16 (bad + chunks, base + 1 * cs), "marked free");
  if (cs > 1)
    BAD (put_le16 (bad + chunks, base + 1), "out of place");
  BAD (bad[slots] &= ~1, "header");
  BAD (bad[slots] = 0xff, "contradict");
  BAD (put_le16 (bad + chunks, SEGMENT_CHUNK_LOST), "header");
  BAD (memset (bad + 16, 0, map->nr_sectors / 8), id ? "fewer" : "fewer");
  if (id == 0)
    BAD (bad[16] &= ~1, "store's header");
  segment_map_free (map);

  /* Used sectors without any slot are a leak.  A map may have only these. */
  memcpy (bad, buf, len);
  bad[slots] = bad[slots + map_slots / 8] = 1;
  seal (id, bad, len);
  map = segment_map_unpack (id, sector, bad, len);
  assert (map && map->nr_slots_used == 0 && !segment_map_is_empty (map));

  free (buf);
  segment_map_free (map);
}

/* Fill a segment, and add a chunk only when all slots are in use. */
static void
test_fill (uint32_t sector)
{
  struct segment_map *map = segment_map_new (7, sector);
  unsigned nr = 0, len;
  int slot, run;

  for (;;) {
    slot = segment_map_find_slot (map);
    if (slot == -1) {
      for (run = segment_map_next_run (map, 0, &len); run != -1;
           run = segment_map_next_run (map, run + len, &len))
        if (len >= map->chunk_sectors && run % map->chunk_sectors == 0)
          break;
      if (run == -1)
        break;
      assert (add_chunk (map, run) == 0);
      continue;
    }
    /* Allocate from the end, so that the chunks stay aligned. */
    run = -1;
    for (run = map->nr_sectors - 1; run >= 0; --run)
      if (!(map->bitmap[run / 8] & (1 << run % 8)))
        break;
    if (run == -1)
      break;
    assert (segment_map_set (map, run, 1) == 0);
    assert (segment_map_set_slot (map, slot) == 0);
    nr++;
  }
  assert (map->nr_used + map->chunk_sectors > map->nr_sectors);
  assert (map->nr_slots_used == nr);
  map = repack (map);
  assert (map->nr_slots_used == nr);
  segment_map_free (map);
}

static void
test_lost (uint32_t sector)
{
  struct segment_map *map = segment_map_new (3, sector), *row;
  const unsigned cs = map->chunk_sectors, spc = map->slots_per_chunk;
  const uint16_t lost[3] = {
    SEGMENT_CHUNK_LOST,
    SEGMENT_CHUNK_LOST,
    SEGMENT_CHUNK_LOST,
  };

  /* The journal names a record in chunk 2 first. */
  assert (segment_map_place_chunk (map, 2, 4 * cs) == 0);
  assert (map->nr_chunks == 3 && map->nr_used == cs);
  assert (map->chunks[0] == SEGMENT_CHUNK_LOST);
  assert (segment_map_nr_free_slots (map) == spc - 1);
  assert (segment_map_find_slot (map) == (int) (2 * spc + 1));
  assert (segment_map_set_slot (map, 1) == -1);
  assert (segment_map_clear_slot (map, 1) == -1);
  assert (segment_map_set_slot (map, 2 * spc + 9) == 0);
  assert (segment_map_set (map, 20 * cs, 3) == 0);
  map = repack (map);
  assert (map->nr_slots_used == 1 && map->nr_chunks == 3);

  row = segment_map_new (3, sector);
  assert (segment_map_set_chunks (row, map->chunks, map->nr_chunks) == 0);
  assert (segment_map_set_slot (row, 2 * spc + 9) == 0);
  assert (segment_map_set (row, 20 * cs, 3) == 0);

  /* Then one in chunk 0. */
  assert (segment_map_place_chunk (map, 0, 20 * cs) == -1);
  assert (segment_map_place_chunk (map, 0, 8 * cs) == 0);
  assert (segment_map_place_chunk (map, 0, 8 * cs) == 0);
  assert (segment_map_place_chunk (map, 0, 9 * cs) == -1);
  assert (segment_map_nr_free_slots (map) == 2 * (spc - 1) - 1);
  assert (segment_map_find_slot (map) == 1);
  assert (segment_map_place_chunk (map, map->max_chunks, 30 * cs) == -1);

  assert (segment_map_set_chunks (row, map->chunks, map->nr_chunks) == 0);
  assert (row->nr_chunks == 3 && row->chunks[0] == 8 * cs);
  assert (row->nr_used == map->nr_used);
  segment_map_free (row);

  assert (segment_map_drop_chunk (map, 2) == -1); /* in use */
  assert (segment_map_drop_chunk (map, 0) == 0);
  assert (map->chunks[0] == SEGMENT_CHUNK_LOST && map->nr_chunks == 3);
  assert (segment_map_clear_slot (map, 2 * spc + 9) == 0);
  assert (segment_map_clear (map, 20 * cs, 3) == 0);
  assert (segment_map_is_empty (map));
  assert (segment_map_drop_chunk (map, 2) == 0);
  assert (map->nr_chunks == 2 && map->nr_used == 0);
  assert (segment_map_set_chunks (map, lost, 3) == 0);
  assert (map->nr_chunks == 3);
  segment_map_reset (map);
  assert (map->nr_chunks == 0 && map->nr_used == 0);
  segment_map_free (map);
}

static void
test_record (uint32_t sector)
{
  struct segment_map *map = segment_map_new (3, sector);
  const unsigned cs = map->chunk_sectors, at = 4 * cs;
  unsigned i;

  assert (segment_map_place_chunk (map, 0, 0) == 0);
  assert (segment_map_set_record (map, at, 4, 1) == 0);
  assert (segment_map_set_record (map, at + 3, 4, 2) == -1);
  assert (segment_map_set_record (map, at + 4, 4, 1) == -1);
  assert (segment_map_set_record (map, map->nr_sectors - 1, 2, 2) == -1);
  assert (map->nr_used == cs + 4 && map->nr_slots_used == 1);
  assert (segment_map_find_slot (map) == 2);

  segment_map_cover (map, at + 3, 4);
  assert (map->nr_used == cs + 7);
  assert (segment_map_clear_record (map, at + 3, 4, 2) == -1);
  assert (segment_map_clear_record (map, at, 8, 1) == -1);
  assert (segment_map_clear_record (map, 0, 1, 1) == -1);
  assert (map->nr_used == cs + 7 && map->nr_slots_used == 1);
  map = repack (map);

  assert (segment_map_clear_record (map, at, 4, 1) == 0);
  assert (map->nr_used == cs + 3 && map->nr_slots_used == 0);
  segment_map_cover (map, map->nr_sectors - 1, UINT_MAX);
  assert (map->nr_used == cs + 4);
  segment_map_cover (map, 0, map->nr_sectors);
  assert (map->nr_used == map->nr_sectors);
  assert (segment_map_next_run (map, 0, &i) == -1);
  map = repack (map);
  segment_map_free (map);
}

int
main (void)
{
  const char *s = getenv ("SEED");
  const unsigned seed = s ? strtoul (s, NULL, 0) : 1;
  uint32_t sector;

  printf ("SEED=%u\n", seed);
  srandom (seed);
  for (sector = 512; sector <= 8192; sector *= 2) {
    test_random (0, sector);
    test_random (1 + rnd (1000), sector);
    test_damage (0, sector);
    test_damage (5, sector);
    test_fill (sector);
    test_lost (sector);
    test_record (sector);
  }
  return 0;
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* The space map of one segment: see segment.h for the packed form.
 *
 * The length of each bitmap is a multiple of 64 bits (a segment has 512 sectors
 * or more, a chunk 64 or 128 slots), so scans go word by word.  Bitmaps in
 * memory are as on disk, bit i % 8 of byte i / 8, so that a word of 8
 * little-endian bytes holds bits 64 w .. 64 w + 63 in order.
 *
 * The maximum number of chunks: a chunk is added only when every slot of the
 * chunks before is taken, by a record of at least one sector.  So with c chunks
 *
 *   c * chunk_sectors + c * (slots_per_chunk - 1) + chunk_sectors
 *     <= nr_sectors
 *
 * must hold to add one more, which gives max_chunks.  A lost chunk (see
 * SEGMENT_CHUNK_LOST) existed before the crash, within the same limit, and
 * gets a new place before another one is appended.
 */

#include <config.h>

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/backoff.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/geometry.h"
#include "base/xxh3.h"
#include "format/segment.h"

#define PACKED_HEADER_LEN 16

static bool
get_bit (const uint8_t *bitmap, unsigned i)
{
  return bitmap[i / 8] & (1 << (i % 8));
}

static void
set_bit (uint8_t *bitmap, unsigned i)
{
  bitmap[i / 8] |= 1 << (i % 8);
}

static void
clear_bit (uint8_t *bitmap, unsigned i)
{
  bitmap[i / 8] &= ~(1 << (i % 8));
}

/* The first bit at or after 'from' that is 'value'.  If there is none before
 * 'end' the result is not below 'end'; it is 'end' for a multiple of 64.
 */
static unsigned
find_bit (const uint8_t *bitmap, unsigned from, unsigned end, bool value)
{
  unsigned w;
  uint64_t word;

  if (from >= end)
    return end;
  w = from / 64;
  word = get_le64 (bitmap + 8 * w);
  if (!value)
    word = ~word;
  word &= UINT64_MAX << (from % 64);
  while (word == 0) {
    if (64 * ++w >= end)
      return end;
    word = get_le64 (bitmap + 8 * w);
    if (!value)
      word = ~word;
  }
  return 64 * w + __builtin_ctzll (word);
}

static unsigned
count_bits (const uint8_t *bitmap, unsigned nr_bits)
{
  unsigned i, n = 0;

  for (i = 0; i < nr_bits / 8; i += 8)
    n += __builtin_popcountll (get_le64 (bitmap + i));
  return n;
}

/* Sectors that are always in use: the store's header. */
static unsigned
base_sectors (const struct segment_map *map)
{
  return map->id == 0 ? STORE_HEADER_BYTES / map->sector_bytes : 0;
}

static unsigned
nr_placed_chunks (const struct segment_map *map)
{
  unsigned i, n = 0;

  for (i = 0; i < map->nr_chunks; ++i)
    n += map->chunks[i] != SEGMENT_CHUNK_LOST;
  return n;
}

struct segment_map *
segment_map_new (uint64_t id, uint32_t sector_bytes)
{
  struct segment_map *map;
  unsigned i;

  assert (sector_bytes >= 512 && sector_bytes <= 8192 &&
          (sector_bytes & (sector_bytes - 1)) == 0);

  map = patient_calloc (1, sizeof *map);
  if (map == NULL)
    goto nomem;
  map->id = id;
  map->sector_bytes = sector_bytes;
  map->nr_sectors = SEGMENT_BYTES / sector_bytes;
  map->chunk_sectors = segment_chunk_sectors (sector_bytes);
  map->slots_per_chunk = map->chunk_sectors * sector_bytes / SUMMARY_SLOT_BYTES;
  map->max_chunks = (map->nr_sectors - map->chunk_sectors) /
      (map->chunk_sectors + map->slots_per_chunk - 1) +
    1;

  map->bitmap = patient_calloc (1, map->nr_sectors / 8);
  map->chunks = patient_calloc (map->max_chunks, sizeof map->chunks[0]);
  map->slots = patient_calloc (map->max_chunks, map->slots_per_chunk / 8);
  if (map->bitmap == NULL || map->chunks == NULL || map->slots == NULL)
    goto nomem;

  map->nr_used = base_sectors (map);
  for (i = 0; i < map->nr_used; ++i)
    set_bit (map->bitmap, i);
  return map;

nomem:
  segment_map_free (map);
  return nbdedup_fail_null (ENOMEM,
                            "segment %" PRIu64 ": no memory for its "
                            "space map",
                            id);
}

void
segment_map_free (struct segment_map *map)
{
  if (map == NULL)
    return;
  free (map->bitmap);
  free (map->chunks);
  free (map->slots);
  free (map);
}

size_t
segment_map_memory (uint32_t sector_bytes)
{
  const unsigned chunk = segment_chunk_sectors (sector_bytes) * sector_bytes;
  const unsigned spc = chunk / SUMMARY_SLOT_BYTES;
  const unsigned nr_sectors = SEGMENT_BYTES / sector_bytes;
  const unsigned max_chunks = (nr_sectors - chunk / sector_bytes) /
      (chunk / sector_bytes + spc - 1) +
    1;

  return sizeof (struct segment_map) + nr_sectors / 8 +
    max_chunks * (sizeof (uint16_t) + spc / 8) + 4 * 16 /* malloc's own */;
}

/* The longest packed form: 512-byte sectors, 116 chunks of 64 slots. */
#define PACKED_MAX 4096

/* 'len' is at most PACKED_MAX. */
static uint64_t
packed_checksum (uint64_t id, const uint8_t *buf, size_t len)
{
  uint8_t covered[PACKED_MAX];

  memcpy (covered, buf, 8);
  memcpy (covered + 8, buf + PACKED_HEADER_LEN, len - PACKED_HEADER_LEN);
  return xxh3_64_seeded (covered, len - 8, id);
}

uint8_t *
segment_map_pack (const struct segment_map *map, size_t *len)
{
  const size_t bitmap_len = map->nr_sectors / 8;
  const size_t slots_len = map->nr_chunks * map->slots_per_chunk / 8;
  uint8_t *buf, *p;
  unsigned i;

  *len = PACKED_HEADER_LEN + bitmap_len + 2 * map->nr_chunks + slots_len;
  assert (*len <= PACKED_MAX);
  buf = malloc (*len);
  if (buf == NULL)
    return nbdedup_fail_null (ENOMEM,
                              "segment %" PRIu64 ": no memory to pack "
                              "its space map",
                              map->id);
  put_le16 (buf, map->nr_sectors);
  put_le16 (buf + 2, map->nr_chunks);
  put_le32 (buf + 4, 0);
  p = buf + PACKED_HEADER_LEN;
  memcpy (p, map->bitmap, bitmap_len);
  p += bitmap_len;
  for (i = 0; i < map->nr_chunks; ++i, p += 2)
    put_le16 (p, map->chunks[i]);
  memcpy (p, map->slots, slots_len);
  put_le64 (buf + 8, packed_checksum (map->id, buf, *len));
  return buf;
}

/* Check everything that the code below relies on, in a map that was just copied
 * from packed bytes: the checksum proves that they are unchanged, not that they
 * were consistent.  Returns a text that names the fault, or NULL.
 */
static const char *
check_map (const struct segment_map *map)
{
  const unsigned spc = map->slots_per_chunk, cs = map->chunk_sectors;
  const unsigned placed = nr_placed_chunks (map);
  uint8_t seen[SEGMENT_BYTES / 512 / 8] = { 0 };
  unsigned i, j, first, nr_record_sectors;

  for (i = 0; i < base_sectors (map); ++i) {
    if (!get_bit (map->bitmap, i))
      return "the store's header is marked free";
    set_bit (seen, i);
  }
  for (i = 0; i < map->nr_chunks; ++i) {
    first = map->chunks[i];
    if (first == SEGMENT_CHUNK_LOST) {
      if (find_bit (map->slots, i * spc, (i + 1) * spc, false) != (i + 1) * spc)
        return "a lost chunk has free slots";
      continue;
    }
    if (first % cs != 0 || first + cs > map->nr_sectors)
      return "a chunk is out of place";
    for (j = first; j < first + cs; ++j) {
      if (get_bit (seen, j))
        return "two chunks overlap";
      set_bit (seen, j);
      if (!get_bit (map->bitmap, j))
        return "a chunk is marked free";
    }
    if (!get_bit (map->slots, i * spc))
      return "the slot of a chunk's header is marked free";
  }
  nr_record_sectors = map->nr_used - base_sectors (map) - placed * cs;
  /* Sectors without a slot are a leak, which check finds.  They may be all that
   * is left after the last record has died.
   */
  if (map->nr_slots_used > nr_record_sectors)
    return "the numbers of slots and sectors in use contradict each other";
  return NULL;
}

struct segment_map *
segment_map_unpack (uint64_t id, uint32_t sector_bytes, const void *buf,
                    size_t len)
{
  const uint8_t *p = buf;
  struct segment_map *map;
  const char *why;
  size_t bitmap_len, slots_len;
  unsigned i, nr_chunks;

  if (len < PACKED_HEADER_LEN || len > PACKED_MAX)
    return nbdedup_fail_null (EIO,
                              "segment %" PRIu64 ": its space map cannot "
                              "have %zu bytes: run nbdedup check --repair",
                              id, len);
  map = segment_map_new (id, sector_bytes);
  if (map == NULL)
    return NULL;

  nr_chunks = get_le16 (p + 2);
  bitmap_len = map->nr_sectors / 8;
  slots_len = (size_t) nr_chunks * map->slots_per_chunk / 8;

  why = "wrong checksum";
  if (get_le64 (p + 8) != packed_checksum (id, p, len))
    goto bad;
  why = "wrong number of sectors";
  if (get_le16 (p) != map->nr_sectors)
    goto bad;
  why = "reserved bytes are not zero";
  if (get_le32 (p + 4) != 0)
    goto bad;
  why = "too many chunks";
  if (nr_chunks > map->max_chunks)
    goto bad;
  why = "wrong length";
  if (len != PACKED_HEADER_LEN + bitmap_len + 2 * nr_chunks + slots_len)
    goto bad;

  p += PACKED_HEADER_LEN;
  memcpy (map->bitmap, p, bitmap_len);
  p += bitmap_len;
  map->nr_chunks = nr_chunks;
  for (i = 0; i < nr_chunks; ++i, p += 2)
    map->chunks[i] = get_le16 (p);
  memcpy (map->slots, p, slots_len);
  map->nr_used = count_bits (map->bitmap, map->nr_sectors);

  i = nr_placed_chunks (map);
  why = "fewer sectors in use than its chunks take";
  if (map->nr_used < base_sectors (map) + i * map->chunk_sectors)
    goto bad;
  /* In the bitmap all slots of a lost chunk count as used. */
  map->nr_slots_used = count_bits (map->slots,
                                   nr_chunks * map->slots_per_chunk);
  why = "the slot of a chunk's header is marked free";
  if (map->nr_slots_used < i + (nr_chunks - i) * map->slots_per_chunk)
    goto bad;
  map->nr_slots_used -= i + (nr_chunks - i) * map->slots_per_chunk;
  why = check_map (map);
  if (why != NULL)
    goto bad;
  return map;

bad:
  segment_map_free (map);
  return nbdedup_fail_null (EIO,
                            "segment %" PRIu64 ": its space map is "
                            "damaged (%s): run nbdedup check --repair",
                            id, why);
}

static int
check_sectors (const struct segment_map *map, unsigned sector,
               unsigned nr_sectors)
{
  if (nr_sectors == 0 || sector >= map->nr_sectors ||
      nr_sectors > map->nr_sectors - sector)
    return nbdedup_fail (EIO,
                         "segment %" PRIu64 ": sectors %u + %u: "
                         "outside of the segment",
                         map->id, sector, nr_sectors);
  return 0;
}

int
segment_map_set (struct segment_map *map, unsigned sector, unsigned nr_sectors)
{
  unsigned i, end = sector + nr_sectors;

  if (check_sectors (map, sector, nr_sectors) == -1)
    return -1;
  i = find_bit (map->bitmap, sector, end, true);
  if (i < end)
    return nbdedup_fail (EIO,
                         "segment %" PRIu64 ": sector %u is in use "
                         "already",
                         map->id, i);
  for (i = sector; i < end; ++i)
    set_bit (map->bitmap, i);
  map->nr_used += nr_sectors;
  return 0;
}

int
segment_map_clear (struct segment_map *map, unsigned sector,
                   unsigned nr_sectors)
{
  unsigned i, end = sector + nr_sectors;

  if (check_sectors (map, sector, nr_sectors) == -1)
    return -1;
  i = find_bit (map->bitmap, sector, end, false);
  if (i < end)
    return nbdedup_fail (EIO,
                         "segment %" PRIu64 ": sector %u is free "
                         "already",
                         map->id, i);
  if (sector < base_sectors (map))
    return nbdedup_fail (EIO,
                         "segment %" PRIu64 ": sector %u is the store's "
                         "header",
                         map->id, sector);
  for (i = 0; i < map->nr_chunks; ++i)
    if (map->chunks[i] != SEGMENT_CHUNK_LOST && map->chunks[i] < end &&
        map->chunks[i] + map->chunk_sectors > sector)
      return nbdedup_fail (EIO,
                           "segment %" PRIu64 ": sectors %u + %u: "
                           "a summary chunk is there",
                           map->id, sector, nr_sectors);
  for (i = sector; i < end; ++i)
    clear_bit (map->bitmap, i);
  map->nr_used -= nr_sectors;
  return 0;
}

/* Check that the slot exists, in a chunk that has a place, and is not the
 * chunk's header.
 */
static int
check_slot (const struct segment_map *map, unsigned slot)
{
  const unsigned chunk = slot / map->slots_per_chunk;

  if (chunk >= map->nr_chunks || slot % map->slots_per_chunk == 0 ||
      map->chunks[chunk] == SEGMENT_CHUNK_LOST)
    return nbdedup_fail (EIO, "segment %" PRIu64 ": slot %u does not exist",
                         map->id, slot);
  return 0;
}

int
segment_map_set_slot (struct segment_map *map, unsigned slot)
{
  if (check_slot (map, slot) == -1)
    return -1;
  if (get_bit (map->slots, slot))
    return nbdedup_fail (EIO,
                         "segment %" PRIu64 ": slot %u is in use "
                         "already",
                         map->id, slot);
  set_bit (map->slots, slot);
  map->nr_slots_used++;
  return 0;
}

int
segment_map_clear_slot (struct segment_map *map, unsigned slot)
{
  if (check_slot (map, slot) == -1)
    return -1;
  if (!get_bit (map->slots, slot))
    return nbdedup_fail (EIO, "segment %" PRIu64 ": slot %u is free already",
                         map->id, slot);
  clear_bit (map->slots, slot);
  map->nr_slots_used--;
  return 0;
}

int
segment_map_set_record (struct segment_map *map, unsigned sector,
                        unsigned nr_sectors, unsigned slot)
{
  if (segment_map_set_slot (map, slot) == -1)
    return -1;
  if (segment_map_set (map, sector, nr_sectors) == 0)
    return 0;
  clear_bit (map->slots, slot);
  map->nr_slots_used--;
  return -1;
}

int
segment_map_clear_record (struct segment_map *map, unsigned sector,
                          unsigned nr_sectors, unsigned slot)
{
  if (segment_map_clear_slot (map, slot) == -1)
    return -1;
  if (segment_map_clear (map, sector, nr_sectors) == 0)
    return 0;
  set_bit (map->slots, slot);
  map->nr_slots_used++;
  return -1;
}

void
segment_map_cover (struct segment_map *map, unsigned sector,
                   unsigned nr_sectors)
{
  unsigned i;

  for (i = sector; i < map->nr_sectors && i - sector < nr_sectors; ++i)
    if (!get_bit (map->bitmap, i)) {
      set_bit (map->bitmap, i);
      map->nr_used++;
    }
}

/* Append chunks without a place. */
static int
add_lost_chunks (struct segment_map *map, unsigned nr_chunks)
{
  const unsigned spc = map->slots_per_chunk;
  unsigned i;

  if (nr_chunks > map->max_chunks)
    return nbdedup_fail (EIO,
                         "segment %" PRIu64 ": %u summary chunks: there "
                         "can be only %u",
                         map->id, nr_chunks, map->max_chunks);
  while (map->nr_chunks < nr_chunks) {
    i = map->nr_chunks++;
    map->chunks[i] = SEGMENT_CHUNK_LOST;
    memset (map->slots + i * spc / 8, 0xff, spc / 8);
  }
  return 0;
}

int
segment_map_place_chunk (struct segment_map *map, unsigned index,
                         unsigned sector)
{
  const unsigned spc = map->slots_per_chunk;

  if (index < map->nr_chunks && map->chunks[index] != SEGMENT_CHUNK_LOST) {
    if (map->chunks[index] == sector)
      return 0;
    return nbdedup_fail (EIO,
                         "segment %" PRIu64 ": summary chunk %u stands "
                         "at sector %u, not at %u",
                         map->id, index, map->chunks[index], sector);
  }
  if (index >= map->max_chunks)
    return nbdedup_fail (EIO,
                         "segment %" PRIu64 ": summary chunk %u: there "
                         "can be only %u",
                         map->id, index, map->max_chunks);
  if (sector % map->chunk_sectors != 0)
    return nbdedup_fail (EIO,
                         "segment %" PRIu64 ": sector %u is not aligned "
                         "for a summary chunk",
                         map->id, sector);
  if (segment_map_set (map, sector, map->chunk_sectors) == -1)
    return -1;
  if (index >= map->nr_chunks)
    add_lost_chunks (map, index + 1); /* within max_chunks: see above */
  map->chunks[index] = sector;
  memset (map->slots + index * spc / 8, 0, spc / 8);
  set_bit (map->slots, index * spc);
  return 0;
}

void
segment_map_force_chunk (struct segment_map *map, unsigned index,
                         unsigned sector)
{
  unsigned i;

  if (index < map->nr_chunks && map->chunks[index] != SEGMENT_CHUNK_LOST)
    return;
  for (i = 0; i < map->chunk_sectors; ++i)
    (void) segment_map_clear (map, sector + i, 1); /* unless free */
  (void) segment_map_place_chunk (map, index, sector);
}

int
segment_map_set_chunks (struct segment_map *map, const uint16_t *chunks,
                        unsigned nr_chunks)
{
  unsigned i;

  for (i = 0; i < nr_chunks; ++i)
    if (chunks[i] != SEGMENT_CHUNK_LOST &&
        segment_map_place_chunk (map, i, chunks[i]) == -1)
      return -1;
  /* Add lost chunks at the end, after the last placed one. */
  return add_lost_chunks (map, nr_chunks);
}

bool
segment_map_chunk_has_slots (const struct segment_map *map, unsigned index)
{
  const unsigned spc = map->slots_per_chunk;

  assert (index < map->nr_chunks);
  return find_bit (map->slots, index * spc + 1, (index + 1) * spc, true) !=
    (index + 1) * spc;
}

int
segment_map_drop_chunk (struct segment_map *map, unsigned index)
{
  const unsigned spc = map->slots_per_chunk;
  unsigned i;

  assert (index < map->nr_chunks);
  assert (map->chunks[index] != SEGMENT_CHUNK_LOST);
  if (segment_map_chunk_has_slots (map, index))
    return nbdedup_fail (EIO,
                         "segment %" PRIu64 ": summary chunk %u is in "
                         "use",
                         map->id, index);
  for (i = 0; i < map->chunk_sectors; ++i)
    clear_bit (map->bitmap, map->chunks[index] + i);
  map->nr_used -= map->chunk_sectors;
  map->chunks[index] = SEGMENT_CHUNK_LOST;
  memset (map->slots + index * spc / 8, 0xff, spc / 8);
  if (index == map->nr_chunks - 1u)
    map->nr_chunks--;
  return 0;
}

unsigned
segment_map_nr_free_slots (const struct segment_map *map)
{
  return nr_placed_chunks (map) * (map->slots_per_chunk - 1) -
    map->nr_slots_used;
}

int
segment_map_find_slot (const struct segment_map *map)
{
  const unsigned end = map->nr_chunks * map->slots_per_chunk;
  const unsigned slot = find_bit (map->slots, 0, end, false);

  return slot < end ? (int) slot : -1;
}

int
segment_map_next_run (const struct segment_map *map, unsigned from,
                      unsigned *len)
{
  unsigned start, end;

  start = find_bit (map->bitmap, from, map->nr_sectors, false);
  if (start == map->nr_sectors)
    return -1;
  end = find_bit (map->bitmap, start, map->nr_sectors, true);
  *len = end - start;
  return start;
}

unsigned
segment_map_largest_run (const struct segment_map *map, unsigned *start)
{
  unsigned len, best = 0;
  int run;

  for (run = segment_map_next_run (map, 0, &len); run != -1;
       run = segment_map_next_run (map, run + len, &len))
    if (len > best) {
      best = len;
      *start = run;
    }
  return best;
}

bool
segment_map_is_empty (const struct segment_map *map)
{
  return map->nr_slots_used == 0 &&
    map->nr_used ==
    base_sectors (map) + nr_placed_chunks (map) * map->chunk_sectors;
}

void
segment_map_reset (struct segment_map *map)
{
  unsigned i, j;

  assert (segment_map_is_empty (map));
  for (i = 0; i < map->nr_chunks; ++i)
    if (map->chunks[i] != SEGMENT_CHUNK_LOST)
      for (j = 0; j < map->chunk_sectors; ++j)
        clear_bit (map->bitmap, map->chunks[i] + j);
  memset (map->slots, 0, map->nr_chunks * map->slots_per_chunk / 8);
  map->nr_chunks = 0;
  map->nr_used = base_sectors (map);
}

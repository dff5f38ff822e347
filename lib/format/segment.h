/* SPDX-License-Identifier: BSD-3-Clause */

/* The space map of one segment: pure data, no locks, no I/O.
 *
 * A segment is SEGMENT_BYTES of sectors.  It holds records, and summary
 * chunks: arrays of 64-byte slots, one slot per record of the segment,
 * that describe the records (see core/fold-summary.h), so that the program
 * can find and verify them without pool.db.  A chunk takes max (4096, sector)
 * bytes, i.e. chunk_sectors, anywhere in the segment, aligned to its size.
 * Slot numbers count through the chunks in the order in which they were
 * added: slot s is in chunk s / slots_per_chunk.  A chunk is never
 * freed before its whole segment is free.  (The first slot of each
 * chunk is the chunk's own header: slots_per_chunk counts it, but no record
 * gets it.)
 *
 * A chunk can be "lost": after a crash its place is unknown, because none of
 * its records was flushed, but a record of a later chunk was.  A lost chunk
 * keeps its number, has no sectors, and all its slots count as taken, until it
 * is placed again.
 *
 * Packed form (the "map" column of table "segment"), little-endian:
 *
 *   OFFSET  SIZE  FIELD
 *      0      2   nr_sectors
 *      2      2   nr_chunks
 *      4      4   zero
 *      8      8   XXH3_64bits_withSeed of all the rest (offset 16 on and
 *                 the first 8 bytes in front), the seed being the segment
 *     16      n   bitmap of sectors, bit i % 8 of byte i / 8: 1 = in use
 *      +      2c  first sector of each chunk, 0xffff: lost
 *      +      m   bitmap of slots, nr_chunks * slots_per_chunk bits
 */

#ifndef NBDEDUP_SEGMENT_H
#define NBDEDUP_SEGMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SUMMARY_SLOT_BYTES 64
#define SEGMENT_CHUNK_LOST 0xffff /* in place of its first sector */

/* Sectors of a summary chunk. */
static inline unsigned
segment_chunk_sectors (uint32_t sector_bytes)
{
  return sector_bytes < 4096 ? 4096 / sector_bytes : 1;
}

struct segment_map {
  uint64_t id;
  uint32_t sector_bytes;
  uint16_t nr_sectors; /* SEGMENT_BYTES / sector_bytes */
  uint16_t chunk_sectors;
  uint16_t slots_per_chunk; /* including the header's slot 0 */
  uint16_t nr_chunks, max_chunks;
  uint8_t *bitmap;        /* owned */
  uint16_t *chunks;       /* owned; first sector of each */
  uint8_t *slots;         /* owned; max_chunks * slots_per_chunk bits */
  uint32_t nr_used;       /* sectors set in bitmap */
  uint32_t nr_slots_used; /* without the chunks' own */
};

/* An empty map (segment 0: the store's header is in use).  NULL: ENOMEM. */
extern struct segment_map *segment_map_new (uint64_t id, uint32_t sector_bytes);
extern void segment_map_free (struct segment_map *map);
/* Bytes of memory that one map takes. */
extern size_t segment_map_memory (uint32_t sector_bytes);

/* Pack into a malloc'd buffer; unpack and check everything (EIO). */
extern uint8_t *segment_map_pack (const struct segment_map *map, size_t *len);
extern struct segment_map *segment_map_unpack (uint64_t id,
                                               uint32_t sector_bytes,
                                               const void *buf, size_t len);

/* Mark sectors used or free.  -1 (EIO) if one of them has that state already:
 * the map and the caller disagree, and the map is unchanged.
 */
extern int
segment_map_set (struct segment_map *map, unsigned sector, unsigned nr_sectors);
extern int segment_map_clear (struct segment_map *map, unsigned sector,
                              unsigned nr_sectors);

/* The same for a slot. */
extern int segment_map_set_slot (struct segment_map *map, unsigned slot);
extern int segment_map_clear_slot (struct segment_map *map, unsigned slot);

/* The same for a record's sectors and slot: both, or neither (EIO). */
extern int segment_map_set_record (struct segment_map *map, unsigned sector,
                                   unsigned nr_sectors, unsigned slot);
extern int segment_map_clear_record (struct segment_map *map, unsigned sector,
                                     unsigned nr_sectors, unsigned slot);

/* Mark those of the sectors as used that are free. */
extern void segment_map_cover (struct segment_map *map, unsigned sector,
                               unsigned nr_sectors);

/* Record that chunk number 'index' is at 'sector', and mark its sectors and
 * header slot used: add it if it is new (chunks skipped are lost), place it if
 * it was lost, else compare (EIO).
 */
extern int segment_map_place_chunk (struct segment_map *map, unsigned index,
                                    unsigned sector);
/* The same if the map may mark free sectors as used: sectors there that belong
 * to no chunk become the chunk's.
 */
extern void segment_map_force_chunk (struct segment_map *map, unsigned index,
                                     unsigned sector);

/* The same for all the chunks of a segment, as space_get_chunks returns them:
 * add missing ones, and place lost ones that were found again.
 */
extern int segment_map_set_chunks (struct segment_map *map,
                                   const uint16_t *chunks, unsigned nr_chunks);

/* Is one of the chunk's slots in use?  Its header does not count. */
extern bool
segment_map_chunk_has_slots (const struct segment_map *map, unsigned index);

/* Remove a chunk that has no slot in use.  The last one is forgotten; any other
 * becomes lost.
 */
extern int segment_map_drop_chunk (struct segment_map *map, unsigned index);

/* A free slot, or -1: all are taken, and the caller must add a chunk. */
extern int segment_map_find_slot (const struct segment_map *map);
extern unsigned segment_map_nr_free_slots (const struct segment_map *map);

/* The free run that starts at or after 'from': its start, or -1; '*len'. */
extern int segment_map_next_run (const struct segment_map *map, unsigned from,
                                 unsigned *len);
/* The longest free run: its length (0: none), its start in '*start'. */
extern unsigned
segment_map_largest_run (const struct segment_map *map, unsigned *start);

/* True if only chunks (and the store's header) are in use. */
extern bool segment_map_is_empty (const struct segment_map *map);

/* Forget the chunks of an empty segment. */
extern void segment_map_reset (struct segment_map *map);

#endif /* NBDEDUP_SEGMENT_H */

/* SPDX-License-Identifier: BSD-3-Clause */

/* Packing and unpacking of every structure in pool.db's blobs, in the journal's
 * bodies and in the summaries of "records".  Pure: no I/O, no locks.
 * Little-endian throughout.  nbdedup-format(5) repeats the tables.
 */

#ifndef NBDEDUP_FORMAT_H
#define NBDEDUP_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/geometry.h"
#include "format/hash.h"

#define FORMAT_VERSION 1                 /* of pool.db: PRAGMA user_version */
#define FORMAT_APPLICATION_ID 0x4e424444 /* "NBDD" */

/* pool.db's features_incompat: table "count" has or had rows. */
#define FEATURE_INCOMPAT_COUNTS 1
/* The same: the hash has a key; property "hash-key" and the header of "records"
 * hold it.
 */
#define FEATURE_INCOMPAT_HASH_KEY 2
/* The same: rows of tables "record" and "ddt" may be packed (record-row.h,
 * index-row.h).
 */
#define FEATURE_INCOMPAT_PACKED 4
/* The same: table "delta" has or had rows. */
#define FEATURE_INCOMPAT_DELTAS 8
#define FEATURES_INCOMPAT                                                      \
  (FEATURE_INCOMPAT_COUNTS | FEATURE_INCOMPAT_HASH_KEY |                       \
   FEATURE_INCOMPAT_PACKED | FEATURE_INCOMPAT_DELTAS)

/* pool.db's features_compat: a map has had a lost block. */
#define FEATURE_COMPAT_LOST 1
/* The same: rows of table "record" are missing; "check --repair" clears it. */
#define FEATURE_COMPAT_RECORDS_LOST 2

/* A page of pool.db. */
#define META_PAGE_BYTES 8192

#define BLOCK_SIZE_MIN 4096u
#define BLOCK_SIZE_MAX (1u << 20)
/* Room to spare below what off_t and SQLite's integers hold. */
#define VOLUME_SIZE_MAX (UINT64_C (1) << 62)
#define SECTOR_MIN 512u
#define SECTOR_MAX 8192u

/* A pointer's address has 40 bits: 512 TiB of 512-byte sectors. */
#define ADDR_MAX ((UINT64_C (1) << 40) - 1)

/*----------------------------------------------------------------------
 * Pointer: a block's entry in a layer's map.
 *
 *   BITS      FIELD
 *    0 ..  39  addr    first sector in "records", never 0
 *   40 ..  59  psize   stored bytes - 1
 *   60 ..  63  codec
 *   64 .. 127  cksum   XXH3_64bits of the stored bytes
 *
 * The logical size is the volume's block size.
 */
#define POINTER_LEN 16

struct pointer {
  uint64_t addr;
  uint64_t cksum;
  uint32_t psize;
  uint8_t codec;
};

extern void pointer_pack (const struct pointer *p, uint8_t buf[POINTER_LEN]);
/* Its address alone, unchecked. */
extern uint64_t pointer_addr (const uint8_t buf[POINTER_LEN]);
/* EIO if it is impossible for a block of 'lsize' bytes. */
extern int pointer_unpack (const uint8_t buf[POINTER_LEN], uint32_t lsize,
                           struct pointer *p);
/* EIO if these are not the stored bytes of the record, 'psize' of them. */
extern int pointer_check_stored (const struct pointer *p, const uint8_t *raw);

/*----------------------------------------------------------------------
 * Record: the metadata of a record, by address.
 *
 * Table "record" has one row per group of RECORD_GROUP_SECTORS sectors.  In
 * memory a row is an array of entries, ascending by sector (record-row.h: in
 * the table):
 *
 *   OFFSET  SIZE  FIELD
 *      0      2   sector in the group
 *      2      2   slot in the segment's summary
 *      4      1   codec (low 4 bits), log2 (lsize) - 9 (high 4 bits)
 *      5      3   psize - 1
 *      8      6   reference count
 *     14      2   flags: RECORD_*
 *     16      8   cksum: XXH3_64bits of the stored bytes
 *     24     32   digest of the lsize uncompressed bytes
 *   only with RECORD_EXTENDED:
 *     56      2   bytes of extension that follow
 *     58      n   extension: fields of (type 2, length 2, value, padding
 *                 to 2); type 1 = domain (8 bytes)
 */
#define RECORD_GROUP_SECTORS 256
#define RECORD_ENTRY_LEN 56
#define RECORD_ENTRY_MAX (RECORD_ENTRY_LEN + 2 + 4 + 8)

#define RECORD_INDEXED 1 /* has an entry in the hash index */
#define RECORD_EXTENDED 2
#define RECORD_COPY 4 /* table "copy" has its one reference */
#define RECORD_REFCOUNT_MAX ((UINT64_C (1) << 48) - 1)

struct record {
  struct pointer ptr;
  uint32_t lsize;
  uint16_t slot;
  uint16_t flags;
  uint64_t refcount;
  uint64_t domain;
  struct digest digest;
};

static inline uint32_t
sectors_of (uint32_t psize, uint32_t sector_bytes)
{
  return (psize + sector_bytes - 1) / sector_bytes;
}

/* Returns the bytes used. */
extern size_t
record_pack (const struct record *r, uint8_t buf[RECORD_ENTRY_MAX]);
/* Change the count of a packed entry. */
extern void record_put_refcount (uint8_t *entry, uint64_t refcount);
/* The same for its flags. */
extern void record_put_flags (uint8_t *entry, uint16_t flags);
/* Unpack the row's entry at '*off', and move that behind it: 1; 0: the row ends
 * there; -1: EIO.
 */
extern int record_next (uint64_t group, const uint8_t *row, size_t len,
                        size_t *off, struct record *r);
/* Unpack the entry at the front of a row's remaining bytes.  Returns the bytes
 * used, or -1 (EIO).
 */
extern int record_unpack (uint64_t group, const uint8_t *buf, size_t len,
                          struct record *r);

/*----------------------------------------------------------------------
 * Leaf: LEAF_BLOCKS consecutive blocks of a layer's map.
 *
 *   OFFSET  SIZE  FIELD
 *      0     16   2 bits per block, block i in bits 2 * (i % 4) of byte
 *                 i / 4: 0 inherit, 1 hole, 2 pointer, 3 lost
 *     16   16 n   the pointers, in block order
 *
 * In a layer without a parent "inherit" reads as a hole, and state 1 is not
 * used.  Lost: damage destroyed the block's pointer, so its content is unknown.
 * Reads fail until a client overwrites the whole block or zeroes it; the block
 * holds no reference.
 */
#define LEAF_BLOCKS 64
#define LEAF_STATES_LEN (LEAF_BLOCKS / 4)
#define LEAF_LEN_MAX (LEAF_STATES_LEN + LEAF_BLOCKS * POINTER_LEN)

enum map_state {
  MAP_INHERIT = 0,
  MAP_HOLE = 1,
  MAP_POINTER = 2,
  MAP_LOST = 3,
};

struct leaf {
  uint8_t state[LEAF_BLOCKS];
  uint8_t ptr[LEAF_BLOCKS][POINTER_LEN]; /* packed */
};

/* Returns the bytes used; 0: all blocks inherit, so no row is needed. */
extern size_t leaf_pack (const struct leaf *leaf, uint8_t buf[LEAF_LEN_MAX]);
extern int leaf_unpack (const uint8_t *buf, size_t len, struct leaf *leaf);

/*----------------------------------------------------------------------
 * Index entry: 11 bytes in a row of table "ddt" (index-row.h: in the table, it
 * mostly takes less).
 *
 *   OFFSET  SIZE  FIELD
 *      0      6   first 6 bytes of the digest, as a big-endian number, stored
 *                 little-endian, but bit 0 is 1 if this entry removes an equal
 *                 one (meta-index.h)
 *      6      5   addr
 *
 * The record has the whole digest.  47 bits of it let a lookup of new content
 * read a record in vain once in a million times in an index of 120 million.
 *
 * A row's key: bits 0 .. 55 are the first 7 bytes of the lowest prefix that the
 * row may hold, bits 56 .. 62 the number of its run.  A row's entries ascend by
 * (prefix, addr), and all entries of a run with one key are in one row.
 *
 * The number of a run is its level times INDEX_LEVEL_RUNS, and more.
 */
#define INDEX_ENTRY_LEN 11
/* The bits of a prefix that an entry has. */
#define INDEX_PREFIX_MASK (UINT64_MAX << 17)
/* The fold splits a row that grows past this. */
#define INDEX_ROW_MAX (128 * INDEX_ENTRY_LEN)
#define INDEX_LEVELS 8
#define INDEX_LEVEL_RUNS 16
#define INDEX_RUNS (INDEX_LEVELS * INDEX_LEVEL_RUNS)
#define INDEX_RUN_SHIFT 56
#define INDEX_KEY_SHIFT 8
#define INDEX_KEY_STEP (UINT64_C (1) << INDEX_KEY_SHIFT)
#define INDEX_KEY(run, prefix)                                                 \
  ((uint64_t) (run) << INDEX_RUN_SHIFT | (prefix) >> INDEX_KEY_SHIFT)

struct index_entry {
  uint64_t prefix;
  uint64_t addr;
  bool removed;
};

/* An order in which to sort digests: that of the sorter, which takes the first
 * bytes for a number of this machine's.  Any order will do.
 */
static inline int
digest_compare (const struct digest *a, const struct digest *b)
{
  uint64_t p, q;

  memcpy (&p, a, sizeof p);
  memcpy (&q, b, sizeof q);
  return p != q ? (p < q ? -1 : 1) : memcmp (a, b, sizeof *a);
}

/* The digest's first 8 bytes, as a big-endian number. */
extern uint64_t digest_word (const struct digest *digest);
/* Those bits of it that are in INDEX_PREFIX_MASK. */
extern uint64_t digest_prefix (const struct digest *digest);
extern void index_entry_make (const struct digest *digest, uint64_t addr,
                              struct index_entry *e);
extern void
index_entry_pack (const struct index_entry *e, uint8_t buf[INDEX_ENTRY_LEN]);
extern void
index_entry_unpack (const uint8_t buf[INDEX_ENTRY_LEN], struct index_entry *e);
extern bool
index_entry_matches (const struct index_entry *e, const struct digest *digest);
/* By (prefix, addr). */
extern int
index_entry_compare (const struct index_entry *x, const struct index_entry *y);

/*----------------------------------------------------------------------
 * Summary slot: 64 bytes in a chunk of a segment of "records" (see
 * segment.h).  Slot 0 of each chunk is the chunk's header:
 *
 *   OFFSET  SIZE  FIELD
 *      0      8   magic "NBDCHUNK"
 *      8     16   the pool's UUID
 *     24      8   address of the chunk
 *     32      4   index of the chunk within its segment
 *     36      4   sector size
 *     40     16   zero
 *     56      8   XXH3_64bits of the 56 bytes before
 *
 * Each other slot describes one record.  A slot is void if its checksum is
 * wrong, or its record does not have the digest:
 *
 *      0      2   first sector, within the segment
 *      2      1   codec (low 4 bits), log2 (lsize) - 9 (high 4 bits)
 *      3      1   zero
 *      4      4   psize
 *      8      8   cksum of the stored bytes
 *     16     32   digest
 *     48      8   birth: the fold that inserted the record (if two slots
 *                 claim the same sectors, the younger is right)
 *     56      4   domain
 *     60      4   low 32 bits of XXH3_64bits_withSeed of the 60 bytes
 *                 before, the seed being the slot's byte offset in the file
 *                 xor the first 8 bytes of the UUID
 */
extern void summary_header_pack (const uint8_t uuid[UUID_LEN],
                                 uint64_t chunk_addr, uint32_t index,
                                 uint32_t sector_bytes, uint8_t buf[64]);
/* Is it the header of a chunk at this address, with this sector size? */
extern bool summary_header_unpack (const uint8_t uuid[UUID_LEN],
                                   uint64_t chunk_addr, uint32_t sector_bytes,
                                   const uint8_t buf[64], uint32_t *index);
extern void summary_slot_pack (const uint8_t uuid[UUID_LEN],
                               uint64_t slot_offset, const struct record *r,
                               uint64_t birth, uint32_t sectors_per_segment,
                               uint8_t buf[64]);
/* Returns 1, or 0 if the slot is void. */
extern int
summary_slot_unpack (const uint8_t uuid[UUID_LEN], uint64_t slot_offset,
                     uint64_t segment, uint32_t sectors_per_segment,
                     const uint8_t buf[64], struct record *r, uint64_t *birth);

/*----------------------------------------------------------------------
 * Journal entries.  The body of a batch is a sequence of entries.  The length
 * of each is a multiple of 8 bytes, and each begins with
 *
 *      0      1   type
 *      1      1   flags
 *      2      2   depends on the type
 *      4      4   bytes of the whole entry
 *
 * JE_RECORD, a new record (80 bytes, then data):
 *      2      2   slot                     8   8   addr
 *     16      8   address of its chunk    24   8   cksum
 *     32      8   domain                  40  32   digest
 *     72      4   psize                   76   1   codec
 *     77      1   log2 (lsize) - 9        78   2   record flags
 *     80      n   with JE_DATA: the psize stored bytes, zero padded
 *   flag JE_OVER_QUOTA: notes.h counts it.  Older programs ignore the flag.
 *
 * JE_POINTERS, blocks from 'block' on now have these pointers:
 *      2      2   count                    8   8   layer
 *     16      8   first block             24 16n   pointers
 *
 * JE_HOLES, 'count' blocks from 'block' on are now holes; JE_LOST, they are now
 * lost:
 *      8      8   layer                   16   8   first block
 *     24      8   count
 */
enum { JE_RECORD = 1, JE_POINTERS = 2, JE_HOLES = 3, JE_LOST = 4 };
#define JE_DATA 1
#define JE_OVER_QUOTA 2

#define JE_RECORD_LEN 80
#define JE_POINTERS_LEN 24
#define JE_HOLES_LEN 32 /* and of JE_LOST */

/* No entry has a larger count, because a replay takes time and memory for each
 * leaf of it.
 */
#define JE_HOLES_MAX (UINT64_C (1) << 20)

struct journal_entry {
  uint8_t type;
  /* JE_RECORD */
  struct record record;
  uint64_t chunk_addr;
  const uint8_t *data; /* NULL: not in the journal; borrowed */
  bool over_quota;
  /* JE_POINTERS, JE_HOLES, JE_LOST */
  uint64_t layer, block, count;
  const uint8_t *pointers; /* packed; borrowed */
};

/* 'flags': JE_DATA, which the caller adds behind it, and JE_OVER_QUOTA. */
extern void je_record_pack (const struct record *r, uint64_t chunk_addr,
                            unsigned flags, uint8_t buf[JE_RECORD_LEN]);
extern void je_pointers_pack (uint64_t layer, uint64_t block, uint16_t count,
                              uint8_t buf[JE_POINTERS_LEN]);
extern void je_holes_pack (uint64_t layer, uint64_t block, uint64_t count,
                           uint8_t buf[JE_HOLES_LEN]);
extern void je_lost_pack (uint64_t layer, uint64_t block, uint64_t count,
                          uint8_t buf[JE_HOLES_LEN]);
/* Unpack the entry at the front.  Returns the bytes used, or -1 (EIO): 'count'
 * blocks from 'block' on exist in some volume.
 */
extern int64_t
je_unpack (const uint8_t *buf, size_t len, struct journal_entry *e);

#endif /* NBDEDUP_FORMAT_H */

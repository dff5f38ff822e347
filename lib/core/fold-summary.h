/* SPDX-License-Identifier: BSD-3-Clause */

/* Summaries: the slots in "records" that describe its records (format.h).
 *
 * Only the folding thread writes them, a chunk at a time: it reads, changes
 * and writes back.  A chunk's content follows from pool.db, so damage to a
 * chunk never stops a fold.  A chunk that pool.db does not list starts empty,
 * whatever its sectors held.  If a listed chunk cannot be read or has a wrong
 * header, the fold keeps its correct slots and rewrites those of live records.
 */

#ifndef NBDEDUP_FOLD_SUMMARY_H
#define NBDEDUP_FOLD_SUMMARY_H

#include <stdbool.h>
#include <stdint.h>

#include "disk/store.h"
#include "format/format.h"
#include "meta/meta.h"

#define SUMMARY_CHUNK_MAX (SECTOR_MAX > 4096 ? SECTOR_MAX : 4096)

/* The place and the pool of a chunk. */
struct summary_chunk {
  const uint8_t *uuid; /* borrowed */
  uint32_t sector_bytes;
  uint64_t addr;  /* its first sector */
  unsigned index; /* in its segment */
};

/* A chunk's size in bytes, and in slots (the first is its header). */
extern unsigned summary_chunk_bytes (uint32_t sector_bytes);
extern unsigned summary_chunk_slots (uint32_t sector_bytes);

/* Does this chunk, read into 'buf', describe the record as pool.db does? */
extern bool summary_describes (const struct summary_chunk *chunk,
                               const uint8_t *buf, const struct record *r);

/* The same, and the fold that inserted the record. */
extern bool summary_find_birth (const struct summary_chunk *chunk,
                                const uint8_t *buf, const struct record *r,
                                uint64_t *birth);

/* In a fold's transaction (txg_run): check a chunk and rewrite missing or
 * wrong slots.  '*nr_bad' slots of live records were, and none is now.  A
 * chunk that pool.db no longer lists belongs to no segment.
 */
extern int summary_repair (struct meta_conn *c, struct store *store,
                           const struct meta_state *state, uint64_t segment,
                           unsigned index, uint64_t *nr_bad);

#endif /* NBDEDUP_FOLD_SUMMARY_H */

/* SPDX-License-Identifier: BSD-3-Clause */

/* Summaries: the slots in "records" that describe its records (format.h).
 *
 * They are written by the folding thread only, a chunk at a time: read,
 * changed, written back.  What a chunk must say follows from pool.db, so
 * no damage to one stops a fold: a chunk that pool.db does not know begins
 * afresh, whatever stood there; of one that it knows, and that cannot be
 * read or does not begin as it should, the slots that are right stay, and
 * those of live records are written again.
 */

#ifndef NBDEDUP_FOLD_SUMMARY_H
#define NBDEDUP_FOLD_SUMMARY_H

#include <stdbool.h>
#include <stdint.h>

#include "disk/store.h"
#include "format/format.h"
#include "meta/meta.h"

#define SUMMARY_CHUNK_MAX (SECTOR_MAX > 4096 ? SECTOR_MAX : 4096)

/* Where a chunk is, and whose. */
struct summary_chunk {
  const uint8_t *uuid;          /* borrowed */
  uint32_t sector_bytes;
  uint64_t addr;                /* its first sector */
  unsigned index;               /* in its segment */
};

/* Bytes of a chunk, slots in it (the first is its header). */
extern unsigned summary_chunk_bytes (uint32_t sector_bytes);
extern unsigned summary_chunk_slots (uint32_t sector_bytes);

/* Does this chunk, read into 'buf', say of the record what pool.db says? */
extern bool summary_describes (const struct summary_chunk *chunk,
                               const uint8_t *buf, const struct record *r);

/* In a fold's transaction (txg_run): look at a chunk again, and write again
 * what is missing or wrong in it.  '*nr_bad' slots of live records were, and
 * none is now.  A chunk that pool.db has no more belongs to no segment.
 */
extern int summary_repair (struct meta_conn *c, struct store *store,
                           const struct meta_state *state, uint64_t segment,
                           unsigned index, uint64_t *nr_bad);

#endif /* NBDEDUP_FOLD_SUMMARY_H */

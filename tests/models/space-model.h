/* SPDX-License-Identifier: BSD-3-Clause */

/* A model of the allocator, with a "pool.db" in memory: the owners of sectors
 * and chunks, and what a fold and a crash do to them.
 */

#ifndef NBDEDUP_SPACE_MODEL_H
#define NBDEDUP_SPACE_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "disk/store.h"
#include "space/space.h"

#define MAX_SEGMENTS 96
#define MAX_RECORDS 60000
#define MAX_BATCH 64
#define CHUNK_OWNER UINT32_MAX

extern struct store *store;

extern uint64_t length_of (struct store *s);
extern struct space *space;
extern uint32_t sector_bytes;
extern unsigned nr_sectors, spc; /* of a segment, slots of a chunk */
extern uint64_t budget;
extern bool with_puncher; /* open_space starts one */

enum state { FREE, ALLOCATED, INSERTING, DYING, COMMITTED, UNLINKED };

struct record {
  struct placement p;
  uint32_t nr;
  enum state state;
  bool doomed; /* dies in the next fold */
};
extern struct record records[MAX_RECORDS];

/* The owner of each sector; 0: free. */
extern uint32_t owner[MAX_SEGMENTS * 8192];
extern uint64_t live_sectors;
extern bool folding;
extern unsigned nr_loads;
extern int64_t damaged_segment; /* cannot be loaded; -1: none */

extern unsigned rnd (unsigned n);

/* Make and open a new, empty store. */
extern void start (uint32_t sector);
extern void open_space (void);
extern void close_space (void);
extern void forget_rows (void);

/* Allocate records for free entries of 'records'.  Returns the number of
 * records allocated: all or, on error, none.
 */
extern unsigned alloc (unsigned nr, const uint32_t *sizes);
/* Allocate one record in a segment other than these.  Sometimes release it at
 * once.  False: there is no space.
 */
extern bool
alloc_apart (uint32_t size, const uint64_t *segments, unsigned nr_segments);

/* Allocate one record where moved records go.  False: there is no space. */
extern bool alloc_dense (uint32_t size);

/* Until undrain, no record may be allocated in the segments that this chooses.
 */
extern void drain (uint64_t max_bytes);
extern void undrain (void);

/* Give sectors and a slot back; forget record 'i'. */
extern void release (uint64_t addr, uint32_t nr, uint16_t slot);
extern void drop (unsigned i);

extern void check_info (void);
extern unsigned nr_in_state (enum state state);

/* Fold as fold.c does; 'kill' percent of the live records die. */
extern void fold_begin (unsigned kill);
extern void fold_end (void);
extern void fold (unsigned kill);

/* Crash.  The journal has some of the records that no fold has committed, in
 * any order.
 */
extern void crash (void);

#endif /* NBDEDUP_SPACE_MODEL_H */

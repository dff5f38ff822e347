/* SPDX-License-Identifier: BSD-3-Clause */

/* What clones could give back, by the owners of their blocks: sets of bytes for
 * nbdedup_frozen_zero.  The program ends if there is no memory.
 */

#ifndef NBDEDUP_GIVE_BACK_H
#define NBDEDUP_GIVE_BACK_H

#include <stddef.h>
#include <stdint.h>

#include "nbdedup.h"
#include "owner-map.h"

/* Free space; or free space and one thing that could be elsewhere, and is free
 * space then.
 */
enum give_back_set {
  GIVE_BACK_FREE,
  GIVE_BACK_SWAP,
  GIVE_BACK_TEMPORARY,
  GIVE_BACK_JOURNAL,
  NR_GIVE_BACK,
};

struct give_back;

extern struct give_back *give_back_new (void);
extern void give_back_free (struct give_back *g);

/* Take the extents of the next clone: after owner_map_end. */
extern void give_back_add (struct give_back *g, const struct owner_map *map);

/* The bytes that a clone has in a set beyond its free space. */
extern uint64_t give_back_bytes (const struct give_back *g, uint64_t clone,
                                 enum give_back_set set);

/* Does any clone have such bytes? */
extern bool give_back_has (const struct give_back *g, enum give_back_set set);

/* Tell the frozen moment about all sets that have some.  -1: nbdedup_error. */
extern int
give_back_tell (const struct give_back *g, struct nbdedup_frozen *frozen);

#endif /* NBDEDUP_GIVE_BACK_H */

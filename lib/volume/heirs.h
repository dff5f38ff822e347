/* SPDX-License-Identifier: BSD-3-Clause */

/* The names that show blocks of a layer: those of the volumes and snapshots
 * that stand on it, unless a layer between has something else at that place.
 *
 * This has its own copy of the layers and of the names, of one moment, so that
 * a long search needs no lock.  It reads the rows of the layers between from
 * pool.db, of that moment or a later one.
 *
 * Memory: about 100 bytes for each layer and each name.
 *
 * One thread at a time.
 */

#ifndef NBDEDUP_HEIRS_H
#define NBDEDUP_HEIRS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "meta/meta.h"

struct nbdedup_pool;
struct heirs;

/* A volume or a snapshot. */
struct heir {
  char *name; /* owned */
  uint64_t size;
  struct heir_layer *layer; /* not owned; NULL: it cannot be read at all */
  bool was_found;           /* it has shown a block, in any search */
};

/* Under pool->admin.  NULL: ENOMEM. */
extern struct heirs *heirs_new (struct nbdedup_pool *pool);
/* NULL is allowed. */
extern void heirs_free (struct heirs *h);

/* No name was found yet. */
extern void heirs_forget (struct heirs *h);

/* Search for those that show any of these blocks (bit i: block i) of a row.
 * Returns the layer's block size; 0: the layer is dying or gone, so no name
 * shows it.
 */
extern uint32_t
heirs_begin (struct heirs *h, const struct meta_leaf_key *row, uint64_t blocks);

/* Look at the next name: those of the layer itself come first, then the others,
 * by name, a volume before its snapshots.  'blocks' gets those that it shows,
 * perhaps none.  1, 0: that was the last; -1: EIO.
 */
extern int heirs_next (struct heirs *h, struct meta_conn *c, struct heir **heir,
                       uint64_t *blocks);

/* The names, in this order. */
extern const struct heir *heirs_all (const struct heirs *h, size_t *nr);

#endif /* NBDEDUP_HEIRS_H */

/* SPDX-License-Identifier: BSD-3-Clause */

/* The new places of the records of a batch of moves (core/moves.h): each one is
 * placed beside other moved records, and neighbours are written at once.
 *
 * A mover belongs to one thread.
 */

#ifndef NBDEDUP_MOVER_H
#define NBDEDUP_MOVER_H

#include <stddef.h>
#include <stdint.h>

#include "core/moves.h"

struct nbdedup_pool;

struct mover {
  struct nbdedup_pool *pool; /* not owned */
  uint8_t *buf;              /* owned */
  uint64_t first;            /* sector; of what 'buf' has */
  size_t len;
};

/* ENOMEM. */
extern int mover_init (struct mover *m, struct nbdedup_pool *pool);
/* Accepts an all-zero struct. */
extern void mover_free (struct mover *m);

/* Room for the stored bytes of the next record: 'len' zeroes, at most
 * BLOCK_SIZE_MAX.  NULL: what came before cannot be written.
 */
extern uint8_t *mover_room (struct mover *m, size_t len);

/* These bytes, whole sectors, are the stored form of the move's record: place
 * it.  The function sets the record's address and slot, and the move's
 * chunk_addr.  -1: ENOSPC, EIO, and no space is taken.
 */
extern int mover_place (struct mover *m, struct move *move);

/* Write what is not written yet.  After an error that is still so: the moves of
 * these records must not begin before another call has written them.
 */
extern int mover_write (struct mover *m);

#endif /* NBDEDUP_MOVER_H */

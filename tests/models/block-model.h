/* SPDX-License-Identifier: BSD-3-Clause */

/* What a volume may contain after a crash.
 *
 * For each block the model keeps the states that it may have: the one that
 * is known to be durable, then one per write since, in order.  The caller
 * keeps the writes in order: it holds the locks of a write's blocks
 * (block_model_lock) from before it sends the write until the answer.
 *
 * A FLUSH covers the writes that were answered before it was sent; a FUA
 * write covers all earlier writes to its blocks.  The model remembers both as
 * stamps of one clock, so a flush costs nothing per block.
 *
 * After a crash a block is right if it equals any state from the last
 * covered one on: "some prefix of the writes to it since the last flush".
 */

#ifndef NBDEDUP_BLOCK_MODEL_H
#define NBDEDUP_BLOCK_MODEL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* The operation that made a state, for the text of a failure. */
struct model_op {
  char kind; /* W, Z, T; '0' for the base */
  uint8_t thread;
  bool fua;
  uint32_t number;
  uint64_t offset, len;
};

struct model_state {
  uint8_t *data;     /* block_size bytes; NULL: zeroes */
  uint64_t answered; /* stamp; 0: not (yet) */
  struct model_op op;
};

struct model_block {
  pthread_mutex_t lock;
  unsigned nr, max;
  struct model_state *states; /* [0] is the oldest that is allowed */
};

struct block_model {
  char name[64];
  uint32_t block_size;
  uint64_t size, nr_blocks;
  struct model_block *blocks;
  _Atomic uint64_t flushed; /* when the newest answered flush was sent */
};

/* A model of a volume that is all zeroes. */
extern struct block_model *
block_model_new (const char *name, uint32_t block_size, uint64_t size);
extern void block_model_free (struct block_model *m);

/* The time of the clock, which the call advances. */
extern uint64_t block_model_stamp (void);

/* Lock the blocks of a range, in ascending order.  Hold the locks while a
 * request on the blocks is in flight.
 */
extern void
block_model_lock (struct block_model *m, uint64_t offset, uint64_t len);
extern void
block_model_unlock (struct block_model *m, uint64_t offset, uint64_t len);

/* With the locks held: the caller is about to send a write (data NULL: of
 * zeroes); the server answered it.
 */
extern void block_model_begin (struct block_model *m, const struct model_op *op,
                               const void *data);
extern void
block_model_answered (struct block_model *m, const struct model_op *op);

/* The server answered a flush that was sent at 'stamp'. */
extern void block_model_flushed (struct block_model *m, uint64_t stamp);

/* With the locks held: check that 'buf' is what the range contains now.  If
 * not, print the difference to stderr.
 */
extern bool block_model_matches (struct block_model *m, uint64_t offset,
                                 uint64_t len, const uint8_t *buf);

/* After a crash, when no other thread uses the model: check that 'buf'
 * (block_size bytes, zero-padded at the end of the volume) is a state that
 * 'block' may have.  If not, explain it on stderr.  The model is not changed.
 */
extern bool
block_model_check (struct block_model *m, uint64_t block, const uint8_t *buf);

/* The same while the server still runs: the last write that it answered, or a
 * later one that failed.
 */
extern bool block_model_check_running (struct block_model *m, uint64_t block,
                                       const uint8_t *buf);

/* Make 'buf' the block's only state, which is durable. */
extern void
block_model_adopt (struct block_model *m, uint64_t block, const uint8_t *buf);

/* Resize the volume.  Every block must have one state only.  Shrinking drops
 * blocks, growing adds zeroes.
 */
extern void block_model_resize (struct block_model *m, uint64_t size);

#endif /* NBDEDUP_BLOCK_MODEL_H */

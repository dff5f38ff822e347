/* SPDX-License-Identifier: BSD-3-Clause */

/* The file "reserve": blocks of the pool directory's file system that are
 * kept for pool.db, its WAL and the journal, so that a full disk can still
 * be worked with: what was accepted gets folded, and trims and deletes,
 * which free space, need a little first.
 *
 * Threads: one at a time (the folding thread).
 */

#ifndef NBDEDUP_RESERVE_H
#define NBDEDUP_RESERVE_H

#include <stdbool.h>
#include <stdint.h>

struct reserve;

extern struct reserve *reserve_new (const char *path);
extern void reserve_free (struct reserve *reserve);

/* Its size for a pool that stores this much, if the file system is large. */
extern uint64_t reserve_wanted (uint64_t stored_bytes);

/* Really allocate the reserve, if it is not, for a pool that stores this
 * much.  False: the file system is too full for it.
 */
extern bool reserve_refill (struct reserve *reserve, uint64_t stored_bytes);

/* Give it back to the file system.  False: there was nothing to give. */
extern bool reserve_release (struct reserve *reserve);

#endif /* NBDEDUP_RESERVE_H */

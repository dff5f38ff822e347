/* SPDX-License-Identifier: BSD-3-Clause */

/* Reads ahead of a fold.
 *
 * A fold reads rows all over pool.db, one after the other.  If they are not in
 * memory, it waits for the disk each time, although an SSD answers many reads
 * at once.  Once a fold finds that its rows come from the disk, threads read
 * the rows that are left: each leaf that changes, then the counts and the
 * records of the pointers that it loses; then the groups that the DDT's changes
 * are in.  That brings their pages into the operating system's cache, where the
 * fold finds them.
 *
 * They change nothing, and report nothing: the fold reads the same, and meets
 * the same errors.
 *
 * Source: OpenZFS prefetches the DDT's entry of a block that is overwritten
 * (dbuf_dirty in dbuf.c, ddt_prefetch in ddt.c), so that the sync of the txg
 * does not wait for it.
 *
 * Threads: the folding thread.
 */

#ifndef NBDEDUP_FOLD_AHEAD_H
#define NBDEDUP_FOLD_AHEAD_H

#include "core/fold-int.h"

/* An attempt to write the tables begins.  No thread runs yet. */
extern void fold_ahead_begin (struct fold *f);
/* The fold has read a row.  'next' is the next one of those that the threads
 * may read: first the leaves that change, then the DDT's changes.
 */
extern void fold_ahead_look (struct fold *f, size_t next);
/* End the threads, if any run. */
extern void fold_ahead_end (struct fold *f);

#endif /* NBDEDUP_FOLD_AHEAD_H */

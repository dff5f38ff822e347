/* SPDX-License-Identifier: BSD-3-Clause */

/* Sort more items than memory holds.
 *
 * External merge sort (Knuth, The Art of Computer Programming, volume 3,
 * section 5.4): what memory holds is sorted and written to a nameless file
 * as a run; the runs are then merged, several at a time if they are many.
 * If everything fits in memory there is no file.
 *
 * One thread at a time.  The file is in a directory that the caller names,
 * has no name, and is gone with the process.
 *
 * Why not SQLite's sorter: only ORDER BY reaches it.  Each item would be
 * encoded as a row and decoded again, and its memory is a share of the
 * connection's cache, not a limit that the caller gives.
 */

#ifndef NBDEDUP_SORTER_H
#define NBDEDUP_SORTER_H

#include <stddef.h>
#include <stdint.h>

struct sorter;

typedef int sorter_compare_fn (const void *a, const void *b);

/* The least memory that works. */
#define SORTER_MEMORY_MIN (UINT64_C (256) << 10)

/* 'item_len' bytes each, in the order of 'compare' (as qsort's), which must
 * be, first of all, that of the uint64_t with which an item begins.  'dir' is
 * not owned and outlives the sorter.  NULL: ENOMEM.
 */
extern struct sorter *sorter_new (const char *dir, size_t item_len,
                                  sorter_compare_fn *compare,
                                  uint64_t memory_bytes);
extern void sorter_free (struct sorter *s);

/* Adding, finishing and next call 'look' now and then in what takes long.  If
 * it returns -1 they fail with its error.  May be NULL.
 */
extern void sorter_set_look (struct sorter *s, int (*look) (void *opaque),
                             void *opaque);

/* The item is copied.  -1: the file cannot be made or written. */
extern int sorter_add (struct sorter *s, const void *item);
/* How many have been added. */
extern uint64_t sorter_count (const struct sorter *s);

/* No more are added. */
extern int sorter_finish (struct sorter *s);
/* The next one, in order: 1 and the item, borrowed until the next call; 0:
 * there are no more; -1: the file cannot be read.
 */
extern int sorter_next (struct sorter *s, const void **item);

#endif /* NBDEDUP_SORTER_H */

/* SPDX-License-Identifier: BSD-3-Clause */

/* Sort more items than memory holds.
 *
 * External merge sort (Knuth, The Art of Computer Programming, volume 3,
 * section 5.4): the sorter sorts what memory holds and writes it to a nameless
 * file as a run, then merges the runs, several at a time if there are many.
 * If everything fits in memory there is no file.
 *
 * One thread at a time.  The file is in a directory that the caller names,
 * has no name, and disappears with the process.
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

/* The minimum of 'memory_bytes'. */
#define SORTER_MEMORY_MIN (UINT64_C (256) << 10)

/* Items have 'item_len' bytes.  'compare' is as for qsort, and must first
 * compare the uint64_t with which an item begins.  'dir' is not owned and must
 * outlive the sorter.  NULL: ENOMEM.
 */
extern struct sorter *sorter_new (const char *dir, size_t item_len,
                                  sorter_compare_fn *compare,
                                  uint64_t memory_bytes);
extern void sorter_free (struct sorter *s);

/* sorter_add, sorter_finish and sorter_next call 'look' repeatedly during long
 * work.  If it returns -1 they fail with its error.  May be NULL.
 */
extern void
sorter_set_look (struct sorter *s, int (*look) (void *opaque), void *opaque);

/* Copy the item.  -1: the file cannot be made or written. */
extern int sorter_add (struct sorter *s, const void *item);
/* The number of items added. */
extern uint64_t sorter_count (const struct sorter *s);

/* Call it after the last sorter_add. */
extern int sorter_finish (struct sorter *s);
/* The next item in order: 1 and the item, borrowed until the next call; 0:
 * there are no more; -1: the file cannot be read.
 */
extern int sorter_next (struct sorter *s, const void **item);

#endif /* NBDEDUP_SORTER_H */

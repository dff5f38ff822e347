/* SPDX-License-Identifier: BSD-3-Clause */

/* Which digests the hash index does not have: a new block then needs no look
 * at pool.db.
 *
 * There is a filter (filter.h) for each of DDT_FILTER_PARTS ranges of prefixes,
 * so that the next one needs memory for one part only.  A thread makes them
 * from the index, one after the other, in the background, when lookups have
 * gone to pool.db often enough; until a part is complete every digest in its
 * range may be there.
 * When more entries were added to a part than it has bits for, or, at its
 * largest size, as many as it had at first, the thread makes it again.
 *
 * A removed entry stays in the filter until then.  An entry that the filter
 * lacks costs a second record of the same content, never data; there is none,
 * because
 *
 *  - ddt.c adds each record when it becomes visible, to the part in use and to
 *    the one that is being made;
 *
 *  - the thread adds the records that are in memory only when it begins a part,
 *    then all entries of the index in its range, and an entry never leaves its
 *    place in the order of prefixes, in which the thread reads;
 *
 *  - a repair that adds entries calls ddt_filter_reset_locked after it.
 *
 * A clean close saves the parts (warm-file.h), and the next session reads them
 * instead of the index if nothing can have been added to that in between.  It
 * makes the memory for them when it opens the pool, before the first record, so
 * that what is added before a part is read is in the part, too.  After a crash
 * the thread makes them from the index: that costs less than a search for what
 * was added since the last save, through all the summaries.
 *
 * Lock: those functions whose names end with "_locked" are called with the
 * ddt's lock held.
 */

#ifndef NBDEDUP_DDT_FILTER_H
#define NBDEDUP_DDT_FILTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/lock.h"
#include "disk/warm-file.h"
#include "meta/meta.h"

/* The part of a prefix is its highest bits. */
#define DDT_FILTER_BITS 6u
#define DDT_FILTER_PARTS (1u << DDT_FILTER_BITS)

struct ddt_filter;

struct ddt_filter_ops {
  /* How many records are in memory only, at most. */
  uint64_t (*nr_new_locked) (void *opaque);
  /* Call ddt_filter_add_locked for the prefix of each of them in this part. */
  void (*add_new_locked) (void *opaque, unsigned part);
  void *opaque;
};

/* 'lock' is the ddt's.  'max_bytes': what all parts may take; 0: there is never
 * one.  NULL: ENOMEM.
 */
extern struct ddt_filter *ddt_filter_new (struct meta *meta, struct lock *lock,
                                          uint64_t max_bytes,
                                          const struct ddt_filter_ops *ops);
/* Read the parts from this file when lookups ask for them.  It was saved in the
 * present state of the index, and no record was added since.  Takes ownership.
 */
extern void
ddt_filter_offer_locked (struct ddt_filter *f, struct warm_file *file);

/* End the thread.  The lock is not held, and no more lookups come. */
extern void ddt_filter_stop (struct ddt_filter *f);
/* Then: read the parts that no lookup has asked for, and write all that there
 * are.
 */
extern void ddt_filter_save (struct ddt_filter *f, struct warm_writer *w);
/* Has the index no entries that the file lacks, as far as is known here? */
extern bool ddt_filter_is_unchanged_locked (const struct ddt_filter *f);
/* Ends the thread.  The lock is not held. */
extern void ddt_filter_free (struct ddt_filter *f);

extern void ddt_filter_add_locked (struct ddt_filter *f, uint64_t prefix);

/* May the index have an entry with this prefix? */
extern bool ddt_filter_may_have_locked (struct ddt_filter *f, uint64_t prefix);

/* The index has entries that were not added: begin again. */
extern void ddt_filter_reset_locked (struct ddt_filter *f);

/* Bytes of the parts in use (0: one is missing). */
extern size_t ddt_filter_bytes_locked (const struct ddt_filter *f);
/* Bytes of all parts that there are, and of those that are being made or read.
 */
extern size_t ddt_filter_memory_locked (const struct ddt_filter *f);

#endif /* NBDEDUP_DDT_FILTER_H */

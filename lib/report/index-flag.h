/* SPDX-License-Identifier: BSD-3-Clause */

/* Records that enter or leave the hash index while they stay where they are:
 * their flag RECORD_INDEXED in pool.db.
 */

#ifndef NBDEDUP_INDEX_FLAG_H
#define NBDEDUP_INDEX_FLAG_H

#include <stddef.h>
#include <stdint.h>

#include "format/format.h"
#include "meta/meta.h"

/* A record that was at 'addr' when a reader saw it. */
struct record_name {
  uint64_t addr;
  struct digest digest;
};

/* How many of the records, which ascend by address, are in the first 'groups'
 * groups.
 */
extern size_t
index_flag_groups (const struct record_name *names, size_t nr, unsigned groups);

/* The pages that a fold needs for so many (txg_run_large). */
extern uint64_t index_flag_pages (unsigned groups, size_t nr);

/* In a fold's transaction: call 'fn' for each of these records that is still
 * there, and change its flag if that returns 1.  'fn' returns 0 to leave it, or
 * -1.  A row that is damaged stays as it is: check reports it.
 */
extern int index_flag_change (struct meta_conn *c,
                              const struct record_name *names, size_t nr,
                              int (*fn) (void *opaque, const struct record *r),
                              void *opaque);

#endif /* NBDEDUP_INDEX_FLAG_H */

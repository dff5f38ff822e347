/* SPDX-License-Identifier: BSD-3-Clause */

/* Which moment a pool.db is of, read from its raw pages: without its WAL,
 * without SQLite, and whatever else is damaged.
 *
 * Every commit of a pool writes the row of table "state", whose page is
 * META_STAMP_PAGE, and counts "fold" up.  So this page, as the database has
 * it, tells the last commit of which a checkpoint has begun to copy pages; as
 * the WAL has it, the commit that the frame belongs to.
 */

#ifndef NBDEDUP_META_STAMP_H
#define NBDEDUP_META_STAMP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/geometry.h"

/* The first table that is made. */
#define META_STAMP_PAGE 2

struct meta_stamp {
  uint8_t uuid[UUID_LEN];
  uint64_t epoch;
  bool opening;
  uint64_t folded, fold;
};

/* False: no such page. */
extern bool meta_stamp_parse (const uint8_t *page, size_t len,
                              struct meta_stamp *stamp);

#endif /* NBDEDUP_META_STAMP_H */

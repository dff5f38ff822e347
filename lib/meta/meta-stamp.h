/* SPDX-License-Identifier: BSD-3-Clause */

/* Determines, from its raw pages, the moment that a pool.db is of: without its
 * WAL, without SQLite, and even if other pages are damaged.
 *
 * Every commit of a pool writes the row of table "state", whose page is
 * META_STAMP_PAGE, and increments "fold".  So in the database this page
 * identifies the last commit of which a checkpoint has begun to copy pages; in
 * the WAL, the commit that the frame belongs to.
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

/* False: not such a page. */
extern bool
meta_stamp_parse (const uint8_t *page, size_t len, struct meta_stamp *stamp);

#endif /* NBDEDUP_META_STAMP_H */

/* SPDX-License-Identifier: BSD-3-Clause */

/* Pages that stand in for lost ones.
 *
 * A page that is lost in all copies keeps SQLite from changing the tree that
 * it is in.  While a connection has a graft it, and no other one, reads the
 * grafted pages in their place, so that it can put the tree right in a
 * transaction.  What it changes then is written like any page.
 */

#ifndef NBDEDUP_CKSUM_GRAFT_H
#define NBDEDUP_CKSUM_GRAFT_H

#include <stddef.h>
#include <stdint.h>

#include <sqlite3.h>

struct cksum_graft {
  struct cksum_graft_page {
    uint32_t number;            /* from 1 */
    uint8_t *image;
  } *p;                         /* ascending */
  size_t nr;
};

/* Outside of transactions.  NULL: none any more.  -1: no such file. */
extern int cksum_graft_set (sqlite3 *db, const struct cksum_graft *graft);

#endif /* NBDEDUP_CKSUM_GRAFT_H */

/* SPDX-License-Identifier: BSD-3-Clause */

/* Substitutes for lost pages.
 *
 * If a page is damaged in all copies SQLite cannot change the tree that it
 * belongs to.  While a connection has a graft, this connection alone reads the
 * grafted pages instead of the damaged ones, so that it can repair the tree in
 * a transaction.  SQLite writes the pages that it changes as usual.
 */

#ifndef NBDEDUP_CKSUM_GRAFT_H
#define NBDEDUP_CKSUM_GRAFT_H

#include <stddef.h>
#include <stdint.h>

#include <sqlite3.h>

struct cksum_graft {
  struct cksum_graft_page {
    uint32_t number; /* from 1 */
    uint8_t *image;
  } *p; /* ascending */
  size_t nr;
};

/* Call it outside of transactions.  NULL ends the graft.  -1: no such file. */
extern int cksum_graft_set (sqlite3 *db, const struct cksum_graft *graft);

#endif /* NBDEDUP_CKSUM_GRAFT_H */

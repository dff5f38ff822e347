/* SPDX-License-Identifier: BSD-3-Clause */

/* Rebuilding damaged tables of pool.db: see meta-repair.c for which, and for
 * what is lost with them.
 */

#ifndef NBDEDUP_META_REPAIR_H
#define NBDEDUP_META_REPAIR_H

#include "meta/meta.h"

/* Rebuild and log each damaged table.  Returns how many were rebuilt durably;
 * 0: none needed it; -1: not possible, and nothing was changed.  Call it before
 * the pool is used, or with 'shared': others read pool.db, and the old tables
 * stay in it until a call without 'shared'.  By the writer, outside of its
 * transactions.
 */
extern int meta_repair (struct meta *m, bool shared);

#endif /* NBDEDUP_META_REPAIR_H */

/* SPDX-License-Identifier: BSD-3-Clause */

/* Making tables of pool.db again that are damaged: see meta-repair.c for
 * which, and what is lost with them.
 */

#ifndef NBDEDUP_META_REPAIR_H
#define NBDEDUP_META_REPAIR_H

#include "meta/meta.h"

/* How many tables were made again, durably; 0: none needed it; -1: not
 * possible, nothing was changed.  Each is logged.  Before the pool is used; or
 * 'shared': others read it, and the old tables stay in it until this is done
 * otherwise.  By the writer, outside of its transactions.
 */
extern int meta_repair (struct meta *m, bool shared);

#endif /* NBDEDUP_META_REPAIR_H */

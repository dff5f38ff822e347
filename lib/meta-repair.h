/* SPDX-License-Identifier: BSD-3-Clause */

/* Making tables of pool.db again that are damaged: see meta-repair.c for
 * which, and what is lost with them.
 */

#ifndef NBDEDUP_META_REPAIR_H
#define NBDEDUP_META_REPAIR_H

#include "meta.h"

/* Before the pool is used: how many tables were made again, durably; 0:
 * none needed it; -1: not possible, nothing was changed.  Each is logged.
 */
extern int meta_repair (struct meta *m);

#endif /* NBDEDUP_META_REPAIR_H */

/* SPDX-License-Identifier: BSD-3-Clause */

/* stat and list: figures as of a fold that covers all answered writes. */

#ifndef NBDEDUP_STAT_H
#define NBDEDUP_STAT_H

#include "nbdedup.h"

/* The figures of "stat".  'name': of a volume, or of a snapshot's clones;
 * NULL: of all volumes.
 */
extern json_t *stat_run (struct nbdedup_pool *pool, const char *name);
extern json_t *list_run (struct nbdedup_pool *pool);

/* The ddt-cache in bytes that the entries of the dedup table need; 0: the pool
 * has enough, or shall have none (primarycache).
 */
extern uint64_t stat_wanted_ddt_cache (const struct nbdedup_pool *pool);

#endif /* NBDEDUP_STAT_H */

/* SPDX-License-Identifier: BSD-3-Clause */

#ifndef NBDEDUP_SYNC_H
#define NBDEDUP_SYNC_H

struct nbdedup_pool;

/* Bring everything answered so far into pool.db. */
extern int pool_sync (struct nbdedup_pool *pool);

/* The same for a caller that then takes pool->admin, and opens a frozen reader
 * under it.  All that takes long while clients write comes before the lock, so
 * that other commands do not wait for it: the fold, and most of the copy of the
 * WAL.  What commands change while they hold the lock is in pool.db before they
 * release it.
 */
extern int pool_sync_for_view (struct nbdedup_pool *pool);

#endif /* NBDEDUP_SYNC_H */

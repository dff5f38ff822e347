/* SPDX-License-Identifier: BSD-3-Clause */

#ifndef NBDEDUP_SYNC_H
#define NBDEDUP_SYNC_H

struct nbdedup_pool;

/* Bring everything answered so far into pool.db. */
extern int pool_sync (struct nbdedup_pool *pool);

#endif /* NBDEDUP_SYNC_H */

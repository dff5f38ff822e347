/* SPDX-License-Identifier: BSD-3-Clause */

/* Building and rebuilding of the second copy of pool.db while the pool is open.
 * For meta*.c only.  cksum-mirror.h describes the copy, and meta-pair.h its use
 * when a pool is opened.
 *
 * The mark says "current" only from after the last byte is copied and synced
 * until before the first commit that the copy misses.  A thread logs events,
 * builds the copy, and retries RETRY_MS after the copy was lost, if there is
 * room; meta_copy_set itself makes a small one.
 */

#ifndef NBDEDUP_META_COPY_H
#define NBDEDUP_META_COPY_H

#include "meta/meta-conn.h"

struct meta_copy;

/* Call it before opening pool.db: it chooses and repairs (meta_pair_open).  The
 * VFS must be registered.
 */
extern struct meta_copy *
meta_copy_new (const char *db, const struct meta_session *session, bool force);
/* Call it after opening pool.db, before writing to it.  Until then an unusable
 * copy keeps its mark.
 */
extern int meta_copy_opened (struct meta_copy *copy);
/* 'conn' is a connection for the copy alone; meta_copy_stop closes it. */
extern int
meta_copy_start (struct meta_copy *copy, const struct meta_conn *conn);
/* There is room again: if the copy is lost, retry now.  NULL does nothing. */
extern void meta_copy_retry (struct meta_copy *copy);
extern void meta_copy_stop (struct meta_copy *copy);
/* Call it after closing all connections.  'clean': pool.db has all commits.
 * 'copy' may be NULL.
 */
extern void meta_copy_free (struct meta_copy *copy, bool clean);

extern int meta_copy_try (struct meta_copy *copy, const char *value);
extern int meta_copy_configure (struct meta_copy *copy, const char *value);
extern void
meta_copy_status (struct meta_copy *copy, struct meta_copy_status *status);
extern int meta_copy_blank (struct meta_copy *copy);
/* Call these around a change of pool.db that bypasses SQLite. */
extern void meta_copy_change_begin (struct meta_copy *copy);
extern void meta_copy_change_end (struct meta_copy *copy);
extern int
meta_copy_compare (struct meta_copy *copy,
                   void (*fn) (void *opaque, bool repaired, const char *text),
                   int (*step) (void *opaque, uint64_t bytes), void *opaque);

#endif /* NBDEDUP_META_COPY_H */

/* SPDX-License-Identifier: BSD-3-Clause */

/* The second copy of pool.db while the pool is open, inside meta*.c only: made,
 * given up, made again.  What it is: cksum-mirror.h; what is done with it when
 * a pool is opened: meta-pair.h.
 *
 * The mark says "current" only from after the last byte is copied and synced
 * until before the first commit that the copy misses.  A thread tells the log
 * what happened, builds the copy, and tries again RETRY_MS after it was lost,
 * if there is room; a small one is made at once by meta_copy_set.
 */

#ifndef NBDEDUP_META_COPY_H
#define NBDEDUP_META_COPY_H

#include "meta/meta-conn.h"

struct meta_copy;

/* Before pool.db is opened: choose and repair (meta_pair_open).  The VFS must
 * be registered.
 */
extern struct meta_copy *meta_copy_new (const char *db,
                                        const struct meta_session *session,
                                        bool force);
/* After pool.db was opened, before it is written.  Until then a copy that
 * could not be used keeps its mark.
 */
extern int meta_copy_opened (struct meta_copy *copy);
/* 'conn' is a connection for it alone, closed by meta_copy_stop. */
extern int meta_copy_start (struct meta_copy *copy,
                            const struct meta_conn *conn);
/* There is room: if it is lost, try again now.  NULL: nothing. */
extern void meta_copy_retry (struct meta_copy *copy);
extern void meta_copy_stop (struct meta_copy *copy);
/* After all connections are closed; 'clean': all that was committed is in
 * pool.db.  NULL can be freed.
 */
extern void meta_copy_free (struct meta_copy *copy, bool clean);

extern int meta_copy_try (struct meta_copy *copy, const char *value);
extern int meta_copy_configure (struct meta_copy *copy, const char *value);
extern void meta_copy_status (struct meta_copy *copy,
                              struct meta_copy_status *status);
extern int meta_copy_blank (struct meta_copy *copy);
/* Around a change of pool.db that SQLite does not make. */
extern void meta_copy_change_begin (struct meta_copy *copy);
extern void meta_copy_change_end (struct meta_copy *copy);
extern int meta_copy_compare (struct meta_copy *copy,
                              void (*fn) (void *opaque, bool repaired,
                                          const char *text),
                              int (*step) (void *opaque, uint64_t bytes),
                              void *opaque);

#endif /* NBDEDUP_META_COPY_H */

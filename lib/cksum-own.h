/* SPDX-License-Identifier: BSD-3-Clause */

/* Did anything else write to a file that only we write to?
 *
 * A page's checksum cannot tell: a page of an older moment, or of another pool,
 * is right in itself.  The file's time of modification and its size can: they
 * are noted after each change of ours, and compared before the next one, and
 * after a page was read that nothing is known of.
 *
 * What is not noticed: a change within the same tick of the kernel's clock (a
 * few milliseconds) as ours before it, with no other after it; one that sets
 * the time back; and all on file systems whose times another machine sets
 * (NFS, CIFS, 9P, Ceph, FUSE), where the file is not watched.
 *
 * Threads: any.  The lock is held from cksum_own_begin to cksum_own_end.
 */

#ifndef NBDEDUP_CKSUM_OWN_H
#define NBDEDUP_CKSUM_OWN_H

#include <sys/types.h>
#include <time.h>

#include "lock.h"

struct cksum_own {
  void (*changed) (void *opaque);       /* constant */
  void *opaque;
  struct lock lock;             /* protects the rest */
  int fd;                       /* O_PATH; -1: not watched */
  struct timespec modified;
  off_t size;
};

/* 'changed' is called with the lock held, so that no change of ours follows
 * before it is known; once for each time that another one is seen.
 */
extern void cksum_own_init (struct cksum_own *o,
                            void (*changed) (void *opaque), void *opaque);
extern void cksum_own_destroy (struct cksum_own *o);

/* From now on, as it is; a file that cannot be watched is not. */
extern void cksum_own_watch (struct cksum_own *o, const char *path);
extern void cksum_own_unwatch (struct cksum_own *o);

/* Around a change of ours: was there another one before it? */
extern void cksum_own_begin (struct cksum_own *o);
extern void cksum_own_end (struct cksum_own *o);

/* The same without a change of ours. */
extern void cksum_own_look (struct cksum_own *o);

#endif /* NBDEDUP_CKSUM_OWN_H */

/* SPDX-License-Identifier: BSD-3-Clause */

/* Did anything else write to a file that only we write to?
 *
 * A page's checksum cannot tell: a page of an older moment, or of another pool,
 * is right in itself.  The file's time of modification and its size can: they
 * are noted after each change of ours, and compared before the next one, and
 * after a page was read that nothing is known of.
 *
 * Of a file that something else wrote to, the pages that we wrote last tell
 * what became of it.  If one of them is there as another page that is right in
 * itself, the file is of another moment, or of another pool, as a whole;
 * otherwise only the pages that were hit are damaged.
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

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "base/lock.h"

/* A checkpoint writes the page of table "state" and others; of an older moment
 * all of these differ.
 */
#define CKSUM_OWN_WRITTEN 16

struct cksum_own {
  void (*changed) (void *opaque);       /* constant */
  void *opaque;
  struct lock lock;             /* protects the rest */
  int fd;                       /* O_PATH; -1: not watched */
  struct timespec modified;
  off_t size;
  /* A ring of what was written last: pages from 0 on, and their checksums. */
  struct { uint64_t page, sum; } written[CKSUM_OWN_WRITTEN];
  unsigned nr_written, next_written;
};

/* 'changed' is called with the lock held, so that no change of ours follows
 * before it is known; once for each time that another one is seen.
 */
extern void cksum_own_init (struct cksum_own *o,
                            void (*changed) (void *opaque), void *opaque);
extern void cksum_own_destroy (struct cksum_own *o);

/* From now on, as it is, if it is not watched already; a file that cannot be
 * watched is not.
 */
extern void cksum_own_watch (struct cksum_own *o, const char *path);
extern void cksum_own_unwatch (struct cksum_own *o);

/* Around a change of ours: was there another one before it? */
extern void cksum_own_begin (struct cksum_own *o);
extern void cksum_own_end (struct cksum_own *o);
/* Instead of the end, if nothing was changed after all. */
extern void cksum_own_cancel (struct cksum_own *o);

/* Between them: our change wrote this page; or cut off all from 'page' on. */
extern void cksum_own_wrote_locked (struct cksum_own *o, uint64_t page,
                                    uint64_t sum);
extern void cksum_own_cut_locked (struct cksum_own *o, uint64_t page);

/* The same without a change of ours. */
extern void cksum_own_look (struct cksum_own *o);

/* Is the file, as 'read' finds it, of another moment than our last changes?
 * 'read' returns 1 and the page's checksum; 0: it is damaged, which no page of
 * another moment is; -1: it cannot be read.  If none can, the answer is yes.
 */
extern bool cksum_own_is_of_another_moment_locked
(struct cksum_own *o,
 int (*read) (void *opaque, uint64_t page, uint64_t *sum), void *opaque);

#endif /* NBDEDUP_CKSUM_OWN_H */

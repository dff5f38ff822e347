/* SPDX-License-Identifier: BSD-3-Clause */

/* Detects writes by other programs to a file that only this process should
 * write to.
 *
 * A page's checksum does not show them: a page of an older moment, or of
 * another pool, has a valid checksum.  The file's modification time and size
 * do.  The module records both after each change of ours, and compares them
 * before the next one, and after reading a page whose checksum is not known.
 *
 * After such a write the pages that we wrote last show the state of the file.
 * If one of them is now a different page with a valid checksum, the file is of
 * another moment, or of another pool, as a whole; otherwise only the pages
 * that were overwritten are damaged.
 *
 * Not detected: a change within the same tick of the kernel's clock (a few
 * milliseconds) as our change before it, with no other after it; a change that
 * sets the time back; and all changes on file systems whose times another
 * machine sets (NFS, CIFS, 9P, Ceph, FUSE), where the file is not watched.
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

/* A checkpoint writes the page of table "state" and others; in a file of an
 * older moment all of these differ.
 */
#define CKSUM_OWN_WRITTEN 16

struct cksum_own {
  void (*changed) (void *opaque); /* constant */
  void *opaque;
  struct lock lock; /* protects the rest */
  int fd;           /* O_PATH; -1: not watched */
  bool known;       /* the next two are what the file has */
  struct timespec modified;
  off_t size;
  /* A ring of the pages written last, counted from 0, and their checksums. */
  struct {
    uint64_t page, sum;
  } written[CKSUM_OWN_WRITTEN];
  unsigned nr_written, next_written;
};

/* The module calls 'changed' once per detected change, with the lock held, so
 * that no change of ours comes in between.
 */
extern void cksum_own_init (struct cksum_own *o, void (*changed) (void *opaque),
                            void *opaque);
extern void cksum_own_destroy (struct cksum_own *o);

/* Watch the file from now on, unless it is watched already or cannot be
 * watched.
 */
extern void cksum_own_watch (struct cksum_own *o, const char *path);
extern void cksum_own_unwatch (struct cksum_own *o);

/* Call these around a change of ours: begin checks for another one before it.
 */
extern void cksum_own_begin (struct cksum_own *o);
extern void cksum_own_end (struct cksum_own *o);
/* Instead of cksum_own_end, if nothing was changed after all. */
extern void cksum_own_cancel (struct cksum_own *o);

/* Between them: our change wrote this page, or cut off all from 'page' on. */
extern void
cksum_own_wrote_locked (struct cksum_own *o, uint64_t page, uint64_t sum);
extern void cksum_own_cut_locked (struct cksum_own *o, uint64_t page);

/* Check without a change of ours. */
extern void cksum_own_look (struct cksum_own *o);

/* True if the file, read with 'read', is of another moment than our last
 * changes.  'read' returns 1 and the page's checksum; 0: the page is damaged,
 * which no page of another moment is; -1: it cannot be read.  If no page can be
 * read the function returns true.
 */
extern bool cksum_own_is_of_another_moment_locked (
  struct cksum_own *o, int (*read) (void *opaque, uint64_t page, uint64_t *sum),
  void *opaque);

#endif /* NBDEDUP_CKSUM_OWN_H */

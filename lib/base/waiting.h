/* SPDX-License-Identifier: BSD-3-Clause */

/* A thread that is about to wait for a disk says so, so that the owner of
 * several such threads can let another one use the processor meanwhile.
 *
 *   static void begin (void *opaque) ...
 *   waiting_set (&(struct waiting) { begin, end, opaque });
 *
 * Without waiting_set both functions below do nothing.
 *
 * Threads: all of this is about the calling thread alone.
 */

#ifndef NBDEDUP_WAITING_H
#define NBDEDUP_WAITING_H

struct waiting {
  void (*begin) (void *opaque);
  void (*end) (void *opaque);
  void *opaque;
};

extern void waiting_set (const struct waiting *waiting);

/* Around what may read from a disk.  They do not nest. */
extern void waiting_begin (void);
extern void waiting_end (void);

#endif /* NBDEDUP_WAITING_H */

/* SPDX-License-Identifier: BSD-3-Clause */

/* Records in memory, in front of a read-only store (store.h): those that the
 * journal carries and that did not reach the store before a crash.
 *
 * Threads: after the last overlay_put any thread may call overlay_get.
 */

#ifndef NBDEDUP_OVERLAY_H
#define NBDEDUP_OVERLAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct overlay;

extern struct overlay *overlay_new (void);
extern void overlay_free (struct overlay *overlay);

/* Keep a copy of the content of sector 'addr' and those that follow; it
 * replaces an earlier copy for this address.  -1: ENOMEM.
 */
extern int overlay_put (struct overlay *overlay, uint64_t addr, const void *buf,
                        size_t len);

/* Copy what overlay_put stored for this address.  False unless that has at
 * least 'len' bytes.
 */
extern bool overlay_get (const struct overlay *overlay, uint64_t addr,
                         void *buf, size_t len);

/* Bytes of memory in use. */
extern size_t overlay_bytes (const struct overlay *overlay);

#endif /* NBDEDUP_OVERLAY_H */

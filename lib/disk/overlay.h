/* SPDX-License-Identifier: BSD-3-Clause */

/* Records in memory, in front of a store that must not be written: what the
 * journal carries and a crash kept from its place (store.h).
 *
 * Threads: overlay_get from any, once the last overlay_put is done.
 */

#ifndef NBDEDUP_OVERLAY_H
#define NBDEDUP_OVERLAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct overlay;

extern struct overlay *overlay_new (void);
extern void overlay_free (struct overlay *overlay);

/* Keep a copy of what is to stand from sector 'addr' on; it takes the place
 * of what was put at this address before.  -1: ENOMEM.
 */
extern int overlay_put (struct overlay *overlay, uint64_t addr,
                        const void *buf, size_t len);

/* Copy what was put at this address, if it has 'len' bytes or more: true. */
extern bool overlay_get (const struct overlay *overlay, uint64_t addr,
                         void *buf, size_t len);

/* Memory held. */
extern size_t overlay_bytes (const struct overlay *overlay);

#endif /* NBDEDUP_OVERLAY_H */

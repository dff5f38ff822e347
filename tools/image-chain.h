/* SPDX-License-Identifier: BSD-3-Clause */

/* An image in one of QEMU's formats, and the files that it refers to.
 *
 * All of them are opened here, and looked at, before QEMU's programs see
 * them; these get the descriptors (confine.h), under names that say nothing.
 * Which file stands behind which is told to them as well: what the images
 * say themselves is not followed.
 */

#ifndef NBDEDUP_IMAGE_CHAIN_H
#define NBDEDUP_IMAGE_CHAIN_H

#include <stdbool.h>
#include <stdint.h>

struct chain;
struct child;

/* 'file' may be an NBD server's URI.  Without 'allow_backing' an image that
 * refers to other files is refused.  NULL: image_error; *is_unreadable: QEMU
 * does not find 'format' in it.
 */
extern struct chain *chain_open (const char *file, const char *format,
                                 bool allow_backing, bool *is_unreadable);

/* Is any of the files damaged, as far as QEMU can tell without reading all
 * data?
 */
extern int chain_check (struct chain *chain);

/* Start qemu-nbd for it: a descriptor (owned by the caller) connected to it,
 * or -1.  The chain must live as long.
 */
extern int chain_serve (struct chain *chain, struct child *server);

/* What chain_serve started has failed: say why.  Returns -1. */
extern int chain_server_failed (struct chain *chain, struct child *server);

extern void chain_close (struct chain *chain);

#endif /* NBDEDUP_IMAGE_CHAIN_H */

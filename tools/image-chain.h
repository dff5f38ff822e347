/* SPDX-License-Identifier: BSD-3-Clause */

/* An image in one of QEMU's formats, and the files that it refers to.
 *
 * This code opens and checks all of them before QEMU's programs see them.
 * QEMU's programs get the descriptors (confine.h), under meaningless names, and
 * a list of which file is the backing file of which: they do not follow the
 * images' own references.
 */

#ifndef NBDEDUP_IMAGE_CHAIN_H
#define NBDEDUP_IMAGE_CHAIN_H

#include <stdbool.h>
#include <stdint.h>

struct chain;
struct child;

/* 'file' may be an NBD server's URI.  Without 'allow_backing' it refuses an
 * image that refers to other files.  NULL: image_error; *is_unreadable: QEMU
 * says that the file is not in 'format'.
 */
extern struct chain *chain_open (const char *file, const char *format,
                                 bool allow_backing, bool *is_unreadable);

/* Fail if any of the files is damaged, as far as QEMU can tell without reading
 * all data.
 */
extern int chain_check (struct chain *chain);

/* Start qemu-nbd for it: a descriptor (owned by the caller) connected to it,
 * or -1.  The chain must live as long.
 */
extern int chain_serve (struct chain *chain, struct child *server);

/* The server of chain_serve has failed: set the reason.  Returns -1. */
extern int chain_server_failed (struct chain *chain, struct child *server);

extern void chain_close (struct chain *chain);

#endif /* NBDEDUP_IMAGE_CHAIN_H */

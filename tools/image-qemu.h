/* SPDX-License-Identifier: BSD-3-Clause */

#ifndef NBDEDUP_IMAGE_QEMU_H
#define NBDEDUP_IMAGE_QEMU_H

/* The format that QEMU finds in 'file' (owned by the caller), or NULL. */
extern char *image_qemu_detect (const char *file);

#endif /* NBDEDUP_IMAGE_QEMU_H */

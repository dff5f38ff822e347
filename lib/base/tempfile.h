/* SPDX-License-Identifier: BSD-3-Clause */

/* Files without a name. */

#ifndef NBDEDUP_TEMPFILE_H
#define NBDEDUP_TEMPFILE_H

/* Make an empty file on the file system of directory 'dir', for reading and
 * writing.  Its space is free again when the descriptor is closed, also by a
 * crash.  -1: the text names 'dir'.
 */
extern int tempfile_open (const char *dir);

#endif /* NBDEDUP_TEMPFILE_H */

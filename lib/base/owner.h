/* SPDX-License-Identifier: BSD-3-Clause */

/* Root may run commands on a pool whose server runs as another user.  What the
 * command creates must not keep that server out.
 */

#ifndef NBDEDUP_OWNER_H
#define NBDEDUP_OWNER_H

#include <sys/types.h>

/* open(2) with O_CREAT.  A file that root creates in another user's directory
 * gets the owner and group of the directory.  -1 with errno (no text recorded).
 */
extern int open_owned (const char *path, int flags, mode_t mode);

#endif /* NBDEDUP_OWNER_H */

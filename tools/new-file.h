/* SPDX-License-Identifier: BSD-3-Clause */

/* A file that appears under its name when it is complete.
 *
 * It is made in a directory of its own, NAME.exporting-XXXXXX, beside that
 * name, and renamed at the end.  So what there was under that name stays if
 * we fail, and nobody takes what a killed export left for an image.  A
 * directory, because some formats (vmdk) write down their file's name.
 */

#ifndef NBDEDUP_NEW_FILE_H
#define NBDEDUP_NEW_FILE_H

struct new_file {
  char *path;                   /* owned; without symbolic links */
  char *dir;                    /* owned; NULL: not made, or removed */
  char *temp;                   /* owned */
};

/* Make an empty file; its descriptor (owned by the caller) or -1. */
extern int new_file_open (struct new_file *nf, const char *file);

/* It is durable: give it its name, durably. */
extern int new_file_commit (struct new_file *nf);

/* Remove it if it was not committed, and free. */
extern void new_file_free (struct new_file *nf);

#endif /* NBDEDUP_NEW_FILE_H */

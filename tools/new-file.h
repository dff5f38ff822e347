/* SPDX-License-Identifier: BSD-3-Clause */

/* A file that appears under its name when it is complete.
 *
 * The export makes it in a directory of its own, NAME.exporting-XXXXXX, beside
 * that name, and renames it at the end.  So an old file of that name stays if
 * the export fails, and the rest of a killed export cannot be mistaken for an
 * image.  It is a directory because some formats (vmdk) store the file's name.
 */

#ifndef NBDEDUP_NEW_FILE_H
#define NBDEDUP_NEW_FILE_H

struct new_file {
  char *path; /* owned; without symbolic links */
  char *dir;  /* owned; NULL: not made, or removed */
  char *temp; /* owned */
};

/* Make an empty file; its descriptor (owned by the caller) or -1. */
extern int new_file_open (struct new_file *nf, const char *file);

/* fsync, repeated if a signal interrupts it.  0, or -1 with errno. */
extern int new_file_sync (int fd);

/* The file is durable: give it its name, durably. */
extern int new_file_commit (struct new_file *nf);

/* Remove it if it was not committed, and free. */
extern void new_file_free (struct new_file *nf);

#endif /* NBDEDUP_NEW_FILE_H */

/* SPDX-License-Identifier: BSD-3-Clause */

/* Write a chart or page to the file that the user named. */

#ifndef NBDEDUP_DRIFT_FILE_H
#define NBDEDUP_DRIFT_FILE_H

#include <stdio.h>

#include <jansson.h>

typedef int
drift_write_fn (FILE *fp, const json_t *histories, const char *file);

/* "-" is standard output.  A new or replaced file appears when it is complete
 * and durable; anything but a regular file is written in place.  -1:
 * image_error.
 */
extern int
drift_save (const char *file, drift_write_fn *write, const json_t *histories);

#endif /* NBDEDUP_DRIFT_FILE_H */

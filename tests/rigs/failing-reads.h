/* SPDX-License-Identifier: BSD-3-Clause */

/* A disk that fails to read a file for a moment: the program's own pread. */

#ifndef NBDEDUP_FAILING_READS_H
#define NBDEDUP_FAILING_READS_H

#include <stdbool.h>

/* Of the reads of this file (its path, or its base name) let 'good' succeed, and
 * the 'failing' ones after them fail with 'error'.  NULL: none fail any more.
 * The text must live until then.  No other thread reads meanwhile, except those
 * that the caller's next call starts or wakes.
 */
extern void
fail_reads (const char *file, unsigned good, unsigned failing, int error);
/* Have all of them failed? */
extern bool reads_have_failed (void);

#endif /* NBDEDUP_FAILING_READS_H */

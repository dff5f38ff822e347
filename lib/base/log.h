/* SPDX-License-Identifier: BSD-3-Clause */

/* The log: events that no return value reports.  A failure that the function
 * returns to its caller does not belong here (error.h).
 *
 * Threads: any.  The log takes no lock.
 */

#ifndef NBDEDUP_LOG_H
#define NBDEDUP_LOG_H

#include <stdbool.h>

#include "nbdedup.h"

/* One line: "object: what happened, what to do". */
extern void nbdedup_log (enum nbdedup_log_level level, const char *fmt, ...)
  __attribute__ ((format (printf, 2, 3)));

/* Drop this thread's lines, until it says false. */
extern void log_hush (bool hush);

#endif /* NBDEDUP_LOG_H */

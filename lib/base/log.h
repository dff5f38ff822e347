/* SPDX-License-Identifier: BSD-3-Clause */

/* The log: what the engine has to say without having been asked.  A failure
 * that a caller is told of does not belong here (error.h).
 *
 * Threads: any.  No lock is held while the program's function runs.
 */

#ifndef NBDEDUP_LOG_H
#define NBDEDUP_LOG_H

#include "nbdedup.h"

/* One line: "object: what happened, what to do". */
extern void nbdedup_log (enum nbdedup_log_level level, const char *fmt, ...)
  __attribute__ ((format (printf, 2, 3)));

#endif /* NBDEDUP_LOG_H */

/* SPDX-License-Identifier: BSD-3-Clause */

/* The text for errno, per thread: recorded once, where the failure is
 * detected.
 */

#ifndef NBDEDUP_ERROR_H
#define NBDEDUP_ERROR_H

#include <errno.h>
#include <string.h>

#include "nbdedup.h"

/* Record the message, set errno to 'err', return -1.  One line of the
 * form "object: expectation, found value"; control characters in it are
 * replaced, because names and paths come from users.
 */
extern int nbdedup_fail (int err, const char *fmt, ...)
  __attribute__ ((format (printf, 2, 3)));

/* The same for functions that return a pointer. */
#define nbdedup_fail_null(...) (nbdedup_fail (__VA_ARGS__), NULL)

/* Replace control characters in place, as nbdedup_fail does. */
extern void error_replace_controls (char *text);

#endif /* NBDEDUP_ERROR_H */

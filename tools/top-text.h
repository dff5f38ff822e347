/* SPDX-License-Identifier: BSD-3-Clause */

/* The report of "top" for people: a line of the pool, a table of volumes. */

#ifndef NBDEDUP_TOP_TEXT_H
#define NBDEDUP_TOP_TEXT_H

#include "top-rates.h"

/* The busiest volumes come first.  'max_rows': at most so many of them, and how
 * many more there are; 0: all.
 */
extern void
top_print (const struct top_rates *rates, const char *pool, size_t max_rows);

#endif /* NBDEDUP_TOP_TEXT_H */

/* SPDX-License-Identifier: BSD-3-Clause */

/* The property "ddt-quota": over it new data is stored, but not entered in the
 * hash index.
 */

#ifndef NBDEDUP_QUOTA_H
#define NBDEDUP_QUOTA_H

#include <stdbool.h>
#include <stdint.h>

struct nbdedup_pool;

/* Would it be over with 'more' entries than there are?  Those that no fold has
 * written yet count: else all that is stored between two folds would pass.
 * Threads that ask before they add some may pass it by a batch each.
 */
extern bool quota_is_over (struct nbdedup_pool *pool, uint64_t more);

#endif /* NBDEDUP_QUOTA_H */

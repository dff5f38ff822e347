/* SPDX-License-Identifier: BSD-3-Clause */

/* Arrays that grow one by one, and those that are in order. */

#ifndef NBDEDUP_ARRAY_H
#define NBDEDUP_ARRAY_H

#include <stddef.h>

/* One more element, all zero, of an array that is doubled at each power of
 * two.  'array' is the address of the pointer to it (owned, to be freed),
 * '*nr' how many it has of 'size' bytes each.  NULL: no memory.
 */
extern void *array_add (void *array, size_t *nr, size_t size);

/* Of 'nr' elements in order, the index of the first one for which 'before',
 * an expression of 'i', is false; 'nr': there is none.
 */
#define array_position(nr, i, before)                   \
  ({                                                    \
    size_t _lo = 0, _hi = (nr), i;                      \
                                                        \
    while (_lo < _hi) {                                 \
      i = (_lo + _hi) / 2;                              \
      if (before)                                       \
        _lo = i + 1;                                    \
      else                                              \
        _hi = i;                                        \
    }                                                   \
    _lo;                                                \
  })

#endif /* NBDEDUP_ARRAY_H */

/* SPDX-License-Identifier: BSD-3-Clause */

/* Growing arrays and binary search.  Inline, so that the fault tests can fail
 * each allocation by its call site.
 */

#ifndef NBDEDUP_ARRAY_H
#define NBDEDUP_ARRAY_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* Make room for 'need' elements of 'size' bytes.  The array has room for
 * '*cap', which the function doubles until it suffices.  'array' is the address
 * of the caller's pointer, which owns the array; 'again' is realloc or
 * patient_realloc.  -1: no memory, and nothing has changed.
 */
static inline int
array_grow (void *array, size_t *cap, size_t need, size_t size,
            void *(*again) (void *p, size_t len))
{
  size_t n = *cap ? *cap : 1;
  void *p;

  if (need <= *cap)
    return 0;
  if (need > SIZE_MAX / 2 / size)
    return nbdedup_fail (ENOMEM, "no memory");
  while (n < need)
    n *= 2;
  memcpy (&p, array, sizeof p);
  p = again (p, n * size);
  if (p == NULL)
    return nbdedup_fail (ENOMEM, "no memory");
  memcpy (array, &p, sizeof p);
  *cap = n;
  return 0;
}

static inline int
array_reserve (void *array, size_t *cap, size_t need, size_t size)
{
  return array_grow (array, cap, need, size, realloc);
}

/* Append a zeroed element to an array of '*nr' elements, whose capacity is
 * always '*nr' rounded up to a power of two.  NULL: no memory.
 */
static inline void *
array_add (void *array, size_t *nr, size_t size)
{
  size_t cap = *nr;
  char *p;

  if ((*nr & (*nr - 1)) == 0 &&
      array_reserve (array, &cap, *nr + 1, size) == -1)
    return NULL;
  memcpy (&p, array, sizeof p);
  return memset (p + (*nr)++ * size, 0, size);
}

/* The same, and assign the last argument to it.  -1: no memory. */
#define array_push(array, nr, ...)                                             \
  ({                                                                           \
    __typeof__ (*(array)) _new = array_add (array, nr, sizeof *_new);          \
                                                                               \
    if (_new)                                                                  \
      *_new = __VA_ARGS__;                                                     \
    _new ? 0 : -1;                                                             \
  })

/* Among 'nr' sorted elements, the index of the first one for which 'before',
 * an expression of 'i', is false; 'nr' if there is none.
 */
#define array_position(nr, i, before)                                          \
  ({                                                                           \
    size_t _lo = 0, _hi = (nr), i;                                             \
                                                                               \
    while (_lo < _hi) {                                                        \
      i = (_lo + _hi) / 2;                                                     \
      if (before)                                                              \
        _lo = i + 1;                                                           \
      else                                                                     \
        _hi = i;                                                               \
    }                                                                          \
    _lo;                                                                       \
  })

#endif /* NBDEDUP_ARRAY_H */

/* SPDX-License-Identifier: BSD-3-Clause */

#ifndef NBDEDUP_ISZERO_H
#define NBDEDUP_ISZERO_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* Are all bytes zero?  Compares the buffer with itself, shifted, after a
 * look at the first 16 bytes (the trick is Rusty Russell's: memeqzero), so
 * it runs at memcmp speed and ends early on data.
 */
static inline bool
is_zero (const void *buf, size_t len)
{
  const unsigned char *p = buf;
  size_t i;

  for (i = 0; i < 16; ++i) {
    if (len == 0)
      return true;
    if (*p)
      return false;
    p++;
    len--;
  }
  return memcmp (buf, p, len) == 0;
}

#endif /* NBDEDUP_ISZERO_H */

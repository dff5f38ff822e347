/* SPDX-License-Identifier: BSD-3-Clause */

#ifndef NBDEDUP_ISZERO_H
#define NBDEDUP_ISZERO_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* True if all bytes are zero.  Checks the first 16 bytes, then compares the
 * buffer with itself, shifted by 16 (Rusty Russell's memeqzero).  So it runs
 * at memcmp speed and ends early on data.
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

/* SPDX-License-Identifier: BSD-3-Clause */

/* Numbers of few bytes: 7 bits in each, lowest first; bit 7 is 1 in all bytes
 * but the last (the "unsigned LEB128" of DWARF).
 */

#ifndef NBDEDUP_VARINT_H
#define NBDEDUP_VARINT_H

#include <stddef.h>
#include <stdint.h>

#define VARINT_MAX 10 /* bytes */

/* Returns the bytes used. */
static inline size_t
varint_put (uint8_t buf[VARINT_MAX], uint64_t v)
{
  size_t n = 0;

  for (; v >= 0x80; v >>= 7)
    buf[n++] = (uint8_t) (v | 0x80);
  buf[n++] = (uint8_t) v;
  return n;
}

/* Returns the bytes used; 0: there is no whole number of 64 bits. */
static inline size_t
varint_get (const uint8_t *buf, size_t len, uint64_t *v)
{
  size_t n = 0;

  *v = 0;
  do {
    if (n == len || n == VARINT_MAX || (n == VARINT_MAX - 1 && buf[n] > 1))
      return 0;
    *v |= (uint64_t) (buf[n] & 0x7f) << 7 * n;
  } while (buf[n++] & 0x80);
  return n;
}

#endif /* NBDEDUP_VARINT_H */

/* SPDX-License-Identifier: BSD-3-Clause */

/* Little-endian integers at any address.  Everything nbdedup stores is
 * little-endian.
 */

#ifndef NBDEDUP_BYTES_H
#define NBDEDUP_BYTES_H

#include <endian.h>
#include <stdint.h>
#include <string.h>

static inline uint16_t
get_le16 (const void *p)
{
  uint16_t v;
  memcpy (&v, p, sizeof v);
  return le16toh (v);
}

static inline uint32_t
get_le32 (const void *p)
{
  uint32_t v;
  memcpy (&v, p, sizeof v);
  return le32toh (v);
}

static inline uint64_t
get_le64 (const void *p)
{
  uint64_t v;
  memcpy (&v, p, sizeof v);
  return le64toh (v);
}

static inline void
put_le16 (void *p, uint16_t v)
{
  v = htole16 (v);
  memcpy (p, &v, sizeof v);
}

static inline void
put_le32 (void *p, uint32_t v)
{
  v = htole32 (v);
  memcpy (p, &v, sizeof v);
}

static inline void
put_le64 (void *p, uint64_t v)
{
  v = htole64 (v);
  memcpy (p, &v, sizeof v);
}

#endif /* NBDEDUP_BYTES_H */

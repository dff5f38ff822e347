/* SPDX-License-Identifier: BSD-3-Clause */

/* Objects of one size that come and go with each block.  Some are kept for
 * reuse: glibc's allocator has a lock for each thread that allocates, and a
 * thread that frees takes the lock of the one that allocated, so the workers,
 * the fold and the requests would wait for each other.
 *
 * Threads: the caller's lock protects it.
 */

#ifndef NBDEDUP_SPARES_H
#define NBDEDUP_SPARES_H

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

struct spare {
  struct spare *next;
};

struct spares {
  struct spare *first; /* owned */
  size_t nr;
};

/* An object of 'size' bytes, zeroed; the caller frees it or gives it back.
 * NULL: there is none.
 */
static inline void *
spares_take (struct spares *s, size_t size)
{
  struct spare *spare = s->first;

  if (spare == NULL)
    return NULL;
  s->first = spare->next;
  s->nr--;
  return memset (spare, 0, size);
}

/* Keep an object, or free it if there are 'max'.  AddressSanitizer only finds a
 * late use of what is freed.
 */
static inline void
spares_give (struct spares *s, void *object, size_t max)
{
  struct spare *spare = object;

#ifdef __SANITIZE_ADDRESS__
  max = 0;
#endif
  if (s->nr >= max) {
    free (object);
    return;
  }
  spare->next = s->first;
  s->first = spare;
  s->nr++;
}

static inline void
spares_free (struct spares *s)
{
  struct spare *spare;

  while ((spare = s->first) != NULL) {
    s->first = spare->next;
    free (spare);
  }
  s->nr = 0;
}

#endif /* NBDEDUP_SPARES_H */

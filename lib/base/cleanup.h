/* SPDX-License-Identifier: BSD-3-Clause */

/* Resources that a scope owns.  Declare and initialise on one line: a cleanup
 * of an uninitialised pointer crashes.  Cleanups run in reverse order.
 */

#ifndef NBDEDUP_CLEANUP_H
#define NBDEDUP_CLEANUP_H

#include <stdlib.h>
#include <unistd.h>
#include <jansson.h>

static inline void
cleanup_free (void *ptr)
{
  free (*(void **) ptr);
}

static inline void
cleanup_close (int *fd)
{
  if (*fd != -1)
    close (*fd);
}

static inline void
cleanup_json (json_t **json)
{
  json_decref (*json);
}

#define CLEANUP_FREE __attribute__ ((cleanup (cleanup_free)))
#define CLEANUP_CLOSE __attribute__ ((cleanup (cleanup_close)))
#define CLEANUP_JSON __attribute__ ((cleanup (cleanup_json)))

/* Transfer ownership: return the pointer's value and set it to NULL. */
#define TAKE_PTR(p)                                                            \
  ({                                                                           \
    __typeof__ (p) _take = (p);                                                \
    (p) = NULL;                                                                \
    _take;                                                                     \
  })

#endif /* NBDEDUP_CLEANUP_H */

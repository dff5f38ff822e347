/* SPDX-License-Identifier: BSD-3-Clause */

/* Assertions about the whole of a module's state.
 *
 * assert is on in every build: nothing here defines NDEBUG.  It checks what we
 * guarantee ourselves; what a disk, a client or a user can cause is an error.
 * To stop is then the lesser damage: what was answered is in the journal, and
 * the next open replays it, but state that contradicts itself could reach the
 * disk.
 *
 * MODULE_assert_consistent_locked runs where a function that changes the state
 * begins, and where it ends (WITH_CONSISTENT).  What costs a look at some
 * counters is always checked.  What must look at all of a table is checked if
 * NBDEDUP_EXPENSIVE_ASSERTS (--enable-expensive-asserts) is 1, and then only
 * after as many changes as the table has entries: on average each change pays
 * for the look at one entry.
 */

#ifndef NBDEDUP_INVARIANT_H
#define NBDEDUP_INVARIANT_H

#include <stdbool.h>
#include <stddef.h>

/* Call it once for each change; true: look at all 'nr' entries now.  The
 * counter begins at 0.  Under the lock of the table.
 */
static inline bool
invariant_is_due (size_t *changes, size_t nr)
{
  if (!NBDEDUP_EXPENSIVE_ASSERTS || ++*changes <= nr)
    return false;
  *changes = 0;
  return true;
}

/* Both now and at the closing brace: struct MODULE *p is consistent.  Stands
 * below the WITH_LOCK, so that the lock is still held at the end.
 */
#define WITH_CONSISTENT(module, p)                                      \
  __attribute__ ((cleanup (module##_end_locked)))                       \
  struct module *with_consistent = ({                                   \
      module##_assert_consistent_locked (p); (p); })

/* Once for each module, below the declaration of its function. */
#define DEFINE_WITH_CONSISTENT(module)                                  \
  static inline void                                                    \
  module##_end_locked (struct module **p)                               \
  {                                                                     \
    module##_assert_consistent_locked (*p);                             \
  }

#endif /* NBDEDUP_INVARIANT_H */

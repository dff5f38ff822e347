/* SPDX-License-Identifier: BSD-3-Clause */

/* Assertions about the whole of a module's state.
 *
 * assert is on in every build: nothing here defines NDEBUG.  It checks only
 * what the program itself guarantees; what a disk, a client or a user can cause
 * is an error instead.  Aborting does the least damage: the journal has every
 * answered write, and the next open replays it, but inconsistent state could
 * reach the disk.
 *
 * A function that changes the state runs MODULE_assert_consistent_locked at its
 * beginning and at its end (WITH_CONSISTENT).  Checks of a few counters always
 * run.  Checks of a whole table run only if NBDEDUP_EXPENSIVE_ASSERTS
 * (--enable-expensive-asserts) is 1, and once per as many changes as the table
 * has entries: the amortized cost is one entry per change.
 */

#ifndef NBDEDUP_INVARIANT_H
#define NBDEDUP_INVARIANT_H

#include <stdbool.h>
#include <stddef.h>

/* Call it once per change, with the table's lock held; true: check all 'nr'
 * entries now.  The counter begins at 0.
 */
static inline bool
invariant_is_due (size_t *changes, size_t nr)
{
  if (!NBDEDUP_EXPENSIVE_ASSERTS || ++*changes <= nr)
    return false;
  *changes = 0;
  return true;
}

/* Assert now and at the closing brace that struct MODULE *p is consistent.
 * Put it below the WITH_LOCK, so that the lock is still held at the end.
 */
/* clang-format off */
#define WITH_CONSISTENT(module, p)                                      \
  __attribute__ ((cleanup (module##_end_locked)))                       \
  struct module *with_consistent = ({                                   \
      module##_assert_consistent_locked (p); (p); })

/* Use it once per module, below the declaration of the module's function. */
#define DEFINE_WITH_CONSISTENT(module)                                  \
  static inline void                                                    \
  module##_end_locked (struct module **p)                               \
  {                                                                     \
    module##_assert_consistent_locked (*p);                             \
  }
/* clang-format on */

#endif /* NBDEDUP_INVARIANT_H */

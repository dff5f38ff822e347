/* SPDX-License-Identifier: BSD-3-Clause */

/* CLOCK: a hit only marks an entry of a cache, because moving it in the list
 * would touch two others, which are seldom in the processor's cache.  An entry
 * that was used since it came to its place moves to the list's end instead of
 * being dropped.
 */

#ifndef NBDEDUP_SECOND_CHANCE_H
#define NBDEDUP_SECOND_CHANCE_H

#include <stdbool.h>

/* The most turns before one entry is dropped: a cache that was all used must
 * not make one caller look at all of it.
 */
#define SECOND_CHANCES_MAX 16

/* Does the first entry of the list get another turn?  '*chances': those that
 * the caller has given since it began to make room.
 */
static inline bool
second_chance (bool *used, unsigned *chances)
{
  if (!*used || *chances == SECOND_CHANCES_MAX)
    return false;
  *used = false;
  ++*chances;
  return true;
}

#endif /* NBDEDUP_SECOND_CHANCE_H */

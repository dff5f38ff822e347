/* SPDX-License-Identifier: BSD-3-Clause */

/* The memory of dirty blocks: who gets what others free. */

#include <config.h>

#undef NDEBUG
#include <assert.h>

#include "data/dirty-memory.h"

#define SMALL 4096u
#define LARGE (64 * SMALL)

static void
put_small (struct dirty_memory *m, struct version **versions, unsigned nr)
{
  struct version_list list = SLIST_HEAD_INITIALIZER (list);
  unsigned i;

  for (i = 0; i < nr; ++i)
    SLIST_INSERT_HEAD (&list, versions[i], link);
  dirty_memory_put (m, &list, SMALL);
}

/* What small blocks free, others of these must not take for ever, while a large
 * one waits.
 */
static void
test_large_blocks_have_their_turn (void)
{
  struct version_list list = SLIST_HEAD_INITIALIZER (list);
  struct version *small[LARGE / SMALL], *more, *big;
  struct dirty_waiter large = { .size = 0 }, behind = { .size = 0 };
  struct dirty_memory m = { .max = 0 };

  dirty_memory_init (&m, LARGE);
  assert (dirty_memory_get (&m, SMALL, 1000, small, NULL) == LARGE / SMALL);
  assert (dirty_memory_get (&m, LARGE, 1, &big, &large) == 0);
  dirty_memory_wait (&m, LARGE, 0, &large);
  put_small (&m, small, 32);
  assert (dirty_memory_get (&m, SMALL, 1, &more, NULL) == 0);
  assert (dirty_memory_get (&m, SMALL, 1, &more, &behind) == 0);
  dirty_memory_wait (&m, SMALL, 0, &behind);
  put_small (&m, small + 32, 32);
  assert (dirty_memory_get (&m, SMALL, 1, &more, &behind) == 0);
  assert (dirty_memory_get (&m, LARGE, 1, &big, &large) == 1);
  assert (dirty_memory_get (&m, SMALL, 1, &more, &behind) == 0);
  SLIST_INSERT_HEAD (&list, big, link);
  dirty_memory_put (&m, &list, LARGE);
  dirty_memory_wait (&m, LARGE, 0, &large);
  assert (dirty_memory_get (&m, SMALL, 1, &more, &behind) == 1);
  assert (dirty_memory_get (&m, SMALL, 1, small, NULL) == 0);
  dirty_memory_leave (&m, &large);
  assert (dirty_memory_get (&m, SMALL, 1, small, NULL) == 1);
  put_small (&m, &more, 1);
  put_small (&m, small, 1);
  dirty_memory_destroy (&m);
}

int
main (void)
{
  test_large_blocks_have_their_turn ();
  return 0;
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* Records that are dead, but whose bytes a reader still needs.
 *
 * The fold releases the sectors of dead records when no thread can reach them
 * any more, for which it waits: readers are short.  A reader that stays at one
 * moment for minutes is a *keeper* instead.  While there is one, the records
 * to release are noted here, and stay in use; in pool.db their sectors are
 * free, as during any fold.
 *
 * Keepers never hold up writes.  When a client needs the space, or the notes
 * (or the maps that they pin) take too much memory, all keepers lose what they
 * keep: keep_epoch grows, so their tickets are out of date, and the next fold
 * frees the records.  A fold takes them before it waits for threads inside
 * quiesce, and a keeper compares its ticket inside quiesce, so it never reads
 * sectors that were free in between.
 *
 * What was noted before a keeper began is dead at its moment, too, so it never
 * needs it.
 */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "space/space-int.h"

/* 16 MiB of notes; and at most so many more maps than the budget allows, of
 * about 1 KiB each.
 */
#define KEPT_MAX (UINT64_C (1) << 20)
#define MAPS_MAX (UINT32_C (64) << 10)

uint64_t
space_keep_begin (struct space *space)
{
  WITH_LOCK (&space->lock);
  WITH_CONSISTENT (space, space);

  space->nr_keepers++;
  return space->keep_epoch;
}

/* No keeper needs what is noted now. */
static void
end_keepers_locked (struct space *space)
{
  assert_held (&space->lock);
  assert (space->nr_keepers == 0);
  space->nr_due = space->nr_kept;
}

bool
space_keep_end (struct space *space, uint64_t ticket)
{
  WITH_LOCK (&space->lock);
  WITH_CONSISTENT (space, space);

  if (ticket == space->keep_epoch) { /* else it is not counted any more */
    assert (space->nr_keepers > 0);
    if (--space->nr_keepers == 0)
      end_keepers_locked (space);
  }
  return space->nr_due > 0;
}

int
space_kept (struct space *space, uint64_t ticket)
{
  WITH_LOCK (&space->lock);
  if (ticket == space->keep_epoch)
    return 0;
  return nbdedup_fail (EBUSY,
                       "gave way to writes, which need the space of "
                       "data that was overwritten meanwhile: try again when "
                       "clients write less, or free some space");
}

static void
give_way_locked (struct space *space)
{
  assert_held (&space->lock);
  if (space->nr_keepers == 0)
    return;
  space->keep_epoch++;
  space->nr_keepers = 0;
  end_keepers_locked (space);
}

void
space_keep_give_way (struct space *space)
{
  WITH_LOCK (&space->lock);
  WITH_CONSISTENT (space, space);

  give_way_locked (space);
}

bool
space_keep (struct space *space, const struct space_freed *freed, size_t nr)
{
  WITH_LOCK (&space->lock);
  WITH_CONSISTENT (space, space);

  if (nr == 0 || space->nr_keepers == 0)
    return false;
  if (array_reserve (&space->kept, &space->cap_kept, space->nr_kept + nr,
                     sizeof *space->kept) == -1) {
    give_way_locked (space);
    return false;
  }
  memcpy (space->kept + space->nr_kept, freed, nr * sizeof *freed);
  space->nr_kept += nr;
  if (space->nr_kept > KEPT_MAX ||
      space->nr_entries > space->max_entries + MAPS_MAX)
    give_way_locked (space);
  return true;
}

static int
compare_freed (const void *a, const void *b)
{
  const struct space_freed *x = a, *y = b;

  return x->addr < y->addr ? -1 : x->addr > y->addr;
}

struct space_freed *
space_take_kept (struct space *space, size_t *nr)
{
  struct space_freed *due;
  WITH_LOCK (&space->lock);
  WITH_CONSISTENT (space, space);

  *nr = space->nr_due;
  if (*nr == 0)
    return NULL;
  due = malloc (*nr * sizeof *due);
  if (due == NULL) {
    *nr = 0; /* the next fold tries again */
    return NULL;
  }
  memcpy (due, space->kept, *nr * sizeof *due);
  space->nr_kept -= *nr;
  space->nr_due = 0;
  memmove (space->kept, space->kept + *nr, space->nr_kept * sizeof *due);
  if (space->nr_kept == 0) {
    free (space->kept);
    space->kept = NULL;
    space->cap_kept = 0;
  }
  qsort (due, *nr, sizeof *due, compare_freed);
  return due;
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* The maps of the segments in use, in memory within the budget.
 *
 * A map that is not pinned agrees with its row in pool.db, except for chunks
 * that no fold has asked for (chunks_dirty), so the allocator can drop it and
 * read it again.  A pinned map stays in memory.
 */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/queue.h>

#include "base/backoff.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "space/space-int.h"

static struct entry_list *
hash_list_locked (struct space *space, uint32_t id)
{
  return &space->hash[(id * UINT32_C (2654435761) >> 7) & (space->nr_hash - 1)];
}

struct entry *
space_entry_find_locked (struct space *space, uint32_t id)
{
  struct entry *e;

  assert_held (&space->lock);
  LIST_FOREACH (e, hash_list_locked (space, id), hash_link)
    if (e->id == id)
      return e;
  return NULL;
}

/* Double the number of hash lists.  Without memory they stay as they are. */
static void
grow_hash_locked (struct space *space)
{
  struct entry_list *old = space->hash, *lists;
  const uint32_t nr_old = space->nr_hash;
  struct entry *e;
  uint32_t i;

  lists = calloc (2 * (size_t) nr_old, sizeof *lists);
  if (lists == NULL)
    return;
  space->hash = lists;
  space->nr_hash = 2 * nr_old;
  assert ((space->nr_hash & (space->nr_hash - 1)) == 0);
  for (i = 0; i < nr_old; ++i)
    while ((e = LIST_FIRST (&old[i])) != NULL) {
      LIST_REMOVE (e, hash_link);
      LIST_INSERT_HEAD (hash_list_locked (space, e->id), e, hash_link);
    }
  free (old);
}

void
space_entry_free_locked (struct space *space, struct entry *e)
{
  assert_held (&space->lock);
  LIST_REMOVE (e, hash_link);
  if (e->pins == 0)
    TAILQ_REMOVE (&space->lru, e, lru_link);
  assert (space->nr_entries > 0);
  space->nr_entries--;
  segment_map_free (e->map);
  free (e);
}

/* Drop the map.  Returns false if the map must stay: dropping it forgets a
 * chunk that pool.db does not know, and reservations need its free slots.
 */
static bool
evict_locked (struct space *space, struct entry *e)
{
  const struct seg *s = &space->segs[e->id];
  const unsigned c = space_top_class_locked (space);
  const bool known = s->slots_known;
  const unsigned slots = seg_slots (s);

  assert_held (&space->lock);
  assert (e->pins == 0);
  if (e->chunks_dirty) {
    seg_remove_locked (space, e->id);
    seg_set_slots (&space->segs[e->id], false, 0);
    seg_insert_locked (space, e->id);
    if (space->room[c] < space->reserved_sectors) {
      seg_remove_locked (space, e->id);
      seg_set_slots (&space->segs[e->id], known, slots);
      seg_insert_locked (space, e->id);
      return false;
    }
  }
  space_entry_free_locked (space, e);
  return true;
}

/* Make room for one more map. */
static void
evict_some_locked (struct space *space)
{
  struct entry *e, *prev;

  for (e = TAILQ_LAST (&space->lru, entry_queue);
       e != NULL && space->nr_entries >= space->max_entries; e = prev) {
    prev = TAILQ_PREV (e, entry_queue, lru_link);
    evict_locked (space, e);
  }
}

static struct segment_map *
load_map_locked (struct space *space, uint32_t id)
{
  CLEANUP_FREE uint8_t *buf = NULL;
  size_t len;

  /* An empty segment has no row, or its row is about to be deleted. */
  if (seg_is_empty_locked (space, id))
    return segment_map_new (id, space->sector_bytes);

  switch (space->ops.load (space->ops.opaque, id, &buf, &len)) {
  case 1:
    return segment_map_unpack (id, space->sector_bytes, buf, len);
  case 0:
    return nbdedup_fail_null (EIO,
                              "space: segment %" PRIu32 " has records, "
                              "but no row in pool.db: run nbdedup check "
                              "--repair",
                              id);
  default:
    return NULL;
  }
}

struct entry *
space_entry_get_locked (struct space *space, uint32_t id)
{
  struct entry *e;
  int err;

  assert_held (&space->lock);
  assert (id < space->nr_segs && space->segs[id].backed);
  e = space_entry_find_locked (space, id);
  if (e != NULL) {
    if (e->pins == 0) {
      TAILQ_REMOVE (&space->lru, e, lru_link);
      TAILQ_INSERT_HEAD (&space->lru, e, lru_link);
    }
    return e;
  }

  if (space->segs[id].damaged)
    return nbdedup_fail_null (EIO,
                              "space: segment %" PRIu32 ": its map is "
                              "damaged: run nbdedup check --repair",
                              id);
  evict_some_locked (space);
  e = patient_calloc (1, sizeof *e);
  if (e == NULL)
    return nbdedup_fail_null (ENOMEM, "space: no memory for a map");
  e->id = id;
  e->map = load_map_locked (space, id);
  if (e->map == NULL) {
    err = errno;
    free (e);
    if (err == EIO)
      seg_mark_damaged_locked (space, id);
    errno = err;
    return NULL;
  }
  if (space->nr_entries >= space->nr_hash)
    grow_hash_locked (space);
  LIST_INSERT_HEAD (hash_list_locked (space, id), e, hash_link);
  TAILQ_INSERT_HEAD (&space->lru, e, lru_link);
  space->nr_entries++;
  seg_refresh_locked (space, e->map);
  return e;
}

void
space_entry_pin_locked (struct space *space, struct entry *e)
{
  assert_held (&space->lock);
  if (e->pins++ == 0)
    TAILQ_REMOVE (&space->lru, e, lru_link);
}

void
space_entry_unpin_locked (struct space *space, struct entry *e)
{
  assert_held (&space->lock);
  assert (e->pins > 0);
  if (--e->pins > 0)
    return;
  TAILQ_INSERT_HEAD (&space->lru, e, lru_link);
  if (!segment_map_is_empty (e->map))
    return;
  segment_map_reset (e->map);
  seg_refresh_locked (space, e->map);
  seg_leave_locked (space, e->id);
  space_entry_free_locked (space, e);
  seg_punch_empty_locked (space, false);
}

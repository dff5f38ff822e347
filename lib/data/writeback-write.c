/* SPDX-License-Identifier: BSD-3-Clause */

/* How a write becomes a version: reserve its room, copy the bytes, publish. */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mix.h"
#include "core/map.h"
#include "core/moves.h"
#include "core/txg.h"
#include "data/read.h"
#include "data/watch.h"
#include "data/writeback-int.h"
#include "data/writeback.h"
#include "disk/room.h"
#include "space/space.h"

/* The most blocks whose room, versions and places in the queue one call of
 * writeback_write_run gets.  In requests of many small blocks the locks for
 * that would cost more than the copy.
 */
#define RUN_BLOCKS 32

void
release_slack (struct writeback *wb)
{
  WITH_LOCK (&wb->lock);
  if (wb->slack_record > 0)
    space_unreserve (wb->pool->space, wb->slack_record, SLACK_RECORDS);
  wb->slack_record = 0;
}

/* A version with room in dirty-max; wait for that. */
static struct version *
get_version (struct writeback *wb, struct volume *v)
{
  struct dirty_waiter waiter = { .size = 0 };
  struct version *version;
  int nr;

  while ((nr = dirty_memory_get (&wb->memory, v->block_size, 1, &version,
                                 &waiter)) == 0) {
    if (wb->stop) {
      dirty_memory_leave (&wb->memory, &waiter);
      return nbdedup_fail_null (ESHUTDOWN, "the pool is closing");
    }
    if (writeback_can_accept (wb, v) == -1) {
      dirty_memory_leave (&wb->memory, &waiter);
      return NULL;
    }
    wake_worker (wb);
    dirty_memory_wait (&wb->memory, v->block_size, 1000, &waiter);
  }
  return nr == 1 ? version
                 : nbdedup_fail_null (ENOMEM, "no memory for a block");
}

static void
put_versions (struct writeback *wb, struct volume *v, unsigned nr,
              struct version *const *versions)
{
  struct version_list list = SLIST_HEAD_INITIALIZER (list);
  unsigned i;

  for (i = 0; i < nr; ++i)
    SLIST_INSERT_HEAD (&list, versions[i], link);
  dirty_memory_put (&wb->memory, &list, v->block_size);
}

static int
try_reserve (struct writeback *wb, struct volume *v, unsigned nr,
             enum room_use use)
{
  int err;

  if (txg_is_stuck (wb->pool->txg))
    return nbdedup_fail (ENOSPC, "the pool's file system is full");
  if (txg_reserve (wb->pool->txg, nr, use) == -1)
    return -1;
  if (space_reserve (wb->pool->space, v->block_size, nr) == 0)
    return 0;
  err = errno;
  txg_unreserve (wb->pool->txg, nr);
  errno = err;
  return -1;
}

static void
hold_slack (struct writeback *wb, uint32_t record)
{
  if (wb->slack_record > 0)
    return;
  WITH_LOCK (&wb->lock);
  if (wb->slack_record == 0 &&
      space_reserve (wb->pool->space, record, SLACK_RECORDS) == 0)
    wb->slack_record = record;
}

/* Does the volume have this block itself?  (Overwriting an inherited block
 * frees nothing.)  Keeps errno.
 */
static bool
is_mapped (struct writeback *wb, struct volume *v, uint64_t block)
{
  const int err = errno;
  unsigned ticket = quiesce_enter (&wb->pool->quiesce);
  const bool owns = map_owns (wb->pool->map, v->layer, block) == 1;

  quiesce_leave (&wb->pool->quiesce, ticket);
  errno = err;
  return owns;
}

/* If there is no room, a fold may free the space of overwritten blocks: fold,
 * and try again.
 */
int
writeback_reserve (struct writeback *wb, struct volume *v, uint64_t block)
{
  if (try_reserve (wb, v, 1, ROOM_NEW) == 0) {
    hold_slack (wb, v->block_size);
    return 0;
  }
  if (errno != ENOSPC)
    return -1;
  moves_give_way (wb->pool->moves);
  space_keep_give_way (wb->pool->space);
  if (writeback_drain (wb, NULL) == -1 ||
      txg_make_room (wb->pool->txg, true) == -1)
    return -1;
  if (try_reserve (wb, v, 1, ROOM_NEW) == 0)
    return 0;
  if (errno != ENOSPC || !is_mapped (wb, v, block))
    return -1;
  if (try_reserve (wb, v, 1, ROOM_OVERWRITE) == 0)
    return 0;
  release_slack (wb);
  return try_reserve (wb, v, 1, ROOM_OVERWRITE);
}

/* Change part of the open version, if there is one: true. */
static bool
write_open (struct writeback *wb, struct volume *v, uint64_t block,
            const void *buf, size_t offset, size_t len)
{
  struct dirty_blocks *db = &v->dirty;
  struct version *version;
  struct dirty *d;

  {
    WITH_LOCK (&db->lock);
    d = find_dirty_locked (v, block);
    if (d == NULL || d->open == NULL)
      return false;
    version = d->open;
    assert (!version->filling); /* this thread has the range */
    version->filling = true;
    while (version->nr_readers > 0)
      lock_wait (&db->lock, &db->copied);
  }
  memcpy (version->data + offset, buf, len);
  WITH_LOCK (&db->lock);
  WITH_CONSISTENT (dirty_blocks, db);
  assert (d->open == version && version->filling);
  version->filling = false;
  cond_broadcast (&db->copied);
  make_ready_locked (wb, v, d->urgent ? READY_URGENT : READY_NORMAL);
  return true;
}

/* Fill in the rest of a block: from the inflight version, else from its
 * record.  A version that is installed before the first step is found by the
 * second.  This thread holds the range, so neither content changes.
 */
static int
read_base (struct writeback *wb, struct volume *v, uint64_t block,
           uint8_t *data)
{
  if (writeback_read (wb, v, block, data, 0, v->block_size))
    return 0;
  return read_replaced_block (v, block, data);
}

static struct dirty *
add_dirty_locked (struct writeback *wb, struct volume *v, uint64_t block)
{
  struct dirty_blocks *db = &v->dirty;
  struct dirty *d;

  assert_held (&db->lock);
  if (db->table.buckets == NULL && hashtable_init (&db->table) == -1)
    return NULL;
  d = spares_take (&db->spares, sizeof *d) ?: calloc (1, sizeof *d);
  if (d == NULL)
    return NULL;
  d->block = block;
  hashtable_insert (&db->table, &d->link, mix (block));
  if (db->nr++ == 0)
    set_active_locked (wb, v, true);
  return d;
}

static int
publish_locked (struct writeback *wb, struct volume *v, uint64_t block,
                struct version *version)
{
  struct dirty *d;

  assert_held (&v->dirty.lock);
  d = find_dirty_locked (v, block) ?: add_dirty_locked (wb, v, block);
  if (d == NULL)
    return nbdedup_fail (ENOMEM, "no memory for a block");
  assert (d->open == NULL); /* this thread has the range */
  d->open = version;
  version->seq = ++v->dirty.seq;
  queue_open_locked (v, d);
  return 0;
}

/* Make versions of neighbouring blocks visible.  Returns how many, or -1 if
 * not even the first.
 */
static int
publish (struct writeback *wb, struct volume *v, uint64_t first, unsigned nr,
         struct version *const *versions)
{
  struct dirty_blocks *db = &v->dirty;
  unsigned i = 0;

  {
    WITH_LOCK (&db->lock);
    WITH_CONSISTENT (dirty_blocks, db);
    if (writeback_can_accept (wb, v) == -1)
      return -1;
    while (i < nr && publish_locked (wb, v, first + i, versions[i]) == 0)
      i++;
    if (i == 0)
      return -1;
    make_ready_locked (wb, v, READY_NORMAL);
  }
  if (is_dirty_beyond (wb, DIRTY_BEGIN))
    wake_worker (wb);
  return (int) i;
}

static int
write_new (struct writeback *wb, struct volume *v, uint64_t block,
           const void *buf, size_t offset, size_t len)
{
  struct version *version = get_version (wb, v);

  if (version == NULL)
    return -1;
  if (len < v->block_size && read_base (wb, v, block, version->data) == -1)
    goto fail;
  memcpy (version->data + offset, buf, len);
  if (publish (wb, v, block, 1, &version) == 1)
    return 0;

fail:
  put_versions (wb, v, 1, &version);
  return -1;
}

int
writeback_write (struct writeback *wb, struct volume *v, uint64_t block,
                 const void *buf, size_t offset, size_t len)
{
  assert (len > 0 && offset <= v->block_size && len <= v->block_size - offset);
  if (writeback_can_accept (wb, v) == -1)
    return -1;
  if (write_open (wb, v, block, buf, offset, len))
    return 0;
  if (writeback_reserve (wb, v, block) == -1) {
    if (errno == ENOSPC)
      watch_refused (wb->pool);
    return -1;
  }
  if (write_new (wb, v, block, buf, offset, len) == -1) {
    unreserve (wb, v, 1);
    return -1;
  }
  return 0;
}

int
writeback_write_reserved (struct writeback *wb, struct volume *v,
                          uint64_t block, const void *buf)
{
  bool published = false;
  int r = writeback_can_accept (wb, v);

  if (r == 0 && !write_open (wb, v, block, buf, 0, v->block_size)) {
    r = write_new (wb, v, block, buf, 0, v->block_size);
    published = r == 0;
  }
  if (!published) /* the version that was open has a reservation of its own */
    unreserve (wb, v, 1);
  return r;
}

void
writeback_unreserve (struct writeback *wb, struct volume *v)
{
  unreserve (wb, v, 1);
}

/*----------------------------------------------------------------------
 * Several whole blocks
 */

/* How many of the first blocks have no open version? */
static unsigned
count_without_open (struct volume *v, uint64_t first, unsigned nr)
{
  const struct dirty *d;
  unsigned i;

  WITH_LOCK (&v->dirty.lock);
  for (i = 0; i < nr; ++i) {
    d = find_dirty_locked (v, first + i);
    if (d && d->open)
      break;
  }
  return i;
}

/* As many as there is memory for without waiting. */
static unsigned
write_run (struct writeback *wb, struct volume *v, uint64_t first, unsigned nr,
           const uint8_t *buf)
{
  struct version *versions[RUN_BLOCKS];
  int got = dirty_memory_get (&wb->memory, v->block_size, nr, versions, NULL),
      i;
  int published;

  if (got <= 0)
    return 0;
  for (i = 0; i < got; ++i)
    memcpy (versions[i]->data, buf + (size_t) i * v->block_size, v->block_size);
  published = publish (wb, v, first, (unsigned) got, versions);
  if (published == -1)
    published = 0;
  put_versions (wb, v, (unsigned) (got - published), versions + published);
  return (unsigned) published;
}

unsigned
writeback_write_run (struct writeback *wb, struct volume *v, uint64_t first,
                     unsigned nr, const void *buf)
{
  unsigned written;

  if (nr > RUN_BLOCKS)
    nr = RUN_BLOCKS;
  nr = count_without_open (v, first, nr);
  if (nr < 2 || try_reserve (wb, v, nr, ROOM_NEW) == -1)
    return 0;
  hold_slack (wb, v->block_size);
  written = write_run (wb, v, first, nr, buf);
  if (written < nr)
    unreserve (wb, v, nr - written);
  return written;
}

/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <stdlib.h>

#include "base/invariant.h"
#include "data/dirty-memory.h"

#define NR_SIZES                                                               \
  (sizeof ((struct dirty_memory *) 0)->spare / sizeof (struct version_list))

/* True whenever the lock is not held:
 *
 *  (1) Versions and spare buffers together take at most dirty-max.
 *
 *  (2) The sums match the spare buffers, which no thread uses.
 *
 * Checking (2) visits all spare buffers.
 */

static void
assert_spare_locked (const struct dirty_memory *m)
{
  const struct version *version;
  uint64_t bytes = 0;
  size_t nr = 0;
  unsigned i;

  for (i = 0; i < NR_SIZES; ++i)
    SLIST_FOREACH (version, &m->spare[i], link) {
      assert (version->nr_readers == 0 && !version->filling);
      bytes += UINT64_C (1) << i;
      nr++;
    }
  assert (bytes == m->spare_bytes && nr == m->nr_spare);
}

static void
dirty_memory_assert_consistent_locked (struct dirty_memory *m)
{
  assert_held (&m->lock);
  assert (m->bytes + m->spare_bytes <= m->max);
  assert ((m->spare_bytes == 0) == (m->nr_spare == 0));
  if (invariant_is_due (&m->changes, m->nr_spare))
    assert_spare_locked (m);
}

DEFINE_WITH_CONSISTENT (dirty_memory)

void
dirty_memory_init (struct dirty_memory *m, uint64_t max)
{
  unsigned i;

  m->max = max;
  lock_init (&m->lock);
  cond_init (&m->room);
  TAILQ_INIT (&m->waiters);
  for (i = 0; i < NR_SIZES; ++i)
    SLIST_INIT (&m->spare[i]);
}

void
version_free (struct version *version)
{
  if (version)
    free (version->data);
  free (version);
}

static void
free_list (struct version_list *list)
{
  struct version *version;

  while ((version = SLIST_FIRST (list)) != NULL) {
    SLIST_REMOVE_HEAD (list, link);
    version_free (version);
  }
}

void
dirty_memory_destroy (struct dirty_memory *m)
{
  unsigned i;

  assert (TAILQ_EMPTY (&m->waiters));
  for (i = 0; i < NR_SIZES; ++i)
    free_list (&m->spare[i]);
  cond_destroy (&m->room);
  lock_destroy (&m->lock);
}

static struct version *
take_spare_locked (struct dirty_memory *m, unsigned i)
{
  struct version *version = SLIST_FIRST (&m->spare[i]);

  assert_held (&m->lock);
  if (version) {
    SLIST_REMOVE_HEAD (&m->spare[i], link);
    m->spare_bytes -= UINT64_C (1) << i;
    m->nr_spare--;
  }
  return version;
}

/* Move spare buffers of other sizes to 'list', so that so many bytes more stay
 * within dirty-max.
 */
static void
trim_spare_locked (struct dirty_memory *m, uint64_t bytes,
                   struct version_list *list)
{
  struct version *version;
  unsigned i;

  for (i = 0; i < NR_SIZES; ++i)
    while (m->bytes + m->spare_bytes + bytes > m->max &&
           (version = take_spare_locked (m, i)) != NULL)
      SLIST_INSERT_HEAD (list, version, link);
}

static struct version *
allocate (uint32_t size)
{
  struct version *version = malloc (sizeof *version);

  if (version == NULL)
    return NULL;
  version->data = malloc (size);
  if (version->data == NULL) {
    free (version);
    return NULL;
  }
  return version;
}

/* The room that there is for this waiter, or, NULL, one that comes now. */
static uint64_t
room_locked (struct dirty_memory *m, const struct dirty_waiter *waiter)
{
  uint64_t taken = m->bytes;
  const struct dirty_waiter *w;

  assert_held (&m->lock);
  TAILQ_FOREACH (w, &m->waiters, link) {
    if (w == waiter)
      break;
    taken += w->size;
  }
  return taken < m->max ? m->max - taken : 0;
}

static void
leave_locked (struct dirty_memory *m, struct dirty_waiter *waiter)
{
  assert_held (&m->lock);
  if (waiter && waiter->size > 0)
    TAILQ_REMOVE (&m->waiters, waiter, link);
  if (waiter)
    waiter->size = 0;
}

/* Count buffers of 'size' bytes more, as many of 'nr' as there is room for.
 * The array gets spare ones first, then NULLs.  Buffers that must go for that
 * are in 'list', for the caller to free without the lock.
 */
static unsigned
charge (struct dirty_memory *m, uint32_t size, unsigned nr,
        struct version **versions, struct dirty_waiter *waiter,
        struct version_list *list)
{
  uint64_t room;
  unsigned i;

  WITH_LOCK (&m->lock);
  WITH_CONSISTENT (dirty_memory, m);
  room = room_locked (m, waiter) / size;
  if (nr > room)
    nr = (unsigned) room;
  if (nr > 0)
    leave_locked (m, waiter);
  for (i = 0; i < nr; ++i)
    versions[i] = take_spare_locked (m, (unsigned) __builtin_ctz (size));
  trim_spare_locked (m, (uint64_t) nr * size, list);
  m->bytes += (uint64_t) nr * size;
  return nr;
}

static void
uncharge (struct dirty_memory *m, uint64_t bytes)
{
  {
    WITH_LOCK (&m->lock);
    WITH_CONSISTENT (dirty_memory, m);
    assert (m->bytes >= bytes);
    m->bytes -= bytes;
  }
  cond_broadcast (&m->room);
}

int
dirty_memory_get (struct dirty_memory *m, uint32_t size, unsigned nr,
                  struct version **versions, struct dirty_waiter *waiter)
{
  struct version_list list = SLIST_HEAD_INITIALIZER (list);
  unsigned i, got;
  uint8_t *data;

  assert (nr > 0 && size > 0 && (size & (size - 1)) == 0);
  got = charge (m, size, nr, versions, waiter, &list);
  free_list (&list);
  if (got == 0)
    return 0;
  for (i = 0; i < got; ++i) {
    versions[i] = versions[i] ?: allocate (size);
    if (versions[i] == NULL)
      break; /* and so are the others */
    data = versions[i]->data;
    *versions[i] = (struct version) { .data = data };
  }
  if (i < got)
    uncharge (m, (uint64_t) (got - i) * size);
  return i > 0 ? (int) i : -1;
}

void
dirty_memory_wait (struct dirty_memory *m, uint32_t size, uint64_t ms,
                   struct dirty_waiter *waiter)
{
  WITH_LOCK (&m->lock);
  assert (waiter->size == 0 || waiter->size == size);
  if (waiter->size == 0)
    TAILQ_INSERT_TAIL (&m->waiters, waiter, link);
  waiter->size = size;
  if (room_locked (m, waiter) < size)
    lock_wait_ms (&m->lock, &m->room, ms);
}

void
dirty_memory_leave (struct dirty_memory *m, struct dirty_waiter *waiter)
{
  WITH_LOCK (&m->lock);
  leave_locked (m, waiter);
  cond_broadcast (&m->room); /* there is more for those behind it */
}

void
dirty_memory_wake (struct dirty_memory *m)
{
  WITH_LOCK (&m->lock);
  cond_broadcast (&m->room);
}

/* Keep the buffers that dirty-max has room for; the others stay in 'list'. */
static void
keep_spare (struct dirty_memory *m, struct version_list *list, uint32_t size)
{
  const unsigned i = (unsigned) __builtin_ctz (size);
  struct version_list rest = SLIST_HEAD_INITIALIZER (rest), *to;
  struct version *version;

  WITH_LOCK (&m->lock);
  WITH_CONSISTENT (dirty_memory, m);
  while ((version = SLIST_FIRST (list)) != NULL) {
    SLIST_REMOVE_HEAD (list, link);
    assert (m->bytes >= size && version->nr_readers == 0);
    m->bytes -= size;
    to = &rest;
    if (m->bytes + m->spare_bytes + size <= m->max) {
      m->spare_bytes += size;
      m->nr_spare++;
      to = &m->spare[i];
    }
    SLIST_INSERT_HEAD (to, version, link);
  }
  *list = rest;
}

void
dirty_memory_put (struct dirty_memory *m, struct version_list *list,
                  uint32_t size)
{
  if (SLIST_EMPTY (list))
    return;
  keep_spare (m, list, size);
  /* Without the lock: the threads that it wakes would wait for it. */
  cond_broadcast (&m->room);
  free_list (list);
}

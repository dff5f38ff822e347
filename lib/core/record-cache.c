/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "base/error.h"
#include "base/lock.h"
#include "base/hashtable.h"
#include "base/mix.h"
#include "core/record-cache.h"

/* Threads copy from an entry without the lock: each holds a reference, and so
 * does the table.  An entry never changes, and the last reference frees it, so
 * entries that are being read may be more than the budget: one per reader.
 */
struct cached {
  struct hashtable_link link;
  TAILQ_ENTRY (cached) lru;
  atomic_uint refs; /* taken under the lock */
  uint64_t addr, cksum;
  size_t len;
  uint8_t data[];
};

TAILQ_HEAD (cached_list, cached);

struct record_cache {
  size_t max;
  atomic_uint *marks; /* owned; of addresses that missed, a newer one replaces
                       * an older one; without the lock */
  size_t nr_marks;    /* a power of two */

  struct lock lock; /* protects everything below */
  struct hashtable table;
  struct cached_list lru; /* least recently used first */
  _Atomic size_t bytes;   /* of the entries in the table; read without the
                           * lock */
};

/* A record may take at most this share of the budget: a cache that holds only
 * one record has no hits and costs a copy.
 */
#define SHARE_MIN 4

/* One mark for so many bytes of the budget: as many as there are entries of the
 * smallest blocks, and four times as many as of 16 KiB, so that a block that is
 * read again after four times what the cache holds is still known.
 */
#define BYTES_PER_MARK 4096
#define MARKS_MAX ((size_t) 1 << 22)

static int
init_marks (struct record_cache *c)
{
  c->nr_marks = 1;
  while (c->nr_marks < c->max / BYTES_PER_MARK && c->nr_marks < MARKS_MAX)
    c->nr_marks *= 2;
  c->marks = calloc (c->nr_marks, sizeof *c->marks);
  return c->marks ? 0 : -1;
}

struct record_cache *
record_cache_new (uint64_t budget_bytes)
{
  struct record_cache *c = calloc (1, sizeof *c);

  if (c == NULL)
    goto fail;
  c->max = budget_bytes;
  if (init_marks (c) == -1 || hashtable_init (&c->table) == -1)
    goto fail;
  lock_init (&c->lock);
  TAILQ_INIT (&c->lru);
  return c;

fail:
  if (c)
    free (c->marks);
  free (c);
  return nbdedup_fail_null (ENOMEM, "no memory for the record cache");
}

static size_t
size_with (size_t len)
{
  return sizeof (struct cached) + 16 + len;
}

static size_t
size_of (const struct cached *e)
{
  return size_with (e->len);
}

static void
put_ref (struct cached *e)
{
  const unsigned before = atomic_fetch_sub (&e->refs, 1);

  assert (before > 0);
  if (before == 1)
    free (e);
}

/* The caller puts what is in 'dropped' without the lock (put_dropped), because
 * freeing a large entry unmaps it.
 */
static void
drop_locked (struct record_cache *c, struct cached *e,
             struct cached_list *dropped)
{
  assert_held (&c->lock);
  assert (c->bytes >= size_of (e) && e->refs > 0);
  c->bytes -= size_of (e);
  TAILQ_REMOVE (&c->lru, e, lru);
  hashtable_remove (&c->table, &e->link);
  TAILQ_INSERT_TAIL (dropped, e, lru);
}

static void
put_dropped (struct cached_list *dropped)
{
  struct cached *e;

  while ((e = TAILQ_FIRST (dropped)) != NULL) {
    TAILQ_REMOVE (dropped, e, lru);
    put_ref (e);
  }
}

void
record_cache_free (struct record_cache *c)
{
  if (c == NULL)
    return;
  put_dropped (&c->lru);
  hashtable_destroy (&c->table);
  lock_destroy (&c->lock);
  free (c->marks);
  free (c);
}

static struct cached *
find_locked (struct record_cache *c, uint64_t addr)
{
  struct hashtable_link *l;

  assert_held (&c->lock);
  assert (c->bytes <= c->max);
  assert ((c->table.nr_entries == 0) == TAILQ_EMPTY (&c->lru));
  for (l = hashtable_chain (&c->table, mix (addr)); l; l = l->next)
    if (hashtable_entry (l, struct cached, link)->addr == addr)
      return hashtable_entry (l, struct cached, link);
  return NULL;
}

/* The entry with a reference for the caller, or NULL. */
static struct cached *
get_ref (struct record_cache *c, uint64_t addr, uint64_t cksum, size_t end)
{
  struct cached *e;

  WITH_LOCK (&c->lock);
  e = find_locked (c, addr);
  if (e == NULL || e->cksum != cksum || end > e->len)
    return NULL;
  TAILQ_REMOVE (&c->lru, e, lru);
  TAILQ_INSERT_TAIL (&c->lru, e, lru);
  e->refs++;
  return e;
}

bool
record_cache_get (struct record_cache *c, uint64_t addr, uint64_t cksum,
                  void *buf, size_t offset, size_t len)
{
  struct cached *e;

  if (c->max == 0)
    return false;
  e = get_ref (c, addr, cksum, offset + len);
  if (e == NULL)
    return false;
  memcpy (buf, e->data + offset, len);
  put_ref (e);
  return true;
}

static struct cached *
make (const struct record_cache *c, uint64_t addr, uint64_t cksum,
      const void *data, size_t len)
{
  struct cached *e = len > c->max / SHARE_MIN ? NULL : malloc (sizeof *e + len);

  if (e == NULL)
    return NULL;
  atomic_init (&e->refs, 1);
  e->addr = addr;
  e->cksum = cksum;
  e->len = len;
  memcpy (e->data, data, len);
  return e;
}

/* Add an entry, unless there is one of this address. */
static void
add (struct record_cache *c, struct cached *e, struct cached_list *dropped)
{
  WITH_LOCK (&c->lock);
  if (find_locked (c, e->addr)) {
    TAILQ_INSERT_TAIL (dropped, e, lru);
    return;
  }
  c->bytes += size_of (e);
  hashtable_insert (&c->table, &e->link, mix (e->addr));
  TAILQ_INSERT_TAIL (&c->lru, e, lru);
  while (c->bytes > c->max)
    drop_locked (c, TAILQ_FIRST (&c->lru), dropped);
}

bool
record_cache_admits (struct record_cache *c, uint64_t addr, size_t len)
{
  const uint64_t hash = mix (addr);
  const unsigned mark = (unsigned) (hash >> 32) | 1; /* 0: no mark */
  atomic_uint *slot = &c->marks[hash & (c->nr_marks - 1)];

  if (len > c->max / SHARE_MIN)
    return false;
  if (c->bytes + size_with (len) <= c->max ||
      atomic_load_explicit (slot, memory_order_relaxed) == mark)
    return true;
  atomic_store_explicit (slot, mark, memory_order_relaxed);
  return false;
}

void
record_cache_put (struct record_cache *c, uint64_t addr, uint64_t cksum,
                  const void *data, size_t len)
{
  struct cached_list dropped = TAILQ_HEAD_INITIALIZER (dropped);
  struct cached *e = make (c, addr, cksum, data, len);

  if (e == NULL)
    return;
  add (c, e, &dropped);
  put_dropped (&dropped);
}

/* False: there is no room. */
static bool
add_cold (struct record_cache *c, struct cached *e, struct cached_list *dropped)
{
  bool found;

  WITH_LOCK (&c->lock);
  found = find_locked (c, e->addr) != NULL;
  if (found || c->bytes + size_of (e) > c->max) {
    TAILQ_INSERT_TAIL (dropped, e, lru);
    return found;
  }
  c->bytes += size_of (e);
  hashtable_insert (&c->table, &e->link, mix (e->addr));
  TAILQ_INSERT_HEAD (&c->lru, e, lru);
  return true;
}

bool
record_cache_put_cold (struct record_cache *c, uint64_t addr, uint64_t cksum,
                       const void *data, size_t len)
{
  struct cached_list dropped = TAILQ_HEAD_INITIALIZER (dropped);
  struct cached *e = make (c, addr, cksum, data, len);
  bool added;

  if (e == NULL)
    return false;
  added = add_cold (c, e, &dropped);
  put_dropped (&dropped);
  return added;
}

bool
record_cache_has (struct record_cache *c, uint64_t addr)
{
  WITH_LOCK (&c->lock);
  return find_locked (c, addr) != NULL;
}

/* Under one lock: the processor waits for the entries of all at once, not for
 * one after the other.
 */
unsigned
record_cache_count_absent (struct record_cache *c, const uint64_t *addrs,
                           unsigned nr)
{
  unsigned i = 0;

  WITH_LOCK (&c->lock);
  while (i < nr && find_locked (c, addrs[i]) == NULL)
    i++;
  return i;
}

size_t
record_cache_list (struct record_cache *c, uint64_t *addrs, size_t max)
{
  struct cached *e;
  size_t nr = 0;

  WITH_LOCK (&c->lock);
  TAILQ_FOREACH_REVERSE (e, &c->lru, cached_list, lru)
  {
    if (nr == max)
      break;
    addrs[nr++] = e->addr;
  }
  return nr;
}

void
record_cache_get_usage (struct record_cache *c, uint64_t *bytes,
                        uint64_t *max_bytes)
{
  WITH_LOCK (&c->lock);
  *bytes = c->bytes;
  *max_bytes = c->max;
}

void
record_cache_forget (struct record_cache *c, uint64_t addr)
{
  struct cached_list dropped = TAILQ_HEAD_INITIALIZER (dropped);
  struct cached *e;

  {
    WITH_LOCK (&c->lock);
    e = find_locked (c, addr);
    if (e)
      drop_locked (c, e, &dropped);
  }
  put_dropped (&dropped);
}

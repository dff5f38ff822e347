/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "base/error.h"
#include "base/lock.h"
#include "base/hashtable.h"
#include "base/mix.h"
#include "core/record-cache.h"
#include "core/second-chance.h"

/* Threads copy from an entry without the lock: each holds a reference, and so
 * does the table.  An entry never changes, and the last reference frees it, so
 * entries that are being read may be more than the budget: one per reader.
 */
struct cached {
  struct hashtable_link link;
  TAILQ_ENTRY (cached) lru;
  atomic_uint refs; /* taken under the lock */
  bool used;        /* since it came to its place in the list */
  uint64_t addr, cksum;
  size_t len;
  uint8_t data[];
};

TAILQ_HEAD (cached_list, cached);

struct record_cache {
  size_t max;
  atomic_uint *marks;   /* owned; of addresses that missed, a newer one
                         * replaces an older one; without the lock */
  size_t nr_marks;      /* a power of two */
  atomic_uchar *counts; /* owned; of the entries in the table, by bits of their
                         * hash; written under the lock, read without: most
                         * lookups of what is not here end at a 0 */

  struct lock lock; /* protects everything below */
  struct hashtable table;
  struct cached_list lru; /* the first to be dropped first */
  _Atomic size_t bytes;   /* of the entries in the table; read without the
                           * lock */

  /* Bytes that may go in although the cache is full, times ADMISSION_COST.
   * Changed without the lock, so it is not exact.
   */
  _Atomic size_t credit;
};

/* A record may take at most this share of the budget: a cache that holds only
 * one record has no hits and costs a copy.
 */
#define SHARE_MIN 4

/* Cheap records go in at their first read only while less than this share of
 * the budget is taken: so a small set of hot blocks is here soon, and in the
 * file "warm", and a read of a whole disk copies little.
 */
#define CHEAP_SHARE 4

/* One mark for so many bytes of the budget: as many as there are entries of the
 * smallest blocks, and four times as many as of 16 KiB, so that a block that is
 * read again after four times what the cache holds is still known.
 */
#define BYTES_PER_MARK 4096
#define MARKS_MAX ((size_t) 1 << 22)

/* What goes into a full cache costs a copy and another record's place, while a
 * hit saves little when the page cache has the record as well.  So hits pay, as
 * many of them as this.  Known misses pay a share of a hit: else a new working
 * set would never get in.  So random reads of four times the budget put one
 * record in ten there, not three in four, which took a seventh of the time.
 */
#define ADMISSION_COST 4
#define MISS_SHARE 4

/* The most that hits pay in advance: this share of the budget. */
#define CREDIT_SHARE 2

/* What is not here ends at a count of 0, or, if all entries are of the smallest
 * blocks, one lookup in five at that of another entry.
 */
#define COUNTS_PER_MARK 4

static int
init_marks (struct record_cache *c)
{
  c->nr_marks = 1;
  while (c->nr_marks < c->max / BYTES_PER_MARK && c->nr_marks < MARKS_MAX)
    c->nr_marks *= 2;
  c->marks = calloc (c->nr_marks, sizeof *c->marks);
  c->counts = calloc (c->nr_marks * COUNTS_PER_MARK, sizeof *c->counts);
  return c->marks && c->counts ? 0 : -1;
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
  if (c) {
    free (c->counts);
    free (c->marks);
  }
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

static atomic_uchar *
count_of (const struct record_cache *c, uint64_t addr)
{
  return &c->counts[mix (addr) >> 20 & (c->nr_marks * COUNTS_PER_MARK - 1)];
}

/* Once it is at its limit a count stays: it no longer knows how many. */
static void
count_locked (struct record_cache *c, uint64_t addr, int change)
{
  atomic_uchar *count = count_of (c, addr);

  assert_held (&c->lock);
  assert (*count > 0 || change > 0);
  if (*count < UCHAR_MAX)
    *count = (unsigned char) (*count + change);
}

static bool
may_have (const struct record_cache *c, uint64_t addr)
{
  return atomic_load_explicit (count_of (c, addr), memory_order_relaxed) > 0;
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
  count_locked (c, e->addr, -1);
  TAILQ_INSERT_TAIL (dropped, e, lru);
}

/* Before the new entry is in the list: among a few that were all used it would
 * be the first to go.
 */
static void
make_room_locked (struct record_cache *c, size_t bytes,
                  struct cached_list *dropped)
{
  unsigned chances = 0;
  struct cached *e;

  assert (bytes <= c->max);
  while (c->bytes + bytes > c->max) {
    e = TAILQ_FIRST (&c->lru);
    if (!second_chance (&e->used, &chances)) {
      drop_locked (c, e, dropped);
      continue;
    }
    TAILQ_REMOVE (&c->lru, e, lru);
    TAILQ_INSERT_TAIL (&c->lru, e, lru);
  }
}

static void
insert_locked (struct record_cache *c, struct cached *e)
{
  assert_held (&c->lock);
  c->bytes += size_of (e);
  hashtable_insert (&c->table, &e->link, mix (e->addr));
  count_locked (c, e->addr, 1);
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
  free (c->counts);
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

static void
earn (struct record_cache *c, size_t bytes)
{
  const size_t max = c->max / CREDIT_SHARE, had = c->credit;

  c->credit = had + bytes < max ? had + bytes : max;
}

static bool
spend (struct record_cache *c, size_t bytes)
{
  const size_t had = c->credit;

  if (had < bytes)
    return false;
  c->credit = had - bytes;
  return true;
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
  e->used = true;
  e->refs++;
  return e;
}

bool
record_cache_get (struct record_cache *c, uint64_t addr, uint64_t cksum,
                  void *buf, size_t offset, size_t len)
{
  struct cached *e;

  if (c->max == 0 || !may_have (c, addr))
    return false;
  e = get_ref (c, addr, cksum, offset + len);
  if (e == NULL)
    return false;
  memcpy (buf, e->data + offset, len);
  put_ref (e);
  earn (c, len);
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
  e->used = false;
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
  make_room_locked (c, size_of (e), dropped);
  insert_locked (c, e);
  TAILQ_INSERT_TAIL (&c->lru, e, lru);
}

bool
record_cache_admits (struct record_cache *c, uint64_t addr, size_t len,
                     bool cheap)
{
  const uint64_t hash = mix (addr);
  const unsigned mark = (unsigned) (hash >> 32) | 1; /* 0: no mark */
  atomic_uint *slot = &c->marks[hash & (c->nr_marks - 1)];
  const size_t bytes = c->bytes + size_with (len);
  const bool has_room = bytes <= c->max;

  if (len > c->max / SHARE_MIN)
    return false;
  if (bytes <= (cheap ? c->max / CHEAP_SHARE : c->max))
    return true;
  if (atomic_load_explicit (slot, memory_order_relaxed) == mark) {
    earn (c, len / MISS_SHARE);
    return has_room || spend (c, ADMISSION_COST * len);
  }
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
  insert_locked (c, e);
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

bool
record_cache_lacks_one (const struct record_cache *c, const uint64_t *addrs,
                        unsigned nr)
{
  unsigned i;

  for (i = 0; i < nr; ++i)
    if (!may_have (c, addrs[i]))
      return true;
  return false;
}

/* Under one lock: the processor waits for the entries of all at once, not for
 * one after the other.
 */
uint64_t
record_cache_present (struct record_cache *c, const uint64_t *addrs,
                      unsigned nr)
{
  uint64_t bits = 0;
  unsigned i;

  assert (nr <= 64);
  WITH_LOCK (&c->lock);
  for (i = 0; i < nr; ++i)
    if (may_have (c, addrs[i]) && find_locked (c, addrs[i]))
      bits |= UINT64_C (1) << i;
  return bits;
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

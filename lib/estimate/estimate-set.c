/* SPDX-License-Identifier: BSD-3-Clause */

/* A set consists of shards, each an open-addressing table (linear probing)
 * with its own lock.  Each shard grows on its own, so that growing needs
 * little extra memory at a time and does not stop all threads.  A shard that
 * cannot grow any more increases the depth of the whole set; the other shards
 * follow at the next access.
 */

#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/lock.h"
#include "estimate/estimate-set.h"

#define SHARD_BITS 6
#define NR_SHARDS (1u << SHARD_BITS)
#define SLOTS_MIN 32

/* A table is full at this share, because probing gets long beyond it. */
#define FULL_NUMERATOR 3
#define FULL_DENOMINATOR 4

struct shard {
  struct lock lock; /* protects everything below */
  /* Atomic for set_prefetch, which reads them without the lock: it may use an
   * outdated value, but must not be a data race.
   */
  _Atomic (uint64_t *) slots; /* owned; 0: empty */
  atomic_uint_fast64_t mask;  /* slots - 1, a power of two less one */
  uint64_t nr_used;
  unsigned depth; /* of this shard's hashes; <= the set's */
} __attribute__ ((aligned (64)));

struct content_set {
  struct shard shards[NR_SHARDS];
  struct set_budget *budget;
  atomic_uint_fast64_t own_bytes; /* reserved for this set, unused yet */
  atomic_uint depth;
  bool may_sample;
};

/* Take memory from the set's own reserve first, then from the shared budget.
 */
static bool
take_bytes (struct content_set *set, uint64_t bytes)
{
  struct set_budget *b = set->budget;
  uint_fast64_t own = atomic_load (&set->own_bytes);

  while (own >= bytes)
    if (atomic_compare_exchange_weak (&set->own_bytes, &own, own - bytes))
      return true;
  if (atomic_fetch_add (&b->used_bytes, bytes) + bytes <= b->max_bytes)
    return true;
  atomic_fetch_sub (&b->used_bytes, bytes);
  return false;
}

struct content_set *
set_new (struct set_budget *budget, uint64_t own_bytes, bool may_sample)
{
  struct content_set *set = aligned_alloc (64, sizeof *set);
  uint64_t *slots;
  unsigned i;

  _Static_assert (NR_SHARDS * SLOTS_MIN * sizeof *slots == SET_BYTES_MIN,
                  "SET_BYTES_MIN");
  if (set == NULL)
    return nbdedup_fail_null (ENOMEM, "out of memory");
  set->budget = budget;
  set->may_sample = may_sample;
  atomic_init (&set->depth, 0);
  for (i = 0; i < NR_SHARDS; ++i) {
    struct shard *s = &set->shards[i];

    lock_init (&s->lock);
    slots = calloc (SLOTS_MIN, sizeof *slots);
    atomic_init (&s->slots, slots);
    atomic_init (&s->mask, SLOTS_MIN - 1);
    s->nr_used = 0;
    s->depth = 0;
    if (slots == NULL)
      budget = NULL;
  }
  if (budget == NULL) {
    set_free (set);
    return nbdedup_fail_null (ENOMEM, "out of memory");
  }
  if (own_bytes < SET_BYTES_MIN)
    own_bytes = SET_BYTES_MIN;
  atomic_fetch_add (&budget->used_bytes, own_bytes);
  atomic_init (&set->own_bytes, own_bytes - SET_BYTES_MIN);
  return set;
}

void
set_free (struct content_set *set)
{
  unsigned i;

  if (set == NULL)
    return;
  for (i = 0; i < NR_SHARDS; ++i) {
    free (atomic_load (&set->shards[i].slots));
    lock_destroy (&set->shards[i].lock);
  }
  free (set);
}

static bool
is_in_sample (uint64_t value, unsigned depth)
{
  return depth == 0 || value >> (64 - depth) == 0;
}

/* The value of a slot.  Never 0, which means an empty slot. */
static uint64_t
value_of (const XXH128_hash_t *hash)
{
  return hash->high64 | (hash->high64 == 0);
}

static struct shard *
shard_of (struct content_set *set, const XXH128_hash_t *hash)
{
  return &set->shards[hash->low64 >> (64 - SHARD_BITS)];
}

/* The slot that has 'value', or the empty slot for it.  Probing starts from the
 * low bits, because the high ones are all zero in a sample.
 */
static uint64_t *
find_slot (uint64_t *slots, uint64_t mask, uint64_t value)
{
  uint64_t i = value & mask;

  while (slots[i] != 0 && slots[i] != value)
    i = (i + 1) & mask;
  return &slots[i];
}

/* Empty slot 'hole' and close the gap: move up the values that probing placed
 * behind it.
 */
static void
remove_slot (uint64_t *slots, uint64_t mask, uint64_t hole)
{
  uint64_t i = hole;

  for (;;) {
    i = (i + 1) & mask;
    if (slots[i] == 0)
      break;
    /* A value may move to 'hole' only if that is not before its home slot. */
    if (((i - (slots[i] & mask)) & mask) >= ((i - hole) & mask)) {
      slots[hole] = slots[i];
      hole = i;
    }
  }
  slots[hole] = 0;
}

/* Remove the values that are no longer in the sample.  A value that moves into
 * an emptied slot comes from behind it, or the loop has checked it already.
 */
static void
catch_up_locked (struct content_set *set, struct shard *s)
{
  const unsigned depth = atomic_load (&set->depth);
  const uint64_t mask = atomic_load (&s->mask);
  uint64_t *slots = atomic_load (&s->slots), i;

  assert_held (&s->lock);
  if (s->depth == depth)
    return;
  for (i = 0; i <= mask; ++i)
    while (slots[i] != 0 && !is_in_sample (slots[i], depth)) {
      remove_slot (slots, mask, i);
      s->nr_used--;
    }
  s->depth = depth;
}

static bool
is_full_locked (struct shard *s)
{
  const uint64_t nr_slots = atomic_load (&s->mask) + 1;

  return s->nr_used >= nr_slots / FULL_DENOMINATOR * FULL_NUMERATOR;
}

/* Returns false if there is no memory. */
static bool
grow_locked (struct content_set *set, struct shard *s)
{
  const uint64_t mask = atomic_load (&s->mask), new_mask = mask * 2 + 1;
  const uint64_t more_bytes = (mask + 1) * sizeof (uint64_t);
  uint64_t *slots = atomic_load (&s->slots), *new_slots, i;

  assert_held (&s->lock);
  if (!take_bytes (set, more_bytes))
    return false;
  new_slots = calloc (new_mask + 1, sizeof *new_slots);
  if (new_slots == NULL) {
    atomic_fetch_add (&set->own_bytes, more_bytes);
    return false;
  }
  for (i = 0; i <= mask; ++i)
    if (slots[i] != 0)
      *find_slot (new_slots, new_mask, slots[i]) = slots[i];
  atomic_store (&s->slots, new_slots);
  atomic_store (&s->mask, new_mask);
  free (slots);
  return true;
}

/* Make room for one more value: grow, or else sample.  -1 if neither is
 * possible.
 */
static int
make_room_locked (struct content_set *set, struct shard *s)
{
  unsigned depth;

  while (is_full_locked (s)) {
    if (grow_locked (set, s))
      continue;
    if (!set->may_sample)
      return nbdedup_fail (ENOSPC,
                           "the distinct contents do not fit into "
                           "the %" PRIu64 " bytes of memory allowed for them",
                           set->budget->max_bytes);
    /* This fails if another thread was faster, with the same effect. */
    depth = s->depth;
    assert (depth < 64);
    atomic_compare_exchange_strong (&set->depth, &depth, depth + 1);
    catch_up_locked (set, s);
  }
  return 0;
}

int
set_add (struct content_set *set, const XXH128_hash_t *hash, unsigned *depth)
{
  const uint64_t value = value_of (hash);
  struct shard *s = shard_of (set, hash);
  uint64_t *slot;

  if (!is_in_sample (value, atomic_load (&set->depth)))
    return 0;
  WITH_LOCK (&s->lock);
  catch_up_locked (set, s);
  slot = find_slot (atomic_load (&s->slots), atomic_load (&s->mask), value);
  if (*slot != 0)
    return 0;
  if (is_full_locked (s)) {
    if (make_room_locked (set, s) == -1)
      return -1;
    slot = find_slot (atomic_load (&s->slots), atomic_load (&s->mask), value);
  }
  /* Another thread may have increased the depth. */
  if (!is_in_sample (value, s->depth))
    return 0;
  assert (*slot == 0 && is_in_sample (value, s->depth));
  *slot = value;
  s->nr_used++;
  *depth = s->depth;
  return 1;
}

void
set_prefetch (struct content_set *set, const XXH128_hash_t *hash)
{
  struct shard *s = shard_of (set, hash);
  const uint64_t *slots = atomic_load_explicit (&s->slots,
                                                memory_order_relaxed);
  const uint64_t mask = atomic_load_explicit (&s->mask, memory_order_relaxed);

  __builtin_prefetch (&slots[value_of (hash) & mask], 1);
}

void
set_figures (struct content_set *set, struct set_figures *f)
{
  unsigned i;

  f->kept = 0;
  f->depth = atomic_load (&set->depth);
  for (i = 0; i < NR_SHARDS; ++i) {
    struct shard *s = &set->shards[i];
    WITH_LOCK (&s->lock);

    catch_up_locked (set, s);
    f->kept += s->nr_used;
  }
}

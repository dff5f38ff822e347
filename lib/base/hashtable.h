/* SPDX-License-Identifier: BSD-3-Clause */

/* An intrusive hash table: chains of struct hashtable_link, doubled when the
 * load passes 1.  No locks, no ownership: callers embed the links.
 * Integer keys go through mix.h.
 *
 * Doubling moves the links to the new array a few chains at a time, with the
 * insertions that follow: moving a million at once would take 160 ms under the
 * caller's lock.
 */

#ifndef NBDEDUP_HASHTABLE_H
#define NBDEDUP_HASHTABLE_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

struct hashtable_link {
  struct hashtable_link *next;
  uint64_t hash;
};

struct hashtable {
  struct hashtable_link **buckets; /* owned */
  size_t nr_buckets;               /* a power of two */
  size_t nr_entries;
  /* Half as many, of which the first 'nr_moved' are empty; owned.  NULL: all
   * links are in 'buckets'.
   */
  struct hashtable_link **old;
  size_t nr_moved;
};

/* Chains that an insertion moves.  All have moved when the table has a quarter
 * more entries.
 */
#define HASHTABLE_MOVES 4

/* There are never fewer buckets. */
#define HASHTABLE_BITS 6u
#define HASHTABLE_MIN ((size_t) 1 << HASHTABLE_BITS)

/* clang-format off */
#define hashtable_entry(link, type, member) \
  ((type *) ((char *) (link) - offsetof (type, member)))
/* clang-format on */

/* -1: no memory (errno ENOMEM). */
static inline int
hashtable_init (struct hashtable *t)
{
  t->nr_buckets = HASHTABLE_MIN;
  t->nr_entries = t->nr_moved = 0;
  t->old = NULL;
  t->buckets = calloc (t->nr_buckets, sizeof *t->buckets);
  return t->buckets ? 0 : -1;
}

static inline void
hashtable_destroy (struct hashtable *t)
{
  free (t->buckets);
  free (t->old);
  t->buckets = t->old = NULL;
}

static inline struct hashtable_link **
hashtable_head (const struct hashtable *t, uint64_t hash)
{
  size_t i;

  if (t->old) {
    i = hash & (t->nr_buckets / 2 - 1);
    if (i >= t->nr_moved)
      return &t->old[i];
  }
  return &t->buckets[hash & (t->nr_buckets - 1)];
}

/* The chain where 'hash' would be: walk ->next and compare. */
static inline struct hashtable_link *
hashtable_chain (const struct hashtable *t, uint64_t hash)
{
  return *hashtable_head (t, hash);
}

static inline void
hashtable_grow (struct hashtable *t)
{
  struct hashtable_link **buckets = calloc (t->nr_buckets * 2, sizeof *buckets);

  if (buckets == NULL)
    return; /* the chains only become longer */
  t->old = t->buckets;
  t->buckets = buckets;
  t->nr_buckets *= 2;
  t->nr_moved = 0;
}

static inline void
hashtable_move_some (struct hashtable *t)
{
  struct hashtable_link *l, *next, **b;
  unsigned i;

  for (i = 0; i < HASHTABLE_MOVES; ++i) {
    for (l = t->old[t->nr_moved]; l; l = next) {
      next = l->next;
      b = &t->buckets[l->hash & (t->nr_buckets - 1)];
      l->next = *b;
      *b = l;
    }
    t->old[t->nr_moved++] = NULL;
  }
  if (t->nr_moved == t->nr_buckets / 2) {
    free (t->old);
    t->old = NULL;
  }
}

static inline void
hashtable_insert (struct hashtable *t, struct hashtable_link *l, uint64_t hash)
{
  struct hashtable_link **b;

  if (t->old)
    hashtable_move_some (t);
  else if (t->nr_entries >= t->nr_buckets)
    hashtable_grow (t);
  b = hashtable_head (t, hash);
  l->hash = hash;
  l->next = *b;
  *b = l;
  t->nr_entries++;
}

static inline void
hashtable_remove (struct hashtable *t, struct hashtable_link *l)
{
  struct hashtable_link **p = hashtable_head (t, l->hash);

  while (*p != l)
    p = &(*p)->next;
  *p = l->next;
  t->nr_entries--;
}

static inline void
hashtable_visit_array (struct hashtable_link **buckets, size_t nr, size_t first,
                       size_t step,
                       void (*fn) (void *opaque, struct hashtable_link *l),
                       void *opaque)
{
  struct hashtable_link *l, *next;
  size_t i;

  for (i = first; i < nr; i += step)
    for (l = buckets[i]; l; l = next) {
      next = l->next;
      fn (opaque, l);
    }
}

/* Visit those links whose hash has these lowest bits, at most HASHTABLE_BITS;
 * 'fn' may unlink and free the one it gets.  It must not insert.
 */
static inline void
hashtable_visit_some (struct hashtable *t, uint64_t lowest, unsigned bits,
                      void (*fn) (void *opaque, struct hashtable_link *l),
                      void *opaque)
{
  const size_t step = (size_t) 1 << bits;

  hashtable_visit_array (t->buckets, t->nr_buckets, lowest, step, fn, opaque);
  if (t->old)
    hashtable_visit_array (t->old, t->nr_buckets / 2, lowest, step, fn, opaque);
}

/* The same for all links. */
static inline void
hashtable_visit (struct hashtable *t,
                 void (*fn) (void *opaque, struct hashtable_link *l),
                 void *opaque)
{
  hashtable_visit_some (t, 0, 0, fn, opaque);
}

/* Forget all links, and shrink the array to its initial size. */
static inline void
hashtable_clear (struct hashtable *t)
{
  struct hashtable fresh;

  free (t->old);
  t->old = NULL;
  if (t->nr_buckets > HASHTABLE_MIN && hashtable_init (&fresh) == 0) {
    free (t->buckets);
    *t = fresh;
    return;
  }
  for (size_t i = 0; i < t->nr_buckets; ++i)
    t->buckets[i] = NULL;
  t->nr_entries = 0;
}

#endif /* NBDEDUP_HASHTABLE_H */

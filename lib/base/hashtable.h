/* SPDX-License-Identifier: BSD-3-Clause */

/* An intrusive hash table: chains of struct hashtable_link, doubled when the
 * load passes 1.  No locks, no ownership: callers embed the links.
 * Integer keys go through mix.h.
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
};

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
  t->nr_entries = 0;
  t->buckets = calloc (t->nr_buckets, sizeof *t->buckets);
  return t->buckets ? 0 : -1;
}

static inline void
hashtable_destroy (struct hashtable *t)
{
  free (t->buckets);
  t->buckets = NULL;
}

/* The chain where 'hash' would be: walk ->next and compare. */
static inline struct hashtable_link *
hashtable_chain (const struct hashtable *t, uint64_t hash)
{
  return t->buckets[hash & (t->nr_buckets - 1)];
}

static inline void
hashtable_grow (struct hashtable *t)
{
  size_t n = t->nr_buckets * 2, i;
  struct hashtable_link **buckets = calloc (n, sizeof *buckets), *l, *next;

  if (buckets == NULL)
    return; /* the chains only become longer */
  for (i = 0; i < t->nr_buckets; ++i)
    for (l = t->buckets[i]; l; l = next) {
      next = l->next;
      l->next = buckets[l->hash & (n - 1)];
      buckets[l->hash & (n - 1)] = l;
    }
  free (t->buckets);
  t->buckets = buckets;
  t->nr_buckets = n;
}

static inline void
hashtable_insert (struct hashtable *t, struct hashtable_link *l, uint64_t hash)
{
  struct hashtable_link **b;

  if (t->nr_entries >= t->nr_buckets)
    hashtable_grow (t);
  b = &t->buckets[hash & (t->nr_buckets - 1)];
  l->hash = hash;
  l->next = *b;
  *b = l;
  t->nr_entries++;
}

static inline void
hashtable_remove (struct hashtable *t, struct hashtable_link *l)
{
  struct hashtable_link **p = &t->buckets[l->hash & (t->nr_buckets - 1)];

  while (*p != l)
    p = &(*p)->next;
  *p = l->next;
  t->nr_entries--;
}

/* Visit every link; 'fn' may unlink and free the one it gets. */
static inline void
hashtable_visit (struct hashtable *t,
                 void (*fn) (void *opaque, struct hashtable_link *l),
                 void *opaque)
{
  struct hashtable_link *l, *next;
  size_t i;

  for (i = 0; i < t->nr_buckets; ++i)
    for (l = t->buckets[i]; l; l = next) {
      next = l->next;
      fn (opaque, l);
    }
}

/* The same for those whose hash has these lowest bits, at most HASHTABLE_BITS.
 */
static inline void
hashtable_visit_some (struct hashtable *t, uint64_t lowest, unsigned bits,
                      void (*fn) (void *opaque, struct hashtable_link *l),
                      void *opaque)
{
  struct hashtable_link *l, *next;
  size_t i;

  for (i = lowest; i < t->nr_buckets; i += (size_t) 1 << bits)
    for (l = t->buckets[i]; l; l = next) {
      next = l->next;
      fn (opaque, l);
    }
}

/* Forget all links, and shrink the array to its initial size. */
static inline void
hashtable_clear (struct hashtable *t)
{
  struct hashtable fresh;

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

/* SPDX-License-Identifier: BSD-3-Clause */

/* An intrusive hash table: chains of struct table_link, doubled when the
 * load passes 1.  No locks, no ownership: it links what callers embed.
 */

#ifndef NBDEDUP_TABLE_H
#define NBDEDUP_TABLE_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

struct table_link {
  struct table_link *next;
  uint64_t hash;
};

struct table {
  struct table_link **buckets;  /* owned */
  size_t nr_buckets;            /* a power of two */
  size_t nr_entries;
};

#define table_entry(link, type, member) \
  ((type *) ((char *) (link) - offsetof (type, member)))

/* Spread the bits of an integer key (the finaliser of SplitMix64). */
static inline uint64_t
table_mix (uint64_t x)
{
  x ^= x >> 30;
  x *= UINT64_C (0xbf58476d1ce4e5b9);
  x ^= x >> 27;
  x *= UINT64_C (0x94d049bb133111eb);
  return x ^ x >> 31;
}

/* -1: no memory (errno ENOMEM). */
static inline int
table_init (struct table *t)
{
  t->nr_buckets = 64;
  t->nr_entries = 0;
  t->buckets = calloc (t->nr_buckets, sizeof *t->buckets);
  return t->buckets ? 0 : -1;
}

static inline void
table_destroy (struct table *t)
{
  free (t->buckets);
  t->buckets = NULL;
}

/* The chain where 'hash' would be: walk ->next and compare. */
static inline struct table_link *
table_chain (const struct table *t, uint64_t hash)
{
  return t->buckets[hash & (t->nr_buckets - 1)];
}

static inline void
table_grow (struct table *t)
{
  size_t n = t->nr_buckets * 2, i;
  struct table_link **buckets = calloc (n, sizeof *buckets), *l, *next;

  if (buckets == NULL)
    return;                     /* longer chains, that is all */
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
table_insert (struct table *t, struct table_link *l, uint64_t hash)
{
  struct table_link **b;

  if (t->nr_entries >= t->nr_buckets)
    table_grow (t);
  b = &t->buckets[hash & (t->nr_buckets - 1)];
  l->hash = hash;
  l->next = *b;
  *b = l;
  t->nr_entries++;
}

static inline void
table_remove (struct table *t, struct table_link *l)
{
  struct table_link **p = &t->buckets[l->hash & (t->nr_buckets - 1)];

  while (*p != l)
    p = &(*p)->next;
  *p = l->next;
  t->nr_entries--;
}

/* Visit every link; 'fn' may remove (unlink and free) the one it gets. */
static inline void
table_visit (struct table *t, void (*fn) (void *opaque,
                                          struct table_link *l),
             void *opaque)
{
  struct table_link *l, *next;
  size_t i;

  for (i = 0; i < t->nr_buckets; ++i)
    for (l = t->buckets[i]; l; l = next) {
      next = l->next;
      fn (opaque, l);
    }
}

/* Forget all links, and give a grown array back. */
static inline void
table_clear (struct table *t)
{
  struct table fresh;

  if (t->nr_buckets > 64 && table_init (&fresh) == 0) {
    free (t->buckets);
    *t = fresh;
    return;
  }
  for (size_t i = 0; i < t->nr_buckets; ++i)
    t->buckets[i] = NULL;
  t->nr_entries = 0;
}

#endif /* NBDEDUP_TABLE_H */

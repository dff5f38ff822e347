/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/mix.h"
#include "core/leaf-cache.h"
#include "core/second-chance.h"
#include "format/format.h"

int
leaf_cache_init (struct leaf_cache *c, size_t max_bytes)
{
  c->bytes = 0;
  c->max = max_bytes;
  TAILQ_INIT (&c->lru);
  return hashtable_init (&c->table);
}

void
leaf_cache_destroy (struct leaf_cache *c)
{
  struct cached_leaf *cl;

  if (c->table.buckets == NULL)
    return;
  while ((cl = TAILQ_FIRST (&c->lru)) != NULL) {
    TAILQ_REMOVE (&c->lru, cl, lru);
    free (cl);
  }
  hashtable_destroy (&c->table);
}

static uint64_t
hash_of (uint64_t key, uint64_t leaf)
{
  return mix_two (key, leaf);
}

static struct cached_leaf *
find (struct leaf_cache *c, uint64_t key, uint64_t leaf)
{
  struct hashtable_link *l;
  struct cached_leaf *cl;

  for (l = hashtable_chain (&c->table, hash_of (key, leaf)); l; l = l->next) {
    cl = hashtable_entry (l, struct cached_leaf, link);
    if (cl->key == key && cl->leaf == leaf)
      return cl;
  }
  return NULL;
}

struct cached_leaf *
leaf_cache_find (struct leaf_cache *c, uint64_t key, uint64_t leaf)
{
  struct cached_leaf *cl = find (c, key, leaf);

  if (cl)
    cl->used = true;
  return cl;
}

static size_t
size_with (size_t len)
{
  return sizeof (struct cached_leaf) + 16 + len;
}

static size_t
size_of (const struct cached_leaf *cl)
{
  return size_with (cl->len);
}

void
leaf_cache_drop (struct leaf_cache *c, struct cached_leaf *cl)
{
  assert (c->bytes >= size_of (cl));
  c->bytes -= size_of (cl);
  TAILQ_REMOVE (&c->lru, cl, lru);
  hashtable_remove (&c->table, &cl->link);
  free (cl);
}

/* NULL: no memory; a cache may drop entries. */
static struct cached_leaf *
insert (struct leaf_cache *c, uint64_t key, uint64_t leaf, uint64_t source,
        const uint8_t *buf, size_t len)
{
  struct cached_leaf *cl = malloc (sizeof *cl + len);

  assert (key != 0 && len <= LEAF_LEN_MAX);
  if (cl == NULL)
    return NULL;
  cl->key = key;
  cl->leaf = leaf;
  cl->source = source;
  cl->used = false;
  cl->len = (uint16_t) len;
  memcpy (cl->data, buf, len);
  hashtable_insert (&c->table, &cl->link, hash_of (key, leaf));
  c->bytes += size_of (cl);
  return cl;
}

bool
leaf_cache_put_cold (struct leaf_cache *c, uint64_t key, uint64_t leaf,
                     uint64_t source, const uint8_t *buf, size_t len)
{
  struct cached_leaf *cl;

  if (find (c, key, leaf))
    return true;
  if (c->bytes + size_with (len) > c->max)
    return false;
  cl = insert (c, key, leaf, source, buf, len);
  if (cl)
    TAILQ_INSERT_HEAD (&c->lru, cl, lru);
  return cl != NULL;
}

/* Before the new leaf is in the list: see record-cache.c. */
static void
make_room (struct leaf_cache *c, size_t bytes)
{
  struct cached_leaf *cl;
  unsigned chances = 0;

  while (c->bytes + bytes > c->max) {
    cl = TAILQ_FIRST (&c->lru);
    if (!second_chance (&cl->used, &chances)) {
      leaf_cache_drop (c, cl);
      continue;
    }
    TAILQ_REMOVE (&c->lru, cl, lru);
    TAILQ_INSERT_TAIL (&c->lru, cl, lru);
  }
}

void
leaf_cache_put (struct leaf_cache *c, uint64_t key, uint64_t leaf,
                uint64_t source, const uint8_t *buf, size_t len)
{
  struct cached_leaf *cl = find (c, key, leaf);

  if (cl)
    leaf_cache_drop (c, cl);
  if (size_with (len) > c->max)
    return;
  make_room (c, size_with (len));
  cl = insert (c, key, leaf, source, buf, len);
  if (cl)
    TAILQ_INSERT_TAIL (&c->lru, cl, lru);
}

void
leaf_cache_assert_consistent (const struct leaf_cache *c, bool all)
{
  const struct cached_leaf *cl;
  size_t bytes = 0, nr = 0;

  assert (c->bytes <= c->max);
  assert (TAILQ_EMPTY (&c->lru) == (c->table.nr_entries == 0));
  if (!all)
    return;
  TAILQ_FOREACH (cl, &c->lru, lru) {
    assert (cl->key != 0);
    bytes += size_of (cl);
    nr++;
  }
  assert (bytes == c->bytes);
  assert (nr == c->table.nr_entries);
}

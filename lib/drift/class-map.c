/* SPDX-License-Identifier: BSD-3-Clause */

/* Drift sees the blocks by content, and knows the class of a content's blocks
 * only when it has seen the last of them, which may be millions.  So each item
 * has the number of its content, and the contents' classes stand in a table of
 * their own.
 */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/error.h"
#include "disk/sorter.h"
#include "drift/class-map.h"
#include "drift/view.h"

#define PER_BYTE 4

/* One block of a content, or (IS_RUN) a number of blocks of one class. */
#define IS_RUN (UINT64_C (1) << 63)
#define CLASS_BITS 3

struct item {
  uint64_t who, block;
  uint64_t content; /* << 1, plus 1: CLASS_SAME; or
                                 * IS_RUN | number << CLASS_BITS | class */
};

struct class_map {
  struct sorter *sorter; /* owned */
  uint8_t *classes;      /* owned; 2 bits for each content */
  size_t cap;            /* bytes */
  uint64_t nr_contents;
  bool finished; /* the sorter is being read */
  bool has_item; /* the next one */
  struct item item;
};

static int
compare_items (const void *a, const void *b)
{
  const struct item *x = a, *y = b;

  if (x->who != y->who)
    return x->who < y->who ? -1 : 1;
  return x->block < y->block ? -1 : x->block > y->block;
}

struct class_map *
class_map_new (struct view *v, uint64_t memory_bytes)
{
  struct class_map *m = calloc (1, sizeof *m);

  if (m == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  m->sorter = sorter_new (v->dir, sizeof (struct item), compare_items,
                          memory_bytes);
  if (m->sorter == NULL) {
    class_map_free (m);
    return NULL;
  }
  sorter_set_look (m->sorter, v->look, v->opaque);
  return m;
}

void
class_map_free (struct class_map *m)
{
  if (m == NULL)
    return;
  sorter_free (m->sorter);
  free (m->classes);
  free (m);
}

int
class_map_add (struct class_map *m, uint32_t who, uint64_t block, bool same)
{
  const struct item item = { who, block, m->nr_contents << 1 | same };

  assert (!m->finished);
  return sorter_add (m->sorter, &item);
}

int
class_map_add_run (struct class_map *m, uint32_t who, uint64_t block,
                   uint64_t nr, enum block_class class)
{
  const struct item item = { who, block, IS_RUN | nr << CLASS_BITS | class };

  assert (!m->finished && nr > 0);
  return sorter_add (m->sorter, &item);
}

int
class_map_end_content (struct class_map *m, enum block_class others)
{
  const uint64_t i = m->nr_contents++;

  if (array_reserve (&m->classes, &m->cap, i / PER_BYTE + 1, 1) == -1)
    return -1;
  if (i % PER_BYTE == 0)
    m->classes[i / PER_BYTE] = 0;
  m->classes[i / PER_BYTE] |= others << i % PER_BYTE * 2;
  return 0;
}

static uint64_t
length_of (const struct item *item)
{
  return item->content & IS_RUN ? (item->content & ~IS_RUN) >> CLASS_BITS : 1;
}

static enum block_class
class_of (const struct class_map *m, uint64_t content)
{
  const uint64_t i = content >> 1;

  if (content & IS_RUN)
    return (enum block_class) (content & ((1u << CLASS_BITS) - 1));
  assert (i < m->nr_contents);
  return content & 1 ? CLASS_SAME
                     : m->classes[i / PER_BYTE] >> i % PER_BYTE * 2 & 3;
}

static int
advance (struct class_map *m)
{
  const void *next;
  int r = sorter_next (m->sorter, &next);

  m->has_item = r == 1;
  if (r == 1)
    m->item = *(const struct item *) next;
  return r == -1 ? -1 : 0;
}

/* Go to the first item of a member. */
static int
find_member (struct class_map *m, uint32_t who)
{
  if (!m->finished) {
    m->finished = true;
    if (sorter_finish (m->sorter) == -1 || advance (m) == -1)
      return -1;
  }
  while (m->has_item && m->item.who < who)
    if (advance (m) == -1)
      return -1;
  return m->has_item && m->item.who == who;
}

int
class_map_next (struct class_map *m, uint32_t who, struct class_run *run)
{
  int r = find_member (m, who);

  if (r != 1)
    return r;
  *run = (struct class_run) {
    m->item.block,
    0,
    class_of (m, m->item.content),
  };
  do {
    run->nr += length_of (&m->item);
    if (advance (m) == -1)
      return -1;
  } while (m->has_item && m->item.who == who &&
           m->item.block == run->block + run->nr &&
           class_of (m, m->item.content) == run->class);
  return 1;
}

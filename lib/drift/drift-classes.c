/* SPDX-License-Identifier: BSD-3-Clause */

/* The classes of blocks, by content.
 *
 * This sorts all contents of the clone set by digest: equal ones become
 * neighbours, whichever clone has them, in whichever block and record.  Within
 * one content they are sorted by block, the golden image first.  So at each
 * block it is known whether the golden image has the same content there, and
 * at the end whether it has the content at all, and how many clones do.
 *
 * Full digests are compared.
 */

#include <config.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "disk/sorter.h"
#include "drift/class-map.h"
#include "drift/drift-int.h"

struct content_item {
  struct digest digest;
  uint64_t block;
  uint32_t who, sectors;
};

/* A clone's blocks of the current content. */
struct seen {
  uint64_t same, other;
};

struct classes {
  struct drift_member *members; /* not owned */
  uint32_t nr;
  struct sorter *sorter; /* owned */
  struct class_map *map; /* not owned; NULL: none */
  struct seen *seen;     /* owned; of each member */
  uint32_t *touched;     /* owned; those that have some */
  uint32_t nr_touched;
  bool in_golden, has_block;
  uint64_t golden_block; /* the last one, if has_block */
  uint32_t sectors;      /* of the smallest record with the content */
};

static int
compare_items (const void *a, const void *b)
{
  const struct content_item *x = a, *y = b;
  const int r = digest_compare (&x->digest, &y->digest);

  if (r != 0)
    return r;
  if (x->block != y->block)
    return x->block < y->block ? -1 : 1;
  return x->who < y->who ? -1 : x->who > y->who;
}

struct classes *
classes_new (struct view *v, struct drift_member *members, uint32_t nr,
             uint64_t memory_bytes)
{
  struct classes *c = calloc (1, sizeof *c);

  assert (nr > 0); /* the golden image */
  if (c == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  c->members = members;
  c->nr = nr;
  c->seen = calloc (nr, sizeof *c->seen);
  c->touched = malloc (nr * sizeof *c->touched);
  if (c->seen && c->touched)
    c->sorter = sorter_new (v->dir, sizeof (struct content_item), compare_items,
                            memory_bytes);
  else
    nbdedup_fail (ENOMEM, "no memory");
  if (c->sorter == NULL) {
    classes_free (c);
    return NULL;
  }
  sorter_set_look (c->sorter, v->look, v->opaque);
  return c;
}

void
classes_free (struct classes *c)
{
  if (c == NULL)
    return;
  sorter_free (c->sorter);
  free (c->seen);
  free (c->touched);
  free (c);
}

int
classes_add (struct classes *c, const struct digest *digest, uint32_t sectors,
             uint32_t who, uint64_t block)
{
  struct content_item item;

  assert (who < c->nr);
  memset (&item, 0, sizeof item);
  item.digest = *digest;
  item.block = block;
  item.who = who;
  item.sectors = sectors;
  return sorter_add (c->sorter, &item);
}

void
classes_set_map (struct classes *c, struct class_map *map)
{
  c->map = map;
}

uint64_t
classes_count (const struct classes *c)
{
  return sorter_count (c->sorter);
}

static void
begin_content (struct classes *c, const struct content_item *item,
               struct fleet_contents *fleet)
{
  assert (c->nr_touched == 0); /* end_content came before */
  c->in_golden = c->has_block = false;
  c->sectors = item->sectors;
  fleet->distinct++;
}

static int
take_item (struct classes *c, const struct content_item *item)
{
  struct seen *seen = &c->seen[item->who];
  bool same;

  if (item->sectors < c->sectors)
    c->sectors = item->sectors;
  if (item->who == 0) {
    c->in_golden = c->has_block = true;
    c->golden_block = item->block;
    return 0;
  }
  if (seen->same == 0 && seen->other == 0) {
    assert (c->nr_touched < c->nr);
    c->touched[c->nr_touched++] = item->who;
  }
  same = c->has_block && c->golden_block == item->block;
  if (same)
    seen->same++;
  else
    seen->other++;
  return c->map ? class_map_add (c->map, item->who, item->block, same) : 0;
}

static enum block_class
class_of_others (const struct classes *c)
{
  return c->in_golden   ? CLASS_MOVED
    : c->nr_touched > 1 ? CLASS_SIBLING
                        : CLASS_UNIQUE;
}

static int
end_content (struct classes *c, struct fleet_contents *fleet)
{
  const enum block_class others = class_of_others (c);
  struct drift_member *member;
  struct seen *seen;
  uint32_t i;

  fleet->distinct_sectors += c->sectors;
  for (i = 0; i < c->nr_touched; ++i) {
    member = &c->members[c->touched[i]];
    seen = &c->seen[c->touched[i]];
    member->golden_same += seen->same;
    *(others == CLASS_MOVED       ? &member->golden_moved
        : others == CLASS_SIBLING ? &member->sibling
                                  : &member->unique) += seen->other;
    *seen = (struct seen) { 0, 0 };
  }
  c->nr_touched = 0;
  return c->map ? class_map_end_content (c->map, others) : 0;
}

int
classes_run (struct classes *c, struct fleet_contents *fleet,
             struct drift_progress *progress)
{
  struct digest digest;
  const struct content_item *item;
  const void *next;
  uint64_t n = 0;
  int r;

  if (sorter_finish (c->sorter) == -1)
    return -1;
  while ((r = sorter_next (c->sorter, &next)) == 1) {
    item = next;
    if (n == 0 || memcmp (&digest, &item->digest, sizeof digest) != 0) {
      if (n > 0 && end_content (c, fleet) == -1)
        return -1;
      begin_content (c, item, fleet);
      digest = item->digest;
    }
    if (take_item (c, item) == -1)
      return -1;
    if (++n % 65536 == 0 &&
        drift_progress (progress, progress->done + 65536) == -1)
      return -1;
  }
  if (n > 0 && end_content (c, fleet) == -1)
    return -1;
  return r;
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* The best next golden image: the candidate that leaves the clones the fewest
 * blocks of their own.
 *
 * Candidates are the clones (a snapshot of one is made first), snapshots of
 * clones, and all snapshots that are newer than the golden image.  A clone that
 * is rebased onto a candidate needs no pointer of its own for a block that both
 * have in the same record (rebase.c); so of each candidate the matches are
 * counted: pairs of a clone and a block.
 *
 * One pass over the blocks, ascending, suffices.  All candidates are sorted
 * together: each block that one of them does not inherit from the golden image
 * is an item, and so is each block of the golden image.  At one block, those
 * with the same address match each other, and those that inherit match each
 * other and the golden image.  What matches where everyone inherits is known
 * from two running sums.
 */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "disk/sorter.h"
#include "drift/advise-int.h"
#include "volume/volume.h"

/* The newest ones. */
#define SNAPSHOTS_MAX 256

struct base_item {
  uint64_t block;
  uint64_t addr; /* 0: a hole, or lost */
  uint64_t who;  /* 0: the golden image; else candidate + 1 */
};

struct candidate {
  struct view_name *name; /* not owned */
  bool is_clone;
  bool inherits;  /* stands on the golden image */
  bool of_clone;  /* is one, or a snapshot of one */
  uint64_t limit; /* it inherits blocks below this one */
  uint64_t own;   /* pointers that it does not inherit */

  uint64_t matches;
  /* Where it does not inherit and the golden image has data: the clones with
   * the golden image's, summed up, and the blocks.
   */
  uint64_t others_same, diverged;
  /* The running sums at 'limit'. */
  bool is_settled;
  uint64_t sum_same, sum_golden;
};

struct bases {
  struct view *v;                    /* not owned */
  const struct drift_blocks *blocks; /* not owned */
  struct sorter *sorter;             /* owned */
  struct candidate *p; /* owned; the clones first, in their order */
  size_t nr;
  struct candidate **by_limit; /* owned; those that inherit, ascending */
  size_t nr_by_limit;
  uint64_t own_blocks, logical; /* of all clones */

  struct record_join *join; /* not owned */
  struct base_item *group;  /* owned; those of the present block */
  size_t nr_group, cap;
  size_t nr_settled;   /* of by_limit */
  uint64_t nr_inherit; /* clones whose limit is not reached */
  uint64_t sum_same;   /* over the golden image's blocks: clones with
                                 * the same there */
  uint64_t sum_golden; /* those blocks */

  const struct candidate *best[WHO_PROMOTE + 1];
  uint64_t best_own[WHO_PROMOTE + 1];
  struct view_name **rebases[WHO_PROMOTE + 1]; /* owned */
  size_t nr_rebases[WHO_PROMOTE + 1];
  const struct view_name *destroys[WHO_PROMOTE + 1]; /* NULL: nothing */
};

static int
compare_items (const void *a, const void *b)
{
  const struct base_item *x = a, *y = b;

  if (x->block != y->block)
    return x->block < y->block ? -1 : 1;
  if (x->addr != y->addr)
    return x->addr < y->addr ? -1 : 1;
  return x->who < y->who ? -1 : x->who > y->who;
}

void
bases_free (struct bases *b)
{
  unsigned who;

  if (b == NULL)
    return;
  for (who = 0; who <= WHO_PROMOTE; ++who)
    free (b->rebases[who]);
  sorter_free (b->sorter);
  free (b->p);
  free (b->by_limit);
  free (b->group);
  free (b);
}

/*----------------------------------------------------------------------
 * Candidates
 */

/* Does the layer stand on the golden image's?  Then up to which block does it
 * show through?
 */
static bool
stands_on_golden (const struct bases *b, const struct view_layer *l,
                  uint64_t *limit)
{
  const struct view_layer *golden = b->blocks->golden.layer;
  size_t steps = 0;

  *limit = UINT64_MAX;
  for (; l && l != golden && steps <= b->v->nr_layers; l = l->parent, ++steps)
    if (l->overlap < *limit)
      *limit = l->overlap;
  return l == golden;
}

static int
add_candidate (struct bases *b, struct view_name *name, bool is_clone,
               bool of_clone)
{
  struct candidate *c = array_add (&b->p, &b->nr, sizeof *c);

  if (c == NULL)
    return -1;
  c->name = name;
  c->is_clone = is_clone;
  c->of_clone = of_clone;
  c->inherits = stands_on_golden (b, name->layer, &c->limit);
  return 0;
}

static bool
is_newer_snapshot (const struct bases *b, const struct view_name *name)
{
  const struct view_name *golden = &b->blocks->golden;

  return name->is_snapshot && name->layer && name->id != golden->id &&
    name->layer != golden->layer && name->time >= golden->time &&
    name->layer->block_size == golden->layer->block_size;
}

/* Is it of one of the clones, which are sorted by name? */
static bool
is_of_clone (const struct bases *b, const struct view_name *snapshot)
{
  uint32_t i;

  for (i = 0; i < b->blocks->nr; ++i)
    if (b->blocks->clones[i]->id == snapshot->volume_id)
      return true;
  return false;
}

static int
compare_newest (const void *a, const void *b)
{
  const struct view_name *x = *(struct view_name *const *) a;
  const struct view_name *y = *(struct view_name *const *) b;

  if (x->time != y->time)
    return x->time > y->time ? -1 : 1;
  return x->id > y->id ? -1 : x->id < y->id;
}

static int
find_snapshots (struct bases *b)
{
  struct view_name **list = malloc ((b->v->nr_names + 1) * sizeof *list);
  size_t nr = 0, i;
  int r = 0;

  if (list == NULL)
    return nbdedup_fail (ENOMEM, "no memory");
  for (i = 0; i < b->v->nr_names; ++i)
    if (is_newer_snapshot (b, &b->v->names[i]))
      list[nr++] = &b->v->names[i];
  if (nr > 0)
    qsort (list, nr, sizeof *list, compare_newest);
  for (i = 0; i < nr && i < SNAPSHOTS_MAX && r == 0; ++i)
    r = add_candidate (b, list[i], false, is_of_clone (b, list[i]));
  free (list);
  return r;
}

static int
compare_limits (const void *a, const void *b)
{
  const struct candidate *x = *(struct candidate *const *) a;
  const struct candidate *y = *(struct candidate *const *) b;

  return x->limit < y->limit ? -1 : x->limit > y->limit;
}

static int
find_candidates (struct bases *b)
{
  size_t i;

  for (i = 0; i < b->blocks->nr; ++i) {
    if (add_candidate (b, b->blocks->clones[i], true, true) == -1)
      return -1;
    b->logical += b->p[i].name->layer->blocks;
  }
  if (find_snapshots (b) == -1)
    return -1;
  b->by_limit = malloc ((b->nr + 1) * sizeof *b->by_limit);
  if (b->by_limit == NULL)
    return nbdedup_fail (ENOMEM, "no memory");
  for (i = 0; i < b->nr; ++i)
    if (b->p[i].inherits) {
      b->by_limit[b->nr_by_limit++] = &b->p[i];
      b->nr_inherit += b->p[i].is_clone;
    }
  if (b->nr_by_limit > 0)
    qsort (b->by_limit, b->nr_by_limit, sizeof *b->by_limit, compare_limits);
  return 0;
}

struct bases *
bases_new (struct view *v, const struct drift_blocks *blocks,
           uint64_t memory_bytes)
{
  struct bases *b = calloc (1, sizeof *b);

  if (b == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  b->v = v;
  b->blocks = blocks;
  b->sorter = sorter_new (v->dir, sizeof (struct base_item), compare_items,
                          memory_bytes);
  if (b->sorter && find_candidates (b) == 0) {
    sorter_set_look (b->sorter, v->look, v->opaque);
    return b;
  }
  bases_free (b);
  return NULL;
}

/*----------------------------------------------------------------------
 * The blocks of all
 */

static int
add_leaf (struct bases *b, uint64_t who, uint64_t leaf_nr,
          const struct leaf *leaf, uint32_t block_size)
{
  struct base_item item = { .who = who };
  struct pointer ptr;
  unsigned i;

  for (i = 0; i < LEAF_BLOCKS; ++i) {
    if (leaf->state[i] == MAP_INHERIT ||
        (who == 0 && leaf->state[i] != MAP_POINTER))
      continue;
    item.block = leaf_nr * LEAF_BLOCKS + i;
    item.addr = 0;
    if (leaf->state[i] == MAP_POINTER) {
      if (pointer_unpack (leaf->ptr[i], block_size, &ptr) == -1)
        return -1;
      item.addr = ptr.addr;
      if (who > 0)
        b->p[who - 1].own++;
    }
    if (sorter_add (b->sorter, &item) == -1)
      return -1;
  }
  return 0;
}

/* All that 'top' shows above 'bottom'. */
static int
add_blocks (struct bases *b, uint64_t who, struct view_layer *top,
            const struct view_layer *bottom)
{
  struct walk *w = walk_new (b->v, top, bottom);
  uint64_t leaf_nr, said;
  struct leaf leaf;
  int r;

  if (w == NULL)
    return -1;
  while ((r = walk_next (w, &leaf_nr, &leaf, &said)) == 1)
    if (add_leaf (b, who, leaf_nr, &leaf, top->block_size) == -1) {
      r = -1;
      break;
    }
  walk_free (w);
  return r;
}

static int
add_all_blocks (struct bases *b, struct drift_progress *progress)
{
  struct view_layer *golden = b->blocks->golden.layer;
  struct candidate *c;
  size_t i;

  if (add_blocks (b, 0, golden, NULL) == -1)
    return -1;
  for (i = 0; i < b->nr; ++i) {
    c = &b->p[i];
    if (add_blocks (b, i + 1, c->name->layer, c->inherits ? golden : NULL) ==
          -1 ||
        drift_progress (progress, progress->done) == -1)
      return -1;
    if (c->is_clone)
      b->own_blocks += c->own;
  }
  return 0;
}

/*----------------------------------------------------------------------
 * Matches
 */

/* Those whose limit is at or before this block inherit no more. */
static void
settle (struct bases *b, uint64_t block)
{
  struct candidate *c;

  for (; b->nr_settled < b->nr_by_limit; ++b->nr_settled) {
    c = b->by_limit[b->nr_settled];
    if (c->limit > block)
      return;
    c->is_settled = true;
    c->sum_same = b->sum_same;
    c->sum_golden = b->sum_golden;
    assert (!c->is_clone || b->nr_inherit > 0);
    b->nr_inherit -= c->is_clone;
  }
}

static struct candidate *
candidate_of (const struct bases *b, const struct base_item *item)
{
  return item->who > 0 ? &b->p[item->who - 1] : NULL;
}

/* Clones that inherit the block, of those that could. */
static uint64_t
count_inheriting (const struct bases *b)
{
  uint64_t nr = b->nr_inherit;
  const struct candidate *c;
  size_t i;

  for (i = 0; i < b->nr_group; ++i) {
    c = candidate_of (b, &b->group[i]);
    nr -= c && c->is_clone && c->inherits && !c->is_settled;
  }
  return nr;
}

/* Items from 'begin' to 'end' have one address.  Returns the clones that have
 * it.
 */
static uint64_t
match_items (struct bases *b, size_t begin, size_t end, uint64_t inheriting)
{
  /* The golden image's item is the first of its address. */
  uint64_t nr = b->group[begin].who == 0 ? inheriting : 0;
  struct candidate *c;
  size_t i;

  for (i = begin; i < end; ++i) {
    c = candidate_of (b, &b->group[i]);
    nr += c && c->is_clone;
  }
  for (i = begin; i < end; ++i) {
    c = candidate_of (b, &b->group[i]);
    if (c)
      c->matches += nr - c->is_clone;
  }
  return nr;
}

/* The golden image has the block, and so many clones the same there. */
static void
count_golden (struct bases *b, uint64_t same)
{
  struct candidate *c;
  size_t i;

  for (i = 0; i < b->nr_group; ++i) {
    c = candidate_of (b, &b->group[i]);
    if (c && c->inherits && !c->is_settled) {
      c->others_same += same;
      c->diverged++;
    }
  }
  b->sum_same += same;
  b->sum_golden++;
}

/* Tell the join which clones show which records at this block. */
static int
show_items (struct bases *b, uint64_t inheriting)
{
  const struct base_item *item;
  uint32_t who;
  size_t i;

  for (i = 0; i < b->nr_group; ++i) {
    item = &b->group[i];
    if (item->addr == 0 || (item->who > 0 && !candidate_of (b, item)->is_clone))
      continue;
    who = item->who > 0 ? WHO_CLONES + (uint32_t) item->who - 1
      : inheriting > 0  ? WHO_INHERITED
                        : WHO_GOLDEN;
    if (record_join_add_content (b->join, item->addr, who, 0, false) == -1)
      return -1;
  }
  return 0;
}

static int
end_group (struct bases *b)
{
  uint64_t inheriting, nr;
  size_t i, j;

  if (b->nr_group == 0)
    return 0;
  settle (b, b->group[0].block);
  inheriting = count_inheriting (b);
  for (i = 0; i < b->nr_group; i = j) {
    for (j = i + 1; j < b->nr_group && b->group[j].addr == b->group[i].addr;
         ++j)
      ;
    if (b->group[i].addr == 0)
      continue;
    nr = match_items (b, i, j, inheriting);
    if (b->group[i].who == 0)
      count_golden (b, nr);
  }
  return show_items (b, inheriting);
}

static int
take_item (struct bases *b, const struct base_item *item)
{
  if (b->nr_group > 0 && b->group[0].block != item->block) {
    if (end_group (b) == -1)
      return -1;
    b->nr_group = 0;
  }
  if (array_reserve (&b->group, &b->cap, b->nr_group + 1, sizeof *b->group) ==
      -1)
    return -1;
  b->group[b->nr_group++] = *item;
  return 0;
}

static int
match_all (struct bases *b, struct drift_progress *progress)
{
  const void *item;
  uint64_t n = 0;
  int r;

  if (sorter_finish (b->sorter) == -1)
    return -1;
  while ((r = sorter_next (b->sorter, &item)) == 1)
    if (take_item (b, item) == -1 ||
        (++n % 65536 == 0 && drift_progress (progress, progress->done) == -1))
      return -1;
  if (r == -1 || end_group (b) == -1)
    return -1;
  settle (b, UINT64_MAX);
  return 0;
}

/*----------------------------------------------------------------------
 * The best
 */

/* Count the pairs of a clone and a block of its own, if this were the golden
 * image.
 */
static int
own_blocks_on (const struct bases *b, const struct candidate *c, uint64_t *own)
{
  uint64_t logical = b->logical, matches = c->matches;

  if (c->is_clone)
    logical -= c->name->layer->blocks;
  if (c->inherits)
    matches += c->sum_same - c->others_same -
      (c->is_clone ? c->sum_golden - c->diverged : 0);
  if (matches > logical)
    return nbdedup_fail (EIO,
                         "pool.db: the clones have more blocks than their "
                         "layers count: run nbdedup check");
  *own = logical - matches;
  return 0;
}

static int
find_best (struct bases *b)
{
  const struct candidate *c;
  uint64_t own = 0;
  unsigned who;
  size_t i;

  for (i = 0; i < b->nr; ++i) {
    c = &b->p[i];
    /* A single clone needs no golden image but itself. */
    if (c->is_clone && b->blocks->nr == 1)
      continue;
    who = c->of_clone ? WHO_PROMOTE : WHO_REBASE;
    if (own_blocks_on (b, c, &own) == -1)
      return -1;
    if (b->best[who] == NULL || own < b->best_own[who]) {
      b->best[who] = c;
      b->best_own[who] = own;
    }
  }
  return 0;
}

/* Rebase every clone that does not stand on it: not the candidate's own
 * volume, which cannot.
 */
static int
list_rebases (struct bases *b, unsigned who)
{
  const struct view_name *target = b->best[who]->name;
  struct view_name *clone;
  uint32_t i;

  for (i = 0; i < b->blocks->nr; ++i) {
    clone = b->blocks->clones[i];
    if (clone->id != (target->is_snapshot ? target->volume_id : target->id) &&
        array_push (&b->rebases[who], &b->nr_rebases[who], clone) == -1)
      return -1;
  }
  return 0;
}

static struct view_name *
find_id (struct view *v, uint64_t id)
{
  size_t i;

  for (i = 0; i < v->nr_names; ++i)
    if (v->names[i].id == id)
      return &v->names[i];
  return NULL;
}

/* Nothing is in the volume but this snapshot of it: no other, and no write
 * since.
 */
static bool
has_only (const struct view_name *volume, const struct view_name *snapshot)
{
  return volume->nr_snapshots == 1 && !volume->origin &&
    volume->layer->parent == snapshot->layer && volume->layer->pointers == 0;
}

/* The golden image is of no use then, nor its volume, if that has nothing
 * else.
 */
static struct view_name *
find_obsolete (const struct bases *b)
{
  struct view_name *golden = find_id (b->v, b->blocks->golden.id), *volume;

  if (golden == NULL || golden->layer == NULL)
    return NULL;
  volume = find_id (b->v, golden->volume_id);
  return volume && has_only (volume, golden) ? volume : golden;
}

struct drop_adder {
  struct record_join *join;
  uint32_t who;
};

static int
add_drop (void *opaque, uint64_t addr)
{
  struct drop_adder *a = opaque;

  return record_join_add_content (a->join, addr, a->who, 0, false);
}

/* Rebased clones give up the layers that no snapshot of theirs needs, as if
 * they were destroyed.  Their new ones refer to what they show (rebase.c).
 */
static int
add_drops (struct bases *b, unsigned who)
{
  struct drop_adder a = { b->join, who };
  struct view_name *obsolete, **names = NULL;
  size_t nr = 0, i;
  int r;

  if (list_rebases (b, who) == -1)
    return -1;
  obsolete = find_obsolete (b);
  b->destroys[who] = obsolete;
  for (i = 0, r = 0; i < b->nr_rebases[who] && r == 0; ++i)
    r = array_push (&names, &nr, b->rebases[who][i]);
  if (r == 0 && obsolete)
    r = array_push (&names, &nr, obsolete);
  if (r == 0 && obsolete && !obsolete->is_snapshot)
    r = array_push (&names, &nr, &b->v->names[obsolete->first_snapshot]);
  if (r == 0)
    r = reclaim_without (b->v, names, nr, NULL, add_drop, &a);
  free (names);
  return r;
}

int
bases_run (struct bases *b, struct record_join *join,
           struct drift_progress *progress)
{
  struct drop_adder background = { join, WHO_BACKGROUND };
  unsigned who;

  b->join = join;
  if (add_all_blocks (b, progress) == -1 || match_all (b, progress) == -1 ||
      reclaim_background (b->v, add_drop, &background) == -1 ||
      find_best (b) == -1)
    return -1;
  for (who = WHO_REBASE; who <= WHO_PROMOTE; ++who)
    if (b->best[who] && add_drops (b, who) == -1)
      return -1;
  return 0;
}

uint64_t
bases_own_blocks (const struct bases *b)
{
  return b->own_blocks;
}

/* The target, or a name for a snapshot of it that no snapshot has. */
static void
name_snapshot (const struct bases *b, const struct view_name *target,
               char name[VOLUME_LABEL_MAX])
{
  unsigned n = 1;
  size_t i;

  snprintf (name, VOLUME_LABEL_MAX, "%s%s", target->name,
            target->is_snapshot ? "" : "@golden");
  for (i = 0; i < b->v->nr_names && !target->is_snapshot; ++i)
    if (strcmp (b->v->names[i].name, name) == 0) {
      snprintf (name, VOLUME_LABEL_MAX, "%s@golden%u", target->name, ++n);
      i = SIZE_MAX; /* compare it with all */
    }
}

json_t *
bases_json (const struct bases *b, unsigned who, uint64_t freed_bytes)
{
  const struct candidate *c = b->best[who];
  char snapshot[VOLUME_LABEL_MAX];
  json_t *rebases, *destroys;
  size_t i;

  if (c == NULL)
    return json_null ();
  rebases = json_array ();
  destroys = json_array ();
  for (i = 0; i < b->nr_rebases[who]; ++i)
    json_array_append_new (rebases, json_string (b->rebases[who][i]->name));
  if (b->destroys[who])
    json_array_append_new (destroys, json_string (b->destroys[who]->name));
  name_snapshot (b, c->name, snapshot);
  return json_pack ("{s:s, s:b, s:s, s:I, s:o, s:o, s:I}", "target",
                    c->name->name, "is_snapshot", c->name->is_snapshot,
                    "snapshot", snapshot, "own_blocks",
                    (json_int_t) b->best_own[who], "rebases", rebases,
                    "destroys", destroys, "freed_bytes",
                    (json_int_t) freed_bytes);
}

/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/error.h"
#include "core/engine.h"
#include "core/txg.h"
#include "data/read.h"
#include "data/sync.h"
#include "drift/drift-int.h"
#include "drift/frozen.h"
#include "drift/golden.h"

/* Leaves in memory, of the name that was read last: the metadata of a file
 * system is in many places.
 */
#define LEAVES 256

struct frozen_leaf {
  bool is_set;
  uint64_t leaf_nr;
  struct leaf leaf;
};

/* A layer of the name that is read, and its blocks that show through. */
struct stack_layer {
  uint64_t branch, seq, limit;
};

struct frozen {
  struct nbdedup_pool *pool; /* not owned */
  uint64_t ticket;           /* of space_keep_begin */
  uint64_t memory_bytes;
  uint64_t now;
  struct view view;
  struct drift_progress progress;
  struct view_name **goldens; /* owned */
  size_t nr_goldens, next;

  struct drift_blocks blocks;      /* of the last document */
  struct advise *advise;           /* owned; about it; NULL: none yet */
  struct hasher *hasher;           /* owned; for it; NULL: the same */
  const struct view_name *reading; /* what was read last */
  struct stack_layer *stack;       /* owned; its layers, from the top */
  size_t nr_stack;
  struct frozen_leaf *leaves; /* owned; LEAVES of them */
};

static int
find_goldens (struct frozen *f, const char *name)
{
  struct view_name *golden;

  if (name == NULL) {
    f->goldens = goldens_find (&f->view, &f->nr_goldens);
    return f->goldens ? 0 : -1;
  }
  golden = golden_find (&f->view, name);
  return golden ? array_push (&f->goldens, &f->nr_goldens, golden) : -1;
}

/* The space is kept from before the view's moment on. */
static int
open_view (struct frozen *f)
{
  if (pool_sync_for_view (f->pool) == -1)
    return -1;
  WITH_LOCK (&f->pool->admin);
  f->ticket = space_keep_begin (f->pool->space);
  if (view_open (f->pool, &f->view) == 0)
    return 0;
  space_keep_end (f->pool->space, f->ticket);
  return -1;
}

struct frozen *
frozen_open (struct nbdedup_pool *pool, const char *name, uint64_t memory_bytes,
             nbdedup_progress_fn *progress, void *opaque)
{
  struct frozen *f;

  if (drift_memory (pool, &memory_bytes) == -1)
    return NULL;
  f = calloc (1, sizeof *f);
  if (f == NULL || (f->leaves = calloc (LEAVES, sizeof *f->leaves)) == NULL) {
    free (f);
    return nbdedup_fail_null (ENOMEM, "no memory");
  }
  f->pool = pool;
  f->memory_bytes = memory_bytes;
  if (open_view (f) == -1) {
    free (f->leaves);
    free (f);
    return NULL;
  }
  f->now = clock_wall_s ();
  f->progress = (struct drift_progress) { .fn = progress, .opaque = opaque };
  drift_watch (&f->view, &f->progress);
  reclaim_begin (&f->view);
  if (find_goldens (f, name) == 0)
    return f;
  frozen_close (f);
  return NULL;
}

void
frozen_close (struct frozen *f)
{
  const int err = errno;

  if (f == NULL)
    return;
  advise_free (f->advise);
  hasher_free (f->hasher);
  drift_blocks_free (&f->blocks);
  view_close (&f->view);
  /* If the fold fails, a later one frees the space. */
  if (space_keep_end (f->pool->space, f->ticket))
    (void) txg_run (f->pool->txg, NULL, NULL, NULL);
  free (f->goldens);
  free (f->stack);
  free (f->leaves);
  free (f);
  errno = err;
}

int
frozen_check (struct frozen *f)
{
  return view_check (&f->view) == -1 ||
      space_kept (f->pool->space, f->ticket) == -1
    ? -1
    : 0;
}

json_t *
frozen_next (struct frozen *f, nbdedup_progress_fn *progress, void *opaque)
{
  json_t *document;

  advise_free (f->advise);
  f->advise = NULL;
  drift_blocks_free (&f->blocks);
  f->reading = NULL;
  assert (f->next <= f->nr_goldens);
  if (f->next == f->nr_goldens)
    return json_object ();
  f->progress.fn = progress;
  f->progress.opaque = opaque;
  f->progress.done = f->progress.total = 0;
  if (drift_lock (f->pool, &f->progress) == -1)
    return NULL;
  document = drift_measure (&f->view, f->goldens[f->next], f->memory_bytes,
                            f->now, &f->progress, &f->blocks);
  drift_unlock (f->pool);
  f->progress.fn = NULL;
  if (document == NULL)
    return NULL;
  f->next++;
  return document;
}

static const struct view_name *
find_name (const struct frozen *f, uint64_t clone)
{
  if (clone == NBDEDUP_FROZEN_GOLDEN && f->blocks.map != NULL)
    return &f->blocks.golden;
  return clone < f->blocks.nr ? f->blocks.clones[clone] : NULL;
}

static const struct view_name *
need_name (const struct frozen *f, uint64_t clone)
{
  const struct view_name *name = find_name (f, clone);

  if (name != NULL)
    return name;
  if (clone == NBDEDUP_FROZEN_GOLDEN)
    return nbdedup_fail_null (EINVAL, "there is no golden image");
  return nbdedup_fail_null (EINVAL, "there is no clone number %" PRIu64, clone);
}

int
frozen_classes (struct frozen *f, uint64_t clone, struct class_run *run)
{
  const uint32_t who = clone == NBDEDUP_FROZEN_GOLDEN ? 0
                                                      : (uint32_t) clone + 1;

  return need_name (f, clone) == NULL
    ? -1
    : class_map_next (f->blocks.map, who, run);
}

uint64_t
frozen_size (const struct frozen *f, uint64_t clone)
{
  const struct view_name *name = find_name (f, clone);

  return name ? name->size : 0;
}

/*----------------------------------------------------------------------
 * Content
 */

/* View layers have no struct layer, so resolve.h cannot be used here. */
static int
begin_name (struct frozen *f, const struct view_name *name)
{
  uint64_t limit = UINT64_MAX;
  const struct view_layer *l;
  size_t nr = 0, i;

  f->reading = NULL;
  for (i = 0; i < LEAVES; ++i)
    f->leaves[i].is_set = false;
  for (l = name->layer; l; l = l->parent)
    nr++; /* drift_measure has found no loop */
  free (f->stack);
  f->nr_stack = 0;
  f->stack = malloc (nr * sizeof *f->stack);
  if (f->stack == NULL)
    return nbdedup_fail (ENOMEM, "no memory");
  for (l = name->layer; l; l = l->parent) {
    f->stack[f->nr_stack++] = (struct stack_layer) { l->branch, l->seq, limit };
    if (l->overlap < limit)
      limit = l->overlap;
  }
  assert (f->nr_stack == nr && nr > 0);
  f->reading = name;
  return 0;
}

/* A run of layers with the same branch: its rows come from the top down. */
struct resolving {
  const struct stack_layer *layer, *end;
  uint64_t first; /* the leaf's first block */
  struct leaf *out;
};

static int
take_row (void *opaque, uint64_t seq, const uint8_t *buf, size_t len)
{
  struct resolving *r = opaque;
  struct leaf row;
  unsigned i;

  while (r->layer < r->end && r->layer->seq > seq)
    r->layer++;
  if (r->layer == r->end || r->layer->seq != seq)
    return nbdedup_fail (EIO,
                         "pool.db: a map row names layer %" PRIu64 ", "
                         "which is not in the lineage of the volume: run "
                         "nbdedup check",
                         seq);
  if (leaf_unpack (buf, len, &row) == -1)
    return -1;
  for (i = 0; i < LEAF_BLOCKS && r->first + i < r->layer->limit; ++i) {
    if (r->out->state[i] != MAP_INHERIT || row.state[i] == MAP_INHERIT)
      continue;
    r->out->state[i] = row.state[i];
    memcpy (r->out->ptr[i], row.ptr[i], POINTER_LEN);
  }
  return 0;
}

static int
resolve (struct frozen *f, uint64_t leaf_nr, struct leaf *out)
{
  size_t i, j;

  memset (out->state, MAP_INHERIT, sizeof out->state);
  for (i = 0; i < f->nr_stack; i = j) {
    struct resolving r = {
      .layer = &f->stack[i],
      .first = leaf_nr * LEAF_BLOCKS,
      .out = out,
    };

    for (j = i + 1; j < f->nr_stack && f->stack[j].branch == f->stack[i].branch;
         ++j)
      assert (f->stack[j].limit <= f->stack[j - 1].limit);
    r.end = f->stack + j;
    if (meta_leaf_resolve (f->view.c, f->stack[i].branch, leaf_nr,
                           f->stack[j - 1].seq, f->stack[i].seq, take_row,
                           &r) == -1)
      return -1;
  }
  return 0;
}

static const struct leaf *
get_leaf (struct frozen *f, uint64_t leaf_nr)
{
  struct frozen_leaf *cached = &f->leaves[leaf_nr % LEAVES];

  if (cached->is_set && cached->leaf_nr == leaf_nr)
    return &cached->leaf;
  cached->is_set = false;
  if (resolve (f, leaf_nr, &cached->leaf) == -1)
    return NULL;
  cached->is_set = true;
  cached->leaf_nr = leaf_nr;
  return &cached->leaf;
}

static int
read_pointer (struct frozen *f, const struct pointer *ptr, uint32_t lsize,
              void *buf, size_t offset, size_t len)
{
  unsigned ticket = quiesce_enter (&f->pool->quiesce);
  int r = space_kept (f->pool->space, f->ticket);

  if (r == 0)
    r = read_record_once (f->pool, ptr, lsize, buf, offset, len);
  quiesce_leave (&f->pool->quiesce, ticket);
  return r;
}

static int
read_record_of (struct frozen *f, const uint8_t *packed, uint32_t block_size,
                void *buf, size_t offset, size_t len)
{
  struct pointer ptr;

  return pointer_unpack (packed, block_size, &ptr) == -1
    ? -1
    : read_pointer (f, &ptr, block_size, buf, offset, len);
}

static int
read_in_block (struct frozen *f, uint64_t block, uint32_t block_size,
               uint8_t *buf, size_t offset, size_t len)
{
  const struct leaf *leaf = get_leaf (f, block / LEAF_BLOCKS);
  const unsigned i = block % LEAF_BLOCKS;

  assert (offset <= block_size && len <= block_size - offset);
  if (leaf == NULL)
    return -1;
  switch (leaf->state[i]) {
  case MAP_POINTER:
    return read_record_of (f, leaf->ptr[i], block_size, buf, offset, len);
  case MAP_LOST:
    return read_lost (block);
  default:
    memset (buf, 0, len);
    return 0;
  }
}

int
frozen_read (struct frozen *f, uint64_t clone, void *buf, uint32_t len,
             uint64_t offset)
{
  const struct view_name *name = need_name (f, clone);
  uint32_t block_size, part;
  uint8_t *p = buf;

  if (name == NULL || view_check (&f->view) == -1)
    return -1;
  block_size = name->layer->block_size;
  if (offset > name->size || len > name->size - offset)
    return nbdedup_fail (EINVAL, "%s: read past the end", name->name);
  if (name != f->reading && begin_name (f, name) == -1)
    return -1;
  for (; len > 0; len -= part, offset += part, p += part) {
    part = block_size - offset % block_size;
    if (part > len)
      part = len;
    if (read_in_block (f, offset / block_size, block_size, p,
                       offset % block_size, part) == -1)
      return -1;
  }
  return 0;
}

/*----------------------------------------------------------------------
 * Advice
 */

static int
read_record_for_advice (void *opaque, const struct pointer *ptr, uint32_t lsize,
                        void *buf)
{
  return read_pointer (opaque, ptr, lsize, buf, 0, lsize);
}

static int
read_clone_for_advice (void *opaque, uint64_t clone, void *buf, uint32_t len,
                       uint64_t offset)
{
  return frozen_read (opaque, clone, buf, len, offset);
}

static int
begin_advice (struct frozen *f)
{
  struct advise_source source = {
    read_record_for_advice,
    read_clone_for_advice,
    f,
    NULL,
  };

  if (f->blocks.map == NULL)
    return nbdedup_fail (EINVAL, "there is no golden image at hand");
  if (f->hasher == NULL)
    f->hasher = hasher_new (f->pool->hash, &f->pool->hash_key);
  source.hasher = f->hasher;
  if (f->hasher && f->advise == NULL)
    f->advise = advise_new (&f->view, &f->blocks, &source, f->memory_bytes);
  return f->advise ? 0 : -1;
}

int
frozen_zero (struct frozen *f, unsigned set, uint64_t clone, uint64_t offset,
             uint64_t len)
{
  return begin_advice (f) == -1 || view_check (&f->view) == -1
    ? -1
    : advise_zero (f->advise, set, clone, offset, len);
}

json_t *
frozen_advise (struct frozen *f, nbdedup_progress_fn *progress, void *opaque)
{
  json_t *result;

  if (begin_advice (f) == -1)
    return NULL;
  f->progress.fn = progress;
  f->progress.opaque = opaque;
  if (drift_lock (f->pool, &f->progress) == -1)
    return NULL;
  result = advise_run (f->advise, &f->progress);
  drift_unlock (f->pool);
  f->progress.fn = NULL;
  advise_free (f->advise);
  f->advise = NULL;
  return result;
}

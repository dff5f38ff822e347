/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <inttypes.h>

#include "models/lineage-model.h"

/*----------------------------------------------------------------------
 * Nodes
 */

uint64_t
node_blocks (const struct node *node)
{
  return (node->size + node->block_size - 1) / node->block_size;
}

const char *
node_name (const struct node *node, char buf[64])
{
  if (node->kind == NODE_HIDDEN)
    snprintf (buf, 64, "%s", node->label);
  else if (node->kind == NODE_SNAPSHOT)
    snprintf (buf, 64, "%s@%s", node->volume->name, node->name);
  else
    snprintf (buf, 64, "%s", node->name);
  return buf;
}

struct node *
lineage_find (struct lineage *l, const char *name)
{
  char buf[64];
  unsigned i;

  for (i = 0; i < l->nr_nodes; ++i)
    if (l->nodes[i]->kind != NODE_HIDDEN &&
        strcmp (node_name (l->nodes[i], buf), name) == 0)
      return l->nodes[i];
  return NULL;
}

static struct node *
node_add (struct lineage *l, enum node_kind kind, const char *name,
          uint32_t block_size, uint64_t size)
{
  struct node *node = xcalloc (1, sizeof *node);

  assert (l->nr_nodes < LINEAGE_NODES);
  l->nodes[l->nr_nodes++] = node;
  node->id = ++l->last_id;
  node->kind = kind;
  snprintf (node->name, sizeof node->name, "%s", name);
  node->block_size = block_size;
  node->size = size;
  node->data = xcalloc (node_blocks (node), block_size);
  return node;
}

/* A new node with the content and the properties of another. */
static struct node *
node_add_like (struct lineage *l, enum node_kind kind, const char *name,
               const struct node *from)
{
  struct node *node = node_add (l, kind, name, from->block_size, from->size);

  memcpy (node->data, from->data, node_blocks (from) * from->block_size);
  memcpy (node->compress, from->compress, sizeof node->compress);
  memcpy (node->dedup, from->dedup, sizeof node->dedup);
  return node;
}

/* Make 'node' descend from 'snap' (may be NULL) and from the ancestors of
 * 'from'.
 */
static void
set_line (struct node *node, const struct node *snap, const struct node *from)
{
  size_t first = snap != NULL, nr = from->nr_line + first;
  struct ancestor *line = xcalloc (nr, sizeof line[0]);

  if (snap)
    line[0] = (struct ancestor) { snap->id, snap->volume->id };
  if (from->nr_line > 0)
    memcpy (line + first, from->line, from->nr_line * sizeof line[0]);
  free (node->line);
  node->line = line;
  node->nr_line = nr;
}

static void
forget_versions (struct node *node)
{
  while (node->nr_versions > 0)
    free (node->versions[--node->nr_versions].data);
}

static void
node_free (struct node *node)
{
  forget_versions (node);
  free (node->versions);
  free (node->data);
  free (node->line);
  free (node);
}

static void
node_remove (struct lineage *l, struct node *node)
{
  unsigned i;

  for (i = 0; l->nodes[i] != node; ++i)
    ;
  for (; i + 1 < l->nr_nodes; ++i)
    l->nodes[i] = l->nodes[i + 1];
  l->nr_nodes--;
  node_free (node);
}

void
lineage_free (struct lineage *l)
{
  while (l->nr_nodes > 0)
    node_free (l->nodes[--l->nr_nodes]);
}

void
lineage_forget_versions (struct lineage *l)
{
  unsigned i;

  for (i = 0; i < l->nr_nodes; ++i)
    forget_versions (l->nodes[i]);
}

static struct node *
counterpart (const struct lineage *from, const struct lineage *to,
             const struct node *node)
{
  unsigned i;

  for (i = 0; i < from->nr_nodes; ++i)
    if (from->nodes[i] == node)
      return to->nodes[i];
  assert (node == NULL);
  return NULL;
}

void
lineage_copy (const struct lineage *from, struct lineage *to)
{
  size_t len, v;
  unsigned i;

  *to = *from;
  for (i = 0; i < from->nr_nodes; ++i) {
    const struct node *a = from->nodes[i];
    struct node *b = xmalloc (sizeof *b);

    *b = *a;
    b->handle = NULL;
    b->line = NULL;
    set_line (b, NULL, a);
    len = node_blocks (a) * a->block_size;
    b->data = xmalloc (len);
    memcpy (b->data, a->data, len);
    b->versions = xcalloc (a->nr_versions, sizeof b->versions[0]);
    b->cap_versions = a->nr_versions;
    for (v = 0; v < a->nr_versions; ++v) {
      b->versions[v].block = a->versions[v].block;
      b->versions[v].data = xmalloc (a->block_size);
      memcpy (b->versions[v].data, a->versions[v].data, a->block_size);
    }
    to->nodes[i] = b;
  }
  for (i = 0; i < to->nr_nodes; ++i) {
    struct node *b = to->nodes[i];

    b->volume = counterpart (from, to, b->volume);
    b->parent = counterpart (from, to, b->parent);
    b->origin = counterpart (from, to, b->origin);
  }
}

/* Remove hidden nodes that no node inherits from, and merge hidden nodes with
 * one child into the child.
 */
static void
prune (struct lineage *l)
{
  struct node *node, *child;
  unsigned i, j, nr;
  bool again;

  do {
    again = false;
    for (i = 0; i < l->nr_nodes && !again; ++i) {
      node = l->nodes[i];
      if (node->kind != NODE_HIDDEN)
        continue;
      child = NULL;
      nr = 0;
      for (j = 0; j < l->nr_nodes; ++j)
        if (l->nodes[j]->parent == node) {
          child = l->nodes[j];
          nr++;
        }
      if (nr <= 1) {
        if (child)
          child->parent = node->parent;
        node_remove (l, node);
        again = true;
      }
    }
  } while (again);
}

/*----------------------------------------------------------------------
 * The effects of operations
 */

static void
push_version (struct lineage *l, struct node *node, uint64_t block)
{
  struct version *v;

  if (!l->keep_versions)
    return;
  if (node->nr_versions == node->cap_versions) {
    node->cap_versions = 2 * node->cap_versions + 8;
    node->versions = realloc (node->versions,
                              node->cap_versions * sizeof node->versions[0]);
    if (node->versions == NULL)
      die ("out of memory");
  }
  v = &node->versions[node->nr_versions++];
  v->block = block;
  v->data = xmalloc (node->block_size);
  memcpy (v->data, node->data + block * node->block_size, node->block_size);
}

/* 'data' NULL: zeroes. */
static void
change_data (struct lineage *l, struct node *node, uint64_t offset,
             uint64_t len, const uint8_t *data)
{
  uint64_t block;

  if (len == 0)
    return;
  for (block = offset / node->block_size;
       block <= (offset + len - 1) / node->block_size; ++block)
    push_version (l, node, block);
  if (data)
    memcpy (node->data + offset, data, len);
  else
    memset (node->data + offset, 0, len);
}

static void
apply_resize (struct node *node, uint64_t size)
{
  uint64_t old_len = node_blocks (node) * node->block_size, len;
  uint32_t tail = size % node->block_size;
  uint8_t *data;
  size_t i, kept = 0;

  if (size < node->size) {
    memset (node->data + size, 0, old_len - size);
    for (i = 0; i < node->nr_versions; ++i) {
      struct version v = node->versions[i];

      if (v.block * node->block_size >= size) {
        free (v.data);
        continue;
      }
      if (tail && v.block == size / node->block_size)
        memset (v.data + tail, 0, node->block_size - tail);
      node->versions[kept++] = v;
    }
    node->nr_versions = kept;
  }
  node->size = size;
  len = node_blocks (node) * node->block_size;
  data = xcalloc (len, 1);
  memcpy (data, node->data, len < old_len ? len : old_len);
  free (node->data);
  node->data = data;
}

/* Of "vol@snap", whether or not there is this snapshot. */
static struct node *
volume_of (struct lineage *l, const char *name)
{
  char volume[48];

  snprintf (volume, sizeof volume, "%.*s", (int) strcspn (name, "@"), name);
  return lineage_find (l, volume);
}

static void
apply_snapshot (struct lineage *l, const char *name)
{
  struct node *volume = volume_of (l, name), *snap;

  forget_versions (volume); /* a snapshot is a flush, too */
  snap = node_add_like (l, NODE_SNAPSHOT, strchr (name, '@') + 1, volume);
  snap->volume = volume;
  set_line (snap, NULL, volume);
  snap->parent = volume->parent;
  snap->origin = volume->origin;
  memcpy (snap->lost_origin, volume->lost_origin, sizeof snap->lost_origin);
  snap->origin_unsure = volume->origin_unsure;
  volume->parent = snap;
}

static void
apply_clone (struct lineage *l, struct node *snap, const char *name)
{
  struct node *node = node_add_like (l, NODE_VOLUME, name, snap);

  memcpy (node->compress, snap->volume->compress, sizeof node->compress);
  memcpy (node->dedup, snap->volume->dedup, sizeof node->dedup);
  node->parent = node->origin = snap;
  set_line (node, snap, snap);
}

static void
clone_name (const struct op *op, unsigned i, char buf[64])
{
  if (op->count == 0)
    snprintf (buf, 64, "%s", op->other);
  else
    snprintf (buf, 64, "%s%u", op->other, op->start + i);
}

static void
apply_rollback (struct lineage *l, struct node *snap)
{
  struct node *volume = snap->volume;
  uint64_t len = node_blocks (snap) * snap->block_size;

  (void) l;
  forget_versions (volume);
  free (volume->data);
  volume->data = xmalloc (len);
  memcpy (volume->data, snap->data, len);
  volume->size = snap->size;
  volume->parent = snap;
  set_line (volume, NULL, snap);
  if (volume->origin != snap->origin || snap->origin_unsure ||
      strcmp (volume->lost_origin, snap->lost_origin) != 0)
    volume->origin_unsure = true;
}

/* A snapshot disappears: its clones remember its name. */
static void
hide (struct lineage *l, struct node *snap)
{
  char name[64];
  unsigned i;

  snprintf (snap->label, sizeof snap->label, "%.48s (destroyed)",
            node_name (snap, name));
  if (snap->volume->origin)
    snap->volume->origin->descent_unsure = true;
  for (i = 0; i < l->nr_nodes; ++i)
    if (l->nodes[i]->origin == snap) {
      l->nodes[i]->origin = NULL;
      strcpy (l->nodes[i]->lost_origin, snap->label);
    }
  snap->kind = NODE_HIDDEN;
  snap->volume_id = snap->volume->id;
  snap->volume = NULL;
}

static void
apply_destroy (struct lineage *l, struct node *node)
{
  unsigned i;

  if (node->kind == NODE_SNAPSHOT)
    hide (l, node);
  else {
    for (i = 0; i < l->nr_nodes; ++i)
      if (l->nodes[i]->volume == node)
        hide (l, l->nodes[i]);
    node_remove (l, node);
  }
}

void
lineage_apply (struct lineage *l, const struct op *op)
{
  struct node *node = lineage_find (l, op->name);
  struct node *other = lineage_find (l, op->other);
  char name[64];
  unsigned i;

  switch (op->kind) {
  case OP_CREATE:
    node = node_add (l, NODE_VOLUME, op->name, op->block_size, op->size);
    strcpy (node->compress, "lz4");
    strcpy (node->dedup, "on");
    break;
  case OP_WRITE:
    change_data (l, node, op->offset, op->len, op->data);
    break;
  case OP_ZERO:
  case OP_TRIM:
    change_data (l, node, op->offset, op->len, NULL);
    break;
  case OP_FLUSH:
    forget_versions (node);
    break;
  case OP_SNAPSHOT:
    apply_snapshot (l, op->name);
    if (op->other[0])
      apply_snapshot (l, op->other);
    break;
  case OP_CLONE:
    for (i = 0; i < (op->count ? op->count : 1); ++i) {
      clone_name (op, i, name);
      apply_clone (l, node, name);
    }
    break;
  case OP_ROLLBACK:
    apply_rollback (l, node);
    break;
  case OP_DESTROY:
    apply_destroy (l, node);
    break;
  case OP_RENAME:
    snprintf (node->name, sizeof node->name, "%.23s",
              node->kind == NODE_SNAPSHOT ? strchr (op->other, '@') + 1
                                          : op->other);
    break;
  case OP_REBASE:
    node->parent = node->origin = other;
    set_line (node, other, other);
    node->lost_origin[0] = '\0';
    node->origin_unsure = other->volume == node;
    break;
  case OP_RESIZE:
    apply_resize (node, op->size);
    break;
  case OP_SET:
    if (strcmp (op->property, "compress") == 0)
      snprintf (node->compress, sizeof node->compress, "%s", op->value);
    else
      snprintf (node->dedup, sizeof node->dedup, "%s", op->value);
    break;
  case OP_DIFF:
  case OP_ATTACH:
  case OP_DETACH:
  case NR_OPS:
    break;
  }
  prune (l);
}

enum family
node_family (const struct node *golden, const struct node *volume)
{
  const uint64_t own = golden->volume ? golden->volume->id : golden->volume_id;
  bool unsure = golden->volume == NULL && volume->id == own;
  size_t i;

  if (volume->kind != NODE_VOLUME || volume == golden->volume)
    return FAMILY_NO;
  for (i = 0; i < volume->nr_line; ++i) {
    if (volume->line[i].snapshot == golden->id)
      return unsure ? FAMILY_UNSURE : FAMILY_YES;
    /* The golden image's volume was rebased onto a clone of its own clones.
     * A volume cloned from it after that is also "a clone of its other
     * snapshots", and those are not clones of this golden image.
     */
    if (volume->line[i].volume == own)
      unsure = true;
  }
  return FAMILY_NO;
}

/*----------------------------------------------------------------------
 * The answers that the engine must give
 */

/* Whether a snapshot has a clone other than its own volume. */
static enum expect
has_clones (struct lineage *l, const struct node *snap)
{
  enum expect r = snap->descent_unsure ? EXPECT_EITHER : EXPECT_FAIL;
  unsigned i;

  for (i = 0; i < l->nr_nodes; ++i) {
    const struct node *n = l->nodes[i];

    if (n->kind == NODE_VOLUME && n != snap->volume && n->origin == snap &&
        !n->origin_unsure)
      return EXPECT_OK;
    /* Snapshots of rebased clones, hidden nodes and volumes that were rolled
     * back: it is undefined whether these count.
     */
    if (n->origin_unsure || n->origin == snap ||
        (n->parent == snap && n != snap->volume && n->volume != snap->volume))
      r = EXPECT_EITHER;
  }
  return r;
}

static enum expect
expect_destroy (struct lineage *l, const struct op *op, const struct node *node)
{
  enum expect r = EXPECT_OK, clones;
  unsigned i;

  if (node->handle && !op->force)
    return EXPECT_FAIL;
  for (i = 0; i < l->nr_nodes; ++i) {
    const struct node *n = l->nodes[i];

    if (n != node && n->volume != node)
      continue;
    if (n != node && (!op->recursive || (n->handle && !op->force)))
      return EXPECT_FAIL;
    if (n->kind != NODE_SNAPSHOT || op->force)
      continue;
    clones = has_clones (l, n);
    if (clones == EXPECT_OK)
      return EXPECT_FAIL;
    if (clones == EXPECT_EITHER)
      r = EXPECT_EITHER;
  }
  return r;
}

static enum expect
expect_snapshot (struct lineage *l, const struct op *op)
{
  const struct node *volume = volume_of (l, op->name);

  if (volume == NULL || lineage_find (l, op->name))
    return EXPECT_FAIL;
  if (op->other[0] &&
      (volume_of (l, op->other) == volume || lineage_find (l, op->other)))
    return EXPECT_FAIL;
  return EXPECT_OK;
}

enum expect
lineage_expect (struct lineage *l, const struct op *op)
{
  struct node *node = lineage_find (l, op->name);
  struct node *other = lineage_find (l, op->other);
  char name[64];
  unsigned i;

  if (op->kind == OP_CREATE)
    return node ? EXPECT_FAIL : EXPECT_OK;
  if (op->kind == OP_SNAPSHOT)
    return expect_snapshot (l, op);
  if (node == NULL)
    return EXPECT_FAIL;
  switch (op->kind) {
  case OP_WRITE:
  case OP_ZERO:
  case OP_TRIM:
    return node->kind == NODE_VOLUME ? EXPECT_OK : EXPECT_FAIL;
  case OP_CLONE:
    if (node->kind != NODE_SNAPSHOT)
      return EXPECT_FAIL;
    for (i = 0; i < (op->count ? op->count : 1); ++i) {
      clone_name (op, i, name);
      if (lineage_find (l, name))
        return EXPECT_FAIL;
    }
    return EXPECT_OK;
  case OP_ROLLBACK:
    return node->volume->handle && !op->force ? EXPECT_FAIL : EXPECT_OK;
  case OP_DESTROY:
    return expect_destroy (l, op, node);
  case OP_RENAME:
    if (strcmp (op->name, op->other) == 0)
      return EXPECT_EITHER;
    return other ? EXPECT_FAIL : EXPECT_OK;
  case OP_REBASE:
    if (other == NULL || other->block_size != node->block_size)
      return EXPECT_FAIL;
    return other->volume == node ? EXPECT_EITHER : EXPECT_OK;
  case OP_RESIZE:
    if (node->kind == NODE_SNAPSHOT ||
        (op->size < node->size && (!op->shrink || node->handle)))
      return EXPECT_FAIL;
    return EXPECT_OK;
  case OP_DIFF:
    if (other == NULL)
      return EXPECT_FAIL;
    return node->volume && node->volume == other->volume ? EXPECT_OK
                                                         : EXPECT_EITHER;
  default:
    return EXPECT_OK;
  }
}

/*----------------------------------------------------------------------
 * Figures
 */

uint64_t
lineage_distinct (struct lineage *l)
{
  struct content_ref *c;
  uint64_t b, nr = 0;
  unsigned i;

  for (i = 0; i < l->nr_nodes; ++i)
    nr += node_blocks (l->nodes[i]);
  c = xcalloc (nr, sizeof c[0]);
  nr = 0;
  for (i = 0; i < l->nr_nodes; ++i) {
    const struct node *n = l->nodes[i];

    for (b = 0; b < node_blocks (n); ++b)
      if (!all_zero (n->data + b * n->block_size, n->block_size))
        c[nr++] = (struct content_ref) { n->data + b * n->block_size,
                                         n->block_size };
  }
  nr = distinct_contents (c, nr);
  free (c);
  return nr;
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* Makes random operations on volumes and snapshots: see lineage-model.h. */

#include <config.h>

#include <inttypes.h>

#include "models/lineage-model.h"

#define NR_DUPS 30

bool
op_is_command (const struct op *op)
{
  switch (op->kind) {
  case OP_WRITE:
  case OP_ZERO:
  case OP_TRIM:
  case OP_FLUSH:
  case OP_DIFF:
  case OP_ATTACH:
  case OP_DETACH:
    return false;
  default:
    return true;
  }
}

void
op_free (struct op *op)
{
  free (op->data);
  op->data = NULL;
}

static const char *const names[NR_OPS] = {
  "create", "write",    "zero",    "trim",   "flush",  "snapshot",
  "clone",  "rollback", "destroy", "rename", "rebase", "resize",
  "set",    "diff",     "attach",  "detach",
};

void
op_describe (const struct op *op, char *buf, size_t len)
{
  int n = snprintf (buf, len, "%s %s", names[op->kind], op->name);

  buf += n;
  len -= n;
  switch (op->kind) {
  case OP_WRITE:
  case OP_ZERO:
  case OP_TRIM:
    snprintf (buf, len, " %" PRIu64 "+%" PRIu64, op->offset, op->len);
    break;
  case OP_CREATE:
    snprintf (buf, len, " %" PRIu64 " --block-size %u", op->size,
              op->block_size);
    break;
  case OP_CLONE:
    if (op->count)
      snprintf (buf, len, " %s --count %u --start %u", op->other, op->count,
                op->start);
    else
      snprintf (buf, len, " %s", op->other);
    break;
  case OP_SNAPSHOT:
    if (op->other[0])
      snprintf (buf, len, " %s", op->other);
    break;
  case OP_ROLLBACK:
  case OP_DESTROY:
    snprintf (buf, len, "%s%s%s", op->recursive ? " -r" : "",
              op->force ? " --force" : "", op->wait ? " --wait" : "");
    break;
  case OP_RENAME:
  case OP_REBASE:
  case OP_DIFF:
    snprintf (buf, len, " %s", op->other);
    break;
  case OP_RESIZE:
    snprintf (buf, len, " %" PRIu64 "%s", op->size,
              op->shrink ? " --shrink" : "");
    break;
  case OP_SET:
    snprintf (buf, len, " %s=%s", op->property, op->value);
    break;
  default:
    break;
  }
}

static struct node *
pick (struct lineage *l, struct rng *rng, enum node_kind kind)
{
  struct node *found[LINEAGE_NODES];
  unsigned i, nr = 0;

  for (i = 0; i < l->nr_nodes; ++i)
    if (l->nodes[i]->kind == kind)
      found[nr++] = l->nodes[i];
  return nr ? found[rng_below (rng, nr)] : NULL;
}

static uint64_t
pick_size (struct lineage *l, struct rng *rng, uint32_t block_size)
{
  uint64_t max = l->max_blocks * block_size;

  /* 64 KiB blocks: enough for two leaves. */
  if (block_size > 16384)
    max = 80 * (uint64_t) block_size;
  switch (rng_below (rng, 4)) {
  case 0:
    return rng_between (rng, 1, max / block_size) * block_size;
  case 1:
    return rng_between (rng, 1, 3 * block_size / 512) * 512;
  default:
    return rng_between (rng, 1, max / 512) * 512;
  }
}

/* Few names, so that a destroyed name is soon used again. */
static void
pick_volume_name (struct rng *rng, char *buf, size_t len)
{
  snprintf (buf, len, "%c", (char) ('a' + rng_below (rng, 14)));
}

static void
pick_data (struct lineage *l, struct rng *rng, const struct node *node,
           struct op *op)
{
  const struct node *from = l->nodes[rng_below (rng, l->nr_nodes)];
  uint64_t b, nr;

  op->data = xmalloc (op->len);
  fill_content (op->data, op->len, node->block_size, NR_DUPS, rng);
  if (!rng_percent (rng, 25) || from->block_size != node->block_size ||
      from->size == 0)
    return;
  /* Content of another volume, from the same block or another one. */
  nr = node_blocks (from);
  b = rng_percent (rng, 50) ? op->offset / node->block_size
                            : rng_below (rng, nr);
  if (b < nr)
    memcpy (op->data, from->data + b * from->block_size,
            op->len < (nr - b) * from->block_size
              ? op->len
              : (nr - b) * from->block_size);
}

static void
pick_range (struct rng *rng, const struct node *node, struct op *op)
{
  uint64_t bs = node->block_size;

  op->offset = rng_below (rng, node->size);
  op->len = rng_between (rng, 1, rng_percent (rng, 10) ? 70 * bs : 6 * bs);
  if (rng_percent (rng, 60)) {
    op->offset -= op->offset % bs;
    op->len += bs - op->len % bs;
  }
  if (op->len > node->size - op->offset)
    op->len = node->size - op->offset;
}

static bool
random_data_op (struct lineage *l, struct rng *rng, struct op *op)
{
  struct node *node = pick (l, rng, NODE_VOLUME);
  char buf[64];

  if (node == NULL)
    return false;
  snprintf (op->name, sizeof op->name, "%.47s", node_name (node, buf));
  if (op->kind == OP_FLUSH)
    return true;
  if (node->size == 0)
    return false;
  pick_range (rng, node, op);
  if (op->kind == OP_WRITE)
    pick_data (l, rng, node, op);
  return true;
}

static bool
random_create (struct lineage *l, struct rng *rng, struct op *op)
{
  static const uint32_t sizes[] = { 4096, 4096, 8192, 16384, 65536 };

  pick_volume_name (rng, op->name, sizeof op->name);
  op->block_size = l->block_size ? l->block_size : sizes[rng_below (rng, 5)];
  op->size = pick_size (l, rng, op->block_size);
  return true;
}

static bool
random_snapshot (struct lineage *l, struct rng *rng, struct op *op)
{
  struct node *node = pick (l, rng, NODE_VOLUME);

  if (node == NULL)
    return false;
  snprintf (op->name, sizeof op->name, "%.23s@s%u", node->name,
            (unsigned) rng_below (rng, 12));
  if (rng_percent (rng, 40)) {
    node = pick (l, rng, NODE_VOLUME); /* the same one is refused */
    snprintf (op->other, sizeof op->other, "%.23s@s%u", node->name,
              (unsigned) rng_below (rng, 12));
  }
  return true;
}

static bool
random_clone (struct lineage *l, struct rng *rng, struct op *op)
{
  struct node *node = pick (l, rng, NODE_SNAPSHOT);
  char buf[64];

  if (node == NULL)
    return false;
  snprintf (op->name, sizeof op->name, "%.47s", node_name (node, buf));
  pick_volume_name (rng, op->other, sizeof op->other);
  if (rng_percent (rng, 30)) {
    op->count = rng_between (rng, 1, 4);
    op->start = rng_between (rng, 1, 3);
  }
  return true;
}

static bool
random_rename (struct lineage *l, struct rng *rng, struct op *op)
{
  struct node *node = pick (l, rng,
                            rng_percent (rng, 50) ? NODE_VOLUME
                                                  : NODE_SNAPSHOT);
  char buf[64];

  if (node == NULL)
    return false;
  snprintf (op->name, sizeof op->name, "%.47s", node_name (node, buf));
  if (node->kind == NODE_VOLUME)
    pick_volume_name (rng, op->other, sizeof op->other);
  else
    snprintf (op->other, sizeof op->other, "%.23s@s%u", node->volume->name,
              (unsigned) rng_below (rng, 12));
  return true;
}

static bool
random_pair (struct lineage *l, struct rng *rng, struct op *op)
{
  struct node *node, *other = pick (l, rng, NODE_SNAPSHOT);
  unsigned tries = 0;
  char buf[64];

  /* Mostly of one block size, and diffs of one volume. */
  do
    node = pick (l, rng, op->kind == OP_DIFF ? NODE_SNAPSHOT : NODE_VOLUME);
  while (node && other && ++tries < 6 &&
         (node->block_size != other->block_size ||
          (op->kind == OP_DIFF && node->volume != other->volume)));
  if (node == NULL || other == NULL)
    return false;
  snprintf (op->name, sizeof op->name, "%.47s", node_name (node, buf));
  snprintf (op->other, sizeof op->other, "%.47s", node_name (other, buf));
  return true;
}

static bool
random_set (struct lineage *l, struct rng *rng, struct op *op)
{
  static const char *const codecs[] = { "none", "lz4", "zstd", "zstd-9" };
  static const char *const dedups[] = { "on", "off", "verify" };
  struct node *node = pick (l, rng, NODE_VOLUME);

  if (node == NULL)
    return false;
  snprintf (op->name, sizeof op->name, "%s", node->name);
  op->property = "compress";
  op->value = codecs[rng_below (rng, 4)];
  if (l->block_size == 0 && rng_percent (rng, 50)) {
    op->property = "dedup";
    op->value = dedups[rng_below (rng, 3)];
  }
  return true;
}

/* Operations on any volume or snapshot by its name. */
static bool
random_named (struct lineage *l, struct rng *rng, struct op *op,
              unsigned percent_snapshots)
{
  struct node *node = pick (l, rng,
                            rng_percent (rng, percent_snapshots) ? NODE_SNAPSHOT
                                                                 : NODE_VOLUME);
  char buf[64];

  if (node == NULL)
    return false;
  snprintf (op->name, sizeof op->name, "%.47s", node_name (node, buf));
  op->force = rng_percent (rng, 60);
  op->recursive = rng_percent (rng, 50);
  op->wait = rng_percent (rng, 25);
  op->shrink = rng_percent (rng, 80);
  op->size = pick_size (l, rng, node->block_size);
  return true;
}

static bool
make_op (struct lineage *l, struct rng *rng, struct op *op)
{
  switch (op->kind) {
  case OP_CREATE:
    return random_create (l, rng, op);
  case OP_WRITE:
  case OP_ZERO:
  case OP_TRIM:
  case OP_FLUSH:
    return random_data_op (l, rng, op);
  case OP_SNAPSHOT:
    return random_snapshot (l, rng, op);
  case OP_CLONE:
    return random_clone (l, rng, op);
  case OP_RENAME:
    return random_rename (l, rng, op);
  case OP_REBASE:
  case OP_DIFF:
    return random_pair (l, rng, op);
  case OP_SET:
    return random_set (l, rng, op);
  case OP_ROLLBACK:
    return random_named (l, rng, op, 100) && (op->recursive = false, true);
  case OP_DESTROY:
    return random_named (l, rng, op, 70);
  case OP_RESIZE:
    return random_named (l, rng, op, 3);
  default:
    return l->attach && random_named (l, rng, op, 40);
  }
}

/* Leaves out operations, to find those that a failure needs. */
static bool
left_out (enum op_kind kind)
{
  const char *list = getenv ("LINEAGE_WITHOUT");

  return list && strstr (list, names[kind]);
}

void
lineage_random (struct lineage *l, const lineage_weights weights,
                struct rng *rng, struct op *op)
{
  unsigned i, n, total = 0, named = 0;

  for (i = 0; i < NR_OPS; ++i)
    total += weights[i];
  for (i = 0; i < l->nr_nodes; ++i)
    named += l->nodes[i]->kind != NODE_HIDDEN;
  do {
    memset (op, 0, sizeof *op);
    n = rng_below (rng, total);
    for (i = 0; n >= weights[i]; ++i)
      n -= weights[i];
    op->kind = i;
    if (named < 3)
      op->kind = rng_percent (rng, 40) ? OP_CREATE : op->kind;
    /* There are never more hidden nodes than named ones. */
    if (named > l->max_named &&
        (i == OP_CREATE || i == OP_SNAPSHOT || i == OP_CLONE))
      op->kind = OP_DESTROY;
  } while (left_out (op->kind) || !make_op (l, rng, op));
}

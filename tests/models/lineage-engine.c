/* SPDX-License-Identifier: BSD-3-Clause */

/* Applies operations of lineage-model.h to a pool, and compares the pool with
 * the model.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>

#include "models/lineage-model.h"

json_t *
engine_call (struct nbdedup_pool *pool, const char *command, json_t *args)
{
  json_t *result = nbdedup_call (pool, command, args);

  json_decref (args);
  return result;
}

uint64_t
json_number (json_t *object, const char *key)
{
  json_t *v = json_object_get (object, key);

  if (!json_is_integer (v))
    die ("no integer \"%s\" in the result", key);
  return json_integer_value (v);
}

/*----------------------------------------------------------------------
 * Operations
 */

static int
apply_data (struct nbdedup_pool *pool, struct lineage *l, const struct op *op)
{
  struct node *node = lineage_find (l, op->name);
  struct nbdedup_volume *v = node ? node->handle : NULL;
  int r, err;

  /* A handle keeps the size that the volume had. */
  if (v == NULL || nbdedup_volume_size (v) != node->size)
    v = nbdedup_volume_open (pool, op->name, 0, -1, NULL);
  if (v == NULL)
    return -1;
  switch (op->kind) {
  case OP_WRITE:
    r = nbdedup_volume_write (v, op->data, op->len, op->offset);
    break;
  case OP_ZERO:
    r = nbdedup_volume_zero (v, op->len, op->offset);
    break;
  case OP_TRIM:
    r = nbdedup_volume_trim (v, op->len, op->offset);
    break;
  default:
    r = nbdedup_volume_flush (v);
  }
  err = errno;
  if (node == NULL || v != node->handle)
    nbdedup_volume_close (v);
  errno = err;
  return r;
}

/* The blocks that differ, as nbdedup-diff(1) defines it: the last one is
 * padded with zeroes.
 */
static void
check_diff (struct lineage *l, const struct op *op, json_t *extents)
{
  const struct node *from = lineage_find (l, op->name);
  const struct node *to = lineage_find (l, op->other);
  uint32_t bs = from->block_size;
  uint64_t nr = node_blocks (from) > node_blocks (to) ? node_blocks (from)
                                                      : node_blocks (to);
  uint64_t end = from->size > to->size ? from->size : to->size;
  uint64_t b, offset, length, last_end = 0;
  uint8_t *said = xcalloc (nr, 1), *zeroes = xcalloc (1, bs);
  bool zero, last_zero = false;
  json_t *e;
  size_t i;

  json_array_foreach (extents, i, e) {
    offset = json_number (e, "offset");
    length = json_number (e, "length");
    zero = json_is_true (json_object_get (e, "zero"));
    if (offset % bs != 0 || length == 0 || offset + length > nr * bs ||
        ((offset + length) % bs != 0 && offset + length != end &&
         offset + length != to->size) ||
        (i > 0 && offset < last_end))
      die ("diff %s %s: extent of %" PRIu64 " bytes at %" PRIu64, op->name,
           op->other, length, offset);
    if (i > 0 && offset == last_end && zero == last_zero)
      die ("diff %s %s: extents at %" PRIu64 " are not joined", op->name,
           op->other, offset);
    for (b = offset / bs; b * bs < offset + length; ++b)
      said[b] = zero ? 2 : 1;
    last_end = offset + length;
    last_zero = zero;
  }
  for (b = 0; b < nr; ++b) {
    const uint8_t *x = b < node_blocks (from) ? from->data + b * bs : zeroes;
    const uint8_t *y = b < node_blocks (to) ? to->data + b * bs : zeroes;
    unsigned expected = memcmp (x, y, bs) == 0 ? 0 : all_zero (y, bs) ? 2 : 1;

    /* diff may omit blocks past the end of the newer side. */
    if (said[b] != expected && !(b >= node_blocks (to) && said[b] == 0))
      die ("diff %s %s: block %" PRIu64 " (of %u) is %s, expected %s", op->name,
           op->other, b, bs,
           said[b] == 0     ? "equal"
             : said[b] == 1 ? "data"
                            : "zero",
           expected == 0     ? "equal"
             : expected == 1 ? "data"
                             : "zero");
  }
  free (said);
  free (zeroes);
}

static json_t *
run_clone (struct nbdedup_pool *pool, const struct op *op)
{
  json_t *args = json_pack ("{s:s, s:s}", "snapshot", op->name, "name",
                            op->other);
  json_t *result;
  size_t nr = op->count ? op->count : 1;

  if (op->count) {
    json_object_set_new (args, "count", json_integer (op->count));
    json_object_set_new (args, "start", json_integer (op->start));
  }
  result = engine_call (pool, "clone", args);
  if (result && json_array_size (json_object_get (result, "clones")) != nr)
    die ("clone: \"clones\" does not have %zu names", nr);
  return result;
}

uint64_t
engine_own_bytes (struct nbdedup_pool *pool, const char *name)
{
  json_t *stat = engine_call (pool, "stat", json_pack ("{s:s}", "name", name));
  json_t *volumes = json_object_get (stat, "volumes");
  uint64_t n;

  if (json_array_size (volumes) != 1)
    die ("stat %s: %s", name, stat ? "not one volume" : nbdedup_error ());
  n = json_number (json_array_get (volumes, 0), "own_bytes");
  json_decref (stat);
  return n;
}

/* The own_bytes that a volume must have if it inherits from 'parent'. */
static uint64_t
own_bytes_on (const struct node *node, const struct node *parent)
{
  uint64_t b, nr = 0;
  uint32_t bs = node->block_size;

  for (b = 0; b < node_blocks (node); ++b)
    nr += !all_zero (node->data + b * bs, bs) &&
      (b >= node_blocks (parent) ||
       memcmp (node->data + b * bs, parent->data + b * bs, bs) != 0);
  return nr * bs;
}

/* The engine merges the volume's own blocks into its layer in the background.
 */
static void
check_rebase (struct nbdedup_pool *pool, struct lineage *l, const struct op *op,
              uint64_t before, json_t *result)
{
  uint64_t after = own_bytes_on (lineage_find (l, op->name),
                                 lineage_find (l, op->other)),
           n;
  unsigned tries;

  if (json_number (result, "own_bytes_before") != before ||
      json_number (result, "own_bytes_after") != after)
    die ("rebase %s %s: own_bytes from %" PRIu64 " to %" PRIu64 ", but it "
         "said %s",
         op->name, op->other, before, after, json_dumps (result, 0));
  for (tries = 0;; ++tries) {
    n = engine_own_bytes (pool, op->name);
    if (n == after)
      break;
    if (n > after || tries == 1000)
      die ("rebase %s %s: own_bytes %" PRIu64 ", expected %" PRIu64, op->name,
           op->other, n, after);
    poll (NULL, 0, 10);
  }
}

/* The result must be what --dry-run predicts. */
static json_t *
run_rebase (struct nbdedup_pool *pool, struct lineage *l, const struct op *op)
{
  uint64_t before = l->figures ? engine_own_bytes (pool, op->name) : 0;
  json_t *dry, *real;
  int err;

  dry = engine_call (pool, "rebase",
                     json_pack ("{s:s, s:s, s:b}", "name", op->name, "snapshot",
                                op->other, "dry-run", 1));
  real = engine_call (pool, "rebase",
                      json_pack ("{s:s, s:s}", "name", op->name, "snapshot",
                                 op->other));
  err = errno;
  if ((dry == NULL) != (real == NULL))
    die ("rebase %s %s: --dry-run %s, but then it %s: %s", op->name, op->other,
         dry ? "works" : "fails", real ? "works" : "fails", nbdedup_error ());
  if (dry && l->figures && !json_equal (dry, real))
    die ("rebase %s %s: --dry-run said %s, it did %s", op->name, op->other,
         json_dumps (dry, 0), json_dumps (real, 0));
  json_decref (dry);
  if (real && l->figures)
    check_rebase (pool, l, op, before, real);
  errno = err;
  return real;
}

int
engine_apply (struct nbdedup_pool *pool, struct lineage *l, const struct op *op)
{
  json_t *result = NULL;

  switch (op->kind) {
  case OP_CREATE:
    result = engine_call (pool, "create",
                          json_pack ("{s:s, s:I, s:i, s:s, s:s}", "name",
                                     op->name, "size", (json_int_t) op->size,
                                     "block-size", (int) op->block_size,
                                     "compress", "lz4", "dedup", "on"));
    break;
  case OP_WRITE:
  case OP_ZERO:
  case OP_TRIM:
  case OP_FLUSH:
    return apply_data (pool, l, op);
  case OP_SNAPSHOT:
    result = engine_call (pool, "snapshot",
                          json_pack ("{s:[s, s*]}", "names", op->name,
                                     op->other[0] ? op->other : NULL));
    break;
  case OP_CLONE:
    result = run_clone (pool, op);
    break;
  case OP_ROLLBACK:
    result = engine_call (pool, "rollback",
                          json_pack ("{s:s, s:b}", "name", op->name, "force",
                                     (int) op->force));
    break;
  case OP_DESTROY:
    result = engine_call (pool, "destroy",
                          json_pack ("{s:s, s:b, s:b, s:b}", "name", op->name,
                                     "recursive", (int) op->recursive, "force",
                                     (int) op->force, "wait", (int) op->wait));
    break;
  case OP_RENAME:
    result = engine_call (pool, "rename",
                          json_pack ("{s:s, s:s}", "old", op->name, "new",
                                     op->other));
    break;
  case OP_REBASE:
    result = run_rebase (pool, l, op);
    break;
  case OP_RESIZE:
    result = engine_call (pool, "resize",
                          json_pack ("{s:s, s:I, s:b}", "name", op->name,
                                     "size", (json_int_t) op->size, "shrink",
                                     (int) op->shrink));
    break;
  case OP_SET:
    result = engine_call (pool, "set",
                          json_pack ("{s:s, s:s, s:s}", "name", op->name,
                                     "property", op->property, "value",
                                     op->value));
    break;
  case OP_DIFF:
    result = engine_call (pool, "diff",
                          json_pack ("{s:s, s:s}", "from", op->name, "to",
                                     op->other));
    if (result)
      check_diff (l, op, json_object_get (result, "extents"));
    break;
  case OP_ATTACH:
  case OP_DETACH:
  case NR_OPS:
    return 0;
  }
  if (result == NULL)
    return -1;
  json_decref (result);
  return 0;
}

/*----------------------------------------------------------------------
 * Comparing
 */

struct compare {
  struct nbdedup_pool *pool;
  struct lineage *l;
  char *why;
  size_t len;
};

/* Always false. */
static bool __attribute__ ((format (printf, 2, 3)))
differs (struct compare *c, const char *fmt, ...)
{
  va_list ap;

  va_start (ap, fmt);
  vsnprintf (c->why, c->len, fmt, ap);
  va_end (ap);
  return false;
}

static bool
one_of_versions (const struct node *node, uint64_t block, const uint8_t *buf)
{
  size_t i;

  for (i = 0; i < node->nr_versions; ++i)
    if (node->versions[i].block == block &&
        memcmp (node->versions[i].data, buf, node->block_size) == 0)
      return true;
  return false;
}

struct extents {
  const uint8_t *data;
  uint64_t next;
  const char *problem;
};

static int
check_extent (void *opaque, uint64_t offset, uint64_t len, bool hole)
{
  struct extents *e = opaque;

  if (offset != e->next || len == 0)
    e->problem = "extents have gaps or overlap";
  else if (hole && !all_zero (e->data + offset, len))
    e->problem = "an extent is called a hole but has data";
  e->next = offset + len;
  return e->problem != NULL;
}

/* Read the whole volume into 'buf', and compare all bytes. */
static bool
compare_data (struct compare *c, struct node *node, struct nbdedup_volume *v,
              uint8_t *buf)
{
  struct extents e = { .data = buf };
  uint64_t b, offset, n;
  uint32_t bs = node->block_size;
  char name[64];

  node_name (node, name);
  for (offset = 0; offset < node->size; offset += n) {
    n = node->size - offset < (1 << 20) ? node->size - offset : 1 << 20;
    if (nbdedup_volume_read (v, buf + offset, n, offset) == -1)
      return differs (c, "%s: read: %s", name, nbdedup_error ());
  }
  for (b = 0; b < node_blocks (node); ++b) {
    n = first_difference (buf + b * bs, node->data + b * bs, bs);
    if (n < bs && !one_of_versions (node, b, buf + b * bs))
      return differs (c,
                      "%s: block %" PRIu64 " (of %u) differs at byte %" PRIu64
                      ": found 0x%02x, expected 0x%02x%s",
                      name, b, bs, n, buf[b * bs + n], node->data[b * bs + n],
                      node->nr_versions ? " (or an older version)" : "");
  }
  if (node->size > 0 &&
      (nbdedup_volume_extents (v, node->size, 0, check_extent, &e) == -1 ||
       e.problem || e.next != node->size))
    return differs (c, "%s: extents: %s", name,
                    e.problem ? e.problem : nbdedup_error ());
  return true;
}

static bool
compare_node (struct compare *c, struct node *node)
{
  struct nbdedup_volume *v;
  uint8_t byte = 0, *buf;
  bool snapshot = node->kind == NODE_SNAPSHOT, ok;
  uint64_t len = node_blocks (node) * node->block_size;
  char name[64];

  node_name (node, name);
  v = nbdedup_volume_open (c->pool, name, 0, -1, NULL);
  if (v == NULL)
    return differs (c, "%s: open: %s", name, nbdedup_error ());
  buf = xcalloc (len, 1);
  if (nbdedup_volume_size (v) != node->size ||
      nbdedup_volume_block_size (v) != node->block_size ||
      nbdedup_volume_is_readonly (v) != (snapshot || c->l->readonly))
    ok = differs (c,
                  "%s: opened with size %" PRIu64 " (expected %" PRIu64 "), %s",
                  name, nbdedup_volume_size (v), node->size,
                  nbdedup_volume_is_readonly (v) ? "read-only" : "read-write");
  else
    ok = compare_data (c, node, v, buf);
  if (ok && snapshot && node->size > 0 &&
      (nbdedup_volume_write (v, &byte, 1, 0) != -1 || errno != EROFS))
    ok = differs (c, "%s: a write is not refused with EROFS", name);
  nbdedup_volume_close (v);
  if (ok) {
    free (node->data);
    node->data = buf;
  }
  else
    free (buf);
  return ok;
}

static uint64_t
logical_bytes (const struct node *node)
{
  uint64_t b, nr = 0;

  for (b = 0; b < node_blocks (node); ++b)
    nr += !all_zero (node->data + b * node->block_size, node->block_size);
  return nr * node->block_size;
}

/* Check logical_bytes in the answer of a command. */
static bool
has_logical_bytes (const struct node *node, json_t *v)
{
  uint64_t told = json_number (v, "logical_bytes");

  return told == logical_bytes (node) ||
    (node->tail_counts && told > logical_bytes (node));
}

static bool
compare_origin (struct compare *c, struct node *node, const char *origin)
{
  const char *expected = node->lost_origin[0] ? node->lost_origin : NULL;
  char buf[64];

  /* After a rollback to before a rebase it may be either of the two.  The
   * model does not define which.
   */
  if (node->origin_unsure)
    return true;
  if (node->origin)
    expected = node_name (node->origin, buf);
  if ((origin == NULL) != (expected == NULL) ||
      (origin && strcmp (origin, expected) != 0))
    return differs (c, "%s: origin is %s, expected %s", node->name,
                    origin ? origin : "null", expected ? expected : "null");
  return true;
}

static bool
compare_properties (struct compare *c, struct node *node)
{
  json_t *get = engine_call (c->pool, "get",
                             json_pack ("{s:s, s:s}", "property", "all", "name",
                                        node->name));
  json_t *p = json_object_get (get, "properties");
  const char *compress = json_string_value (json_object_get (p, "compress"));
  const char *dedup = json_string_value (json_object_get (p, "dedup"));
  bool ok = compress && dedup && strcmp (dedup, node->dedup) == 0 &&
    strcmp (compress, node->compress) == 0;

  if (!ok)
    differs (c, "%s: compress=%s dedup=%s, expected %s %s", node->name,
             compress, dedup, node->compress, node->dedup);
  json_decref (get);
  return ok;
}

static bool
compare_snapshots (struct compare *c, const struct node *volume,
                   json_t *snapshots)
{
  const char *name;
  char full[64];
  json_t *s;
  size_t i, nr = 0;

  for (i = 0; i < c->l->nr_nodes; ++i)
    nr += c->l->nodes[i]->volume == volume;
  if (json_array_size (snapshots) != nr)
    return differs (c, "%s: list has %zu snapshots, expected %zu", volume->name,
                    json_array_size (snapshots), nr);
  json_array_foreach (snapshots, i, s) {
    name = json_string_value (json_object_get (s, "name"));
    snprintf (full, sizeof full, "%s@%s", volume->name, name ? name : "?");
    if (lineage_find (c->l, full) == NULL)
      return differs (c, "list has an unexpected snapshot %s", full);
    if (json_number (s, "time") < 1000000000)
      return differs (c, "%s: time is %" PRIu64, full, json_number (s, "time"));
  }
  return true;
}

static bool
compare_listed (struct compare *c, json_t *v)
{
  const char *name = json_string_value (json_object_get (v, "name"));
  struct node *node = lineage_find (c->l, name ? name : "?");

  if (node == NULL || node->kind != NODE_VOLUME)
    return differs (c, "list has an unexpected volume %s", name);
  if (json_number (v, "size") != node->size ||
      json_number (v, "block_size") != node->block_size ||
      json_number (v, "clients") != (node->handle != NULL) ||
      !has_logical_bytes (node, v))
    return differs (c,
                    "list %s: size %" PRIu64 ", expected %" PRIu64
                    "; logical_bytes %" PRIu64 ", expected %" PRIu64
                    "; clients %" PRIu64,
                    name, json_number (v, "size"), node->size,
                    json_number (v, "logical_bytes"), logical_bytes (node),
                    json_number (v, "clients"));
  return compare_origin (c, node,
                         json_string_value (json_object_get (v, "origin"))) &&
    compare_snapshots (c, node, json_object_get (v, "snapshots")) &&
    compare_properties (c, node);
}

static bool
compare_list (struct compare *c)
{
  json_t *list = engine_call (c->pool, "list", NULL), *v;
  json_t *volumes = json_object_get (list, "volumes");
  size_t i, nr = 0;
  bool ok = true;

  for (i = 0; i < c->l->nr_nodes; ++i)
    nr += c->l->nodes[i]->kind == NODE_VOLUME;
  if (list == NULL)
    return differs (c, "list: %s", nbdedup_error ());
  if (json_array_size (volumes) != nr)
    ok = differs (c, "list has %zu volumes, expected %zu",
                  json_array_size (volumes), nr);
  json_array_foreach (volumes, i, v)
    ok = ok && compare_listed (c, v);
  json_decref (list);
  return ok;
}

struct listing {
  struct compare *c;
  char last[64];
  unsigned nr;
  bool bad;
};

static int
check_listed (void *opaque, const char *name, uint64_t size, bool readonly)
{
  struct listing *x = opaque;
  struct node *node = lineage_find (x->c->l, name);

  x->bad = node == NULL || node->size != size ||
    readonly != (node->kind == NODE_SNAPSHOT || x->c->l->readonly) ||
    strcmp (x->last, name) == 0;
  if (x->bad)
    differs (x->c, "pool_list: %s%s of %" PRIu64 " bytes after %s", name,
             readonly ? " (read-only)" : "", size, x->last);
  snprintf (x->last, sizeof x->last, "%s", name);
  x->nr++;
  return x->bad;
}

static bool
compare_stat (struct compare *c)
{
  json_t *stat = engine_call (c->pool, "stat", NULL), *v;
  uint64_t sum = 0;
  bool ok = true;
  struct node *node;
  size_t i;

  if (stat == NULL)
    return differs (c, "stat: %s", nbdedup_error ());
  json_array_foreach (json_object_get (stat, "volumes"), i, v) {
    node = lineage_find (c->l, json_string_value (json_object_get (v, "name")));
    if (ok && node && !has_logical_bytes (node, v))
      ok = differs (c, "stat %s: logical_bytes %" PRIu64 ", expected %" PRIu64,
                    node->name, json_number (v, "logical_bytes"),
                    logical_bytes (node));
    if (ok && node && json_number (v, "own_bytes") % node->block_size != 0)
      ok = differs (c, "stat %s: own_bytes %" PRIu64, node->name,
                    json_number (v, "own_bytes"));
    sum += json_number (v, "logical_bytes");
  }
  if (ok &&
      json_number (json_object_get (stat, "pool"), "logical_bytes") != sum)
    ok = differs (c, "stat: logical_bytes is not the sum");
  json_decref (stat);
  return ok;
}

bool
engine_compare (struct nbdedup_pool *pool, struct lineage *l, char *why,
                size_t len)
{
  struct compare c = { pool, l, why, len };
  struct listing listing = { .c = &c };
  unsigned i, nr = 0;

  /* Names first: they tell whether an interrupted command took effect. */
  nbdedup_pool_list (pool, check_listed, &listing);
  for (i = 0; i < l->nr_nodes; ++i)
    nr += l->nodes[i]->kind != NODE_HIDDEN;
  if (listing.bad)
    return false;
  if (listing.nr != nr)
    return differs (&c, "pool_list: %u names, expected %u", listing.nr, nr);
  for (i = 0; i < l->nr_nodes; ++i)
    if (l->nodes[i]->kind != NODE_HIDDEN && !compare_node (&c, l->nodes[i]))
      return false;
  return compare_list (&c) && compare_stat (&c);
}

/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <inttypes.h>
#include <stdarg.h>

#include "format/codec.h"
#include "models/drift-model.h"

/* A block that is not zero. */
struct ref {
  const uint8_t *data;
  uint32_t len;
  unsigned owner; /* 0: the golden image; i: clone i - 1 */
  uint64_t position;
};

struct refs {
  struct ref *p; /* owned */
  size_t nr;
};

static int
by_content (const void *a, const void *b)
{
  const struct ref *x = a, *y = b;
  int r = memcmp (x->data, y->data, x->len);

  return r ? r : x->owner < y->owner ? -1 : x->owner > y->owner;
}

static int
by_name (const void *a, const void *b)
{
  return strverscmp (((const struct drift_clone *) a)->node->name,
                     ((const struct drift_clone *) b)->node->name);
}

/* Add the blocks of one owner.  Returns the number that are not zero. */
static uint64_t
add_refs (struct refs *refs, const struct node *node, unsigned owner)
{
  uint32_t len = node->block_size;
  size_t before = refs->nr;
  const uint8_t *data;
  uint64_t b;

  for (b = 0; b < node_blocks (node); ++b) {
    data = node->data + b * len;
    if (!all_zero (data, len))
      refs->p[refs->nr++] = (struct ref) { data, len, owner, b };
  }
  return refs->nr - before;
}

static bool
is_golden_same (const struct node *golden, const struct ref *r)
{
  return r->position < node_blocks (golden) &&
    memcmp (golden->data + r->position * r->len, r->data, r->len) == 0;
}

/* The blocks of one content, ascending by owner. */
static void
classify (struct drift_family *f, const struct ref *r, size_t nr)
{
  bool golden = r[0].owner == 0;
  bool shared = r[0].owner != r[nr - 1].owner;
  struct drift_clone *c;
  size_t i;

  for (i = 0; i < nr; ++i) {
    if (r[i].owner == 0)
      continue;
    c = &f->clones[r[i].owner - 1];
    if (is_golden_same (f->golden, &r[i]))
      c->golden_same++;
    else if (golden)
      c->golden_moved++;
    else if (shared)
      c->sibling++;
    else
      c->unique++;
  }
}

/*----------------------------------------------------------------------
 * The space that a content takes
 */

struct sizer {
  const struct drift_storage *storage;
  struct compression compression;
  struct codec_ctx *ctx; /* owned */
  uint8_t *buf;          /* owned */
};

static uint64_t
in_sectors (const struct sizer *s, uint64_t len)
{
  uint64_t sector = s->storage->sector_bytes;

  return (len + sector - 1) / sector * sector;
}

/* A record is compressed only if that saves a sector. */
static void
add_stored (struct drift_family *f, struct sizer *s, const struct ref *r)
{
  uint32_t sector = s->storage->sector_bytes;
  size_t n = 0;

  if (s->storage->compress == NULL) {
    f->stored_min += sector;
    f->stored_max += in_sectors (s, r->len);
    return;
  }
  if (s->compression.codec != CODEC_NONE && r->len > sector)
    n = codec_compress (s->ctx, &s->compression, r->data, r->len, s->buf,
                        r->len - sector);
  f->stored_min += in_sectors (s, n ? n : r->len);
  f->stored_max = f->stored_min;
}

static void
classify_all (struct drift_family *f, const struct refs *refs,
              const struct drift_storage *storage)
{
  struct sizer s = { .storage = storage,
                     .ctx = codec_ctx_new (),
                     .buf = xmalloc (f->golden->block_size) };
  size_t i, j;

  if (s.ctx == NULL ||
      (storage->compress &&
       compression_parse (storage->compress, &s.compression) == -1))
    die ("%s: %s", storage->compress, nbdedup_error ());
  for (i = 0; i < refs->nr; i = j) {
    for (j = i + 1; j < refs->nr &&
         memcmp (refs->p[i].data, refs->p[j].data, refs->p[i].len) == 0;
         ++j)
      ;
    classify (f, refs->p + i, j - i);
    add_stored (f, &s, &refs->p[i]);
    f->distinct++;
  }
  codec_ctx_free (s.ctx);
  free (s.buf);
}

/*----------------------------------------------------------------------*/

static void
find_clones (struct lineage *l, struct drift_family *f)
{
  enum family family;
  unsigned i;

  f->clones = xcalloc (l->nr_nodes, sizeof f->clones[0]);
  for (i = 0; i < l->nr_nodes; ++i) {
    family = node_family (f->golden, l->nodes[i]);
    if (family == FAMILY_UNSURE)
      f->unsure = true;
    if (family == FAMILY_YES)
      f->clones[f->nr_clones++].node = l->nodes[i];
  }
  qsort (f->clones, f->nr_clones, sizeof f->clones[0], by_name);
}

void
drift_family_make (struct lineage *l, const struct node *golden,
                   const struct drift_storage *storage, struct drift_family *f)
{
  struct refs refs = { .nr = node_blocks (golden) };
  struct drift_clone *c;
  unsigned i;

  *f = (struct drift_family) { .golden = golden };
  find_clones (l, f);
  for (i = 0; i < f->nr_clones; ++i)
    refs.nr += node_blocks (f->clones[i].node);
  refs.p = xcalloc (refs.nr, sizeof refs.p[0]);
  refs.nr = 0;
  f->logical = f->golden_blocks = add_refs (&refs, golden, 0);
  for (i = 0; i < f->nr_clones; ++i) {
    c = &f->clones[i];
    c->logical = add_refs (&refs, c->node, i + 1);
    c->zero = node_blocks (c->node) - c->logical;
    f->logical += c->logical;
  }
  if (refs.nr > 0)
    qsort (refs.p, refs.nr, sizeof refs.p[0], by_content);
  classify_all (f, &refs, storage);
  free (refs.p);
}

void
drift_family_free (struct drift_family *f)
{
  free (f->clones);
}

/*----------------------------------------------------------------------
 * Comparing
 */

struct reason {
  const struct drift_family *f;
  char *why;
  size_t len;
};

/* Always false. */
static bool __attribute__ ((format (printf, 2, 3)))
differs (const struct reason *r, const char *fmt, ...)
{
  char name[64];
  va_list ap;
  int n;

  n = snprintf (r->why, r->len, "drift %s: ", node_name (r->f->golden, name));
  va_start (ap, fmt);
  vsnprintf (r->why + n, r->len - n, fmt, ap);
  va_end (ap);
  return false;
}

static bool
same_number (const struct reason *r, const char *of, json_t *object,
             const char *key, uint64_t expected)
{
  uint64_t found = json_number (object, key);

  return found == expected ||
    differs (r, "%s: %s is %" PRIu64 ", expected %" PRIu64, of, key, found,
             expected);
}

static bool
same_clone (const struct reason *r, const struct drift_clone *c, json_t *o)
{
  const char *name = json_string_value (json_object_get (o, "name"));
  const char *expected = c->node->name;

  if (name == NULL || strcmp (name, expected) != 0)
    return differs (r, "clone %s, expected %s", name ? name : "?", expected);
  if (json_object_size (o) != 8)
    return differs (r, "%s: %zu members, expected 8", name,
                    json_object_size (o));
  json_number (o, "only_here_bytes");
  return same_number (r, name, o, "zero", c->zero) &&
    same_number (r, name, o, "golden_same", c->golden_same) &&
    same_number (r, name, o, "golden_moved", c->golden_moved) &&
    same_number (r, name, o, "sibling", c->sibling) &&
    same_number (r, name, o, "unique", c->unique) &&
    same_number (r, name, o, "logical", c->logical);
}

static bool
same_fleet (const struct reason *r, json_t *fleet)
{
  const struct drift_family *f = r->f;
  json_t *ratio = json_object_get (fleet, "dedup_ratio");
  uint64_t stored;
  double expected;

  if (!same_number (r, "fleet", fleet, "logical", f->logical) ||
      !same_number (r, "fleet", fleet, "distinct", f->distinct))
    return false;
  if (f->distinct == 0 ? !json_is_null (ratio) : !json_is_number (ratio))
    return differs (r, "fleet: dedup_ratio is no ratio");
  if (f->distinct > 0) {
    expected = (double) f->logical / f->distinct;
    if (json_number_value (ratio) < expected * 0.999999 ||
        json_number_value (ratio) > expected * 1.000001)
      return differs (r, "fleet: dedup_ratio is %g, expected %g",
                      json_number_value (ratio), expected);
  }
  stored = json_number (fleet, "distinct_stored_bytes");
  return (stored >= f->stored_min && stored <= f->stored_max) ||
    differs (r,
             "fleet: distinct_stored_bytes is %" PRIu64 ", expected %" PRIu64
             " to %" PRIu64,
             stored, f->stored_min, f->stored_max);
}

bool
drift_compare (const struct drift_family *f, json_t *doc, char *why, size_t len)
{
  struct reason r = { f, why, len };
  json_t *clones = json_object_get (doc, "clones");
  const char *golden = json_string_value (json_object_get (doc, "golden"));
  char name[64];
  unsigned i;

  if (golden == NULL || strcmp (golden, node_name (f->golden, name)) != 0)
    return differs (&r, "golden is %s", golden ? golden : "?");
  if (json_number (doc, "time") < 1000000000)
    return differs (&r, "time is %" PRIu64, json_number (doc, "time"));
  if (!same_number (&r, "golden", doc, "block_size", f->golden->block_size) ||
      !same_number (&r, "golden", doc, "golden_blocks", f->golden_blocks))
    return false;
  if (json_array_size (clones) != f->nr_clones)
    return differs (&r, "%zu clones, expected %u", json_array_size (clones),
                    f->nr_clones);
  for (i = 0; i < f->nr_clones; ++i)
    if (!same_clone (&r, &f->clones[i], json_array_get (clones, i)))
      return false;
  return same_fleet (&r, json_object_get (doc, "fleet"));
}

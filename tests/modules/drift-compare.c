/* SPDX-License-Identifier: BSD-3-Clause */

/* What "drift" says of each golden image, beside brute force over the model's
 * contents (models/drift-model.h).
 */

#include <config.h>

#include "drift/drift.h"
#include "models/drift-copy.h"
#include "models/drift-model.h"
#include "modules/drift-compare.h"

#define ITEM_BYTES 72 /* about, per sorted block */

json_t *
drift (const char *name, struct rng *rng)
{
  json_t *args = name ? json_pack ("{s:s}", "name", name) : json_object ();

  if (rng_percent (rng, 50))
    json_object_set_new (args, "memory", json_integer (DRIFT_MEMORY_MIN));
  return call (pool, "drift", args);
}

static void
count_family (const struct drift_family *f)
{
  const struct drift_clone *c;
  unsigned i;

  uint64_t items = f->golden_blocks;

  met.families++;
  met.clones += f->nr_clones;
  for (i = 0; i < f->nr_clones; ++i) {
    c = &f->clones[i];
    met.further += c->node->line[0].snapshot != f->golden->id;
    met.through_destroyed += c->node->origin == NULL;
    met.without_dedup += strcmp (c->node->dedup, "off") == 0;
    met.zero += c->zero;
    met.golden_same += c->golden_same;
    met.golden_moved += c->golden_moved;
    met.sibling += c->sibling;
    met.unique += c->unique;
    items += c->golden_moved + c->sibling + c->unique;
  }
  met.large += items * ITEM_BYTES > DRIFT_MEMORY_MIN;
}

static bool
right_document (struct lineage *l, const struct node *golden, json_t *doc,
                char *why, size_t len)
{
  struct drift_storage storage = { config.sector_bytes, config.compress };
  struct drift_family family;
  bool right = true;

  drift_family_make (l, golden, &storage, &family);
  if (family.unsure)
    met.unsure++;
  else {
    right = drift_compare (&family, doc, why, len);
    if (right)
      count_family (&family);
  }
  drift_family_free (&family);
  return right;
}

/* 1: it has clones; 0: it has none; -1: undefined. */
static int
has_family (struct lineage *l, const struct node *golden)
{
  enum family family;
  unsigned i;
  int r = 0;

  for (i = 0; i < l->nr_nodes; ++i) {
    family = node_family (golden, l->nodes[i]);
    if (family == FAMILY_YES)
      return 1;
    if (family == FAMILY_UNSURE)
      r = -1;
  }
  return r;
}

static bool
is_destroyed (const char *golden)
{
  return strchr (golden, ' ') != NULL;
}

static json_t *
find_golden (json_t *goldens, const char *name)
{
  const char *s;
  json_t *doc;
  size_t i;

  json_array_foreach (goldens, i, doc) {
    s = json_string_value (json_object_get (doc, "golden"));
    if (s && strcmp (s, name) == 0)
      return doc;
  }
  return NULL;
}

/* True if the documents are sorted by name.  Several destroyed golden images
 * may have the same name.
 */
static bool
are_by_name (json_t *goldens)
{
  const char *name, *before = "";
  json_t *doc;
  size_t i;
  int r;

  json_array_foreach (goldens, i, doc) {
    name = json_string_value (json_object_get (doc, "golden"));
    r = name ? strverscmp (before, name) : 1;
    if (r > 0 || (r == 0 && !is_destroyed (name)))
      return false;
    before = name;
  }
  return true;
}

/* Check the document of a golden image that was merged, in place of which drift
 * uses what its clones have in common: each block has one class.
 */
static bool
right_merged (struct lineage *l, json_t *doc, char *why, size_t len)
{
  json_t *clones = json_object_get (doc, "clones"), *c;
  const char *name;
  struct node *node;
  uint64_t logical;
  size_t i;

  json_array_foreach (clones, i, c) {
    name = json_string_value (json_object_get (c, "name"));
    node = lineage_find (l, name);
    logical = json_number (c, "logical");
    if (node == NULL ||
        json_number (c, "zero") + logical != node_blocks (node) ||
        json_number (c, "golden_same") + json_number (c, "golden_moved") +
            json_number (c, "sibling") + json_number (c, "unique") !=
          logical) {
      snprintf (why, len, "drift: the classes of %s do not add up", name);
      return false;
    }
  }
  met.merged++;
  return json_array_size (clones) > 0;
}

/* The document must be right for a destroyed golden image with its name. */
static bool
right_destroyed (struct lineage *l, json_t *doc, char *why, size_t len)
{
  const char *golden = json_string_value (json_object_get (doc, "golden"));
  unsigned i;

  if (json_object_get (doc, "golden_merged"))
    return right_merged (l, doc, why, len);
  snprintf (why, len, "drift: %s is still there", golden);
  for (i = 0; i < l->nr_nodes; ++i)
    if (l->nodes[i]->kind == NODE_HIDDEN &&
        strcmp (l->nodes[i]->label, golden) == 0 &&
        right_document (l, l->nodes[i], doc, why, len)) {
      met.destroyed++;
      return true;
    }
  return false;
}

/* No golden image with clones may be missing: a snapshot, or a destroyed one
 * that the model remembers, or that a clone names.
 */
static bool
has_all (struct lineage *l, json_t *goldens, char *why, size_t len)
{
  const struct node *node;
  char name[64];
  unsigned i;

  for (i = 0; i < l->nr_nodes; ++i) {
    node = l->nodes[i];
    if (node->kind == NODE_VOLUME) {
      if (node->lost_origin[0] == '\0' || node->origin_unsure)
        continue;
      strcpy (name, node->lost_origin);
    }
    else if (has_family (l, node) == 1)
      node_name (node, name);
    else
      continue;
    if (find_golden (goldens, name) == NULL) {
      snprintf (why, len, "drift: %s is not among the golden images", name);
      return false;
    }
  }
  return true;
}

bool
right_goldens (struct lineage *l, json_t *result, char *why, size_t len)
{
  json_t *goldens = json_object_get (result, "goldens"), *doc;
  const struct node *node;
  const char *name;
  size_t i;

  json_array_foreach (goldens, i, doc) {
    name = json_string_value (json_object_get (doc, "golden"));
    if (is_destroyed (name)) {
      if (!right_destroyed (l, doc, why, len))
        return false;
      continue;
    }
    node = lineage_find (l, name);
    if (node == NULL || has_family (l, node) == 0) {
      snprintf (why, len, "drift: %s is among the golden images", name);
      return false;
    }
    if (!right_document (l, node, doc, why, len))
      return false;
  }
  if (are_by_name (goldens))
    return has_all (l, goldens, why, len);
  snprintf (why, len,
            "drift: the golden images are not in the order of their "
            "names");
  return false;
}

void
compare_all (struct rng *rng)
{
  json_t *result = drift (NULL, rng);
  char why[400];

  if (!right_goldens (&lineage, result, why, sizeof why))
    die ("%s\n%s", why, json_dumps (result, JSON_INDENT (1)));
  json_decref (result);
}

void
compare_each (struct rng *rng)
{
  char name[64], why[400];
  struct node *node;
  json_t *doc;
  unsigned i;

  for (i = 0; i < lineage.nr_nodes; ++i) {
    node = lineage.nodes[i];
    if (node->kind == NODE_VOLUME ||
        (node->kind == NODE_HIDDEN && has_family (&lineage, node) != 1) ||
        (has_family (&lineage, node) == 0 && !rng_percent (rng, 20)))
      continue;
    doc = drift (node_name (node, name), rng);
    if (node->kind == NODE_SNAPSHOT
          ? !right_document (&lineage, node, doc, why, sizeof why)
          : !right_destroyed (&lineage, doc, why, sizeof why))
      die ("%s\n%s", why, json_dumps (doc, JSON_INDENT (1)));
    json_decref (doc);
  }
}

void
compare (struct rng *rng)
{
  if (rng_percent (rng, 50))
    compare_all (rng);
  else
    compare_each (rng);
}

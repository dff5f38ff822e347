/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/volume-types.h"
#include "drift/golden.h"

/* 1, 0, -1 (EIO). */
static int
has_clones (const struct view *v, const struct view_name *n)
{
  size_t i;
  int r = 0;

  for (i = 0; i < v->nr_names && r == 0 && n->is_origin; ++i)
    r = view_is_clone_of (v, &v->names[i], n);
  return r;
}

static int
compare_names (const void *a, const void *b)
{
  const struct view_name *x = *(struct view_name *const *) a;
  const struct view_name *y = *(struct view_name *const *) b;
  int r = strverscmp (x->name, y->name);

  return r ? r : x->id < y->id ? -1 : x->id > y->id;
}

/* Sort them: the view has snapshots by the age of their volumes. */
struct view_name **
goldens_find (struct view *v, size_t *nr)
{
  struct view_name **goldens = malloc ((v->nr_names + 1) * sizeof *goldens);
  size_t i;
  int r = 0;

  if (goldens == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  *nr = 0;
  for (i = 0; i < v->nr_names && r != -1; ++i) {
    r = v->names[i].is_snapshot ? has_clones (v, &v->names[i]) : 0;
    if (r == 1)
      goldens[(*nr)++] = &v->names[i];
  }
  if (r == -1) {
    free (goldens);
    return NULL;
  }
  assert (*nr <= v->nr_names);
  if (*nr > 0)
    qsort (goldens, *nr, sizeof *goldens, compare_names);
  return goldens;
}

struct view_name *
golden_find_id (struct view *v, uint64_t id)
{
  size_t i;

  for (i = 0; i < v->nr_names; ++i)
    if (v->names[i].is_snapshot && v->names[i].id == id)
      return &v->names[i];
  return nbdedup_fail_null (ENOENT, "there is no snapshot %" PRIu64, id);
}

/* Is 'n' a destroyed snapshot with this former name, or with this label? */
static bool
was_called (const struct view_name *n, const char *name)
{
  size_t len = strlen (name);

  return n->layer == NULL && strncmp (n->name, name, len) == 0 &&
    (n->name[len] == '\0' ||
     (strchr (name, '@') && strcmp (n->name + len, VOLUME_DESTROYED) == 0));
}

/* 1, 0, -1 (EIO). */
static int
find_destroyed (struct view *v, const char *name, struct view_name **newest)
{
  size_t i;
  int r;

  *newest = NULL;
  for (i = 0; i < v->nr_names; ++i) {
    if (!was_called (&v->names[i], name) ||
        (*newest && v->names[i].id < (*newest)->id))
      continue;
    r = has_clones (v, &v->names[i]);
    if (r == -1)
      return -1;
    if (r == 1)
      *newest = &v->names[i];
  }
  return *newest != NULL;
}

struct view_name *
golden_find (struct view *v, const char *name)
{
  struct view_name *n = view_find (v, name);

  if (n == NULL && find_destroyed (v, name, &n) == 1)
    return n;
  if (n && !n->is_snapshot)
    return nbdedup_fail_null (EINVAL,
                              "%s is a volume: drift is measured from "
                              "a snapshot, NAME@SNAP",
                              name);
  return n;
}

/*----------------------------------------------------------------------
 * The layer that stands for a merged golden image
 */

static bool
stands_on (const struct view_layer *top, const struct view_layer *l)
{
  while (top && top != l)
    top = top->parent;
  return top != NULL;
}

static struct view_layer *
lowest_common (const struct drift_member *members, uint32_t nr)
{
  struct view_layer *common = members[1].name->layer;
  uint32_t i;

  for (i = 2; i < nr; ++i)
    while (common && !stands_on (members[i].name->layer, common))
      common = common->parent;
  return common;
}

/* The lower one of 'l' and the layer of 'n', if that is below. */
static struct view_layer *
lower (struct view_layer *l, const struct view_name *n)
{
  return stands_on (l, n->layer) ? n->layer : l;
}

struct view_layer *
golden_of_clones (const struct view *v, const struct drift_member *members,
                  uint32_t nr)
{
  struct view_layer *common = lowest_common (members, nr);
  const struct view_name *clone;
  uint32_t i;
  size_t j;

  assert (nr > 1); /* it has clones */
  if (common == NULL)
    return nbdedup_fail_null (EIO,
                              "pool.db: the clones of %s have no layer "
                              "in common: run nbdedup check",
                              members[0].name->name);
  for (i = 1; i < nr; ++i) {
    clone = members[i].name;
    for (j = 0; j < clone->nr_snapshots; ++j)
      common = lower (common, &v->names[clone->first_snapshot + j]);
  }
  return common;
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* Sums over the owners of a clone's blocks: trees, causes, packages. */

#include <config.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "drift-causes.h"
#include "drift-files.h"
#include "files-helper.h"

/* Files can be so many that one JSON object each is too slow to change: sums
 * are made here first.
 */
struct tally {
  char *name;        /* owned */
  const char *cause; /* of a file's bytes, static; or NULL */
  uint64_t sibling, unique;
};

struct tallies {
  struct tally *p; /* owned */
  size_t nr;
};

static size_t
add_tally (struct tallies *t, const char *name, size_t len)
{
  struct tally *tally = check_memory (array_add (&t->p, &t->nr, sizeof *tally));

  tally->name = make_string ("%.*s", (int) len, name);
  return t->nr - 1;
}

static void
add_to (struct tallies *t, size_t i, const struct owner *owner)
{
  assert (t->p != NULL && i < t->nr);
  t->p[i].sibling += owner->sibling;
  t->p[i].unique += owner->unique;
}

/* The most bytes first. */
static int
compare_tallies (const void *a, const void *b)
{
  const struct tally *x = a, *y = b;
  const uint64_t p = x->sibling + x->unique, q = y->sibling + y->unique;

  return p != q ? (p < q ? 1 : -1) : strcmp (x->name, y->name);
}

/* Set clone[list] to [{key: name, "sibling", "unique"}...], with "cause" where
 * that is known, and free.
 */
static void
store (struct tallies *t, json_t *clone, const char *list, const char *key)
{
  json_t *array = check_memory (json_array ());
  size_t i;

  if (t->nr > 0)
    qsort (t->p, t->nr, sizeof *t->p, compare_tallies);
  for (i = 0; i < t->nr; ++i) {
    json_array_append_new (array,
                           json_pack ("{s:s, s:s*, s:I, s:I}", key,
                                      t->p[i].name, "cause", t->p[i].cause,
                                      "sibling", (json_int_t) t->p[i].sibling,
                                      "unique", (json_int_t) t->p[i].unique));
    free (t->p[i].name);
  }
  free (t->p);
  json_object_set_new (clone, list, array);
}

/*----------------------------------------------------------------------
 * Trees
 */

/* "/" or "p2:/" at the start of a path; 0: a pseudo-path. */
static size_t
root_len (const char *path)
{
  const char *slash = strchr (path, '/');

  return *path == '<' || slash == NULL ? 0 : slash - path + 1;
}

/* The directories that contain the present path, the root first. */
struct open_trees {
  size_t *index; /* owned; in the tallies */
  size_t nr, cap;
};

static bool
contains (const struct tally *tree, const char *path)
{
  return strncmp (path, tree->name, strlen (tree->name)) == 0;
}

/* Paths are sorted, so those of a tree are neighbours. */
static void
enter_trees (struct open_trees *open, struct tallies *t, const char *path)
{
  size_t len;
  const char *slash;

  while (open->nr > 0 && !contains (&t->p[open->index[open->nr - 1]], path))
    open->nr--;
  len = open->nr > 0 ? strlen (t->p[open->index[open->nr - 1]].name) : 0;
  for (;;) {
    if (len == 0)
      len = root_len (path);
    else {
      slash = strchr (path + len, '/');
      len = slash == NULL ? 0 : slash - path + 1;
    }
    if (len == 0)
      return;
    if (array_reserve (&open->index, &open->cap, open->nr + 1,
                       sizeof *open->index) == -1)
      check_memory (NULL);
    assert (open->index != NULL);
    open->index[open->nr++] = add_tally (t, path, len);
  }
}

/* package[i] is that of owners[i], or NULL. */
static void
tally_files (json_t *clone, const struct owner *owners,
             const char *const *package, size_t nr)
{
  struct open_trees open = { NULL, 0, 0 };
  struct tallies t = { NULL, 0 };
  size_t i, j;

  for (i = 0; i < nr; ++i) {
    enter_trees (&open, &t, owners[i].path);
    for (j = 0; j < open.nr; ++j)
      add_to (&t, open.index[j], &owners[i]);
    j = add_tally (&t, owners[i].path, strlen (owners[i].path));
    add_to (&t, j, &owners[i]);
    t.p[j].cause = drift_cause (owners[i].path, package[i]);
  }
  free (open.index);
  store (&t, clone, "files", "path");
}

/*----------------------------------------------------------------------
 * Packages and causes
 */

static const struct owner *
find_owner (const struct owner *owners, size_t nr, const char *path)
{
  size_t i = array_position (nr, k, strcmp (owners[k].path, path) < 0);

  return i < nr && strcmp (owners[i].path, path) == 0 ? &owners[i] : NULL;
}

/* dpkg may know /bin/ls, which is in /usr/bin where /bin is a link to that. */
static const struct owner *
find_listed (const struct owner *owners, size_t nr, const char *path)
{
  const struct owner *owner = find_owner (owners, nr, path);
  char *merged;

  if (owner != NULL ||
      (strncmp (path, "/bin/", 5) != 0 && strncmp (path, "/sbin/", 6) != 0 &&
       strncmp (path, "/lib", 4) != 0))
    return owner;
  merged = make_string ("/usr%s", path);
  owner = find_owner (owners, nr, merged);
  free (merged);
  return owner;
}

/* packages[i] is the package of owners[i], or NULL; owned by the caller. */
static const char **
find_packages (const struct files_answer *answer, const struct owner *owners,
               size_t nr)
{
  const char **packages = check_memory (calloc (nr + 1, sizeof *packages));
  const struct owner *owner;
  char *line, *rest;
  size_t i;

  for (i = 0; i < answer->nr_packages; ++i)
    for (rest = answer->packages[i].files;
         (line = strsep (&rest, "\n")) != NULL;)
      if ((owner = find_listed (owners, nr, line)) != NULL)
        packages[owner - owners] = answer->packages[i].name;
  return packages;
}

/* The tally of a name, found or new. */
static size_t
find_tally (struct tallies *t, const char *name)
{
  size_t i;

  for (i = 0; i < t->nr; ++i)
    if (strcmp (t->p[i].name, name) == 0)
      return i;
  return add_tally (t, name, strlen (name));
}

void
drift_tally (json_t *clone, const struct files_answer *answer)
{
  struct tallies causes = { NULL, 0 }, packages = { NULL, 0 };
  size_t nr, i;
  const struct owner *owners = owner_map_owners (answer->map, &nr);
  const char **package = find_packages (answer, owners, nr);

  for (i = 0; i < nr; ++i) {
    add_to (&causes,
            find_tally (&causes, drift_cause (owners[i].path, package[i])),
            &owners[i]);
    if (package[i] != NULL)
      add_to (&packages, find_tally (&packages, package[i]), &owners[i]);
  }
  tally_files (clone, owners, package, nr);
  free (package);
  store (&causes, clone, "causes", "cause");
  store (&packages, clone, "packages", "package");
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* The owners of a clone's blocks (tools/owner-map.h, tools/drift-tally.c),
 * beside a naive model with an owner for each byte: random extents in random
 * order, which end inside blocks, random runs, paths that occur twice, and
 * trees.  Extents that overlap or lie outside are refused.
 *
 * ROUNDS and SEED come from the environment.
 */

#include <config.h>

#include <inttypes.h>
#include <jansson.h>

#include "drift-files.h"
#include "files-helper.h"
#include "rigs/testutil.h"

#define SIZE_MAX_BYTES 3000u
#define NR_PATHS 9u

/* Number 0 owns the rest. */
static const char *const paths[NR_PATHS] = {
  "<rest>", "/a",      "/a-b/c", "/a/b",      "/a/c/d",
  "/z",     "p2:/a/b", "p2:/c",  "<journal>",
};

static uint64_t seed;

static uint64_t
figure (const json_t *list, const char *key, const char *name,
        const char *class)
{
  uint64_t sum = 0;
  json_t *entry;
  size_t i;

  json_array_foreach (list, i, entry)
    if (strcmp (json_string_value (json_object_get (entry, key)), name) == 0)
      sum += json_integer_value (json_object_get (entry, class));
  return sum;
}

static void
expect (const json_t *list, const char *key, const char *name,
        const char *class, uint64_t expected)
{
  const uint64_t found = figure (list, key, name, class);

  if (found != expected)
    die ("SEED=%" PRIu64 ": %s has %" PRIu64 " bytes (%s), not %" PRIu64, seed,
         name, found, class, expected);
}

/* Disjoint extents, each byte with an owner in 'model', added out of order. */
static void
add_extents (struct owner_map *m, struct rng *rng, unsigned size,
             uint8_t *model)
{
  struct {
    unsigned offset, len, owner;
  } list[64], swap;
  unsigned nr = 0, at = 0, i, j;

  while (at < size && nr < 64) {
    at += rng_below (rng, 3) ? rng_below (rng, 100) : 0;
    if (at >= size)
      break;
    list[nr].offset = at;
    list[nr].len = rng_between (rng, 1, 150);
    if (list[nr].len > size - at)
      list[nr].len = size - at;
    list[nr].owner = rng_between (rng, 1, NR_PATHS - 1);
    memset (model + at, (int) list[nr].owner, list[nr].len);
    at += list[nr++].len;
  }
  for (i = 0; i < nr; ++i) {
    j = rng_between (rng, i, nr - 1);
    swap = list[i];
    list[i] = list[j];
    list[j] = swap;
    owner_map_owner (m, paths[list[i].owner], strlen (paths[list[i].owner]));
    if (owner_map_extent (m, list[i].offset, list[i].len) == -1)
      die ("SEED=%" PRIu64 ": extent refused", seed);
  }
}

static bool
is_in (const char *path, const char *tree)
{
  return strncmp (path, tree, strlen (tree)) == 0;
}

static void
one_round (struct rng *rng)
{
  static const char *const trees[] = { "/",     "/a/",  "/a/c/",
                                       "/a-b/", "p2:/", "p2:/a/" };
  static const char *const classes[] = { "sibling", "unique" };
  const unsigned size = rng_between (rng, 1, SIZE_MAX_BYTES);
  const unsigned block = 1u << rng_between (rng, 3, 8);
  uint64_t expected[2][NR_PATHS] = { { 0 } }, sum[2] = { 0, 0 }, tree, total;
  struct owner_map *m = owner_map_new (size, paths[0]);
  struct files_answer answer = { .map = m };
  json_t *clone = json_object (), *files;
  uint8_t model[SIZE_MAX_BYTES + 256] = { 0 };
  unsigned at, i, len, k;

  add_extents (m, rng, size, model);
  if (owner_map_end (m) == -1)
    die ("SEED=%" PRIu64 ": there is no overlap", seed);
  for (at = 0; at < size; at += block * rng_between (rng, 1, 5)) {
    if (rng_percent (rng, 40))
      continue;
    k = rng_below (rng, 2);
    len = block; /* the last block may end behind the image */
    owner_map_count (m, at, len, k);
    sum[k] += len;
    for (i = at; i < at + len; ++i)
      expected[k][model[i]]++;
  }
  drift_tally (clone, &answer);
  files = json_object_get (clone, "files");
  for (k = 0; k < 2; ++k) {
    for (i = total = 0; i < NR_PATHS; ++i) {
      expect (files, "path", paths[i], classes[k], expected[k][i]);
      total += expected[k][i];
    }
    if (total != sum[k])
      die ("SEED=%" PRIu64 ": the model is wrong", seed);
    for (at = 0; at < sizeof trees / sizeof trees[0]; ++at) {
      for (i = tree = 0; i < NR_PATHS; ++i)
        tree += is_in (paths[i], trees[at]) ? expected[k][i] : 0;
      expect (files, "path", trees[at], classes[k], tree);
    }
  }
  json_decref (clone);
  owner_map_free (m);
}

static void
test_refused (void)
{
  struct owner_map *m = owner_map_new (1000, "<rest>");
  const struct owner *owners;
  size_t nr;

  if (owner_map_extent (m, 0, 1) != -1)
    die ("an extent without an owner");
  owner_map_owner (m, "/x\n\xff/", 5);
  if (owner_map_extent (m, 0, 0) != -1 || owner_map_extent (m, 1000, 1) != -1 ||
      owner_map_extent (m, 999, 2) != -1 ||
      owner_map_extent (m, 10, UINT64_MAX) != -1)
    die ("an extent outside of the image");
  if (owner_map_extent (m, 0, 1000) != 0 || owner_map_end (m) != 0 ||
      owner_map_extent (m, 999, 1) != 0 || owner_map_end (m) != -1)
    die ("an overlap");
  owner_map_clear (m, "<lost>");
  owner_map_count (m, 0, 1024, true);
  owners = owner_map_owners (m, &nr);
  if (nr != 1 || owners[0].unique != 1024 ||
      strcmp (owners[0].path, "<lost>") != 0)
    die ("not all is lost");
  owner_map_free (m);
  m = owner_map_new (1000, "<rest>");
  owner_map_owner (m, "/x\n\xff/", 5);
  if (owner_map_extent (m, 0, 1000) != 0 || owner_map_end (m) != 0)
    die ("the whole image");
  owner_map_count (m, 0, 1000, false);
  owners = owner_map_owners (m, &nr);
  if (nr != 1 || strcmp (owners[0].path, "/x\\x0a\\xff\\x2f") != 0)
    die ("not clean: %s", owners[0].path);
  owner_map_free (m);
}

int
main (void)
{
  const char *rounds = getenv ("ROUNDS"), *s = getenv ("SEED");
  unsigned i, nr = rounds ? atoi (rounds) : 3000;
  struct rng rng;

  test_refused ();
  seed = s ? strtoull (s, NULL, 10) : 1;
  for (i = 0; i < nr; ++i, ++seed) {
    rng = rng_make (seed, 1);
    one_round (&rng);
  }
  return 0;
}

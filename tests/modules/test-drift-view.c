/* SPDX-License-Identifier: BSD-3-Clause */

/* Two parts of the page of "nbdedup drift", beside naive models.
 *
 * The block map (tools/drift-map.h, tools/drift-view-map.c): random runs in
 * volumes of random sizes.  Each cell has the counts of a model with a class
 * for each block, and the picture's rectangles fill each cell with the classes
 * that it has, and no others, in proportion.
 *
 * The directories (tools/drift-view-why.c): random trees of several clones.
 *
 * ROUNDS and SEED come from the environment.
 */

#include <config.h>

#include <inttypes.h>
#include <string.h>

#include <jansson.h>

#include "drift-map.h"
#include "drift-report.h"
#include "drift-view.h"
#include "rigs/testutil.h"
#include "tools.h"

#define BLOCKS_MAX 200000u
/* Units of the picture: a cell, and the room for labels. */
#define CELL 10
#define LEFT 64

static uint64_t seed;

/*----------------------------------------------------------------------
 * Map
 */

/* The classes of the blocks; 'map' gets the same as runs. */
static void
add_runs (struct drift_map *map, struct rng *rng, uint64_t nr, uint8_t *model)
{
  uint64_t block = 0, len;
  unsigned class;

  while (block < nr) {
    block += rng_below (rng, rng_below (rng, 3) == 0 ? nr / 2 + 1 : 20);
    len = 1 + rng_below (rng, rng_below (rng, 3) == 0 ? nr / 4 + 1 : 20);
    if (block >= nr)
      return;
    if (len > nr - block)
      len = nr - block;
    class = rng_below (rng, 4);
    /* What lies behind the end counts for nothing. */
    drift_map_add (map, block, block + len == nr ? len + 5 : len,
                   (enum nbdedup_class) class);
    memset (model + block, (int) class, len);
    block += len;
  }
}

static uint64_t
count (const uint8_t *model, uint64_t nr, unsigned class)
{
  uint64_t sum = 0, i;

  for (i = 0; i < nr; ++i)
    sum += model[i] == class;
  return sum;
}

static void
check_cells (const json_t *json, const uint8_t *model, uint64_t nr)
{
  const uint64_t cell_blocks = json_size (json, "cell_blocks");
  const json_t *cells = json_object_get (json, "cells");
  uint64_t first, len, found;
  json_t *cell;
  size_t i, j;

  if (json_array_size (cells) > MAP_CELLS_MAX ||
      json_array_size (cells) != (nr + cell_blocks - 1) / cell_blocks ||
      (cell_blocks > 1 && json_array_size (cells) <= MAP_CELLS_MAX / 2))
    die ("SEED=%" PRIu64 ": %zu cells of %" PRIu64 " blocks for %" PRIu64, seed,
         json_array_size (cells), cell_blocks, nr);
  json_array_foreach (cells, i, cell) {
    first = i * cell_blocks;
    len = cell_blocks < nr - first ? cell_blocks : nr - first;
    for (j = 0; j < 3; ++j) {
      found = (uint64_t) json_integer_value (json_array_get (cell, j));
      if (found !=
          count (model + first, len, NBDEDUP_GOLDEN_MOVED + (unsigned) j))
        die ("SEED=%" PRIu64 ": cell %zu has %" PRIu64 " blocks of class %zu",
             seed, i, found, j + 1);
    }
  }
}

/* Add the rectangles' heights to those of their cells. */
static void
read_path (const char *path, size_t nr, unsigned heights[MAP_CELLS_MAX])
{
  unsigned x, y, width, height;
  size_t cell, i;
  int len;

  memset (heights, 0, MAP_CELLS_MAX * sizeof *heights);
  for (; *path != '\0'; path += len) {
    len = 0;
    if (sscanf (path, "M%u %uh%uv-%uh-%*uz%n", &x, &y, &width, &height, &len) !=
          4 ||
        len == 0)
      die ("SEED=%" PRIu64 ": path '%s'", seed, path);
    cell = (y - 1) / CELL * MAP_COLUMNS + (x - LEFT) / CELL;
    for (i = 0; i < width / CELL; ++i) {
      if (x < LEFT || cell + i >= nr || y < height ||
          (y - height) / CELL != (y - 1) / CELL)
        die ("SEED=%" PRIu64 ": a rectangle leaves its cell", seed);
      heights[cell + i] += height;
    }
  }
}

static void
check_heights (const json_t *json, const json_t *view, uint64_t nr)
{
  static unsigned heights[3][MAP_CELLS_MAX];
  const uint64_t cell_blocks = json_size (json, "cell_blocks");
  const json_t *layers = json_object_get (view, "layers");
  json_t *cell;
  size_t i, j;

  for (j = 0; j < 3; ++j)
    read_path (json_text (json_array_get (layers, j), "path"),
               json_array_size (json_object_get (json, "cells")), heights[j]);
  json_array_foreach (json_object_get (json, "cells"), i, cell) {
    const uint64_t left = nr - i * cell_blocks;
    const double blocks = (double) (cell_blocks < left ? cell_blocks : left);
    unsigned sum = 0;

    for (j = 0; j < 3; ++j) {
      /* The first layer is of the last class. */
      const double has = json_number_value (json_array_get (cell, 2 - j));
      const double off = has * CELL / blocks - heights[j][i];

      sum += heights[j][i];
      if ((has > 0) != (heights[j][i] > 0) || off > 2.1 || off < -1)
        die ("SEED=%" PRIu64 ": cell %zu, layer %zu: %.0f of %.0f blocks are "
             "%u units high",
             seed, i, j, has, blocks, heights[j][i]);
    }
    if (sum > CELL)
      die ("SEED=%" PRIu64 ": cell %zu is %u units full", seed, i, sum);
  }
}

static void
test_map (struct rng *rng)
{
  static uint8_t model[BLOCKS_MAX];
  const uint64_t nr = 1 +
    rng_below (rng, rng_below (rng, 2) == 0 ? 100 : BLOCKS_MAX);
  const uint64_t size = nr * 4096 - rng_below (rng, 4096);
  struct drift_map *map = drift_map_new (size, 4096);
  json_t *json, *view;

  memset (model, NBDEDUP_GOLDEN_SAME, sizeof model);
  add_runs (map, rng, nr, model);
  json = drift_map_json (map);
  drift_map_free (map);
  check_cells (json, model, nr);
  view = drift_view_map (json, "x");
  check_heights (json, view, nr);
  json_decref (view);
  json_decref (json);
}

/*----------------------------------------------------------------------
 * Directories
 */

#define NR_FILES 60u
#define NR_CLONES 3u

struct file {
  char path[64];
  uint64_t bytes; /* of all clones */
  bool is_taken;
};

/* A path of short names, so that many are in the same directories. */
static void
make_path (struct rng *rng, char path[64])
{
  unsigned depth = 1 + rng_below (rng, 5);
  size_t len = 0;

  if (rng_below (rng, 10) == 0) {
    snprintf (path, 64, "<%c>", 'a' + (int) rng_below (rng, 3));
    return;
  }
  if (rng_below (rng, 5) == 0)
    len = (size_t) snprintf (path, 64, "p2:");
  while (depth-- > 0)
    len += (size_t) snprintf (path + len, 64 - len, "/%s%c",
                              rng_below (rng, 4) == 0 ? "a-" : "",
                              'a' + (int) rng_below (rng, 2));
  snprintf (path + len, 64 - len, ".%u", (unsigned) rng_below (rng, 1000));
}

static json_t *
entry_of (const char *path, size_t len, uint64_t bytes, bool is_file)
{
  json_t *entry = json_pack ("{s:s%, s:i, s:I}", "path", path, len, "sibling",
                             0, "unique", (json_int_t) bytes);

  if (is_file)
    json_object_set_new (entry, "cause", json_string ("other files"));
  return entry;
}

/* Count the bytes for a directory of a clone. */
static void
add_tree (json_t *files, const char *path, size_t len, uint64_t bytes)
{
  json_t *entry;
  size_t i;

  json_array_foreach (files, i, entry)
    if (strlen (json_text (entry, "path")) == len &&
        strncmp (json_text (entry, "path"), path, len) == 0) {
      json_object_set_new (entry, "unique",
                           json_integer (
                             (json_int_t) (json_size (entry, "unique") +
                                           bytes)));
      return;
    }
  json_array_append_new (files, entry_of (path, len, bytes, false));
}

static json_t *
make_clone (struct rng *rng, struct file *all, unsigned number)
{
  json_t *files = json_array ();
  uint64_t sum = 0, bytes;
  char name[16];
  size_t i, j;

  snprintf (name, sizeof name, "c%u", number);
  for (i = number; i < NR_FILES; i += NR_CLONES) {
    bytes = 512 * (1 + rng_below (rng, rng_below (rng, 4) == 0 ? 5000 : 50));
    all[i].bytes = bytes;
    sum += bytes;
    json_array_append_new (files,
                           entry_of (all[i].path, strlen (all[i].path), bytes,
                                     true));
    for (j = 0; all[i].path[j] != '\0' && *all[i].path != '<'; ++j)
      if (all[i].path[j] == '/')
        add_tree (files, all[i].path, j + 1, bytes);
  }
  return json_pack ("{s:s, s:I, s:o, s:[{s:s, s:i, s:I}], s:[], s:[]}", "name",
                    name, "unique", (json_int_t) sum / 512, "files", files,
                    "causes", "cause", "other files", "sibling", 0, "unique",
                    (json_int_t) sum, "packages", "notes");
}

static bool
is_below (const struct file *file, const char *place, size_t len)
{
  return strncmp (file->path, place, len) == 0 &&
    (place[len - 1] == '/' || file->path[len] == '\0');
}

/* Does the page give that place these bytes? */
static bool
has_place (const json_t *places, const char *path, size_t len, uint64_t bytes)
{
  char total[HUMAN_MAX];
  json_t *place;
  size_t i;

  human_bytes (bytes, total);
  json_array_foreach (places, i, place)
    if (strlen (json_text (place, "what")) == len &&
        strncmp (json_text (place, "what"), path, len) == 0)
      return strcmp (json_text (place, "total"), total) == 0;
  return false;
}

/* Take what lies in the place, if it is enough: 1. */
static size_t
take_place (const json_t *places, struct file *all, const char *path,
            size_t len, uint64_t least)
{
  uint64_t bytes = 0;
  size_t i;

  for (i = 0; i < NR_FILES; ++i)
    if (!all[i].is_taken && is_below (&all[i], path, len))
      bytes += all[i].bytes;
  if (bytes < least)
    return 0;
  if (!has_place (places, path, len, bytes))
    die ("SEED=%" PRIu64 ": %.*s, with %" PRIu64 " bytes, is not in the page",
         seed, (int) len, path, bytes);
  for (i = 0; i < NR_FILES; ++i)
    all[i].is_taken |= is_below (&all[i], path, len);
  return 1;
}

/* The longest paths first, so that each place comes after those below it. */
static void
check_places (const json_t *places, struct file *all, uint64_t sum)
{
  const uint64_t least = sum / 32 + 1;
  uint64_t rest = 0;
  size_t len, i, nr = 0;

  for (len = 64; len-- > 1;)
    for (i = 0; i < NR_FILES; ++i)
      if (len <= strlen (all[i].path) &&
          (*all[i].path == '<' ? all[i].path[len] == '\0'
                               : all[i].path[len - 1] == '/'))
        nr += take_place (places, all, all[i].path, len, least);
  for (i = 0; i < NR_FILES; ++i)
    if (!all[i].is_taken)
      rest += all[i].bytes;
  if (rest > 0 && !has_place (places, "elsewhere", 9, rest))
    die ("SEED=%" PRIu64 ": %" PRIu64 " bytes are missing", seed, rest);
  if (json_array_size (places) != nr + (rest > 0))
    die ("SEED=%" PRIu64 ": %zu places, not %zu", seed,
         json_array_size (places), nr + (rest > 0));
}

static void
test_places (struct rng *rng)
{
  struct file all[NR_FILES];
  json_t *clones = json_array (), *document, *view = json_object ();
  uint64_t sum = 0;
  size_t i, j;

  memset (all, 0, sizeof all);
  for (i = 0; i < NR_FILES; ++i) {
    make_path (rng, all[i].path);
    for (j = 0; j < i; ++j)
      if (strcmp (all[i].path, all[j].path) == 0) {
        snprintf (all[i].path, sizeof all[i].path, "/b/x%zu", i);
        break;
      }
  }
  for (i = 0; i < NR_CLONES; ++i)
    json_array_append_new (clones, make_clone (rng, all, (unsigned) i));
  for (i = 0; i < NR_FILES; ++i)
    sum += all[i].bytes;
  document = json_pack ("{s:i, s:o}", "block_size", 512, "clones", clones);
  drift_view_why (view, document);
  check_places (json_object_get (json_object_get (view, "why"), "places"), all,
                sum);
  if (json_array_size (json_object_get (view, "reasons")) != NR_CLONES)
    die ("SEED=%" PRIu64 ": a clone has no reasons", seed);
  json_decref (document);
  json_decref (view);
}

int
main (void)
{
  const char *rounds = getenv ("ROUNDS"), *s = getenv ("SEED");
  unsigned i, nr = rounds ? (unsigned) atoi (rounds) : 300;
  struct rng rng;

  seed = s ? strtoull (s, NULL, 10) : 1;
  for (i = 0; i < nr; ++i, ++seed) {
    rng = rng_make (seed, 1);
    test_map (&rng);
    test_places (&rng);
  }
  return 0;
}

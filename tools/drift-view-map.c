/* SPDX-License-Identifier: BSD-3-Clause */

/* The block map as SVG: each cell is filled from the bottom, in proportion, by
 * what is unique, only among siblings, and moved.
 */

#include <config.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drift-map.h"
#include "drift-report.h"
#include "drift-view.h"
#include "tools.h"

/* Units of the picture. */
#define CELL 10
#define LEFT 64 /* room for labels */
#define LABELS_MAX 8

/* From the bottom up; the numbers are those of a cell's array. */
static const struct {
  size_t in_cell;
  const char *key;
} layers[] = { { 2, "unique" }, { 1, "sibling" }, { 0, "golden_moved" } };

#define NR_LAYERS (sizeof layers / sizeof layers[0])

static uint64_t
number_at (const json_t *array, size_t i)
{
  return (uint64_t) json_integer_value (json_array_get (array, i));
}

/* The heights of a cell's layers: what is there can be seen. */
static void
get_heights (const json_t *cell, uint64_t blocks, unsigned heights[NR_LAYERS])
{
  unsigned sum = 0, most = 0;
  size_t i;

  for (i = 0; i < NR_LAYERS; ++i) {
    const uint64_t nr = number_at (cell, layers[i].in_cell);

    heights[i] = (unsigned) ((double) nr * CELL / blocks + 0.5);
    if (heights[i] == 0 && nr > 0)
      heights[i] = 1;
    if (heights[i] > heights[most])
      most = i;
    sum += heights[i];
  }
  if (sum > CELL)
    heights[most] -= sum - CELL;
}

static bool
is_at (const unsigned heights[NR_LAYERS], size_t layer, unsigned *from,
       unsigned *height)
{
  size_t i;

  *from = 0;
  for (i = 0; i < layer; ++i)
    *from += heights[i];
  *height = heights[layer];
  return *height > 0;
}

struct grid {
  const json_t *cells;
  size_t nr;
  uint64_t cell_blocks, last_blocks; /* the last cell may have fewer */
};

static bool
layer_at (const struct grid *g, size_t i, size_t layer, unsigned *from,
          unsigned *height)
{
  unsigned heights[NR_LAYERS];

  get_heights (json_array_get (g->cells, i),
               i + 1 == g->nr ? g->last_blocks : g->cell_blocks, heights);
  return is_at (heights, layer, from, height);
}

/* The path of a layer.  Neighbours of the same height are one rectangle. */
static json_t *
layer_path (const struct grid *g, size_t layer)
{
  char *text = NULL;
  size_t len, i, n;
  unsigned from, height, f, h;
  FILE *fp = check_memory (open_memstream (&text, &len));
  json_t *path;

  for (i = 0; i < g->nr; i += n) {
    n = 1;
    if (!layer_at (g, i, layer, &from, &height))
      continue;
    while (i + n < g->nr && (i + n) % MAP_COLUMNS != 0 &&
           layer_at (g, i + n, layer, &f, &h) && f == from && h == height)
      n++;
    fprintf (fp, "M%zu %zuh%zuv-%uh-%zuz", LEFT + i % MAP_COLUMNS * CELL,
             (i / MAP_COLUMNS + 1) * CELL - from, n * CELL, height, n * CELL);
  }
  check_memory (fclose (fp) == 0 ? text : NULL);
  path = view_pack ("s", text);
  free (text);
  return path;
}

static json_t *
layers_view (const struct grid *g, const char *prefix)
{
  json_t *views = view_pack ("[]");
  size_t i;

  for (i = 0; i < NR_LAYERS; ++i)
    json_array_append_new (views,
                           view_pack ("{s:s, s:s, s:o}", "layer", layers[i].key,
                                      "prefix", prefix, "path",
                                      layer_path (g, i)));
  return views;
}

/* The outline of all cells, and the lines between them. */
static char *
outline (size_t nr)
{
  const size_t full = nr / MAP_COLUMNS, rest = nr % MAP_COLUMNS;
  char *rows = make_string ("M%d 0h%dv%zuh-%dz", LEFT, MAP_COLUMNS * CELL,
                            full * CELL, MAP_COLUMNS * CELL);
  char *last = make_string ("M%d %zuh%zuv%dh-%zuz", LEFT, full * CELL,
                            rest * CELL, CELL, rest * CELL);
  char *path = make_string ("%s%s", full > 0 ? rows : "", rest > 0 ? last : "");

  free (rows);
  free (last);
  return path;
}

static char *
grid_lines (size_t nr)
{
  const size_t full = nr / MAP_COLUMNS, rest = nr % MAP_COLUMNS;
  char *text = NULL;
  size_t len, i;
  FILE *fp = check_memory (open_memstream (&text, &len));

  for (i = 1; i <= full; ++i)
    fprintf (fp, "M%d %zuh%zu", LEFT, i * CELL,
             (i < full ? MAP_COLUMNS : rest) * CELL);
  for (i = 1; i < MAP_COLUMNS && (full > 0 || i < rest); ++i)
    fprintf (fp, "M%zu 0v%zu", LEFT + i * CELL, (full + (i < rest)) * CELL);
  return check_memory (fclose (fp) == 0 ? text : NULL);
}

/* Offsets in the volume, at the left of some rows. */
static json_t *
labels_view (size_t rows, uint64_t row_bytes)
{
  json_t *views = view_pack ("[]");
  char buf[HUMAN_MAX];
  size_t step = 1, i;

  while ((rows - 1) / step >= LABELS_MAX)
    step *= 2;
  for (i = 0; i < rows; i += step)
    json_array_append_new (views,
                           view_pack ("{s:I, s:I, s:s}", "x",
                                      (json_int_t) LEFT - 5, "y",
                                      (json_int_t) (i * CELL + CELL - 1),
                                      "offset",
                                      i == 0
                                        ? "0"
                                        : human_bytes (i * row_bytes, buf)));
  return views;
}

/* How many cells have some of a layer? */
static json_int_t
count_cells (const struct grid *g, size_t layer)
{
  json_int_t nr = 0;
  json_t *cell;
  size_t i;

  json_array_foreach (g->cells, i, cell)
    nr += number_at (cell, layers[layer].in_cell) > 0;
  return nr;
}

json_t *
drift_view_map (const json_t *map, const char *prefix)
{
  const uint64_t block_size = json_size (map, "block_size");
  const uint64_t size = json_size (map, "size");
  struct grid g = {
    .cells = json_object_get (map, "cells"),
    .cell_blocks = json_size (map, "cell_blocks"),
  };
  const uint64_t cell_bytes = g.cell_blocks * block_size;
  char *cells_path, *lines_path;
  size_t rows;
  json_t *view;

  g.nr = json_array_size (g.cells);
  if (g.nr == 0 || cell_bytes == 0)
    return NULL;
  g.last_blocks = (size - (g.nr - 1) * cell_bytes + block_size - 1) /
    block_size;
  rows = (g.nr + MAP_COLUMNS - 1) / MAP_COLUMNS;
  cells_path = outline (g.nr);
  lines_path = grid_lines (g.nr);
  view = view_pack (
    "{s:I, s:I, s:o, s:o, s:o, s:I, s:b, s:s, s:s, s:o, s:o, s:I, s:I, s:I}",
    "map_width", (json_int_t) LEFT + MAP_COLUMNS * CELL + 1, "map_height",
    (json_int_t) rows * CELL + 1, "cell", view_bytes (cell_bytes), "map_row",
    view_bytes (cell_bytes * MAP_COLUMNS), "block", view_bytes (block_size),
    "cell_blocks", (json_int_t) g.cell_blocks, "one_block", g.cell_blocks == 1,
    "cells_path", cells_path, "lines_path", lines_path, "layers",
    layers_view (&g, prefix), "offsets",
    labels_view (rows, cell_bytes * MAP_COLUMNS), "nr_cells", (json_int_t) g.nr,
    "unique_cells", count_cells (&g, 0), "sibling_cells", count_cells (&g, 1));
  free (cells_path);
  free (lines_path);
  return view;
}

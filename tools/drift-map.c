/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <stdlib.h>

#include "drift-map.h"
#include "tools.h"

/* "Same" counts for none: neither do inherited blocks, which are in no run. */
enum {
  CELL_MOVED,
  CELL_SIBLING,
  CELL_UNIQUE,
  NR_CELL_CLASSES,
};

struct cell {
  uint64_t blocks[NR_CELL_CLASSES];
};

struct drift_map {
  uint64_t size, block_size;
  uint64_t nr_blocks, cell_blocks;
  size_t nr_cells;
  struct cell cells[MAP_CELLS_MAX];
};

/* Cells of a power of two blocks have round sizes. */
struct drift_map *
drift_map_new (uint64_t size, uint64_t block_size)
{
  struct drift_map *map = check_memory (calloc (1, sizeof *map));

  assert (block_size > 0);
  map->size = size;
  map->block_size = block_size;
  map->nr_blocks = size / block_size + (size % block_size != 0);
  map->cell_blocks = 1;
  while ((map->nr_blocks - 1) / map->cell_blocks >= MAP_CELLS_MAX &&
         map->nr_blocks > 0)
    map->cell_blocks *= 2;
  map->nr_cells = map->nr_blocks / map->cell_blocks +
    (map->nr_blocks % map->cell_blocks != 0);
  return map;
}

void
drift_map_free (struct drift_map *map)
{
  free (map);
}

void
drift_map_add (struct drift_map *map, uint64_t block, uint64_t nr,
               enum nbdedup_class class)
{
  static const int of_class[] = {
    [NBDEDUP_GOLDEN_SAME] = -1,
    [NBDEDUP_GOLDEN_MOVED] = CELL_MOVED,
    [NBDEDUP_SIBLING] = CELL_SIBLING,
    [NBDEDUP_UNIQUE] = CELL_UNIQUE,
    [NBDEDUP_ZERO] = -1,
  };
  uint64_t part;

  if (block >= map->nr_blocks || of_class[class] == -1)
    return;
  if (nr > map->nr_blocks - block)
    nr = map->nr_blocks - block;
  for (; nr > 0; nr -= part, block += part) {
    part = map->cell_blocks - block % map->cell_blocks;
    if (part > nr)
      part = nr;
    map->cells[block / map->cell_blocks].blocks[of_class[class]] += part;
  }
}

json_t *
drift_map_json (const struct drift_map *map)
{
  json_t *cells = check_memory (json_array ());
  size_t i;

  for (i = 0; i < map->nr_cells; ++i) {
    const uint64_t *blocks = map->cells[i].blocks;

    json_array_append_new (cells,
                           json_pack ("[I, I, I]",
                                      (json_int_t) blocks[CELL_MOVED],
                                      (json_int_t) blocks[CELL_SIBLING],
                                      (json_int_t) blocks[CELL_UNIQUE]));
  }
  return check_memory (json_pack ("{s:I, s:I, s:I, s:o}", "cell_blocks",
                                  (json_int_t) map->cell_blocks, "block_size",
                                  (json_int_t) map->block_size, "size",
                                  (json_int_t) map->size, "cells", cells));
}

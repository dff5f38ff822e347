/* SPDX-License-Identifier: BSD-3-Clause */

/* The block map of a clone: its volume in at most MAP_CELLS_MAX cells of equal
 * size, each with the number of its blocks of each class that left their place
 * in the golden image.
 *
 *   {"cell_blocks", "block_size", "size": bytes of the volume,
 *    "cells": [[moved, sibling, unique]...]}
 *
 * The program ends if there is no memory.
 */

#ifndef NBDEDUP_DRIFT_MAP_H
#define NBDEDUP_DRIFT_MAP_H

#include <stdint.h>

#include <jansson.h>

#include "nbdedup.h"

/* The most diverged clones have one. */
#define CLONES_MAPPED 6

#define MAP_COLUMNS 32
#define MAP_CELLS_MAX (MAP_COLUMNS * 48)

struct drift_map;

extern struct drift_map *drift_map_new (uint64_t size, uint64_t block_size);
extern void drift_map_free (struct drift_map *map);

/* Count the part of a run that lies in the volume. */
extern void drift_map_add (struct drift_map *map, uint64_t block, uint64_t nr,
                           enum nbdedup_class class);

/* A new reference. */
extern json_t *drift_map_json (const struct drift_map *map);

#endif /* NBDEDUP_DRIFT_MAP_H */

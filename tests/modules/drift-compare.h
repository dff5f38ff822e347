/* SPDX-License-Identifier: BSD-3-Clause */

/* Shared by test-drift.c (the histories) and drift-compare.c (what drift says
 * while they go on).
 */

#ifndef NBDEDUP_DRIFT_COMPARE_H
#define NBDEDUP_DRIFT_COMPARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "models/lineage-history.h"

/* What occurred in all rounds. */
extern struct drift_met {
  uint64_t families, unsure, clones, further, through_destroyed;
  uint64_t zero, golden_same, golden_moved, sibling, unique;
  uint64_t without_dedup, only_here, sets, freed_something;
  uint64_t destroyed, merged; /* golden images */
  uint64_t large;             /* more than fits into the minimum of memory */
  uint64_t sightings, overlapping;
} met;

/* The settings of one round. */
extern struct drift_round {
  const char *compress; /* NULL: set at random */
  const char *domain;   /* NULL: none */
  uint32_t sector_bytes;
  uint32_t block_size; /* 0: any */
  uint64_t max_blocks;
} config;

extern struct nbdedup_pool *pool;
extern struct lineage lineage;

/* Call "drift" for the golden image of this name; NULL: for all.  The caller
 * frees the result.
 */
extern json_t *drift (const char *name, struct rng *rng);

/* True if the result of a call for all has every snapshot that others are cloned
 * from, destroyed ones too, and no others, sorted by name, each one right.  Else
 * 'why' says what is wrong.
 */
extern bool
right_goldens (struct lineage *l, json_t *result, char *why, size_t len);

/* Compare drift with the model: in one call for all golden images, in one for
 * each, or at random in one of both ways.  A difference ends the program.
 */
extern void compare_all (struct rng *rng);
extern void compare_each (struct rng *rng);
extern void compare (struct rng *rng);

#endif /* NBDEDUP_DRIFT_COMPARE_H */

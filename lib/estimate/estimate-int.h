/* SPDX-License-Identifier: BSD-3-Clause */

/* The counts of estimate.c, from which estimate-result.c computes figures. */

#ifndef NBDEDUP_ESTIMATE_INT_H
#define NBDEDUP_ESTIMATE_INT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/lock.h"
#include "estimate/compare.h"
#include "estimate/estimate-set.h"
#include "format/codec.h"

#define ESTIMATE_SIZES_MAX 9 /* 4 KiB ... 1 MiB */

/* A sample of distinct blocks, and the sectors x that each takes.  Each block
 * has its own probability p of being in the sample, and represents 1 / p
 * blocks.
 */
struct sector_sample {
  uint64_t nr;
  double weight;  /* sum of 1 / p */
  double sectors; /* sum of x / p */
  /* Sums of c, c x, c x^2 with c = (1 - p) / p^2: for the error. */
  double c, cx, cxx;
};

struct size_counts {
  uint32_t block_size;
  struct content_set *set;     /* owned */
  atomic_uint_fast64_t blocks; /* of all images, zero or not */
  atomic_uint_fast64_t nonzero;
  atomic_uint_fast64_t seen; /* distinct ones so far, approximately */
  struct lock lock;          /* protects everything below */
  struct sector_sample sample;
};

struct scratch;

struct nbdedup_estimate {
  struct compression compression;
  uint32_t sector_bytes;
  bool exact;
  double sample; /* SAMPLE of estimate.c, or the caller's */
  struct set_budget budget;
  struct size_counts sizes[ESTIMATE_SIZES_MAX]; /* ascending */
  unsigned nr_sizes;
  uint64_t memory_bytes;
  struct compare *compare; /* owned; NULL: classes are not wanted */
  struct lock lock;        /* protects everything below */
  struct scratch *scratch; /* owned; a list of the unused ones */
};

#endif /* NBDEDUP_ESTIMATE_INT_H */

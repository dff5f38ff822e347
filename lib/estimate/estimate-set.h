/* SPDX-License-Identifier: BSD-3-Clause */

/* Counts distinct contents with a set of hashes in bounded memory.
 *
 * While all hashes fit the count is exact.  When they no longer do, the
 * set keeps a sample: those whose hash begins with 'depth' zero bits, one
 * more bit each time that the set is full again.  Whether a content is in the
 * sample depends on its hash only, not on how often or when it appears, so
 * this is a sample of the distinct contents, and kept * 2^depth estimates
 * their number without bias (P. Flajolet, "On adaptive sampling", Computing
 * 34, 1990).  'depth' never shrinks: a content in the sample was in it at
 * its first appearance, hence set_add recognizes a first appearance reliably.
 *
 * Hashes.  XXH3-128 of a content represents the content.  The set compares 70
 * bits of it: 64 are stored, 6 choose the shard.  Among n contents it takes
 * n^2 / 2^71 pairs of different ones for equal on average: with a full set of
 * 1 GiB (2^27 hashes at most) 0.00001.  XXH3 is no cryptographic hash: an
 * attacker can make different blocks with the same hash, and the estimate for
 * an image full of these is too small.  Only the estimate would be wrong: the
 * pool itself uses SHA-256, or another hash that withstands that.
 *
 * Threads: any number may call set_add; set_figures and set_free need the
 * set alone.  The shards' locks are innermost.
 */

#ifndef NBDEDUP_ESTIMATE_SET_H
#define NBDEDUP_ESTIMATE_SET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <xxhash.h>

/* Memory that several sets share. */
struct set_budget {
  atomic_uint_fast64_t used_bytes;
  uint64_t max_bytes;
};

struct content_set;

/* The budget is not owned and must outlive the set.  It reserves 'own_bytes',
 * at least SET_BYTES_MIN, for this set: otherwise the set that fills fastest
 * would leave nothing for those of larger blocks, which need little.
 * 'may_sample' false: set_add fails instead of sampling.  NULL: ENOMEM.
 */
#define SET_BYTES_MIN (UINT64_C (16) << 10)
extern struct content_set *
set_new (struct set_budget *budget, uint64_t own_bytes, bool may_sample);
extern void set_free (struct content_set *set);

/* Returns 1 if this is the first appearance of a content that is in the
 * sample, and the present *depth: the set admits contents with a probability
 * of 2^-depth.  0: the content is known, or not in the sample.  -1 (ENOSPC):
 * no memory left, and no sampling allowed.
 */
extern int
set_add (struct content_set *set, const XXH128_hash_t *hash, unsigned *depth);

/* Prefetch memory for a set_add of this hash, which will follow soon. */
extern void set_prefetch (struct content_set *set, const XXH128_hash_t *hash);

struct set_figures {
  uint64_t kept;  /* contents in the sample */
  unsigned depth; /* 0: all contents are kept */
};

extern void set_figures (struct content_set *set, struct set_figures *f);

#endif /* NBDEDUP_ESTIMATE_SET_H */

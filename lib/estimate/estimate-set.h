/* SPDX-License-Identifier: BSD-3-Clause */

/* How many distinct contents are there?  A set of hashes in bounded memory.
 *
 * While all of them fit the count is exact.  When they no longer do, the
 * set keeps a sample: those whose hash begins with 'depth' zero bits, one
 * more bit each time that it is full again.  Whether a content is in the
 * sample depends on its hash only, not on how often or when it comes, so
 * the sample is one of the distinct contents, and kept * 2^depth estimates
 * their number without bias (P. Flajolet, "On adaptive sampling", Computing
 * 34, 1990).  'depth' never shrinks: what is in the sample now was in it at
 * its first appearance, hence set_add knows a first appearance for certain.
 *
 * Hashes.  XXH3-128 of a content stands for the content.  Compared are 70
 * bits of it: 64 are stored, 6 choose the shard.  Among n contents that
 * takes n^2 / 2^71 pairs as equal that are not, on average: with a full set
 * of 1 GiB (2^27 hashes at most) 0.00001.  XXH3 is no cryptographic hash:
 * an attacker can make blocks that differ and hash alike, and an
 * image full of these looks smaller here than it is.  Nothing but a figure
 * would be wrong: the pool itself hashes with SHA-256 or its like.
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

/* The budget is not owned and outlives the set.  'own_bytes' of it, at least
 * SET_BYTES_MIN, no other set will take: without that the set that fills
 * fastest would leave nothing for those of larger blocks, which need little.
 * 'may_sample' false: set_add fails instead.  NULL: ENOMEM.
 */
#define SET_BYTES_MIN (UINT64_C (16) << 10)
extern struct content_set *set_new (struct set_budget *budget,
                                    uint64_t own_bytes, bool may_sample);
extern void set_free (struct content_set *set);

/* Returns 1 if this is the first appearance of a content that is in the
 * sample, and *depth as it is at this moment: contents were let in with a
 * probability of 2^-depth.  0: it is known, or not in the sample.  -1
 * (ENOSPC): no memory left, and no sampling allowed.
 */
extern int set_add (struct content_set *set, const XXH128_hash_t *hash,
                    unsigned *depth);

/* Soon set_add will be called with this hash. */
extern void set_prefetch (struct content_set *set, const XXH128_hash_t *hash);

struct set_figures {
  uint64_t kept;                /* contents in the sample */
  unsigned depth;               /* 0: these are all */
};

extern void set_figures (struct content_set *set, struct set_figures *f);

#endif /* NBDEDUP_ESTIMATE_SET_H */

/* SPDX-License-Identifier: BSD-3-Clause */

/* A cache of packed leaves, by (key, leaf).  It first drops those that were not
 * used lately (second-chance.h).  To forget all leaves of a layer
 * at once, the caller gives the layer another key: no lookup finds the entries
 * under the old key, and they age out.  It has no lock of its own.
 */

#ifndef NBDEDUP_LEAF_CACHE_H
#define NBDEDUP_LEAF_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/hashtable.h"

/* Length 0: there is no row, or it has only holes. */
struct cached_leaf {
  struct hashtable_link link;
  TAILQ_ENTRY (cached_leaf) lru;
  uint64_t key, leaf;
  uint64_t source; /* the caller's, for a list of what is here */
  uint16_t len;
  bool used; /* since it came to its place in the list */
  uint8_t data[];
};

struct leaf_cache {
  struct hashtable table;
  TAILQ_HEAD (cached_leaves, cached_leaf) lru; /* owned; oldest first */
  size_t bytes, max;
};

extern int leaf_cache_init (struct leaf_cache *c, size_t max_bytes);
extern void leaf_cache_destroy (struct leaf_cache *c);

/* Borrowed until the next call; NULL: not here. */
extern struct cached_leaf *
leaf_cache_find (struct leaf_cache *c, uint64_t key, uint64_t leaf);
extern void leaf_cache_put (struct leaf_cache *c, uint64_t key, uint64_t leaf,
                            uint64_t source, const uint8_t *buf, size_t len);
/* The same for a leaf that an earlier session used: it is the first to be
 * dropped, and nothing is dropped for it.  False: there is no room.
 */
extern bool leaf_cache_put_cold (struct leaf_cache *c, uint64_t key,
                                 uint64_t leaf, uint64_t source,
                                 const uint8_t *buf, size_t len);
extern void leaf_cache_drop (struct leaf_cache *c, struct cached_leaf *cl);

/* The cache is within its budget, and its list is empty if its table is.  With
 * 'all' also: each leaf is in both, and 'bytes' is their sum.
 */
extern void leaf_cache_assert_consistent (const struct leaf_cache *c, bool all);

#endif /* NBDEDUP_LEAF_CACHE_H */

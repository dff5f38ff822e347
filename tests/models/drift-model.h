/* SPDX-License-Identifier: BSD-3-Clause */

/* What "drift" must say of a model's golden images (lineage-model.h), by
 * brute force: all blocks of a golden image and its clones are sorted by
 * content.  This model knows nothing of layers, pointers or hashes.
 */

#ifndef NBDEDUP_DRIFT_MODEL_H
#define NBDEDUP_DRIFT_MODEL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "models/lineage-model.h"

struct drift_clone {
  const struct node *node; /* not owned */
  uint64_t zero, golden_same, golden_moved, sibling, unique, logical;
};

struct drift_family {
  const struct node *golden;  /* not owned */
  struct drift_clone *clones; /* owned; ascending by name */
  unsigned nr_clones;
  bool unsure; /* membership of a volume is undefined */
  uint64_t golden_blocks, logical, distinct;
  uint64_t stored_min, stored_max; /* of distinct_stored_bytes */
};

/* How the pool stores records.  'compress' NULL: in more than one way. */
struct drift_storage {
  uint32_t sector_bytes;
  const char *compress;
};

extern void drift_family_make (struct lineage *l, const struct node *golden,
                               const struct drift_storage *storage,
                               struct drift_family *family);
extern void drift_family_free (struct drift_family *family);

/* True if the document is right.  If not, the reason is in 'why'. */
extern bool drift_compare (const struct drift_family *family, json_t *doc,
                           char *why, size_t len);

#endif /* NBDEDUP_DRIFT_MODEL_H */

/* SPDX-License-Identifier: BSD-3-Clause */

/* Which owner (a path, or a pseudo-path such as "<journal>") has how many bytes
 * of the blocks that a clone shares only with siblings, or with none.
 *
 * Extents of owners come first, in any order, then the runs of blocks.  Each
 * byte of a run counts for one owner: that of the extent that contains it, or
 * the default.  So the owners' sums are always the runs' lengths, whatever the
 * extents are.  The program ends if there is no memory.
 */

#ifndef NBDEDUP_OWNER_MAP_H
#define NBDEDUP_OWNER_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nbdedup.h"

struct owner {
  char *path;               /* owned; UTF-8 without control characters */
  uint64_t sibling, unique; /* bytes */
};

struct owner_map;

/* An image of 'size' bytes; 'rest' owns what no extent contains (copied). */
extern struct owner_map *owner_map_new (uint64_t size, const char *rest);
extern void owner_map_free (struct owner_map *m);

/* Text that a guest may have made, fit to be printed: bytes that are not UTF-8,
 * and control characters, become \xNN.  Owned by the caller.
 */
extern char *owner_clean_text (const char *text, size_t len);

/* Begin the extents of an owner, with a cleaned path, which does not end with a
 * slash: that is for trees.
 */
extern void owner_map_owner (struct owner_map *m, const char *path, size_t len);
/* The owner that came last has these bytes.  -1: there is none, the bytes are
 * not in the image, or there are too many extents.
 */
extern int
owner_map_extent (struct owner_map *m, uint64_t offset, uint64_t len);
/* All extents are there.  -1: two of them overlap. */
extern int owner_map_end (struct owner_map *m);
/* Forget all owners and extents. */
extern void owner_map_clear (struct owner_map *m, const char *rest);

/* The parts of the image that owners have for which 'wanted' says so, ascending
 * and apart: a new array.  After owner_map_end.
 */
extern struct nbdedup_range *
owner_map_ranges (const struct owner_map *m, bool (*wanted) (const char *path),
                  size_t *nr);

/* Count the bytes of a run.  After owner_map_end, or owner_map_clear. */
extern void owner_map_count (struct owner_map *m, uint64_t offset, uint64_t len,
                             bool unique);

/* The owners that have some, sorted by path, each once: borrowed. */
extern const struct owner *owner_map_owners (struct owner_map *m, size_t *nr);

#endif /* NBDEDUP_OWNER_MAP_H */

/* SPDX-License-Identifier: BSD-3-Clause */

/* The class of each block that a clone does not inherit, as drift finds it,
 * and the golden image's blocks that are not zero: sorted by member and block
 * in bounded memory (sorter.h), and 2 bits for each content.
 */

#ifndef NBDEDUP_CLASS_MAP_H
#define NBDEDUP_CLASS_MAP_H

#include <stdbool.h>
#include <stdint.h>

struct class_map;
struct view;

/* Of a block (drift.h).  The values go over control.sock. */
enum block_class {
  CLASS_SAME = 0,  /* as the golden image, at the same place */
  CLASS_MOVED = 1, /* ... elsewhere */
  CLASS_SIBLING = 2,
  CLASS_UNIQUE = 3,
  CLASS_ZERO = 4, /* of no content, but not inherited */
};

/* 'v' outlives it. */
extern struct class_map *class_map_new (struct view *v, uint64_t memory_bytes);
extern void class_map_free (struct class_map *m);

/* Add a block of the present content.  'same': it is CLASS_SAME; else it is
 * what class_map_end_content says, which begins the next content.
 */
extern int
class_map_add (struct class_map *m, uint32_t who, uint64_t block, bool same);
extern int class_map_end_content (struct class_map *m, enum block_class others);

/* Add blocks of which only the class counts: CLASS_SAME, of the golden image
 * itself, or CLASS_ZERO.
 */
extern int class_map_add_run (struct class_map *m, uint32_t who, uint64_t block,
                              uint64_t nr, enum block_class class);

/* The next run of blocks of one class that member 'who' has: 1 and the run; 0:
 * none is left; -1.  Members must be asked for in ascending order; this skips
 * what is left of the others before it.
 */
struct class_run {
  uint64_t block, nr;
  enum block_class class;
};
extern int
class_map_next (struct class_map *m, uint32_t who, struct class_run *run);

#endif /* NBDEDUP_CLASS_MAP_H */

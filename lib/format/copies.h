/* SPDX-License-Identifier: BSD-3-Clause */

/* The property "copies": which records have copies, and how many.
 *
 * A copy is a record like others, of the same stored bytes, in another
 * segment.  No pointer names it, and nothing finds it by its digest: its one
 * reference is that of table "copy" in pool.db, which holds it by the address
 * of the record that it is a copy of, the primary.  So it goes when that goes,
 * in the same transaction (fold-copies.c).  The server's copier makes copies
 * (copier.h); a read of a damaged record is answered from one (read.c).
 */

#ifndef NBDEDUP_COPIES_H
#define NBDEDUP_COPIES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define COPIES_MAX 3            /* of a record's bytes, itself included */
#define COPIES_BESIDE (COPIES_MAX - 1)

struct copies {
  atomic_uint nr;               /* 1: none beside the record itself */
  _Atomic uint64_t refs;        /* for records with so many references */

  /* Look through table "copy" for more copies than there may be: the fold
   * does it, some rows at a time, when 'wanted' is not 'done'.
   */
  atomic_uint wanted, done;
  unsigned under_way;           /* the folding thread's own, and ... */
  _Atomic uint64_t cursor;      /* ... rows before this address are right */
};

/* "1", or "N:R".  EINVAL. */
extern int copies_parse (const char *value, unsigned *nr, uint64_t *refs);

/* From now on, with a look whether there are too many if there may be. */
extern void copies_set (struct copies *copies, unsigned nr, uint64_t refs);

/* Let the next folds look whether there are too many. */
extern void copies_look (struct copies *copies);

/* How many copies, beside itself, must a record with so many references
 * have?
 */
static inline unsigned
copies_wanted (const struct copies *copies, uint64_t refcount)
{
  unsigned nr = copies->nr;

  return nr > 1 && refcount >= copies->refs ? nr - 1 : 0;
}

static inline bool
copies_has_surplus (const struct copies *copies)
{
  return copies->wanted != copies->done;
}

#endif /* NBDEDUP_COPIES_H */

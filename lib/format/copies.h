/* SPDX-License-Identifier: BSD-3-Clause */

/* The property "copies": which records have copies, and how many.
 *
 * A copy is an ordinary record with the same stored bytes, in another segment.
 * No pointer names it, and no lookup finds it by its digest.  Its one reference
 * is the one in table "copy" of pool.db, by the address of the original record,
 * the primary.  So the fold deletes it in the transaction that deletes the
 * primary (fold-copies.c).  The server's copier makes copies (copier.h), and a
 * read of a damaged record returns one (read.c).
 */

#ifndef NBDEDUP_COPIES_H
#define NBDEDUP_COPIES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define COPIES_MAX 3 /* of a record's bytes, itself included */
#define COPIES_BESIDE (COPIES_MAX - 1)

struct copies {
  atomic_uint nr;        /* 1: none beside the record itself */
  _Atomic uint64_t refs; /* for records with so many references */

  /* While 'wanted' is not 'done', the fold searches table "copy", some rows at
   * a time, for surplus copies.
   */
  atomic_uint wanted, done;
  unsigned under_way;      /* the folding thread's own, and ... */
  _Atomic uint64_t cursor; /* ... rows before this address are right */
};

/* "1", or "N:R".  EINVAL. */
extern int copies_parse (const char *value, unsigned *nr, uint64_t *refs);

/* Change the values; start the search if there may be surplus copies. */
extern void copies_set (struct copies *copies, unsigned nr, uint64_t refs);

/* Let the next folds search for surplus copies. */
extern void copies_look (struct copies *copies);

/* How many copies, beside itself, a record with 'refcount' references must
 * have.
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

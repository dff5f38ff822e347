/* SPDX-License-Identifier: BSD-3-Clause */

/* A group of records, while a fold changes it: its rows in tables "record" and
 * "count" (counts.h).  The folding thread's.
 */

#ifndef NBDEDUP_FOLD_GROUP_H
#define NBDEDUP_FOLD_GROUP_H

#include "core/fold-int.h"

struct group {
  uint64_t id;
  unsigned nr;
  struct record records[RECORD_GROUP_SECTORS]; /* ascending by address */

  /* The two rows in pool.db: */
  bool write_row;                     /* that of table "record" is to change */
  bool write_counts;                  /* that of table "count" is */
  unsigned nr_dead;                   /* dead records that table "record" has */
  bool dead[RECORD_GROUP_SECTORS];    /* ... by sector */
  uint64_t own[RECORD_GROUP_SECTORS]; /* counts that it has, by sector */

  struct blob row, counts; /* buffers, owned */
};

extern struct group *group_new (void); /* NULL: ENOMEM */
extern void group_free (struct group *g);

/* Read the group, without dead records.  If its rows contradict each other it
 * has less while a repair runs; else -1 (EIO).
 */
extern int
group_load (struct group *g, struct fold *f, struct meta_conn *c, uint64_t id);
/* The record at this address; NULL: there is none. */
extern struct record *group_find (struct group *g, uint64_t addr);
/* The record has died: group_store drops it. */
extern void group_bury (struct group *g, struct record *r);
/* Write what has changed: the row of counts, if that is enough. */
extern int group_store (struct group *g, struct fold *f, struct meta_conn *c);

#endif /* NBDEDUP_FOLD_GROUP_H */

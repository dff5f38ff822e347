/* SPDX-License-Identifier: BSD-3-Clause */

/* A sample of a pool, and damage to its pages in both copies of pool.db.  See
 * engine-rig.h.
 */

#ifndef NBDEDUP_PAGE_RIG_H
#define NBDEDUP_PAGE_RIG_H

#include "rigs/engine-rig.h"

/* Make the sample from the pool of "start", which 'make' fills. */
extern void start_sample (void (*make) (void));
extern void end_sample (void);

/* Restore the pool's directory from the sample. */
extern void begin (void);

struct page {
  uint32_t number;
  unsigned depth; /* 0: the root */
  enum page_kind { PAGE_BOTTOM, PAGE_INTERIOR, PAGE_OVERFLOW } kind;
};

/* List the sample's pages of a table or an index, by number.  Returns how many
 * there are.  0: SQLite was built without dbstat.
 */
extern size_t list_pages (const char *table, struct page **pages);
/* The last page of this kind other than the root; 0: there is none. */
extern uint32_t some_page (const char *table, enum page_kind kind);
extern uint32_t root_page (const char *table);

/* Damage the page in both copies. */
extern void damage_page (uint32_t page);

/* Make a volume with blocks of BLOCK bytes, and write one of them ('content' as
 * for fill).
 */
extern void create_volume (const char *name, unsigned blocks);
extern void
put_block (struct nbdedup_volume *v, unsigned block, uint64_t content);

/* Run "check --repair", which must repair all that it finds. */
extern json_t *repair_pool (void);

/* Damage the page, and call 'repair' in a child process that has the pool open
 * to repair it and crashes at a sync of 'repair'.  Then open the pool to repair
 * it, and call 'after', which closes it.  'killed': the child crashed.  Do so
 * for one of the first syncs (sweep_start) and each step-th one after it, until
 * 'repair' has fewer.  Returns the number of the next sync.
 */
extern unsigned kill_at_each_sync (uint32_t page, unsigned step,
                                   void (*repair) (void),
                                   void (*after) (bool killed));

/* For each step-th page, the root and all interior pages: begin, damage the
 * page, and call 'fn'.  With SWEEP_STEP=N in the environment, take each N-th
 * of the step-th pages.
 */
extern void each_page (const char *table, unsigned step,
                       void (*fn) (const struct page *page));

#endif /* NBDEDUP_PAGE_RIG_H */

/* SPDX-License-Identifier: BSD-3-Clause */

/* A sample of a pool, and pages of it that are damaged in both copies of
 * pool.db.  See engine-rig.h.
 */

#ifndef NBDEDUP_PAGE_RIG_H
#define NBDEDUP_PAGE_RIG_H

#include "rigs/engine-rig.h"

/* "start" has made a pool, and 'make' fills it. */
extern void start_sample (void (*make) (void));
extern void end_sample (void);

/* The pool's directory is as the sample was made. */
extern void begin (void);

struct page {
  uint32_t number;
  unsigned depth;               /* 0: the root */
  enum page_kind { PAGE_BOTTOM, PAGE_INTERIOR, PAGE_OVERFLOW } kind;
};

/* Pages of a table or an index in the sample, by number; how many.  0: SQLite
 * cannot tell (it has no dbstat).
 */
extern size_t list_pages (const char *table, struct page **pages);
/* The last one of this kind that is not the root; 0: there is none. */
extern uint32_t some_page (const char *table, enum page_kind kind);
extern uint32_t root_page (const char *table);

/* In both copies. */
extern void damage_page (uint32_t page);

/* A volume of blocks of BLOCK bytes, and one of them; as fill. */
extern void create_volume (const char *name, unsigned blocks);
extern void put_block (struct nbdedup_volume *v, unsigned block,
                       uint64_t content);

/* "check --repair": what it found is right afterwards. */
extern json_t *repair_pool (void);

/* Damage the page and call 'repair' in the pool that is open to be repaired, in
 * a process that crashes at a sync of it: the first one, and then each step-th.
 * Then open the pool to repair it and call 'after', which closes it; 'killed':
 * there was such a sync.  How far it came.
 */
extern unsigned kill_at_each_sync (uint32_t page, unsigned step,
                                   void (*repair) (void),
                                   void (*after) (bool killed));

/* Begin, damage a page, call 'fn': each step-th page, and all that are not at
 * the bottom.  SWEEP_STEP=N in the environment: each N-th of these.
 */
extern void each_page (const char *table, unsigned step,
                       void (*fn) (const struct page *page));

#endif /* NBDEDUP_PAGE_RIG_H */

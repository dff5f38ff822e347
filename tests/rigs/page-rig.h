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

/* Begin, damage a page, call 'fn': each step-th page, and all that are not at
 * the bottom.  SWEEP_STEP=N in the environment: each N-th of these.
 */
extern void each_page (const char *table, unsigned step,
                       void (*fn) (const struct page *page));

#endif /* NBDEDUP_PAGE_RIG_H */

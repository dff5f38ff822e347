/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>

#include "core/ddt-int.h"

/* True whenever the lock is not held, besides the invariants of ddt.h:
 *
 *  (4) CLEAN entries are within the budget, on the LRU list, and indexed.
 *      (When the filter has grown, they shrink with the next insertions.)
 *
 *  (5) A ref with a NEW entry has its address, and owns it.
 *
 *  (6) A txg that has never taken a reference has none to add; the open one
 *      has never taken any to a dead record.
 *
 *  (7) pending_bytes counts all refs and all NEW entries.
 *
 *  (8) A record that is being pruned has no entry.
 *
 *  (9) A txg's list has the refs that it has taken.  A ref that is in no list
 *      is of a dead record, or of one that is being pruned.
 *
 *  (10) nr_new counts the NEW entries that lookups find, and index_entries
 *      includes them.
 *
 * Checking (5) to (10), and invariant (1) of ddt.h, visits all refs.
 */

struct ddt_sums {
  const struct ddt *ddt;
  size_t bytes, taken[2], nr_new;
};

static void
assert_ref_locked (void *opaque, struct hashtable_link *l)
{
  const struct ref *r = hashtable_entry (l, struct ref, link);
  struct ddt_sums *sums = opaque;
  unsigned i;

  for (i = 0; i < 2; ++i) {
    assert (r->taken[i] ? r->delta[i] >= 0 : r->delta[i] == 0);
    sums->taken[i] += r->taken[i];
  }
  assert (r->taken[0] || r->taken[1] || r->dead || r->pruned);
  assert (!r->dead || !r->taken[sums->ddt->open]);
  assert (!r->pruned || (!r->dead && r->entry == NULL));
  sums->bytes += REF_BYTES;
  if (r->entry == NULL)
    return;
  assert (r->entry->is_new && r->entry->record.ptr.addr == r->addr);
  sums->bytes += NEW_BYTES;
  sums->nr_new += (r->entry->record.flags & RECORD_INDEXED) != 0;
}

static size_t
nr_taken_locked (struct ddt *ddt, unsigned parity)
{
  const struct ref *r;
  size_t nr = 0;

  STAILQ_FOREACH (r, &ddt->taken[parity], in_taken[parity]) {
    assert (r->taken[parity]);
    nr++;
  }
  return nr;
}

static void
assert_all_locked (struct ddt *ddt)
{
  struct ddt_sums sums = { .ddt = ddt };
  const struct ddt_entry *e;
  size_t nr = 0;

  hashtable_visit (&ddt->refs, assert_ref_locked, &sums);
  assert (sums.bytes == ddt->pending_bytes);
  assert (sums.nr_new == ddt->nr_new);
  assert (nr_taken_locked (ddt, 0) == sums.taken[0]);
  assert (nr_taken_locked (ddt, 1) == sums.taken[1]);
  TAILQ_FOREACH (e, &ddt->lru, lru) {
    assert (!e->is_new && e->record.flags & RECORD_INDEXED);
    nr++;
  }
  assert (nr == ddt->nr_clean);
}

void
ddt_assert_consistent_locked (struct ddt *ddt)
{
  assert_held (&ddt->lock);
  assert (ddt->open <= 1);
  assert (ddt->nr_clean * CLEAN_BYTES <= ddt->budget_bytes);
  assert (TAILQ_EMPTY (&ddt->lru) == (ddt->nr_clean == 0));
  assert (ddt->nr_clean <= ddt->by_digest.nr_entries);
  assert (ddt->index_entries >= ddt->nr_new);
  assert (ddt->pending_bytes >= ddt->refs.nr_entries * REF_BYTES);
  if (invariant_is_due (&ddt->changes,
                        ddt->refs.nr_entries + ddt->refs.nr_buckets +
                          ddt->nr_clean))
    assert_all_locked (ddt);
}

/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>

#include "core/index-order.h"

/* Of a count this part is forgotten with each hit, and at least 1, so that it
 * ends at 0: the last 16 hits say most.
 */
#define FORGET_PART 16u
#define HIT (UINT32_C (1) << 16)

_Static_assert (INDEX_RUNS - 1 <= UINT8_MAX, "runs fit in struct index_search");

void
index_order_hit (struct index_order *order, unsigned run)
{
  unsigned i;

  assert (run < INDEX_RUNS);
  for (i = 0; i < INDEX_RUNS; ++i)
    order->hits[i] -= (order->hits[i] + FORGET_PART - 1) / FORGET_PART;
  order->hits[run] += HIT;
}

void
index_order_get (const struct index_order *order, const struct index_runs *runs,
                 struct index_search *search)
{
  unsigned run, i;

  search->nr = 0;
  for (run = INDEX_RUNS; run-- > 0;) {
    if (!index_runs_has (runs, run))
      continue;
    for (i = search->nr++;
         i > 0 && order->hits[search->runs[i - 1]] < order->hits[run]; --i)
      search->runs[i] = search->runs[i - 1];
    search->runs[i] = (uint8_t) run;
  }
}

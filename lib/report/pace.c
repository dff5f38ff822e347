/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include "base/clock.h"
#include "core/engine.h"
#include "core/txg.h"
#include "report/compact.h"
#include "report/pace.h"

#define LOOK_MS 1000
/* Clients write if more than this has come since the last look. */
#define BUSY_BYTES (UINT64_C (1) << 20)
/* While they do. */
#define BUSY_ROWS 256
#define BUSY_MS 250
/* Else. */
#define PAUSE_MS 10
/* Work so long without a pause. */
#define WORK_MS 20

void
pace_begin (struct pace *p, struct nbdedup_pool *pool)
{
  *p = (struct pace) {
    .pool = pool,
    .seen_bytes = txg_new_bytes (pool->txg),
    .looked_ms = clock_ms (),
    .rested_ms = clock_ms (),
  };
}

void
pace_look (struct pace *p)
{
  const uint64_t now = clock_ms ();
  uint64_t bytes;

  if (now - p->looked_ms < LOOK_MS)
    return;
  bytes = txg_new_bytes (p->pool->txg);
  p->busy = bytes - p->seen_bytes > BUSY_BYTES;
  p->seen_bytes = bytes;
  p->looked_ms = now;
}

int64_t
pace_step (struct pace *p)
{
  const uint64_t begun = clock_ms ();
  uint64_t ms;

  pace_look (p);
  if (compact_step (p->pool, p->busy ? BUSY_ROWS : COMPACT_ROWS) == -1)
    return -1;
  ms = clock_ms () - begun;
  if (p->busy)
    return (int64_t) (ms * 4 < BUSY_MS ? BUSY_MS : ms * 4);
  return (int64_t) (ms < PAUSE_MS ? PAUSE_MS : ms);
}

void
pace_rest (struct pace *p)
{
  const uint64_t ms = clock_ms () - p->rested_ms;

  pace_look (p);
  if (ms < WORK_MS)
    return;
  if (p->busy)
    clock_sleep_ms (ms < BUSY_MS ? (unsigned) ms : BUSY_MS);
  p->rested_ms = clock_ms ();
}

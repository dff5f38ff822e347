/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <stddef.h>

#include "core/engine.h"
#include "core/txg.h"
#include "data/sync.h"
#include "data/writeback.h"
#include "meta/meta.h"
#include "space/space.h"

int
pool_sync (struct nbdedup_pool *pool)
{
  if (writeback_drain (pool->writeback, NULL) == -1)
    return -1;
  if (txg_run (pool->txg, NULL, NULL, NULL) == -1)
    return -1;
  space_settle (pool->space);
  return 0;
}

int
pool_sync_for_view (struct nbdedup_pool *pool)
{
  if (pool_sync (pool) == -1)
    return -1;
  meta_copy_ahead (pool->meta);
  return 0;
}

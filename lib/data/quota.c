/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include "core/ddt.h"
#include "core/engine.h"
#include "data/quota.h"

/* A record's size in the DDT on disk: a packed entry in its group's row
 * (record-row.h), and one in the hash index (index-row.h).
 */
#define DDT_BYTES_PER_ENTRY (42 + 8)

bool
quota_is_over (struct nbdedup_pool *pool, uint64_t more)
{
  if (pool->ddt_quota_bytes == 0)
    return false;
  return (ddt_index_entries (pool->ddt) + more) * DDT_BYTES_PER_ENTRY >=
    pool->ddt_quota_bytes;
}

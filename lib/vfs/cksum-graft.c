/* SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include <errno.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "vfs/cksum-graft.h"
#include "vfs/cksum-int.h"

bool
cksum_graft_read (const struct cksum_file *f, uint8_t *page, uint32_t page_size,
                  uint64_t offset)
{
  const struct cksum_graft *g = f->graft;
  uint64_t number = offset / page_size + 1;
  size_t i;

  if (g == NULL)
    return false;
  i = array_position (g->nr, k, g->p[k].number < number);
  if (i == g->nr || g->p[i].number != number)
    return false;
  memcpy (page, g->p[i].image, page_size);
  return true;
}

int
cksum_graft_set (sqlite3 *db, const struct cksum_graft *graft)
{
  struct cksum_file *f = cksum_file_of (db);

  if (f == NULL)
    return -1;
  /* The connection's cache has pages from before the graft. */
  sqlite3_db_release_memory (db);
  f->graft = graft;
  return 0;
}

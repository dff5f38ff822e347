/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "core/engine.h"
#include "disk/store.h"
#include "report/mover.h"
#include "space/space.h"

/* Neighbours are written at once. */
#define WRITE_BYTES BLOCK_SIZE_MAX

int
mover_init (struct mover *m, struct nbdedup_pool *pool)
{
  *m = (struct mover) { .pool = pool, .buf = malloc (WRITE_BYTES) };
  return m->buf ? 0 : nbdedup_fail (ENOMEM, "no memory to move records");
}

void
mover_free (struct mover *m)
{
  free (m->buf);
  m->buf = NULL;
}

int
mover_write (struct mover *m)
{
  assert (m->len % m->pool->sector_bytes == 0);
  if (m->len > 0 &&
      store_write (m->pool->store, m->first, m->buf, m->len) == -1)
    return -1;
  m->len = 0;
  return 0;
}

uint8_t *
mover_room (struct mover *m, size_t len)
{
  assert (len > 0 && len <= WRITE_BYTES);
  if (m->len + len > WRITE_BYTES && mover_write (m) == -1)
    return NULL;
  assert (m->len + len <= WRITE_BYTES);
  return memset (m->buf + m->len, 0, len);
}

static int
find_place (struct mover *m, const struct record *r, uint32_t nr_sectors,
            struct placement *place)
{
  int ret;

  if (space_reserve (m->pool->space, r->lsize, 1) == -1)
    return -1;
  ret = space_alloc_dense (m->pool->space, nr_sectors, place);
  space_unreserve (m->pool->space, r->lsize, 1);
  return ret;
}

int
mover_place (struct mover *m, struct move *move)
{
  const uint32_t sector = m->pool->sector_bytes;
  struct record *r = &move->record;
  const uint32_t nr_sectors = sectors_of (r->ptr.psize, sector);
  const size_t len = (size_t) nr_sectors * sector, before = m->len;
  struct placement place;

  assert (before + len <= WRITE_BYTES); /* mover_room came before */
  if (find_place (m, r, nr_sectors, &place) == -1)
    return -1;
  if (before > 0 && m->first + before / sector != place.addr) {
    if (mover_write (m) == -1) {
      space_undo (m->pool->space, &place, nr_sectors);
      return -1;
    }
    memmove (m->buf, m->buf + before, len);
  }
  if (m->len == 0)
    m->first = place.addr;
  m->len += len;
  r->ptr.addr = place.addr;
  r->slot = place.slot;
  r->refcount = 0; /* the folds count them */
  move->chunk_addr = place.chunk_addr;
  return 0;
}

/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/error.h"
#include "core/moves.h"

/* After space was short. */
#define GIVE_WAY_MS 10000

struct moves *
moves_new (struct space *space, uint32_t sector_bytes)
{
  struct moves *m = calloc (1, sizeof *m);

  if (m == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  m->space = space;
  m->sector_bytes = sector_bytes;
  lock_init (&m->one);
  turn_init (&m->turn);
  lock_init (&m->lock);
  return m;
}

void
moves_give_back (struct moves *m, struct moves_batch *batch)
{
  const struct move *move;
  struct placement place;
  size_t i;

  assert (batch->nr_segments <= MOVES_SEGMENTS_MAX);
  for (i = 0; i < batch->nr; ++i) {
    move = &batch->p[i];
    if (move->inserted)
      continue;
    place = (struct placement) {
      .addr = move->record.ptr.addr,
      .slot = move->record.slot,
      .chunk_addr = move->chunk_addr,
    };
    space_undo (m->space, &place,
                sectors_of (move->record.ptr.psize, m->sector_bytes));
  }
  m->emptied += space_undrain (m->space, batch->segments, batch->nr_segments);
  free (batch->p);
  free (batch->segments);
  *batch = (struct moves_batch) { NULL };
}

void
moves_free (struct moves *m)
{
  if (m == NULL)
    return;
  assert (m->held == 0);
  if (m->under_way)
    moves_give_back (m, &m->batch);
  lock_destroy (&m->lock);
  lock_destroy (&m->one);
  turn_destroy (&m->turn);
  free (m);
}

bool
moves_begin (struct moves *m, const struct moves_batch *batch)
{
  WITH_LOCK (&m->lock);
  assert (!m->under_way && m->batch.p == NULL);
  if (m->held > 0)
    return false;
  m->batch = *batch;
  m->next = (struct meta_leaf_key) { 0 };
  m->rows = 0;
  m->end = false;
  m->under_way = true;
  return true;
}

void
moves_hold (struct moves *m)
{
  WITH_LOCK (&m->lock);
  m->held++;
  m->end = true;
}

void
moves_release (struct moves *m)
{
  WITH_LOCK (&m->lock);
  assert (m->held > 0);
  m->held--;
}

bool
moves_are_held (struct moves *m)
{
  WITH_LOCK (&m->lock);
  return m->held > 0;
}

void
moves_give_way (struct moves *m)
{
  if (m == NULL)
    return;
  m->not_before_ms = clock_ms () + GIVE_WAY_MS;
  m->end = true;
}

struct move *
moves_find (const struct moves_batch *batch, uint64_t addr)
{
  size_t i = array_position (batch->nr, k, batch->p[k].old.addr < addr);

  return i < batch->nr && batch->p[i].old.addr == addr ? &batch->p[i] : NULL;
}

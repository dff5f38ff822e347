/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <stdlib.h>

#include "base/error.h"
#include "format/control-protocol.h"
#include "service/control-int.h"

/* So many take 32 MiB; more requests at once would not be faster. */
#define BUFFERS_MAX 32

/* A connection that waits for a buffer; on its thread's stack. */
struct control_waiter {
  TAILQ_ENTRY (control_waiter) link;
  struct cond given;
  uint8_t *buf; /* NULL: not yet */
};

void
control_buffers_init (struct control_buffers *b)
{
  lock_init (&b->lock);
  TAILQ_INIT (&b->waiters);
}

void
control_buffers_destroy (struct control_buffers *b)
{
  assert (TAILQ_EMPTY (&b->waiters) && b->nr_free == b->nr);
  while (b->nr_free > 0)
    free (b->free[--b->nr_free]);
  free (b->free);
  lock_destroy (&b->lock);
}

/* A new one, while there are few. */
static uint8_t *
buffer_new_locked (struct control_buffers *b)
{
  uint8_t *buf;

  assert_held (&b->lock);
  if (b->free == NULL)
    b->free = malloc (BUFFERS_MAX * sizeof *b->free);
  buf = b->free == NULL ? NULL : malloc (CONTROL_PAYLOAD_MAX + 1);
  if (buf != NULL)
    b->nr++;
  return buf;
}

uint8_t *
control_buffer_get (struct control_buffers *b)
{
  struct control_waiter me = { .buf = NULL };

  WITH_LOCK (&b->lock);
  assert (TAILQ_EMPTY (&b->waiters) || b->nr_free == 0);
  if (b->nr_free > 0)
    return b->free[--b->nr_free];
  if (b->nr < BUFFERS_MAX && (me.buf = buffer_new_locked (b)) != NULL)
    return me.buf;
  if (b->nr == 0)
    return nbdedup_fail_null (ENOMEM, "control: no memory for a buffer");

  cond_init (&me.given);
  TAILQ_INSERT_TAIL (&b->waiters, &me, link);
  while (me.buf == NULL)
    lock_wait (&b->lock, &me.given);
  cond_destroy (&me.given);
  return me.buf;
}

void
control_buffer_put (struct control_buffers *b, uint8_t *buf)
{
  struct control_waiter *first;

  WITH_LOCK (&b->lock);
  first = TAILQ_FIRST (&b->waiters);
  if (first == NULL) {
    assert (b->nr_free < b->nr);
    b->free[b->nr_free++] = buf;
    return;
  }
  TAILQ_REMOVE (&b->waiters, first, link);
  first->buf = buf;
  cond_signal (&first->given);
}

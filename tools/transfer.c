/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "interrupt.h"
#include "transfer.h"

#define NR_THREADS 4

/* How soon a waiting main thread notices a signal. */
#define INTERRUPT_MS 100

enum slot_state { IDLE, SUBMITTED, RUNNING };

struct slot {
  enum slot_state state;
  uint8_t *buf;                 /* owned; TRANSFER_LEN bytes */
  uint64_t offset;
  uint32_t len;
};

struct transfer {
  struct nbdedup_remote *remote;        /* not owned; outlives the transfer */
  enum transfer_op op;
  pthread_t threads[NR_THREADS];
  unsigned nr_threads;

  /* Protects everything below; the buffer and the range of a slot belong
   * to its thread while it is RUNNING, else to the main thread.
   */
  pthread_mutex_t lock;
  pthread_cond_t changed;       /* anything below */
  struct slot slots[TRANSFER_SLOTS];
  unsigned next;                /* slot to run next: they run in turn */
  bool stopping;
  char *error;                  /* owned; NULL: no failure */
};

static int
do_request (struct transfer *t, struct slot *slot)
{
  if (t->op == TRANSFER_READ)
    return nbdedup_remote_read (t->remote, slot->buf, slot->len, slot->offset);
  return nbdedup_remote_write (t->remote, slot->buf, slot->len, slot->offset);
}

static void *
transfer_thread (void *opaque)
{
  struct transfer *t = opaque;
  struct slot *slot;
  int r;

  pthread_mutex_lock (&t->lock);
  for (;;) {
    /* Until there is work, or no more will come. */
    while (!t->stopping && t->slots[t->next].state != SUBMITTED)
      pthread_cond_wait (&t->changed, &t->lock);
    if (t->stopping)
      break;
    slot = &t->slots[t->next];
    slot->state = RUNNING;
    t->next = (t->next + 1) % TRANSFER_SLOTS;
    pthread_mutex_unlock (&t->lock);

    r = do_request (t, slot);

    pthread_mutex_lock (&t->lock);
    slot->state = IDLE;
    if (r == -1 && t->error == NULL) {
      t->error = strdup (nbdedup_error ());
      if (t->error == NULL)
        abort ();
    }
    pthread_cond_broadcast (&t->changed);
  }
  pthread_mutex_unlock (&t->lock);
  return NULL;
}

struct transfer *
transfer_new (struct nbdedup_remote *remote, enum transfer_op op)
{
  struct transfer *t = calloc (1, sizeof *t);
  pthread_condattr_t attr;
  unsigned i;
  int err = ENOMEM;

  if (t == NULL)
    return NULL;
  t->remote = remote;
  t->op = op;
  pthread_mutex_init (&t->lock, NULL);
  pthread_condattr_init (&attr);
  pthread_condattr_setclock (&attr, CLOCK_MONOTONIC);
  pthread_cond_init (&t->changed, &attr);
  pthread_condattr_destroy (&attr);

  for (i = 0; i < TRANSFER_SLOTS; ++i) {
    t->slots[i].buf = malloc (TRANSFER_LEN);
    if (t->slots[i].buf == NULL)
      goto fail;
  }
  for (; t->nr_threads < NR_THREADS; ++t->nr_threads) {
    err = pthread_create (&t->threads[t->nr_threads], NULL,
                          transfer_thread, t);
    if (err != 0)
      goto fail;
  }
  return t;

 fail:
  transfer_free (t);
  errno = err;
  return NULL;
}

uint8_t *
transfer_wait (struct transfer *t, unsigned slot)
{
  struct timespec ts;
  uint8_t *buf = NULL;

  pthread_mutex_lock (&t->lock);
  /* Until the slot is idle, or there is no point in going on. */
  while (t->error == NULL && !interrupted ()) {
    if (t->slots[slot].state == IDLE) {
      buf = t->slots[slot].buf;
      break;
    }
    clock_gettime (CLOCK_MONOTONIC, &ts);
    ts.tv_nsec += INTERRUPT_MS * 1000000;
    if (ts.tv_nsec >= 1000000000) {
      ts.tv_sec++;
      ts.tv_nsec -= 1000000000;
    }
    pthread_cond_timedwait (&t->changed, &t->lock, &ts);
  }
  pthread_mutex_unlock (&t->lock);
  return buf;
}

void
transfer_submit (struct transfer *t, unsigned slot, uint64_t offset,
                 uint32_t len)
{
  pthread_mutex_lock (&t->lock);
  t->slots[slot].offset = offset;
  t->slots[slot].len = len;
  t->slots[slot].state = SUBMITTED;
  pthread_cond_broadcast (&t->changed);
  pthread_mutex_unlock (&t->lock);
}

int
transfer_drain (struct transfer *t)
{
  unsigned i;

  for (i = 0; i < TRANSFER_SLOTS; ++i)
    if (transfer_wait (t, i) == NULL)
      return -1;
  return 0;
}

const char *
transfer_error (struct transfer *t)
{
  const char *error;

  pthread_mutex_lock (&t->lock);
  error = t->error;
  pthread_mutex_unlock (&t->lock);
  return error;
}

void
transfer_free (struct transfer *t)
{
  unsigned i;

  if (t == NULL)
    return;
  pthread_mutex_lock (&t->lock);
  t->stopping = true;
  pthread_cond_broadcast (&t->changed);
  pthread_mutex_unlock (&t->lock);
  for (i = 0; i < t->nr_threads; ++i)
    pthread_join (t->threads[i], NULL);
  for (i = 0; i < TRANSFER_SLOTS; ++i)
    free (t->slots[i].buf);
  free (t->error);
  pthread_cond_destroy (&t->changed);
  pthread_mutex_destroy (&t->lock);
  free (t);
}

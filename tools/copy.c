/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "copy.h"
#include "interrupt.h"
#include "tools.h"

#define THREADS_MAX 16

/* The longest piece of a hole: some targets must write it, and should show
 * progress.
 */
#define HOLE_LEN (UINT64_C (128) << 20)

/* How often the main thread checks for a signal. */
#define INTERRUPT_MS 100

struct piece {
  uint64_t seq;
  uint64_t offset, len;
  bool hole;
};

struct copy {
  struct image *source, *target; /* not owned */
  uint64_t limit;

  /* Taken before 'lock'.  Protects the walk through the source, and a
   * stream that is read.
   */
  pthread_mutex_t walk;
  uint64_t offset, seq; /* of the next piece */
  bool at_end;

  pthread_mutex_t lock;   /* protects everything below */
  pthread_cond_t changed; /* anything below */
  uint64_t turn;          /* the next piece for a stream */
  uint64_t done;          /* bytes */
  unsigned nr_running;
  bool stopping;
  char *error; /* owned; the first; NULL: none */
};

static uint64_t
min (uint64_t a, uint64_t b)
{
  return a < b ? a : b;
}

/* Are there only zeroes? */
static bool
is_zero (const uint8_t *buf, uint32_t len)
{
  /* It has been filled.  NOLINTNEXTLINE(clang-analyzer-core.*) */
  return len == 0 || (buf[0] == 0 && memcmp (buf, buf + 1, len - 1) == 0);
}

/* The end of the part of one kind at 'offset'.  Rounds data up to whole units
 * of the target, holes down.
 */
static int
walk_extent (struct copy *c, uint64_t offset, uint64_t *end, bool *hole)
{
  const uint32_t align = c->target->align;

  assert (offset % align == 0);
  if (image_extent (c->source, offset, end, hole) == -1)
    return -1;
  if (*end >= c->limit)
    *end = c->limit;
  else if (*hole)
    *end -= *end % align;
  if (*end <= offset)
    *hole = false; /* it ends within the first unit */
  if (!*hole && *end < c->limit) {
    *end += align - 1 - (*end + align - 1) % align;
    if (*end <= offset)
      *end = offset + align;
    *end = min (*end, c->limit);
  }
  return 0;
}

/* Set p->len and p->hole. */
static int
walk_piece (struct copy *c, struct piece *p)
{
  uint64_t end, next, max;
  bool hole;

  if (walk_extent (c, p->offset, &end, &p->hole) == -1)
    return -1;
  /* Data ends at a multiple of COPY_LEN, or where a hole begins. */
  max = p->hole ? p->offset + HOLE_LEN
                : p->offset - p->offset % COPY_LEN + COPY_LEN;
  max = min (max, c->limit);
  for (hole = p->hole; end < max && hole == p->hole; end = next) {
    if (walk_extent (c, end, &next, &hole) == -1)
      return -1;
    if (hole != p->hole)
      break;
  }
  p->len = min (end, max) - p->offset;
  return 0;
}

static int
read_piece (struct copy *c, struct piece *p, uint8_t *buf)
{
  const int64_t n = c->source->ops->read (c->source, buf, p->len, p->offset);

  if (n == -1)
    return -1;
  if (c->source->is_stream)
    p->len = n;
  else if ((uint64_t) n < p->len)
    return image_fail ("%s: became shorter while it was read", c->source->name);
  return 0;
}

/* Returns 1, 0 at the end, -1. */
static int
next_piece_locked (struct copy *c, struct piece *p, uint8_t *buf)
{
  if (c->at_end || c->offset >= c->limit)
    return 0;
  p->seq = c->seq;
  p->offset = c->offset;
  p->hole = false;
  if (c->source->is_stream) {
    const uint64_t len = min (COPY_LEN, c->limit - c->offset);

    p->len = len;
    if (read_piece (c, p, buf) == -1)
      return -1;
    c->at_end = p->len < len;
  }
  else if (walk_piece (c, p) == -1)
    return -1;
  c->seq++;
  c->offset += p->len;
  return 1;
}

static int
write_zeroes (struct copy *c, uint64_t len, uint64_t offset)
{
  if (len == 0 || c->target->starts_zero)
    return 0;
  return c->target->ops->zero (c->target, len, offset);
}

/* Zeroes of at least a granule become a hole. */
static int
write_data (struct copy *c, const uint8_t *buf, uint32_t len, uint64_t offset)
{
  const uint32_t granule = c->target->granule ? c->target->granule : len;
  uint32_t start = 0, end, next;
  bool zero;

  while (start < len) {
    end = min (start + granule, len);
    zero = c->target->granule && is_zero (buf + start, end - start);
    for (; end < len; end = next) {
      next = min (end + granule, len);
      if (is_zero (buf + end, next - end) != zero)
        break;
    }
    if (zero ? write_zeroes (c, end - start, offset + start) == -1
             : c->target->ops->write (c->target, buf + start, end - start,
                                      offset + start) == -1)
      return -1;
    start = end;
  }
  return 0;
}

static int
write_piece (struct copy *c, const struct piece *p, const uint8_t *buf)
{
  return p->hole ? write_zeroes (c, p->len, p->offset)
                 : write_data (c, buf, p->len, p->offset);
}

/* Wait until the stream has all pieces before 'seq'; false: it never will. */
static bool
wait_turn (struct copy *c, uint64_t seq)
{
  bool stopping;

  pthread_mutex_lock (&c->lock);
  while (c->turn != seq && !c->stopping)
    pthread_cond_wait (&c->changed, &c->lock);
  stopping = c->stopping;
  pthread_mutex_unlock (&c->lock);
  return !stopping;
}

/* Copy one piece.  Returns 1, 0 at the end, -1. */
static int
copy_piece (struct copy *c, uint8_t *buf)
{
  struct piece p;
  int r;

  pthread_mutex_lock (&c->walk);
  r = next_piece_locked (c, &p, buf);
  pthread_mutex_unlock (&c->walk);
  if (r <= 0)
    return r;

  if (!p.hole && !c->source->is_stream && read_piece (c, &p, buf) == -1)
    return -1;
  if (c->target->is_stream && !wait_turn (c, p.seq))
    return 0;
  if (write_piece (c, &p, buf) == -1)
    return -1;

  pthread_mutex_lock (&c->lock);
  c->done += p.len;
  if (c->target->is_stream) {
    c->turn = p.seq + 1;
    pthread_cond_broadcast (&c->changed);
  }
  r = !c->stopping;
  pthread_mutex_unlock (&c->lock);
  return r;
}

static void *
copy_thread (void *opaque)
{
  struct copy *c = opaque;
  uint8_t *buf = malloc (COPY_LEN);
  int r;

  if (buf == NULL)
    r = image_fail ("out of memory");
  else
    do
      r = copy_piece (c, buf);
    while (r == 1);
  free (buf);

  pthread_mutex_lock (&c->lock);
  if (r == -1 && c->error == NULL)
    c->error = strdup (image_error ());
  if (r == -1 && !c->stopping) {
    c->stopping = true;
    interrupt_stop (); /* wake threads that wait for a stream */
  }
  c->nr_running--;
  pthread_cond_broadcast (&c->changed);
  pthread_mutex_unlock (&c->lock);
  return NULL;
}

static void
cancel_image (struct image *image)
{
  if (image->ops->cancel != NULL)
    image->ops->cancel (image);
}

/* Wait until all threads have ended.  Only this function draws progress. */
static void
watch (struct copy *c, struct progress *progress)
{
  const uint64_t total = c->source->is_stream ? 0 : c->source->size;
  bool cancelled = false;
  struct timespec ts;

  pthread_mutex_lock (&c->lock);
  while (c->nr_running > 0) {
    ts = clock_in_ms (INTERRUPT_MS);
    pthread_cond_timedwait (&c->changed, &c->lock, &ts);
    progress_update (progress, c->done, total);
    if (interrupted ())
      c->stopping = true;
    if (c->stopping && !cancelled) {
      cancelled = true;
      pthread_cond_broadcast (&c->changed);
      pthread_mutex_unlock (&c->lock);
      cancel_image (c->source);
      cancel_image (c->target);
      pthread_mutex_lock (&c->lock);
    }
  }
  progress_update (progress, c->done, total);
  pthread_mutex_unlock (&c->lock);
}

static void
copy_init (struct copy *c)
{
  pthread_condattr_t attr;

  pthread_mutex_init (&c->walk, NULL);
  pthread_mutex_init (&c->lock, NULL);
  pthread_condattr_init (&attr);
  pthread_condattr_setclock (&attr, CLOCK_MONOTONIC);
  pthread_cond_init (&c->changed, &attr);
  pthread_condattr_destroy (&attr);
}

int
copy_images (struct image *source, struct image *target, uint64_t *offset,
             uint64_t limit, bool *at_end, struct progress *progress)
{
  struct copy c = {
    .source = source,
    .target = target,
    .limit = limit,
    .offset = *offset,
    .done = *offset,
  };
  pthread_t threads[THREADS_MAX];
  unsigned want = source->in_flight, nr, i;
  int err, r;

  if (want < target->in_flight)
    want = target->in_flight;
  assert (want <= THREADS_MAX);
  copy_init (&c);
  for (nr = 0; nr < want; ++nr) {
    pthread_mutex_lock (&c.lock);
    c.nr_running++;
    pthread_mutex_unlock (&c.lock);
    err = pthread_create (&threads[nr], NULL, copy_thread, &c);
    if (err != 0)
      break;
  }
  if (nr < want) {
    pthread_mutex_lock (&c.lock);
    c.nr_running--;
    c.stopping = true;
    if (c.error == NULL &&
        asprintf (&c.error, "cannot start a thread: %s", strerror (err)) == -1)
      c.error = NULL;
    pthread_mutex_unlock (&c.lock);
  }
  watch (&c, progress);
  for (i = 0; i < nr; ++i)
    pthread_join (threads[i], NULL);

  r = c.error != NULL || c.stopping || interrupted () ? -1 : 0;
  if (c.error != NULL)
    image_fail ("%s", c.error);
  else if (r == -1)
    image_fail ("out of memory"); /* for the text, too */
  *offset = c.offset;
  if (at_end != NULL)
    *at_end = c.at_end;
  free (c.error);
  pthread_cond_destroy (&c.changed);
  pthread_mutex_destroy (&c.lock);
  pthread_mutex_destroy (&c.walk);
  return r;
}

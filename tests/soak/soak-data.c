/* SPDX-License-Identifier: BSD-3-Clause */

/* Clients of volumes and snapshots.  See soak.h. */

#include <config.h>

#include <errno.h>

#include "soak/soak.h"

atomic_uint_fast64_t nr_requests, nr_compared, nr_cut_off;

static bool
changes (enum request_kind kind)
{
  switch (kind) {
  case REQUEST_WRITE:
  case REQUEST_WRITE_FUA:
  case REQUEST_ZERO:
  case REQUEST_ZERO_FUA:
  case REQUEST_TRIM:
    return true;
  default:
    return false;
  }
}

static enum request_kind
pick_kind (struct rng *rng)
{
  static const struct {
    enum request_kind kind;
    unsigned weight;
  } kinds[] = {
    { REQUEST_READ, 380 },     { REQUEST_WRITE, 400 },
    { REQUEST_WRITE_FUA, 15 }, { REQUEST_ZERO, 50 },
    { REQUEST_ZERO_FUA, 5 },   { REQUEST_TRIM, 80 },
    { REQUEST_FLUSH, 15 },     { REQUEST_FLUSH_RANGE, 5 },
    { REQUEST_CACHE, 20 },     { REQUEST_EXTENTS, 30 },
  };
  unsigned n = rng_below (rng, 1000), i;

  for (i = 0; n >= kinds[i].weight; ++i)
    n -= kinds[i].weight;
  return kinds[i].kind;
}

/* With OPERATIONS requests are small, so that there are many, but larger in the
 * first tenth: see images_wanted.
 */
static uint64_t
max_request (void)
{
  if (soak.operations == 0)
    return MAX_REQUEST;
  return nr_requests < soak.operations / 10 ? 131072 : 8192;
}

/* Pick a small range, whole blocks, or a large range; aligned or not. */
static void
pick_place (const struct handle *h, uint64_t *offset, uint64_t *len,
            struct rng *rng)
{
  const uint64_t bs = h->image->block_size;
  const uint64_t max = max_request ();
  unsigned n = rng_below (rng, 100);

  *offset = rng_below (rng, h->size);
  if (n < 35)
    *len = rng_between (rng, 1, 8192);
  else if (n < 92) {
    *offset -= *offset % bs;
    *len = bs * rng_between (rng, 1, 3);
  }
  else
    *len = rng_between (rng, 1, max);
  if (*len > max)
    *len = max;
  if (*len > h->size - *offset)
    *len = h->size - *offset;
}

/* A request may fail only with ESHUTDOWN, and only if its client is cut off, or
 * is about to be.
 */
static void
expect_cut_off (const struct handle *h, int err)
{
  struct image *image = h->image;
  bool cut_off;

  pthread_mutex_lock (&image->state);
  cut_off = image->generation != h->generation;
  pthread_mutex_unlock (&image->state);
  if (!cut_off || err != ESHUTDOWN)
    fatal ("%s: request failed: %s (%s)", image->name, strerror (err),
           transport_error ());
  nr_cut_off++;
}

static bool
is_cut_off (const struct handle *h)
{
  struct image *image = h->image;
  bool r;

  pthread_mutex_lock (&image->state);
  r = h->generation < image->cut_off;
  pthread_mutex_unlock (&image->state);
  return r;
}

/* A snapshot must refuse changes.  (libnbd itself refuses all but writes.) */
static bool
try_to_change (struct handle *h, enum request_kind kind, uint8_t *buf,
               uint64_t len, uint64_t offset, struct rng *rng)
{
  if (soak.plugin)
    kind = REQUEST_WRITE;
  if (transport_request (h, kind, buf, len, offset, rng) == 0)
    fatal ("a request that changes snapshot %s was answered", h->image->name);
  if (errno == EROFS || errno == EPERM)
    return true;
  expect_cut_off (h, errno);
  return false;
}

/* Send a request and check it.  False: the client was cut off. */
static bool
request (struct handle *h, uint8_t *buf, struct rng *rng)
{
  enum request_kind kind = pick_kind (rng);
  const bool zeroes = kind != REQUEST_WRITE && kind != REQUEST_WRITE_FUA;
  struct image *image = h->image;
  struct range range;
  uint64_t offset, len;
  bool dead;
  int r, err;

  pick_place (h, &offset, &len, rng);
  if (!zeroes)
    fill_content (buf, len, image->block_size, NR_DUPS, rng);
  if (changes (kind) && h->readonly)
    return rng_percent (rng, 95) ||
      try_to_change (h, kind, buf, len, offset, rng);

  dead = is_cut_off (h);
  range_take (image, &range, offset, len, !changes (kind));
  if (changes (kind))
    image_begin (image, offset, len, zeroes ? NULL : buf, h->generation);
  r = transport_request (h, kind, buf, len, offset, rng);
  err = errno;
  if (r == -1)
    expect_cut_off (h, err);
  else if (dead && (changes (kind) || kind == REQUEST_READ))
    fatal ("%s: a client that was cut off got an answer", image->name);
  if (changes (kind))
    image_answered (image, offset, len, h->generation, r == 0);
  else if (r == 0 && kind == REQUEST_READ)
    image_compare ("read", image, offset, len, buf, h->generation);
  range_release (image, &range);
  nr_requests++;
  return r == 0;
}

static struct handle *
attach (struct rng *rng)
{
  struct image *volume = table_pick (rng), *snap = NULL;
  struct handle *h = NULL;

  if (volume == NULL)
    return NULL;
  if (pthread_rwlock_tryrdlock (&volume->admin) == 0) {
    if (!volume->gone && rng_percent (rng, 80))
      h = transport_open (volume, rng);
    else if (!volume->gone && (snap = table_pick_snap (volume, rng)) &&
             pthread_rwlock_tryrdlock (&snap->admin) == 0) {
      h = transport_open (snap, rng);
      pthread_rwlock_unlock (&snap->admin);
    }
    pthread_rwlock_unlock (&volume->admin);
  }
  if (snap)
    image_unref (snap);
  image_unref (volume);
  return h;
}

void *
data_client (void *arg)
{
  unsigned id = (uintptr_t) arg, n;
  struct rng rng = rng_make (soak.seed, 1000 + id);
  uint8_t *buf = xmalloc (MAX_REQUEST);
  struct handle *h;

  while (!stop) {
    h = attach (&rng);
    if (h == NULL) {
      clock_sleep_ms (1);
      continue;
    }
    n = rng_percent (&rng, 10) ? 2000 : rng_between (&rng, 1, 200);
    while (n > 0 && !stop && !h->image->leave && request (h, buf, &rng))
      n--;
    transport_close (h);
  }
  free (buf);
  return NULL;
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* Data through the client, from several threads, against a model: with a server
 * and without one.  Each thread has its own part of the volume, which grows
 * meanwhile.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nbdedup.h"
#include "rigs/control-rig.h"
#include "rigs/testutil.h"

#define NR_THREADS 6
#define PART (VOLUME_SIZE / NR_THREADS / 4096 * 4096)

struct worker {
  pthread_t thread;
  struct nbdedup_handle *handle;
  struct rng rng;
  uint64_t start;
};

struct extents_check {
  const uint8_t *model; /* of the range from 'start' */
  uint64_t start, next;
};

static int
check_extent (void *opaque, uint64_t offset, uint64_t len, bool hole)
{
  struct extents_check *c = opaque;

  if (offset != c->next || len == 0)
    die ("extents: gap at %" PRIu64, c->next);
  if (hole && !all_zero (c->model + (offset - c->start), len))
    die ("extents: data at %" PRIu64 " is called a hole", offset);
  c->next += len;
  return 0;
}

static void *
data_thread (void *opaque)
{
  struct worker *w = opaque;
  uint8_t *model = xcalloc (1, PART), *buf = xmalloc (PART);
  unsigned i;

  for (i = 0; i < 150; ++i) {
    /* Sometimes more than a frame holds. */
    const uint32_t max = rng_percent (&w->rng, 5) ? PART : 100000;
    const uint32_t len = rng_between (&w->rng, 1, max);
    const uint32_t at = rng_below (&w->rng, PART - len + 1);
    struct extents_check c = {
      .model = model + at,
      .start = w->start + at,
      .next = w->start + at,
    };
    int r = 0;

    switch (rng_below (&w->rng, 10)) {
    case 0:
    case 1:
    case 2:
    case 3:
      fill_random (model + at, len, rng_next (&w->rng));
      r = nbdedup_handle_write (w->handle, model + at, len, w->start + at);
      break;
    case 4:
      memset (model + at, 0, len);
      r = nbdedup_handle_write (w->handle, model + at, len, w->start + at);
      break;
    case 5:
      r = nbdedup_handle_flush (w->handle);
      break;
    case 6:
      r = nbdedup_handle_extents (w->handle, len, w->start + at, check_extent,
                                  &c);
      if (r == 0 && c.next != w->start + at + len)
        die ("extents end at %" PRIu64, c.next);
      break;
    default:
      r = nbdedup_handle_read (w->handle, buf, len, w->start + at);
      if (r == 0 && memcmp (buf, model + at, len) != 0)
        die ("read at %" PRIu64 ": other data",
             w->start + at + first_difference (buf, model + at, len));
    }
    check (r == 0, "a data request");
  }
  free (model);
  free (buf);
  return NULL;
}

static void
test_data (struct nbdedup_client *client, const char *name, uint64_t seed)
{
  struct nbdedup_handle *handle = nbdedup_client_volume_open (client, name, 0);
  struct worker workers[NR_THREADS];
  uint8_t byte;
  unsigned i;

  check (handle != NULL, "open a volume");
  if (nbdedup_handle_size (handle) != VOLUME_SIZE)
    die ("size %" PRIu64, nbdedup_handle_size (handle));
  /* Before the threads need more connections. */
  check (call (client, "resize", name, 2 * VOLUME_SIZE) == 0, "resize");
  for (i = 0; i < NR_THREADS; ++i) {
    workers[i].handle = handle;
    workers[i].rng = rng_make (seed, 10 + i);
    workers[i].start = i * PART;
    pthread_create (&workers[i].thread, NULL, data_thread, &workers[i]);
  }
  for (i = 0; i < NR_THREADS; ++i)
    pthread_join (workers[i].thread, NULL);

  /* An error leaves the connection usable. */
  check (nbdedup_handle_read (handle, &byte, 1, 2 * VOLUME_SIZE) == -1 &&
           errno == EINVAL,
         "read behind the end");
  check (nbdedup_handle_read (handle, &byte, 1, VOLUME_SIZE - 1) == 0,
         "read the last byte");
  nbdedup_handle_close (handle);

  handle = nbdedup_client_volume_open (client, name, NBDEDUP_VOLUME_READONLY);
  check (handle != NULL, "open read-only");
  check (nbdedup_handle_write (handle, "x", 1, 0) == -1 && errno == EROFS,
         "write to a read-only volume");
  nbdedup_handle_close (handle);
  handle = nbdedup_client_volume_open (client, "nonesuch", 0);
  check (handle == NULL && errno == ENOENT, "open what does not exist");
}

static void
test_served (uint64_t seed)
{
  struct nbdedup_client *client;

  start_server ();
  client = nbdedup_client_open (pool_path, NULL, "test", NULL);
  check (client != NULL, "open a client");
  check (call (client, "create", "vol", VOLUME_SIZE) == 0, "create");
  test_data (client, "vol", seed);
  check (nbdedup_client_close (client) == 0, "close a client");
  stop_server ();
}

/* Without a server the same calls work in this process. */
static void
test_local (uint64_t seed)
{
  struct nbdedup_client *client = nbdedup_client_open (pool_path, NULL, "test",
                                                       NULL);

  check (client != NULL, "open the pool as a client");
  check (!nbdedup_client_is_served (client), "no server runs");
  expect_sound (client);
  check (call (client, "create", "local", VOLUME_SIZE) == 0, "create");
  test_data (client, "local", seed + 1);
  check (nbdedup_client_close (client) == 0, "close the pool");
}

int
main (void)
{
  const uint64_t seed = seed_from_environment ();

  printf ("SEED=%" PRIu64 "\n", seed);
  fflush (stdout);
  alarm (300);
  signal (SIGPIPE, SIG_IGN);

  make_control_pool ();
  test_served (seed);
  test_local (seed);
  remove_control_pool ();
  return EXIT_SUCCESS;
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* Write very many different blocks, to measure the server's memory for them.
 *
 *   memory-load SOCKET STATE BLOCKS EXPORT...
 *
 * BLOCKS blocks of 4 KiB in all, spread over the exports, 16 per request,
 * the requests in an order that jumps over the whole volume; each block
 * compresses to less than a sector.  STATE is a file with the progress: after
 * an interruption the same command continues from there.  At the end the
 * program reads back a sample.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <libnbd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "rigs/testutil.h"

#define BLOCK 4096
#define REQUEST (16 * BLOCK)
#define WINDOW 8  /* requests in flight, per export */
#define STEP 4096 /* requests between flushes */
#define MAX_EXPORTS 16

struct volume {
  const char *name;
  unsigned id;
  struct nbd_handle *nbd;
  uint64_t from, to; /* requests of this step */
  pthread_t thread;
};

static uint64_t nr_requests; /* per volume */

/* The order: a step that has no factor in common with nr_requests. */
static uint64_t
place (uint64_t i)
{
  return (uint64_t) ((unsigned __int128) i * UINT64_C (2654435761) %
                     nr_requests);
}

static void
fill_request (uint8_t *buf, unsigned volume, uint64_t where)
{
  struct rng rng;
  unsigned i, j;
  uint64_t v;

  memset (buf, 'x', REQUEST);
  for (i = 0; i < REQUEST / BLOCK; ++i) {
    rng = rng_make (volume + 1, where * (REQUEST / BLOCK) + i);
    for (j = 0; j < 8; ++j) {
      v = rng_next (&rng);
      memcpy (buf + i * BLOCK + j * 8, &v, 8);
    }
  }
}

static int
written (void *opaque, int *error)
{
  if (*error)
    die ("write: %s", strerror (*error));
  atomic_store ((atomic_bool *) opaque, false);
  return 1;
}

static void *
load (void *arg)
{
  struct volume *v = arg;
  uint8_t *bufs = xmalloc ((size_t) WINDOW * REQUEST);
  atomic_bool busy[WINDOW];
  uint64_t i;
  unsigned w;

  for (w = 0; w < WINDOW; ++w)
    atomic_init (&busy[w], false);
  for (i = v->from; i < v->to; ++i) {
    w = i % WINDOW;
    while (atomic_load (&busy[w]))
      if (nbd_poll (v->nbd, 1000) == -1)
        die ("%s: %s", v->name, nbd_get_error ());
    fill_request (bufs + w * REQUEST, v->id, place (i));
    atomic_store (&busy[w], true);
    if (nbd_aio_pwrite (v->nbd, bufs + w * REQUEST, REQUEST,
                        place (i) * REQUEST,
                        (nbd_completion_callback) { .callback = written,
                                                    .user_data = &busy[w] },
                        0) == -1)
      die ("%s: %s", v->name, nbd_get_error ());
  }
  while (nbd_aio_in_flight (v->nbd) > 0)
    if (nbd_poll (v->nbd, 1000) == -1)
      die ("%s: %s", v->name, nbd_get_error ());
  if (nbd_flush (v->nbd, 0) == -1)
    die ("%s: %s", v->name, nbd_get_error ());
  free (bufs);
  return NULL;
}

static void
read_sample (struct volume *v)
{
  uint8_t *buf = xmalloc (REQUEST), *expected = xmalloc (REQUEST);
  struct rng rng = rng_make (7, v->id);
  unsigned i;

  for (i = 0; i < 500; ++i) {
    uint64_t where = place (rng_below (&rng, nr_requests));

    fill_request (expected, v->id, where);
    if (nbd_pread (v->nbd, buf, REQUEST, where * REQUEST, 0) == -1)
      die ("%s: %s", v->name, nbd_get_error ());
    if (memcmp (buf, expected, REQUEST) != 0)
      die ("%s: request %" PRIu64 " reads back wrong", v->name, where);
  }
  free (buf);
  free (expected);
}

static void
save_state (const char *path, uint64_t done)
{
  char temporary[4096];
  FILE *f;

  snprintf (temporary, sizeof temporary, "%s.new", path);
  f = fopen (temporary, "w");
  if (f == NULL || fprintf (f, "%" PRIu64 "\n", done) < 0 || fclose (f) != 0 ||
      rename (temporary, path) == -1)
    die ("%s: %s", path, strerror (errno));
}

int
main (int argc, char *argv[])
{
  struct volume volumes[MAX_EXPORTS] = { 0 };
  uint64_t done = 0;
  unsigned nr, i;
  time_t start = time (NULL);
  FILE *f;

  if (argc < 5 || argc > 4 + MAX_EXPORTS)
    die ("usage: memory-load SOCKET STATE BLOCKS EXPORT...");
  nr = argc - 4;
  nr_requests = strtoull (argv[3], NULL, 0) / (REQUEST / BLOCK) / nr;
  while (nr_requests % UINT64_C (2654435761) == 0)
    nr_requests++; /* a prime: only its multiples share it */

  f = fopen (argv[2], "r");
  if (f) {
    if (fscanf (f, "%" SCNu64, &done) != 1)
      die ("%s: no number", argv[2]);
    fclose (f);
  }
  for (i = 0; i < nr; ++i) {
    volumes[i] = (struct volume) {
      .name = argv[4 + i],
      .id = i,
      .nbd = nbd_create (),
    };
    if (volumes[i].nbd == NULL ||
        nbd_set_export_name (volumes[i].nbd, argv[4 + i]) == -1 ||
        nbd_connect_unix (volumes[i].nbd, argv[1]) == -1)
      die ("%s: %s", argv[4 + i], nbd_get_error ());
    if ((uint64_t) nbd_get_size (volumes[i].nbd) < nr_requests * REQUEST)
      die ("%s: too small, needs %" PRIu64 " bytes", argv[4 + i],
           nr_requests * REQUEST);
  }

  while (done < nr_requests) {
    uint64_t to = done + STEP < nr_requests ? done + STEP : nr_requests;

    for (i = 0; i < nr; ++i) {
      volumes[i].from = done;
      volumes[i].to = to;
      if (pthread_create (&volumes[i].thread, NULL, load, &volumes[i]) != 0)
        die ("pthread_create failed");
    }
    for (i = 0; i < nr; ++i)
      pthread_join (volumes[i].thread, NULL);
    done = to;
    save_state (argv[2], done);
    printf ("%" PRIu64 " blocks after %ld s\n", done * nr * (REQUEST / BLOCK),
            (long) (time (NULL) - start));
    fflush (stdout);
  }
  for (i = 0; i < nr; ++i) {
    read_sample (&volumes[i]);
    nbd_shutdown (volumes[i].nbd, 0);
    nbd_close (volumes[i].nbd);
  }
  return 0;
}

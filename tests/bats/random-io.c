/* SPDX-License-Identifier: BSD-3-Clause */

/* Random requests of any alignment on empty volumes, over NBD.
 *
 *   random-io SOCKET EXPORT...
 *
 * Threads own pieces of the volumes that are not aligned to blocks.  Each
 * request uses any of several connections, so a read over one must see a write
 * over another as soon as this is answered.  At the end the program reads
 * everything over new connections and compares it with the model.
 *
 * SEED and IO_SECONDS (default 3) come from the environment.  With
 * RANDOM_IO_OUT=DIR the expected contents are left in DIR/EXPORT, for a
 * comparison after a restart.
 */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <libnbd.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#include "rigs/testutil.h"

#define NR_THREADS 6
#define NR_CONNECTIONS 4
#define MAX_DISKS 8
#define NR_DUPS 30
#define MAX_REQUEST (UINT32_C (3) << 20)

struct disk {
  const char *name;
  uint64_t size;
  uint32_t block_size;
  uint8_t *data;
  uint64_t *bounds;
  unsigned nr_pieces;
  bool can_trim, can_zero, can_fua, can_flush, can_cache;
  struct nbd_handle *nbd[NR_CONNECTIONS];
};

static const char *socket_path;
static struct disk disks[MAX_DISKS];
static unsigned nr_disks;
static uint64_t seed;
static atomic_bool stop;
static _Atomic uint64_t nr_requests;

#define must(call)                                                             \
  do {                                                                         \
    if ((call) == -1)                                                          \
      die ("SEED=%" PRIu64 " line %d: %s: %s", seed, __LINE__, #call,          \
           nbd_get_error ());                                                  \
  } while (0)

static struct nbd_handle *
connect_to (const char *name)
{
  struct nbd_handle *nbd = nbd_create ();

  if (nbd == NULL)
    die ("nbd_create: %s", nbd_get_error ());
  must (nbd_set_export_name (nbd, name));
  must (nbd_add_meta_context (nbd, LIBNBD_CONTEXT_BASE_ALLOCATION));
  must (nbd_connect_unix (nbd, socket_path));
  return nbd;
}

static void
open_disk (struct disk *d, const char *name, struct rng *rng)
{
  unsigned i, max;
  uint64_t at;
  int64_t r;

  d->name = name;
  for (i = 0; i < NR_CONNECTIONS; ++i)
    d->nbd[i] = connect_to (name);
  r = nbd_get_size (d->nbd[0]);
  must (r);
  d->size = r;
  r = nbd_get_block_size (d->nbd[0], LIBNBD_SIZE_PREFERRED);
  d->block_size = r > 0 ? r : 4096;
  if (nbd_can_multi_conn (d->nbd[0]) != 1)
    die ("%s: no multi-conn", name);
  d->can_trim = nbd_can_trim (d->nbd[0]) == 1;
  d->can_zero = nbd_can_zero (d->nbd[0]) == 1;
  d->can_fua = nbd_can_fua (d->nbd[0]) == 1;
  d->can_flush = nbd_can_flush (d->nbd[0]) == 1;
  d->can_cache = nbd_can_cache (d->nbd[0]) == 1;
  if (!d->can_trim || !d->can_zero || !d->can_fua || !d->can_flush ||
      !d->can_cache)
    die ("%s: trim %d, zero %d, fua %d, flush %d, cache %d: one is missing",
         name, d->can_trim, d->can_zero, d->can_fua, d->can_flush,
         d->can_cache);
  d->data = xcalloc (1, d->size);

  max = 4096;
  d->bounds = xcalloc (max + 1, sizeof d->bounds[0]);
  for (at = 0; at < d->size && d->nr_pieces < max;) {
    d->bounds[d->nr_pieces++] = at;
    at += rng_percent (rng, 40)
      ? rng_between (rng, 1, 3000)
      : rng_between (rng, 1, 4 * (uint64_t) d->block_size);
  }
  d->bounds[d->nr_pieces] = d->size;
}

static void
compare (const struct disk *d, uint64_t offset, uint64_t len,
         const uint8_t *buf, const char *when)
{
  expect_bytes (when, d->name, d->block_size, offset, len, buf,
                d->data + offset);
}

struct extents {
  struct disk *d;
  uint64_t offset, limit; /* compare up to here */
};

static int
check_extents (void *opaque, const char *context, uint64_t offset,
               uint32_t *entries, size_t nr, int *error)
{
  struct extents *e = opaque;
  uint64_t end;
  size_t i;

  (void) error;
  if (strcmp (context, LIBNBD_CONTEXT_BASE_ALLOCATION) != 0)
    return 0;
  for (i = 0; i < nr; i += 2, offset += entries[i - 2]) {
    end = offset + entries[i] < e->limit ? offset + entries[i] : e->limit;
    if ((entries[i + 1] & LIBNBD_STATE_ZERO) && offset < end &&
        !all_zero (e->d->data + offset, end - offset))
      die ("SEED=%" PRIu64 " export %s: %" PRIu64 " bytes at %" PRIu64
           " are called zero but have data",
           seed, e->d->name, end - offset, offset);
  }
  e->offset = offset;
  return 0;
}

/* Send one request inside a piece of this thread. */
static void
request (struct disk *d, uint64_t offset, uint64_t len, uint8_t *buf,
         struct rng *rng)
{
  struct nbd_handle *nbd = d->nbd[rng_below (rng, NR_CONNECTIONS)];
  uint32_t fua = rng_percent (rng, 5) ? LIBNBD_CMD_FLAG_FUA : 0;
  unsigned n = rng_below (rng, 100);
  struct extents e = { .d = d, .limit = offset + len };

  if (n < 48) {
    fill_content (buf, len, d->block_size, NR_DUPS, rng);
    must (nbd_pwrite (nbd, buf, len, offset, fua));
    memcpy (d->data + offset, buf, len);
  }
  else if (n < 55) {
    if (rng_percent (rng, 30))
      fua |= LIBNBD_CMD_FLAG_NO_HOLE;
    must (nbd_zero (nbd, len, offset, fua));
    memset (d->data + offset, 0, len);
  }
  else if (n < 62) {
    must (nbd_trim (nbd, len, offset, fua));
    memset (d->data + offset, 0, len);
  }
  else if (n < 93) {
    memset (buf, 0x5a, len);
    must (nbd_pread (nbd, buf, len, offset, 0));
    compare (d, offset, len, buf, "while others write");
  }
  else if (n < 96)
    must (nbd_block_status (nbd, len, offset,
                            (nbd_extent_callback) { .callback = check_extents,
                                                    .user_data = &e },
                            0));
  else if (n < 98)
    must (nbd_cache (nbd, len, offset, 0));
  else
    must (nbd_flush (nbd, 0));
  atomic_fetch_add (&nr_requests, 1);
}

static void *
load (void *arg)
{
  unsigned id = (uintptr_t) arg, piece;
  struct rng rng = rng_make (seed, 10 + id);
  uint8_t *buf = xmalloc (MAX_REQUEST);
  uint64_t lo, hi, offset, len;

  while (!atomic_load (&stop)) {
    struct disk *d = &disks[rng_below (&rng, nr_disks)];

    if (d->nr_pieces < NR_THREADS)
      continue;
    piece = rng_below (&rng, d->nr_pieces / NR_THREADS) * NR_THREADS + id;
    lo = d->bounds[piece];
    hi = d->bounds[piece + 1];
    offset = lo;
    len = hi - lo;
    if (rng_percent (&rng, 60)) {
      offset += rng_below (&rng, len);
      len = rng_between (&rng, 1, hi - offset);
    }
    request (d, offset, len < MAX_REQUEST ? len : MAX_REQUEST, buf, &rng);
  }
  free (buf);
  return NULL;
}

static void
verify (struct disk *d, struct rng *rng)
{
  struct nbd_handle *nbd = connect_to (d->name);
  uint8_t *buf = xmalloc (MAX_REQUEST);
  struct extents e = { .d = d, .limit = d->size };
  uint64_t offset, len;

  for (offset = 0; offset < d->size; offset += len) {
    len = rng_between (rng, 1, MAX_REQUEST);
    if (len > d->size - offset)
      len = d->size - offset;
    must (nbd_pread (nbd, buf, len, offset, 0));
    compare (d, offset, len, buf, "at the end");
  }
  while (e.offset < d->size) {
    offset = e.offset;
    must (nbd_block_status (nbd, d->size - offset, offset,
                            (nbd_extent_callback) { .callback = check_extents,
                                                    .user_data = &e },
                            0));
    if (e.offset <= offset)
      die ("export %s: block status stands still at %" PRIu64, d->name, offset);
  }
  nbd_shutdown (nbd, 0);
  nbd_close (nbd);
  free (buf);
}

/* Requests that the server must refuse, and survive. */
static void
out_of_range (struct disk *d)
{
  struct nbd_handle *nbd = connect_to (d->name);
  uint8_t buf[1024] = { 0 };

  must (nbd_set_strict_mode (nbd, 0));
  if (nbd_pread (nbd, buf, 512, d->size, 0) != -1 ||
      nbd_pread (nbd, buf, 512, d->size - 1, 0) != -1 ||
      nbd_pread (nbd, buf, 512, UINT64_MAX - 511, 0) != -1 ||
      nbd_pwrite (nbd, buf, 512, d->size, 0) != -1 ||
      nbd_pwrite (nbd, buf, 1024, d->size - 512, 0) != -1 ||
      nbd_zero (nbd, 1 << 30, d->size - 4096, 0) != -1 ||
      nbd_trim (nbd, 4096, UINT64_MAX - 100, 0) != -1)
    die ("export %s: a request past the end was not refused", d->name);
  nbd_close (nbd);
}

static void
leave_expected (const struct disk *d, const char *dir)
{
  char path[PATH_MAX];
  FILE *f;

  snprintf (path, sizeof path, "%s/%s", dir, d->name);
  f = fopen (path, "w");
  if (f == NULL || fwrite (d->data, 1, d->size, f) != d->size ||
      fclose (f) != 0)
    die ("%s: %s", path, strerror (errno));
}

int
main (int argc, char *argv[])
{
  uint64_t seconds = number_from_environment ("IO_SECONDS", 3);
  const char *out = getenv ("RANDOM_IO_OUT");
  pthread_t threads[NR_THREADS];
  struct rng rng;
  uintptr_t i, j;

  if (argc < 3 || argc > 2 + MAX_DISKS) {
    fprintf (stderr, "usage: random-io SOCKET EXPORT...\n");
    return 2;
  }
  seed = seed_from_environment ();
  printf ("SEED=%" PRIu64 "\n", seed);
  fflush (stdout);
  rng = rng_make (seed, 0);
  socket_path = argv[1];
  nr_disks = argc - 2;
  for (i = 0; i < nr_disks; ++i)
    open_disk (&disks[i], argv[2 + i], &rng);

  for (i = 0; i < NR_THREADS; ++i)
    if (pthread_create (&threads[i], NULL, load, (void *) i) != 0)
      die ("pthread_create failed");
  poll (NULL, 0, seconds * 1000);
  atomic_store (&stop, true);
  for (i = 0; i < NR_THREADS; ++i)
    pthread_join (threads[i], NULL);

  for (i = 0; i < nr_disks; ++i) {
    out_of_range (&disks[i]);
    verify (&disks[i], &rng);
    must (nbd_flush (disks[i].nbd[0], 0));
    for (j = 0; j < NR_CONNECTIONS; ++j) {
      nbd_shutdown (disks[i].nbd[j], 0);
      nbd_close (disks[i].nbd[j]);
    }
    if (out)
      leave_expected (&disks[i], out);
    free (disks[i].data);
    free (disks[i].bounds);
  }
  printf ("%" PRIu64 " requests\n", (uint64_t) nr_requests);
  return 0;
}

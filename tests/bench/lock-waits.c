/* SPDX-License-Identifier: BSD-3-Clause */

/* Counts how often threads wait for the engine's locks, and how long a thread
 * holds each: with 1, 2 and 8 workers, two volumes of 16 KiB blocks and CLIENTS
 * (default 4) threads at each, and each of these loads for LOAD_SECONDS (default
 * 3):
 *
 *   write-4k    random writes of 4 KiB
 *   write-16k   random writes of whole blocks
 *   mix         70 % reads and 30 % writes of 128 KiB
 *   read-16k    random reads of whole blocks
 *
 * More workers than cores show what more cores would do: a thread that the
 * kernel stops while it holds a lock makes the others wait.  "volume" locks are
 * those that each volume has for itself.  "held" is the mean, in nanoseconds,
 * with about 50 of the clock itself.
 *
 * The pool is below $TMPDIR.  "make bench-locks" configures the build that this
 * needs, with --enable-lock-counters, and runs it.
 */

#include <config.h>

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>

#include "rigs/pool-util.h"

#if NBDEDUP_LOCK_COUNTERS

#include "base/lock-counters.h"

#define BLOCK 16384u
#define MAX_IO (128u << 10)
#define VOLUME_BYTES (UINT64_C (128) << 20)
#define NR_VOLUMES 2u
#define MAX_CLIENTS 64u
#define MAX_LOCKS 64u
/* Do not show locks that threads took less often. */
#define TAKEN_MIN 100u

struct nbdedup_pool *pool;

struct load {
  const char *name;
  uint32_t bytes;
  unsigned read_percent;
};

static const struct load loads[] = {
  { "write-4k", 4096, 0 },
  { "write-16k", BLOCK, 0 },
  { "mix", MAX_IO, 70 },
  { "read-16k", BLOCK, 100 },
};

struct client {
  pthread_t thread;
  const struct load *load;
  struct nbdedup_volume *volume;
  uint64_t seed, requests;
};

static atomic_bool stop;

static void *
run_client (void *arg)
{
  struct client *c = arg;
  struct rng rng = rng_make (c->seed, 1);
  uint8_t *buf = xmalloc (MAX_IO);
  uint64_t offset;

  fill_random (buf, MAX_IO, c->seed);
  for (c->requests = 0; !stop; c->requests++) {
    offset = rng_below (&rng, VOLUME_BYTES / c->load->bytes) * c->load->bytes;
    if (rng_percent (&rng, c->load->read_percent)) {
      must (nbdedup_volume_read (c->volume, buf, c->load->bytes, offset));
      continue;
    }
    fill_random (buf, 64, rng_next (&rng));
    must (nbdedup_volume_write (c->volume, buf, c->load->bytes, offset));
  }
  free (buf);
  return NULL;
}

static void
reset_counters (void)
{
  struct lock_counters *c;

  for (c = lock_counters; c; c = c->next)
    c->taken = c->waited = c->wait_ns = c->held_ns = c->longest_ns = 0;
}

static int
by_wait (const void *a, const void *b)
{
  const struct lock_counters *x = *(struct lock_counters *const *) a;
  const struct lock_counters *y = *(struct lock_counters *const *) b;

  return x->wait_ns < y->wait_ns ? 1 : x->wait_ns > y->wait_ns ? -1 : 0;
}

static const char *
file_in_lib (const char *path)
{
  const char *p = strstr (path, "/lib/");

  return p ? p + strlen ("/lib/") : path;
}

static void
print_counters (void)
{
  struct lock_counters *list[MAX_LOCKS], *c;
  unsigned nr = 0, i;

  for (c = lock_counters; c && nr < MAX_LOCKS; c = c->next)
    if (c->taken >= TAKEN_MIN)
      list[nr++] = c;
  qsort (list, nr, sizeof list[0], by_wait);
  printf ("  %-38s %10s %8s %7s %9s %7s %11s\n", "lock", "taken", "waited",
          "share", "wait, ms", "held", "longest, us");
  for (i = 0; i < nr; ++i) {
    c = list[i];
    printf ("  %-22.22s %-15.15s %10" PRIu64 " %8" PRIu64 " %6.2f%% %9.1f"
            " %7" PRIu64 " %11" PRIu64 "\n",
            file_in_lib (c->file), c->name, c->taken, c->waited,
            100.0 * (double) c->waited / (double) c->taken,
            (double) c->wait_ns / 1e6, c->held_ns / c->taken,
            c->longest_ns / 1000);
  }
}

static void
run_load (const struct load *load, struct nbdedup_volume *volumes[NR_VOLUMES],
          unsigned nr_clients, uint64_t ms)
{
  struct client clients[NR_VOLUMES * MAX_CLIENTS];
  unsigned nr = NR_VOLUMES * nr_clients, i;
  uint64_t requests = 0;

  stop = false;
  reset_counters ();
  for (i = 0; i < nr; ++i) {
    clients[i] = (struct client) {
      .load = load,
      .volume = volumes[i % NR_VOLUMES],
      .seed = i + 1,
    };
    if (pthread_create (&clients[i].thread, NULL, run_client, &clients[i]) != 0)
      die ("pthread_create failed");
  }
  clock_sleep_ms (ms);
  stop = true;
  for (i = 0; i < nr; ++i) {
    pthread_join (clients[i].thread, NULL);
    requests += clients[i].requests;
  }
  printf (" %s: %" PRIu64 " requests/s\n", load->name, requests * 1000 / ms);
  print_counters ();
}

static void
open_with (const char *directory, unsigned nr_workers)
{
  struct nbdedup_settings settings;

  nbdedup_settings_init (&settings);
  settings.nr_workers = nr_workers;
  pool = nbdedup_pool_open (directory, &settings, "lock-waits", 0);
  if (pool == NULL)
    die ("open: %s", nbdedup_error ());
}

static void
fill_volume (struct nbdedup_volume *v, uint64_t seed)
{
  uint8_t *buf = xmalloc (MAX_IO);
  uint64_t offset;

  for (offset = 0; offset < VOLUME_BYTES; offset += MAX_IO) {
    fill_random (buf, MAX_IO, seed + offset);
    must (nbdedup_volume_write (v, buf, MAX_IO, offset));
  }
  must (nbdedup_volume_flush (v));
  free (buf);
}

static void
run_loads (unsigned nr_workers, unsigned nr_clients, uint64_t ms)
{
  struct nbdedup_volume *volumes[NR_VOLUMES];
  char directory[PATH_MAX], name[8];
  unsigned i;

  make_directory (directory, usual_directory (), "lock-waits");
  must (nbdedup_pool_create (directory, NULL));
  open_with (directory, nr_workers);
  for (i = 0; i < NR_VOLUMES; ++i) {
    snprintf (name, sizeof name, "v%u", i);
    run ("create",
         json_pack ("{s:s,s:I,s:i}", "name", name, "size",
                    (json_int_t) VOLUME_BYTES, "block-size", (int) BLOCK));
    volumes[i] = open_volume (name);
    fill_volume (volumes[i], (i + 1) * VOLUME_BYTES);
  }
  printf ("%u workers, %u threads at each of %u volumes\n", nr_workers,
          nr_clients, NR_VOLUMES);
  for (i = 0; i < sizeof loads / sizeof loads[0]; ++i)
    run_load (&loads[i], volumes, nr_clients, ms);
  for (i = 0; i < NR_VOLUMES; ++i)
    nbdedup_volume_close (volumes[i]);
  must (nbdedup_pool_close (pool));
  remove_directory (directory);
}

int
main (void)
{
  const unsigned workers[] = { 1, 2, 8 };
  uint64_t clients = number_from_environment ("CLIENTS", 4);
  uint64_t ms = 1000 * number_from_environment ("LOAD_SECONDS", 3);
  unsigned i;

  if (clients < 1 || clients > MAX_CLIENTS || ms == 0)
    die ("CLIENTS: 1 to %u; LOAD_SECONDS: at least 1", MAX_CLIENTS);
  for (i = 0; i < sizeof workers / sizeof workers[0]; ++i)
    run_loads (workers[i], (unsigned) clients, ms);
  return 0;
}

#else /* !NBDEDUP_LOCK_COUNTERS */

struct nbdedup_pool *pool;

int
main (void)
{
  fprintf (stderr,
           "lock-waits: this build does not count: configure it with "
           "--enable-lock-counters, or run make bench-locks\n");
  return 77;
}

#endif

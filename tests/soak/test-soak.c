/* SPDX-License-Identifier: BSD-3-Clause */

/* A long concurrent test: random operations of every kind, from many
 * connections and commands at once, against a model in memory; or a given
 * number of operations, after which no figure may have grown.
 *
 *   test-soak [--plugin FILE [--nbdedup FILE] [--preload LIBS]] [DIRECTORY]
 *
 * With --plugin the engine is in a server, used over NBD, and some commands are
 * processes; otherwise it is in this process, where sanitizers can see it.
 * From the environment: SOAK_SECONDS (default 8), or SOAK_OPERATIONS; SEED.
 *
 * 'soak.h' explains the model.  Every byte that is read is compared.  After
 * each phase everything stops: "check" and "scrub" must find nothing, and all
 * contents are compared, and once more after closing and opening, with another
 * "primarycache".
 */

#include <config.h>

#include <getopt.h>
#include <malloc.h>
#include <signal.h>

#include "soak/soak.h"

#define NR_CLIENTS 7
#define NR_ADMINS 4
#define PHASE_SECONDS 120
/* The time limit of stopping, comparing and opening. */
#define STOP_SECONDS 900

struct soak soak;
atomic_bool stop;
static unsigned descriptors; /* before anything is open */

static const char *const cache_names[] = { "all", "metadata", "none" };

static void
parse (int argc, char *argv[])
{
  static const struct option options[] = {
    { "plugin", required_argument, NULL, 'p' },
    { "nbdedup", required_argument, NULL, 'n' },
    { "preload", required_argument, NULL, 'l' },
    { NULL, 0, NULL, 0 },
  };
  int c;

  while ((c = getopt_long (argc, argv, "", options, NULL)) != -1)
    switch (c) {
    case 'p':
      soak.plugin = optarg;
      break;
    case 'n':
      soak.nbdedup = optarg;
      break;
    case 'l':
      soak.preload = optarg;
      break;
    default:
      exit (2);
    }
  soak.seed = seed_from_environment ();
  soak.operations = number_from_environment ("SOAK_OPERATIONS", 0);
  soak.seconds = number_from_environment ("SOAK_SECONDS", 8);
  make_directory (soak.directory,
                  optind < argc ? argv[optind] : fast_directory (), "soak");
  snprintf (soak.pool, sizeof soak.pool, "%s/pool", soak.directory);
}

/* Close the pool, which must leave no descriptor open in this process. */
static void
stop_all (void)
{
  unsigned nr;

  transport_stop ();
  nr = count_descriptors (getpid ());
  if (nr != descriptors)
    fatal ("%u descriptors after closing, %u before opening", nr, descriptors);
}

/* Make the pool in this process, before there is a server. */
static void
make_pool (void)
{
  const char *plugin = soak.plugin;

  if (nbdedup_pool_create (soak.pool, NULL) == -1)
    fatal ("init: %s", nbdedup_error ());
  soak.plugin = NULL;
  descriptors = count_descriptors (getpid ());
  transport_start (NBDEDUP_CACHE_ALL);
  make_volumes ();
  stop_all ();
  soak.plugin = plugin;
}

static void
start_thread (pthread_t *thread, void *(*fn) (void *), uintptr_t id)
{
  if (pthread_create (thread, NULL, fn, (void *) id) != 0)
    die ("pthread_create failed");
}

static void
run_all (uint64_t ms)
{
  pthread_t threads[NR_CLIENTS + NR_ADMINS + 1];
  static uintptr_t phase;
  unsigned nr = 0, i;

  stop = false;
  for (i = 0; i < NR_CLIENTS; ++i)
    start_thread (&threads[nr++], data_client, phase * NR_CLIENTS + i);
  for (i = 0; i < NR_ADMINS; ++i)
    start_thread (&threads[nr++], admin_client, phase * NR_ADMINS + i);
  phase++;
  if (soak.operations)
    start_thread (&threads[nr++], measure, 0);
  else {
    clock_sleep_ms (ms);
    stop = true;
  }
  while (nr > 0)
    pthread_join (threads[--nr], NULL);
}

static void
print_phase (unsigned phase, enum nbdedup_primarycache cache, uint64_t ms)
{
  printf ("phase %u, primarycache=%s: %.1f s; so far %" PRIu64 " requests, "
          "%" PRIu64 " clients cut off, %" PRIu64 " blocks compared, %" PRIu64
          " snapshots of one moment (%" PRIu64 " blocks written meanwhile)\n",
          phase, cache_names[cache], (double) ms / 1000, (uint64_t) nr_requests,
          (uint64_t) nr_cut_off, (uint64_t) nr_compared, (uint64_t) nr_moments,
          (uint64_t) nr_undecided);
  fflush (stdout);
}

int
main (int argc, char *argv[])
{
  enum nbdedup_primarycache cache = NBDEDUP_CACHE_ALL;
  uint64_t start, left, ms, began;
  unsigned phase = 0, phases;
  bool ok = true;

  /* The same settings as in the plugin. */
  mallopt (M_ARENA_MAX, 2);
  mallopt (M_MMAP_THRESHOLD, 128 << 10);
  mallopt (M_TRIM_THRESHOLD, 256 << 10);

  signal (SIGALRM, too_long);
  parse (argc, argv);
  printf ("SEED=%" PRIu64 " %s\n", soak.seed,
          soak.plugin ? "server, NBD, processes" : "engine in this process");
  fflush (stdout);
  if (soak.operations)
    model_reserve (UINT64_C (224) << 20);
  make_pool ();
  left = soak.seconds * 1000;
  phases = soak.operations ? 1 : 3 + soak.seconds / PHASE_SECONDS;
  start = clock_ms ();
  transport_start (cache);
  do {
    ms = (left + phases - phase - 1) / (phases - phase);
    began = clock_ms ();
    alarm (soak.operations ? 0 : (unsigned) (ms / 1000) + STOP_SECONDS);
    run_all (ms);
    alarm (STOP_SECONDS);
    left -= ms;
    print_phase (phase++, cache, clock_ms () - began);
    verify_all ("after a phase");
    stop_all ();
    cache = (cache + 1) % 3;
    transport_start (cache);
    verify_all ("after opening");
  } while (phase < phases);
  ms = clock_ms () - start;
  stop_all ();
  transport_report ();
  if (soak.operations)
    ok = measure_report ();
  printf ("%" PRIu64 " requests in %.1f s: no difference%s\n",
          (uint64_t) nr_requests, (double) ms / 1000,
          ok ? "" : ", but something has grown");
  remove_directory (soak.directory);
  return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}

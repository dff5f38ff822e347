/* SPDX-License-Identifier: BSD-3-Clause */

/* Measures the cost of drift on a large pool (see drift-fleet.c), through a
 * server:
 *
 *   drift-costs POOL PLUGIN NBDEDUP GOLDEN
 *
 *  time      of "nbdedup drift GOLDEN", on an idle server: the first after
 *            its start, and further ones; the server's CPU time for it; and
 *            the rise of the server's peak memory (VmHWM) above its memory
 *            when idle;
 *
 *  speed     of clients of another volume while drift runs (again and again,
 *            if it takes less than WINDOW seconds), and without it, in turns:
 *            random requests of 16 KiB, 70 % of them reads, and sequential
 *            reads of 256 KiB; four connections each, as fast as they get
 *            answers.
 *
 * Medians of ROUNDS (default 5).  No figure makes it fail.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "rigs/server-process.h"
#include "rigs/testutil.h"

#define NR_CLIENTS 4
#define MAX_ROUNDS 25
#define WINDOW 8
#define LOAD_BYTES (UINT64_C (1) << 30)
#define RANDOM_LEN 16384u
#define SEQUENTIAL_LEN 262144u

static const char *pool, *plugin, *nbdedup, *golden;
static char pool_key[PATH_MAX + 8];
static struct server_process server;
static unsigned nr_rounds;

static double
now (void)
{
  return clock_ns () / 1e9;
}

static int
compare_doubles (const void *a, const void *b)
{
  double x = *(const double *) a, y = *(const double *) b;

  return (x > y) - (x < y);
}

static double
median (const double *figures)
{
  double sorted[MAX_ROUNDS];

  memcpy (sorted, figures, nr_rounds * sizeof sorted[0]);
  qsort (sorted, nr_rounds, sizeof sorted[0], compare_doubles);
  return (sorted[(nr_rounds - 1) / 2] + sorted[nr_rounds / 2]) / 2;
}

static void
print_figures (const char *name, const double *figures)
{
  unsigned i;

  printf ("%-44s", name);
  for (i = 0; i < nr_rounds; ++i)
    printf (" %10.2f", figures[i]);
  printf ("   median %10.2f\n", median (figures));
  fflush (stdout);
}

/*----------------------------------------------------------------------
 * The server
 */

static void
run_command (const char *const *argv)
{
  int status;
  char *text = command_output (argv, 3600, NULL, NULL, &status);

  if (status != 0)
    die ("%s %s: status %d: %s", argv[0], argv[3], status, text);
  free (text);
}

static void
start_server (void)
{
  const char *argv[] = { "nbdkit",           "-f",   "-U",
                         server.socket,      plugin, pool_key,
                         "drift-interval=0", NULL };
  struct nbd_handle *nbd;

  server.pid = process_start (argv, "/dev/stderr", NULL);
  nbd = server_connect (&server, "load", 300);
  if (nbd == NULL)
    die ("nbdkit does not start");
  nbd_shutdown (nbd, 0);
  nbd_close (nbd);
}

static void
stop_server (void)
{
  kill (server.pid, SIGTERM);
  process_wait (server.pid, 300, "nbdkit");
  unlink (server.socket);
}

static double
drift_seconds (void)
{
  const char *argv[] = { nbdedup, "-p", pool, "drift", golden, "--json", NULL };
  double start = now ();

  run_command (argv);
  return now () - start;
}

/* A memory figure of the server, in MiB. */
static double
memory (const char *key)
{
  char path[64], line[256];
  size_t len = strlen (key);
  double kib = -1;
  FILE *f;

  snprintf (path, sizeof path, "/proc/%d/status", (int) server.pid);
  f = fopen (path, "r");
  if (f == NULL)
    die ("%s: %s", path, strerror (errno));
  while (fgets (line, sizeof line, f))
    if (strncmp (line, key, len) == 0)
      kib = atof (line + len);
  fclose (f);
  if (kib < 0)
    die ("%s: no %s", path, key);
  return kib / 1024;
}

/* The server's CPU time, in seconds. */
static double
cpu_seconds (void)
{
  unsigned long user, system;
  char path[64];
  FILE *f;

  snprintf (path, sizeof path, "/proc/%d/stat", (int) server.pid);
  f = fopen (path, "r");
  if (f == NULL ||
      fscanf (f,
              "%*d %*s %*c %*d %*d %*d %*d %*d %*u %*u %*u "
              "%*u %*u %lu %lu",
              &user, &system) != 2)
    die ("%s: cannot be read", path);
  fclose (f);
  return (double) (user + system) / sysconf (_SC_CLK_TCK);
}

/* Reset VmHWM, so that it becomes the peak from now on. */
static void
forget_peak (void)
{
  char path[64];
  FILE *f;

  snprintf (path, sizeof path, "/proc/%d/clear_refs", (int) server.pid);
  f = fopen (path, "w");
  if (f == NULL || fputs ("5", f) == EOF || fclose (f) != 0)
    die ("%s: %s", path, strerror (errno));
}

/*----------------------------------------------------------------------
 * Clients
 */

struct client {
  struct nbd_handle *nbd;
  struct rng rng;
  bool sequential;
  pthread_t thread;
};

static struct client clients[NR_CLIENTS];
static atomic_bool stop;
static atomic_uint_fast64_t answered;

static void
request_random (struct client *c, uint8_t *buf)
{
  uint64_t offset = rng_below (&c->rng, LOAD_BYTES / RANDOM_LEN) * RANDOM_LEN;
  int r;

  if (rng_percent (&c->rng, 70))
    r = nbd_pread (c->nbd, buf, RANDOM_LEN, offset, 0);
  else {
    fill_compressible (buf, RANDOM_LEN, rng_next (&c->rng));
    r = nbd_pwrite (c->nbd, buf, RANDOM_LEN, offset, 0);
  }
  if (r == -1)
    die ("%s", nbd_get_error ());
}

static void *
use_volume (void *arg)
{
  struct client *c = arg;
  uint8_t *buf = xmalloc (SEQUENTIAL_LEN);
  uint64_t offset = rng_below (&c->rng, 4) * (LOAD_BYTES / 4);

  while (!atomic_load (&stop)) {
    if (!c->sequential)
      request_random (c, buf);
    else if (nbd_pread (c->nbd, buf, SEQUENTIAL_LEN, offset, 0) == -1)
      die ("%s", nbd_get_error ());
    offset = (offset + SEQUENTIAL_LEN) % LOAD_BYTES;
    atomic_fetch_add (&answered, 1);
  }
  free (buf);
  return NULL;
}

static void
start_clients (bool sequential)
{
  unsigned i;

  atomic_store (&stop, false);
  for (i = 0; i < NR_CLIENTS; ++i) {
    clients[i].nbd = server_connect (&server, "load", 60);
    if (clients[i].nbd == NULL)
      die ("cannot connect");
    clients[i].rng = rng_make (now () * 1e6, i);
    clients[i].sequential = sequential;
    if (pthread_create (&clients[i].thread, NULL, use_volume, &clients[i]) != 0)
      die ("pthread_create failed");
  }
}

static void
stop_clients (void)
{
  unsigned i;

  atomic_store (&stop, true);
  for (i = 0; i < NR_CLIENTS; ++i) {
    pthread_join (clients[i].thread, NULL);
    nbd_shutdown (clients[i].nbd, 0);
    nbd_close (clients[i].nbd);
  }
}

static double
rate_without (void)
{
  double start = now ();
  uint64_t before = atomic_load (&answered);

  clock_sleep_ms (1000 * WINDOW);
  return (atomic_load (&answered) - before) / (now () - start);
}

/* The clients' rate while drift runs.  '*seconds': the time of one drift. */
static double
rate_with (double *seconds)
{
  double start = now ();
  uint64_t before = atomic_load (&answered);
  unsigned nr = 0;

  do {
    drift_seconds ();
    nr++;
  } while (now () - start < WINDOW);
  *seconds = (now () - start) / nr;
  return (atomic_load (&answered) - before) / (now () - start);
}

/*----------------------------------------------------------------------*/

static void
measure_idle (void)
{
  double seconds[MAX_ROUNDS], cpu[MAX_ROUNDS], rise[MAX_ROUNDS];
  double before, cpu_before, first;
  unsigned i;

  start_server ();
  first = drift_seconds ();
  stop_server ();
  start_server ();
  for (i = 0; i < nr_rounds; ++i) {
    forget_peak ();
    before = memory ("VmRSS:");
    cpu_before = cpu_seconds ();
    seconds[i] = drift_seconds ();
    cpu[i] = cpu_seconds () - cpu_before;
    rise[i] = memory ("VmHWM:") - before;
  }
  printf ("%-44s %10.2f\n", "drift, s: the first after a start", first);
  print_figures ("drift, s", seconds);
  print_figures ("  CPU time, s", cpu);
  print_figures ("  peak memory above idle, MiB", rise);
  printf ("%-44s %10.2f\n", "  the server's peak, MiB", memory ("VmHWM:"));
  stop_server ();
}

static void
measure_load (bool sequential)
{
  double without[MAX_ROUNDS], with[MAX_ROUNDS], seconds[MAX_ROUNDS];
  unsigned i;

  start_server ();
  start_clients (sequential);
  rate_without (); /* warms up */
  for (i = 0; i < nr_rounds; ++i) {
    without[i] = rate_without ();
    with[i] = rate_with (&seconds[i]);
  }
  stop_clients ();
  stop_server ();
  print_figures (sequential ? "sequential reads/s" : "random requests/s",
                 without);
  print_figures ("  while drift runs", with);
  print_figures ("  drift meanwhile, s", seconds);
  printf ("%-44s %10.3f\n", "  ratio of the medians (at least 0.8)",
          median (with) / median (without));
  fflush (stdout);
}

/* Make the volume for the clients, full of data of its own. */
static void
make_load_volume (void)
{
  const char *create[] = { nbdedup, "-p", pool, "create", "load", "1G", NULL };
  const char *destroy[] = { nbdedup, "-p",     pool, "destroy",
                            "load",  "--wait", NULL };
  uint8_t *buf = xmalloc (SEQUENTIAL_LEN);
  struct nbd_handle *nbd;
  uint64_t offset;
  int status;

  /* Left behind by one that was interrupted. */
  free (command_output (destroy, 3600, NULL, NULL, &status));
  run_command (create);
  start_server ();
  nbd = server_connect (&server, "load", 60);
  if (nbd == NULL)
    die ("cannot connect");
  for (offset = 0; offset < LOAD_BYTES; offset += SEQUENTIAL_LEN) {
    fill_compressible (buf, SEQUENTIAL_LEN, offset);
    if (nbd_pwrite (nbd, buf, SEQUENTIAL_LEN, offset, 0) == -1)
      die ("%s", nbd_get_error ());
  }
  nbd_shutdown (nbd, 0);
  nbd_close (nbd);
  free (buf);
  stop_server ();
}

int
main (int argc, char *argv[])
{
  if (argc != 5)
    die ("usage: drift-costs POOL PLUGIN NBDEDUP GOLDEN");
  pool = argv[1];
  plugin = argv[2];
  nbdedup = argv[3];
  golden = argv[4];
  nr_rounds = number_from_environment ("ROUNDS", 5);
  if (nr_rounds < 1 || nr_rounds > MAX_ROUNDS)
    die ("ROUNDS is 1 .. %u", MAX_ROUNDS);
  snprintf (pool_key, sizeof pool_key, "pool=%s", pool);
  snprintf (server.socket, sizeof server.socket, "/tmp/drift-costs-%d.sock",
            (int) getpid ());
  make_load_volume ();
  measure_idle ();
  measure_load (false);
  measure_load (true);
  return 0;
}

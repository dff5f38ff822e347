/* SPDX-License-Identifier: BSD-3-Clause */

/* Kill a server at random moments, and check what survives.
 *
 * A pool with three volumes of different block sizes lives through all
 * rounds.  In each round
 *
 *  1. the server starts, with random limits, so that dirty data, the journal
 *     and the caches overflow at different times; in some rounds it is killed
 *     once or more while it still recovers;
 *
 *  2. the test reads every byte and compares it with what the model allows
 *     (see block-model.h), and every extent with the data;
 *
 *  3. four to eight threads with connections of their own write, zero,
 *     trim, read and flush, at any alignment; meanwhile another thread makes,
 *     fills, resizes and destroys a fourth volume with the nbdedup command;
 *
 *  4. the server is killed (in ENDS per cent of the rounds, a few, it is
 *     stopped by SIGTERM, after which all answered writes must be there; while
 *     it ends, half of these are killed, or the power is lost).
 *
 * After some crashes the test damages one copy of pool.db (crash-metadata.c),
 * or something that a command has to repair (crash-repair.c).
 *
 * "nbdedup check" runs offline after some crashes, through the server after
 * the others.
 *
 * With --powercut the power is lost, not only the server: see crash-power.c
 * for these rounds.
 *
 * SEED, ROUNDS, ENDS and REPAIRS (per cent; see crash-repair.c) come from the
 * environment.  SEED repeats the choices, not the timing of threads.  With
 * --server SCRIPT the program tests another server, started by "SCRIPT SOCKET
 * DIRECTORY", to check that it notices a server that loses data.
 */

#include <config.h>

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>

#include "crash/crash-model.h"

const char *plugin, *nbdedup = "nbdedup", *dir, *server_script;
const char *powercut, *preload;
char *libraries, *pool, *log_path, *undo_path;
uint64_t seed;

struct block_model *models[NR_VOLUMES];
struct server_process server;
unsigned round_nr;
atomic_bool killing, cut_is_near;
_Atomic uint64_t total_ops, total_bytes;

bool
is_dying (void)
{
  return atomic_load (&killing) || atomic_load (&cut_is_near);
}

_Noreturn void
give_up (void)
{
  fflush (stdout);
  fprintf (stderr,
           "FAILED in round %u; repeat with %sSEED=%" PRIu64 "; "
           "the pool is %s, the server's output %s\n",
           round_nr, powercut || repairs_only () ? "ROUNDS=1 " : "", seed, pool,
           log_path);
  if (server.pid)
    kill (server.pid, SIGKILL);
  _exit (EXIT_FAILURE);
}

void
start_server (struct rng *rng)
{
  static const char *const dirty[] = { "4M", "4M", "8M", "64M" };
  static const char *const ddt[] = { "8M", "8M", "16M", "256M" };
  static const char *const records[] = { "0", "1M", "64M" };
  static const char *const interval[] = { "0.02", "0.1", "1", "5" };
  static const char *const cache[] = { "all", "all", "metadata", "none" };
  static const char *const threads[] = { "1", "4", "16" };
  char key[6][PATH_MAX];

  snprintf (key[0], sizeof key[0], "pool=%s", pool);
  snprintf (key[1], sizeof key[1], "dirty-max=%s", PICK (dirty));
  snprintf (key[2], sizeof key[2], "ddt-cache=%s", PICK (ddt));
  snprintf (key[3], sizeof key[3], "record-cache=%s", PICK (records));
  snprintf (key[4], sizeof key[4], "commit-interval=%s", PICK (interval));
  snprintf (key[5], sizeof key[5], "primarycache=%s", PICK (cache));
  const char *argv[] = { "nbdkit",       "-f",   "-U",   server.socket, "-t",
                         PICK (threads), plugin, key[0], key[1],        key[2],
                         key[3],         key[4], key[5], NULL };
  const char *script_argv[] = { server_script, server.socket, pool, NULL };

  unlink (server.socket);
  server.pid = process_start (server_script ? script_argv : argv, log_path,
                              libraries);
}

/* A read-only server does not recover the pool, but must have all flushed data,
 * too.  The later recovery must not change the data that was read here.
 */
void
verify_readonly (void)
{
  char key[PATH_MAX + 10];
  const char *argv[] = { "nbdkit", "-f", "-U",           server.socket,
                         plugin,   key,  "read-only=on", NULL };

  snprintf (key, sizeof key, "pool=%s", pool);
  unlink (server.socket);
  server.pid = process_start (argv, log_path, libraries);
  verify ();
  stop_server ();
}

void
stop_server (void)
{
  int status;

  kill (server.pid, SIGTERM);
  status = process_wait (server.pid, 60, "the server");
  server.pid = 0;
  if (status != 0) {
    fprintf (stderr, "the server ended with status %d\n", status);
    give_up ();
  }
}

static bool has_copies;

void
change_copies (uint64_t round)
{
  static const char *const values[] = {
    "copies=1",
    "copies=2:1",
    "copies=2:2",
    "copies=3:1",
  };
  struct rng own = rng_make (seed, ~round - 100), *rng = &own;

  if (rng_percent (rng, 70))
    return;
  MUST_RUN ("set", PICK (values));
  has_copies = true;
}

void
verify_copies (void)
{
  if (has_copies)
    MUST_RUN ("scrub");
  has_copies = false;
}

static void
do_round (void)
{
  struct rng rng = rng_make (seed, round_nr);
  unsigned i, nr_early = rng_percent (&rng, 15) ? rng_between (&rng, 1, 3) : 0;
  bool offline = rng_percent (&rng, 40);

  alarm (300);
  if (!server_script && offline && round_nr > 0)
    MUST_RUN ("check");
  if (!server_script && rng_percent (&rng, 30))
    verify_readonly ();
  for (i = 0; i < nr_early; ++i) {
    start_server (&rng);
    poll (NULL, 0, rng_between (&rng, 5, 80));
    server_kill (&server);
  }
  start_server (&rng);
  verify ();
  mend_metadata ();
  if (!server_script) {
    check_scratch ();
    if (!offline && rng_percent (&rng, 60))
      MUST_RUN ("check");
    if (rng_percent (&rng, 30))
      check_stat ();
    if (rng_percent (&rng, 15))
      resize_volume (models[rng_below (&rng, NR_VOLUMES)], &rng);
    change_copies (round_nr);
  }
  load (&rng);
}

/* Verify everything after the last crash, and again after a clean stop. */
static void
finish (void)
{
  struct rng rng = rng_make (seed, ~UINT64_C (0));
  int i;

  alarm (300);
  for (i = 0; i < 2; ++i) {
    start_server (&rng);
    verify ();
    if (!server_script) {
      check_scratch ();
      check_stat ();
      MUST_RUN ("scrub");
      MUST_RUN ("check");
    }
    stop_server ();
    if (!server_script)
      MUST_RUN ("check");
  }
}

void
make_pool (struct rng *rng)
{
  static const char *const sectors[] = { "512", "512", "1024", "4096" };
  static const char *const hashes[] = { "sha256", "blake2b512", "gmac" };
  const char *argv[] = { nbdedup,        "init",   pool,          "--sector",
                         PICK (sectors), "--hash", PICK (hashes), NULL };
  char *output;
  int status;

  output = command_output (argv, 60, NULL, NULL, &status);
  if (status != 0)
    die ("nbdedup init: %s", output);
  free (output);
}

void
make_volume (struct rng *rng, const char *const *args)
{
  (void) rng;
  must_run (args);
}

void
make_volumes (struct rng *rng, uint64_t min, uint64_t max,
              void (*make) (struct rng *, const char *const *))
{
  static const char *const codecs[] = { "lz4", "lz4", "zstd", "none" };
  static const char *const dedups[] = { "on", "on", "verify", "off" };
  static const uint32_t large[] = { 16384, 65536, 131072 };
  uint32_t bs[NR_VOLUMES];
  char size[32], block[32], name[2] = "a", path[PATH_MAX];
  unsigned v;

  bs[0] = 4096;
  bs[1] = PICK (large);
  bs[2] = rng_percent (rng, 50) ? bs[0] : bs[1];
  for (v = 0; v < NR_VOLUMES; ++v) {
    uint64_t bytes = rng_between (rng, min, max) * 512;

    name[0] = 'a' + v;
    snprintf (size, sizeof size, "%" PRIu64, bytes);
    snprintf (block, sizeof block, "%u", bs[v]);
    models[v] = block_model_new (name, bs[v], bytes);
    if (server_script) {
      snprintf (path, sizeof path, "%s/%s", pool, name);
      FILE *f = fopen (path, "w");
      if (f == NULL || ftruncate (fileno (f), bytes) == -1)
        die ("%s: %s", path, strerror (errno));
      fclose (f);
      continue;
    }
    const char *args[] = { "create",
                           name,
                           size,
                           "--block-size",
                           block,
                           "--compress",
                           v == 2 ? PICK (codecs) : "lz4",
                           "--dedup",
                           v == 2 ? PICK (dedups) : "on",
                           NULL };
    make (rng, args);
  }
}

void
free_volumes (void)
{
  unsigned v;

  for (v = 0; v < NR_VOLUMES; ++v)
    block_model_free (models[v]);
}

static void
kill_rounds (uint64_t rounds)
{
  struct rng rng = rng_make (seed, ~UINT64_C (1));

  if (mkdir (pool, 0777) == -1)
    die ("%s: %s", pool, strerror (errno));
  if (!server_script)
    make_pool (&rng);
  make_volumes (&rng, 16384, 49152, make_volume);
  for (round_nr = 0; round_nr < rounds; ++round_nr) {
    do_round ();
    if (!repair_sometimes (round_nr))
      damage_metadata (&rng);
  }
  finish ();
  free_volumes ();
}

/* Run rounds that each have a pool of their own. */
static void
own_rounds (uint64_t rounds, void (*round) (void))
{
  for (round_nr = 0; round_nr < rounds; ++round_nr, ++seed)
    round ();
}

static void
record_changes (void)
{
  char *kept;

  if (asprintf (&kept, "%s.d", undo_path) == -1 || mkdir (kept, 0777) == -1)
    die ("%s.d: %s", undo_path, strerror (errno));
  free (kept);
  setenv ("POWERCUT_LOG", undo_path, 1);
  setenv ("POWERCUT_DIR", pool, 1);
}

static _Noreturn void
usage (void)
{
  fprintf (stderr,
           "[ROUNDS=N] [SEED=N] [ENDS=PERCENT] [REPAIRS=PERCENT] "
           "crash-model {--plugin FILE [--nbdedup FILE] | --server "
           "SCRIPT} [--powercut FILE] [--preload FILE] DIRECTORY\n");
  exit (2);
}

int
main (int argc, char *argv[])
{
  static const struct option options[] = {
    { "plugin", required_argument, NULL, 'p' },
    { "nbdedup", required_argument, NULL, 'n' },
    { "server", required_argument, NULL, 's' },
    { "powercut", required_argument, NULL, 'c' },
    { "preload", required_argument, NULL, 'l' },
    { NULL, 0, NULL, 0 },
  };
  uint64_t rounds = number_from_environment ("ROUNDS", 25);
  int c;

  while ((c = getopt_long (argc, argv, "", options, NULL)) != -1)
    switch (c) {
    case 'p':
      plugin = optarg;
      break;
    case 'n':
      nbdedup = optarg;
      break;
    case 's':
      server_script = optarg;
      break;
    case 'c':
      powercut = optarg;
      break;
    case 'l':
      preload = optarg;
      break;
    default:
      usage ();
    }
  if (optind != argc - 1 || (plugin == NULL) == (server_script == NULL))
    usage ();

  seed = seed_from_environment ();
  printf ("SEED=%" PRIu64 " ROUNDS=%" PRIu64 "\n", seed, rounds);
  fflush (stdout);
  signal (SIGALRM, too_long);

  dir = realpath (argv[optind], NULL);
  if (dir == NULL || asprintf (&pool, "%s/pool", dir) == -1 ||
      asprintf (&log_path, "%s/server.log", dir) == -1 ||
      asprintf (&undo_path, "%s/undo.log", dir) == -1 ||
      asprintf (&libraries, "%s%s%s", preload ? preload : "",
                preload && powercut ? ":" : "", powercut ? powercut : "") == -1)
    die ("%s: %s", argv[optind], strerror (errno));
  if (snprintf (server.socket, sizeof server.socket, "%s/sock", dir) >=
      (int) sizeof server.socket)
    die ("%s: too long for a Unix socket", dir);

  if (powercut)
    record_changes ();
  if (repairs_only () && !server_script)
    own_rounds (rounds, repair_round);
  else if (powercut)
    own_rounds (rounds, power_round);
  else
    kill_rounds (rounds);
  if (!server_script)
    print_repairs ();
  printf ("%" PRIu64 " rounds, %" PRIu64 " requests, %" PRIu64 " MiB written: "
          "nothing lost\n",
          rounds, (uint64_t) total_ops, (uint64_t) total_bytes >> 20);
  return 0;
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* Rounds of power loss.
 *
 * Each has a pool of its own, and a seed of its own: the run's, plus the
 * number of the round, so that it can be repeated alone.  The server and all
 * commands run under powercut.so (see powercut-undo.h).  When the power goes,
 * all of them are killed, and what was not synced is lost.  The power goes, at
 * random,
 *
 *  - while "nbdedup init" makes the pool, and just after that;
 *
 *  - while each volume is created, and just after that;
 *
 *  - while a server opens the pool: the first time, or recovering from
 *    another loss of power, perhaps several times;
 *
 *  - under load (crash-load.c), while commands make, rename, resize, change
 *    and destroy volumes (crash-admin.c): the effects of a command that exited
 *    0 must last, and a command that was interrupted has all of its effects or
 *    none;
 *
 *  - while a server closes the pool, and just after that.
 *
 * After each of these every byte is compared, and at the end of the round
 * "nbdedup check" must find nothing.
 *
 * Some rounds also check that the recorder misses no call: they take back
 * everything, synced or not, and compare the pool with an earlier copy.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>

#include "crash/crash-model.h"
#include "crash/powercut-undo.h"

/* The approximate number of changes that these operations make, and of changes
 * to names among them.
 */
#define INIT_CHANGES 240, 30
#define CREATE_CHANGES 80, 6
#define OPEN_CHANGES 80, 4

/* Make the power go after one of the first 'changes' changes, or one of the
 * first 'names' changes to names.
 */
static void
cut_within (struct rng *rng, uint64_t changes, uint64_t names)
{
  bool names_only = rng_percent (rng, 40);

  powercut_after (undo_path, rng_between (rng, 1, names_only ? names : changes),
                  names_only);
}

static bool
was_cut_off (int status)
{
  return status == 128 + SIGKILL;
}

static _Noreturn void
init_failed (int status, const char *output)
{
  fprintf (stderr, "nbdedup init: status %d: %s\n", status, output);
  give_up ();
}

void
cut_power (struct rng *rng)
{
  if (powercut)
    powercut_undo (undo_path, pool, rng);
}

/* Run a program that the power loss does not concern. */
static bool
run_tool (const char *const *argv)
{
  int status;
  char *output = command_output (argv, 60, NULL, NULL, &status);

  if (status != 0)
    fprintf (stderr, "%s %s: status %d: %s\n", argv[0], argv[1], status,
             output);
  free (output);
  return status == 0;
}

void
remove_pool (void)
{
  const char *argv[] = { "rm", "-rf", pool, NULL };

  if (!run_tool (argv))
    give_up ();
  if (unlink (undo_path) == -1 && errno != ENOENT)
    die ("%s: %s", undo_path, strerror (errno));
}

/*----------------------------------------------------------------------
 * Making a pool and its volumes
 */

static void
init_pool (struct rng *rng)
{
  static const char *const sectors[] = { "512", "512", "1024", "4096" };
  static const char *const hashes[] = { "sha256", "blake2b512", "gmac" };
  static const char *const codecs[] = { "lz4", "zstd" };
  const char *argv[] = { nbdedup,        "init",   pool,          "--sector",
                         PICK (sectors), "--hash", PICK (hashes), "--compress",
                         PICK (codecs),  NULL };
  struct stat st;
  char *output;
  int status;

  if (rng_percent (rng, 10)) { /* check the recorder */
    output = command_output (argv, 60, libraries, NULL, &status);
    if (status != 0)
      init_failed (status, output);
    free (output);
    powercut_undo_all (undo_path, pool);
    if (stat (pool, &st) == 0) {
      fprintf (stderr, "the recorder has missed how %s was made\n", pool);
      give_up ();
    }
  }

  if (rng_percent (rng, 50)) {
    cut_within (rng, INIT_CHANGES);
    output = command_output (argv, 60, libraries, NULL, &status);
    if (status != 0 && !was_cut_off (status))
      init_failed (status, output);
    free (output);
    cut_power (rng);
    if (status == 0)
      return; /* the pool must exist */
    /* init did not succeed, so there may be a whole pool or none.  The remains
     * of one are in the way of another init.
     */
    output = command_output (argv, 60, libraries, NULL, &status);
    if (status != 0 && stat (pool, &st) == -1)
      init_failed (status, output);
    if (status == 0 || strstr (output, "there is a pool already")) {
      free (output);
      return;
    }
    free (output);
    remove_pool ();
  }
  output = command_output (argv, 60, libraries, NULL, &status);
  if (status != 0)
    init_failed (status, output);
  free (output);
  if (rng_percent (rng, 50))
    cut_power (rng);
}

static void
create_volume (struct rng *rng, const char *const *args)
{
  char *output;
  int status;

  if (rng_percent (rng, 40)) {
    cut_within (rng, CREATE_CHANGES);
    status = run_command (&output, args);
    if (status != 0 && !was_cut_off (status)) {
      fprintf (stderr, "nbdedup create: status %d: %s\n", status, output);
      give_up ();
    }
    free (output);
    cut_power (rng);
    if (status == 0)
      return;
    status = run_command (&output, args);
    if (status != 0 && strstr (output, "there is a volume") == NULL) {
      fprintf (stderr, "nbdedup create: status %d: %s\n", status, output);
      give_up ();
    }
    free (output);
  }
  else
    must_run (args);
  if (rng_percent (rng, 30))
    cut_power (rng);
}

/*----------------------------------------------------------------------
 * Rounds
 */

/* The power goes while a server opens the pool. */
static void
cut_opening (struct rng *rng)
{
  if (rng_percent (rng, 70)) {
    cut_within (rng, OPEN_CHANGES);
    start_server (rng);
    server_ends_within (&server, 150);
  }
  else {
    start_server (rng);
    poll (NULL, 0, rng_between (rng, 1, 60));
  }
  server_kill (&server);
  cut_power (rng);
}

static void
check_everything (struct rng *rng)
{
  verify ();
  mend_metadata ();
  check_scratch ();
  if (rng_percent (rng, 50))
    check_stat ();
}

/* The recorder must be able to take back everything that a server and commands
 * do, to the last byte.
 */
static void
check_recorder (struct rng *rng)
{
  const char *copy[] = { "cp", "-a", pool, NULL, NULL };
  const char *compare[] = { "diff", "-rx", "control.sock", pool, NULL, NULL };
  const char *clear[] = { "rm", "-rf", NULL, NULL };
  char *before;

  if (asprintf (&before, "%s/before", dir) == -1)
    die ("out of memory");
  copy[3] = compare[4] = clear[2] = before;
  if (!run_tool (copy))
    give_up ();

  start_server (rng);
  load (rng);
  powercut_undo_all (undo_path, pool);
  if (!run_tool (compare)) {
    fprintf (stderr, "the recorder has missed a call\n");
    give_up ();
  }
  if (!run_tool (clear))
    give_up ();
  free (before);
}

static unsigned
pick_cycles (struct rng *rng)
{
  unsigned n = rng_below (rng, 100);

  return n < 70 ? rng_between (rng, 1, 2)
    : n < 97    ? rng_between (rng, 3, 5)
                : 15;
}

void
power_round (void)
{
  struct rng round_rng = rng_make (seed, 0), *rng = &round_rng;
  unsigned nr = pick_cycles (rng), i, j, nr_early;

  printf ("round %u: SEED=%" PRIu64 "\n", round_nr, seed);
  fflush (stdout);
  alarm (300);
  remove_pool ();
  init_pool (rng);
  make_volumes (rng, 2048, 16384, create_volume);

  for (i = 0; i < nr; ++i) {
    if (rng_percent (rng, 30))
      verify_readonly ();
    nr_early = rng_percent (rng, 40) ? rng_between (rng, 1, 3) : 0;
    for (j = 0; j < nr_early; ++j)
      cut_opening (rng);
    if (rng_percent (rng, 30))
      MUST_RUN ("check");
    start_server (rng);
    check_everything (rng);
    change_copies (i);
    load (rng);
    cut_power (rng);
    if (i + 1 < nr || !repair_sometimes (i))
      damage_metadata (rng);
  }

  start_server (rng);
  check_everything (rng);
  MUST_RUN ("check");
  verify_copies ();
  stop_server ();
  cut_power (rng);
  MUST_RUN ("check");
  cut_power (rng);
  if (rng_percent (rng, 10))
    check_recorder (rng);
  forget_scratch ();
  free_volumes ();
}

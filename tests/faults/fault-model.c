/* SPDX-License-Identifier: BSD-3-Clause */

/* A disk that fails: calls on one file of the pool return an error from
 * some moment on (faults.so), during a load of writes and flushes.
 *
 *   fault-model --plugin FILE --nbdedup FILE --faults FILE DIRECTORY
 *               FILE CALL NTH [COUNT]
 *
 *  1. The test sends random writes, zeroes and flushes, arms the fault, and
 *     continues until a request fails (or for 3 seconds, if the engine copes).
 *     A fault on the second copy of pool.db must not make a request fail.
 *  2. After a failed sync every write fails with EIO, again and again, and
 *     reads have all answered writes, or fail with EIO.
 *  3. The server is killed, and started without the fault.  All flushed data
 *     is there, the rest is an allowed state (see block-model.h), "check"
 *     finds nothing, and writes succeed.
 */

#include <config.h>

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <libnbd.h>
#include <limits.h>
#include <signal.h>
#include <sys/stat.h>

#include "models/block-model.h"
#include "rigs/server-process.h"
#include "rigs/testutil.h"

#define NR_DUPS 20
#define BLOCK 4096
#define MAX_REQUEST (16 * BLOCK)

static const char *plugin, *nbdedup = "nbdedup", *faults, *preload;
static char *pool, *log_path, *arm_path, *fault_log;
static uint64_t seed;
static struct rng rng;
static struct block_model *model;
static struct server_process server;
static struct nbd_handle *nbd;
static unsigned op_number;

static void
start_server (bool faulty)
{
  char key[PATH_MAX], libraries[2 * PATH_MAX];
  const char *argv[] = { "nbdkit",
                         "-f",
                         "-U",
                         server.socket,
                         plugin,
                         key,
                         "commit-interval=0.25",
                         "dirty-max=4M",
                         NULL };

  snprintf (key, sizeof key, "pool=%s", pool);
  snprintf (libraries, sizeof libraries, "%s%s%s", preload ? preload : "",
            preload ? ":" : "", faulty ? faults : "");
  unlink (server.socket);
  server.pid = process_start (argv, log_path, libraries);
  nbd = server_connect (&server, "v", 60);
  if (nbd == NULL)
    die ("SEED=%" PRIu64 " the server did not start, see %s", seed, log_path);
}

static void
command (const char *a1, const char *a2, const char *a3, const char *a4,
         const char *a5)
{
  const char *argv[] = { nbdedup, "-p", pool, a1, a2, a3, a4, a5, NULL };
  int status;
  char *output = command_output (argv, 60, NULL, NULL, &status);

  if (status != 0)
    die ("SEED=%" PRIu64 " nbdedup %s: status %d: %s", seed, a1, status,
         output);
  free (output);
}

/* Send one request that writes.  Returns 0, or the error. */
static int
change (void)
{
  static uint8_t buf[MAX_REQUEST];
  struct model_op op = { .kind = 'W', .number = op_number++ };
  int r;

  op.offset = rng_below (&rng, model->size - MAX_REQUEST);
  op.len = rng_between (&rng, 1, MAX_REQUEST);
  if (rng_percent (&rng, 60)) {
    op.offset &= ~UINT64_C (BLOCK - 1);
    op.len = rng_between (&rng, 1, MAX_REQUEST / BLOCK) * BLOCK;
  }
  op.fua = rng_percent (&rng, 10);
  if (rng_percent (&rng, 15))
    op.kind = 'Z';

  fill_content (buf, op.len, BLOCK, NR_DUPS, &rng);
  block_model_begin (model, &op, op.kind == 'W' ? buf : NULL);
  r = op.kind == 'W'
    ? nbd_pwrite (nbd, buf, op.len, op.offset, op.fua ? LIBNBD_CMD_FLAG_FUA : 0)
    : nbd_zero (nbd, op.len, op.offset, op.fua ? LIBNBD_CMD_FLAG_FUA : 0);
  if (r == -1)
    return nbd_get_errno ();
  block_model_answered (model, &op);
  return 0;
}

static int
flush (void)
{
  uint64_t stamp = block_model_stamp ();

  if (nbd_flush (nbd, 0) == -1)
    return nbd_get_errno ();
  block_model_flushed (model, stamp);
  return 0;
}

static bool
fault_happened (void)
{
  struct stat st;

  return stat (fault_log, &st) == 0 && st.st_size > 0;
}

static int
request (void)
{
  return rng_percent (&rng, 15) ? flush () : change ();
}

/* Send 'nr' random requests, or until one fails.  Returns its error. */
static int
load (unsigned nr)
{
  uint64_t end = clock_ms () + 30000;
  unsigned i;
  int err = 0;

  for (i = 0; i < nr && err == 0 && clock_ms () < end; ++i)
    err = request ();
  return err;
}

/* Send random requests until one fails, or until a second, which is some folds,
 * after the fault.  On a busy machine a fold may begin late.  Files other than
 * a WAL are written at the latest when the server ends.
 */
static int
load_with_fault (const char *file)
{
  uint64_t end = clock_ms () + (strstr (file, "-wal") ? 60000 : 3000);
  bool happened = false;
  int err = 0;

  while (err == 0 && clock_ms () < end) {
    err = request ();
    if (!happened && fault_happened ()) {
      happened = true;
      end = clock_ms () + 1000;
    }
  }
  return err;
}

/* Read everything.  While there is the fault ('strict' false) a read may fail
 * with EIO, and a block whose write failed may have the data or not; but no read
 * goes back behind an answered write.
 */
static void
verify (bool strict)
{
  uint8_t *buf = xcalloc (1, BLOCK);
  uint64_t i, n;

  for (i = 0; i < model->nr_blocks; ++i) {
    memset (buf, 0, BLOCK);
    n = model->size - i * BLOCK < BLOCK ? model->size - i * BLOCK : BLOCK;
    if (nbd_pread (nbd, buf, n, i * BLOCK, 0) == -1) {
      if (strict || nbd_get_errno () != EIO)
        die ("SEED=%" PRIu64 " read of block %" PRIu64 ": %s", seed, i,
             nbd_get_error ());
      continue;
    }
    if (!(strict ? block_model_check (model, i, buf)
                 : block_model_check_running (model, i, buf)))
      die ("SEED=%" PRIu64 " block %" PRIu64 " is wrong %s", seed, i,
           strict ? "after reopening" : "after the fault");
    if (strict)
      block_model_adopt (model, i, buf);
  }
  free (buf);
}

/* End the server.  It folds, and writes its WAL to pool.db, so now at the
 * latest the fault must happen.
 */
static void
end_server (const char *call, const char *file)
{
  kill (server.pid, SIGTERM);
  process_wait (server.pid, 60, "the server");
  server.pid = 0;
  if (!fault_happened ())
    die ("SEED=%" PRIu64 " there was no such %s of %s", seed, call, file);
}

static void
scenario (const char *file, const char *call, const char *nth,
          const char *number)
{
  bool harmless = strncmp (file, "pool.db.copy", 12) == 0;
  FILE *f;
  int err, i;

  setenv ("FAULT_FILE", file, 1);
  setenv ("FAULT_CALL", call, 1);
  setenv ("FAULT_NTH", nth, 1);
  setenv ("FAULT_COUNT", number, 1);
  setenv ("FAULT_ARM", arm_path, 1);
  setenv ("FAULT_LOG", fault_log, 1);

  start_server (true);
  err = load (300);
  if (err)
    die ("SEED=%" PRIu64 " before the fault: %s", seed, nbd_get_error ());

  f = fopen (arm_path, "w");
  if (f == NULL || fclose (f) != 0)
    die ("%s: %s", arm_path, strerror (errno));
  err = load_with_fault (file);
  printf ("%s of %s: %s, %s\n", call, file,
          fault_happened () ? "the fault happened" : "no such call yet",
          err ? nbd_get_error () : "no request failed");
  fflush (stdout);
  if (err && !fault_happened ())
    die ("SEED=%" PRIu64 " a request failed without a fault", seed);
  if (err && err != EIO)
    die ("SEED=%" PRIu64 " not EIO but %s", seed, strerror (err));

  if (harmless && err)
    die ("SEED=%" PRIu64 " %s of %s fails, and a request, too", seed, call,
         file);
  if (strcmp (call, "sync") == 0 && fault_happened () && !harmless) {
    if (!err)
      die ("SEED=%" PRIu64 " a sync of %s failed, and nobody was told", seed,
           file);
    for (i = 0; i < 10; ++i)
      if (flush () != EIO || change () != EIO)
        die ("SEED=%" PRIu64 " after a failed sync of %s a write or flush "
             "did not fail with EIO",
             seed, file);
  }
  verify (false);
  nbd_close (nbd);
  if (fault_happened ())
    server_kill (&server);
  else
    end_server (call, file);

  unlink (arm_path);
  if (rng_percent (&rng, 50))
    command ("check", NULL, NULL, NULL, NULL);
  start_server (false);
  verify (true);
  err = load (100);
  if (err || flush ())
    die ("SEED=%" PRIu64 " after reopening: %s", seed, nbd_get_error ());
  command ("check", NULL, NULL, NULL, NULL);
  nbd_close (nbd);
  server_kill (&server);
  command ("check", NULL, NULL, NULL, NULL);
}

int
main (int argc, char *argv[])
{
  static const struct option options[] = {
    { "plugin", required_argument, NULL, 'p' },
    { "nbdedup", required_argument, NULL, 'n' },
    { "faults", required_argument, NULL, 'f' },
    { "preload", required_argument, NULL, 'l' },
    { NULL, 0, NULL, 0 },
  };
  char *dir;
  int c;

  while ((c = getopt_long (argc, argv, "", options, NULL)) != -1)
    switch (c) {
    case 'p':
      plugin = optarg;
      break;
    case 'n':
      nbdedup = optarg;
      break;
    case 'f':
      faults = optarg;
      break;
    case 'l':
      preload = optarg;
      break;
    default:
      return 2;
    }
  argc -= optind;
  argv += optind;
  if (argc < 4 || argc > 5 || plugin == NULL || faults == NULL) {
    fprintf (stderr,
             "usage: fault-model --plugin FILE --nbdedup FILE "
             "--faults FILE DIRECTORY FILE CALL NTH [COUNT]\n");
    return 2;
  }

  seed = seed_from_environment ();
  printf ("SEED=%" PRIu64 "\n", seed);
  fflush (stdout);
  rng = rng_make (seed, 0);
  dir = argv[0];
  if (asprintf (&pool, "%s/pool", dir) == -1 ||
      asprintf (&log_path, "%s/server.log", dir) == -1 ||
      asprintf (&arm_path, "%s/armed", dir) == -1 ||
      asprintf (&fault_log, "%s/faults.log", dir) == -1)
    die ("out of memory");
  snprintf (server.socket, sizeof server.socket, "%s/sock", dir);
  alarm (200);

  model = block_model_new ("v", BLOCK, 6 * 1024 * 1024 + 512);
  command ("init", NULL, NULL, NULL, NULL);
  command ("create", "v", "6291968", "--block-size", "4096");
  scenario (argv[1], argv[2], argv[3], argc == 5 ? argv[4] : "1");
  block_model_free (model);
  return 0;
}

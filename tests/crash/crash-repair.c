/* SPDX-License-Identifier: BSD-3-Clause */

/* Damage after a crash, and "recover", "check --repair" or "scrub", which are
 * interrupted by kill -9 or a loss of power, again and again.  At the end the
 * pool has all flushed data, and "check" and "scrub" find nothing.
 *
 *   recover   pool.db, its WAL or both are lost, damaged or older
 *             (crash-metadata.c); often the mark that says whether the copy is
 *             current is gone, too
 *   check     --repair: tables that can be rebuilt are wrong (plant-damage.c);
 *             offline, or in a server, and then only with damage that does not
 *             stop a server that frees space; in some rounds servers write
 *             before the repair, and between its parts
 *   scrub     records are damaged, in one segment each time; all of them have
 *             copies, or are in images that the command gets
 *
 * A command is interrupted after a random part of its time or, by a loss of
 * power, of the changes that it makes to files.
 *
 * REPAIRS in the environment is the percentage of rounds that do this, and
 * REPAIR=recover, check or scrub selects one command.  With REPAIRS=100 each
 * round has a pool of its own, and a seed of its own: the run's, plus the
 * number of the round.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>

#include "crash/crash-model.h"
#include "crash/powercut-undo.h"

#define SEGMENT (UINT64_C (4) << 20)
#define RECORDS_HEADER 65536
#define CUTS_MAX 6
#define GIVE_UP_MS 60000

/* A command to interrupt, and about how long it takes: the longest complete run
 * so far, less a quarter each time that it ended before it was interrupted.
 */
struct work {
  const char *name;
  unsigned rounds, cuts;
  struct {
    uint64_t us, changes;
  } takes[2]; /* offline; by a server */
};

enum { RECOVER, REPAIR, SCRUB, NR_WORKS };
static struct work works[NR_WORKS] = {
  { .name = "recover", .takes = { { 60000, 300 }, { 0, 0 } } },
  { .name = "check", .takes = { { 60000, 200 }, { 30000, 60 } } },
  { .name = "scrub", .takes = { { 60000, 200 }, { 300000, 60 } } },
};

static void
sleep_us (uint64_t us)
{
  const struct timespec ts = { us / 1000000, us % 1000000 * 1000 };

  nanosleep (&ts, NULL);
}

/*----------------------------------------------------------------------
 * Interrupting commands
 */

static pid_t
start_command (const char *const *args)
{
  const char *argv[16] = { nbdedup, "-p", pool };
  unsigned i;

  for (i = 0; args[i]; ++i)
    argv[3 + i] = args[i];
  return process_start (argv, log_path, libraries);
}

static void
start_and_wait (struct rng *rng)
{
  struct nbd_handle *nbd;

  start_server (rng);
  nbd = connect_to (models[0]->name);
  nbd_shutdown (nbd, 0);
  nbd_close (nbd);
}

static _Noreturn void
work_failed (const struct work *w, int status)
{
  fprintf (stderr, "%s: status %d; what it said ends the log\n", w->name,
           status);
  give_up ();
}

/* Cut the power, at the latest when the command has ended.  True: it had. */
static bool
cut_power_off (struct rng *rng, struct work *w, const char *const *args,
               bool served)
{
  bool by_changes = rng_percent (rng, 80);
  bool names = w == &works[RECOVER] && rng_percent (rng, 25);
  pid_t pid;
  int status;

  if (by_changes)
    powercut_after (undo_path,
                    names ? rng_between (rng, 1, 8)
                          : rng_between (rng, 1, w->takes[served].changes),
                    names);
  pid = start_command (args);
  if (!by_changes) {
    sleep_us (rng_below (rng, w->takes[served].us));
    if (served)
      server_kill (&server);
    else
      kill (pid, SIGKILL);
  }
  status = process_wait (pid, 120, w->name);
  if (status != 0 && status != 128 + SIGKILL &&
      !(served && (!by_changes || server_ends_within (&server, 1000))))
    work_failed (w, status);
  server_kill (&server);
  cut_power (rng);
  return status == 0;
}

/* Kill the command, its server, or both.  True: the command had ended. */
static bool
kill_off (struct rng *rng, struct work *w, const char *const *args, bool served)
{
  bool kill_server = served && rng_percent (rng, 60);
  bool kill_command = !kill_server || rng_percent (rng, 30);
  pid_t pid = start_command (args);
  int status;

  sleep_us (rng_below (rng, w->takes[served].us));
  if (kill_command)
    kill (pid, SIGKILL);
  if (kill_server)
    server_kill (&server);
  status = process_wait (pid, 120, w->name);
  if (status != 0 && status != 128 + SIGKILL && !kill_server)
    work_failed (w, status);
  return status == 0;
}

static void
complete (struct work *w, const char *const *args, bool served)
{
  uint64_t begin = clock_ns (), us, changes;
  int status;
  pid_t pid;

  changes = powercut ? powercut_changes (undo_path) : 0;
  pid = start_command (args);
  status = process_wait (pid, 120, w->name);
  if (status != 0)
    work_failed (w, status);
  us = (clock_ns () - begin) / 1000;
  changes = powercut ? powercut_changes (undo_path) - changes : 0;
  if (us > w->takes[served].us)
    w->takes[served].us = us;
  if (changes > w->takes[served].changes)
    w->takes[served].changes = changes;
}

/* Interrupt a command some times, and then let it complete.  'between', if not
 * NULL, is called sometimes before the next attempt.  With 'served' the server
 * runs when this returns.
 */
static void
cut_and_complete (struct rng *rng, struct work *w, const char *const *args,
                  bool served, void (*between) (struct rng *rng))
{
  unsigned nr = rng_between (rng, 1, CUTS_MAX), i;
  bool done = false;

  for (i = 0; i < nr && !done; ++i) {
    if (served && server.pid == 0)
      start_and_wait (rng);
    done = (powercut ? cut_power_off : kill_off) (rng, w, args, served);
    if (!done && between && server.pid == 0 && rng_percent (rng, 60))
      between (rng);
  }
  if (done) {
    w->takes[served].us -= w->takes[served].us / 4;
    w->takes[served].changes -= w->takes[served].changes / 4;
  }
  i -= done;
  if (served && server.pid == 0)
    start_and_wait (rng);
  complete (w, args, served);
  w->cuts += i;
  w->rounds++;
  printf ("  %s%s, cut off %u times\n", args[0], served ? " by the server" : "",
          i);
  fflush (stdout);
}

/* Serve and load the pool until the next crash. */
static void
load_again (struct rng *rng)
{
  start_server (rng);
  verify ();
  check_scratch ();
  load (rng);
  cut_power (rng);
}

/* No record may be damaged.  Pages of pool.db may be, in one of its copies. */
static void
expect_scrubbed (void)
{
  json_t *result = COMMAND_JSON ("scrub", "--restart");
  json_int_t nr = json_integer_value (
    json_object_get (result, "repaired_records"));

  json_decref (result);
  if (nr > 0) {
    fprintf (stderr, "%" PRIi64 " records were damaged after all\n",
             (int64_t) nr);
    give_up ();
  }
}

/* The pool must have all flushed data, and no damage any more. */
static void
expect_whole (struct rng *rng)
{
  if (server.pid && rng_percent (rng, 50)) {
    server_kill (&server);
    cut_power (rng);
  }
  if (server.pid == 0 && rng_percent (rng, 50))
    MUST_RUN ("check");
  if (server.pid == 0)
    start_server (rng);
  verify ();
  check_scratch ();
  expect_scrubbed ();
  MUST_RUN ("check");
  if (rng_percent (rng, 50))
    stop_server ();
  else
    server_kill (&server);
  cut_power (rng);
}

/*----------------------------------------------------------------------
 * recover
 */

/* If the mark says that the copy is current, opening does the same. */
static void
open_and_kill (struct rng *rng)
{
  start_server (rng);
  poll (NULL, 0, rng_between (rng, 1, 60));
  server_kill (&server);
  cut_power (rng);
}

static bool
recover_some (struct rng *rng)
{
  bool older = rng_percent (rng, 30), needed;

  if (older) {
    keep_metadata ();
    load_again (rng);
  }
  if (!lose_metadata (rng, older, &needed))
    return false;
  if (!needed && rng_percent (rng, 30))
    open_and_kill (rng);
  cut_and_complete (rng, &works[RECOVER],
                    (const char *const[]) { "recover", NULL }, false,
                    needed ? NULL : open_and_kill);
  cut_power (rng);
  expect_whole (rng);
  return true;
}

/*----------------------------------------------------------------------
 * check --repair
 */

static void
plant_damage (struct rng *rng, bool mild)
{
  char path[PATH_MAX], text[24], *output;
  ssize_t n = readlink ("/proc/self/exe", path, sizeof path - 20);
  const char *argv[] = { path,
                         pool,
                         text,
                         models[rng_below (rng, NR_VOLUMES)]->name,
                         mild ? "mild" : NULL,
                         NULL };
  int status;

  if (n == -1)
    die ("/proc/self/exe: %s", strerror (errno));
  path[n] = '\0';
  strcpy (strrchr (path, '/') + 1, "plant-damage");
  snprintf (text, sizeof text, "%" PRIu64, rng_next (rng));
  output = command_output (argv, 60, NULL, NULL, &status);
  if (status != 0 && status != 128 + SIGKILL)
    die ("%s %s: %s", path, text, output);
  printf ("  planted:%s", output);
  fflush (stdout);
  free (output);
}

static void
repair_some (struct rng *rng)
{
  bool mild = rng_percent (rng, 40), served = rng_percent (rng, 50) && mild;

  plant_damage (rng, mild);
  if (mild)
    load_again (rng);
  if (served) {
    start_server (rng);
    verify ();
  }
  cut_and_complete (rng, &works[REPAIR],
                    (const char *const[]) { "check", "--repair", NULL }, served,
                    mild ? load_again : NULL);
  expect_whole (rng);
}

/*----------------------------------------------------------------------
 * scrub
 */

static bool
is_settled (bool copied)
{
  json_t *stat = COMMAND_JSON ("stat"), *status, *copies;
  bool r = json_integer_value (json_object_get (json_object_get (stat, "pool"),
                                                "freeing_bytes")) == 0;

  json_decref (stat);
  if (r && copied) {
    status = COMMAND_JSON ("status");
    copies = json_object_get (status, "copies");
    r = json_integer_value (json_object_get (copies, "waiting")) == 0 &&
      !json_is_true (json_object_get (copies, "looking"));
    json_decref (status);
  }
  return r;
}

/* Wait until only records of volumes are left, and with 'copied' until they
 * have copies.
 */
static void
settle (bool copied)
{
  uint64_t end = clock_ms () + GIVE_UP_MS;

  if (copied)
    MUST_RUN ("set", "copies=2:1");
  while (!is_settled (copied)) {
    if (clock_ms () > end) {
      fprintf (stderr, "the server has not %s for %u s\n",
               copied ? "copied its records" : "freed what was destroyed",
               GIVE_UP_MS / 1000);
      give_up ();
    }
    poll (NULL, 0, 10);
  }
}

/* Write a volume's image.  Each of its blocks has one state. */
static void
write_image (const struct block_model *m, const char *path)
{
  uint8_t *zeroes = xcalloc (1, m->block_size);
  FILE *f = fopen (path, "w");
  uint64_t i;

  if (f == NULL)
    die ("%s: %s", path, strerror (errno));
  for (i = 0; i < m->nr_blocks; ++i)
    fwrite (m->blocks[i].states[0].data ?: zeroes, 1, m->block_size, f);
  if (ftruncate (fileno (f), m->size) == -1 || fclose (f) != 0)
    die ("%s: %s", path, strerror (errno));
  free (zeroes);
}

/* Write images of all volumes, and add them as arguments from args[i] on. */
static void
write_images (const char **args, unsigned i)
{
  static char paths[NR_VOLUMES + 1][PATH_MAX];
  const struct block_model *m;
  unsigned v;

  for (v = 0; v <= NR_VOLUMES; ++v) {
    m = v < NR_VOLUMES ? models[v] : scratch_model ();
    if (m == NULL)
      continue;
    snprintf (paths[v], sizeof paths[v], "%s/image-%u.raw", dir, v);
    write_image (m, paths[v]);
    args[i++] = "--from";
    args[i++] = paths[v];
  }
}

/* Change up to 'max' places in the range.  Returns how many were changed. */
static unsigned
damage_places (struct rng *rng, int fd, uint64_t begin, uint64_t end,
               unsigned max)
{
  uint8_t buf[4096], noise[4096];
  unsigned tries, nr = 0;
  uint64_t offset;
  int64_t n, i;

  for (tries = 0; tries < 100 && nr < max; ++tries) {
    offset = begin + rng_below (rng, end - begin);
    n = rng_between (rng, 1, rng_percent (rng, 50) ? 16 : sizeof buf);
    if (offset + n > end)
      n = end - offset;
    if (pread (fd, buf, n, offset) != n)
      die ("records: %s", strerror (errno));
    if (buf[0] == 0) /* most likely free space */
      continue;
    fill_random (noise, sizeof noise, rng_next (rng));
    for (i = 0; i < n; ++i)
      buf[i] ^= noise[i] | 1;
    if (pwrite (fd, buf, n, offset) != n)
      die ("records: %s", strerror (errno));
    nr++;
  }
  return nr;
}

/* Damage records in one segment.  A record and its copies are in different
 * segments.
 */
static void
damage_records (struct rng *rng)
{
  unsigned tries, nr = 0, max = rng_between (rng, 1, 12);
  uint64_t begin = 0, end, size;
  char path[PATH_MAX];
  struct stat st;
  int fd;

  snprintf (path, sizeof path, "%s/records", pool);
  fd = open (path, O_RDWR | O_CLOEXEC);
  if (fd == -1 || fstat (fd, &st) == -1)
    die ("%s: %s", path, strerror (errno));
  size = (uint64_t) st.st_size;
  for (tries = 0; tries < 20 && nr == 0 && size > RECORDS_HEADER; ++tries) {
    begin = rng_below (rng, (size + SEGMENT - 1) / SEGMENT) * SEGMENT;
    end = begin + SEGMENT < size ? begin + SEGMENT : size;
    if (begin == 0)
      begin = RECORDS_HEADER;
    nr = damage_places (rng, fd, begin, end, max);
  }
  close (fd);
  printf ("  %u places of records damaged, from %" PRIu64 " on\n", nr, begin);
  fflush (stdout);
}

/* Each block must be right, or fail to be read with EIO. */
static void
expect_right_or_error (void)
{
  struct nbd_handle *nbd;
  struct block_model *m;
  uint8_t *buf;
  uint64_t i, len;
  unsigned v;

  for (v = 0; v < NR_VOLUMES; ++v) {
    m = models[v];
    nbd = connect_to (m->name);
    buf = xcalloc (1, m->block_size);
    for (i = 0; i < m->nr_blocks; ++i) {
      len = m->size - i * m->block_size;
      if (len < m->block_size)
        memset (buf, 0, m->block_size);
      else
        len = m->block_size;
      if (nbd_pread (nbd, buf, len, i * m->block_size, 0) == -1) {
        if (nbd_get_errno () == EIO)
          continue;
        fprintf (stderr, "volume %s: reading block %" PRIu64 ": %s\n", m->name,
                 i, nbd_get_error ());
        give_up ();
      }
      if (!block_model_check (m, i, buf))
        give_up ();
    }
    free (buf);
    nbd_shutdown (nbd, 0);
    nbd_close (nbd);
  }
}

static void
scrub_some (struct rng *rng)
{
  bool copied = rng_percent (rng, 50), served = rng_percent (rng, 50);
  const char *args[12] = { "scrub" };
  unsigned i = 1;

  start_server (rng);
  verify ();
  check_scratch ();
  if (!copied) /* they have no image */
    destroy_imports ();
  settle (copied);
  if (served) { /* slower, or most cuts come too early */
    args[i++] = "--rate";
    args[i++] = "12M";
  }
  if (!copied)
    write_images (args, i);
  stop_server ();
  cut_power (rng);
  damage_records (rng);
  if (served) {
    start_server (rng);
    if (copied)
      verify ();
    else
      expect_right_or_error ();
  }
  cut_and_complete (rng, &works[SCRUB], args, served, NULL);
  expect_whole (rng);
}

/*----------------------------------------------------------------------*/

static unsigned
percent (void)
{
  return number_from_environment ("REPAIRS", 10);
}

bool
repairs_only (void)
{
  return percent () >= 100;
}

static unsigned
pick_work (struct rng *rng)
{
  unsigned picked = rng_below (rng, NR_WORKS), i;
  const char *wanted = getenv ("REPAIR");

  for (i = 0; i < NR_WORKS && wanted; ++i)
    if (strcmp (works[i].name, wanted) == 0)
      return i;
  return picked;
}

bool
repair_sometimes (uint64_t round)
{
  struct rng own = rng_make (seed, ~round - 300), *rng = &own;

  if (server_script || !rng_percent (rng, percent ()))
    return false;
  switch (pick_work (rng)) {
  case RECOVER:
    return recover_some (rng);
  case REPAIR:
    repair_some (rng);
    break;
  case SCRUB:
    scrub_some (rng);
    break;
  }
  return true;
}

void
repair_round (void)
{
  struct rng round_rng = rng_make (seed, 1), *rng = &round_rng;

  printf ("round %u: SEED=%" PRIu64 "\n", round_nr, seed);
  fflush (stdout);
  alarm (300);
  remove_pool ();
  make_pool (rng);
  make_volumes (rng, 2048, 16384, make_volume);
  start_and_wait (rng);
  load (rng);
  cut_power (rng);
  repair_sometimes (0);
  forget_scratch ();
  free_volumes ();
}

void
print_repairs (void)
{
  unsigned i;

  for (i = 0; i < NR_WORKS; ++i)
    printf ("%s%s: %u rounds, cut off %u times\n", works[i].name,
            i == REPAIR ? " --repair" : "", works[i].rounds, works[i].cuts);
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* Kill a process in the middle of snapshots, clones, rollbacks, destroys,
 * rebases, renames and resizes, and check that each has happened or has not.
 *
 * In each round a child opens the pool and performs random operations
 * (lineage-model.h), and tells this process when one begins and how it ended.
 * In many children a thread moves records meanwhile ("compact", "rewrite").
 * It is killed at a random moment; in some rounds other children are killed
 * while they recover the pool.  Then this process makes the same operations,
 * opens the pool, and checks that
 *
 *  - commands that returned have happened, flushed writes are there, and each
 *    block with unflushed writes has some version since the flush;
 *
 *  - the command in flight has happened entirely, or not at all;
 *
 *  - samples of drift that were recorded are in the history, in order and
 *    whole: the child notes each in a file when the command has returned; after
 *    them there may be those that it was recording;
 *
 *  - "check" finds nothing, and sometimes, that all space is freed in the end;
 *
 *  - in some rounds the same holds in the pool opened read-only, and recovery
 *    then has the same result.
 *
 * With --power the power is lost, not only the process: what was not synced is
 * lost, too (powercut-undo.h).  This happens to the child and to children that
 * recover, at a random moment or after a number of changes to files; and in
 * some rounds to this process after it has closed the pool, when nothing may
 * be lost.
 *
 * With --together there are no rounds: the power goes at the first change to a
 * file that a snapshot of several volumes makes, then at the second, and so on.
 * All the volumes have the snapshot then, or none.
 *
 * A pool lives through 40 rounds; then the test makes another one.  SEED and
 * ROUNDS come from the environment; SEED repeats the operations, not the
 * moments.
 *
 * Only this process's children have threads when it forks: it closes the
 * pool before.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "crash/powercut-undo.h"
#include "models/lineage-model.h"
#include "models/op-log.h"

#define ROUNDS_PER_POOL 40
#define MAX_OPS 600

/* The approximate number of changes of 60 operations, and of opening. */
#define CHANGES 3000
#define OPEN_CHANGES 80

static const lineage_weights weights[] = {
  /* clang-format off */
  /* cre wr zero tr flu snap cl rol des ren reb siz set dif att det */
  {  3, 30, 4,  4,  6,  9,  8, 4,  8,  3,  5,  5,  2,  0,  0, 0 },
  {  2, 12, 2,  2,  2, 16, 14, 8, 20,  4,  8,  6,  1,  0,  0, 0 },
  {  2, 60, 6,  6,  3,  6,  4, 2,  5,  1,  3,  3,  1,  0,  0, 0 },
  {  1, 15, 2,  2,  1, 20,  3, 3, 14,  1, 12,  8,  1,  0,  0, 0 },
  /* clang-format on */
};
#define NR_WEIGHTS (sizeof weights / sizeof weights[0])

/* The messages of the child. */
enum { READY, BEGIN, DONE, REFUSED, CLOSED };

static struct nbdedup_pool *pool;
static struct nbdedup_settings settings;
static struct lineage lineage;
static char *directory;
static char pool_path[PATH_MAX];
static bool power;
/* The log of powercut.c, and the files whose names were removed. */
static char undo_path[PATH_MAX], undo_names[PATH_MAX + 2];
static char noted_path[PATH_MAX]; /* recorded samples, one a line */
static uint64_t seed;
static unsigned round_nr, nr_in_flight, nr_happened, nr_samples;

static _Noreturn void
give_up (const char *why)
{
  fflush (stdout);
  fprintf (stderr, "FAILED in round %u: %s\nthe last operations:\n", round_nr,
           why);
  op_log_print ();
  fprintf (stderr, "repeat with SEED=%" PRIu64 "; the pool is %s\n", seed,
           pool_path);
  _exit (EXIT_FAILURE);
}

static void
pick_settings (struct rng *rng)
{
  nbdedup_settings_init (&settings);
  if (rng_percent (rng, 50)) {
    settings.ddt_cache_bytes = NBDEDUP_DDT_CACHE_MIN;
    settings.dirty_max_bytes = NBDEDUP_DIRTY_MAX_MIN;
  }
  settings.commit_interval_ms = rng_between (rng, 10, 1000);
  settings.nr_workers = rng_between (rng, 1, 2);
}

static int
open_pool (void)
{
  pool = nbdedup_pool_open (pool_path, &settings, "lineage-crash", 0);
  return pool ? 0 : -1;
}

static void
note (const struct op *op, const char *how)
{
  char text[140];

  op_describe (op, text, sizeof text);
  snprintf (op_log_next (), OP_LOG_TEXT, "%u %s%s", round_nr, text, how);
}

/*----------------------------------------------------------------------
 * The child
 */

static void
tell (int fd, uint8_t what)
{
  if (write (fd, &what, 1) != 1)
    _exit (EXIT_FAILURE); /* the parent is gone */
}

static void
note_samples (json_t *samples, const char *mode)
{
  FILE *f = fopen (noted_path, mode);
  json_t *sample;
  size_t i;

  if (f == NULL)
    give_up (strerror (errno));
  json_array_foreach (samples, i, sample) {
    json_dumpf (sample, f, JSON_COMPACT);
    putc ('\n', f);
  }
  /* A kill during this leaves a part of a line, which is ignored. */
  if (fclose (f) != 0)
    give_up (strerror (errno));
}

/* Record samples of all golden images.  If the command returns they must be in
 * the history afterwards.
 */
static void
record_samples (void)
{
  json_t *result = engine_call (pool, "drift",
                                json_pack ("{s:b}", "record", 1));

  /* Without a pause between moves it gives way to them. */
  if (result == NULL && errno == EBUSY)
    return;
  if (result == NULL)
    give_up (nbdedup_error ());
  note_samples (json_object_get (result, "goldens"), "a");
  json_decref (result);
}

/* In many children records move all the time. */
static atomic_bool stop_moving;

/* Any volume or snapshot; false: there is none. */
static bool
pick_name (struct rng *rng, char name[PATH_MAX])
{
  json_t *list = engine_call (pool, "list", NULL), *v, *s;
  const json_t *volumes = json_object_get (list, "volumes");
  const size_t nr = json_array_size (volumes);

  if (nr > 0) {
    v = json_array_get (volumes, rng_below (rng, nr));
    s = json_array_get (json_object_get (v, "snapshots"), 0);
    snprintf (name, PATH_MAX, "%s",
              json_string_value (json_object_get (v, "name")));
    if (s && rng_percent (rng, 40))
      snprintf (name + strlen (name), PATH_MAX - strlen (name), "@%s",
                json_string_value (json_object_get (s, "name")));
  }
  json_decref (list);
  return nr > 0;
}

/* Store it in the form that its properties ask for now.  The command may find
 * that another thread has destroyed it.
 */
static void
rewrite_some (struct rng *rng)
{
  char name[PATH_MAX];
  json_t *result;

  if (!pick_name (rng, name))
    return;
  result = engine_call (pool, "rewrite",
                        json_pack ("{s:s, s:b}", "name", name, "dedup",
                                   rng_percent (rng, 60)));
  if (result == NULL && errno != ENOENT)
    give_up (nbdedup_error ());
  json_decref (result);
}

static void *
move_records (void *arg)
{
  struct rng rng = rng_make (seed, round_nr + 2000000);
  json_t *result;

  (void) arg;
  while (!stop_moving) {
    if (rng_percent (&rng, 60)) {
      rewrite_some (&rng);
      continue;
    }
    result = engine_call (pool, "compact", NULL);
    if (result == NULL)
      give_up (nbdedup_error ());
    json_decref (result);
  }
  return NULL;
}

static _Noreturn void
child (int fd, struct rng rng, const unsigned *mixture, unsigned nr)
{
  struct rng when = rng_make (seed, round_nr + 1000000);
  unsigned often = rng_below (&when, 40);
  bool moving = rng_percent (&when, 60);
  enum expect expect;
  pthread_t mover;
  struct op op;
  bool ok;

  prctl (PR_SET_PDEATHSIG, SIGKILL);
  alarm (300);
  if (power)
    powercut_begin (undo_path, pool_path);
  if (open_pool () == -1)
    give_up (nbdedup_error ());
  tell (fd, READY);
  if (moving && pthread_create (&mover, NULL, move_records, NULL) != 0)
    give_up ("cannot start a thread");
  for (; nr > 0; --nr) {
    if (rng_percent (&when, often))
      record_samples ();
    lineage_random (&lineage, mixture, &rng, &op);
    expect = lineage_expect (&lineage, &op);
    note (&op, "  (the child)");
    tell (fd, BEGIN);
    ok = engine_apply (pool, &lineage, &op) == 0;
    if (expect != EXPECT_EITHER && ok != (expect == EXPECT_OK))
      give_up (ok ? "the last one succeeded, but must fail" : nbdedup_error ());
    tell (fd, ok ? DONE : REFUSED);
    if (ok)
      lineage_apply (&lineage, &op);
    op_free (&op);
  }
  stop_moving = true;
  if (moving)
    pthread_join (mover, NULL);
  if (nbdedup_pool_close (pool) == -1)
    give_up (nbdedup_error ());
  tell (fd, CLOSED);
  _exit (EXIT_SUCCESS);
}

/* Start a child, kill it 'ms' after its READY (or after its start), and return
 * its messages.  ms < 0: let it end by itself.
 */
static size_t
run_child (struct rng rng, const unsigned *mixture, unsigned nr, int ms,
           bool from_start, uint8_t told[2 * MAX_OPS + 2])
{
  struct pollfd pfd = { .events = POLLIN };
  int64_t deadline = -1, now;
  int fds[2], status;
  size_t len = 0;
  ssize_t n;
  pid_t pid;

  if (pipe (fds) == -1)
    give_up (strerror (errno));
  fflush (stdout);
  pid = fork ();
  if (pid == -1)
    give_up (strerror (errno));
  if (pid == 0) {
    close (fds[0]);
    child (fds[1], rng, mixture, nr);
  }
  close (fds[1]);
  pfd.fd = fds[0];
  for (;;) {
    now = (int64_t) clock_ms ();
    if (deadline == -1 && ms >= 0 && (from_start || len > 0))
      deadline = now + ms;
    if (deadline != -1 && now >= deadline) {
      kill (pid, SIGKILL);
      deadline = INT64_MAX;
    }
    if (poll (&pfd, 1,
              deadline == -1 || deadline == INT64_MAX
                ? -1
                : (int) (deadline - now)) == 0)
      continue;
    n = read (fds[0], told + len, 2 * MAX_OPS + 2 - len);
    if (n == -1)
      give_up (strerror (errno));
    if (n == 0) /* its end */
      break;
    len += n;
  }
  close (fds[0]);
  if (waitpid (pid, &status, 0) == -1)
    give_up (strerror (errno));
  if (WIFSIGNALED (status) && WTERMSIG (status) != SIGKILL)
    give_up (strsignal (WTERMSIG (status)));
  if (WIFEXITED (status) && WEXITSTATUS (status) != 0)
    give_up ("the child failed");
  return len;
}

/*----------------------------------------------------------------------
 * Checks after the kill
 */

/* The visible contents may be the same before and after a command, although
 * the layers differ.  The number of records is unknown then.
 */
static bool layers_unsure;

static bool
matches (struct lineage *l, char *why, size_t len)
{
  struct lineage copy;

  lineage_copy (l, &copy);
  if (!engine_compare (pool, &copy, why, len)) {
    lineage_free (&copy);
    return false;
  }
  lineage_free (l);
  *l = copy;
  lineage_forget_versions (l);
  return true;
}

/* Operation 'op' was in flight: the pool must be as before it, or as after it.
 */
static void
settle (const struct op *op)
{
  char before[400], after[400], why[1000];
  struct lineage changed;
  bool possible = lineage_expect (&lineage, op) != EXPECT_FAIL;

  nr_in_flight++;
  lineage_copy (&lineage, &changed);
  if (possible)
    lineage_apply (&changed, op);
  if (possible && lineage.readonly && op->kind == OP_RESIZE && op->shrink)
    lineage_find (&changed, op->name)->tail_counts = true;
  if (matches (&lineage, before, sizeof before)) {
    if (possible && matches (&changed, after, sizeof after))
      layers_unsure = true;
    lineage_free (&changed);
    return;
  }
  if (!possible)
    give_up (before);
  if (!matches (&changed, after, sizeof after)) {
    snprintf (why, sizeof why,
              "the last one has neither happened nor not "
              "happened:\n  not before: %s\n  not after: %s",
              before, after);
    give_up (why);
  }
  lineage_free (&lineage);
  lineage = changed;
  nr_happened++;
}

/* Apply the child's operations to the model, and compare. */
static void
replay (struct rng rng, const unsigned *mixture, const uint8_t *told,
        size_t len)
{
  bool cut_off = false;
  char why[400];
  struct op op;
  size_t i;

  for (i = 1; i < len && !cut_off; i += 2) {
    if (told[i] == CLOSED) {
      lineage_forget_versions (&lineage);
      break;
    }
    lineage_random (&lineage, mixture, &rng, &op);
    cut_off = i + 1 == len;
    note (&op,
          cut_off                 ? "  (in flight)"
            : told[i + 1] == DONE ? ""
                                  : "  (refused)");
    if (!cut_off) {
      if (told[i + 1] == DONE)
        lineage_apply (&lineage, &op);
    }
    else if (op_is_command (&op)) {
      settle (&op);
      op_free (&op);
      return;
    }
    else if (op.kind != OP_FLUSH)
      lineage_apply (&lineage, &op); /* either version is right */
    op_free (&op);
  }
  if (!matches (&lineage, why, sizeof why))
    give_up (why);
}

/* The history must begin with the noted samples.  Then note the rest. */
static void
check_samples (void)
{
  json_t *result = engine_call (pool, "drift-history", NULL), *samples;
  FILE *f = fopen (noted_path, "r");
  char *line = NULL, *text;
  size_t cap = 0, i = 0;
  ssize_t len;

  if (result == NULL)
    give_up (nbdedup_error ());
  samples = json_object_get (result, "samples");
  while (f && (len = getline (&line, &cap, f)) > 0 && line[len - 1] == '\n') {
    line[len - 1] = '\0';
    text = json_dumps (json_array_get (samples, i++), JSON_COMPACT);
    if (text == NULL || strcmp (text, line) != 0) {
      fprintf (stderr, "sample %zu of %zu: %s\nrecorded: %s\n", i - 1,
               json_array_size (samples), text, line);
      give_up ("a sample that was recorded is not in the history");
    }
    free (text);
    nr_samples++;
  }
  free (line);
  if (f)
    fclose (f);
  note_samples (samples, "w");
  json_decref (result);
}

static void
check (void)
{
  json_t *result = engine_call (pool, "check", NULL), *text;
  size_t i;

  if (result == NULL)
    give_up (nbdedup_error ());
  json_array_foreach (json_object_get (result, "problems"), i, text)
    fprintf (stderr, "check: %s\n", json_string_value (text));
  if (json_number (result, "errors") != 0)
    give_up ("check found errors");
  json_decref (result);
}

static void
join_duplicates_of (const char *volume, const char *snapshot)
{
  char name[PATH_MAX];
  json_t *result;

  snprintf (name, sizeof name, "%s%s%s", volume, snapshot ? "@" : "",
            snapshot ? snapshot : "");
  result = engine_call (pool, "rewrite",
                        json_pack ("{s:s, s:b}", "name", name, "dedup", 1));
  if (result == NULL)
    give_up (nbdedup_error ());
  json_decref (result);
}

static void
join_duplicates (void)
{
  json_t *list = engine_call (pool, "list", NULL), *v, *s;
  const char *name;
  size_t i, j;

  json_array_foreach (json_object_get (list, "volumes"), i, v) {
    name = json_string_value (json_object_get (v, "name"));
    join_duplicates_of (name, NULL);
    json_array_foreach (json_object_get (v, "snapshots"), j, s)
      join_duplicates_of (name,
                          json_string_value (json_object_get (s, "name")));
  }
  json_decref (list);
}

/* After so many looks. */
#define JOIN_TRIES 100

/* Wait until freeing and merging, which continue after a crash, are complete.
 * A crash may leave a few duplicate records, and many if records were moving:
 * some pointers to one had moved, others had not.  A command joins them.
 */
static void
drain (void)
{
  uint64_t distinct = lineage_distinct (&lineage), records = 0, freeing = 1;
  json_t *stat, *figures;
  unsigned tries;
  char why[200];

  for (tries = 0; tries < 1000; ++tries) {
    stat = engine_call (pool, "stat", NULL);
    if (stat == NULL)
      give_up (nbdedup_error ());
    figures = json_object_get (stat, "pool");
    freeing = json_number (figures, "freeing_bytes");
    records = json_number (figures, "records");
    json_decref (stat);
    if (layers_unsure ? freeing == 0
                      : freeing == 0 && records >= distinct &&
            records <= distinct + distinct / 20 + 4)
      return;
    if (tries == JOIN_TRIES && freeing == 0)
      join_duplicates ();
    poll (NULL, 0, 20);
  }
  snprintf (why, sizeof why,
            "still %" PRIu64 " records for %" PRIu64
            " contents, freeing_bytes %" PRIu64,
            records, distinct, freeing);
  give_up (why);
}

static void
keep_samples (void)
{
  nbdedup_settings_init (&settings);
  if (open_pool () == -1)
    give_up (nbdedup_error ());
  json_decref (engine_call (pool, "set",
                            json_pack ("{s:s, s:s}", "property", "drift-keep",
                                       "value", "all:forever")));
  if (nbdedup_pool_close (pool) == -1)
    give_up (nbdedup_error ());
}

static void
make_pool (struct rng *rng)
{
  static const uint32_t sizes[] = { 4096, 4096, 8192, 16384, 65536 };
  json_t *options = json_pack ("{s:i}", "sector", 512 << rng_below (rng, 4));
  char command[PATH_MAX + 20];

  snprintf (command, sizeof command, "rm -rf '%s'", pool_path);
  if (pool_path[0] && system (command) != 0)
    give_up (command);
  snprintf (noted_path, sizeof noted_path, "%s/samples", directory);
  if (nbdedup_pool_create (pool_path, options) == -1 ||
      (unlink (noted_path) == -1 && errno != ENOENT))
    give_up (nbdedup_error ());
  json_decref (options);
  keep_samples ();
  lineage_free (&lineage);
  lineage = (struct lineage) {
    .block_size = sizes[rng_below (rng, 5)],
    .max_blocks = rng_percent (rng, 50) ? 20 : 200,
    .max_named = rng_percent (rng, 30) ? 60 : 25,
    .keep_versions = true,
  };
  op_log_clear ();
  layers_unsure = false;
}

/* Replay in a pool that is opened read-only.  Recovery must have the same
 * result later.
 */
static void
replay_readonly (struct rng ops, const unsigned *mixture, const uint8_t *told,
                 size_t len)
{
  unsigned i;

  settings.read_only = NBDEDUP_READ_ONLY_ON;
  lineage.readonly = true;
  if (open_pool () == -1)
    give_up (nbdedup_error ());
  replay (ops, mixture, told, len);
  check ();
  if (nbdedup_pool_close (pool) == -1)
    give_up (nbdedup_error ());
  settings.read_only = NBDEDUP_READ_ONLY_OFF;
  lineage.readonly = false;
  for (i = 0; i < lineage.nr_nodes; ++i)
    lineage.nodes[i]->tail_counts = false;
}

/*----------------------------------------------------------------------
 * Rounds
 */

/* Sometimes make the child's power go within 'changes' changes. */
static void
cut_within (struct rng *rng, uint64_t changes)
{
  if (power && rng_percent (rng, 50))
    powercut_after (undo_path, rng_between (rng, 1, changes), false);
}

static void
cut_power (struct rng *rng)
{
  if (power)
    powercut_undo (undo_path, pool_path, rng);
}

/* Recover, check and close the pool.  A loss of power after that must lose
 * nothing.
 */
static void
verify_pool (struct rng ops, const unsigned *mixture, const uint8_t *told,
             size_t len, bool is_replayed, struct rng *rng)
{
  char why[400];

  if (power)
    powercut_begin (undo_path, pool_path);
  if (open_pool () == -1)
    give_up (nbdedup_error ());
  if (!is_replayed)
    replay (ops, mixture, told, len);
  else if (!matches (&lineage, why, sizeof why))
    give_up (why);
  check_samples ();
  check ();
  if (rng_percent (rng, 25)) {
    drain ();
    check ();
  }
  if (nbdedup_pool_close (pool) == -1)
    give_up (nbdedup_error ());
  if (!power)
    return;
  powercut_end ();
  if (rng_percent (rng, 50))
    cut_power (rng);
  else if (unlink (undo_path) == -1 && errno != ENOENT)
    give_up (strerror (errno));
}

static void
run_round (void)
{
  static uint8_t told[2 * MAX_OPS + 2];
  struct rng rng = rng_make (seed, round_nr), ops = rng_make (seed, ~round_nr);
  const unsigned *mixture = weights[rng_below (&rng, NR_WEIGHTS)];
  bool polite = rng_percent (&rng, 6), readonly = rng_percent (&rng, 40);
  struct rng cuts = rng_make (seed, round_nr + 2000000);
  size_t len;

  alarm (300);
  if (round_nr % ROUNDS_PER_POOL == 0)
    make_pool (&rng);
  pick_settings (&rng);
  cut_within (&cuts, CHANGES);
  /* Often a command or two, sometimes hundreds. */
  len = run_child (ops, mixture, polite ? 30 : MAX_OPS,
                   polite ? -1
                          : (int) rng_below (&rng,
                                             rng_percent (&rng, 50) ? 60 : 700),
                   rng_percent (&rng, 10), told);
  cut_power (&cuts);
  while (rng_percent (&rng, 20)) {
    /* Another child is killed soon, while it recovers. */
    static uint8_t nothing[2 * MAX_OPS + 2];

    pick_settings (&rng);
    cut_within (&cuts, OPEN_CHANGES);
    run_child (ops, mixture, 0, rng_below (&rng, 25), true, nothing);
    cut_power (&cuts);
  }
  pick_settings (&rng);
  if (readonly)
    replay_readonly (ops, mixture, told, len);
  verify_pool (ops, mixture, told, len, readonly, &rng);
}

/*----------------------------------------------------------------------
 * Snapshots of several volumes
 */

#define TOGETHER 3u

/* The child.  It ends with status 0 if it has made all changes. */
static _Noreturn void
snapshot_together (unsigned cut)
{
  json_t *names = json_array ();
  unsigned i;

  prctl (PR_SET_PDEATHSIG, SIGKILL);
  powercut_begin (undo_path, pool_path);
  if (open_pool () == -1)
    give_up (nbdedup_error ());
  for (i = 0; i < TOGETHER; ++i)
    json_array_append_new (names, json_sprintf ("v%u@s%u", i, cut));
  powercut_after (undo_path, cut, false);
  if (engine_call (pool, "snapshot", json_pack ("{s:o}", "names", names)) ==
      NULL)
    give_up (nbdedup_error ());
  _exit (EXIT_SUCCESS);
}

/* How many volumes have the snapshot? */
static unsigned
count_snapshots (unsigned cut)
{
  json_t *list = engine_call (pool, "list", NULL), *v, *s;
  unsigned nr = 0;
  char name[24];
  size_t i, j;

  snprintf (name, sizeof name, "s%u", cut);
  json_array_foreach (json_object_get (list, "volumes"), i, v) {
    json_array_foreach (json_object_get (v, "snapshots"), j, s)
      nr += strcmp (json_string_value (json_object_get (s, "name")), name) == 0;
  }
  json_decref (list);
  return nr;
}

static void
make_volumes (void)
{
  struct op op = { .kind = OP_CREATE, .block_size = 4096, .size = 1 << 20 };
  unsigned i;

  nbdedup_settings_init (&settings);
  if (open_pool () == -1)
    give_up (nbdedup_error ());
  for (i = 0; i < TOGETHER; ++i) {
    snprintf (op.name, sizeof op.name, "v%u", i);
    if (engine_apply (pool, &lineage, &op) == -1)
      give_up (nbdedup_error ());
  }
  if (nbdedup_pool_close (pool) == -1)
    give_up (nbdedup_error ());
}

static void
cut_each_change (void)
{
  struct rng rng = rng_make (seed, 0);
  unsigned cut = 0, found, nr_all = 0;
  int status;
  pid_t pid;

  make_pool (&rng);
  make_volumes ();
  do {
    alarm (300);
    fflush (stdout);
    pid = fork ();
    if (pid == -1)
      give_up (strerror (errno));
    if (pid == 0)
      snapshot_together (cut + 1);
    if (waitpid (pid, &status, 0) == -1)
      give_up (strerror (errno));
    if (WIFSIGNALED (status) ? WTERMSIG (status) != SIGKILL
                             : WEXITSTATUS (status) != 0)
      give_up ("the child failed");
    powercut_undo (undo_path, pool_path, &rng);
    if (open_pool () == -1)
      give_up (nbdedup_error ());
    found = count_snapshots (++cut);
    if (found > 0 && found < TOGETHER)
      give_up ("some of the volumes have the snapshot, others have not");
    if (found == 0 && WIFEXITED (status))
      give_up ("snapshots that were reported as taken are not there");
    nr_all += found > 0;
    check ();
    if (nbdedup_pool_close (pool) == -1)
      give_up (nbdedup_error ());
  } while (WIFSIGNALED (status));
  if (nr_all == cut)
    give_up ("no cut came before the snapshots");
  printf ("%u cuts, %u of them after the snapshots\n", cut - 1, nr_all - 1);
}

int
main (int argc, char **argv)
{
  uint64_t rounds = number_from_environment ("ROUNDS", 20);
  bool together = argc == 3 && strcmp (argv[1], "--together") == 0;

  power = together || (argc == 3 && strcmp (argv[1], "--power") == 0);
  if (argc != 2 + power) {
    fprintf (stderr,
             "usage: ROUNDS=N SEED=S lineage-crash [--power | --together] "
             "DIRECTORY\n");
    return 2;
  }
  directory = realpath (argv[1 + power], NULL);
  if (directory == NULL)
    die ("%s: %s", argv[1 + power], strerror (errno));
  snprintf (pool_path, sizeof pool_path, "%s/pool", directory);
  snprintf (undo_path, sizeof undo_path, "%s/undo", directory);
  snprintf (undo_names, sizeof undo_names, "%s.d", undo_path);
  if (power && mkdir (undo_names, 0777) == -1 && errno != EEXIST)
    die ("%s: %s", undo_names, strerror (errno));
  seed = seed_from_environment ();
  printf ("SEED=%" PRIu64 "\n", seed);
  signal (SIGALRM, too_long);
  if (together) {
    cut_each_change ();
    return 0;
  }
  for (round_nr = 0; round_nr < rounds; ++round_nr)
    run_round ();
  printf ("%u rounds, %u commands in flight, %u of them had happened; "
          "%u samples compared\n",
          round_nr, nr_in_flight, nr_happened, nr_samples);
  lineage_free (&lineage);
  free (directory);
  return 0;
}

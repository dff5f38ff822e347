/* SPDX-License-Identifier: BSD-3-Clause */

/* Kill a server at random moments, and see what survives.
 *
 * A pool with three volumes of different block sizes lives through all
 * rounds.  In each round
 *
 *  1. the server starts, with limits picked at random, so that dirty data,
 *     the journal and the caches overflow at different times; in some
 *     rounds it is killed once or more while it still recovers;
 *
 *  2. every byte is read and compared with what the model allows (see
 *     block-model.h), every extent with what was read;
 *
 *  3. four to eight threads with connections of their own write, zero,
 *     trim, read and flush, at any alignment; meanwhile another one makes,
 *     fills, resizes and destroys a fourth volume with the nbdedup command;
 *
 *  4. the server is killed (in a few rounds: stopped politely, and then
 *     everything answered must be there).
 *
 * "nbdedup check" runs offline after some crashes, through the server after
 * the others.
 *
 * With --powercut the server runs under powercut.so, which remembers what
 * it overwrote and synced; after the kill, what was not synced is lost for
 * some of the sectors, as after a loss of power.
 *
 * SEED and ROUNDS come from the environment.  SEED repeats the choices, not
 * the timing of threads.  With --server SCRIPT the program checks another
 * server, started by "SCRIPT SOCKET DIRECTORY": to see that it notices one
 * that loses data.
 */

#include <config.h>

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <libnbd.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>

#include "block-model.h"
#include "powercut-undo.h"
#include "server-process.h"
#include "testutil.h"

#define NR_VOLUMES 3
#define MAX_THREADS 8
#define MAX_REQUEST (UINT32_C (2) << 20)
#define NR_DUPS 24

static const char *plugin, *nbdedup = "nbdedup", *dir, *server_script;
static const char *powercut, *preload;
static char *pool, *log_path, *undo_path;
static uint64_t seed;

static struct block_model *models[NR_VOLUMES];
static struct server_process server;
static unsigned round_nr;
static atomic_bool killing, stop_administration;
static atomic_uint op_number;
static _Atomic uint64_t total_ops, total_bytes;

/* What a round does; percentages. */
struct profile {
  const char *name;
  unsigned flush, zero, trim, read, status; /* of all requests */
  unsigned fua, unaligned, hot;             /* of those that change data */
  unsigned max_blocks;
};

static const struct profile profiles[] = {
  /*            flush zero trim read status fua unal. hot blocks */
  { "mixed",        5,   8,   8,  12,    1, 10,  40,  20,   8 },
  { "database",    30,   2,   2,  10,    0, 40,  50,  70,   2 },
  { "no flush",     0,   4,   4,   5,    0,  0,  30,  10,  32 },
  { "bulk",         1,   2,   2,   3,    1,  1,  10,   0,  64 },
  { "discard",      4,  30,  30,  10,    3, 10,  40,  20,  48 },
  { "hot blocks",   8,   5,   5,  10,    0, 10,  80, 100,   3 },
  { "flush storm", 60,   3,   3,   5,    0, 30,  20,  20,   1 },
};
#define NR_PROFILES (sizeof profiles / sizeof profiles[0])

struct worker {
  pthread_t thread;
  unsigned id;
  struct rng rng;
  const struct profile *profile;
  struct nbd_handle *nbd[NR_VOLUMES];
};

static _Noreturn void
give_up (void)
{
  fflush (stdout);
  fprintf (stderr, "FAILED in round %u; repeat with SEED=%" PRIu64 "; "
           "the pool is %s, the server's output %s\n",
           round_nr, seed, pool, log_path);
  if (server.pid)
    kill (server.pid, SIGKILL);
  _exit (EXIT_FAILURE);
}

static void
too_long (int sig)
{
  static const char text[] = "FAILED: a round takes too long\n";
  ssize_t r;

  (void) sig;
  r = write (STDERR_FILENO, text, sizeof text - 1);
  (void) r;
  _exit (EXIT_FAILURE);
}

/*----------------------------------------------------------------------
 * Load
 */

/* A request failed: the kill, or the server's fault? */
static bool
request_failed (const char *what, const struct block_model *m,
                const struct model_op *op)
{
  if (atomic_load (&killing))
    return false;
  /* The server may have been killed between the answer and here. */
  fprintf (stderr, "volume %s: %s of %" PRIu64 " bytes at %" PRIu64
           " failed: %s\n", m->name, what, op->len, op->offset,
           nbd_get_error ());
  give_up ();
}

static void
pick_range (struct worker *w, const struct block_model *m, uint64_t max_len,
            struct model_op *op)
{
  const struct profile *p = w->profile;
  uint64_t area = m->size, offset, len;

  if (rng_percent (&w->rng, p->hot))
    area = m->size / 32;
  len = rng_between (&w->rng, 1, p->max_blocks) * m->block_size;
  if (rng_percent (&w->rng, p->unaligned)) {
    len = rng_between (&w->rng, 1, rng_percent (&w->rng, 50) ?
                       m->block_size : 3 * (uint64_t) m->block_size);
    if (rng_percent (&w->rng, 50))
      len = (len + 511) & ~UINT64_C (511);
    offset = rng_below (&w->rng, area);
    if (rng_percent (&w->rng, 50))
      offset &= ~UINT64_C (511);
  }
  else
    offset = rng_below (&w->rng, area / m->block_size) * m->block_size;

  if (len > max_len)
    len = max_len;
  if (offset + len > m->size)
    len = m->size - offset;
  op->offset = offset;
  op->len = len;
}

/* A write, zero or trim. */
static bool
change (struct worker *w, unsigned v, char kind, uint8_t *buf)
{
  struct block_model *m = models[v];
  struct model_op op = {
    .kind = kind, .thread = w->id, .number = atomic_fetch_add (&op_number, 1),
    .fua = rng_percent (&w->rng, w->profile->fua),
  };
  uint32_t flags = op.fua ? LIBNBD_CMD_FLAG_FUA : 0;
  bool ok = false;
  int r;

  pick_range (w, m, kind == 'W' ? MAX_REQUEST : m->size, &op);
  if (kind == 'W')
    fill_content (buf, op.len, m->block_size, NR_DUPS, &w->rng);
  if (kind == 'Z' && rng_percent (&w->rng, 30))
    flags |= LIBNBD_CMD_FLAG_NO_HOLE;

  block_model_lock (m, op.offset, op.len);
  if (!atomic_load (&killing)) {
    block_model_begin (m, &op, kind == 'W' ? buf : NULL);
    switch (kind) {
    case 'W':
      r = nbd_pwrite (w->nbd[v], buf, op.len, op.offset, flags);
      break;
    case 'Z':
      r = nbd_zero (w->nbd[v], op.len, op.offset, flags);
      break;
    default:
      r = nbd_trim (w->nbd[v], op.len, op.offset, flags);
    }
    ok = r == 0;
    if (ok)
      block_model_answered (m, &op);
    else
      request_failed (kind == 'W' ? "write" : kind == 'Z' ? "zero" : "trim",
                      m, &op);
  }
  block_model_unlock (m, op.offset, op.len);
  if (ok)
    atomic_fetch_add (&total_bytes, op.len);
  return ok;
}

static bool
flush_volume (struct worker *w, unsigned v)
{
  struct model_op op = { .kind = 'F' };
  uint64_t stamp = block_model_stamp ();

  if (nbd_flush (w->nbd[v], 0) == -1)
    return request_failed ("flush", models[v], &op);
  block_model_flushed (models[v], stamp);
  return true;
}

static bool
read_back (struct worker *w, unsigned v, uint8_t *buf)
{
  struct block_model *m = models[v];
  struct model_op op = { .kind = 'R' };
  bool ok = false;

  pick_range (w, m, MAX_REQUEST, &op);
  block_model_lock (m, op.offset, op.len);
  if (!atomic_load (&killing)) {
    ok = nbd_pread (w->nbd[v], buf, op.len, op.offset, 0) == 0;
    if (!ok)
      request_failed ("read", m, &op);
    else if (!block_model_matches (m, op.offset, op.len, buf))
      give_up ();
  }
  block_model_unlock (m, op.offset, op.len);
  return ok;
}

struct extents {
  struct block_model *model;
  const uint8_t *data;          /* of the whole volume, or NULL */
  uint64_t offset;
  bool bad;
};

static int
check_extents (void *opaque, const char *context, uint64_t offset,
               uint32_t *entries, size_t nr_entries, int *error)
{
  struct extents *e = opaque;
  size_t i;

  (void) error;
  if (strcmp (context, LIBNBD_CONTEXT_BASE_ALLOCATION) != 0)
    return 0;
  for (i = 0; i < nr_entries; i += 2) {
    uint32_t len = entries[i], type = entries[i + 1];
    uint64_t end = offset + len;

    if (end > e->model->size)
      end = e->model->size;
    if (end > offset && (type & LIBNBD_STATE_ZERO) && e->data &&
        !all_zero (e->data + offset, end - offset)) {
      fprintf (stderr, "volume %s: extent of %u bytes at %" PRIu64
               " is reported as zero but is not\n", e->model->name, len,
               offset);
      e->bad = true;
    }
    offset = end;
  }
  e->offset = offset;
  return 0;
}

static bool
ask_status (struct worker *w, unsigned v)
{
  struct block_model *m = models[v];
  struct extents e = { .model = m };
  struct model_op op = { .kind = 'S' };

  pick_range (w, m, m->size, &op);
  if (nbd_block_status (w->nbd[v], op.len, op.offset,
                        (nbd_extent_callback) { .callback = check_extents,
                                                .user_data = &e }, 0) == -1)
    return request_failed ("block status", m, &op);
  if (!atomic_load (&killing) && e.offset <= op.offset) {
    fprintf (stderr, "volume %s: block status told nothing\n", m->name);
    give_up ();
  }
  return true;
}

static void *
work (void *arg)
{
  struct worker *w = arg;
  const struct profile *p = w->profile;
  uint8_t *buf = xmalloc (MAX_REQUEST);
  bool ok = true;

  while (ok && !atomic_load (&killing)) {
    unsigned v = rng_below (&w->rng, NR_VOLUMES);
    unsigned n = rng_below (&w->rng, 100);

    if (n < p->flush)
      ok = flush_volume (w, v);
    else if ((n -= p->flush) < p->zero)
      ok = change (w, v, 'Z', buf);
    else if ((n -= p->zero) < p->trim)
      ok = change (w, v, 'T', buf);
    else if ((n -= p->trim) < p->read)
      ok = read_back (w, v, buf);
    else if ((n -= p->read) < p->status)
      ok = ask_status (w, v);
    else
      ok = change (w, v, 'W', buf);
    if (ok)
      atomic_fetch_add (&total_ops, 1);
  }
  free (buf);
  return NULL;
}

/*----------------------------------------------------------------------
 * The command
 */

/* Run "nbdedup -p POOL ARG..."; returns its exit status and output. */
static int
run_command (char **output, const char *arg1, const char *arg2,
             const char *arg3, const char *arg4, const char *arg5)
{
  const char *argv[] = {
    nbdedup, "-p", pool, arg1, arg2, arg3, arg4, arg5, NULL
  };
  int status;

  *output = command_output (argv, 120, &status);
  return status;
}

static void
must_run (const char *arg1, const char *arg2, const char *arg3,
          const char *arg4, const char *arg5)
{
  char *output;
  int status = run_command (&output, arg1, arg2, arg3, arg4, arg5);

  if (status != 0) {
    fprintf (stderr, "nbdedup %s %s %s: status %d: %s\n", arg1,
             arg2 ? arg2 : "", arg2 && arg3 ? arg3 : "", status, output);
    give_up ();
  }
  free (output);
}

/* The fourth volume: what the last command that exited 0 made of it. */
static struct {
  bool exists, unsure;          /* unsure: a command was cut off */
  uint64_t size, other_size;    /* other_size: the cut-off command's */
} scratch;

static void
fill_scratch (struct rng *rng)
{
  struct nbd_handle *nbd = nbd_create ();
  size_t len = 65536;
  uint8_t *buf = xmalloc (len);
  uint64_t offset;
  unsigned i;

  if (nbd == NULL)
    die ("nbd_create: %s", nbd_get_error ());
  nbd_set_export_name (nbd, "scratch");
  if (nbd_connect_unix (nbd, server.socket) == 0) {
    for (i = 0; i < 20; ++i) {
      fill_content (buf, len, 4096, NR_DUPS, rng);
      offset = rng_below (rng, scratch.size - len);
      if (nbd_pwrite (nbd, buf, len, offset & ~UINT64_C (4095), 0) == -1)
        break;
    }
    if (i == 20 && rng_percent (rng, 50))
      i += nbd_flush (nbd, 0) == 0;
    if (i < 20 && !atomic_load (&killing)) {
      fprintf (stderr, "writing to scratch: %s\n", nbd_get_error ());
      give_up ();
    }
    nbd_shutdown (nbd, 0);
  }
  else if (!atomic_load (&killing)) {
    fprintf (stderr, "connecting to scratch: %s\n", nbd_get_error ());
    give_up ();
  }
  nbd_close (nbd);
  free (buf);
}

/* nbdkit tells the plugin of a closed connection a moment later: until then
 * the volume is in use.
 */
static int
run_when_free (char **output, const char *command, const char *name,
               const char *arg1, const char *arg2)
{
  unsigned tries;
  int status;

  for (tries = 0; ; ++tries) {
    status = run_command (output, command, name, arg1, arg2, NULL);
    if (status == 0 || tries == 100 || atomic_load (&killing) ||
        strstr (*output, "in use by") == NULL)
      return status;
    free (*output);
    poll (NULL, 0, 50);
  }
}

static void *
administrate (void *arg)
{
  struct rng *rng = arg;
  char size[32], *output;
  uint64_t new_size;
  int status;

  while (!atomic_load (&killing) && !atomic_load (&stop_administration)) {
    if (rng_percent (rng, 50)) { /* figures need a fold */
      status = run_command (&output, "stat", NULL, NULL, NULL, NULL);
      if (status != 0 && !atomic_load (&killing)) {
        fprintf (stderr, "nbdedup stat: status %d: %s\n", status, output);
        give_up ();
      }
      free (output);
      continue;
    }
    new_size = rng_between (rng, 256, 16384) * 512;
    snprintf (size, sizeof size, "%" PRIu64, new_size);
    scratch.unsure = true;
    scratch.other_size = new_size;
    if (!scratch.exists) {
      status = run_command (&output, "create", "scratch", size, NULL, NULL);
      if (status == 0) {
        scratch.exists = true;
        scratch.size = new_size;
      }
    }
    else if (rng_percent (rng, 40)) {
      scratch.other_size = 0;
      status = run_when_free (&output, "destroy", "scratch",
                              rng_percent (rng, 30) ? "--wait" : NULL, NULL);
      if (status == 0)
        scratch.exists = false;
    }
    else {
      fill_scratch (rng);
      status = run_when_free (&output, "resize", "scratch", size,
                              "--shrink");
      if (status == 0)
        scratch.size = new_size;
    }
    if (status != 0 && !atomic_load (&killing)) {
      fprintf (stderr, "nbdedup: status %d: %s\n", status, output);
      give_up ();
    }
    free (output);
    if (status != 0)
      break;
    scratch.unsure = false;
  }
  return NULL;
}

static json_t *
command_json (const char *command)
{
  json_error_t error;
  json_t *json;
  char *output;

  if (run_command (&output, command, "--json", NULL, NULL, NULL) != 0) {
    fprintf (stderr, "nbdedup %s --json: %s\n", command, output);
    give_up ();
  }
  json = json_loads (output, 0, &error);
  if (json == NULL) {
    fprintf (stderr, "nbdedup %s --json: no JSON: %s\n", command, output);
    give_up ();
  }
  free (output);
  return json;
}

static json_t *
find_volume (json_t *document, const char *name)
{
  json_t *v;
  size_t i;

  json_array_foreach (json_object_get (document, "volumes"), i, v)
    if (strcmp (json_string_value (json_object_get (v, "name")), name) == 0)
      return v;
  return NULL;
}

/* What a command that exited 0 did is still so. */
static void
check_scratch (void)
{
  json_t *list = command_json ("list");
  json_t *v = find_volume (list, "scratch");
  uint64_t size = v ? json_integer_value (json_object_get (v, "size")) : 0;

  if (scratch.exists ? size != scratch.size : size != 0) {
    if (!scratch.unsure || size != scratch.other_size) {
      fprintf (stderr, "volume scratch: found size %" PRIu64 ", expected "
               "%" PRIu64 " (0: does not exist)\n", size,
               scratch.exists ? scratch.size : 0);
      give_up ();
    }
  }
  scratch.exists = v != NULL;
  scratch.size = size;
  scratch.unsure = false;
  json_decref (list);
}

/* When each block has one state: does "stat" count as we do? */
static void
check_stat (void)
{
  json_t *stat = command_json ("stat"), *v;
  uint64_t i, expected, found;
  unsigned n;

  for (n = 0; n < NR_VOLUMES; ++n) {
    struct block_model *m = models[n];

    expected = 0;
    for (i = 0; i < m->nr_blocks; ++i)
      expected += m->blocks[i].states[0].data ? m->block_size : 0;
    v = find_volume (stat, m->name);
    found = json_integer_value (json_object_get (v, "logical_bytes"));
    if (v == NULL || found != expected) {
      fprintf (stderr, "volume %s: stat says logical_bytes %" PRIu64
               ", but it has %" PRIu64 " in blocks that are not zero\n",
               m->name, found, expected);
      give_up ();
    }
  }
  json_decref (stat);
}

/*----------------------------------------------------------------------
 * Rounds
 */

static void
start_server (struct rng *rng)
{
  static const char *const dirty[] = { "4M", "4M", "8M", "64M" };
  static const char *const ddt[] = { "8M", "8M", "16M", "256M" };
  static const char *const records[] = { "0", "1M", "64M" };
  static const char *const interval[] = { "0.02", "0.1", "1", "5" };
  static const char *const cache[] = { "all", "all", "metadata", "none" };
  static const char *const threads[] = { "1", "4", "16" };
  char key[6][PATH_MAX];
  char libraries[PATH_MAX * 2];

#define PICK(a) a[rng_below (rng, sizeof a / sizeof a[0])]
  snprintf (key[0], sizeof key[0], "pool=%s", pool);
  snprintf (key[1], sizeof key[1], "dirty-max=%s", PICK (dirty));
  snprintf (key[2], sizeof key[2], "ddt-cache=%s", PICK (ddt));
  snprintf (key[3], sizeof key[3], "record-cache=%s", PICK (records));
  snprintf (key[4], sizeof key[4], "commit-interval=%s", PICK (interval));
  snprintf (key[5], sizeof key[5], "primarycache=%s", PICK (cache));
  const char *argv[] = {
    "nbdkit", "-f", "-U", server.socket, "-t", PICK (threads),
    plugin, key[0], key[1], key[2], key[3], key[4], key[5], NULL
  };
  const char *script_argv[] = { server_script, server.socket, pool, NULL };

  snprintf (libraries, sizeof libraries, "%s%s%s", preload ? preload : "",
            preload && powercut ? ":" : "", powercut ? powercut : "");
  unlink (undo_path);
  unlink (server.socket);
  server.pid = process_start (server_script ? script_argv : argv, log_path,
                              libraries);
}

static void
kill_server (struct rng *rng)
{
  server_kill (&server);
  if (powercut)
    powercut_undo (undo_path, rng);
}

static struct nbd_handle *
connect_to (const char *name)
{
  struct nbd_handle *nbd = server_connect (&server, name, 60);

  if (nbd == NULL)
    give_up ();
  return nbd;
}

/* Read all of a volume, and its extents, and compare.  Adopt what is there.
 */
static void
verify_volume (struct block_model *m)
{
  struct nbd_handle *nbd = connect_to (m->name);
  uint64_t room = m->nr_blocks * m->block_size;
  uint8_t *data = xcalloc (1, room);
  struct extents e = { .model = m, .data = data };
  uint64_t i, n;
  unsigned bad = 0;

  if ((uint64_t) nbd_get_size (nbd) != m->size) {
    fprintf (stderr, "volume %s has size %" PRIi64 ", expected %" PRIu64
             "\n", m->name, nbd_get_size (nbd), m->size);
    give_up ();
  }
  for (i = 0; i < m->size; i += n) {
    n = m->size - i < (1 << 20) ? m->size - i : 1 << 20;
    if (nbd_pread (nbd, data + i, n, i, 0) == -1) {
      fprintf (stderr, "volume %s: reading %" PRIu64 " bytes at %" PRIu64
               ": %s\n", m->name, n, i, nbd_get_error ());
      give_up ();
    }
  }
  while (e.offset < m->size) {
    i = e.offset;
    if (nbd_block_status (nbd, m->size - i, i,
                          (nbd_extent_callback) { .callback = check_extents,
                                                  .user_data = &e },
                          0) == -1) {
      fprintf (stderr, "volume %s: block status: %s\n", m->name,
               nbd_get_error ());
      give_up ();
    }
    if (e.offset <= i || e.bad)
      give_up ();
  }
  for (i = 0; i < m->nr_blocks && bad < 5; ++i)
    bad += !block_model_check (m, i, data + i * m->block_size);
  if (bad)
    give_up ();

  for (i = 0; i < m->nr_blocks; ++i)
    block_model_adopt (m, i, data + i * m->block_size);
  nbd_shutdown (nbd, 0);
  nbd_close (nbd);
  free (data);
}

static void
verify (void)
{
  unsigned v;

  for (v = 0; v < NR_VOLUMES; ++v)
    verify_volume (models[v]);
}

/* Grow or shrink a volume that has no client. */
static void
resize_volume (struct block_model *m, struct rng *rng)
{
  uint64_t size = rng_between (rng, 4096, 40960) * 512;
  char text[32];

  snprintf (text, sizeof text, "%" PRIu64, size);
  /* nbdkit tells the plugin of a closed connection a moment later. */
  for (int tries = 0; ; ++tries) {
    char *output;
    int status = run_command (&output, "resize", m->name, text, "--shrink",
                              NULL);

    if (status == 0) {
      free (output);
      break;
    }
    if (tries == 100) {
      fprintf (stderr, "resize %s %s: %s\n", m->name, text, output);
      give_up ();
    }
    free (output);
    poll (NULL, 0, 50);
  }
  block_model_resize (m, size);
}

static void
load (struct rng *rng)
{
  const struct profile *profile = &profiles[rng_below (rng, NR_PROFILES)];
  unsigned nr = rng_between (rng, 4, MAX_THREADS), i, v;
  unsigned ms = rng_percent (rng, 5) ? rng_between (rng, 400, 2500) :
    rng_between (rng, 20, 400);
  bool admin = !server_script && rng_percent (rng, 55);
  /* Under a preloaded libasan nbdkit 1.32 hangs in libp11-kit's destructor,
   * after the pool is closed, if it has printed a text of strerror: so it
   * does with requests at work.
   */
  bool polite = rng_percent (rng, 8) && preload == NULL;
  struct worker workers[MAX_THREADS];
  struct rng admin_rng = rng_make (rng_next (rng), 99);
  pthread_t admin_thread;
  uint64_t ops = total_ops;

  atomic_store (&killing, false);
  atomic_store (&stop_administration, false);
  for (i = 0; i < nr; ++i) {
    workers[i] = (struct worker) {
      .id = i, .profile = profile, .rng = rng_make (rng_next (rng), i),
    };
    for (v = 0; v < NR_VOLUMES; ++v)
      workers[i].nbd[v] = connect_to (models[v]->name);
  }
  for (i = 0; i < nr; ++i)
    if (pthread_create (&workers[i].thread, NULL, work, &workers[i]) != 0)
      die ("pthread_create failed");
  if (admin &&
      pthread_create (&admin_thread, NULL, administrate, &admin_rng) != 0)
    die ("pthread_create failed");

  poll (NULL, 0, ms);
  /* A command that finds no server opens the pool itself: not while we
   * take its writes back.
   */
  if (admin && powercut) {
    atomic_store (&stop_administration, true);
    pthread_join (admin_thread, NULL);
  }
  atomic_store (&killing, true);
  if (!polite)
    kill_server (rng);
  else
    kill (server.pid, SIGTERM);

  for (i = 0; i < nr; ++i)
    pthread_join (workers[i].thread, NULL);
  if (admin && !powercut)
    pthread_join (admin_thread, NULL);
  for (i = 0; i < nr; ++i)
    for (v = 0; v < NR_VOLUMES; ++v)
      nbd_close (workers[i].nbd[v]);

  if (polite) {
    int status = process_wait (server.pid, 60, "the server");

    server.pid = 0;
    if (status != 0) {
      fprintf (stderr, "the server ended with status %d\n", status);
      give_up ();
    }
    for (v = 0; v < NR_VOLUMES; ++v)
      block_model_flushed (models[v], block_model_stamp ());
  }
  printf ("round %u: %s, %u threads, %u ms, %" PRIu64 " requests%s%s\n",
          round_nr, profile->name, nr, ms, total_ops - ops,
          admin ? ", commands" : "", polite ? ", SIGTERM" : "");
  fflush (stdout);
}

static void
do_round (void)
{
  struct rng rng = rng_make (seed, round_nr);
  unsigned i, nr_early = rng_percent (&rng, 15) ? rng_between (&rng, 1, 3) : 0;
  bool offline = rng_percent (&rng, 40);

  alarm (300);
  if (!server_script && offline && round_nr > 0)
    must_run ("check", NULL, NULL, NULL, NULL);
  for (i = 0; i < nr_early; ++i) {
    start_server (&rng);
    poll (NULL, 0, rng_between (&rng, 5, 80));
    kill_server (&rng);
  }
  start_server (&rng);
  verify ();
  if (!server_script) {
    check_scratch ();
    if (!offline && rng_percent (&rng, 60))
      must_run ("check", NULL, NULL, NULL, NULL);
    if (rng_percent (&rng, 30))
      check_stat ();
    if (rng_percent (&rng, 15))
      resize_volume (models[rng_below (&rng, NR_VOLUMES)], &rng);
  }
  load (&rng);
}

/* After the last crash: everything once more, and after a clean stop. */
static void
finish (void)
{
  struct rng rng = rng_make (seed, ~UINT64_C (0));
  int status, i;

  alarm (300);
  for (i = 0; i < 2; ++i) {
    start_server (&rng);
    verify ();
    if (!server_script) {
      check_scratch ();
      check_stat ();
      must_run ("scrub", NULL, NULL, NULL, NULL);
      must_run ("check", NULL, NULL, NULL, NULL);
    }
    kill (server.pid, SIGTERM);
    status = process_wait (server.pid, 60, "the server");
    server.pid = 0;
    if (status != 0) {
      fprintf (stderr, "the server ended with status %d\n", status);
      give_up ();
    }
    if (!server_script)
      must_run ("check", NULL, NULL, NULL, NULL);
  }
}

static void
make_volumes (void)
{
  static const char *const sectors[] = { "512", "512", "1024", "4096" };
  static const char *const hashes[] = { "sha256", "blake2b512" };
  static const char *const codecs[] = { "lz4", "lz4", "zstd", "none" };
  static const char *const dedups[] = { "on", "on", "verify", "off" };
  static const uint32_t large[] = { 16384, 65536, 131072 };
  struct rng volumes_rng = rng_make (seed, ~UINT64_C (1));
  struct rng *rng = &volumes_rng;
  uint32_t bs[NR_VOLUMES];
  char size[32], block[32], name[2] = "a", path[PATH_MAX];
  unsigned v;

  bs[0] = 4096;
  bs[1] = PICK (large);
  bs[2] = rng_percent (rng, 50) ? bs[0] : bs[1];
  if (!server_script) {
    const char *argv[] = {
      nbdedup, "init", pool, "--sector", PICK (sectors), "--hash",
      PICK (hashes), NULL
    };
    int status;
    char *output = command_output (argv, 60, &status);

    if (status != 0)
      die ("nbdedup init: %s", output);
    free (output);
  }
  for (v = 0; v < NR_VOLUMES; ++v) {
    uint64_t bytes = rng_between (rng, 16384, 49152) * 512;

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
    const char *argv[] = {
      nbdedup, "-p", pool, "create", name, size, "--block-size", block,
      "--compress", v == 2 ? PICK (codecs) : "lz4",
      "--dedup", v == 2 ? PICK (dedups) : "on", NULL
    };
    int status;
    char *output = command_output (argv, 60, &status);

    if (status != 0)
      die ("nbdedup create: %s", output);
    free (output);
  }
}

static _Noreturn void
usage (void)
{
  fprintf (stderr, "crash-model {--plugin FILE [--nbdedup FILE] | --server "
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
  unsigned v;
  int c;

  while ((c = getopt_long (argc, argv, "", options, NULL)) != -1)
    switch (c) {
    case 'p': plugin = optarg; break;
    case 'n': nbdedup = optarg; break;
    case 's': server_script = optarg; break;
    case 'c': powercut = optarg; break;
    case 'l': preload = optarg; break;
    default: usage ();
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
      asprintf (&undo_path, "%s/undo.log", dir) == -1)
    die ("%s: %s", argv[optind], strerror (errno));
  if (snprintf (server.socket, sizeof server.socket, "%s/sock", dir)
      >= (int) sizeof server.socket)
    die ("%s: too long for a Unix socket", dir);
  if (mkdir (pool, 0777) == -1)
    die ("%s: %s", pool, strerror (errno));
  if (powercut) {
    setenv ("POWERCUT_LOG", undo_path, 1);
    setenv ("POWERCUT_DIR", pool, 1);
  }

  make_volumes ();
  for (round_nr = 0; round_nr < rounds; ++round_nr)
    do_round ();
  finish ();
  for (v = 0; v < NR_VOLUMES; ++v)
    block_model_free (models[v]);
  printf ("%" PRIu64 " rounds, %" PRIu64 " requests, %" PRIu64 " MiB written: "
          "nothing lost\n", rounds, (uint64_t) total_ops,
          (uint64_t) total_bytes >> 20);
  return 0;
}

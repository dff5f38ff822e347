/* SPDX-License-Identifier: BSD-3-Clause */

/* Threads that write, zero, trim, read and flush until the server is gone, and
 * the verification afterwards.
 */

#include <config.h>

#include <inttypes.h>
#include <poll.h>
#include <signal.h>

#include "crash/crash-model.h"
#include "crash/powercut-undo.h"

#define MAX_THREADS 8
/* A server needs about as long to end. */
#define KILLED_ENDS_MS 100
#define MAX_REQUEST (UINT32_C (2) << 20)

static atomic_uint op_number;

/* The requests of a round, in per cent. */
struct profile {
  const char *name;
  unsigned flush, zero, trim, read, status; /* of all requests */
  unsigned fua, unaligned, hot;             /* of those that change data */
  unsigned max_blocks;
};

static const struct profile profiles[] = {
  /* clang-format off */
  /*            flush zero trim read status fua unal. hot blocks */
  { "mixed",        5,   8,   8,  12,    1, 10,  40,  20,   8 },
  { "database",    30,   2,   2,  10,    0, 40,  50,  70,   2 },
  { "no flush",     0,   4,   4,   5,    0,  0,  30,  10,  32 },
  { "bulk",         1,   2,   2,   3,    1,  1,  10,   0,  64 },
  { "discard",      4,  30,  30,  10,    3, 10,  40,  20,  48 },
  { "hot blocks",   8,   5,   5,  10,    0, 10,  80, 100,   3 },
  { "flush storm", 60,   3,   3,   5,    0, 30,  20,  20,   1 },
  /* clang-format on */
};
#define NR_PROFILES (sizeof profiles / sizeof profiles[0])

struct worker {
  pthread_t thread;
  unsigned id;
  struct rng rng;
  const struct profile *profile;
  struct nbd_handle *nbd[NR_VOLUMES];
};

/* A request failed.  If the server was not killed the test fails. */
static bool
request_failed (const char *what, const struct block_model *m,
                const struct model_op *op)
{
  if (is_dying ())
    return false;
  /* The server may have been killed between the answer and here. */
  fprintf (stderr,
           "volume %s: %s of %" PRIu64 " bytes at %" PRIu64 " failed: %s\n",
           m->name, what, op->len, op->offset, nbd_get_error ());
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
    len = rng_between (&w->rng, 1,
                       rng_percent (&w->rng, 50)
                         ? m->block_size
                         : 3 * (uint64_t) m->block_size);
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
    .kind = kind,
    .thread = w->id,
    .number = atomic_fetch_add (&op_number, 1),
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
      request_failed (kind == 'W'     ? "write"
                        : kind == 'Z' ? "zero"
                                      : "trim",
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
  const uint8_t *data; /* of the whole volume, or NULL */
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
      fprintf (stderr,
               "volume %s: extent of %u bytes at %" PRIu64
               " is reported as zero but is not\n",
               e->model->name, len, offset);
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
                                                .user_data = &e },
                        0) == -1)
    return request_failed ("block status", m, &op);
  if (!is_dying () && e.offset <= op.offset) {
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

struct nbd_handle *
connect_to (const char *name)
{
  struct nbd_handle *nbd = server_connect (&server, name, 60);

  if (nbd == NULL)
    give_up ();
  return nbd;
}

void
verify_volume (struct block_model *m)
{
  struct nbd_handle *nbd = connect_to (m->name);
  uint64_t room = m->nr_blocks * m->block_size;
  uint8_t *data = xcalloc (1, room);
  struct extents e = { .model = m, .data = data };
  uint64_t i, n;
  unsigned bad = 0;

  if ((uint64_t) nbd_get_size (nbd) != m->size) {
    fprintf (stderr, "volume %s has size %" PRIi64 ", expected %" PRIu64 "\n",
             m->name, nbd_get_size (nbd), m->size);
    give_up ();
  }
  for (i = 0; i < m->size; i += n) {
    n = m->size - i < (1 << 20) ? m->size - i : 1 << 20;
    if (nbd_pread (nbd, data + i, n, i, 0) == -1) {
      fprintf (stderr,
               "volume %s: reading %" PRIu64 " bytes at %" PRIu64 ": %s\n",
               m->name, n, i, nbd_get_error ());
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

void
verify (void)
{
  unsigned v;

  for (v = 0; v < NR_VOLUMES; ++v)
    verify_volume (models[v]);
}

/* Wait for the server after SIGTERM.  False: the power went first, or it was
 * killed.
 */
static bool
has_closed (bool may_be_cut)
{
  int status = process_wait (server.pid, 60, "the server");

  server.pid = 0;
  if (status == 128 + SIGKILL && may_be_cut)
    return false;
  if (status != 0) {
    fprintf (stderr, "the server ended with status %d\n", status);
    give_up ();
  }
  return true;
}

void
load (struct rng *rng)
{
  const struct profile *profile = &profiles[rng_below (rng, NR_PROFILES)];
  unsigned nr = rng_between (rng, 4, MAX_THREADS), i, v;
  unsigned ms = rng_percent (rng, 5) ? rng_between (rng, 400, 2500)
                                     : rng_between (rng, 20, 400);
  bool admin = !server_script && rng_percent (rng, 55);
  bool polite = rng_percent (rng,
                             (unsigned) number_from_environment ("ENDS", 8));
  bool closed = false, killed = false;
  /* The power may also go right after one of the next few changes. */
  uint64_t changes = powercut && rng_percent (rng, 40)
    ? rng_between (rng, 1, 60)
    : 0;
  struct worker workers[MAX_THREADS];
  struct rng admin_rng = rng_make (rng_next (rng), 99);
  pthread_t admin_thread;
  uint64_t ops = total_ops;

  atomic_store (&stop_administration, false);
  for (i = 0; i < nr; ++i) {
    workers[i] = (struct worker) {
      .id = i,
      .profile = profile,
      .rng = rng_make (rng_next (rng), i),
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
  if (changes && !polite) {
    atomic_store (&cut_is_near, true);
    powercut_after (undo_path, changes, false);
    server_ends_within (&server, 300);
  }
  atomic_store (&killing, true);
  if (polite) {
    kill (server.pid, SIGTERM);
    if (changes & 1)
      powercut_after (undo_path, changes, false);
    else if (changes)
      powercut_after (undo_path, 1 + changes % 3, true);
    killed = !powercut && rng_percent (rng, 50);
    if (killed) {
      poll (NULL, 0, (int) rng_below (rng, KILLED_ENDS_MS));
      kill (server.pid, SIGKILL);
    }
  }
  else
    server_kill (&server);

  for (i = 0; i < nr; ++i)
    pthread_join (workers[i].thread, NULL);
  if (admin)
    pthread_join (admin_thread, NULL);
  for (i = 0; i < nr; ++i)
    for (v = 0; v < NR_VOLUMES; ++v)
      nbd_close (workers[i].nbd[v]);

  if (polite)
    closed = has_closed (powercut || killed);
  if (closed)
    for (v = 0; v < NR_VOLUMES; ++v)
      block_model_flushed (models[v], block_model_stamp ());
  atomic_store (&killing, false);
  atomic_store (&cut_is_near, false);
  printf ("%s%u: %s, %u threads, %u ms, %" PRIu64 " requests%s%s%s\n",
          powercut ? "  cut in round " : "round ", round_nr, profile->name, nr,
          ms, total_ops - ops, admin ? ", commands" : "",
          polite ? ", SIGTERM" : "", polite && !closed ? " cut off" : "");
  fflush (stdout);
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* A file system that is full most of the time, because of the pool and of
 * another program, under a load that fills it as fast as it can.
 *
 *   full-model --plugin FILE --nbdedup FILE DIRECTORY ROUNDS
 *
 * DIRECTORY is on a small file system of its own.  In each round some
 * clients write, zero, trim and flush at random, each its own volume with
 * its own block size, while a neighbour takes the free space and frees it.
 *
 *  1. Writes may be refused with ENOSPC.  Nothing else may fail: no flush,
 *     no trim, no read.  Reads return the last answered write.
 *  2. The server is killed, or stopped, and the neighbour takes all free
 *     space.  "check" opens the pool and finds nothing, a server starts, and
 *     all flushed data is there (block-model.h).
 *  3. Sometimes a volume is destroyed while no space is free, and made again
 *     when there is room.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <libnbd.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "models/block-model.h"
#include "rigs/server-process.h"
#include "rigs/testutil.h"

#define MAX_REQUEST (256u << 10)
#define NR_DUPS 20
#define OPS_PER_ROUND 400

static const char *plugin, *nbdedup = "nbdedup", *preload;
static char *pool, *log_path, *other_path;
static uint64_t seed;
static struct server_process server;
static atomic_bool stop;

static struct client {
  const char *name, *block_size;
  uint64_t size;
  uint32_t block_bytes;
  struct block_model *model;
  struct nbd_handle *nbd;
  struct rng rng;
  unsigned number;
  uint64_t refused, accepted;
} clients[] = {
  { "small", "4K", 48u << 20, 4096, NULL, NULL, { 0 }, 0, 0, 0 },
  { "usual", "16K", 48u << 20, 16384, NULL, NULL, { 0 }, 0, 0, 0 },
  { "large", "1M", 32u << 20, 1u << 20, NULL, NULL, { 0 }, 0, 0, 0 },
};
#define NR_CLIENTS (sizeof clients / sizeof clients[0])

static int
try_command (const char *a1, const char *a2, const char *a3, const char *a4,
             const char *a5, char **output)
{
  const char *argv[] = { nbdedup, "-p", pool, a1, a2, a3, a4, a5, NULL };
  int status;

  *output = command_output (argv, 120, NULL, NULL, &status);
  return status;
}

static void
command (const char *a1, const char *a2, const char *a3, const char *a4,
         const char *a5)
{
  char *output;
  int status = try_command (a1, a2, a3, a4, a5, &output);

  if (status != 0)
    die ("SEED=%" PRIu64 " nbdedup %s %s: status %d: %s", seed, a1,
         a2 ? a2 : "", status, output);
  free (output);
}

/*----------------------------------------------------------------------
 * The neighbour
 */

static void
take_all (void)
{
  static uint8_t buf[4096];
  int fd = open (other_path, O_WRONLY | O_CREAT | O_APPEND, 0600);
  size_t step;

  if (fd == -1)
    return;
  for (step = 1 << 20; step >= sizeof buf; step /= 2)
    while (fallocate (fd, 0, lseek (fd, 0, SEEK_END), (off_t) step) == 0)
      ;
  while (write (fd, buf, sizeof buf) == (ssize_t) sizeof buf)
    ;
  close (fd);
}

static void *
neighbour (void *arg)
{
  struct rng rng = rng_make (seed, 1000);

  (void) arg;
  while (!stop) {
    if (rng_percent (&rng, 30))
      unlink (other_path);
    else
      take_all ();
    usleep ((useconds_t) rng_below (&rng, 100000));
  }
  return NULL;
}

/*----------------------------------------------------------------------
 * Clients
 */

static void
fail_op (const struct client *c, const char *what)
{
  die ("SEED=%" PRIu64 " %s: %s: %s", seed, c->name, what, nbd_get_error ());
}

static void
change (struct client *c)
{
  struct model_op op = { .kind = 'W', .number = c->number++ };
  uint8_t *buf = xmalloc (MAX_REQUEST);
  uint64_t size = c->size;
  int r;

  op.len = rng_percent (&c->rng, 50)
    ? 4096 * rng_between (&c->rng, 1, 8)
    : rng_between (&c->rng, 1, MAX_REQUEST / 4096) * 4096;
  op.offset = rng_below (&c->rng, (size - op.len) / 4096) * 4096;
  /* Unaligned requests to large blocks need a read, so send only a few. */
  if (rng_percent (&c->rng, 80)) {
    op.offset -= op.offset % c->block_bytes;
    if (op.offset + op.len > size)
      op.len = size - op.offset;
  }
  if (rng_percent (&c->rng, 10))
    op.kind = rng_percent (&c->rng, 50) ? 'Z' : 'T';
  op.fua = op.kind == 'W' && rng_percent (&c->rng, 2);

  fill_content (buf, op.len, c->block_bytes, NR_DUPS, &c->rng);
  block_model_begin (c->model, &op, op.kind == 'W' ? buf : NULL);
  if (op.kind == 'W')
    r = nbd_pwrite (c->nbd, buf, op.len, op.offset,
                    op.fua ? LIBNBD_CMD_FLAG_FUA : 0);
  else if (op.kind == 'Z')
    r = nbd_zero (c->nbd, op.len, op.offset, 0);
  else
    r = nbd_trim (c->nbd, op.len, op.offset, 0);
  free (buf);
  if (r == 0) {
    block_model_answered (c->model, &op);
    c->accepted++;
  }
  else if (nbd_get_errno () == ENOSPC) {
    c->refused++;
    /* A refused request may have done a part. */
    if (op.kind == 'T' && op.offset % c->block_bytes == 0 &&
        op.len % c->block_bytes == 0)
      fail_op (c, "trim");
  }
  else
    fail_op (c, "write");
}

static void
flush (struct client *c)
{
  uint64_t stamp = block_model_stamp ();

  if (nbd_flush (c->nbd, 0) == -1)
    fail_op (c, "flush");
  block_model_flushed (c->model, stamp);
}

static void *
client (void *arg)
{
  struct client *c = arg;
  unsigned i, nr = (unsigned) rng_between (&c->rng, 1, OPS_PER_ROUND);

  for (i = 0; i < nr; ++i)
    if (rng_percent (&c->rng, 4))
      flush (c);
    else
      change (c);
  return NULL;
}

static void
verify (struct client *c)
{
  uint32_t bs = c->model->block_size;
  uint8_t *buf = xcalloc (1, bs);
  uint64_t i;

  for (i = 0; i < c->model->nr_blocks; ++i) {
    if (nbd_pread (c->nbd, buf, bs, i * bs, 0) == -1)
      fail_op (c, "read");
    if (!block_model_check (c->model, i, buf))
      die ("SEED=%" PRIu64 " %s: block %" PRIu64 " is wrong", seed, c->name, i);
    block_model_adopt (c->model, i, buf);
  }
  free (buf);
}

/*----------------------------------------------------------------------*/

static void
make_volume (struct client *c)
{
  char size[32];

  snprintf (size, sizeof size, "%" PRIu64, c->size);
  command ("create", c->name, size, "--block-size", c->block_size);
  if (c->model)
    block_model_free (c->model);
  /* The model's blocks are those of requests: 4 KiB. */
  c->model = block_model_new (c->name, 4096, c->size);
}

static void
start_server (void)
{
  char key[PATH_MAX];
  const char *argv[] = {
    "nbdkit",       "-f", "-U", server.socket, plugin, key, "commit-interval=1",
    "dirty-max=8M", NULL
  };
  size_t i;

  snprintf (key, sizeof key, "pool=%s", pool);
  unlink (server.socket);
  server.pid = process_start (argv, log_path, preload);
  for (i = 0; i < NR_CLIENTS; ++i) {
    clients[i].nbd = server_connect (&server, clients[i].name, 60);
    if (clients[i].nbd == NULL)
      die ("SEED=%" PRIu64 " the server did not start", seed);
  }
}

static void
end_server (bool cleanly)
{
  size_t i;

  if (cleanly) {
    for (i = 0; i < NR_CLIENTS; ++i)
      flush (&clients[i]);
    kill (server.pid, SIGTERM);
    process_wait (server.pid, 60, "nbdkit");
    server.pid = 0;
  }
  else
    server_kill (&server);
  for (i = 0; i < NR_CLIENTS; ++i)
    nbd_close (clients[i].nbd);
}

static void
load (void)
{
  pthread_t threads[NR_CLIENTS], other;
  size_t i;

  stop = false;
  pthread_create (&other, NULL, neighbour, NULL);
  for (i = 0; i < NR_CLIENTS; ++i)
    pthread_create (&threads[i], NULL, client, &clients[i]);
  for (i = 0; i < NR_CLIENTS; ++i)
    pthread_join (threads[i], NULL);
  stop = true;
  pthread_join (other, NULL);
}

static void
round_of (unsigned nr)
{
  struct rng rng = rng_make (seed, 2000);
  bool cleanly = rng_percent (&rng, 30);
  struct client *c;
  size_t i;

  for (i = 0; i < NR_CLIENTS; ++i) {
    clients[i].rng = rng_make (seed, i);
    clients[i].refused = clients[i].accepted = 0;
  }
  load ();
  end_server (cleanly);
  take_all ();
  if (rng_percent (&rng, 50))
    command ("check", NULL, NULL, NULL, NULL);
  take_all ();
  start_server ();
  for (i = 0; i < NR_CLIENTS; ++i)
    verify (&clients[i]);
  if (rng_percent (&rng, 20)) {
    c = &clients[rng_below (&rng, NR_CLIENTS)];
    nbd_close (c->nbd);
    command ("destroy", c->name, "--wait", "--force", NULL);
    unlink (other_path);
    make_volume (c);
    c->nbd = server_connect (&server, c->name, 60);
  }
  for (i = 0; i < NR_CLIENTS; ++i)
    printf ("%s %" PRIu64 "+%" PRIu64 " ", clients[i].name, clients[i].accepted,
            clients[i].refused);
  printf ("round %u SEED=%" PRIu64 " %s\n", nr, seed,
          cleanly ? "stopped" : "killed");
  fflush (stdout);
}

int
main (int argc, char *argv[])
{
  static const struct option options[] = {
    { "plugin", required_argument, NULL, 'p' },
    { "nbdedup", required_argument, NULL, 'n' },
    { "preload", required_argument, NULL, 'l' },
    { NULL, 0, NULL, 0 },
  };
  unsigned rounds, i;
  size_t k;
  int c;

  while ((c = getopt_long (argc, argv, "", options, NULL)) != -1)
    switch (c) {
    case 'p':
      plugin = optarg;
      break;
    case 'n':
      nbdedup = optarg;
      break;
    case 'l':
      preload = optarg;
      break;
    default:
      return 2;
    }
  if (argc - optind != 2 || plugin == NULL) {
    fprintf (stderr,
             "usage: full-model --plugin FILE --nbdedup FILE "
             "[--preload FILE] DIRECTORY ROUNDS\n");
    return 2;
  }
  seed = seed_from_environment ();
  rounds = (unsigned) atoi (argv[optind + 1]);
  if (asprintf (&pool, "%s/pool", argv[optind]) == -1 ||
      asprintf (&log_path, "%s.server-log", argv[optind]) == -1 ||
      asprintf (&other_path, "%s/other", argv[optind]) == -1)
    die ("out of memory");
  snprintf (server.socket, sizeof server.socket, "%s.sock", argv[optind]);

  command ("init", NULL, NULL, NULL, NULL);
  for (k = 0; k < NR_CLIENTS; ++k)
    make_volume (&clients[k]);
  start_server ();
  for (i = 0; i < rounds; ++i, ++seed)
    round_of (i);
  unlink (other_path);
  end_server (true);
  command ("check", NULL, NULL, NULL, NULL);
  command ("scrub", NULL, NULL, NULL, NULL);
  for (k = 0; k < NR_CLIENTS; ++k)
    block_model_free (clients[k].model);
  return 0;
}

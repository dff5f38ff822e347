/* SPDX-License-Identifier: BSD-3-Clause */

/* Checks that a snapshot is one moment of all connections.
 *
 *   snapshot-moment SOCKET VOLUME NR COMMAND
 *
 * Threads write to a volume over several connections while "COMMAND
 * VOLUME@sN" is run NR times.  Each thread is a chain: it sends a write over
 * the next connection when the one before it is answered.  So a snapshot must
 * have the first writes of each chain, up to some number: at least those that
 * were answered when the command started, and at most those that were sent
 * when it ended.  The blocks have pieces of all chains in them.  At the end no
 * snapshot may have changed, although a client tried to write to it.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>

#include <libnbd.h>

#include "rigs/testutil.h"

#define PIECE 512 /* one write: inside a block */
#define CHAINS 3
#define CONNECTIONS 4
#define SLOTS 96 /* pieces of one chain, written in turn */

static struct nbd_handle *connections[CONNECTIONS];
static atomic_uint_fast64_t sent[CHAINS], answered[CHAINS];
static atomic_bool stop;
static uint64_t seed;

static struct nbd_handle *
connect_to (const char *sock, const char *name)
{
  struct nbd_handle *nbd = nbd_create ();

  if (nbd == NULL || nbd_set_export_name (nbd, name) == -1 ||
      nbd_connect_unix (nbd, sock) == -1)
    die ("%s: %s", name, nbd_get_error ());
  return nbd;
}

/* Write 'n' of a chain; 0 is the content before: zeroes. */
static void
fill_piece (uint8_t piece[PIECE], unsigned chain, uint64_t n)
{
  if (n == 0) {
    memset (piece, 0, PIECE);
    return;
  }
  fill_compressible (piece, PIECE, (uint64_t) chain << 48 ^ n ^ seed);
  memcpy (piece, &n, sizeof n);
}

static uint64_t
offset_of (unsigned chain, uint64_t slot)
{
  return (slot * CHAINS + chain) * PIECE;
}

static void *
run_chain (void *arg)
{
  const unsigned chain = (unsigned) (uintptr_t) arg;
  struct rng rng = rng_make (seed, chain);
  uint8_t piece[PIECE];
  struct nbd_handle *nbd;
  uint64_t n;

  for (n = 1; !stop; ++n) {
    nbd = connections[(n + chain) % CONNECTIONS];
    fill_piece (piece, chain, n);
    sent[chain] = n;
    if (nbd_pwrite (nbd, piece, PIECE, offset_of (chain, n % SLOTS), 0) == -1)
      die ("SEED=%" PRIu64 " write: %s", seed, nbd_get_error ());
    answered[chain] = n;
    if (rng_percent (&rng, 2) && nbd_flush (nbd, 0) == -1)
      die ("SEED=%" PRIu64 " flush: %s", seed, nbd_get_error ());
  }
  return NULL;
}

/* The writes of a chain that a snapshot has: 1 to the number returned. */
static uint64_t
writes_in (struct nbd_handle *nbd, const char *name, unsigned chain)
{
  static uint8_t found[SLOTS][PIECE], expected[PIECE];
  uint64_t slot, n, last = 0;

  for (slot = 0; slot < SLOTS; ++slot) {
    if (nbd_pread (nbd, found[slot], PIECE, offset_of (chain, slot), 0) == -1)
      die ("%s: read: %s", name, nbd_get_error ());
    memcpy (&n, found[slot], sizeof n);
    if (n > last)
      last = n;
  }
  for (slot = 0; slot < SLOTS; ++slot) {
    /* The last write up to 'last' that went to this slot. */
    n = last - (last + SLOTS - slot) % SLOTS;
    if (n > last)
      n = 0;
    fill_piece (expected, chain, n);
    if (memcmp (found[slot], expected, PIECE) != 0)
      die ("SEED=%" PRIu64 " %s has write %" PRIu64 " of chain %u, and not "
           "write %" PRIu64,
           seed, name, last, chain, n);
  }
  return last;
}

/* A client that ignores the flags that the server sent. */
static void
try_to_write (struct nbd_handle *nbd, const char *name)
{
  static const uint8_t piece[PIECE];

  if (nbd_is_read_only (nbd) != 1)
    die ("%s: not announced as read-only", name);
  nbd_set_strict_mode (nbd, 0);
  if (nbd_pwrite (nbd, piece, PIECE, 0, 0) == 0)
    die ("%s: a write was answered", name);
  if (nbd_get_errno () != EPERM && nbd_get_errno () != EROFS)
    die ("%s: write: %s", name, nbd_get_error ());
}

static void
look_at (const char *sock, const char *name, uint64_t last[CHAINS])
{
  struct nbd_handle *nbd = connect_to (sock, name);
  unsigned chain;

  for (chain = 0; chain < CHAINS; ++chain)
    last[chain] = writes_in (nbd, name, chain);
  try_to_write (nbd, name);
  nbd_close (nbd);
}

static void
take (const char *command, const char *name)
{
  char *line;
  int status;

  if (asprintf (&line, "%s '%s'", command, name) == -1)
    die ("out of memory");
  status = system (line);
  if (status != 0)
    die ("%s: status %d", line, status);
  free (line);
}

/* Take snapshot 'name' while the chains run. */
static void
take_and_look (const char *sock, const char *command, const char *name,
               uint64_t last[CHAINS])
{
  uint64_t least[CHAINS], most[CHAINS];
  unsigned chain;

  for (chain = 0; chain < CHAINS; ++chain)
    least[chain] = answered[chain];
  take (command, name);
  for (chain = 0; chain < CHAINS; ++chain)
    most[chain] = sent[chain];
  look_at (sock, name, last);
  for (chain = 0; chain < CHAINS; ++chain)
    if (last[chain] < least[chain] || last[chain] > most[chain])
      die ("SEED=%" PRIu64 " %s has write %" PRIu64 " of chain %u: it should "
           "be one of %" PRIu64 " to %" PRIu64,
           seed, name, last[chain], chain, least[chain], most[chain]);
}

int
main (int argc, char *argv[])
{
  pthread_t threads[CHAINS];
  uint64_t (*last)[CHAINS], now[CHAINS];
  struct rng rng;
  char name[64];
  unsigned i, nr;

  if (argc != 5)
    die ("usage: snapshot-moment SOCKET VOLUME NR COMMAND");
  nr = (unsigned) atoi (argv[3]);
  last = xcalloc (nr, sizeof last[0]);
  seed = seed_from_environment ();
  rng = rng_make (seed, CHAINS);
  printf ("SEED=%" PRIu64 "\n", seed);
  fflush (stdout);
  alarm (300);

  for (i = 0; i < CONNECTIONS; ++i)
    connections[i] = connect_to (argv[1], argv[2]);
  for (i = 0; i < CHAINS; ++i)
    if (pthread_create (&threads[i], NULL, run_chain, (void *) (uintptr_t) i) !=
        0)
      die ("pthread_create");
  for (i = 0; i < nr; ++i) {
    usleep ((useconds_t) rng_below (&rng, 100000));
    snprintf (name, sizeof name, "%s@s%u", argv[2], i);
    take_and_look (argv[1], argv[4], name, last[i]);
  }
  stop = true;
  for (i = 0; i < CHAINS; ++i)
    pthread_join (threads[i], NULL);

  for (i = 0; i < nr; ++i) {
    snprintf (name, sizeof name, "%s@s%u", argv[2], i);
    look_at (argv[1], name, now);
    if (memcmp (now, last[i], sizeof now) != 0)
      die ("SEED=%" PRIu64 " %s has changed", seed, name);
  }
  for (i = 0; i < CONNECTIONS; ++i)
    nbd_close (connections[i]);
  printf ("%u snapshots, %" PRIu64 " writes in the last\n", nr,
          nr == 0 ? 0 : last[nr - 1][0] + last[nr - 1][1] + last[nr - 1][2]);
  free (last);
  return EXIT_SUCCESS;
}

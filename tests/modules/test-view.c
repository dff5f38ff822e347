/* SPDX-License-Identifier: BSD-3-Clause */

/* A snapshot is the volume at one moment, and snapshots of two volumes are both
 * at the same one, while threads write.
 *
 * Several chains of writes run at once, most on volume v, the others on w.
 * Each chain is one write after the other, from any of several threads and
 * connections.  A write is 512 bytes that have its number and chain.  A
 * snapshot must have a prefix of each chain, and there must be a moment that
 * fits all chains: after the last write that it has of each began, and before
 * the first one that it lacks of each was answered.
 *
 * Meanwhile snapshots are cloned and destroyed, which merges layers below
 * the volume, and the volume is rebased; its content must not change.  Clones
 * are destroyed or rolled back while clients use them.  These clients must get
 * ESHUTDOWN and no other error.
 *
 * SEED and VIEW_SECONDS (default 4) come from the environment.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>

#include "rigs/pool-util.h"

#define NR_CHAINS 4 /* of v */
#define NR_OTHERS 2 /* of w */
#define NR_ALL (NR_CHAINS + NR_OTHERS)
#define NR_THREADS 6
#define NR_SLOTS 1361u /* prime, of 512 bytes, per chain */
#define SLOT 512u
#define CHAIN_BYTES (NR_SLOTS * SLOT) /* not aligned to blocks */
#define VOLUME_BYTES (NR_CHAINS * CHAIN_BYTES)
#define MAX_WRITES 2000000u
#define MAX_SNAPSHOTS 40u
#define NR_VICTIMS 2

struct chain {
  pthread_mutex_t lock;       /* protects what follows */
  uint32_t nr;                /* writes answered */
  uint64_t *began, *answered; /* ns, by number; owned */
};

static struct chain chains[NR_ALL];
struct nbdedup_pool *pool;
static char directory[PATH_MAX];
static uint64_t seed;
static atomic_bool stop;
static pthread_barrier_t victims_attach, victims_gone;

/*----------------------------------------------------------------------
 * Chains: write s of a chain goes to slot s * 7 % NR_SLOTS.
 */

static void
fill_slot (uint8_t buf[SLOT], unsigned chain, uint32_t s)
{
  fill_compressible (buf, SLOT, seed + ((uint64_t) chain << 32) + s);
  memcpy (buf, &s, sizeof s);
}

static uint64_t
slot_offset (unsigned chain, uint32_t s)
{
  return chain % NR_CHAINS * (uint64_t) CHAIN_BYTES +
    (uint64_t) s * 7 % NR_SLOTS * SLOT;
}

static void *
write_chains (void *arg)
{
  struct rng rng = rng_make (seed, 100 + (uintptr_t) arg);
  struct nbdedup_volume *volumes[] = { open_volume ("v"), open_volume ("w") };
  struct nbdedup_volume *v;
  uint8_t buf[SLOT];

  while (!atomic_load (&stop)) {
    unsigned n = rng_below (&rng, NR_ALL);
    struct chain *c = &chains[n];
    uint32_t s;

    v = volumes[n / NR_CHAINS];
    pthread_mutex_lock (&c->lock);
    if (c->nr + 2 < MAX_WRITES) {
      s = c->nr + 1;
      fill_slot (buf, n, s);
      c->began[s] = clock_ns ();
      must (nbdedup_volume_write (v, buf, SLOT, slot_offset (n, s)));
      c->answered[s] = clock_ns ();
      c->nr = s;
    }
    pthread_mutex_unlock (&c->lock);
    if (rng_percent (&rng, 1))
      must (nbdedup_volume_flush (v));
  }
  nbdedup_volume_close (volumes[0]);
  nbdedup_volume_close (volumes[1]);
  return NULL;
}

/* The number of the chain's writes in 'data'.  They must be a prefix. */
static uint32_t
prefix (const char *name, unsigned chain, const uint8_t *data)
{
  uint8_t expected[SLOT];
  const uint8_t *p;
  uint32_t s, last = 0, first;

  for (s = 1; s <= NR_SLOTS; ++s) {
    uint32_t found;

    memcpy (&found, data + slot_offset (chain, s), sizeof found);
    last = found > last ? found : last;
  }
  if (last >= MAX_WRITES)
    die ("SEED=%" PRIu64 " %s: chain %u has write %u", seed, name, chain, last);
  first = last > NR_SLOTS ? last - NR_SLOTS + 1 : 1;
  for (s = first; s < first + NR_SLOTS; ++s) {
    p = data + slot_offset (chain, s);
    if (s <= last)
      fill_slot (expected, chain, s);
    else
      memset (expected, 0, SLOT);
    if (memcmp (p, expected, SLOT) != 0) {
      memcpy (&first, p, sizeof first);
      die ("SEED=%" PRIu64 " %s: chain %u has write %u, but at %" PRIu64
           " where %u belongs it has %u",
           seed, name, chain, last, slot_offset (chain, s), s <= last ? s : 0,
           first);
    }
  }
  return last;
}

static void
read_some (const char *name, unsigned first, unsigned nr, uint32_t *has)
{
  struct nbdedup_volume *v = open_volume (name);
  uint8_t *data = xmalloc (VOLUME_BYTES);
  unsigned c;

  must (nbdedup_volume_read (v, data, VOLUME_BYTES, 0));
  for (c = 0; c < nr; ++c)
    has[c] = prefix (name, first + c, data);
  free (data);
  nbdedup_volume_close (v);
}

static void
read_chains (const char *name, uint32_t has[NR_CHAINS])
{
  read_some (name, 0, NR_CHAINS, has);
}

/* There must be a moment between 'asked' and 'done' at which the first 'nr'
 * chains had these writes and no others.
 */
static void
check_view (const char *name, const uint32_t *has, unsigned nr, uint64_t asked,
            uint64_t done)
{
  uint64_t earliest = asked, latest = done;
  unsigned c;

  for (c = 0; c < nr; ++c) {
    pthread_mutex_lock (&chains[c].lock);
    if (has[c] > 0 && chains[c].began[has[c]] > earliest)
      earliest = chains[c].began[has[c]];
    if (has[c] < chains[c].nr && chains[c].answered[has[c] + 1] < latest)
      latest = chains[c].answered[has[c] + 1];
    pthread_mutex_unlock (&chains[c].lock);
  }
  if (earliest > latest)
    die ("SEED=%" PRIu64 " %s is no single moment: it has a write that began "
         "%" PRIu64 " ns after another one was answered that it lacks, or is "
         "not from within the command's time",
         seed, name, earliest - latest);
}

/*----------------------------------------------------------------------
 * Clients that are cut off
 */

static void *
be_victim (void *arg)
{
  struct rng rng = rng_make (seed, 200 + (uintptr_t) arg);
  uint8_t *buf = xmalloc (65536);
  struct nbdedup_volume *v;
  uint64_t offset;
  int r;

  for (;;) {
    pthread_barrier_wait (&victims_attach);
    if (atomic_load (&stop))
      break;
    v = open_volume ("victim");
    pthread_barrier_wait (&victims_attach);
    do {
      offset = rng_below (&rng, VOLUME_BYTES - 65536);
      switch (rng_below (&rng, 8)) {
      case 0:
        r = nbdedup_volume_flush (v);
        break;
      case 1:
        r = nbdedup_volume_trim (v, 30000, offset);
        break;
      case 2:
      case 3:
        r = nbdedup_volume_read (v, buf, 65536, offset);
        break;
      default:
        fill_compressible (buf, 20000, rng_next (&rng));
        r = nbdedup_volume_write (v, buf, 20000, offset);
      }
    } while (r == 0);
    if (errno != ESHUTDOWN)
      die ("SEED=%" PRIu64 " a client that is cut off gets: %s (%s)", seed,
           nbdedup_error (), strerror (errno));
    nbdedup_volume_close (v);
    pthread_barrier_wait (&victims_gone);
  }
  free (buf);
  return NULL;
}

static void
cut_off_victims (const char *snapshot, struct rng *rng)
{
  struct timespec ts = { 0, rng_below (rng, 20 * 1000 * 1000) };
  uint32_t before[NR_CHAINS], after[NR_CHAINS];
  bool rollback = rng_percent (rng, 50);

  run ("clone",
       json_pack ("{s:s, s:s}", "snapshot", snapshot, "name", "victim"));
  if (rollback) {
    run ("snapshot", json_pack ("{s:s}", "name", "victim@back"));
    read_chains ("victim@back", before);
  }
  pthread_barrier_wait (&victims_attach);
  pthread_barrier_wait (&victims_attach);
  nanosleep (&ts, NULL);
  if (rollback)
    run ("rollback",
         json_pack ("{s:s, s:b}", "name", "victim@back", "force", 1));
  else
    run ("destroy", json_pack ("{s:s, s:b}", "name", "victim", "force", 1));
  pthread_barrier_wait (&victims_gone);
  if (rollback) {
    /* No write may arrive after the rollback. */
    read_chains ("victim", after);
    if (memcmp (before, after, sizeof before) != 0)
      die ("SEED=%" PRIu64 " rollback: not what the snapshot has", seed);
    run ("destroy", json_pack ("{s:s, s:b}", "name", "victim", "recursive", 1));
  }
}

/*----------------------------------------------------------------------
 * Administration
 */

struct taken {
  char name[32];
  uint32_t has[NR_CHAINS];
};

static void
take (struct taken *t, unsigned nr)
{
  uint64_t asked, done;

  snprintf (t->name, sizeof t->name, "v@%u", nr);
  asked = clock_ns ();
  run ("snapshot", json_pack ("{s:s}", "name", t->name));
  done = clock_ns ();
  read_chains (t->name, t->has);
  check_view (t->name, t->has, NR_CHAINS, asked, done);
}

/* The same with one of w, in either order. */
static void
take_both (struct taken *t, unsigned nr)
{
  uint32_t has[NR_ALL];
  uint64_t asked, done;
  char other[32];
  bool first = nr % 2;

  snprintf (t->name, sizeof t->name, "v@%u", nr);
  snprintf (other, sizeof other, "w@%u", nr);
  asked = clock_ns ();
  run ("snapshot",
       json_pack ("{s:[s, s]}", "names", first ? t->name : other,
                  first ? other : t->name));
  done = clock_ns ();
  read_chains (t->name, t->has);
  memcpy (has, t->has, sizeof t->has);
  read_some (other, NR_CHAINS, NR_OTHERS, has + NR_CHAINS);
  check_view (t->name, has, NR_ALL, asked, done);
  run ("destroy", json_pack ("{s:s}", "name", other));
}

static void
still_the_same (const char *name, const struct taken *t)
{
  uint32_t has[NR_CHAINS];

  read_chains (name, has);
  if (memcmp (has, t->has, sizeof has) != 0)
    die ("SEED=%" PRIu64 " %s: no longer what %s was", seed, name, t->name);
}

static void
administrate (uint64_t until, unsigned *nr_taken)
{
  struct rng rng = rng_make (seed, 1);
  struct taken taken[MAX_SNAPSHOTS];
  unsigned nr = 0, n, i;

  for (n = 0; clock_ns () < until; ++n) {
    while (nr == MAX_SNAPSHOTS || (nr > 0 && rng_percent (&rng, 40))) {
      i = rng_below (&rng, nr);
      still_the_same (taken[i].name, &taken[i]);
      run ("destroy",
           json_pack ("{s:s, s:b, s:b}", "name", taken[i].name, "force", 1,
                      "wait", rng_percent (&rng, 30)));
      taken[i] = taken[--nr];
    }
    if (rng_percent (&rng, 50))
      take (&taken[nr++], n);
    else
      take_both (&taken[nr++], n);
    i = rng_below (&rng, nr);
    if (rng_percent (&rng, 20)) {
      run ("clone",
           json_pack ("{s:s, s:s}", "snapshot", taken[i].name, "name", "c"));
      still_the_same ("c", &taken[i]);
      run ("snapshot", json_pack ("{s:s}", "name", "c@x"));
      /* v inherits from a clone of its own snapshot. */
      run ("rebase", json_pack ("{s:s, s:s}", "name", "v", "snapshot", "c@x"));
      run ("destroy",
           json_pack ("{s:s, s:b, s:b}", "name", "c", "recursive", 1, "force",
                      1));
    }
    if (rng_percent (&rng, 20))
      cut_off_victims (taken[i].name, &rng);
  }
  *nr_taken = n;
}

static void
check_end (void)
{
  uint32_t has[NR_ALL];
  unsigned c;

  read_chains ("v", has);
  read_some ("w", NR_CHAINS, NR_OTHERS, has + NR_CHAINS);
  for (c = 0; c < NR_ALL; ++c)
    if (has[c] != chains[c].nr)
      die ("SEED=%" PRIu64 " chain %u has %u writes, answered are %u", seed, c,
           has[c], chains[c].nr);
}

static void
open_pool (void)
{
  struct nbdedup_settings settings;

  nbdedup_settings_init (&settings);
  settings.nr_workers = 3;
  settings.commit_interval_ms = 100;
  pool = nbdedup_pool_open (directory, &settings, "test-view", 0);
  if (pool == NULL)
    die ("open: %s", nbdedup_error ());
}

static void
create (const char *name)
{
  run ("create",
       json_pack ("{s:s, s:i, s:i}", "name", name, "size", (int) VOLUME_BYTES,
                  "block-size", 4096 << seed % 3));
}

int
main (void)
{
  uint64_t ms = 1000 * number_from_environment ("VIEW_SECONDS", 4);
  pthread_t writers[NR_THREADS], victims[NR_VICTIMS];
  unsigned nr, total = 0;
  uintptr_t i;

  seed = seed_from_environment ();
  printf ("SEED=%" PRIu64 "\n", seed);
  fflush (stdout);
  make_directory (directory, usual_directory (), "test-view");
  must (nbdedup_pool_create (directory, NULL));
  open_pool ();
  create ("v");
  create ("w");
  pthread_barrier_init (&victims_attach, NULL, NR_VICTIMS + 1);
  pthread_barrier_init (&victims_gone, NULL, NR_VICTIMS + 1);
  for (i = 0; i < NR_ALL; ++i) {
    pthread_mutex_init (&chains[i].lock, NULL);
    chains[i].began = xcalloc (MAX_WRITES, sizeof (uint64_t));
    chains[i].answered = xcalloc (MAX_WRITES, sizeof (uint64_t));
  }
  for (i = 0; i < NR_THREADS; ++i)
    if (pthread_create (&writers[i], NULL, write_chains, (void *) i) != 0)
      die ("pthread_create failed");
  for (i = 0; i < NR_VICTIMS; ++i)
    if (pthread_create (&victims[i], NULL, be_victim, (void *) i) != 0)
      die ("pthread_create failed");
  administrate (clock_ns () + ms * 1000000, &nr);
  atomic_store (&stop, true);
  pthread_barrier_wait (&victims_attach);
  for (i = 0; i < NR_THREADS; ++i)
    pthread_join (writers[i], NULL);
  for (i = 0; i < NR_VICTIMS; ++i)
    pthread_join (victims[i], NULL);
  check_end ();
  check_pool ();
  must (nbdedup_pool_close (pool));
  open_pool ();
  check_end ();
  check_pool ();
  must (nbdedup_pool_close (pool));
  for (i = 0; i < NR_ALL; ++i)
    total += chains[i].nr;
  printf ("%u snapshots amid %u writes\n", nr, total);
  remove_directory (directory);
  return 0;
}

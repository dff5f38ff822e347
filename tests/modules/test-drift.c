/* SPDX-License-Identifier: BSD-3-Clause */

/* Drift is exact: random histories of volumes, snapshots and clones, beside
 * a model that keeps every content in memory (lineage-model.h).
 *
 * Every few operations the test runs "drift" for each golden image, by name and
 * all at once, with different memory limits, and compares the result with brute
 * force over the model's contents (drift-model.h).  Sometimes it compares
 * only_here_bytes and "drift-freed", of random sets of volumes and snapshots,
 * with the space that destroying them on a copy of the pool frees.  Sometimes
 * drift runs in a thread while operations go on: its result must be true of
 * one moment between its start and its end.
 *
 * ROUNDS and SEED come from the environment; each round is a history with a
 * pool of its own.  Without ROUNDS there are 150 rounds, or as many as start
 * within DRIFT_SECONDS (default 40; valgrind takes long).  DRIFT_ROUND and
 * DRIFT_VERIFY: see lineage-history.h.  LINEAGE_WITHOUT leaves out operations.
 */

#include <config.h>

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>

#include "drift/drift.h"
#include "models/drift-copy.h"
#include "models/drift-model.h"
#include "models/lineage-history.h"
#include "modules/drift-compare.h"

#define LARGE_BLOCKS 6000

static const struct {
  const char *name;
  lineage_weights weights;
} mixtures[] = {
  /* clang-format off */
  /*             cre wr zero tr flu snap cl rol des ren reb siz set dif att det */
  { "mixed",    { 2, 40, 4,  4,  1,  8, 12, 3,  6,  2,  4,  4,  3,  0,  0, 0 } },
  { "clones",   { 1, 40, 3,  3,  1,  6, 25, 2, 10,  1,  3,  3,  2,  0,  0, 0 } },
  { "chains",   { 1, 40, 3,  3,  1, 16, 16, 3, 16,  2,  2,  2,  2,  0,  0, 0 } },
  { "rebase",   { 2, 40, 4,  4,  1,  8, 12, 2,  5,  1, 20,  4,  2,  0,  0, 0 } },
  { "rollback", { 1, 40, 3,  3,  1, 10, 10, 16, 5,  1,  5,  4,  2,  0,  0, 0 } },
  { "resize",   { 1, 40, 5,  5,  1,  6, 10, 4,  4,  1,  4, 20,  2,  0,  0, 0 } },
  /* clang-format on */
};
#define NR_MIXTURES (sizeof mixtures / sizeof mixtures[0])

struct drift_met met;
struct drift_round config;
struct nbdedup_pool *pool;
struct lineage lineage;

/*----------------------------------------------------------------------
 * The pool
 */

static void
open_randomly (struct rng *rng)
{
  struct nbdedup_settings settings;

  nbdedup_settings_init (&settings);
  settings.drift_interval_s = 0;
  settings.commit_interval_ms = rng_between (rng, 30, 2000);
  settings.nr_workers = rng_between (rng, 1, 3);
  history_caches (&settings, rng);
  if (rng_percent (rng, 20))
    settings.primarycache = NBDEDUP_CACHE_NONE;
  pool = open_pool (history.directory, &settings);
}

static void
make_pool (struct rng *rng)
{
  static const char *const hashes[] = { "sha256", "sha512-256", "blake2b512" };
  json_t *options = json_pack ("{s:i, s:s}", "sector",
                               (int) config.sector_bytes, "hash",
                               hashes[rng_below (rng, 3)]);

  make_directory (history.directory, fast_directory (), "test-drift");
  if (nbdedup_pool_create (history.directory, options) == -1)
    die ("create: %s", nbdedup_error ());
  json_decref (options);
  open_randomly (rng);
}

/*----------------------------------------------------------------------
 * Destroying on a copy
 */

static void
ask_set (struct promise *p, struct rng *rng)
{
  json_t *names = json_array (), *args, *result;
  const struct node *node;

  for (p->nr = rng_between (rng, 1, MAX_SET);
       json_array_size (names) < p->nr;) {
    node = lineage.nodes[rng_below (rng, lineage.nr_nodes)];
    if (node->kind == NODE_HIDDEN)
      continue;
    node_name (node, p->names[json_array_size (names)]);
    json_array_append_new (names,
                           json_string (p->names[json_array_size (names)]));
  }
  args = json_pack ("{s:o}", "names", names);
  if (rng_percent (rng, 50))
    json_object_set_new (args, "memory", json_integer (DRIFT_MEMORY_MIN));
  result = call (pool, "drift-freed", args);
  p->destroyed = json_incref (json_object_get (result, "names"));
  p->freed_bytes = json_number (result, "freed_bytes");
  json_decref (result);
  met.sets++;
}

/* Get the only_here_bytes of a random clone of a random golden image. */
static bool
ask_only_here (struct promise *p, struct rng *rng)
{
  json_t *result = drift (NULL, rng), *doc, *clone;
  json_t *goldens = json_object_get (result, "goldens");
  bool found = json_array_size (goldens) > 0;

  if (found) {
    doc = json_array_get (goldens, rng_below (rng, json_array_size (goldens)));
    doc = json_object_get (doc, "clones");
    clone = json_array_get (doc, rng_below (rng, json_array_size (doc)));
    snprintf (p->names[0], sizeof p->names[0], "%s",
              json_string_value (json_object_get (clone, "name")));
    p->nr = 1;
    p->freed_bytes = json_number (clone, "only_here_bytes");
    met.only_here++;
  }
  json_decref (result);
  return found;
}

static void
compare_freed (struct rng *rng, unsigned nr)
{
  struct promise *p = xcalloc (nr, sizeof p[0]);
  bool drained = rng_percent (rng, 50);
  unsigned i;

  op_log_note (drained
                 ? "drain, compare what destroying gives back, close and open"
                 : "compare what destroying gives back, close and open");
  if (drained)
    drain (pool);
  for (i = 0; i < nr; ++i)
    if (!rng_percent (rng, 50) || !ask_only_here (&p[i], rng))
      ask_set (&p[i], rng);
  close_pool (pool);
  for (i = 0; i < nr; ++i) {
    met.freed_something += keep_promise (history.directory, &p[i]);
    json_decref (p[i].destroyed);
  }
  free (p);
  open_randomly (rng);
}

/*----------------------------------------------------------------------
 * One history
 */

static void
pick_config (struct rng *rng)
{
  static const char *const codecs[] = { "lz4", "lz4", "none", "zstd", NULL };
  unsigned kind = rng_below (rng, 100);

  config.compress = codecs[rng_below (rng, 5)];
  config.domain = rng_percent (rng, 15) ? "tenant" : NULL;
  config.sector_bytes = 512 << rng_below (rng, 5);
  config.block_size = kind < 45 ? 4096
    : kind < 80                 ? 4096 << rng_between (rng, 1, 4)
    : kind < 90                 ? 4096 << rng_between (rng, 5, 8)
                                : 0;
  config.max_blocks = config.block_size > 65536 ? 10
    : config.block_size == 0                    ? 40
    : rng_percent (rng, 50)                     ? 20
                                                : 150;
  if (history.nr % 16 == 5) {
    config.block_size = 4096;
    config.max_blocks = LARGE_BLOCKS;
  }
  if (config.sector_bytes > 4096 && config.block_size == 4096)
    config.sector_bytes = 4096;
}

static uint64_t
pick_size (struct rng *rng, uint32_t block_size)
{
  return rng_percent (rng, 50)
    ? rng_between (rng, 1, config.max_blocks) * block_size
    : rng_between (rng, 1, config.max_blocks * block_size / 512) * 512;
}

/* Adapt a random operation to this round.  False: leave it out. */
static bool
fit (struct op *op, struct rng *rng)
{
  struct node *node = lineage_find (&lineage, op->name);

  if (op->kind == OP_CREATE) {
    op->block_size = config.block_size
      ?: config.sector_bytes << rng_between (rng, 3, 5);
    op->size = pick_size (rng, op->block_size);
  }
  else if (op->kind == OP_RESIZE && node)
    op->size = pick_size (rng, node->block_size);
  else if (op->kind == OP_SET && config.compress)
    return strcmp (op->property, "compress") != 0;
  return true;
}

/* As engine_apply does, but with the round's properties. */
static int
create (const struct op *op)
{
  json_t *result = engine_call (pool, "create",
                                json_pack ("{s:s, s:I, s:i, s:s, s:s, s:s}",
                                           "name", op->name, "size",
                                           (json_int_t) op->size, "block-size",
                                           (int) op->block_size, "compress",
                                           config.compress ?: "lz4", "dedup",
                                           "on", "domain",
                                           config.domain ?: "none"));

  json_decref (result);
  return result ? 0 : -1;
}

static int
apply (const struct op *op)
{
  return op->kind == OP_CREATE ? create (op)
                               : engine_apply (pool, &lineage, op);
}

static bool
perform (const struct op *op)
{
  if (!history_try (&lineage, op, apply))
    return false;
  lineage_apply (&lineage, op);
  return true;
}

/* Copy blocks of one volume or snapshot, in any order, into another, or into
 * the same, so that some have moved and siblings share some.  A few are new.
 */
static void
scatter_from (struct node *node, const struct node *from, uint64_t max,
              struct rng *rng)
{
  uint64_t nr = node->size / node->block_size, b;
  struct op op = { .kind = OP_WRITE };
  uint32_t bs = node->block_size;

  if (nr == 0 || from->size == 0 || from->block_size != bs)
    return;
  snprintf (op.name, sizeof op.name, "%s", node->name);
  op.len = rng_between (rng, 1, nr < max ? nr : max) * bs;
  op.offset = rng_below (rng, nr - op.len / bs + 1) * bs;
  op.data = xmalloc (op.len);
  for (b = 0; b < op.len / bs; ++b)
    if (rng_percent (rng, 10))
      fill_compressible (op.data + b * bs, bs, rng_next (rng));
    else
      memcpy (op.data + b * bs,
              from->data + rng_below (rng, node_blocks (from)) * bs, bs);
  perform (&op);
  op_free (&op);
}

static void
scatter (struct rng *rng)
{
  struct node *node = lineage.nodes[rng_below (rng, lineage.nr_nodes)];
  struct node *from = rng_percent (rng, 40)
    ? node
    : lineage.nodes[rng_below (rng, lineage.nr_nodes)];

  if (node->kind == NODE_VOLUME)
    scatter_from (node, from, 40, rng);
}

/* Fill a new volume, so that something can drift. */
static void
fill (const struct op *create, struct rng *rng)
{
  struct op op = { .kind = OP_WRITE, .len = create->size };

  memcpy (op.name, create->name, sizeof op.name);
  op.data = xmalloc (op.len);
  fill_content (op.data, op.len, create->block_size, 30, rng);
  perform (&op);
  op_free (&op);
}

/*----------------------------------------------------------------------
 * One moment: drift, again and again, while operations go on
 */

#define MAX_STATES 40
#define STATE_BYTES (UINT64_C (256) << 20)

/* The result of one call, and the states of the model that it may have seen. */
struct sighting {
  json_t *result;       /* owned */
  unsigned first, last; /* inclusive */
};

static struct {
  struct lineage states[MAX_STATES];
  unsigned max_states;   /* that fit into STATE_BYTES, at least 2 */
  atomic_uint nr_states; /* finished */
  atomic_bool stop;
  struct sighting *sightings; /* owned; the thread's until joined */
  unsigned nr;
} meanwhile;

static void
push_state (void)
{
  unsigned nr = atomic_load (&meanwhile.nr_states);

  lineage_copy (&lineage, &meanwhile.states[nr]);
  atomic_store (&meanwhile.nr_states, nr + 1);
}

/* The number of states to keep: a state has the content of every node, so a
 * lineage of large volumes would need gigabytes.
 */
static unsigned
count_states (void)
{
  uint64_t bytes = 1, states;
  unsigned i;

  for (i = 0; i < lineage.nr_nodes; ++i)
    bytes += node_blocks (lineage.nodes[i]) * lineage.nodes[i]->block_size;
  states = STATE_BYTES / bytes;
  return states < 2 ? 2 : states < MAX_STATES ? states : MAX_STATES;
}

static void *
watch (void *arg)
{
  struct sighting s;
  struct rng rng = rng_make (history.seed, history.nr + UINT64_C (1000000));

  (void) arg;
  do {
    s.first = atomic_load (&meanwhile.nr_states) - 1;
    s.result = drift (NULL, &rng);
    s.last = atomic_load (&meanwhile.nr_states);
    meanwhile.sightings = realloc (meanwhile.sightings,
                                   (meanwhile.nr + 1) * sizeof s);
    if (meanwhile.sightings == NULL)
      die ("out of memory");
    /* Most calls fall between the same two operations: keep one of these. */
    if (meanwhile.nr > 0 && s.last <= s.first + 1 &&
        meanwhile.sightings[meanwhile.nr - 1].last == s.last)
      json_decref (s.result);
    else
      meanwhile.sightings[meanwhile.nr++] = s;
  } while (!atomic_load (&meanwhile.stop));
  return NULL;
}

/* False if an operation has several steps: a write of several blocks, or a
 * shrink.
 */
static bool
is_at_once (const struct op *op)
{
  const struct node *node = lineage_find (&lineage, op->name);

  switch (op->kind) {
  case OP_RESIZE:
    return false;
  case OP_WRITE:
  case OP_ZERO:
  case OP_TRIM:
    return node &&
      op->offset / node->block_size ==
      (op->offset + op->len - 1) / node->block_size;
  default:
    return true;
  }
}

/* Cut an operation down to a single block. */
static void
cut_to_block (struct op *op)
{
  const struct node *node = lineage_find (&lineage, op->name);

  if ((op->kind == OP_WRITE || op->kind == OP_ZERO || op->kind == OP_TRIM) &&
      node && op->len > node->block_size - op->offset % node->block_size)
    op->len = node->block_size - op->offset % node->block_size;
}

/* The engine may record answered writes in any order before a flush, so of two
 * such writes a moment may have the second one only.
 */
static void
perform_and_flush (const struct op *op)
{
  struct op flush = { .kind = OP_FLUSH };

  perform (op);
  if (op->kind == OP_WRITE || op->kind == OP_ZERO || op->kind == OP_TRIM) {
    memcpy (flush.name, op->name, sizeof flush.name);
    perform (&flush);
  }
}

static void
check_sighting (const struct sighting *s)
{
  unsigned i, nr = atomic_load (&meanwhile.nr_states);
  char why[400] = "";

  for (i = s->first; i <= s->last && i < nr; ++i)
    if (right_goldens (&meanwhile.states[i], s->result, why, sizeof why))
      break;
  if (i > s->last || i == nr)
    die ("drift while operations %u to %u of %u go on is true of no moment: "
         "%s\n%s",
         s->first, s->last, nr, why, json_dumps (s->result, JSON_INDENT (1)));
  met.sightings++;
  met.overlapping += s->last > s->first + 1;
}

static void
compare_meanwhile (struct rng *rng, const lineage_weights weights)
{
  pthread_t thread;
  struct op op;
  unsigned i;

  op_log_note ("drift again and again from here on");
  meanwhile.max_states = count_states ();
  atomic_store (&meanwhile.nr_states, 0);
  atomic_store (&meanwhile.stop, false);
  push_state ();
  if (pthread_create (&thread, NULL, watch, NULL) != 0)
    die ("pthread_create failed");
  while (atomic_load (&meanwhile.nr_states) < meanwhile.max_states) {
    lineage_random (&lineage, weights, rng, &op);
    cut_to_block (&op);
    if (fit (&op, rng) && is_at_once (&op)) {
      perform_and_flush (&op);
      push_state ();
    }
    op_free (&op);
  }
  atomic_store (&meanwhile.stop, true);
  pthread_join (thread, NULL);
  op_log_note ("until here");
  for (i = 0; i < meanwhile.nr; ++i) {
    check_sighting (&meanwhile.sightings[i]);
    json_decref (meanwhile.sightings[i].result);
  }
  free (meanwhile.sightings);
  meanwhile.sightings = NULL;
  meanwhile.nr = 0;
  for (i = 0; i < atomic_load (&meanwhile.nr_states); ++i)
    lineage_free (&meanwhile.states[i]);
}

static void
check (void)
{
  json_t *result = call (pool, "check", NULL);

  if (json_number (result, "errors") != 0)
    die ("check found errors");
  json_decref (result);
}

/* Begin with a family that does not fit into the minimum of memory. */
static void
make_large_family (struct rng *rng)
{
  struct op create = { .kind = OP_CREATE,
                       .name = "a",
                       .size = LARGE_BLOCKS * UINT64_C (4096),
                       .block_size = 4096 };
  struct op snapshot = { .kind = OP_SNAPSHOT, .name = "a@s0" };
  struct op clone = {
    .kind = OP_CLONE, .name = "a@s0", .other = "b", .count = 4, .start = 1
  };
  struct node *golden;
  char name[8];
  unsigned i;

  perform (&create);
  fill (&create, rng);
  perform (&snapshot);
  perform (&clone);
  golden = lineage_find (&lineage, "a@s0");
  for (i = 1; i <= clone.count; ++i) {
    snprintf (name, sizeof name, "b%u", i);
    scatter_from (lineage_find (&lineage, name), golden, LARGE_BLOCKS, rng);
    scatter_from (lineage_find (&lineage, name), golden, LARGE_BLOCKS, rng);
  }
  compare_all (rng);
  compare_each (rng);
}

static void
run_history (struct rng *rng)
{
  unsigned m = rng_below (rng, NR_MIXTURES), n, nr;
  struct op op;

  pick_config (rng);
  lineage.max_named = config.max_blocks == LARGE_BLOCKS
    ? 8
    : rng_between (rng, 6, 25);
  lineage.max_blocks = config.max_blocks;
  nr = config.block_size > 65536 || config.max_blocks == LARGE_BLOCKS
    ? rng_between (rng, 20, 60)
    : rng_between (rng, 30, 250);
  op_log_clear ();
  make_pool (rng);
  if (config.max_blocks == LARGE_BLOCKS)
    make_large_family (rng);
  for (n = 0; n < nr; ++n) {
    lineage_random (&lineage, mixtures[m].weights, rng, &op);
    if (fit (&op, rng) && perform (&op) && op.kind == OP_CREATE &&
        rng_percent (rng, 70))
      fill (&op, rng);
    op_free (&op);
    if (rng_percent (rng, 20) && lineage.nr_nodes > 0)
      scatter (rng);
    if (rng_percent (rng, 7) || history.verify_each)
      compare (rng);
    if (rng_percent (rng, 1) && lineage.nr_nodes > 0)
      compare_freed (rng, 2);
  }
  if (config.block_size <= 65536 && config.max_blocks <= 200 &&
      rng_percent (rng, 40))
    compare_meanwhile (rng, mixtures[m].weights);
  compare_all (rng);
  compare_each (rng);
  if (lineage.nr_nodes > 0)
    compare_freed (rng, 3);
  compare (rng);
  check ();
  printf ("round %u: %s, blocks of %u, sectors of %u, %s: %u operations, "
          "%u nodes\n",
          history.nr, mixtures[m].name, config.block_size, config.sector_bytes,
          config.compress ?: "any", op_log_nr (), lineage.nr_nodes);
  fflush (stdout);
  close_pool (pool);
  lineage_free (&lineage);
  remove_directory (history.directory);
}

/* Check that everything that the histories are for occurred. */
static void
check_met (unsigned rounds)
{
  printf ("%" PRIu64 " families (%" PRIu64
          " more are open to doubt) with %" PRIu64 " clones: %" PRIu64
          " of clones, %" PRIu64 " of destroyed "
          "snapshots, %" PRIu64 " without dedup\nblocks: zero %" PRIu64
          ", golden_same %" PRIu64 ", golden_moved %" PRIu64
          ", sibling %" PRIu64 ", unique %" PRIu64
          "\ndestroyed golden images: %" PRIu64 ", %" PRIu64
          " more had merged\ndestroyed on copies: %" PRIu64 " clones, %" PRIu64
          " sets; %" PRIu64 " gave something back\n"
          "%" PRIu64 " families had to be sorted in pieces; drift while "
          "others worked: %" PRIu64 " times, %" PRIu64 " of them really\n",
          met.families, met.unsure, met.clones, met.further,
          met.through_destroyed, met.without_dedup, met.zero, met.golden_same,
          met.golden_moved, met.sibling, met.unique, met.destroyed, met.merged,
          met.only_here, met.sets, met.freed_something, met.large,
          met.sightings, met.overlapping);
  if (rounds < 100)
    return;
  if (met.unsure * 10 > met.families + met.unsure)
    die ("too much was open to doubt");
  if (met.further == 0 || met.through_destroyed == 0 ||
      met.without_dedup == 0 || met.zero == 0 || met.golden_same == 0 ||
      met.golden_moved == 0 || met.sibling == 0 || met.unique == 0 ||
      met.destroyed == 0 || met.merged == 0 || met.only_here == 0 ||
      met.sets == 0 || met.freed_something == 0 || met.large == 0 ||
      met.overlapping == 0)
    die ("something was never met");
}

/* True if the time is up and ROUNDS is not set. */
static bool
is_late (time_t start)
{
  const char *rounds = getenv ("ROUNDS");
  time_t seconds = (time_t) number_from_environment ("DRIFT_SECONDS", 40);

  return (rounds == NULL || rounds[0] == '\0') && time (NULL) - start > seconds;
}

int
main (void)
{
  unsigned rounds = number_from_environment ("ROUNDS", 150), first;
  time_t start = time (NULL);
  struct rng rng;

  history_start ("DRIFT_ROUND", "DRIFT_VERIFY");
  first = history.nr;
  for (; history.nr < first + rounds && !is_late (start); ++history.nr) {
    rng = history_rng ();
    run_history (&rng);
  }
  check_met (history.nr - first);
  history_passed ();
  return 0;
}

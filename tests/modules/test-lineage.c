/* SPDX-License-Identifier: BSD-3-Clause */

/* Random histories of volumes, snapshots and clones, beside a model that
 * keeps every content in memory (lineage-model.h).
 *
 * Each history has a pool, settings and a mixture of operations of its own.
 * Every few operations all bytes, names, origins, sizes and figures are
 * compared, "check" runs, and in pools with one block size the number of
 * records must become exactly the number of distinct contents, once the space
 * of everything destroyed is free.  In the end all is destroyed, in any
 * order, and nothing may be left.
 *
 * SEED and LINEAGE_SECONDS (default 6) come from the environment, and
 * LINEAGE_HISTORY and LINEAGE_VERIFY: see lineage-history.h.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>

#include "models/lineage-history.h"
#include "rigs/pool-util.h"

static const struct {
  const char *name;
  lineage_weights weights;
} mixtures[] = {
  /* clang-format off */
  /*             cre wr zero tr flu snap cl rol des ren reb siz set dif att det */
  { "mixed",    { 3, 30, 4,  4,  3,  9, 8,  4,  8,  3,  4,  4,  2,  5,  2, 2 } },
  { "deep",     { 1, 30, 4,  4,  2, 30, 2,  3,  8,  1,  2,  2,  1,  4,  1, 1 } },
  { "clones",   { 2, 25, 3,  3,  2,  6, 20, 2, 14,  2,  4,  3,  1,  2,  1, 1 } },
  { "rebase",   { 3, 25, 5,  5,  1,  8, 8,  2,  6,  1, 20,  4,  1,  2,  1, 1 } },
  { "resize",   { 3, 25, 5,  5,  1,  8, 8,  4,  5,  1,  4, 20,  1,  3,  1, 1 } },
  { "rollback", { 2, 25, 3,  3,  1, 12, 5, 20,  8,  1,  3,  4,  1,  3,  2, 2 } },
  { "destroy",  { 4, 25, 3,  3,  1, 15, 12, 3, 30,  2,  3,  2,  1,  1,  2, 2 } },
  /* clang-format on */
};
#define NR_MIXTURES (sizeof mixtures / sizeof mixtures[0])

struct nbdedup_pool *pool;
static struct lineage lineage;
static struct nbdedup_settings settings;

static void
compare (void)
{
  char why[400];

  if (!engine_compare (pool, &lineage, why, sizeof why))
    die ("%s", why);
}

/* Wait until all space is freed: references of what was destroyed are given up,
 * and layers without a name are merged with their only child.
 */
static void
drain (void)
{
  uint64_t distinct = lineage_distinct (&lineage), records, freeing;
  unsigned tries;

  for (tries = 0;; ++tries) {
    freeing = pool_figure ("freeing_bytes");
    records = pool_figure ("records");
    if (records < distinct)
      die ("%" PRIu64 " records for %" PRIu64 " distinct contents", records,
           distinct);
    if (freeing == 0 && (lineage.block_size == 0 || records == distinct))
      return;
    if (tries == 1000)
      die ("still %" PRIu64 " records for %" PRIu64 " distinct contents, "
           "freeing_bytes %" PRIu64,
           records, distinct, freeing);
    poll (NULL, 0, 20);
  }
}

/*----------------------------------------------------------------------
 * Clients
 */

static void
detach (struct node *node)
{
  nbdedup_volume_close (node->handle);
  node->handle = NULL;
}

/* A forced destroy or rollback cuts off the clients. */
static void
expect_cut_off (struct node *node)
{
  uint8_t byte = 0;

  if (node->handle == NULL)
    return;
  if (nbdedup_volume_read (node->handle, &byte, 1, 0) != -1 ||
      errno != ESHUTDOWN)
    die ("%s: a client can still read", node->name);
  if (!nbdedup_volume_is_readonly (node->handle) &&
      (nbdedup_volume_write (node->handle, &byte, 1, 0) != -1 ||
       errno != ESHUTDOWN))
    die ("%s: a client can still write", node->name);
  if (nbdedup_volume_flush (node->handle) != -1 || errno != ESHUTDOWN)
    die ("%s: a client can still flush", node->name);
  detach (node);
}

static void
cut_off (const struct op *op)
{
  struct node *node = lineage_find (&lineage, op->name);
  unsigned i;

  if (op->kind == OP_ROLLBACK)
    expect_cut_off (node->volume);
  else if (op->kind == OP_DESTROY)
    for (i = 0; i < lineage.nr_nodes; ++i)
      if (lineage.nodes[i] == node || lineage.nodes[i]->volume == node)
        expect_cut_off (lineage.nodes[i]);
}

static void
attach_or_detach (const struct op *op)
{
  struct node *node = lineage_find (&lineage, op->name);

  if (op->kind == OP_ATTACH && node->handle == NULL) {
    node->handle = open_volume (op->name);
  }
  else if (op->kind == OP_DETACH && node->handle)
    detach (node);
}

/*----------------------------------------------------------------------
 * One operation
 */

static void
check_own_bytes (const char *name)
{
  uint64_t n = engine_own_bytes (pool, name);

  if (n != 0)
    die ("%s: own_bytes is %" PRIu64 " right after it was made", name, n);
}

static void
check_volume_of (const char *snapshot)
{
  char name[64];

  snprintf (name, sizeof name, "%.*s", (int) strcspn (snapshot, "@"), snapshot);
  check_own_bytes (name);
}

static void
after (const struct op *op)
{
  char name[64];

  if (op->kind == OP_SNAPSHOT) {
    check_volume_of (op->name);
    if (op->other[0])
      check_volume_of (op->other);
  }
  else if (op->kind == OP_CLONE) {
    snprintf (name, sizeof name, "%.47s", op->other);
    if (op->count)
      snprintf (name, sizeof name, "%.47s%u", op->other,
                op->start + op->count - 1);
    check_own_bytes (name);
  }
  else if (op->kind == OP_ROLLBACK)
    check_volume_of (op->name);
  else if (op->kind == OP_DESTROY && op->wait &&
           pool_figure ("freeing_bytes") != 0)
    die ("freeing_bytes is not 0 after destroy --wait");
}

static int
apply (const struct op *op)
{
  return engine_apply (pool, &lineage, op);
}

static bool
perform (const struct op *op)
{
  if (op->kind == OP_ATTACH || op->kind == OP_DETACH) {
    op_describe (op, op_log_next (), OP_LOG_TEXT);
    attach_or_detach (op);
    return true;
  }
  lineage.figures = op->kind == OP_REBASE && lineage.block_size &&
    lineage_expect (&lineage, op) == EXPECT_OK;
  if (lineage.figures)
    drain ();
  if (!history_try (&lineage, op, apply))
    return false;
  cut_off (op);
  lineage_apply (&lineage, op);
  after (op);
  return true;
}

/* Destroy, with --dry-run first, which must predict the space that is freed. */
static void
destroy_measured (struct op *op)
{
  uint64_t stored, left, promised;
  json_t *dry;

  drain ();
  stored = pool_figure ("stored_bytes");
  dry = call ("destroy",
              json_pack ("{s:s, s:b, s:b, s:b}", "name", op->name, "recursive",
                         (int) op->recursive, "force", (int) op->force,
                         "dry-run", 1));
  promised = json_number (dry, "freed_bytes");
  json_decref (dry);
  if (pool_figure ("stored_bytes") != stored)
    die ("destroy --dry-run did something");
  op->wait = true;
  if (!perform (op))
    die ("%s: works with --dry-run only", op->name);
  drain ();
  left = pool_figure ("stored_bytes");
  if (stored - left != promised)
    die ("destroy %s: --dry-run said %" PRIu64 " bytes, freed are %" PRIu64,
         op->name, promised, stored - left);
}

/*----------------------------------------------------------------------
 * One history
 */

static void
pick_settings (struct rng *rng)
{
  nbdedup_settings_init (&settings);
  history_caches (&settings, rng);
  settings.commit_interval_ms = rng_between (rng, 30, 2000);
  settings.primarycache = rng_percent (rng, 70) ? NBDEDUP_CACHE_ALL
    : rng_percent (rng, 50)                     ? NBDEDUP_CACHE_METADATA
                                                : NBDEDUP_CACHE_NONE;
  /* Two workers may make two records of one content. */
  settings.nr_workers = lineage.block_size ? 1 : rng_between (rng, 1, 4);
}

static void
open_pool (void)
{
  pool = nbdedup_pool_open (history.directory, &settings, "test-lineage", 0);
  if (pool == NULL)
    die ("open: %s", nbdedup_error ());
}

static void
close_pool (void)
{
  unsigned i;

  for (i = 0; i < lineage.nr_nodes; ++i)
    if (lineage.nodes[i]->handle)
      detach (lineage.nodes[i]);
  if (nbdedup_pool_close (pool) == -1)
    die ("close: %s", nbdedup_error ());
}

static void
reopen (struct rng *rng)
{
  close_pool ();
  pick_settings (rng);
  open_pool ();
  op_log_note ("close and open");
}

static void
make_pool (struct rng *rng)
{
  json_t *options = json_pack ("{s:i}", "sector", 512 << rng_below (rng, 4));

  make_directory (history.directory, usual_directory (), "test-lineage");
  if (nbdedup_pool_create (history.directory, options) == -1)
    die ("create: %s", nbdedup_error ());
  json_decref (options);
}

static void
destroy_all (struct rng *rng)
{
  struct op op;
  char buf[64];

  while (lineage.nr_nodes > 0) {
    struct node *n = lineage.nodes[rng_below (rng, lineage.nr_nodes)];

    if (n->kind == NODE_HIDDEN)
      continue;
    op = (struct op) { .kind = OP_DESTROY,
                       .force = true,
                       .recursive = rng_percent (rng, 50),
                       .wait = rng_percent (rng, 10) };
    snprintf (op.name, sizeof op.name, "%.47s", node_name (n, buf));
    perform (&op);
    if (rng_percent (rng, 5))
      compare ();
  }
  drain ();
  if (pool_figure ("records") != 0 || pool_figure ("stored_bytes") != 0)
    die ("%" PRIu64 " records are left of nothing", pool_figure ("records"));
  check_pool ();
}

static void
run_history (struct rng *rng, uint64_t until)
{
  unsigned m = rng_below (rng, NR_MIXTURES), n, nr = rng_between (rng, 60, 500);
  static const uint32_t sizes[] = { 4096, 4096, 8192, 16384, 65536 };
  struct op op;

  lineage.block_size = rng_percent (rng, 60) ? sizes[rng_below (rng, 5)] : 0;
  lineage.max_blocks = rng_percent (rng, 50) ? 20 : 200;
  lineage.max_named = rng_percent (rng, 30) ? 70 : 25;
  lineage.attach = true;
  op_log_clear ();
  pick_settings (rng);
  make_pool (rng);
  open_pool ();
  for (n = 0; n < nr && clock_ms () < until; ++n) {
    lineage_random (&lineage, mixtures[m].weights, rng, &op);
    if (op.kind == OP_DESTROY && lineage.block_size && rng_percent (rng, 25) &&
        lineage_expect (&lineage, &op) == EXPECT_OK)
      destroy_measured (&op);
    else
      perform (&op);
    op_free (&op);
    if (rng_percent (rng, 1))
      reopen (rng);
    if (rng_percent (rng, 8) || history.verify_each)
      compare ();
    if (rng_percent (rng, 3) || history.verify_each)
      check_pool ();
    if (rng_percent (rng, 3))
      drain ();
  }
  compare ();
  reopen (rng);
  compare ();
  drain ();
  check_pool ();
  printf ("history %u: %s, %u operations, %u nodes\n", history.nr,
          mixtures[m].name, op_log_nr (), lineage.nr_nodes);
  fflush (stdout);
  destroy_all (rng);
  close_pool ();
}

int
main (void)
{
  uint64_t until = clock_ms () +
    1000 * number_from_environment ("LINEAGE_SECONDS", 6);
  struct rng rng;

  for (history_start ("LINEAGE_HISTORY", "LINEAGE_VERIFY"); clock_ms () < until;
       ++history.nr) {
    rng = history_rng ();
    run_history (&rng, until);
    remove_directory (history.directory);
  }
  history_passed ();
  return 0;
}

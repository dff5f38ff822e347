/* SPDX-License-Identifier: BSD-3-Clause */

/* What following advice would free (drift/advise.h) is what following it frees.
 *
 * Random fleets: clones that have written, trimmed and taken snapshots, a newer
 * snapshot of the golden image or another golden image, blocks that were
 * written without dedup or with another compression.  A client asks, over
 * control.sock or in this process; then one piece of advice, picked at random,
 * is followed with the commands that a user has, and the pool must shrink by
 * exactly the promised bytes.  The blocks that clones would have of their own
 * are counted after rebasing for real.
 *
 * ROUNDS and SEED come from the environment.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <limits.h>

#include "core/engine.h"
#include "data/sync.h"
#include "rigs/pool-util.h"
#include "volume/merge.h"

#define CLONES_MAX 5u
#define NR_BLOCKS 300u /* several leaves */
#define NR_CONTENTS 600u
#define BLOCK_MAX 65536u
#define RANGES_MAX 64u

struct nbdedup_pool *pool;
static char directory[PATH_MAX];
static struct rng rng;
static uint64_t seed;
static uint32_t block_size;
static unsigned nr_clones;
static const char *const codecs[] = { "none", "zstd", "lz4" };
static bool settled;      /* nothing is being freed or merged */
static const char *today; /* all volumes' compression in the end */
static struct {
  unsigned zeroed, zeroed_one, copied, rebased, promoted, destroyed, joined,
    compressed;
} met;

static const char *
clone_name (unsigned i)
{
  static char name[16];

  snprintf (name, sizeof name, "clone%u", i);
  return name;
}

/* Blocks from a few contents, some zero at an end, so that zeroing a part of
 * one often gives another.
 */
static void
write_some (const char *name, unsigned percent)
{
  struct nbdedup_volume *v = open_volume (name);
  const uint64_t size = nbdedup_volume_size (v);
  uint8_t buf[BLOCK_MAX];
  unsigned block;

  for (block = 0; block < NR_BLOCKS; ++block) {
    const uint64_t left = size - (uint64_t) block * block_size;

    if (!rng_percent (&rng, percent))
      continue;
    fill_compressible (buf, block_size, 1 + rng_below (&rng, NR_CONTENTS));
    if (rng_percent (&rng, 30))
      memset (buf + block_size / 2, 0, block_size / 2);
    if (rng_percent (&rng, 5))
      memset (buf, 0, block_size);
    must (
      nbdedup_volume_write (v, buf,
                            left < block_size ? (uint32_t) left : block_size,
                            size - left));
  }
  must (nbdedup_volume_flush (v));
  nbdedup_volume_close (v);
}

static void
set_property (const char *name, const char *property, const char *value)
{
  run ("set",
       json_pack ("{s:s,s:s,s:s}", "name", name, "property", property, "value",
                  value));
}

static void
create (const char *name, bool with_tail)
{
  run ("create",
       json_pack ("{s:s,s:I,s:i}", "name", name, "size",
                  (json_int_t) NR_BLOCKS * block_size - (with_tail ? 512 : 0),
                  "block-size", (int) block_size));
  set_property (name, "compress", today);
}

static void
snapshot (const char *name, const char *snap)
{
  char full[64];

  snprintf (full, sizeof full, "%s@%s", name, snap);
  run ("snapshot", json_pack ("{s:s}", "name", full));
}

/* Write without dedup, or with another compression. */
static void
write_otherwise (const char *name)
{
  if (rng_percent (&rng, 40))
    set_property (name, "dedup", "off");
  set_property (name, "compress", codecs[rng_below (&rng, 3)]);
  write_some (name, rng_between (&rng, 1, 20));
  set_property (name, "dedup", "on");
  set_property (name, "compress", today);
}

static void
make_clone (unsigned i)
{
  const char *name = clone_name (i);

  run ("clone",
       json_pack ("{s:s,s:s}", "snapshot",
                  i > 2 && rng_percent (&rng, 20) ? "clone1@s" : "golden@v1",
                  "name", name));
  write_some (name, rng_between (&rng, 0, 40));
  if (i == 1 || rng_percent (&rng, 40)) {
    snapshot (name, "s");
    write_some (name, rng_between (&rng, 0, 30));
  }
  if (rng_percent (&rng, 40))
    write_otherwise (name);
}

static void
make_fleet (void)
{
  const bool destroyed = rng_percent (&rng, 10);
  unsigned i;

  nr_clones = rng_between (&rng, 1, CLONES_MAX);
  today = codecs[rng_below (&rng, 3)];
  create ("golden", rng_percent (&rng, 20));
  write_some ("golden", 70);
  if (rng_percent (&rng, 30))
    write_otherwise ("golden");
  snapshot ("golden", "v1");
  for (i = 1; i <= nr_clones; ++i)
    make_clone (i);
  if (rng_percent (&rng, 40)) {
    write_some ("golden", rng_between (&rng, 1, 40));
    snapshot ("golden", "v2");
  }
  if (rng_percent (&rng, 30)) {
    create ("other", rng_percent (&rng, 20));
    write_some ("other", 60);
    snapshot ("other", "v1");
  }
  if (destroyed)
    run ("destroy", json_pack ("{s:s,s:b}", "name", "golden@v1", "force", 1));
}

/*----------------------------------------------------------------------
 * Asking
 */

struct sets {
  struct nbdedup_range ranges[CLONES_MAX][RANGES_MAX];
  size_t nr[CLONES_MAX];
};

/* Ranges that often touch; in half of the fleets many end within blocks. */
static void
pick_ranges (struct nbdedup_range *ranges, size_t *nr, uint64_t size)
{
  const unsigned percent = rng_percent (&rng, 50) ? 50 : 2;
  uint64_t at = 0, len;

  *nr = 0;
  while (*nr < RANGES_MAX) {
    at += rng_percent (&rng, 30) ? 0
                                 : rng_below (&rng, 20 * block_size) &
        ~(rng_percent (&rng, percent) ? 511u : block_size - 1);
    len = rng_percent (&rng, percent)
      ? 512 * rng_between (&rng, 1, 2 * block_size / 512)
      : block_size * rng_between (&rng, 1, 8);
    if (at >= size)
      return;
    if (len > size - at)
      len = size - at;
    ranges[(*nr)++] = (struct nbdedup_range) { at, len };
    at += len;
  }
}

static uint64_t
size_of (const char *name)
{
  struct nbdedup_volume *v = open_volume (name);
  uint64_t size = nbdedup_volume_size (v);

  nbdedup_volume_close (v);
  return size;
}

/* Set 'number' and another one, which must not matter. */
static json_t *
ask (struct nbdedup_client *client, unsigned number, struct sets *sets)
{
  struct nbdedup_frozen *frozen;
  struct nbdedup_range all = { 0, 0 };
  json_t *document, *advice;
  unsigned i;

  frozen = nbdedup_client_freeze (client, "golden@v1",
                                  rng_percent (&rng, 50)
                                    ? NBDEDUP_DRIFT_MEMORY_MIN
                                    : 0);
  if (frozen == NULL)
    die ("SEED=%" PRIu64 ": freeze: %s", seed, nbdedup_error ());
  if (nbdedup_frozen_advise (frozen, NULL, NULL) != NULL || errno != EINVAL)
    die ("advice without a document");
  document = nbdedup_frozen_next (frozen, NULL, NULL);
  if (document == NULL)
    die ("SEED=%" PRIu64 ": next: %s", seed, nbdedup_error ());
  json_decref (document);
  for (i = 0; i < nr_clones; ++i) {
    all.len = size_of (clone_name (i + 1));
    pick_ranges (sets->ranges[i], &sets->nr[i], all.len);
    must (
      nbdedup_frozen_zero (frozen, number, i, sets->ranges[i], sets->nr[i]));
    must (nbdedup_frozen_zero (frozen, (number + 1) % NBDEDUP_FROZEN_SETS, i,
                               &all, 1));
  }
  all.len = 1; /* now out of order */
  if (nbdedup_frozen_zero (frozen, (number + 1) % NBDEDUP_FROZEN_SETS, 0, &all,
                           1) != -1 ||
      errno != EINVAL)
    die ("ranges out of order were accepted");
  advice = nbdedup_frozen_advise (frozen, NULL, NULL);
  if (advice == NULL)
    die ("SEED=%" PRIu64 ": advise: %s", seed, nbdedup_error ());
  nbdedup_frozen_close (frozen);
  return advice;
}

/*----------------------------------------------------------------------
 * Following
 */

/* The bytes of all records, when nothing is being freed or merged any more. */
static json_int_t
stored_bytes (void)
{
  const uint64_t deadline = clock_ms () + 20000;

  while (pool_figure ("freeing_bytes") != 0 || merge_is_pending (pool)) {
    if (clock_ms () > deadline)
      die ("SEED=%" PRIu64 ": freeing does not end", seed);
    WITH_LOCK (&pool->admin);
    must (pool_sync (pool));
  }
  return (json_int_t) pool_figure ("stored_bytes");
}

/* A record that is about to be freed may be found again for a new block, or not:
 * while layers merge a few records may be missing.
 */
static void
expect_freed (const char *what, json_int_t before, json_int_t promised)
{
  const json_int_t freed = before - stored_bytes ();

  if (llabs (freed - promised) > (settled ? 0 : 3 * (json_int_t) block_size))
    die ("SEED=%" PRIu64 ": %s freed %" JSON_INTEGER_FORMAT " bytes, promised "
         "%" JSON_INTEGER_FORMAT,
         seed, what, freed, promised);
  check_pool ();
}

static void
zero_clone (const struct sets *sets, unsigned i)
{
  struct nbdedup_volume *v = open_volume (clone_name (i + 1));
  size_t j;

  for (j = 0; j < sets->nr[i]; ++j)
    must (nbdedup_volume_trim (v, sets->ranges[i][j].len,
                               sets->ranges[i][j].offset));
  must (nbdedup_volume_flush (v));
  nbdedup_volume_close (v);
}

/* Of all clones, or of one. */
static void
follow_zero (const json_t *set, const struct sets *sets, bool one)
{
  const unsigned chosen = rng_below (&rng, nr_clones);
  const json_int_t before = stored_bytes ();
  const json_int_t promised = one
    ? json_integer_value (
        json_array_get (json_object_get (set, "clones"), chosen))
    : number (set, "freed_bytes");
  unsigned i;

  for (i = 0; i < nr_clones; ++i)
    if (!one || i == chosen)
      zero_clone (sets, i);
  expect_freed ("zeroing", before, promised);
  if (promised > 0)
    (*(one ? &met.zeroed_one : &met.zeroed))++;
  met.copied += promised < 0;
}

/* Of all clones; all of it is in their writable layers after a rebase. */
static uint64_t
own_blocks (const json_t *rebases)
{
  json_t *list = call ("list", NULL), *volumes, *v, *name;
  uint64_t own = 0;
  size_t i, j;

  volumes = json_object_get (list, "volumes");
  json_array_foreach (rebases, i, name)
    json_array_foreach (volumes, j, v)
      if (strcmp (json_string_value (name),
                  json_string_value (json_object_get (v, "name"))) == 0)
        own += (uint64_t) number (v, "own_bytes") / block_size;
  json_decref (list);
  return own;
}

static void
destroy (const char *name)
{
  run ("destroy",
       json_pack ("{s:s,s:b,s:b}", "name", name, "recursive", 1, "force", 1));
  met.destroyed++;
}

/* The owner of a snapshot has blocks of its own, too, which are not in the
 * writable layer alone: nothing is known about those then.
 */
static void
follow_base (const json_t *base, unsigned *counter)
{
  json_t *rebases = json_object_get (base, "rebases"), *name;
  const char *target = json_string_value (json_object_get (base, "target"));
  const json_int_t before = stored_bytes ();
  char snap[64];
  uint64_t own;
  size_t i;

  snprintf (snap, sizeof snap, "%s", target);
  if (!json_is_true (json_object_get (base, "is_snapshot"))) {
    snapshot (target, "next");
    snprintf (snap, sizeof snap, "%s@next", target);
  }
  json_array_foreach (rebases, i, name)
    run ("rebase", json_pack ("{s:O,s:s}", "name", name, "snapshot", snap));
  own = own_blocks (rebases);
  if ((json_array_size (rebases) == nr_clones ||
       strchr (target, '@') == NULL) &&
      own != (uint64_t) number (base, "own_blocks"))
    die ("SEED=%" PRIu64 ": %s leaves %" PRIu64
         " blocks of their own, not %" JSON_INTEGER_FORMAT,
         seed, target, own, number (base, "own_blocks"));
  json_array_foreach (json_object_get (base, "destroys"), i, name)
    destroy (json_string_value (name));
  expect_freed (target, before, number (base, "freed_bytes"));
  ++*counter;
}

static void
rewrite_all (const json_t *names, bool dedup)
{
  json_t *name;
  size_t i;

  json_array_foreach (names, i, name)
    run ("rewrite", json_pack ("{s:O,s:b}", "name", name, "dedup", dedup));
}

/* Where today's compression is weaker than what some records have, these take
 * more space when they are stored again: the promise of joining is what is freed
 * at least.
 */
static void
follow_rewrite (const json_t *rewrite)
{
  const json_int_t before = stored_bytes ();
  const json_int_t missed = number (rewrite, "missed_bytes");
  const json_int_t compress = number (rewrite, "compress_bytes");
  const json_int_t promised = missed + (compress > 0 ? compress : 0);
  json_int_t freed;

  rewrite_all (json_object_get (rewrite, "missed"), true);
  if (compress > 0)
    rewrite_all (json_object_get (rewrite, "compress"), false);
  freed = before - stored_bytes ();
  if (freed < promised ||
      (freed > promised && (strcmp (today, "zstd") == 0 || missed == 0)))
    die ("SEED=%" PRIu64 ": rewriting freed %" JSON_INTEGER_FORMAT " bytes, "
         "promised %" JSON_INTEGER_FORMAT " and %" JSON_INTEGER_FORMAT,
         seed, freed, missed, compress);
  check_pool ();
  met.joined += missed > 0;
  met.compressed += compress > 0;
}

static void
follow (const json_t *advice, unsigned set, const struct sets *sets)
{
  const json_t *set_advice = json_array_get (json_object_get (advice, "sets"),
                                             set);
  const json_t *base;

  switch (rng_below (&rng, 5)) {
  case 0:
    base = json_object_get (advice, "rebase");
    if (!json_is_null (base)) {
      follow_base (base, &met.rebased);
      return;
    }
    break;
  case 1:
    base = json_object_get (advice, "promote");
    if (!json_is_null (base)) {
      follow_base (base, &met.promoted);
      return;
    }
    break;
  case 2:
    if (settled) {
      follow_rewrite (json_object_get (advice, "rewrite"));
      return;
    }
    break;
  }
  follow_zero (set_advice, sets, rng_percent (&rng, 30));
}

/*----------------------------------------------------------------------*/

static void
open_pool (void)
{
  struct nbdedup_settings settings;

  nbdedup_settings_init (&settings);
  settings.drift_interval_s = 0;
  settings.commit_interval_ms = 50;
  pool = nbdedup_pool_open (directory, &settings, "test-advise",
                            NBDEDUP_OPEN_SERVER);
  if (pool == NULL)
    die ("open: %s", nbdedup_error ());
}

static struct nbdedup_client *
open_client (void)
{
  struct nbdedup_settings settings;
  struct nbdedup_client *client;

  nbdedup_settings_init (&settings);
  client = nbdedup_client_open (directory, &settings, "test-advise", NULL);
  if (client == NULL)
    die ("client: %s", nbdedup_error ());
  return client;
}

static void
one_round (void)
{
  static const uint32_t sizes[] = { 4096, 8192, 16384, 65536 };
  const unsigned set = rng_below (&rng, NBDEDUP_FROZEN_SETS);
  struct nbdedup_client *client;
  struct sets sets;
  json_t *advice;

  block_size = sizes[rng_below (&rng, 4)];
  make_directory (directory, fast_directory (), "test-advise");
  must (nbdedup_pool_create (directory, NULL));
  open_pool ();
  make_fleet ();
  /* In half of the rounds layers are just beginning to merge.  What "rewrite"
   * finds depends then on which records are gone when it runs.
   */
  settled = rng_percent (&rng, 50);
  if (settled)
    stored_bytes ();
  else
    run ("destroy", json_pack ("{s:s,s:b}", "name", "clone1@s", "force", 1));
  client = open_client ();
  advice = ask (client, set, &sets);
  must (nbdedup_client_close (client));
  follow (advice, set, &sets);
  json_decref (advice);
  must (nbdedup_pool_close (pool));
  remove_directory (directory);
}

/* Two clones have stored the same block, and no index has it: only if both are
 * rewritten does the second find the first.
 */
static void
test_no_index (void)
{
  struct nbdedup_client *client;
  struct sets sets;
  json_t *advice, *rewrite;
  unsigned i;

  block_size = 4096;
  today = "lz4";
  nr_clones = 2;
  make_directory (directory, fast_directory (), "test-advise");
  must (nbdedup_pool_create (directory, NULL));
  open_pool ();
  create ("golden", false);
  snapshot ("golden", "v1");
  for (i = 1; i <= nr_clones; ++i) {
    uint8_t buf[BLOCK_MAX];
    struct nbdedup_volume *v;

    run ("clone",
         json_pack ("{s:s,s:s}", "snapshot", "golden@v1", "name",
                    clone_name (i)));
    set_property (clone_name (i), "dedup", "off");
    v = open_volume (clone_name (i));
    fill_compressible (buf, block_size, 1);
    must (nbdedup_volume_write (v, buf, block_size, 0));
    must (nbdedup_volume_flush (v));
    nbdedup_volume_close (v);
  }
  client = open_client ();
  advice = ask (client, 0, &sets);
  must (nbdedup_client_close (client));
  rewrite = json_object_get (advice, "rewrite");
  if (number (rewrite, "missed_bytes") == 0)
    die ("a duplicate that no index has is no duplicate");
  follow_rewrite (rewrite);
  json_decref (advice);
  must (nbdedup_pool_close (pool));
  remove_directory (directory);
}

int
main (void)
{
  const char *rounds = getenv ("ROUNDS"), *s = getenv ("SEED");
  unsigned i, nr = rounds ? atoi (rounds) : 100;

  seed = s ? strtoull (s, NULL, 10) : 1;
  rng = rng_make (seed, 1);
  test_no_index ();
  for (i = 0; i < nr; ++i, ++seed) {
    rng = rng_make (seed, 1);
    one_round ();
  }
  if (nr >= 100 &&
      (met.zeroed == 0 || met.zeroed_one == 0 || met.copied == 0 ||
       met.rebased == 0 || met.promoted == 0 || met.destroyed == 0 ||
       met.joined == 0 || met.compressed == 0))
    die ("not all kinds of advice were followed: %u %u %u %u %u %u %u %u",
         met.zeroed, met.zeroed_one, met.copied, met.rebased, met.promoted,
         met.destroyed, met.joined, met.compressed);
  return 0;
}

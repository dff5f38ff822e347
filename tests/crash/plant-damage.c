/* SPDX-License-Identifier: BSD-3-Clause */

/* plant-damage POOL SEED VOLUME [mild]: damage the tables of a pool without a
 * server, in some of the ways that "check --repair" repairs.  SEED selects the
 * kinds and the places.  With "mild" it selects only kinds with which a server
 * can continue to write.  Prints what it damaged.
 *
 * Each kind of row is damaged in one place at most, or in several independent
 * ones, so that everything can be rebuilt from the rest.  At random it then
 * closes the pool, or ends as in a crash.
 */

#include <config.h>

#include "data/volume-types.h"
#include "format/format.h"
#include "rigs/plants.h"

#define ADDRS_MAX 65536

/* Records, each from another row. */
static uint64_t addrs[ADDRS_MAX];
static unsigned nr_addrs;
static bool has_leaf;
static size_t index_len;

static int
note_record (void *opaque, uint64_t group, const uint8_t *buf, size_t len)
{
  struct rng *rng = opaque;
  struct record r;
  unsigned nr = 0;
  size_t off = 0;
  int n;

  while ((n = record_next (group, buf, len, &off, &r)) != 0) {
    expect (n == 1);
    /* Choose one record of the row, all with the same probability. */
    if (r.refcount > 0 && rng_below (rng, ++nr) == 0)
      addrs[nr_addrs] = r.ptr.addr;
  }
  nr_addrs += nr > 0;
  return nr_addrs == ADDRS_MAX;
}

static struct rng *look_rng;

static void
look (struct meta_conn *c, struct meta_state *state)
{
  struct blob b CLEANUP_BLOB = { NULL };
  uint8_t buf[LEAF_LEN_MAX];
  uint64_t low;
  unsigned run;
  size_t len;

  (void) state;
  must (meta_record_scan (c, 0, note_record, look_rng));
  has_leaf = meta_leaf_get (c, volume->layer->branch, 0, volume->layer->seq,
                            buf, &len) == 1;
  index_len = longest_index_row (c, &run, &low, &b);
}

/* Pick an address, but none twice. */
static bool
take_addr (struct rng *rng)
{
  unsigned i = (unsigned) rng_below (rng, nr_addrs);

  if (nr_addrs == 0)
    return false;
  planted_addr = addrs[i];
  addrs[i] = addrs[--nr_addrs];
  return true;
}

static unsigned nr_planted;

static void
plant_one (const char *name, plant_fn *fn)
{
  printf (" %s", name);
  plant (fn);
  nr_planted++;
}
#define PLANT(fn) plant_one (#fn, fn)

static void
plant_records (struct rng *rng, bool mild)
{
  unsigned nr = (unsigned) rng_between (rng, 1, 6);

  while (nr-- > 0 && take_addr (rng)) {
    planted_delta = (int64_t) rng_between (rng, 1, 4);
    switch (mild ? 0 : rng_below (rng, 4)) {
    case 0:
      PLANT (change_count);
      break;
    case 1:
      planted_delta = -1;
      PLANT (change_count);
      break;
    case 2:
      PLANT (drop_record);
      break;
    case 3:
      PLANT (cut_group);
      break;
    }
  }
}

static void
plant_index (struct rng *rng)
{
  switch (rng_below (rng, 3)) {
  case 0:
    PLANT (empty_index);
    break;
  case 1:
    PLANT (add_index_entry);
    break;
  case 2:
    if (index_len >= (size_t) 2 * INDEX_ENTRY_LEN)
      PLANT (swap_index_entries);
    break;
  }
}

static void
plant_space (struct rng *rng, bool mild)
{
  if (!take_addr (rng))
    return;
  planted_delta = 1;
  switch (mild ? 0 : rng_below (rng, 6)) {
  case 0:
    PLANT (change_space);
    break;
  case 1:
    planted_delta = -1;
    PLANT (change_space);
    break;
  case 2:
    PLANT (drop_segment);
    break;
  case 3:
    PLANT (spoil_segment);
    break;
  case 4:
    PLANT (spoil_figures);
    break;
  case 5:
    PLANT (change_slots);
    break;
  }
}

static void
plant_some (struct rng *rng, bool mild)
{
  if (rng_percent (rng, 60))
    plant_records (rng, mild);
  if (rng_percent (rng, 40))
    plant_index (rng);
  if (rng_percent (rng, 40))
    plant_space (rng, mild);
  if (rng_percent (rng, 40))
    PLANT (change_totals);
  if (rng_percent (rng, 20)) {
    planted_addr = UINT64_C (1) << 32;
    PLANT (put_limbo);
  }
  if (has_leaf && rng_percent (rng, 20))
    PLANT (add_foreign_leaf);
}

int
main (int argc, char **argv)
{
  struct nbdedup_settings settings;
  bool mild = argc == 5 && strcmp (argv[4], "mild") == 0;
  struct rng rng;

  if (argc != 4 + mild) {
    fprintf (stderr, "usage: plant-damage POOL SEED VOLUME [mild]\n");
    return 2;
  }
  rng = rng_make (strtoull (argv[2], NULL, 0), 0);
  look_rng = &rng;
  nbdedup_settings_init (&settings);
  settings.commit_interval_ms = 1000000;
  settings.repair = true;
  pool = nbdedup_pool_open (argv[1], &settings, "plant-damage", 0);
  if (pool == NULL)
    die ("open: %s", nbdedup_error ());
  handle = open_volume (argv[3]);
  volume = handle->volume;
  plant (look);
  do
    plant_some (&rng, mild);
  while (nr_planted == 0);
  putchar ('\n');
  fflush (stdout);
  if (rng_percent (&rng, 50))
    crash ();
  nbdedup_volume_close (handle);
  must (nbdedup_pool_close (pool));
  return 0;
}

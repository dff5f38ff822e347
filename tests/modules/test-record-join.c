/* SPDX-License-Identifier: BSD-3-Clause */

/* record-join.h: which party frees a record: the one that gives up all
 * references except those that are given up anyway.  More references given up
 * than there are is damage.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>

#include "core/engine.h"
#include "data/sync.h"
#include "disk/sorter.h"
#include "drift/view.h"
#include "drift/record-join.h"
#include "rigs/testutil.h"

#define BLOCK 16384u
#define NR_VOLUMES 3
#define NR_WHO 3

static struct nbdedup_pool *pool;
static char directory[PATH_MAX];
static struct view view;

/* Volume i has content 0 .. i at its blocks 0 .. i: content i has NR_VOLUMES -
 * i references.
 */
static uint64_t addr[NR_VOLUMES];

#define fatal(fmt, ...) die ("line %d: " fmt, __LINE__, ##__VA_ARGS__)

static void
make_volume (unsigned i)
{
  const char name[2] = { (char) ('a' + i), '\0' };
  json_t *args = json_pack ("{s:s, s:i, s:i, s:s}", "name", name, "size",
                            (int) (NR_VOLUMES * BLOCK), "block-size",
                            (int) BLOCK, "compress", "none");
  json_t *result = nbdedup_call (pool, "create", args);
  struct nbdedup_volume *v;
  uint8_t buf[BLOCK];
  unsigned j;

  if (result == NULL ||
      (v = nbdedup_volume_open (pool, name, 0, -1, NULL)) == NULL)
    fatal ("%s: %s", name, nbdedup_error ());
  json_decref (args);
  json_decref (result);
  for (j = 0; j <= i; ++j) {
    fill_random (buf, sizeof buf, j);
    if (nbdedup_volume_write (v, buf, sizeof buf, j * BLOCK) == -1)
      fatal ("%s: %s", name, nbdedup_error ());
  }
  /* So that the next volume finds these contents. */
  if (nbdedup_volume_flush (v) == -1)
    fatal ("%s: %s", name, nbdedup_error ());
  nbdedup_volume_close (v);
}

static void
open_view (void)
{
  const char last[2] = { 'a' + NR_VOLUMES - 1, '\0' };
  struct view_name *name;
  struct pointer ptr;
  struct leaf leaf;
  uint64_t leaf_nr, top;
  struct walk *w;
  unsigned i;

  if (pool_sync_for_view (pool) == -1)
    fatal ("%s", nbdedup_error ());
  {
    WITH_LOCK (&pool->admin);
    if (view_open (pool, &view) == -1)
      fatal ("%s", nbdedup_error ());
  }
  if ((name = view_find (&view, last)) == NULL ||
      (w = walk_new (&view, name->layer, NULL)) == NULL ||
      walk_next (w, &leaf_nr, &leaf, &top) != 1)
    fatal ("%s", nbdedup_error ());
  for (i = 0; i < NR_VOLUMES; ++i) {
    if (pointer_unpack (leaf.ptr[i], BLOCK, &ptr) == -1)
      fatal ("%s", nbdedup_error ());
    addr[i] = ptr.addr;
  }
  walk_free (w);
}

/* References to one content that are given up: by[0] of them anyway, the others
 * by each of the parties.
 */
struct releases {
  unsigned content;
  unsigned by[NR_WHO + 1];
};

static int
no_step (void *opaque, uint64_t done)
{
  (void) opaque;
  (void) done;
  return 0;
}

static int
try (const struct releases *r, size_t nr, uint64_t freed[NR_WHO + 1])
{
  struct record_join *t = record_join_new (&view, SORTER_MEMORY_MIN);
  unsigned who, j;
  size_t i;
  int ret;

  if (t == NULL)
    fatal ("%s", nbdedup_error ());
  memset (freed, 0, (NR_WHO + 1) * sizeof freed[0]);
  for (i = 0; i < nr; ++i)
    for (who = 0; who <= NR_WHO; ++who)
      for (j = 0; j < r[i].by[who]; ++j)
        if (record_join_add_release (t, addr[r[i].content], who) == -1)
          fatal ("%s", nbdedup_error ());
  ret = record_join_run (t, freed, NR_WHO, NULL, no_step, NULL);
  record_join_free (t);
  return ret;
}

/* Check the number of blocks that each party frees. */
static void
expect (struct releases r, unsigned a, unsigned b, unsigned c)
{
  const uint64_t sectors = BLOCK / pool->sector_bytes;
  uint64_t freed[NR_WHO + 1];

  if (try (&r, 1, freed) == -1)
    fatal ("%s", nbdedup_error ());
  if (freed[0] != 0 || freed[1] != a * sectors || freed[2] != b * sectors ||
      freed[3] != c * sectors)
    fatal ("content %u, given back %u, %u, %u, %u times: %" PRIu64 ", %" PRIu64
           ", %" PRIu64 " sectors come back",
           r.content, r.by[0], r.by[1], r.by[2], r.by[3], freed[1], freed[2],
           freed[3]);
}

static void
test_one (void)
{
  /* Three references: a party that gives up all of them frees the record. */
  expect ((struct releases) { 0, { 0, 1, 0, 0 } }, 0, 0, 0);
  expect ((struct releases) { 0, { 0, 2, 0, 0 } }, 0, 0, 0);
  expect ((struct releases) { 0, { 0, 3, 0, 0 } }, 1, 0, 0);
  expect ((struct releases) { 0, { 0, 0, 0, 3 } }, 0, 0, 1);
  /* Each party counts alone, not together with others. */
  expect ((struct releases) { 0, { 0, 1, 1, 1 } }, 0, 0, 0);
  expect ((struct releases) { 0, { 0, 2, 1, 0 } }, 0, 0, 0);
  /* A party need not give up what is given up anyway. */
  expect ((struct releases) { 0, { 1, 1, 0, 0 } }, 0, 0, 0);
  expect ((struct releases) { 0, { 2, 1, 0, 0 } }, 1, 0, 0);
  expect ((struct releases) { 0, { 1, 2, 0, 1 } }, 1, 0, 0);
  expect ((struct releases) { 0, { 2, 1, 1, 1 } }, 1, 1, 1);
  /* The record is freed without any party. */
  expect ((struct releases) { 0, { 3, 0, 0, 0 } }, 0, 0, 0);
  expect ((struct releases) { 1, { 2, 0, 0, 0 } }, 0, 0, 0);
  expect ((struct releases) { 2, { 0, 0, 1, 0 } }, 0, 1, 0);
}

/* References to one content do not count for another. */
static void
test_several (void)
{
  const struct releases r[] = {
    { 2, { 0, 1, 0, 0 } },
    { 0, { 1, 0, 2, 0 } },
    { 1, { 0, 1, 1, 0 } },
  };
  const uint64_t sectors = BLOCK / pool->sector_bytes;
  uint64_t freed[NR_WHO + 1];

  if (try (r, 3, freed) == -1)
    fatal ("%s", nbdedup_error ());
  if (freed[1] != sectors || freed[2] != sectors || freed[3] != 0)
    fatal ("%" PRIu64 ", %" PRIu64 ", %" PRIu64 " sectors", freed[1], freed[2],
           freed[3]);
}

static void
test_damage (void)
{
  const struct releases r[] = {
    { 2, { 0, 2, 0, 0 } },
    { 2, { 1, 1, 0, 0 } },
    { 0, { 3, 0, 0, 1 } },
  };
  const uint64_t right = addr[1];
  uint64_t freed[NR_WHO + 1];
  size_t i;

  for (i = 0; i < 3; ++i)
    if (try (&r[i], 1, freed) != -1 || errno != EIO ||
        !strstr (nbdedup_error (), "more often than its reference count"))
      fatal ("references that are not there: case %zu", i);
  addr[1]++;
  if (try (&(struct releases) { 1, { 0, 1, 0, 0 } }, 1, freed) != -1 ||
      errno != EIO || !strstr (nbdedup_error (), "is missing"))
    fatal ("a record that is not there");
  addr[1] = right;
}

int
main (void)
{
  char command[PATH_MAX + 20];
  unsigned i;

  snprintf (directory, sizeof directory, "%s/test-record-join-XXXXXX",
            fast_directory ());
  if (mkdtemp (directory) == NULL ||
      nbdedup_pool_create (directory, NULL) == -1 ||
      (pool = nbdedup_pool_open (directory, NULL, "test-record-join", 0)) ==
        NULL)
    fatal ("%s: %s", directory, nbdedup_error ());
  for (i = 0; i < NR_VOLUMES; ++i)
    make_volume (i);
  open_view ();
  test_one ();
  test_several ();
  test_damage ();
  view_close (&view);
  if (nbdedup_pool_close (pool) == -1)
    fatal ("close: %s", nbdedup_error ());
  snprintf (command, sizeof command, "rm -rf '%s'", directory);
  if (system (command) != 0)
    fatal ("%s", command);
  return 0;
}

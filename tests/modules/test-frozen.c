/* SPDX-License-Identifier: BSD-3-Clause */

/* A frozen moment (drift/frozen.h): the class of each block and its content
 * stay those of the moment, while clients overwrite everything, folds run, and
 * space is used again.
 *
 * Random clones, some with snapshots, have blocks from a few contents, so that
 * all classes occur, and some were shrunk and are large again.  A model in
 * memory says what each block has; a naive comparison of all blocks with each
 * other says which class each is of.  A client reads the moment from the pool
 * that it has open itself, and through a server.  The golden image can be read,
 * too, also after it was destroyed, and after it merged with its last clone.
 *
 * A moment that needs space which clients need ends: writes go on, and the
 * reader gets EBUSY.
 *
 * ROUNDS and SEED come from the environment.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <limits.h>

#include "core/engine.h"
#include "data/sync.h"
#include "drift/frozen.h"
#include "rigs/pool-util.h"
#include "space/space.h"

#define NR_CLONES 4u
#define NR_BLOCKS 700u /* several leaves, the last one cut */
#define NR_CONTENTS 900u
#define BLOCK_MAX 16384u

struct nbdedup_pool *pool;
static char directory[PATH_MAX];
static struct rng rng;
static uint64_t seed;
static uint32_t block_size;
static unsigned met[5]; /* blocks of each class */

/* Volume 0 is the golden image's.  Content 0 is zeroes. */
static uint32_t content[NR_CLONES + 1][NR_BLOCKS];
static uint32_t golden[NR_BLOCKS]; /* its snapshot's */

static const char *
clone_name (unsigned i)
{
  static char name[16];

  if (i == 0)
    return "golden";
  snprintf (name, sizeof name, "clone%u", i);
  return name;
}

static void
fill_block (uint8_t *buf, uint32_t id)
{
  if (id == 0)
    memset (buf, 0, block_size);
  else
    fill_compressible (buf, block_size, id);
}

static void
write_block (struct nbdedup_volume *v, unsigned i, unsigned block, uint32_t id)
{
  uint8_t buf[BLOCK_MAX];

  fill_block (buf, id);
  must (
    nbdedup_volume_write (v, buf, block_size, (uint64_t) block * block_size));
  content[i][block] = id;
}

static void
resize (unsigned i, unsigned blocks)
{
  run ("resize",
       json_pack ("{s:s,s:I,s:b}", "name", clone_name (i), "size",
                  (json_int_t) blocks * block_size, "shrink", 1));
}

/* Shrink a clone and grow it again: what was behind its end is zeroes. */
static void
cut (unsigned i, unsigned blocks)
{
  unsigned block;

  resize (i, blocks);
  resize (i, NR_BLOCKS);
  for (block = blocks; block < NR_BLOCKS; ++block)
    content[i][block] = 0;
}

/* Write to 'percent' of the blocks, contents from 'first' on. */
static void
write_some (unsigned i, unsigned percent, uint32_t first)
{
  struct nbdedup_volume *v = open_volume (clone_name (i));
  unsigned block;

  for (block = 0; block < NR_BLOCKS; ++block)
    if (rng_percent (&rng, percent))
      write_block (v, i, block,
                   rng_percent (&rng, 5)
                     ? 0
                     : first + rng_below (&rng, NR_CONTENTS));
  must (nbdedup_volume_flush (v));
  nbdedup_volume_close (v);
}

static void
fold (void)
{
  WITH_LOCK (&pool->admin);
  must (pool_sync (pool));
}

static void
make_volumes (void)
{
  char name[64];
  unsigned i;

  run ("create",
       json_pack ("{s:s,s:I,s:i}", "name", "golden", "size",
                  (json_int_t) NR_BLOCKS * block_size - 512, "block-size",
                  (int) block_size));
  memset (content, 0, sizeof content);
  run ("resize",
       json_pack ("{s:s,s:I}", "name", "golden", "size",
                  (json_int_t) NR_BLOCKS * block_size));
  write_some (0, 60, 1);
  run ("snapshot", json_pack ("{s:s}", "name", "golden@v1"));
  memcpy (golden, content[0], sizeof golden);
  for (i = 1; i <= NR_CLONES; ++i) {
    memcpy (content[i], content[0], sizeof content[0]);
    run ("clone",
         json_pack ("{s:s,s:s}", "snapshot", "golden@v1", "name",
                    clone_name (i)));
    write_some (i, rng_between (&rng, 0, 30), 1 + rng_below (&rng, 900));
    if (i == 3)
      cut (i, rng_between (&rng, 1, NR_BLOCKS));
    if (i % 2)
      continue;
    snprintf (name, sizeof name, "clone%u@s", i);
    run ("snapshot", json_pack ("{s:s}", "name", name));
    if (i == 4)
      cut (i, rng_between (&rng, 1, NR_BLOCKS));
    write_some (i, rng_between (&rng, 0, 20), 1 + rng_below (&rng, 900));
  }
}

/* Let the pool use all the space again that it can. */
static void
churn (void)
{
  unsigned i, n;

  for (n = 0; n < 3; ++n) {
    for (i = 0; i <= NR_CLONES; ++i) {
      write_some (i, 90, 1000000 * (n + 1) + i * 10000);
      fold ();
    }
    run ("destroy", json_pack ("{s:s}", "name", "clone2@s"));
    fold ();
    run ("snapshot", json_pack ("{s:s}", "name", "clone2@s"));
  }
}

/*----------------------------------------------------------------------
 * The naive model of the moment
 */

struct moment {
  uint32_t content[NR_CLONES + 1][NR_BLOCKS];
};

static bool
has_content (const uint32_t *blocks, uint32_t id)
{
  unsigned block;

  for (block = 0; block < NR_BLOCKS; ++block)
    if (blocks[block] == id)
      return true;
  return false;
}

/* -1: zeroes, as the golden image has there. */
static int
model_class (const struct moment *m, unsigned clone, unsigned block)
{
  const uint32_t id = m->content[clone][block];
  unsigned i;

  if (id == 0)
    return m->content[0][block] == 0 ? -1 : NBDEDUP_ZERO;
  if (m->content[0][block] == id)
    return NBDEDUP_GOLDEN_SAME;
  if (has_content (m->content[0], id))
    return NBDEDUP_GOLDEN_MOVED;
  for (i = 1; i <= NR_CLONES; ++i)
    if (i != clone && has_content (m->content[i], id))
      return NBDEDUP_SIBLING;
  return NBDEDUP_UNIQUE;
}

struct found {
  int class[NR_BLOCKS]; /* -1: in no run */
  uint64_t next;
};

static int
on_run (void *opaque, uint64_t block, uint64_t nr, enum nbdedup_class class)
{
  struct found *found = opaque;
  uint64_t i;

  if (nr == 0 || block < found->next || block + nr > NR_BLOCKS)
    die ("SEED=%" PRIu64 ": run of %" PRIu64 " blocks at %" PRIu64, seed, nr,
         block);
  for (i = 0; i < nr; ++i)
    found->class[block + i] = (int) class;
  found->next = block + nr;
  return 0;
}

static void
check_classes (struct nbdedup_frozen *frozen, const struct moment *m,
               unsigned clone, const json_t *figures)
{
  uint64_t size, nr[5] = { 0, 0, 0, 0, 0 };
  struct found found = { .next = 0 };
  unsigned block;
  int class;

  for (block = 0; block < NR_BLOCKS; ++block)
    found.class[block] = -1;
  must (nbdedup_frozen_runs (frozen, clone - 1, &size, on_run, &found));
  if (size != (uint64_t) NR_BLOCKS * block_size)
    die ("SEED=%" PRIu64 ": the size is %" PRIu64, seed, size);
  for (block = 0; block < NR_BLOCKS; ++block) {
    class = model_class (m, clone, block);
    if (class >= 0) {
      nr[class]++;
      met[class]++;
    }
    if (found.class[block] != class &&
        !(found.class[block] == -1 && class == NBDEDUP_GOLDEN_SAME) &&
        !(found.class[block] == NBDEDUP_ZERO && class == -1))
      die ("SEED=%" PRIu64 " clone %u block %u: class %d, not %d", seed, clone,
           block, found.class[block], class);
  }
  if (number (figures, "golden_same") != (json_int_t) nr[0] ||
      number (figures, "golden_moved") != (json_int_t) nr[1] ||
      number (figures, "sibling") != (json_int_t) nr[2] ||
      number (figures, "unique") != (json_int_t) nr[3])
    die ("SEED=%" PRIu64 " clone %u: wrong figures", seed, clone);
}

static void
check_content (struct nbdedup_frozen *frozen, const struct moment *m,
               unsigned clone)
{
  const uint64_t number = clone == 0 ? NBDEDUP_FROZEN_GOLDEN : clone - 1;
  uint8_t buf[3 * BLOCK_MAX], expected[BLOCK_MAX];
  unsigned block, offset, len, i;

  for (block = 0; block < NR_BLOCKS; ++block) {
    fill_block (expected, m->content[clone][block]);
    offset = rng_below (&rng, block_size);
    len = rng_between (&rng, 1, block_size - offset);
    must (nbdedup_frozen_read (frozen, number, buf, len,
                               (uint64_t) block * block_size + offset));
    if (memcmp (buf, expected + offset, len) != 0)
      die ("SEED=%" PRIu64 " clone %u block %u: wrong content", seed, clone,
           block);
  }
  must (nbdedup_frozen_read (frozen, number, buf, 3 * block_size, 0));
  for (i = 0; i < 3; ++i) {
    fill_block (expected, m->content[clone][i]);
    if (memcmp (buf + i * block_size, expected, block_size) != 0)
      die ("SEED=%" PRIu64 " clone %u: a read of three blocks", seed, clone);
  }
  if (nbdedup_frozen_read (frozen, number, buf, 2,
                           (uint64_t) NR_BLOCKS * block_size - 1) != -1 ||
      errno != EINVAL)
    die ("a read past the end");
}

/* The golden image, in the place of a clone. */
static void
check_golden (struct nbdedup_frozen *frozen, const struct moment *m)
{
  struct found found = { .next = 0 };
  unsigned block;
  uint64_t size;

  for (block = 0; block < NR_BLOCKS; ++block)
    found.class[block] = -1;
  must (
    nbdedup_frozen_runs (frozen, NBDEDUP_FROZEN_GOLDEN, &size, on_run, &found));
  if (size != (uint64_t) NR_BLOCKS * block_size)
    die ("SEED=%" PRIu64 ": the golden image's size is %" PRIu64, seed, size);
  for (block = 0; block < NR_BLOCKS; ++block)
    if (found.class[block] !=
        (m->content[0][block] == 0 ? -1 : NBDEDUP_GOLDEN_SAME))
      die ("SEED=%" PRIu64 " golden image block %u: class %d", seed, block,
           found.class[block]);
  check_content (frozen, m, 0);
}

static void
check_moment (struct nbdedup_client *client, bool churning)
{
  struct nbdedup_frozen *frozen = nbdedup_client_freeze (client, "golden@v1",
                                                         1 << 20);
  struct moment m;
  json_t *document, *end;
  unsigned i;

  if (frozen == NULL)
    die ("freeze: %s", nbdedup_error ());
  memcpy (m.content, content, sizeof content);
  memcpy (m.content[0], golden, sizeof golden);
  if (nbdedup_frozen_read (frozen, NBDEDUP_FROZEN_GOLDEN, &i, 1, 0) != -1 ||
      errno != EINVAL)
    die ("a golden image before its document");
  if (churning) {
    run ("list", NULL); /* a server has opened its view by then */
    churn ();
  }
  document = nbdedup_frozen_next (frozen, NULL, NULL);
  if (document == NULL)
    die ("frozen_next: %s", nbdedup_error ());
  if (churning) {
    churn ();
    check_pool (); /* records that are kept are no error */
  }
  check_golden (frozen, &m);
  for (i = 1; i <= NR_CLONES; ++i) {
    check_content (frozen, &m, i);
    check_classes (frozen, &m, i,
                   json_array_get (json_object_get (document, "clones"),
                                   i - 1));
  }
  json_decref (document);
  end = nbdedup_frozen_next (frozen, NULL, NULL);
  if (end == NULL || json_object_size (end) != 0)
    die ("there is another golden image");
  json_decref (end);
  nbdedup_frozen_close (frozen);
}

/*----------------------------------------------------------------------
 * Rounds
 */

static void
open_pool (unsigned flags)
{
  struct nbdedup_settings settings;

  nbdedup_settings_init (&settings);
  settings.drift_interval_s = 0;
  settings.commit_interval_ms = 50;
  pool = nbdedup_pool_open (directory, &settings, "test-frozen", flags);
  if (pool == NULL)
    die ("open: %s", nbdedup_error ());
}

static struct nbdedup_client *
open_client (enum nbdedup_read_only read_only)
{
  struct nbdedup_settings settings;
  struct nbdedup_client *client;

  nbdedup_settings_init (&settings);
  settings.read_only = read_only;
  client = nbdedup_client_open (directory, &settings, "test-frozen", NULL);
  if (client == NULL)
    die ("client: %s", nbdedup_error ());
  return client;
}

/* The golden image was destroyed: its layer is still there, or, with one clone
 * left, has merged with that clone's.  Then the clone has no block of its own.
 */
static void
check_destroyed (const struct moment *m, bool merged)
{
  struct nbdedup_client *client = open_client (NBDEDUP_READ_ONLY_OFF);
  struct nbdedup_frozen *frozen = nbdedup_client_freeze (client, "golden@v1",
                                                         0);
  json_t *document = frozen ? nbdedup_frozen_next (frozen, NULL, NULL) : NULL;

  if (document == NULL)
    die ("freeze: %s", nbdedup_error ());
  if (json_is_true (json_object_get (document, "golden_merged")) != merged)
    die ("SEED=%" PRIu64 ": the golden image has not merged", seed);
  check_golden (frozen, m);
  json_decref (document);
  nbdedup_frozen_close (frozen);
  must (nbdedup_client_close (client));
}

static void
test_destroyed (void)
{
  struct moment m;

  memcpy (m.content, content, sizeof content);
  memcpy (m.content[0], golden, sizeof golden);
  open_pool (NBDEDUP_OPEN_SERVER);
  run ("destroy",
       json_pack ("{s:[s,s],s:b}", "names", "golden", "golden@v1", "force", 1));
  check_destroyed (&m, false);
  run ("destroy",
       json_pack ("{s:[s,s,s],s:b,s:b}", "names", "clone2", "clone3", "clone4",
                  "recursive", 1, "wait", 1));
  fold ();
  memcpy (m.content[0], content[1], sizeof content[1]);
  check_destroyed (&m, true);
  must (nbdedup_pool_close (pool));
}

/* The space of all that died must be free again. */
static uint64_t
used_bytes (void)
{
  struct space_info info;

  space_get_info (pool->space, &info);
  return info.used_bytes;
}

static void
test_served (void)
{
  struct nbdedup_client *client = open_client (NBDEDUP_READ_ONLY_OFF);
  uint64_t deadline;

  check_moment (client, true);
  must (nbdedup_client_close (client));
  deadline = clock_ms () + 60000;
  /* The server ends the moment when it sees the end of the connection. */
  do {
    if (clock_ms () > deadline)
      die ("SEED=%" PRIu64 ": kept space is not free again", seed);
    fold ();
  } while (used_bytes () > 2 * pool_figure ("stored_bytes"));
  check_pool ();
}

/* With max-size there is no room for the overwritten data beside the new.  This
 * reader does not end by itself, as one of a server does.
 */
static void
test_gives_way (void)
{
  struct frozen *frozen;
  uint8_t buf[512];
  char size[32];
  json_t *document;
  unsigned i, n;

  fold ();
  snprintf (size, sizeof size, "%" PRIu64, used_bytes () + (4 << 20));
  run ("set", json_pack ("{s:s,s:s}", "property", "max-size", "value", size));
  frozen = frozen_open (pool, "golden@v1", 0, NULL, NULL);
  if (frozen == NULL || (document = frozen_next (frozen, NULL, NULL)) == NULL)
    die ("freeze: %s", nbdedup_error ());
  json_decref (document);
  must (frozen_check (frozen));
  for (n = 0; n < 6; ++n)
    for (i = 1; i <= NR_CLONES; ++i)
      write_some (i, 90, 5000000 + n * 100000 + i * 10000);
  if (frozen_check (frozen) != -1 ||
      frozen_read (frozen, 0, buf, sizeof buf, 0) != -1 || errno != EBUSY ||
      strstr (nbdedup_error (), "gave way to writes") == NULL)
    die ("the reader did not give way: %s", nbdedup_error ());
  frozen_close (frozen);
  run ("set", json_pack ("{s:s,s:s}", "property", "max-size", "value", "none"));
  check_pool ();
}

/* A crash with kept records must leave nothing behind. */
static void
test_crash (void)
{
  pid_t pid = fork ();

  if (pid == 0) {
    struct nbdedup_client *client;

    open_pool (NBDEDUP_OPEN_SERVER);
    client = open_client (NBDEDUP_READ_ONLY_OFF);
    if (nbdedup_client_freeze (client, NULL, 0) == NULL)
      die ("freeze: %s", nbdedup_error ());
    write_some (1, 90, 9000000);
    fold ();
    write_some (1, 90, 9100000);
    fold ();
    crash ();
  }
  expect_crash (pid);
}

static void
one_round (void)
{
  static const uint32_t sizes[] = { 4096, 8192, 16384 };
  struct nbdedup_client *client;

  block_size = sizes[rng_below (&rng, 3)];
  make_directory (directory, fast_directory (), "test-frozen");
  must (nbdedup_pool_create (directory, NULL));
  open_pool (NBDEDUP_OPEN_SERVER);
  make_volumes ();
  test_served ();
  must (nbdedup_pool_close (pool));
  client = open_client (NBDEDUP_READ_ONLY_ON);
  check_moment (client, false);
  must (nbdedup_client_close (client));
  client = open_client (NBDEDUP_READ_ONLY_OFF);
  check_moment (client, false);
  must (nbdedup_client_close (client));
  test_crash ();
  open_pool (NBDEDUP_OPEN_SERVER);
  check_pool ();
  test_gives_way ();
  must (nbdedup_pool_close (pool));
  test_destroyed ();
  remove_directory (directory);
}

int
main (void)
{
  const char *rounds = getenv ("ROUNDS"), *s = getenv ("SEED");
  unsigned i, nr = rounds ? atoi (rounds) : 4;

  seed = s ? strtoull (s, NULL, 10) : 1;
  for (i = 0; i < nr; ++i, ++seed) {
    rng = rng_make (seed, 1);
    one_round ();
  }
  for (i = 0; i < 5; ++i)
    if (met[i] == 0)
      die ("no block of class %u", i);
  return 0;
}

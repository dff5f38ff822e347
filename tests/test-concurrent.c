/* SPDX-License-Identifier: BSD-3-Clause */

/* Everything at once: clients of several volumes that read, write, trim and
 * flush, while volumes are made, destroyed under their clients, resized,
 * renamed and given other properties, golden images and clones come and go,
 * and "stat", "list", "check", "scrub" and "drift" look at it all, while the
 * server's sampler, and others, record how they drift.  Caches are as small
 * as they may be.
 *
 * What test-model checks of data and figures is not repeated: here the
 * kinds of threads are many.  It is most worth in a build with TSan or
 * ASan.  CONCURRENT_SECONDS (default 4) and SEED come from the environment.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>

#include "nbdedup.h"
#include "pool.h"
#include "testutil.h"

#define NR_STEADY 3             /* volumes that stay, and keep their data */
#define NR_VICTIMS 3            /* those that come and go */
#define NR_WRITERS 4            /* of steady volumes */
#define NR_GUESTS 3             /* clients of the others */
#define NR_DUPS 30
#define STEADY_BYTES (UINT32_C (2) << 20)
#define VICTIM_BYTES (UINT32_C (1) << 20)
#define MOVING_BYTES (UINT32_C (1) << 20)
#define GOLDEN_BYTES (UINT32_C (4) << 20)
#define MAX_REQUEST (UINT32_C (256) << 10)
/* All who write in the same period write equal contents. */
#define EQUAL_MS 20

static struct nbdedup_pool *pool;
static char directory[PATH_MAX];
static uint64_t seed;
static atomic_bool stop;
static atomic_uint nr_requests, nr_commands, nr_cut_off;

static struct steady {
  char name[8];
  uint32_t block_size;
  uint8_t *data;                /* what it must contain */
} steady[NR_STEADY];

#define fatal(fmt, ...)                                         \
  die ("SEED=%" PRIu64 " line %d: " fmt, seed, __LINE__, ##__VA_ARGS__)

#define must(call)                                              \
  do {                                                          \
    if ((call) != 0)                                            \
      fatal ("%s: %s", #call, nbdedup_error ());                \
  } while (0)

static uint64_t
now_ms (void)
{
  struct timespec ts;

  clock_gettime (CLOCK_MONOTONIC, &ts);
  return (uint64_t) ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static void
sleep_ms (uint64_t ms)
{
  const struct timespec ts = { ms / 1000, ms % 1000 * 1000000 };

  nanosleep (&ts, NULL);
}

/* Run a command that may fail with 'error' (0: it may not). */
#define ANY_ERROR (-1)
static json_t *
try (const char *command, json_t *args, int error)
{
  json_t *result = nbdedup_call (pool, command, args);

  if (result == NULL && error != ANY_ERROR && (error == 0 || errno != error))
    fatal ("%s: %s", command, nbdedup_error ());
  json_decref (args);
  nr_commands++;
  return result;
}

static void
run (const char *command, json_t *args)
{
  json_decref (try (command, args, 0));
}

static struct nbdedup_volume *
open_volume (const char *name, unsigned flags)
{
  struct nbdedup_volume *v = nbdedup_volume_open (pool, name, flags, 0, NULL);

  if (v == NULL)
    fatal ("%s: %s", name, nbdedup_error ());
  return v;
}

/*----------------------------------------------------------------------
 * Volumes that stay: writer 'id' has every NR_WRITERS-th block
 */

static int
ignore_extent (void *opaque, uint64_t offset, uint64_t len, bool hole)
{
  (void) opaque;
  (void) offset;
  (void) len;
  (void) hole;
  return 0;
}

static void
change_block (struct steady *s, struct nbdedup_volume *v, uint64_t block,
              uint8_t *buf, struct rng *rng)
{
  uint64_t offset = block * s->block_size, len = s->block_size;
  unsigned n = rng_below (rng, 100);

  if (n < 30)                   /* part of it */
    len = rng_between (rng, 1, s->block_size);
  if (n < 50)
    fill_content (buf, len, len, NR_DUPS, rng);
  else if (n < 85)
    fill_compressible (buf, len, seed + now_ms () / EQUAL_MS);
  else
    memset (buf, 0, len);
  if (n < 93)
    must (nbdedup_volume_write (v, buf, len, offset));
  else if (n < 96)
    must (nbdedup_volume_zero (v, len, offset));
  else
    must (nbdedup_volume_trim (v, len, offset));
  memcpy (s->data + offset, buf, len);
}

static void
look_at_block (struct steady *s, struct nbdedup_volume *v, uint64_t block,
               uint8_t *buf)
{
  uint64_t offset = block * s->block_size;

  must (nbdedup_volume_read (v, buf, s->block_size, offset));
  if (memcmp (buf, s->data + offset, s->block_size) != 0)
    fatal ("volume %s: block %" PRIu64 " is not what was written", s->name,
           block);
}

/* Others write there: only that it succeeds. */
static void
look_around (struct nbdedup_volume *v, uint8_t *buf, struct rng *rng)
{
  uint64_t size = nbdedup_volume_size (v);
  uint64_t offset = rng_below (rng, size), len = size - offset;

  if (len > MAX_REQUEST)
    len = MAX_REQUEST;
  switch (rng_below (rng, 6)) {
  case 0:
    must (nbdedup_volume_extents (v, size, 0, ignore_extent, NULL));
    break;
  case 1:
    must (nbdedup_volume_cache (v, len, offset));
    break;
  case 2:
    must (nbdedup_volume_flush (v));
    break;
  case 3:
    must (nbdedup_volume_flush_range (v, len, offset));
    break;
  default:
    must (nbdedup_volume_read (v, buf, len, offset));
  }
}

static void *
writer (void *arg)
{
  unsigned id = (uintptr_t) arg, i;
  struct rng rng = rng_make (seed, 100 + id);
  uint8_t *buf = xmalloc (MAX_REQUEST);

  while (!stop) {
    struct steady *s = &steady[rng_below (&rng, NR_STEADY)];
    struct nbdedup_volume *v = open_volume (s->name, NBDEDUP_VOLUME_ADMIN);
    uint64_t nr = STEADY_BYTES / s->block_size / NR_WRITERS, block;

    for (i = 0; i < 100 && !stop; ++i) {
      block = rng_below (&rng, nr) * NR_WRITERS + id;
      if (rng_percent (&rng, 55))
        change_block (s, v, block, buf, &rng);
      else if (rng_percent (&rng, 80))
        look_at_block (s, v, block, buf);
      else
        look_around (v, buf, &rng);
      nr_requests++;
    }
    nbdedup_volume_close (v);
  }
  free (buf);
  return NULL;
}

static void
verify_data (const char *when)
{
  uint8_t *buf = xmalloc (STEADY_BYTES);
  struct nbdedup_volume *v;
  unsigned i;

  for (i = 0; i < NR_STEADY; ++i) {
    v = open_volume (steady[i].name, NBDEDUP_VOLUME_ADMIN);
    must (nbdedup_volume_read (v, buf, STEADY_BYTES, 0));
    if (memcmp (buf, steady[i].data, STEADY_BYTES) != 0)
      fatal ("%s: volume %s: byte %zu is not what was written", when,
             steady[i].name,
             first_difference (buf, steady[i].data, STEADY_BYTES));
    nbdedup_volume_close (v);
  }
  free (buf);
}

/*----------------------------------------------------------------------
 * Volumes that come and go under their clients
 */

static void
victim_name (struct rng *rng, char name[8])
{
  snprintf (name, 8, "x%u", (unsigned) rng_below (rng, NR_VICTIMS));
}

/* Make, wait, destroy. */
static void *
destroyer (void *arg)
{
  unsigned id = (uintptr_t) arg;
  struct rng rng = rng_make (seed, 200 + id);
  json_t *args, *result;
  char name[8];
  bool force;

  while (!stop) {
    victim_name (&rng, name);
    json_decref (try ("create", json_pack ("{s:s,s:I,s:i}", "name", name,
                                           "size", (json_int_t) VICTIM_BYTES,
                                           "block-size",
                                           4096 << rng_below (&rng, 3)),
                      EEXIST));
    sleep_ms (rng_below (&rng, 15));
    victim_name (&rng, name);
    force = rng_percent (&rng, 80);
    args = json_pack ("{s:s,s:b,s:b,s:b}", "name", name, "force", force,
                      "wait", rng_percent (&rng, 10),
                      "dry-run", rng_percent (&rng, 10));
    result = nbdedup_call (pool, "destroy", args);
    if (result == NULL && errno != ENOENT && !(errno == EBUSY && !force))
      fatal ("destroy: %s", nbdedup_error ());
    json_decref (args);
    json_decref (result);
    nr_commands++;
  }
  return NULL;
}

/* One request; false: the volume is gone. */
static bool
guest_request (struct nbdedup_volume *v, uint64_t offset, uint32_t len,
               uint8_t *buf, uint8_t *found, struct rng *rng)
{
  int r;

  switch (rng_below (rng, 8)) {
  case 0:
    r = nbdedup_volume_flush (v);
    break;
  case 1:
    r = nbdedup_volume_trim (v, len, offset);
    break;
  case 2:
    r = nbdedup_volume_flush_range (v, len, offset);
    break;
  case 3:
    r = nbdedup_volume_extents (v, VICTIM_BYTES, 0, ignore_extent, NULL);
    break;
  default:
    fill_content (buf, len, 4096, NR_DUPS, rng);
    r = nbdedup_volume_write (v, buf, len, offset);
    if (r == 0)
      r = nbdedup_volume_read (v, found, len, offset);
    if (r == 0 && memcmp (buf, found, len) != 0)
      fatal ("a volume's bytes are not what was written");
  }
  if (r == -1 && errno != ESHUTDOWN)
    fatal ("a request to a volume that may go: %s", nbdedup_error ());
  nr_requests++;
  return r == 0;
}

/* Each has a part of any victim for itself; several attach at once. */
static void *
guest (void *arg)
{
  unsigned id = (uintptr_t) arg, i;
  struct rng rng = rng_make (seed, 300 + id);
  uint8_t *buf = xmalloc (MAX_REQUEST), *found = xmalloc (MAX_REQUEST);
  uint32_t part = VICTIM_BYTES / NR_GUESTS / 4096 * 4096, len;
  struct nbdedup_volume *v;
  uint64_t offset;
  char name[8];

  while (!stop) {
    victim_name (&rng, name);
    v = nbdedup_volume_open (pool, name, rng_percent (&rng, 5)
                             ? NBDEDUP_VOLUME_EXCLUSIVE : 0, 0, NULL);
    if (v == NULL) {
      if (errno != ENOENT && errno != EBUSY)
        fatal ("%s: %s", name, nbdedup_error ());
      sleep_ms (1);
      continue;
    }
    for (i = rng_below (&rng, 200); i > 0 && !stop; --i) {
      offset = rng_below (&rng, part);
      len = rng_between (&rng, 1, part - offset < 40000 ? part - offset
                         : 40000);
      if (!guest_request (v, id * part + offset, len, buf, found, &rng)) {
        nr_cut_off++;
        break;
      }
    }
    nbdedup_volume_close (v);
  }
  free (buf);
  free (found);
  return NULL;
}

/*----------------------------------------------------------------------
 * Golden images: snapshots of s0, whose clones are written, frozen, rolled
 * back and destroyed; and what is said about them
 */

static void
write_clone (const char *name, struct rng *rng)
{
  uint8_t buf[16384];
  struct nbdedup_volume *v;

  v = nbdedup_volume_open (pool, name, 0, 0, NULL);
  if (v == NULL) {
    /* "allow" is s0's, which the setter changes. */
    if (errno != ENOENT && errno != EBUSY && errno != EACCES)
      fatal ("%s: %s", name, nbdedup_error ());
    return;
  }
  fill_content (buf, sizeof buf, 4096, NR_DUPS, rng);
  if (nbdedup_volume_write (v, buf, sizeof buf, rng_below (rng, STEADY_BYTES -
                                                           sizeof buf)) == -1
      && errno != ESHUTDOWN)
    fatal ("%s: %s", name, nbdedup_error ());
  nbdedup_volume_close (v);
  nr_requests++;
}

/* One of those that may fail because somebody else was quicker. */
static void
try_late (const char *command, json_t *args)
{
  json_t *result = nbdedup_call (pool, command, args);

  if (result == NULL && errno != ENOENT && errno != EEXIST && errno != EBUSY)
    fatal ("%s: %s", command, nbdedup_error ());
  json_decref (args);
  json_decref (result);
  nr_commands++;
}

static void *
herder (void *arg)
{
  unsigned id = (uintptr_t) arg;
  struct rng rng = rng_make (seed, 1000 + id);
  char golden[24], clone[24], snapshot[48];

  while (!stop) {
    snprintf (golden, sizeof golden, "s0@g%u", (unsigned) rng_below (&rng, 2));
    snprintf (clone, sizeof clone, "k%u", (unsigned) rng_below (&rng, 4));
    snprintf (snapshot, sizeof snapshot, "%s@a", clone);
    switch (rng_below (&rng, 10)) {
    case 0:
      try_late ("snapshot", json_pack ("{s:s}", "name", golden));
      break;
    case 1 ... 2:
      try_late ("clone", json_pack ("{s:s,s:s}", "snapshot",
                                    rng_percent (&rng, 70) ? golden :
                                    snapshot, "name", clone));
      break;
    case 3:
      try_late ("snapshot", json_pack ("{s:s}", "name", snapshot));
      break;
    case 4:
      try_late ("rollback", json_pack ("{s:s,s:b}", "name", snapshot,
                                       "force", 1));
      break;
    case 5:
      try_late ("destroy", json_pack ("{s:s,s:b,s:b}", "name",
                                      rng_percent (&rng, 30) ? golden : clone,
                                      "recursive", 1, "force", 1));
      break;
    default:
      write_clone (clone, &rng);
    }
  }
  return NULL;
}

static void *
measurer (void *arg)
{
  struct rng rng = rng_make (seed, 1100);

  (void) arg;
  while (!stop) {
    if (rng_percent (&rng, 50))
      try_late ("drift", json_pack ("{s:b}", "record",
                                    rng_percent (&rng, 50)));
    else if (rng_percent (&rng, 50))
      try_late ("drift-history", json_pack ("{s:s}", "name", "s0@g0"));
    else
      try_late ("drift-freed", json_pack ("{s:[s]}", "names", "k1"));
    sleep_ms (rng_below (&rng, 10));
  }
  return NULL;
}

/*----------------------------------------------------------------------
 * A volume that changes its name and its size
 */

static json_t *
resize (const char *name, uint32_t size, int error)
{
  return try ("resize", json_pack ("{s:s,s:I,s:b}", "name", name, "size",
                                   (json_int_t) size, "shrink", 1), error);
}

static void *
mover (void *arg)
{
  static char name[8] = "m0";   /* for the next phase, too */
  struct rng rng = rng_make (seed, 400);
  uint8_t *buf = xmalloc (MOVING_BYTES);
  char other[8];
  const uint32_t size = MOVING_BYTES;
  uint32_t smaller;
  struct nbdedup_volume *v;
  json_t *result;

  (void) arg;
  while (!stop) {
    v = open_volume (name, 0);
    fill_content (buf, size, 4096, NR_DUPS, &rng);
    must (nbdedup_volume_write (v, buf, size, 0));
    nbdedup_volume_close (v);

    /* Somebody else may be attached: then it keeps its size. */
    smaller = rng_between (&rng, 1, size / 512) * 512;
    result = resize (name, smaller, EBUSY);
    if (result != NULL) {
      json_decref (result);
      json_decref (resize (name, size, 0));
      v = open_volume (name, 0);
      must (nbdedup_volume_read (v, buf, size - smaller, smaller));
      if (!all_zero (buf, size - smaller))
        fatal ("what shrinking dropped is back");
      nbdedup_volume_close (v);
    }
    snprintf (other, sizeof other, "m%u", (unsigned) rng_below (&rng, 3));
    if (strcmp (name, other) != 0) {
      run ("rename", json_pack ("{s:s,s:s}", "old", name, "new", other));
      memcpy (name, other, sizeof name);
    }
  }
  free (buf);
  return NULL;
}

/* Attaches to it whatever its name is, and asks for what is refused:
 * messages have the volume's name.
 */
static void *
follower (void *arg)
{
  struct rng rng = rng_make (seed, 500);
  struct nbdedup_volume *v;
  uint8_t buf[512];
  char name[8];
  int r;

  (void) arg;
  while (!stop) {
    snprintf (name, sizeof name, "m%u", (unsigned) rng_below (&rng, 3));
    v = nbdedup_volume_open (pool, name, NBDEDUP_VOLUME_READONLY, 0, NULL);
    if (v == NULL) {
      if (errno != ENOENT && errno != EBUSY)
        fatal ("%s: %s", name, nbdedup_error ());
      sleep_ms (1);
      continue;
    }
    must (nbdedup_volume_read (v, buf, sizeof buf, 0));
    r = nbdedup_volume_read (v, buf, 1, nbdedup_volume_size (v));
    if (r != -1 || errno != EINVAL)
      fatal ("a read past the end was not refused");
    r = nbdedup_volume_write (v, buf, 1, 0);
    if (r != -1 || errno != EROFS)
      fatal ("a write was not refused");
    nbdedup_volume_close (v);
    nr_requests += 3;
    sleep_ms (rng_below (&rng, 5));
  }
  return NULL;
}

/*----------------------------------------------------------------------
 * A golden image, clones of it and of each other, and who measures them
 */

#define NR_CLONES 4

/* Clones come, diverge and go; a name may be taken or gone already. */
static void *
cloner (void *arg)
{
  unsigned id = (uintptr_t) arg;
  struct rng rng = rng_make (seed, 1000 + id);
  uint8_t *buf = xmalloc (MAX_REQUEST);
  struct nbdedup_volume *v;
  char name[16], origin[32];
  uint32_t len;

  while (!stop) {
    snprintf (name, sizeof name, "k%u-%u", id,
              (unsigned) rng_below (&rng, NR_CLONES));
    snprintf (origin, sizeof origin, "%s", "g0@v1");
    if (rng_percent (&rng, 30))
      snprintf (origin, sizeof origin, "k%u-%u@s", id,
                (unsigned) rng_below (&rng, NR_CLONES));
    json_decref (try ("clone", json_pack ("{s:s,s:s}", "snapshot", origin,
                                          "name", name), ANY_ERROR));
    v = nbdedup_volume_open (pool, name, 0, 0, NULL);
    if (v) {
      len = rng_between (&rng, 1, MAX_REQUEST);
      fill_content (buf, len, 4096, NR_DUPS, &rng);
      must (nbdedup_volume_write (v, buf, len,
                                  rng_below (&rng, GOLDEN_BYTES - len)));
      nbdedup_volume_close (v);
    }
    snprintf (origin, sizeof origin, "%s@s", name);
    if (rng_percent (&rng, 30))
      json_decref (try ("snapshot", json_pack ("{s:s}", "name", origin),
                        ANY_ERROR));
    if (rng_percent (&rng, 40))
      json_decref (try ("destroy", json_pack ("{s:s,s:b,s:b}", "name", name,
                                              "recursive", 1, "force", 1),
                        ANY_ERROR));
    sleep_ms (rng_below (&rng, 3));
  }
  free (buf);
  return NULL;
}

static json_int_t
figure (json_t *object, const char *key)
{
  return json_integer_value (json_object_get (object, key));
}

/* A document is of one moment, whatever happens meanwhile. */
static void
expect_document (json_t *document)
{
  json_t *fleet = json_object_get (document, "fleet"), *clone;
  json_int_t logical = figure (document, "golden_blocks");
  json_int_t blocks = GOLDEN_BYTES / 4096;
  bool is_ours = strcmp (json_string_value (json_object_get (document,
                                                             "golden")),
                         "g0@v1") == 0;
  size_t i;

  json_array_foreach (json_object_get (document, "clones"), i, clone) {
    if (figure (clone, "golden_same") + figure (clone, "golden_moved") +
        figure (clone, "sibling") + figure (clone, "unique") !=
        figure (clone, "logical") ||
        (is_ours &&
         figure (clone, "logical") + figure (clone, "zero") != blocks))
      fatal ("drift: the classes of %s do not add up",
             json_string_value (json_object_get (clone, "name")));
    logical += figure (clone, "logical");
  }
  if (figure (fleet, "logical") != logical ||
      figure (fleet, "distinct") > logical)
    fatal ("drift: the fleet's figures do not add up");
}

static void *
drifter (void *arg)
{
  struct rng rng = rng_make (seed, 1100);
  json_t *result, *document;
  char name[16];
  size_t i;

  (void) arg;
  while (!stop) {
    result = try ("drift", json_pack ("{s:s,s:i}", "name", "g0@v1", "memory",
                                      1 << 20), 0);
    expect_document (result);
    json_decref (result);
    result = try ("drift", NULL, 0);
    json_array_foreach (json_object_get (result, "goldens"), i, document)
      expect_document (document);
    json_decref (result);
    snprintf (name, sizeof name, "k0-%u",
              (unsigned) rng_below (&rng, NR_CLONES));
    json_decref (try ("drift-freed", json_pack ("{s:[s,s]}", "names", "g0",
                                                name), ENOENT));
    json_decref (try ("stat", json_pack ("{s:s,s:b}", "name", "g0@v1", "ddt",
                                         1), 0));
    sleep_ms (rng_below (&rng, 5));
  }
  return NULL;
}

/*----------------------------------------------------------------------
 * Those who look, and who turn the knobs
 */

static int
count_volume (void *opaque, const char *name, uint64_t size, bool readonly)
{
  (void) name;
  (void) size;
  (void) readonly;
  ++*(unsigned *) opaque;
  return 0;
}

static void
expect_no_errors (const char *command)
{
  json_t *result = try (command, NULL, 0), *text;
  size_t i;

  if (json_integer_value (json_object_get (result, "errors")) != 0) {
    json_array_foreach (json_object_get (result, "problems"), i, text)
      fprintf (stderr, "check: %s\n", json_string_value (text));
    fatal ("%s found errors", command);
  }
  json_decref (result);
}

static void
expect_sum (void)
{
  json_t *stat = try ("stat", json_pack ("{s:b}", "ddt", 1), 0), *volume;
  json_int_t logical = json_integer_value (
    json_object_get (json_object_get (stat, "pool"), "logical_bytes"));
  size_t i;

  json_array_foreach (json_object_get (stat, "volumes"), i, volume)
    logical -= json_integer_value (json_object_get (volume, "logical_bytes"));
  if (logical != 0)
    fatal ("stat: logical_bytes of the pool is not the sum of the volumes'");
  json_decref (stat);
}

static void *
observer (void *arg)
{
  struct rng rng = rng_make (seed, 600);
  unsigned nr;

  (void) arg;
  while (!stop) {
    switch (rng_below (&rng, 24)) {
    case 0:
      expect_no_errors ("check");
      break;
    case 1:
      expect_no_errors ("scrub");
      break;
    case 2 ... 8:
      run ("list", NULL);
      break;
    case 9:
      run ("get", json_pack ("{s:s,s:s}", "property", "all", "name", "s0"));
      run ("get", json_pack ("{s:s}", "property", "all"));
      break;
    case 10 ... 12:
      run ("stat", NULL);
      break;
    case 13:
      run ("destroy", json_pack ("{s:s,s:b}", "name", "s1", "dry-run", 1));
      break;
    case 14:
      nr = 0;
      must (nbdedup_pool_list (pool, count_volume, &nr));
      if (nr < NR_STEADY)
        fatal ("%u volumes are listed", nr);
      break;
    default:
      expect_sum ();
    }
    sleep_ms (rng_below (&rng, 3));
  }
  return NULL;
}

static void *
setter (void *arg)
{
  static const struct {
    const char *property, *values[4];
    bool of_pool;
  } knobs[] = {
    { "compress", { "none", "lz4", "zstd", "zstd-9" }, false },
    { "dedup", { "on", "off", "verify", "on" }, false },
    { "allow", { "all", "0", "0,1000", "CN=somebody" }, false },
    { "ddt-quota", { "none", "20000", "none", "100000" }, true },
    { "compress", { "none", "lz4", "zstd", "lz4" }, true },
  };
  struct rng rng = rng_make (seed, 700);
  unsigned k, value;

  (void) arg;
  while (!stop) {
    k = rng_below (&rng, sizeof knobs / sizeof knobs[0]);
    value = rng_below (&rng, 4);
    run ("set", json_pack ("{s:s,s:s,s:s*}",
                           "property", knobs[k].property,
                           "value", knobs[k].values[value],
                           "name", knobs[k].of_pool ? NULL :
                           steady[rng_below (&rng, NR_STEADY)].name));
    sleep_ms (rng_below (&rng, 10));
  }
  return NULL;
}

/* A client of the server's socket: "nbdedup", while a server has the pool. */
static void
use_remote (struct nbdedup_client *client, uint8_t *buf, struct rng *rng)
{
  unsigned i = rng_below (rng, NR_STEADY);
  struct nbdedup_remote *r;

  r = nbdedup_client_volume_open (client, steady[i].name,
                                  NBDEDUP_VOLUME_READONLY);
  if (r == NULL) {
    if (errno != EACCES)        /* see setter */
      fatal ("%s: %s", steady[i].name, nbdedup_error ());
    return;
  }
  for (i = rng_below (rng, 10); i > 0; --i)
    must (nbdedup_remote_read (r, buf, MAX_REQUEST,
                               rng_below (rng, STEADY_BYTES - MAX_REQUEST)));
  must (nbdedup_remote_extents (r, STEADY_BYTES, 0, ignore_extent, NULL));
  nbdedup_remote_close (r);
}

static void *
remote (void *arg)
{
  unsigned id = (uintptr_t) arg;
  struct rng rng = rng_make (seed, 800 + id);
  uint8_t *buf = xmalloc (MAX_REQUEST);
  struct nbdedup_client *client;
  json_t *result;

  while (!stop) {
    client = nbdedup_client_open (directory, NULL, "test-concurrent");
    if (client == NULL || !nbdedup_client_is_remote (client))
      fatal ("client: %s", nbdedup_error ());
    result = nbdedup_client_call (client, "list", NULL, NULL, NULL);
    if (result == NULL)
      fatal ("list: %s", nbdedup_error ());
    json_decref (result);
    nr_commands++;
    use_remote (client, buf, &rng);
    must (nbdedup_client_close (client));
    sleep_ms (rng_below (&rng, 5));
  }
  free (buf);
  return NULL;
}

/* Folds come by themselves as well, beside any command. */
static void *
folder (void *arg)
{
  struct rng rng = rng_make (seed, 900);

  (void) arg;
  while (!stop) {
    must (txg_run (pool->txg, NULL, NULL, NULL));
    sleep_ms (rng_below (&rng, 4));
  }
  return NULL;
}

/*----------------------------------------------------------------------*/

static void
open_pool (enum nbdedup_primarycache primarycache)
{
  struct nbdedup_settings settings;

  nbdedup_settings_init (&settings);
  settings.ddt_cache_bytes = NBDEDUP_DDT_CACHE_MIN;
  settings.dirty_max_bytes = NBDEDUP_DIRTY_MAX_MIN;
  settings.record_cache_bytes = 256 << 10;
  settings.commit_interval_ms = 20;
  settings.nr_workers = 3;
  settings.drift_interval_s = 1;
  settings.primarycache = primarycache;
  pool = nbdedup_pool_open (directory, &settings, "test-concurrent",
                            NBDEDUP_OPEN_SERVER);
  if (pool == NULL)
    fatal ("open: %s", nbdedup_error ());
}

static void
make_golden (void)
{
  struct rng rng = rng_make (seed, 1200);
  uint8_t *buf = xmalloc (GOLDEN_BYTES);
  struct nbdedup_volume *v;

  run ("create", json_pack ("{s:s,s:I,s:i}", "name", "g0", "size",
                            (json_int_t) GOLDEN_BYTES, "block-size", 4096));
  fill_content (buf, GOLDEN_BYTES, 4096, NR_DUPS, &rng);
  v = open_volume ("g0", 0);
  must (nbdedup_volume_write (v, buf, GOLDEN_BYTES, 0));
  nbdedup_volume_close (v);
  free (buf);
  run ("snapshot", json_pack ("{s:s}", "name", "g0@v1"));
}

static void
make_pool (void)
{
  unsigned i;

  snprintf (directory, sizeof directory, "%s/test-concurrent-XXXXXX",
            fast_directory ());
  if (mkdtemp (directory) == NULL)
    fatal ("%s: %s", directory, strerror (errno));
  must (nbdedup_pool_create (directory, NULL));
  open_pool (NBDEDUP_CACHE_ALL);
  for (i = 0; i < NR_STEADY; ++i) {
    snprintf (steady[i].name, sizeof steady[i].name, "s%u", i);
    steady[i].block_size = 4096 << (2 * i);
    steady[i].data = xcalloc (STEADY_BYTES, 1);
    run ("create", json_pack ("{s:s,s:I,s:i}", "name", steady[i].name, "size",
                              (json_int_t) STEADY_BYTES, "block-size",
                              (int) steady[i].block_size));
  }
  run ("create", json_pack ("{s:s,s:I}", "name", "m0", "size",
                            (json_int_t) MOVING_BYTES));
  make_golden ();
  must (nbdedup_pool_close (pool));
}

static void
run_all (uint64_t ms)
{
  static const struct {
    void *(*fn) (void *);
    unsigned nr;
  } kinds[] = {
    { writer, NR_WRITERS }, { guest, NR_GUESTS }, { destroyer, 2 },
    { mover, 1 }, { follower, 1 }, { observer, 1 }, { setter, 1 },
    { remote, 2 }, { folder, 1 }, { cloner, 2 }, { measurer, 1 },
    { herder, 2 }, { drifter, 1 },
  };
  pthread_t threads[32];
  unsigned nr = 0, i;
  uintptr_t id;

  stop = false;
  for (i = 0; i < sizeof kinds / sizeof kinds[0]; ++i)
    for (id = 0; id < kinds[i].nr; ++id)
      if (pthread_create (&threads[nr++], NULL, kinds[i].fn,
                          (void *) id) != 0)
        die ("pthread_create failed");
  sleep_ms (ms);
  stop = true;
  while (nr > 0)
    pthread_join (threads[--nr], NULL);
}

static void
end_pool (void)
{
  verify_data ("at the end of a phase");
  expect_no_errors ("check");
  expect_no_errors ("scrub");
  must (nbdedup_pool_close (pool));
}

int
main (void)
{
  uint64_t ms = 1000 * number_from_environment ("CONCURRENT_SECONDS", 4);
  static const enum nbdedup_primarycache caches[] = {
    NBDEDUP_CACHE_ALL, NBDEDUP_CACHE_METADATA, NBDEDUP_CACHE_NONE,
  };
  char command[PATH_MAX + 20];
  unsigned i;

  seed = seed_from_environment ();
  printf ("SEED=%" PRIu64 "\n", seed);
  fflush (stdout);
  make_pool ();
  for (i = 0; i < 3; ++i) {
    open_pool (caches[i]);
    verify_data ("after opening");
    run_all (ms / 3);
    end_pool ();
  }
  snprintf (command, sizeof command, "rm -rf '%s'", directory);
  if (system (command) != 0)
    die ("%s", command);
  for (i = 0; i < NR_STEADY; ++i)
    free (steady[i].data);
  printf ("%u requests, %u commands, %u clients cut off\n", nr_requests,
          nr_commands, nr_cut_off);
  return 0;
}

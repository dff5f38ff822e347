/* SPDX-License-Identifier: BSD-3-Clause */

/* Golden images and their clones.  See concurrent.h. */

#include <config.h>

#include <errno.h>

#include "modules/concurrent.h"

#define GOLDEN_BYTES (UINT32_C (4) << 20)

/*----------------------------------------------------------------------
 * Golden images: snapshots of s0, whose clones are written, frozen, rolled
 * back and destroyed, and the commands that measure them
 */

static void
write_clone (const char *name, struct rng *rng)
{
  uint8_t buf[16384];
  struct nbdedup_volume *v;

  v = nbdedup_volume_open (pool, name, 0, 0, NULL);
  if (v == NULL) {
    /* A clone has the property "allow" of s0, which the setter changes. */
    if (errno != ENOENT && errno != EBUSY && errno != EACCES)
      fatal ("%s: %s", name, nbdedup_error ());
    return;
  }
  fill_content (buf, sizeof buf, 4096, NR_DUPS, rng);
  if (nbdedup_volume_write (v, buf, sizeof buf,
                            rng_below (rng, STEADY_BYTES - sizeof buf)) == -1 &&
      errno != ESHUTDOWN)
    fatal ("%s: %s", name, nbdedup_error ());
  nbdedup_volume_close (v);
  nr_requests++;
}

/* Run a command that may fail because another thread was quicker. */
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

void *
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
      try_late ("clone",
                json_pack ("{s:s,s:s}", "snapshot",
                           rng_percent (&rng, 70) ? golden : snapshot, "name",
                           clone));
      break;
    case 3:
      try_late ("snapshot", json_pack ("{s:s}", "name", snapshot));
      break;
    case 4:
      try_late ("rollback",
                json_pack ("{s:s,s:b}", "name", snapshot, "force", 1));
      break;
    case 5:
      try_late ("destroy",
                json_pack ("{s:s,s:b,s:b}", "name",
                           rng_percent (&rng, 30) ? golden : clone, "recursive",
                           1, "force", 1));
      break;
    default:
      write_clone (clone, &rng);
    }
  }
  return NULL;
}

void *
measurer (void *arg)
{
  struct rng rng = rng_make (seed, 1100);

  (void) arg;
  while (!stop) {
    if (rng_percent (&rng, 50))
      try_late ("drift", json_pack ("{s:b}", "record", rng_percent (&rng, 50)));
    else if (rng_percent (&rng, 50))
      try_late ("drift-history", json_pack ("{s:s}", "name", "s0@g0"));
    else
      try_late ("drift-freed", json_pack ("{s:[s]}", "names", "k1"));
    clock_sleep_ms (rng_below (&rng, 10));
  }
  return NULL;
}

/*----------------------------------------------------------------------
 * A golden image, clones of it and of each other, and drift of them
 */

#define NR_CLONES 4

/* Make, write and destroy clones.  A name may exist already, or be gone. */
void *
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
    json_decref (try ("clone",
                      json_pack ("{s:s,s:s}", "snapshot", origin, "name", name),
                      ANY_ERROR));
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
      json_decref (
        try ("snapshot", json_pack ("{s:s}", "name", origin), ANY_ERROR));
    if (rng_percent (&rng, 40))
      json_decref (try ("destroy",
                        json_pack ("{s:s,s:b,s:b}", "name", name, "recursive",
                                   1, "force", 1),
                        ANY_ERROR));
    clock_sleep_ms (rng_below (&rng, 3));
  }
  free (buf);
  return NULL;
}

static json_int_t
figure (json_t *object, const char *key)
{
  return json_integer_value (json_object_get (object, key));
}

/* A document describes one moment, whatever other threads do. */
static void
expect_document (json_t *document)
{
  json_t *fleet = json_object_get (document, "fleet"), *clone;
  json_int_t logical = figure (document, "golden_blocks");
  json_int_t blocks = GOLDEN_BYTES / 4096;
  bool is_ours = strcmp (json_string_value (
                           json_object_get (document, "golden")),
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

void *
drifter (void *arg)
{
  struct rng rng = rng_make (seed, 1100);
  json_t *result, *document;
  char name[16];
  size_t i;

  (void) arg;
  while (!stop) {
    result = try ("drift",
                  json_pack ("{s:s,s:i}", "name", "g0@v1", "memory", 1 << 20),
                  0);
    expect_document (result);
    json_decref (result);
    result = try ("drift", NULL, 0);
    json_array_foreach (json_object_get (result, "goldens"), i, document)
      expect_document (document);
    json_decref (result);
    snprintf (name, sizeof name, "k0-%u",
              (unsigned) rng_below (&rng, NR_CLONES));
    json_decref (try ("drift-freed",
                      json_pack ("{s:[s,s]}", "names", "g0", name), ENOENT));
    json_decref (
      try ("stat", json_pack ("{s:s,s:b}", "name", "g0@v1", "ddt", 1), 0));
    clock_sleep_ms (rng_below (&rng, 5));
  }
  return NULL;
}

void
make_golden (void)
{
  struct rng rng = rng_make (seed, 1200);
  uint8_t *buf = xmalloc (GOLDEN_BYTES);
  struct nbdedup_volume *v;

  run ("create",
       json_pack ("{s:s,s:I,s:i}", "name", "g0", "size",
                  (json_int_t) GOLDEN_BYTES, "block-size", 4096));
  fill_content (buf, GOLDEN_BYTES, 4096, NR_DUPS, &rng);
  v = open_volume ("g0", 0);
  must (nbdedup_volume_write (v, buf, GOLDEN_BYTES, 0));
  nbdedup_volume_close (v);
  free (buf);
  run ("snapshot", json_pack ("{s:s}", "name", "g0@v1"));
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* Commands.  See soak.h. */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <fcntl.h>

#include "soak/soak.h"

/* How long to wait: a client's thread notices late that it was cut off. */
#define GONE_MS 60000

#define MAX_SIZE (UINT64_C (4) << 20) /* of a volume */

/* With OPERATIONS all volumes have nearly the same size, and nearly all places
 * are in use, so that there is about the same amount of data all the time.
 */
static uint64_t
pick_size (struct rng *rng)
{
  const uint64_t least = soak.operations ? MAX_SIZE / 8 * 7 : MAX_SIZE / 8;

  return rng_between (rng, least / 512, MAX_SIZE / 512) * 512;
}

static uint32_t
pick_block_size (unsigned place, struct rng *rng)
{
  static const uint32_t sizes[NR_CLASSES] = { 4096, 16384, 65536 };

  return soak.operations ? sizes[place % NR_CLASSES]
                         : UINT32_C (4096) << rng_below (rng, 9);
}

static struct image *
new_volume (const char *name, unsigned place, struct rng *rng)
{
  uint32_t block_size = pick_block_size (place, rng);

  return image_new (name, NULL, block_size, pick_size (rng),
                    MAX_SIZE / block_size);
}

/* The figures must not depend on chance, so with OPERATIONS there is always
 * about the same number of images.  In the first tenth there are more, and
 * requests are larger: files never shrink, and grow in large steps, so they
 * reach their final size there.
 */
static unsigned
images_wanted (void)
{
  if (soak.operations == 0)
    return MAX_VOLUMES * (1 + MAX_SNAPS);
  return nr_requests < soak.operations / 10 ? 42 : 28;
}

static bool
more_wanted (void)
{
  return nr_images < images_wanted ();
}

static bool
fewer_wanted (void)
{
  return soak.operations == 0 || nr_images + 2 > images_wanted ();
}

/*----------------------------------------------------------------------
 * Picking images
 */

static void
done (struct image *image)
{
  pthread_rwlock_unlock (&image->admin);
  image_unref (image);
}

/* Lock the image, or drop the reference. */
static struct image *
try_lock (struct image *image, bool exclusive)
{
  int r;

  if (image == NULL)
    return NULL;
  r = exclusive ? pthread_rwlock_trywrlock (&image->admin)
                : pthread_rwlock_tryrdlock (&image->admin);
  if (r == 0 && !image->gone)
    return image;
  if (r == 0)
    pthread_rwlock_unlock (&image->admin);
  image_unref (image);
  return NULL;
}

static struct image *
pick (struct rng *rng, bool exclusive)
{
  return try_lock (table_pick (rng), exclusive);
}

/* Pick a volume and a snapshot of it. */
static bool
pick_both (struct image **volume, bool volume_exclusive, struct image **snap,
           bool exclusive, struct rng *rng)
{
  *volume = pick (rng, volume_exclusive);
  if (*volume == NULL)
    return false;
  *snap = try_lock (table_pick_snap (*volume, rng), exclusive);
  if (*snap == NULL)
    done (*volume);
  return *snap != NULL;
}

static void
cut_off_begins (struct image *image)
{
  pthread_mutex_lock (&image->state);
  image->generation++;
  pthread_mutex_unlock (&image->state);
}

static void
cut_off_ended (struct image *image)
{
  pthread_mutex_lock (&image->state);
  image->cut_off = image->generation;
  pthread_mutex_unlock (&image->state);
}

/*----------------------------------------------------------------------
 * Volumes
 */

static void
do_create (struct rng *rng)
{
  static const char *const codecs[] = { "lz4", "zstd", "zstd-9", "none" };
  static const char *const dedups[] = { "on", "on", "on", "verify", "off" };
  const unsigned all = soak.operations ? 0 : 1;
  int place = more_wanted () ? table_reserve (1, ANY_CLASS, rng) : -1;
  struct image *image;
  char name[16];

  if (place == -1)
    return;
  snprintf (name, sizeof name, "v%d", place);
  image = new_volume (name, place, rng);
  if (rng_percent (rng, 15))
    strcpy (image->domain, "d1");
  run ("create",
       json_pack ("{s:s, s:I, s:i, s:s, s:s, s:s*}", "name", name, "size",
                  (json_int_t) image->size, "block-size",
                  (int) image->block_size, "compress",
                  codecs[rng_below (rng, 3 + all)], "dedup",
                  dedups[rng_below (rng, 4 + all)], "domain",
                  image->domain[0] ? image->domain : NULL),
       rng);
  table_set (place, image);
  nr_images++;
}

/* Lock all snapshots, too.  False: another command uses one of them. */
static bool
lock_snaps (struct image *volume)
{
  unsigned i, j;

  for (i = 0; i < MAX_SNAPS; ++i)
    if (volume->snaps[i] &&
        pthread_rwlock_trywrlock (&volume->snaps[i]->admin) != 0) {
      for (j = 0; j < i; ++j)
        if (volume->snaps[j])
          pthread_rwlock_unlock (&volume->snaps[j]->admin);
      return false;
    }
  return true;
}

static void
do_destroy (struct rng *rng)
{
  struct image *volume = fewer_wanted () ? pick (rng, true) : NULL, *snap;
  unsigned i;

  if (volume == NULL)
    return;
  if (!lock_snaps (volume)) {
    done (volume);
    return;
  }
  cut_off_begins (volume);
  for (i = 0; i < MAX_SNAPS; ++i)
    if (volume->snaps[i])
      cut_off_begins (volume->snaps[i]);
  run ("destroy",
       json_pack ("{s:s, s:b, s:b, s:b}", "name", volume->name, "recursive", 1,
                  "force", 1, "wait", (int) rng_percent (rng, 20)),
       rng);
  cut_off_ended (volume);
  volume->gone = true;
  for (i = 0; i < MAX_SNAPS; ++i) {
    snap = volume->snaps[i];
    if (snap == NULL)
      continue;
    cut_off_ended (snap);
    snap->gone = true;
    volume->snaps[i] = NULL;
    nr_images--;
    done (snap);
  }
  table_remove (volume);
  nr_images--;
  done (volume);
}

static void
do_rename (struct rng *rng)
{
  struct image *volume = pick (rng, true);
  char name[32];

  if (volume == NULL)
    return;
  snprintf (name, sizeof name, "%c%s", volume->name[0] == 'v' ? 'w' : 'v',
            volume->name + 1);
  run ("rename", json_pack ("{s:s, s:s}", "old", volume->name, "new", name),
       rng);
  memcpy (volume->name, name, sizeof volume->name);
  done (volume);
}

/* Ask clients to leave.  No new one can attach meanwhile. */
static void
shrink (struct image *volume, uint64_t size, struct rng *rng)
{
  const uint64_t end = clock_ms () + GONE_MS;
  json_t *result;

  volume->leave = true;
  while (volume->nr_handles > 0)
    clock_sleep_ms (1);
  do {
    result = transport_command ("resize",
                                json_pack ("{s:s, s:I, s:b}", "name",
                                           volume->name, "size",
                                           (json_int_t) size, "shrink", 1),
                                soak.plugin ? EBUSY : 0, rng);
    if (result == NULL)
      clock_sleep_ms (5);
  } while (result == NULL && clock_ms () < end);
  if (result == NULL)
    fatal ("%s: its clients do not go away", volume->name);
  json_decref (result);
  volume->leave = false;
}

static void
do_resize (struct rng *rng)
{
  struct image *volume = pick (rng, true);
  uint64_t size = pick_size (rng);

  if (volume == NULL)
    return;
  if (size < volume->size)
    shrink (volume, size, rng);
  else
    run ("resize",
         json_pack ("{s:s, s:I}", "name", volume->name, "size",
                    (json_int_t) size),
         rng);
  image_resize (volume, size);
  done (volume);
}

static void
do_set (struct rng *rng)
{
  static const struct {
    const char *property, *values[4];
    bool of_pool;
  } knobs[] = {
    { "compress", { "lz4", "zstd", "zstd-9", "lz4" }, false },
    { "dedup", { "on", "verify", "on", "on" }, false },
    { "allow", { "all", "all", "all", "all" }, false },
    { "full-warn", { "90", "80", "99", "90" }, true },
    { "compress", { "lz4", "zstd", "zstd", "lz4" }, true },
    /* Not while sizes are measured, because these change them: */
    { "metadata-copy", { "on", "off", "on", "on" }, true },
    { "compress", { "none", "none", "zstd", "lz4" }, false },
    { "dedup", { "off", "on", "off", "verify" }, false },
    { "ddt-quota", { "none", "20000", "none", "100000" }, true },
    { "copies", { "1", "2:1", "3:1", "2:2" }, true },
  };
  const unsigned nr = sizeof knobs / sizeof knobs[0];
  const unsigned k = rng_below (rng, soak.operations ? 5 : nr);
  struct image *volume = NULL;

  if (!knobs[k].of_pool && (volume = pick (rng, false)) == NULL)
    return;
  run ("set",
       json_pack ("{s:s, s:s, s:s*}", "property", knobs[k].property, "value",
                  knobs[k].values[rng_below (rng, 4)], "name",
                  volume ? volume->name : NULL),
       rng);
  if (volume)
    done (volume);
}

/*----------------------------------------------------------------------
 * Snapshots and clones
 */

/* Read a new snapshot for the first time, while its volume is written. */
static void
decide (struct window *window, struct image *snap, struct handle *h,
        struct rng *rng)
{
  const uint64_t bs = snap->block_size, nr = image_blocks (snap, snap->size);
  uint8_t *buf = xmalloc (bs);
  uint64_t b, len;

  if (rng_percent (rng, 30))
    clock_sleep_ms (rng_below (rng, 50));
  for (b = 0; b < nr; ++b) {
    len = snap->size - b * bs < bs ? snap->size - b * bs : bs;
    memset (buf, 0, bs);
    if (transport_request (h, REQUEST_READ, buf, len, b * bs, rng) == -1)
      fatal ("%s: read: %s (%s)", snap->name, strerror (errno),
             transport_error ());
    window_decide (window, snap, b, buf);
  }
  window_end (window, snap);
  free (buf);
}

static void
do_snapshot (struct rng *rng)
{
  struct image *volume = more_wanted () ? pick (rng, true) : NULL, *snap;
  unsigned i = rng_below (rng, MAX_SNAPS);
  char name[16], full[80];
  struct window *window;
  struct handle *h;

  if (volume == NULL)
    return;
  if (volume->snaps[i]) {
    done (volume);
    return;
  }
  snprintf (name, sizeof name, "s%u", i);
  snap = image_new (name, volume, volume->block_size, volume->size,
                    volume->max_blocks);
  pthread_rwlock_wrlock (&snap->admin);
  window = window_open (volume);
  run ("snapshot", json_pack ("{s:s}", "name", image_name (snap, full)), rng);
  window_close (volume, window);
  h = transport_open (snap, rng);
  volume->snaps[i] = image_ref (snap);
  nr_images++;
  done (volume);

  decide (window, snap, h, rng);
  transport_close (h);
  done (snap);
}

static void
do_destroy_snapshot (struct rng *rng)
{
  struct image *volume, *snap;
  char name[80];
  unsigned i;

  if (!fewer_wanted () || !pick_both (&volume, true, &snap, true, rng))
    return;
  cut_off_begins (snap);
  run ("destroy",
       json_pack ("{s:s, s:b, s:b}", "name", image_name (snap, name), "force",
                  1, "wait", (int) rng_percent (rng, 10)),
       rng);
  cut_off_ended (snap);
  snap->gone = true;
  for (i = 0; volume->snaps[i] != snap; ++i)
    ;
  volume->snaps[i] = NULL;
  nr_images--;
  image_unref (snap);
  done (snap);
  done (volume);
}

static void
do_clone (struct rng *rng)
{
  unsigned nr = soak.operations == 0 && rng_percent (rng, 20) ? 2 : 1, i;
  struct image *volume, *snap, *clone;
  char full[80], name[16];
  json_t *args;
  int first;

  if (!more_wanted () || !pick_both (&volume, false, &snap, false, rng))
    return;
  first = table_reserve (nr,
                         soak.operations ? table_place (volume) % NR_CLASSES
                                         : ANY_CLASS,
                         rng);
  if (first != -1) {
    image_name (snap, full);
    snprintf (name, sizeof name, "v%d", first);
    args = json_pack ("{s:s, s:s}", "snapshot", full, "name",
                      nr == 1 ? name : "v");
    if (nr > 1) {
      json_object_set_new (args, "count", json_integer (nr));
      json_object_set_new (args, "start", json_integer (first));
    }
    run ("clone", args, rng);
    for (i = first; i < first + nr; ++i) {
      snprintf (name, sizeof name, "v%u", i);
      clone = image_new (name, NULL, snap->block_size, snap->size,
                         snap->max_blocks);
      memcpy (clone->domain, snap->domain, sizeof clone->domain);
      image_become (clone, snap);
      table_set (i, clone);
      nr_images++;
    }
  }
  done (snap);
  done (volume);
}

static void
do_rollback (struct rng *rng)
{
  struct image *volume, *snap;
  char name[80];

  if (!pick_both (&volume, true, &snap, false, rng))
    return;
  cut_off_begins (volume);
  run ("rollback",
       json_pack ("{s:s, s:b}", "name", image_name (snap, name), "force", 1),
       rng);
  image_become (volume, snap);
  done (snap);
  done (volume);
}

static void
do_rebase (struct rng *rng)
{
  struct image *volume = pick (rng, true), *other, *snap;
  char name[80];

  if (volume == NULL)
    return;
  if (pick_both (&other, false, &snap, false, rng)) {
    if (snap->block_size == volume->block_size &&
        strcmp (snap->domain, volume->domain) == 0)
      run ("rebase",
           json_pack ("{s:s, s:s}", "name", volume->name, "snapshot",
                      image_name (snap, name)),
           rng);
    done (snap);
    done (other);
  }
  done (volume);
}

static void
do_prune (struct rng *rng)
{
  run ("prune", json_pack ("{s:i}", "percent", (int) rng_between (rng, 1, 100)),
       rng);
}

/* said[b] is 0: not in the diff; 1: data; 2: zeroes. */
static void
check_diff (struct image *from, struct image *to, json_t *extents)
{
  const uint64_t bs = to->block_size;
  const uint64_t nr = image_blocks (to, to->size);
  uint8_t *said = xcalloc (nr, 1), expected;
  uint64_t b, offset, end;
  json_t *e;
  size_t i;

  json_array_foreach (extents, i, e) {
    offset = json_integer_value (json_object_get (e, "offset"));
    end = offset + json_integer_value (json_object_get (e, "length"));
    for (b = offset / bs; b * bs < end && b < nr; ++b)
      said[b] = json_is_true (json_object_get (e, "zero")) ? 2 : 1;
  }
  for (b = 0; b < nr; ++b) {
    expected = image_same (from, to, b) ? 0 : image_is_zero (to, b) ? 2 : 1;
    if (said[b] != expected)
      fatal ("diff %s@%s %s: block %" PRIu64 " of %" PRIu64 ": told %u, "
             "expected %u",
             to->volume->name, from->name, to->name, b, nr, said[b], expected);
  }
  free (said);
}

static void
do_diff (struct rng *rng)
{
  struct image *volume, *from, *to;
  char name_from[80], name_to[80];
  json_t *result;

  if (!pick_both (&volume, false, &from, false, rng))
    return;
  to = try_lock (table_pick_snap (volume, rng), false);
  if (to) {
    result = transport_command ("diff",
                                json_pack ("{s:s, s:s}", "from",
                                           image_name (from, name_from), "to",
                                           image_name (to, name_to)),
                                0, rng);
    check_diff (from, to,
                json_is_array (result) ? result
                                       : json_object_get (result, "extents"));
    json_decref (result);
    done (to);
  }
  done (from);
  done (volume);
}

/*----------------------------------------------------------------------
 * Whole images: commands that transfer data themselves
 */

/* A file of its own for each call: two threads may export one snapshot. */
static void
file_name (char path[PATH_MAX], const char *what)
{
  static atomic_uint nr;

  if (snprintf (path, PATH_MAX, "%s/%s-%u.raw", soak.directory, what, nr++) >=
      PATH_MAX)
    fatal ("%s: too long", soak.directory);
}

static void
do_export (struct rng *rng)
{
  struct image *volume, *snap;
  char name[80], path[PATH_MAX];
  uint8_t *buf;
  int fd;

  if (soak.nbdedup == NULL || !pick_both (&volume, false, &snap, false, rng))
    return;
  file_name (path, "export");
  run_process ("export", image_name (snap, name), path, NULL, NULL);
  buf = xcalloc (1, snap->size);
  fd = open (path, O_RDONLY | O_CLOEXEC);
  if (fd == -1 || read (fd, buf, snap->size) != (ssize_t) snap->size)
    fatal ("%s: not %" PRIu64 " bytes", path, snap->size);
  image_compare ("export", snap, 0, snap->size, buf, snap->generation);
  close (fd);
  unlink (path);
  free (buf);
  done (snap);
  done (volume);
}

static void
do_import (struct rng *rng)
{
  int place = soak.nbdedup ? table_reserve (1, ANY_CLASS, rng) : -1, fd;
  char name[16], block_size[32], path[PATH_MAX];
  struct image *image;
  uint8_t *buf;

  if (place == -1)
    return;
  snprintf (name, sizeof name, "v%d", place);
  image = new_volume (name, place, rng);
  buf = xmalloc (image->size);
  fill_content (buf, image->size, image->block_size, NR_DUPS, rng);
  file_name (path, "import");
  fd = open (path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd == -1 || write (fd, buf, image->size) != (ssize_t) image->size)
    fatal ("%s: %s", path, strerror (errno));
  close (fd);
  snprintf (block_size, sizeof block_size, "--block-size=%u",
            image->block_size);
  run_process ("import", block_size, name, path, NULL);
  image_fill (image, buf, image->size);
  unlink (path);
  free (buf);
  table_set (place, image);
  nr_images++;
}

/*----------------------------------------------------------------------
 * Commands that only read
 */

static void
expect_no_errors (const char *command, json_t *args, struct rng *rng)
{
  json_t *result = transport_command (command, args, 0, rng);
  char *text;

  if (json_integer_value (json_object_get (result, "errors")) != 0 ||
      json_integer_value (json_object_get (result, "lost_blocks")) != 0 ||
      json_integer_value (json_object_get (result, "found")) != 0) {
    text = json_dumps (result, JSON_COMPACT);
    fatal ("%s found errors: %s", command, text ? text : "");
  }
  json_decref (result);
}

static void
do_check (struct rng *rng)
{
  expect_no_errors ("check",
                    json_pack ("{s:b}", "repair", (int) rng_percent (rng, 30)),
                    rng);
}

static void
do_scrub (struct rng *rng)
{
  expect_no_errors ("scrub", json_object (), rng);
}

static void
do_stat (struct rng *rng)
{
  struct image *volume = pick (rng, false);

  if (volume == NULL || rng_percent (rng, 50))
    run ("stat", json_pack ("{s:b}", "ddt", (int) rng_percent (rng, 50)), rng);
  else
    run ("stat", json_pack ("{s:s}", "name", volume->name), rng);
  if (volume)
    done (volume);
}

static void
do_look (struct rng *rng)
{
  struct image *volume;

  switch (rng_below (rng, 4)) {
  case 0:
    run ("list", json_object (), rng);
    break;
  case 1:
    run ("status", json_object (), rng);
    break;
  case 2:
    run ("get", json_pack ("{s:s}", "property", "all"), rng);
    break;
  default:
    volume = pick (rng, false);
    if (volume == NULL)
      return;
    run ("destroy",
         json_pack ("{s:s, s:b, s:b, s:b}", "name", volume->name, "recursive",
                    1, "force", 1, "dry-run", 1),
         rng);
    done (volume);
  }
}

/* drift may fail with EBUSY, when the WAL becomes too long. */
static void
do_drift (struct rng *rng)
{
  json_t *args = json_object ();
  struct image *volume;

  /* Not with OPERATIONS: the history grows by design. */
  if (soak.operations == 0 && rng_percent (rng, 30))
    json_object_set_new (args, "record", json_true ());
  json_decref (transport_command ("drift", args, EBUSY, rng));
  run ("drift-history", json_pack ("{s:b}", "newest", 1), rng);
  volume = pick (rng, false);
  if (volume == NULL)
    return;
  args = json_pack ("{s:[s]}", "names", volume->name);
  json_decref (transport_command ("drift-freed", args, EBUSY, rng));
  done (volume);
}

/*----------------------------------------------------------------------*/

static const struct {
  void (*fn) (struct rng *rng);
  unsigned weight, steady; /* with SECONDS, with OPERATIONS */
} admins[] = {
  { do_create, 40, 40 },
  { do_destroy, 60, 20 },
  { do_rename, 60, 40 },
  { do_resize, 60, 60 },
  { do_set, 60, 20 },
  { do_snapshot, 220, 220 },
  { do_destroy_snapshot, 110, 100 },
  { do_clone, 140, 140 },
  { do_rollback, 80, 60 },
  { do_rebase, 150, 60 },
  { do_prune, 20, 0 },
  { do_diff, 40, 20 },
  { do_export, 15, 0 },
  { do_import, 15, 0 },
  { do_check, 8, 2 },
  { do_scrub, 8, 2 },
  { do_stat, 40, 20 },
  { do_look, 60, 20 },
  { do_drift, 15, 2 },
};
#define NR_ADMINS (sizeof admins / sizeof admins[0])

static void
do_any (struct rng *rng)
{
  unsigned sum = 0, n, i;

  for (i = 0; i < NR_ADMINS; ++i)
    sum += soak.operations ? admins[i].steady : admins[i].weight;
  n = rng_below (rng, sum);
  for (i = 0;; ++i) {
    sum = soak.operations ? admins[i].steady : admins[i].weight;
    if (n < sum)
      break;
    n -= sum;
  }
  admins[i].fn (rng);
}

void *
admin_client (void *arg)
{
  unsigned id = (uintptr_t) arg;
  struct rng rng = rng_make (soak.seed, 2000 + id);

  while (!stop) {
    do_any (&rng);
    clock_sleep_ms (rng_below (&rng, soak.operations ? 60 : 10));
  }
  return NULL;
}

void
make_volumes (void)
{
  struct rng rng = rng_make (soak.seed, 3000);
  unsigned i;

  for (i = 0; i < MAX_VOLUMES; ++i)
    do_create (&rng);
}

/*----------------------------------------------------------------------
 * Verification while nothing runs
 */

static void
verify_image (const char *when, struct image *image, struct rng *rng)
{
  struct handle *h = transport_open (image, rng);
  uint8_t *buf = xmalloc (MAX_REQUEST);
  uint64_t offset, len;

  if (!h->readonly &&
      transport_request (h, REQUEST_FLUSH, NULL, 0, 0, rng) == -1)
    fatal ("%s: %s: flush: %s", when, image->name, transport_error ());
  for (offset = 0; offset < h->size; offset += len) {
    len = h->size - offset < MAX_REQUEST ? h->size - offset : MAX_REQUEST;
    if (transport_request (h, REQUEST_READ, buf, len, offset, rng) == -1 ||
        transport_request (h, REQUEST_EXTENTS, NULL, len, offset, rng) == -1)
      fatal ("%s: %s: %s", when, image->name, transport_error ());
    image_compare (when, image, offset, len, buf, h->generation);
  }
  free (buf);
  transport_close (h);
}

static void
verify_figures (const char *when, struct image *volume, struct rng *rng)
{
  json_t *result = transport_command ("stat",
                                      json_pack ("{s:s}", "name", volume->name),
                                      0, rng);
  json_t *figures = json_array_get (json_object_get (result, "volumes"), 0);
  uint64_t n = json_integer_value (json_object_get (figures, "logical_bytes"));

  if (n != image_logical_bytes (volume))
    fatal ("%s: %s: logical_bytes is %" PRIu64 ", expected %" PRIu64, when,
           volume->name, n, image_logical_bytes (volume));
  json_decref (result);
}

static unsigned
nr_snaps (const struct image *volume)
{
  unsigned i, nr = 0;

  for (i = 0; i < MAX_SNAPS; ++i)
    nr += volume->snaps[i] != NULL;
  return nr;
}

static void
verify_list (const char *when, unsigned nr, unsigned snaps, struct rng *rng)
{
  json_t *result = transport_command ("list", json_object (), 0, rng);
  json_t *volumes = json_object_get (result, "volumes"), *v;
  size_t i, n = 0;

  json_array_foreach (volumes, i, v)
    n += json_array_size (json_object_get (v, "snapshots"));
  if (json_array_size (volumes) != nr || n != snaps)
    fatal ("%s: %zu volumes and %zu snapshots are listed, expected %u and %u",
           when, json_array_size (volumes), n, nr, snaps);
  json_decref (result);
}

void
verify_all (const char *when)
{
  struct rng rng = rng_make (soak.seed, 4000);
  unsigned place, i, nr = 0, snaps = 0;
  struct image *volume;

  for (place = 0; place < MAX_VOLUMES; ++place) {
    volume = table_get (place);
    if (volume == NULL)
      continue;
    nr++;
    snaps += nr_snaps (volume);
    verify_image (when, volume, &rng);
    verify_figures (when, volume, &rng);
    for (i = 0; i < MAX_SNAPS; ++i)
      if (volume->snaps[i])
        verify_image (when, volume->snaps[i], &rng);
    image_unref (volume);
  }
  verify_list (when, nr, snaps, &rng);
  expect_no_errors ("check", json_object (), &rng);
  expect_no_errors ("scrub", json_object (), &rng);
}

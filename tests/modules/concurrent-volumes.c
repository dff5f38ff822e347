/* SPDX-License-Identifier: BSD-3-Clause */

/* Volumes that stay, that are destroyed, and that are renamed and resized.  See
 * concurrent.h.
 */

#include <config.h>

#include <errno.h>

#include "modules/concurrent.h"

#define NR_VICTIMS 3 /* volumes that are made and destroyed */
#define VICTIM_BYTES (UINT32_C (1) << 20)
/* All threads that write in the same period write equal contents. */
#define EQUAL_MS 20

/*----------------------------------------------------------------------
 * Volumes that stay: writer 'id' has every NR_WRITERS-th block
 */

static void
change_block (struct steady *s, struct nbdedup_volume *v, uint64_t block,
              uint8_t *buf, struct rng *rng)
{
  uint64_t offset = block * s->block_size, len = s->block_size;
  unsigned n = rng_below (rng, 100);

  if (n < 30) /* a part of the block */
    len = rng_between (rng, 1, s->block_size);
  if (n < 50)
    fill_content (buf, len, len, NR_DUPS, rng);
  else if (n < 85)
    fill_compressible (buf, len, seed + clock_ms () / EQUAL_MS);
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

/* A request in a range that other threads write: it must succeed. */
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

void *
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

void
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
 * Volumes that are destroyed while clients use them
 */

static void
victim_name (struct rng *rng, char name[8])
{
  snprintf (name, 8, "x%u", (unsigned) rng_below (rng, NR_VICTIMS));
}

/* Make, wait, destroy. */
void *
destroyer (void *arg)
{
  unsigned id = (uintptr_t) arg;
  struct rng rng = rng_make (seed, 200 + id);
  json_t *args, *result;
  char name[8];
  bool force;

  while (!stop) {
    victim_name (&rng, name);
    json_decref (try ("create",
                      json_pack ("{s:s,s:I,s:i}", "name", name, "size",
                                 (json_int_t) VICTIM_BYTES, "block-size",
                                 4096 << rng_below (&rng, 3)),
                      EEXIST));
    clock_sleep_ms (rng_below (&rng, 15));
    victim_name (&rng, name);
    force = rng_percent (&rng, 80);
    args = json_pack ("{s:s,s:b,s:b,s:b}", "name", name, "force", force, "wait",
                      rng_percent (&rng, 10), "dry-run",
                      rng_percent (&rng, 10));
    result = nbdedup_call (pool, "destroy", args);
    if (result == NULL && errno != ENOENT && !(errno == EBUSY && !force))
      fatal ("destroy: %s", nbdedup_error ());
    json_decref (args);
    json_decref (result);
    nr_commands++;
  }
  return NULL;
}

/* Send one request.  False: the volume is gone. */
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

/* Several guests attach to a victim at once.  Each has a part for itself. */
void *
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
    v = nbdedup_volume_open (pool, name,
                             rng_percent (&rng, 5) ? NBDEDUP_VOLUME_EXCLUSIVE
                                                   : 0,
                             0, NULL);
    if (v == NULL) {
      if (errno != ENOENT && errno != EBUSY)
        fatal ("%s: %s", name, nbdedup_error ());
      clock_sleep_ms (1);
      continue;
    }
    for (i = rng_below (&rng, 200); i > 0 && !stop; --i) {
      offset = rng_below (&rng, part);
      len = rng_between (&rng, 1,
                         part - offset < 40000 ? part - offset : 40000);
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
 * A volume that changes its name and its size
 */

static json_t *
resize (const char *name, uint32_t size, int error)
{
  return try ("resize",
              json_pack ("{s:s,s:I,s:b}", "name", name, "size",
                         (json_int_t) size, "shrink", 1),
              error);
}

void *
mover (void *arg)
{
  static char name[8] = "m0"; /* for the next phase, too */
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

    /* If another client is attached the volume keeps its size. */
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

/* Write zeroes as another client.  If a second client is attached, the log
 * names the volume.
 */
static void
write_too (const char *name, const char *peer)
{
  struct nbdedup_volume *v = nbdedup_volume_open (pool, name, 0, 0, NULL);

  if (v == NULL) {
    if (errno != ENOENT && errno != EBUSY)
      fatal ("%s: %s", name, nbdedup_error ());
    return;
  }
  nbdedup_volume_set_peer (v, peer);
  must (nbdedup_volume_zero (v, 512, 0));
  clock_sleep_ms (2);
  nbdedup_volume_close (v);
}

/* Attach to the volume under its present name, write beside another follower,
 * and send requests that are refused, because the messages have the name.
 */
void *
follower (void *arg)
{
  const unsigned id = (uintptr_t) arg;
  struct rng rng = rng_make (seed, 500 + id);
  struct nbdedup_volume *v;
  char name[8], peer[16];
  uint8_t buf[512];
  int r;

  snprintf (peer, sizeof peer, "follower %u", id);
  while (!stop) {
    snprintf (name, sizeof name, "m%u", (unsigned) rng_below (&rng, 3));
    write_too (name, peer);
    v = nbdedup_volume_open (pool, name, NBDEDUP_VOLUME_READONLY, 0, NULL);
    if (v == NULL) {
      if (errno != ENOENT && errno != EBUSY)
        fatal ("%s: %s", name, nbdedup_error ());
      clock_sleep_ms (1);
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
    clock_sleep_ms (rng_below (&rng, 5));
  }
  return NULL;
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* An nbdkit plugin that keeps its promises, or breaks one, to test whether
 * crash-model notices.
 *
 * Each file of dir=DIR is an export.  Written data is in memory.  Durable data
 * is in a file DIR/NAME.disk in a shared mapping, which is enough for kill -9:
 * it has two slots per granule and a byte that selects the valid one.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "rigs/testutil.h"

#define GRANULE 131072
#define NR_DISKS 3

enum lie {
  LIE_NONE,
  LIE_FUA,        /* FUA is ignored */
  LIE_FLUSH,      /* a flush leaves out one granule, rarely */
  LIE_CONNECTION, /* flush covers its own connection only */
  LIE_TORN,       /* half a granule, sometimes */
  LIE_ZERO,       /* a granule is lost, rarely */
  LIE_SWAP,       /* written to the wrong place, rarely */
  LIE_EXTENT,     /* data is reported as a hole */
};
static const char *const lies[] = { "none",       "fua",    "flush",
                                    "connection", "torn",   "zero",
                                    "swap",       "extent", NULL };

struct disk {
  pthread_mutex_t lock;
  char name[2];
  uint64_t size, nr;
  uint8_t *memory, *slots, *selected;
  uint64_t *dirty; /* handle of the last write; 0: clean */
  struct rng rng;
};

struct handle {
  struct disk *disk;
  uint64_t id;
};

static char *dir;
static enum lie lie;
static struct disk disks[NR_DISKS];
static _Atomic uint64_t next_id = 1;

static int
lossy_config (const char *key, const char *value)
{
  unsigned i;

  if (strcmp (key, "dir") == 0) {
    dir = nbdkit_realpath (value);
    return dir ? 0 : -1;
  }
  if (strcmp (key, "lie") == 0)
    for (i = 0; lies[i]; ++i)
      if (strcmp (value, lies[i]) == 0) {
        lie = i;
        return 0;
      }
  nbdkit_error ("unknown %s=%s", key, value);
  return -1;
}

static int
disk_open (struct disk *d, char name)
{
  char path[4096];
  struct stat st;
  uint64_t i;
  size_t len;
  int fd;

  pthread_mutex_init (&d->lock, NULL);
  d->name[0] = name;
  d->rng = rng_make (time (NULL), name);
  snprintf (path, sizeof path, "%s/%c", dir, name);
  if (stat (path, &st) == -1)
    goto error;
  d->size = st.st_size;
  d->nr = (d->size + GRANULE - 1) / GRANULE;
  len = d->nr * (2 * GRANULE + 1);
  snprintf (path, sizeof path, "%s/%c.disk", dir, name);
  fd = open (path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd == -1 || ftruncate (fd, len) == -1)
    goto error;
  d->slots = mmap (NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close (fd);
  if (d->slots == MAP_FAILED)
    goto error;
  d->selected = d->slots + d->nr * 2 * GRANULE;
  d->memory = xmalloc (d->nr * GRANULE);
  d->dirty = xcalloc (d->nr, sizeof d->dirty[0]);
  for (i = 0; i < d->nr; ++i)
    memcpy (d->memory + i * GRANULE,
            d->slots + (2 * i + d->selected[i]) * GRANULE, GRANULE);
  return 0;

error:
  nbdkit_error ("%s: %m", path);
  return -1;
}

static int
lossy_get_ready (void)
{
  unsigned i;

  for (i = 0; i < NR_DISKS; ++i)
    if (disk_open (&disks[i], 'a' + i) == -1)
      return -1;
  return 0;
}

static void *
lossy_open (int readonly)
{
  const char *name = nbdkit_export_name ();
  struct handle *h;
  unsigned i;

  (void) readonly;
  for (i = 0; i < NR_DISKS; ++i)
    if (strcmp (name, disks[i].name) == 0) {
      h = xcalloc (1, sizeof *h);
      h->disk = &disks[i];
      h->id = atomic_fetch_add (&next_id, 1);
      return h;
    }
  nbdkit_error ("no export %s", name);
  return NULL;
}

static void
lossy_close (void *handle)
{
  free (handle);
}

static int64_t
lossy_get_size (void *handle)
{
  return ((struct handle *) handle)->disk->size;
}

static int
yes (void *handle)
{
  (void) handle;
  return 1;
}

static int
lossy_can_fua (void *handle)
{
  (void) handle;
  return NBDKIT_FUA_NATIVE;
}

/* Make granule 'i' durable. */
static void
persist (struct disk *d, uint64_t i)
{
  uint64_t to = i, len = GRANULE;
  unsigned slot;

  if (lie == LIE_TORN && rng_below (&d->rng, 100) == 0)
    len = GRANULE / 2 + 512;
  if (lie == LIE_SWAP && rng_below (&d->rng, 500) == 0)
    to = (i + 1) % d->nr;
  slot = !d->selected[to];
  if (lie == LIE_ZERO && rng_below (&d->rng, 500) == 0)
    memset (d->slots + (2 * to + slot) * GRANULE, 0, GRANULE);
  else
    memcpy (d->slots + (2 * to + slot) * GRANULE, d->memory + i * GRANULE, len);
  atomic_thread_fence (memory_order_seq_cst);
  d->selected[to] = slot;
  d->dirty[i] = 0;
}

static void
persist_range (struct disk *d, uint64_t offset, uint64_t len)
{
  uint64_t i;

  for (i = offset / GRANULE; i <= (offset + len - 1) / GRANULE; ++i)
    persist (d, i);
}

static int
lossy_flush (void *handle, uint32_t flags)
{
  struct handle *h = handle;
  struct disk *d = h->disk;
  uint64_t i;

  (void) flags;
  pthread_mutex_lock (&d->lock);
  for (i = 0; i < d->nr; ++i)
    if (d->dirty[i] && (lie != LIE_CONNECTION || d->dirty[i] == h->id) &&
        (lie != LIE_FLUSH || rng_below (&d->rng, 200) > 0))
      persist (d, i);
  pthread_mutex_unlock (&d->lock);
  return 0;
}

/* A clean end loses nothing. */
static void
lossy_cleanup (void)
{
  uint64_t i;
  struct disk *d;

  for (d = disks; d < disks + NR_DISKS; ++d)
    for (i = 0; i < d->nr; ++i)
      if (d->dirty[i])
        persist (d, i);
}

static int
change (struct handle *h, const void *buf, uint32_t len, uint64_t offset,
        uint32_t flags)
{
  struct disk *d = h->disk;
  uint64_t i;

  pthread_mutex_lock (&d->lock);
  if (buf)
    memcpy (d->memory + offset, buf, len);
  else
    memset (d->memory + offset, 0, len);
  for (i = offset / GRANULE; i <= (offset + len - 1) / GRANULE; ++i)
    d->dirty[i] = h->id;
  if ((flags & NBDKIT_FLAG_FUA) && lie != LIE_FUA)
    persist_range (d, offset, len);
  else if (rng_below (&d->rng, 20) == 0) /* a cache evicts, too */
    persist (d, offset / GRANULE);
  pthread_mutex_unlock (&d->lock);
  return 0;
}

static int
lossy_pread (void *handle, void *buf, uint32_t len, uint64_t offset,
             uint32_t flags)
{
  struct disk *d = ((struct handle *) handle)->disk;

  (void) flags;
  pthread_mutex_lock (&d->lock);
  memcpy (buf, d->memory + offset, len);
  pthread_mutex_unlock (&d->lock);
  return 0;
}

static int
lossy_pwrite (void *handle, const void *buf, uint32_t len, uint64_t offset,
              uint32_t flags)
{
  return change (handle, buf, len, offset, flags);
}

static int
lossy_zero (void *handle, uint32_t len, uint64_t offset, uint32_t flags)
{
  return change (handle, NULL, len, offset, flags);
}

static int
lossy_extents (void *handle, uint32_t len, uint64_t offset, uint32_t flags,
               struct nbdkit_extents *extents)
{
  (void) handle;
  (void) flags;
  return nbdkit_add_extent (extents, offset, len,
                            lie == LIE_EXTENT
                              ? NBDKIT_EXTENT_HOLE | NBDKIT_EXTENT_ZERO
                              : 0);
}

static struct nbdkit_plugin plugin = {
  .name = "lossy",
  .config = lossy_config,
  .get_ready = lossy_get_ready,
  .cleanup = lossy_cleanup,
  .open = lossy_open,
  .close = lossy_close,
  .get_size = lossy_get_size,
  .can_multi_conn = yes,
  .can_flush = yes,
  .can_trim = yes,
  .can_zero = yes,
  .can_extents = yes,
  .can_fua = lossy_can_fua,
  .pread = lossy_pread,
  .pwrite = lossy_pwrite,
  .flush = lossy_flush,
  .trim = lossy_zero,
  .zero = lossy_zero,
  .extents = lossy_extents,
};
#define THREAD_MODEL NBDKIT_THREAD_MODEL_PARALLEL
NBDKIT_REGISTER_PLUGIN (plugin)

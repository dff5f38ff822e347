/* SPDX-License-Identifier: BSD-3-Clause */

/* nbdkit-dedup-plugin: nbdkit's callbacks on one side, lib/nbdedup.h on the
 * other.  It keeps no data: the engine decides what a client sees, and what
 * survives a crash.
 *
 * Lifetime.  .get_ready probes the pool while errors still reach the command
 * line; .after_fork opens it, because neither SQLite nor threads survive a
 * fork; .cleanup closes it, once.  nbdkit (seen in 1.32.5) does not call
 * .close for connections that are open when the server gets a signal to quit,
 * but it ends all connections' threads before .cleanup.  So the plugin keeps a
 * list of open handles, and .cleanup closes those that are left.
 */

#include <config.h>

#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/stat.h>
#include <syslog.h>
#include <unistd.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "base/cleanup.h"
#include "keys.h"
#include "listeners.h"
#include "nbdedup.h"
#include "notify.h"
#include "peer.h"
#include "quit.h"
#include "refusals.h"
#include "startup.h"

/* The most parallel model; plugin_thread_model narrows it. */
#define THREAD_MODEL NBDKIT_THREAD_MODEL_PARALLEL

/* The longest request that the plugin advertises.  nbdkit accepts 64 MiB, QEMU
 * sends at most 32 MiB, and nbdkit keeps one buffer of this size per thread.
 */
#define REQUEST_MAX (UINT32_C (32) << 20)

/* Extents in one answer.  The client continues where the answer ends, so this
 * only limits memory: nbdkit's own limit is 2^20 extents of 24 bytes, for each
 * running request.
 */
#define EXTENTS_MAX 16384

static struct keys keys;
static struct nbdedup_pool *pool; /* NULL unless open */

/* One connection. */
struct handle {
  struct nbdedup_volume *volume; /* owned */
  bool is_snapshot;
  LIST_ENTRY (handle) link;
};

static pthread_mutex_t handles_lock = PTHREAD_MUTEX_INITIALIZER;
static LIST_HEAD (, handle) handles = LIST_HEAD_INITIALIZER (handles);

/* Report the engine's error.  The client gets errno. */
static int
fail (const char *what)
{
  int err = errno;

  nbdkit_error ("%s: %s", what, nbdedup_error ());
  errno = err != 0 ? err : EIO;
  return -1;
}

/* The same for a client's request, which may fail often.  NBD has no error for
 * a busy pool.db.
 */
static int
fail_request (const char *what)
{
  if (errno == 0 || errno == EBUSY)
    errno = EIO;
  refusals_note (what, nbdedup_error ());
  return -1;
}

/* The same for a request that takes no space from the client's point of view.
 */
static int
fail_reading (const char *what)
{
  if (errno == ENOSPC)
    errno = EIO;
  return fail_request (what);
}

/* Flags are promises to the client: the plugin cannot keep one that it does not
 * know.
 */
static int
check_flags (const char *what, uint32_t flags, uint32_t known)
{
  if ((flags & ~known) == 0)
    return 0;
  nbdkit_error ("%s: unknown flags 0x%x", what, flags & ~known);
  errno = EINVAL;
  return -1;
}

/*----------------------------------------------------------------------
 * Configuration
 */

static void
plugin_load (void)
{
  /* glibc gives every thread an arena of its own, and each large buffer that
   * is freed raises the size from which memory returns to the system.  Then
   * memory that workers allocate and the folding thread frees stays with the
   * process: 2.5 million new blocks at the default limits took 397 MiB, and
   * take 314 with this.
   */
  mallopt (M_ARENA_MAX, 2);
  mallopt (M_MMAP_THRESHOLD, 128 << 10);
  mallopt (M_TRIM_THRESHOLD, 256 << 10);
  keys_init (&keys);
}

static int
plugin_config (const char *key, const char *value)
{
  return keys_parse (&keys, key, value);
}

static int
plugin_config_complete (void)
{
  return keys_check (&keys);
}

/* Does this nbdkit survive parallel requests on one connection?
 *
 * nbdkit 1.32.5 does not.  When a client disconnects (or is killed) while
 * several of its requests run, the thread whose reply fails first closes the
 * socket.  The next one aborts the whole server, with all its other clients,
 * in raw_send_socket: Assertion `sock >= 0'.  1.34 fixed that.  A plugin
 * cannot ask for the server's version (it may have been compiled with
 * another), but no release with the fault has the function nbdkit_disconnect,
 * and all from 1.36 on have it.
 */
static bool
server_survives_parallel (void)
{
  return dlsym (RTLD_DEFAULT, "nbdkit_disconnect") != NULL;
}

static int
plugin_thread_model (void)
{
  switch (keys.threads) {
  case KEYS_THREADS_PARALLEL:
    return NBDKIT_THREAD_MODEL_PARALLEL;
  case KEYS_THREADS_SERIALIZE:
    /* Connections still run in parallel. */
    return NBDKIT_THREAD_MODEL_SERIALIZE_REQUESTS;
  case KEYS_THREADS_AUTO:
    break;
  }
  return server_survives_parallel () ? NBDKIT_THREAD_MODEL_PARALLEL
                                     : NBDKIT_THREAD_MODEL_SERIALIZE_REQUESTS;
}

static void
dump_names (const char *key, const char *const *names)
{
  size_t i;

  printf ("%s=", key);
  for (i = 0; names[i] != NULL; ++i)
    printf ("%s%s", i > 0 ? "," : "", names[i]);
  printf ("\n");
}

static void
plugin_dump_plugin (void)
{
  printf ("format=1\n");
  dump_names ("codecs", nbdedup_codec_names ());
  dump_names ("hashes", nbdedup_hash_names ());
  keys_dump ();
}

/*----------------------------------------------------------------------
 * Start and end
 */

/* nbdkit has no level between a debug message and an error.  A server in the
 * background has /dev/null for its standard error.
 */
static void
log_line (enum nbdedup_log_level level, const char *line)
{
  struct stat err, null;

  if (level != NBDEDUP_LOG_INFO)
    nbdkit_error ("%s", line);
  else if (fstat (STDERR_FILENO, &err) == 0 && stat ("/dev/null", &null) == 0 &&
           err.st_rdev == null.st_rdev)
    syslog (LOG_DAEMON | LOG_INFO, "dedup: %s", line);
  else
    fprintf (stderr, "nbdkit: dedup: %s\n", line);
}

static void
log_event (const struct nbdedup_event *event)
{
  CLEANUP_FREE char *line = NULL;

  if (nbdedup_event_journal (event))
    return;
  line = nbdedup_event_line (event);
  log_line (event->level, line ? line : event->message);
}

#define ERROR_MAX 2048

/* The engine's error about the pool, in 'text', which is returned.  The engine
 * names the pool, or one of its files, where it can; what it says of the
 * directory itself is about the parameter.
 */
static const char *
pool_error (char text[ERROR_MAX])
{
  const char *error = nbdedup_error ();
  const size_t len = strlen (keys.pool);

  if (strstr (error, keys.pool) == NULL)
    snprintf (text, ERROR_MAX, "pool=%s: %s", keys.pool, error);
  else
    snprintf (text, ERROR_MAX, "%s%s",
              strncmp (error, keys.pool, len) == 0 &&
                  strncmp (error + len, ": ", 2) == 0
                ? "pool="
                : "",
              error);
  return text;
}

static int
plugin_get_ready (void)
{
  if (nbdedup_pool_probe (keys.pool, keys.settings.read_only) == -1) {
    const int err = errno;
    char text[ERROR_MAX];

    nbdkit_error ("%s", pool_error (text));
    errno = err;
    return -1;
  }
  if (keys.threads == KEYS_THREADS_PARALLEL && !server_survives_parallel ())
    nbdkit_error ("threads=parallel: a client that hangs up during its "
                  "requests can end this server, for all clients: nbdkit 1.34 "
                  "fixed that");
  listeners_note ();
  return startup_prepare ();
}

/* The server cannot run, for a reason that was reported: do not let clients
 * wait for it.  The pool is closed first: the next server could listen, but not
 * open the pool yet.
 */
static int
give_up (const char *why)
{
  if (pool != NULL)
    nbdedup_pool_close (pool);
  pool = NULL;
  listeners_give_up ();
  startup_report (why);
  return -1;
}

/* The same, for a reason that was not reported yet. */
static int
fail_start (const char *why)
{
  nbdkit_error ("%s", why);
  return give_up (why);
}

/* Fail if only=on names a volume that the pool does not have: the server would
 * serve nothing.
 */
static int
check_only (void)
{
  struct nbdedup_volume *v;

  if (!keys.only)
    return 0;
  v = nbdedup_volume_open (pool, keys.volume, NBDEDUP_VOLUME_READONLY, -1,
                           NULL);
  nbdedup_volume_close (v);
  return v == NULL && errno == ENOENT ? -1 : 0;
}

static int
plugin_after_fork (void)
{
  char text[ERROR_MAX];

  nbdedup_set_log (log_line);
  nbdedup_set_event_log (log_event);
  listeners_remember ();
  pool = nbdedup_pool_open (keys.pool, &keys.settings, "nbdkit",
                            NBDEDUP_OPEN_SERVER);
  if (pool == NULL)
    return fail_start (pool_error (text));
  nbdkit_debug ("dedup: pool %s is open", keys.pool);
  if (check_only () == -1) {
    snprintf (text, sizeof text, "only=on: %s", nbdedup_error ());
    return fail_start (text);
  }
  if (quit_start ("control.sock") == -1)
    return give_up ("cannot wait for signals");
  startup_report (NULL);
  notify_ready (keys.pool);
  return 0;
}

/* All connections' threads have ended. */
static void
plugin_cleanup (void)
{
  struct handle *h, *next;

  if (pool != NULL)
    notify_stopping ();
  quit_stop ();
  for (h = LIST_FIRST (&handles); h != NULL; h = next) {
    next = LIST_NEXT (h, link);
    nbdedup_volume_close (h->volume);
    free (h);
  }
  LIST_INIT (&handles);
  refusals_end ();
  if (pool != NULL && nbdedup_pool_close (pool) == -1)
    fail ("closing the pool");
  pool = NULL;
  /* Not earlier: the next server could listen, but not open the pool yet. */
  listeners_remove ();
}

static void
plugin_unload (void)
{
  keys_destroy (&keys);
}

/*----------------------------------------------------------------------
 * Exports
 */

/* nbdkit accepts no more (MAX_EXPORTS in its exports.c), and answers with an
 * error if the list is longer.
 */
#define EXPORTS_MAX 10000

struct export_list {
  struct nbdkit_exports *exports;
  const char *only; /* or NULL: all */
  bool snapshots;   /* or volumes: two passes */
  unsigned nr, left_out;
};

static const char *
describe (bool is_snapshot)
{
  if (is_snapshot)
    return "snapshot, read-only";
  return keys.settings.read_only == NBDEDUP_READ_ONLY_OFF ? "volume"
                                                          : "volume, read-only";
}

static bool
is_snapshot_name (const char *name)
{
  return strchr (name, '@') != NULL;
}

static int
list_one_export (void *opaque, const char *name, uint64_t size, bool readonly)
{
  struct export_list *list = opaque;

  (void) size;
  (void) readonly;
  if (is_snapshot_name (name) != list->snapshots ||
      (list->only != NULL && strcmp (name, list->only) != 0))
    return 0;
  if (list->nr == EXPORTS_MAX) {
    list->left_out++;
    return 0;
  }
  list->nr++;
  return nbdkit_add_export (list->exports, name, describe (list->snapshots));
}

static int
plugin_list_exports (int readonly, int is_tls, struct nbdkit_exports *exports)
{
  struct export_list list = {
    .exports = exports,
    .only = keys.only ? keys.volume : NULL,
  };

  (void) readonly;
  (void) is_tls;
  /* Volumes first: clients most likely look for these. */
  if (nbdedup_pool_list (pool, list_one_export, &list) != 0)
    return fail ("listing exports");
  list.snapshots = true;
  if (nbdedup_pool_list (pool, list_one_export, &list) != 0)
    return fail ("listing exports");
  if (list.left_out > 0)
    nbdkit_debug ("dedup: %u exports are not in the list, which has room for "
                  "%u: \"nbdedup list\" has them all",
                  list.left_out, EXPORTS_MAX);
  return 0;
}

struct only_volume {
  unsigned nr;
  char *name; /* owned; of the first */
};

static int
find_only_volume (void *opaque, const char *name, uint64_t size, bool readonly)
{
  struct only_volume *v = opaque;

  (void) size;
  (void) readonly;
  if (is_snapshot_name (name))
    return 0;
  if (v->nr++ > 0)
    return 0;
  v->name = strdup (name);
  if (v->name == NULL) {
    nbdkit_error ("strdup: %s", strerror (errno));
    return -1;
  }
  return 0;
}

/* The volume for the empty export name, interned; "" if there is none: then
 * plugin_open refuses it with the reason.
 */
static const char *
plugin_default_export (int readonly, int is_tls)
{
  struct only_volume v = { 0 };
  const char *r = "";

  (void) readonly;
  (void) is_tls;
  if (keys.volume != NULL)
    return keys.volume;
  if (nbdedup_pool_list (pool, find_only_volume, &v) != 0)
    r = NULL;
  else if (v.nr == 1)
    r = nbdkit_strdup_intern (v.name);
  free (v.name);
  return r;
}

static void *
plugin_open (int readonly)
{
  CLEANUP_FREE char *tls_identity = NULL;
  const char *name = nbdkit_export_name ();
  /* If this function fails nbdkit tells the client that there is no such
   * export.  A volume that lost its map by damage must cause I/O errors
   * instead.
   */
  unsigned flags = NBDEDUP_VOLUME_LOST;
  char peer[PEER_MAX];
  struct handle *h;
  QUIT_REQUEST (began);

  if (!began)
    return NULL;
  if (name == NULL)
    return NULL; /* nbdkit_export_name has reported it */
  if (name[0] == '\0' && keys.volume != NULL)
    name = keys.volume;
  if (name[0] == '\0') {
    nbdkit_error ("the client asked for the default export, but the pool does "
                  "not have exactly one volume: name a volume in the client, "
                  "or start this server with volume=NAME");
    errno = ENOENT;
    return NULL;
  }
  if (keys.only && strcmp (name, keys.volume) != 0) {
    nbdkit_error ("the client asked for an export other than '%s', but only=on "
                  "hides all others",
                  keys.volume);
    errno = ENOENT;
    return NULL;
  }

  if (readonly)
    flags |= NBDEDUP_VOLUME_READONLY;
  if (keys.exclusive && !is_snapshot_name (name))
    flags |= NBDEDUP_VOLUME_EXCLUSIVE;

  h = malloc (sizeof *h);
  if (h == NULL) {
    nbdkit_error ("malloc: %s", strerror (errno));
    return NULL;
  }
  tls_identity = peer_tls_identity ();
  h->volume = nbdedup_volume_open (pool, name, flags, peer_uid (),
                                   tls_identity);
  if (h->volume == NULL) {
    fail ("open");
    free (h);
    return NULL;
  }
  h->is_snapshot = is_snapshot_name (name);
  peer_name (peer, sizeof peer);
  nbdedup_volume_set_peer (h->volume, peer);

  pthread_mutex_lock (&handles_lock);
  LIST_INSERT_HEAD (&handles, h, link);
  pthread_mutex_unlock (&handles_lock);
  return h;
}

static void
plugin_close (void *handle)
{
  struct handle *h = handle;

  pthread_mutex_lock (&handles_lock);
  LIST_REMOVE (h, link);
  pthread_mutex_unlock (&handles_lock);
  nbdedup_volume_close (h->volume);
  free (h);
}

/*----------------------------------------------------------------------
 * What an export can do
 */

static const char *
plugin_export_description (void *handle)
{
  struct handle *h = handle;

  return describe (h->is_snapshot);
}

static int64_t
plugin_get_size (void *handle)
{
  struct handle *h = handle;

  return nbdedup_volume_size (h->volume);
}

/* Any length works; requests of whole blocks need no read-modify-write. */
static int
plugin_block_size (void *handle, uint32_t *minimum, uint32_t *preferred,
                   uint32_t *maximum)
{
  struct handle *h = handle;

  *minimum = 1;
  *preferred = nbdedup_volume_block_size (h->volume);
  *maximum = REQUEST_MAX;
  return 0;
}

static int
plugin_can_write (void *handle)
{
  struct handle *h = handle;

  return !nbdedup_volume_is_readonly (h->volume);
}

static int
plugin_can_fua (void *handle)
{
  (void) handle;
  return NBDKIT_FUA_NATIVE;
}

static int
plugin_can_cache (void *handle)
{
  (void) handle;
  return NBDKIT_CACHE_NATIVE;
}

/* A flush covers the volume, whichever connection wrote.  But with
 * attach=exclusive a second connection of the client would be refused.
 */
static int
plugin_can_multi_conn (void *handle)
{
  struct handle *h = handle;

  return !keys.exclusive || h->is_snapshot;
}

static int
can_always (void *handle)
{
  (void) handle;
  return 1;
}

static int
can_never (void *handle)
{
  (void) handle;
  return 0;
}

/*----------------------------------------------------------------------
 * Data
 */

static int
plugin_pread (void *handle, void *buf, uint32_t count, uint64_t offset,
              uint32_t flags)
{
  struct handle *h = handle;
  QUIT_REQUEST (began);

  if (!began)
    return -1;
  if (check_flags ("read", flags, 0) == -1)
    return -1;
  if (nbdedup_volume_read (h->volume, buf, count, offset) == -1)
    return fail_reading ("read");
  refusals_check ();
  return 0;
}

/* Forced Unit Access: make only this request durable before the answer. */
static int
finish_fua (struct handle *h, const char *what, uint32_t count, uint64_t offset,
            uint32_t flags)
{
  if ((flags & NBDKIT_FLAG_FUA) != 0 &&
      nbdedup_volume_flush_range (h->volume, count, offset) == -1)
    return fail_request (what);
  refusals_check ();
  return 0;
}

static int
plugin_pwrite (void *handle, const void *buf, uint32_t count, uint64_t offset,
               uint32_t flags)
{
  struct handle *h = handle;
  QUIT_REQUEST (began);

  if (!began)
    return -1;
  if (check_flags ("write", flags, NBDKIT_FLAG_FUA) == -1)
    return -1;
  if (nbdedup_volume_write (h->volume, buf, count, offset) == -1)
    return fail_request ("write");
  return finish_fua (h, "write: making it durable", count, offset, flags);
}

static int
plugin_flush (void *handle, uint32_t flags)
{
  struct handle *h = handle;
  QUIT_REQUEST (began);

  if (!began)
    return -1;
  if (check_flags ("flush", flags, 0) == -1)
    return -1;
  if (nbdedup_volume_flush (h->volume) == -1)
    return fail_request ("flush");
  refusals_check ();
  return 0;
}

static int
plugin_trim (void *handle, uint32_t count, uint64_t offset, uint32_t flags)
{
  struct handle *h = handle;
  QUIT_REQUEST (began);

  if (!began)
    return -1;
  if (check_flags ("trim", flags, NBDKIT_FLAG_FUA) == -1)
    return -1;
  if (nbdedup_volume_trim (h->volume, count, offset) == -1)
    return fail_request ("trim");
  return finish_fua (h, "trim: making it durable", count, offset, flags);
}

/* Zeroes become holes.  That is always fast, and also right without MAY_TRIM,
 * because no zero block is ever stored.
 */
static int
plugin_zero (void *handle, uint32_t count, uint64_t offset, uint32_t flags)
{
  struct handle *h = handle;
  QUIT_REQUEST (began);

  if (!began)
    return -1;
  if (check_flags ("zero", flags,
                   NBDKIT_FLAG_FUA | NBDKIT_FLAG_MAY_TRIM |
                     NBDKIT_FLAG_FAST_ZERO) == -1)
    return -1;
  if (nbdedup_volume_zero (h->volume, count, offset) == -1)
    return fail_request ("zero");
  return finish_fua (h, "zero: making it durable", count, offset, flags);
}

struct extent_list {
  struct nbdkit_extents *extents;
  unsigned left; /* room in the answer, in extents */
};

static int
add_extent (void *opaque, uint64_t offset, uint64_t len, bool hole)
{
  struct extent_list *list = opaque;

  if (nbdkit_add_extent (list->extents, offset, len,
                         hole ? NBDKIT_EXTENT_HOLE | NBDKIT_EXTENT_ZERO : 0) ==
      -1)
    return -1;
  return --list->left == 0;
}

static int
plugin_extents (void *handle, uint32_t count, uint64_t offset, uint32_t flags,
                struct nbdkit_extents *extents)
{
  struct handle *h = handle;
  struct extent_list list = {
    .extents = extents,
    .left = (flags & NBDKIT_FLAG_REQ_ONE) != 0 ? 1 : EXTENTS_MAX,
  };
  QUIT_REQUEST (began);

  if (!began)
    return -1;
  if (check_flags ("extents", flags, NBDKIT_FLAG_REQ_ONE) == -1)
    return -1;
  if (nbdedup_volume_extents (h->volume, count, offset, add_extent, &list) ==
      -1)
    return fail_reading ("extents");
  refusals_check ();
  return 0;
}

static int
plugin_cache (void *handle, uint32_t count, uint64_t offset, uint32_t flags)
{
  struct handle *h = handle;
  QUIT_REQUEST (began);

  if (!began)
    return -1;
  if (check_flags ("cache", flags, 0) == -1)
    return -1;
  if (nbdedup_volume_cache (h->volume, count, offset) == -1)
    return fail_reading ("cache");
  refusals_check ();
  return 0;
}

static struct nbdkit_plugin plugin = {
  .name = "dedup",
  .longname = "deduplicating, compressing disks",
  .version = PACKAGE_VERSION,
  .description = "Serve the volumes of a pool: virtual disks whose equal\n"
                 "blocks are stored once, compressed.",
  .load = plugin_load,
  .unload = plugin_unload,
  .config = plugin_config,
  .config_complete = plugin_config_complete,
  .config_help = keys_help,
  .magic_config_key = "pool",
  .thread_model = plugin_thread_model,
  .dump_plugin = plugin_dump_plugin,
  .get_ready = plugin_get_ready,
  .after_fork = plugin_after_fork,
  .cleanup = plugin_cleanup,
  .list_exports = plugin_list_exports,
  .default_export = plugin_default_export,
  .open = plugin_open,
  .close = plugin_close,
  .export_description = plugin_export_description,
  .get_size = plugin_get_size,
  .block_size = plugin_block_size,
  .can_write = plugin_can_write,
  .can_flush = can_always,
  .is_rotational = can_never,
  .can_trim = plugin_can_write,
  .can_zero = plugin_can_write,
  .can_fast_zero = plugin_can_write,
  .can_fua = plugin_can_fua,
  .can_extents = can_always,
  .can_cache = plugin_can_cache,
  .can_multi_conn = plugin_can_multi_conn,
  .pread = plugin_pread,
  .pwrite = plugin_pwrite,
  .flush = plugin_flush,
  .trim = plugin_trim,
  .zero = plugin_zero,
  .extents = plugin_extents,
  .cache = plugin_cache,
  .errno_is_preserved = 1,
};

NBDKIT_REGISTER_PLUGIN (plugin)

/* SPDX-License-Identifier: BSD-3-Clause */

/* See soak.h. */

#include <config.h>

#include <errno.h>
#include <libnbd.h>
#include <signal.h>
#include <sys/wait.h>

#include "rigs/server-process.h"
#include "soak/soak.h"

#define COMMAND_SECONDS 300

static struct nbdedup_pool *pool; /* in this process */
static struct server_process server;
static char log_path[PATH_MAX + 16];

/*----------------------------------------------------------------------
 * Start and stop
 */

/* Make caches as small as possible, so that they evict all the time. */
static void
open_engine (enum nbdedup_primarycache primarycache)
{
  struct nbdedup_settings settings;

  nbdedup_settings_init (&settings);
  settings.ddt_cache_bytes = NBDEDUP_DDT_CACHE_MIN;
  settings.dirty_max_bytes = NBDEDUP_DIRTY_MAX_MIN;
  settings.record_cache_bytes = 1 << 20;
  settings.commit_interval_ms = soak.operations ? 1000 : 100;
  settings.nr_workers = 3;
  settings.drift_interval_s = soak.operations ? 0 : 2;
  settings.primarycache = primarycache;
  pool = nbdedup_pool_open (soak.pool, &settings, "test-soak", 0);
  if (pool == NULL)
    fatal ("open: %s", nbdedup_error ());
}

static void
start_server (enum nbdedup_primarycache primarycache)
{
  static const char *const caches[] = {
    [NBDEDUP_CACHE_ALL] = "primarycache=all",
    [NBDEDUP_CACHE_METADATA] = "primarycache=metadata",
    [NBDEDUP_CACHE_NONE] = "primarycache=none",
  };
  char key[PATH_MAX + 16];

  snprintf (key, sizeof key, "pool=%s", soak.pool);
  snprintf (log_path, sizeof log_path, "%s/server.log", soak.directory);
  const char *argv[] = {
    "nbdkit",
    "-f",
    "-U",
    server.socket,
    "-t",
    "8",
    soak.plugin,
    key,
    "dirty-max=8M",
    "ddt-cache=8M",
    "record-cache=1M",
    soak.operations ? "commit-interval=1" : "commit-interval=0.1",
    soak.operations ? "drift-interval=0" : "drift-interval=2",
    caches[primarycache],
    NULL
  };

  if ((size_t) snprintf (server.socket, sizeof server.socket, "%s/nbd.sock",
                         soak.directory) >= sizeof server.socket)
    fatal ("%s: too long for a socket", soak.directory);
  unlink (server.socket);
  server.pid = process_start (argv, log_path, soak.preload);
}

void
transport_start (enum nbdedup_primarycache primarycache)
{
  struct nbd_handle *nbd;
  unsigned place;
  struct image *image;

  if (soak.plugin == NULL) {
    open_engine (primarycache);
    return;
  }
  start_server (primarycache);
  /* Wait until it listens. */
  for (place = 0; place < MAX_VOLUMES; ++place) {
    image = table_get (place);
    if (image == NULL)
      continue;
    nbd = server_connect (&server, image->name, COMMAND_SECONDS);
    image_unref (image);
    if (nbd == NULL)
      fatal ("the server does not start: see %s", log_path);
    nbd_close (nbd);
    return;
  }
}

void
transport_stop (void)
{
  int status;

  if (soak.plugin == NULL) {
    if (nbdedup_pool_close (pool) == -1)
      fatal ("close: %s", nbdedup_error ());
    pool = NULL;
    return;
  }
  kill (server.pid, SIGTERM);
  status = process_wait (server.pid, COMMAND_SECONDS, "nbdkit");
  if (status != 0)
    fatal ("nbdkit ended with status %d: see %s", status, log_path);
  server.pid = 0;
}

pid_t
transport_pid (void)
{
  return soak.plugin ? server.pid : getpid ();
}

/*----------------------------------------------------------------------
 * Clients
 */

static void
open_nbd (struct handle *h, const char *name, unsigned nr)
{
  int64_t size;

  for (h->nr_nbd = 0; h->nr_nbd < nr; ++h->nr_nbd) {
    h->nbd[h->nr_nbd] = server_connect (&server, name, COMMAND_SECONDS);
    if (h->nbd[h->nr_nbd] == NULL)
      fatal ("%s: no connection: see %s", name, log_path);
  }
  size = nbd_get_size (h->nbd[0]);
  if (size < 0)
    fatal ("%s: %s", name, nbd_get_error ());
  h->size = size;
  h->readonly = nbd_is_read_only (h->nbd[0]) == 1;
  if (nr > 1 && nbd_can_multi_conn (h->nbd[0]) != 1)
    fatal ("%s: no multi-conn", name);
  /* Let libnbd send writes although the server announced read-only. */
  if (h->readonly)
    nbd_set_strict_mode (h->nbd[0], 0);
}

struct handle *
transport_open (struct image *image, struct rng *rng)
{
  struct handle *h = xcalloc (1, sizeof *h);
  char name[80];

  h->image = image_ref (image);
  h->generation = image->generation;
  image_name (image, name);
  if (soak.plugin)
    open_nbd (h, name, rng_between (rng, 1, 3));
  else {
    h->volume = nbdedup_volume_open (pool, name, 0, -1, NULL);
    if (h->volume == NULL)
      fatal ("%s: %s", name, nbdedup_error ());
    h->size = nbdedup_volume_size (h->volume);
    h->readonly = nbdedup_volume_is_readonly (h->volume);
  }
  if (h->size != image_size (image))
    fatal ("%s has %" PRIu64 " bytes, and not %" PRIu64, name, h->size,
           image_size (image));
  if (h->readonly != (image->volume != NULL))
    fatal ("%s is %sread-only", name, h->readonly ? "" : "not ");
  image->nr_handles++;
  return h;
}

void
transport_close (struct handle *h)
{
  unsigned i;

  for (i = 0; i < h->nr_nbd; ++i) {
    /* Some clients leave without NBD_CMD_DISC. */
    if (h->size & 512 || i > 0)
      nbd_shutdown (h->nbd[i], 0);
    nbd_close (h->nbd[i]);
  }
  nbdedup_volume_close (h->volume);
  h->image->nr_handles--;
  image_unref (h->image);
  free (h);
}

static int
see_extent (void *opaque, uint64_t offset, uint64_t len, bool hole)
{
  struct handle *h = opaque;

  if (hole)
    image_compare_hole (h->image, offset, len, h->generation);
  return 0;
}

static int
engine_request (struct handle *h, enum request_kind kind, uint8_t *buf,
                uint64_t len, uint64_t offset)
{
  int r;

  switch (kind) {
  case REQUEST_READ:
    return nbdedup_volume_read (h->volume, buf, len, offset);
  case REQUEST_WRITE:
    return nbdedup_volume_write (h->volume, buf, len, offset);
  case REQUEST_WRITE_FUA:
    r = nbdedup_volume_write (h->volume, buf, len, offset);
    return r == 0 ? nbdedup_volume_flush_range (h->volume, len, offset) : r;
  case REQUEST_ZERO:
    return nbdedup_volume_zero (h->volume, len, offset);
  case REQUEST_ZERO_FUA:
    r = nbdedup_volume_zero (h->volume, len, offset);
    return r == 0 ? nbdedup_volume_flush_range (h->volume, len, offset) : r;
  case REQUEST_TRIM:
    return nbdedup_volume_trim (h->volume, len, offset);
  case REQUEST_FLUSH:
    return nbdedup_volume_flush (h->volume);
  case REQUEST_FLUSH_RANGE:
    return nbdedup_volume_flush_range (h->volume, len, offset);
  case REQUEST_CACHE:
    return nbdedup_volume_cache (h->volume, len, offset);
  case REQUEST_EXTENTS:
    return nbdedup_volume_extents (h->volume, len, offset, see_extent, h);
  }
  abort ();
}

struct see {
  struct handle *h;
  uint64_t end;
};

static int
see_extents (void *opaque, const char *context, uint64_t offset,
             uint32_t *entries, size_t nr, int *error)
{
  struct see *see = opaque;
  uint64_t len;
  size_t i;

  (void) error;
  if (strcmp (context, LIBNBD_CONTEXT_BASE_ALLOCATION) != 0)
    return 0;
  /* The last extent may be longer than the request. */
  for (i = 0; i + 1 < nr && offset < see->end; i += 2) {
    len = see->end - offset < entries[i] ? see->end - offset : entries[i];
    see_extent (see->h, offset, len, entries[i + 1] & LIBNBD_STATE_ZERO);
    offset += len;
  }
  return 0;
}

static int
nbd_request (struct handle *h, enum request_kind kind, uint8_t *buf,
             uint64_t len, uint64_t offset, struct nbd_handle *nbd,
             struct rng *rng)
{
  struct see see = { h, offset + len };
  uint32_t zero = rng_percent (rng, 50) ? LIBNBD_CMD_FLAG_NO_HOLE : 0;

  switch (kind) {
  case REQUEST_READ:
    return nbd_pread (nbd, buf, len, offset, 0);
  case REQUEST_WRITE:
    return nbd_pwrite (nbd, buf, len, offset, 0);
  case REQUEST_WRITE_FUA:
    return nbd_pwrite (nbd, buf, len, offset, LIBNBD_CMD_FLAG_FUA);
  case REQUEST_ZERO:
    return nbd_zero (nbd, len, offset, zero);
  case REQUEST_ZERO_FUA:
    return nbd_zero (nbd, len, offset, zero | LIBNBD_CMD_FLAG_FUA);
  case REQUEST_TRIM:
    return nbd_trim (nbd, len, offset, 0);
  case REQUEST_FLUSH:
  case REQUEST_FLUSH_RANGE:
    return nbd_flush (nbd, 0);
  case REQUEST_CACHE:
    return nbd_cache (nbd, len, offset, 0);
  case REQUEST_EXTENTS:
    return nbd_block_status (nbd, len, offset,
                             (nbd_extent_callback) { .callback = see_extents,
                                                     .user_data = &see },
                             0);
  }
  abort ();
}

const char *
transport_error (void)
{
  return soak.plugin ? nbd_get_error () : nbdedup_error ();
}

int
transport_request (struct handle *h, enum request_kind kind, uint8_t *buf,
                   uint64_t len, uint64_t offset, struct rng *rng)
{
  int r;

  if (soak.plugin == NULL)
    return engine_request (h, kind, buf, len, offset);
  r = nbd_request (h, kind, buf, len, offset,
                   h->nbd[rng_below (rng, h->nr_nbd)], rng);
  if (r == -1)
    errno = nbd_get_errno ();
  return r;
}

/*----------------------------------------------------------------------
 * Commands
 */

static struct count {
  char command[16];
  uint64_t nr, failed;
} counts[40];
static pthread_mutex_t counts_lock = PTHREAD_MUTEX_INITIALIZER;

static void
count (const char *command, bool failed)
{
  struct count *c;

  pthread_mutex_lock (&counts_lock);
  for (c = counts; c->command[0] && strcmp (c->command, command) != 0; ++c)
    ;
  snprintf (c->command, sizeof c->command, "%s", command);
  c->nr++;
  c->failed += failed;
  pthread_mutex_unlock (&counts_lock);
}

void
transport_report (void)
{
  const struct count *c;

  printf ("commands (refused):");
  for (c = counts; c->command[0]; ++c) {
    printf (" %s %" PRIu64, c->command, c->nr);
    if (c->failed)
      printf (" (%" PRIu64 ")", c->failed);
  }
  putchar ('\n');
  fflush (stdout);
}

/* The positional arguments on the command line, in this order.  Commands that
 * are not in the list have no command line of this name.
 */
static const struct form {
  const char *command, *positional[2];
  bool json;
} forms[] = {
  { "create", { "name", "size" }, false },
  { "list", { NULL, NULL }, true },
  { "get", { "property", "name" }, true },
  { "resize", { "name", "size" }, false },
  { "rename", { "old", "new" }, false },
  { "destroy", { "name", NULL }, false },
  { "snapshot", { "name", NULL }, false },
  { "clone", { "snapshot", "name" }, false },
  { "rollback", { "name", NULL }, false },
  { "rebase", { "name", "snapshot" }, false },
  { "diff", { "from", "to" }, true },
  { "drift", { "name", NULL }, true },
  { "stat", { "name", NULL }, true },
  { "check", { NULL, NULL }, true },
  { "scrub", { NULL, NULL }, true },
};

static const struct form *
find_form (const char *command, const json_t *args)
{
  size_t i;

  /* The command has no option for a domain. */
  if (json_object_get (args, "domain") == NULL)
    for (i = 0; i < sizeof forms / sizeof forms[0]; ++i)
      if (strcmp (forms[i].command, command) == 0)
        return &forms[i];
  return NULL;
}

#define MAX_ARGS 16
struct line {
  const char *argv[MAX_ARGS + 1];
  char text[MAX_ARGS][160];
  unsigned nr;
};

static void
add_word (struct line *line, const char *option, const json_t *value)
{
  char *text = line->text[line->nr];

  if (value == NULL || json_is_false (value))
    return;
  if (line->nr == MAX_ARGS)
    fatal ("a command with too many arguments");
  if (json_is_string (value))
    snprintf (text, sizeof line->text[0], "%s%s%s", option,
              option[0] ? "=" : "", json_string_value (value));
  else if (json_is_integer (value))
    snprintf (text, sizeof line->text[0], "%s%s%" JSON_INTEGER_FORMAT, option,
              option[0] ? "=" : "", json_integer_value (value));
  else
    snprintf (text, sizeof line->text[0], "%s", option);
  line->argv[line->nr++] = text;
}

static void
make_line (struct line *line, const struct form *form, json_t *args)
{
  char option[40];
  const char *key;
  json_t *value;
  unsigned i;

  *line = (struct line) {
    .argv = { soak.nbdedup, "-p", soak.pool, form->command }, .nr = 4
  };
  json_object_foreach (args, key, value) {
    snprintf (option, sizeof option, "--%s", key);
    for (i = 0; i < 2; ++i)
      if (form->positional[i] && strcmp (form->positional[i], key) == 0)
        break;
    if (i == 2)
      add_word (line, option, value);
  }
  for (i = 0; i < 2 && form->positional[i]; ++i)
    add_word (line, "", json_object_get (args, form->positional[i]));
  if (form->json)
    line->argv[line->nr++] = "--json";
  line->argv[line->nr] = NULL;
}

/* What the command said on stderr, that it waits for another for example, comes
 * first in its output.
 */
static const char *
skip_notices (const char *text)
{
  const char *end;

  while (strncmp (text, "nbdedup: ", 9) == 0 &&
         (end = strchr (text, '\n')) != NULL)
    text = end + 1;
  return text;
}

/* Run the command line, and return its output as the result. */
static json_t *
process_command (const struct form *form, json_t *args, int error)
{
  struct line line;
  json_error_t why;
  json_t *result;
  char *output;
  int status;

  make_line (&line, form, args);
  output = command_output (line.argv, COMMAND_SECONDS, soak.preload, NULL,
                           &status);
  /* "check" and "scrub" print what they found, so print the output. */
  if (status != 0 && (error == 0 || status != 1))
    fatal ("nbdedup %s %s: status %d: %s", form->command,
           line.nr > 4 ? line.argv[4] : "", status, output);
  result = status != 0 ? NULL
    : form->json       ? json_loads (skip_notices (output), 0, &why)
                       : json_object ();
  if (status == 0 && result == NULL)
    fatal ("nbdedup %s: not JSON: %s: %s", form->command, why.text, output);
  free (output);
  errno = error;
  return result;
}

static json_t *
client_command (const char *command, json_t *args)
{
  struct nbdedup_client *client;
  json_t *result;
  int err;

  client = nbdedup_client_open (soak.pool, NULL, "test-soak", NULL);
  if (client == NULL || !nbdedup_client_is_served (client))
    fatal ("client: %s", client ? "no server" : nbdedup_error ());
  result = nbdedup_client_call (client, command, args, NULL, NULL);
  err = errno;
  if (nbdedup_client_close (client) == -1)
    fatal ("client: %s", nbdedup_error ());
  errno = err;
  return result;
}

json_t *
transport_command (const char *command, json_t *args, int error,
                   struct rng *rng)
{
  const struct form *form = find_form (command, args);
  json_t *result;
  char *text;

  if (soak.plugin == NULL)
    result = nbdedup_call (pool, command, args);
  else if (soak.nbdedup && form && rng_percent (rng, 30))
    result = process_command (form, args, error);
  else
    result = client_command (command, args);
  if (result == NULL && (error == 0 || errno != error)) {
    text = json_dumps (args, JSON_COMPACT);
    fatal ("%s %s: %s (%s)", command, text ? text : "", nbdedup_error (),
           strerror (errno));
  }
  json_decref (args);
  count (command, result == NULL);
  return result;
}

void
run (const char *command, json_t *args, struct rng *rng)
{
  json_decref (transport_command (command, args, 0, rng));
}

void
run_process (const char *a1, const char *a2, const char *a3, const char *a4,
             const char *a5)
{
  const char *argv[] = {
    soak.nbdedup, "-p", soak.pool, a1, a2, a3, a4, a5, NULL
  };
  char *output;
  int status;

  output = command_output (argv, COMMAND_SECONDS, soak.preload, NULL, &status);
  if (status != 0)
    fatal ("nbdedup %s %s: status %d: %s", a1, a2, status, output);
  free (output);
  count (a1, false);
}

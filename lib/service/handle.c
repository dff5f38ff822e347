/* SPDX-License-Identifier: BSD-3-Clause */

/* The volumes of a client: the same calls on a volume opened in this process
 * and on one that a server has open.  A handle makes up to CHANNELS_MAX
 * connections, each when a thread finds none idle; fewer if the server has many
 * clients.
 */

#include <config.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "service/client-int.h"

#define CHANNELS_MAX 4

struct nbdedup_handle {
  struct nbdedup_client *client; /* not owned; outlives the handle */
  struct nbdedup_volume *volume; /* owned; NULL: a server has it */
  char *name;                    /* owned */
  unsigned flags;
  uint64_t size;
  uint32_t block_size;

  struct lock lock;         /* protects everything below */
  struct cond released;     /* a channel became idle, or was lost */
  struct channel_list idle; /* owned */
  unsigned nr_channels;     /* idle or in use */
  unsigned max_channels;
};

static struct channel *
volume_channel_new (struct nbdedup_client *client, const char *name,
                    unsigned flags, bool spare, uint64_t *size,
                    uint32_t *block_size)
{
  struct control_frame f = {
    .type = CONTROL_VOLUME_OPEN,
    .flags = spare ? CONTROL_FLAG_SPARE : 0,
    .length = flags,
    .payload = strlen (name),
  };
  const struct channel_watch watch = { client_look, client };
  struct channel *ch;

  /* Those of several threads need not all tell that they wait. */
  ch = channel_new (client->path, client->who, client->greet_s,
                    spare ? NULL : &watch);
  if (ch == NULL)
    return NULL;
  ch->watch = spare ? NULL : &watch;
  if (channel_request (ch, &f, name, NULL, 0) == -1) {
    channel_free (ch);
    return NULL;
  }
  ch->watch = NULL;
  if (f.length == 0 || f.length > UINT32_MAX) {
    channel_free (ch);
    channel_lost ();
    return NULL;
  }
  *size = f.offset;
  *block_size = f.length;
  return ch;
}

/* Wait until a channel is idle or, NULL, a new one is allowed. */
static struct channel *
wait_for_idle_locked (struct nbdedup_handle *handle)
{
  struct channel *ch;

  assert_held (&handle->lock);
  while (SLIST_EMPTY (&handle->idle) &&
         handle->nr_channels >= handle->max_channels)
    lock_wait (&handle->lock, &handle->released);
  ch = SLIST_FIRST (&handle->idle);
  if (ch != NULL)
    SLIST_REMOVE_HEAD (&handle->idle, link);
  else
    handle->nr_channels++;
  assert (handle->nr_channels <= CHANNELS_MAX);
  return ch;
}

/* An idle channel, a new one, or, with as many in use as there may be, the next
 * that becomes idle.
 */
static struct channel *
channel_get (struct nbdedup_handle *handle)
{
  struct channel *ch;
  uint64_t size;
  uint32_t block_size;

  assert (handle->volume == NULL); /* else it needs no server */
  {
    WITH_LOCK (&handle->lock);
    ch = wait_for_idle_locked (handle);
    if (ch != NULL)
      return ch;
  }

  ch = volume_channel_new (handle->client, handle->name, handle->flags, true,
                           &size, &block_size);
  /* It may have grown: all offsets that the caller knows still exist. */
  if (ch != NULL && size >= handle->size && block_size == handle->block_size)
    return ch;
  /* Without this one the others go on, and find out if the server ended. */
  WITH_LOCK (&handle->lock);
  assert (handle->nr_channels > 1);
  handle->max_channels = --handle->nr_channels;
  cond_broadcast (&handle->released);
  if (ch == NULL)
    return wait_for_idle_locked (handle);
  /* It cannot shrink while it has a client. */
  channel_free (ch);
  nbdedup_fail (EIO,
                "%s: was destroyed or rolled back meanwhile: run the command "
                "again",
                handle->name);
  return NULL;
}

/* Keep the channel also after a failure.  One that has lost track of where
 * frames begin was shut down, and fails again at once.
 */
static void
channel_put (struct nbdedup_handle *handle, struct channel *ch)
{
  const int err = errno;

  {
    WITH_LOCK (&handle->lock);
    assert (handle->nr_channels > 0);
    SLIST_INSERT_HEAD (&handle->idle, ch, link);
    cond_signal (&handle->released);
  }
  errno = err;
}

struct nbdedup_handle *
nbdedup_client_volume_open (struct nbdedup_client *client, const char *name,
                            unsigned flags)
{
  struct nbdedup_handle *handle = calloc (1, sizeof *handle);
  struct channel *ch;
  int err;

  if (handle == NULL || (handle->name = strdup (name)) == NULL) {
    free (handle);
    return nbdedup_fail_null (ENOMEM, "no memory for a volume");
  }
  handle->client = client;
  handle->flags = flags | (client->readonly ? NBDEDUP_VOLUME_READONLY : 0);
  handle->max_channels = flags & NBDEDUP_VOLUME_EXCLUSIVE ? 1 : CHANNELS_MAX;
  lock_init (&handle->lock);
  cond_init (&handle->released);
  SLIST_INIT (&handle->idle);

  if (client->pool != NULL) {
    handle->volume = nbdedup_volume_open (client->pool, name,
                                          handle->flags | NBDEDUP_VOLUME_ADMIN,
                                          geteuid (), NULL);
    if (handle->volume != NULL) {
      handle->size = nbdedup_volume_size (handle->volume);
      handle->block_size = nbdedup_volume_block_size (handle->volume);
      return handle;
    }
  }
  else if (strlen (name) > CONTROL_NAME_MAX)
    nbdedup_fail (EINVAL, "the volume name is too long");
  else {
    ch = volume_channel_new (client, name, flags, false, &handle->size,
                             &handle->block_size);
    if (ch != NULL) {
      assert (handle->nr_channels == 0);
      SLIST_INSERT_HEAD (&handle->idle, ch, link);
      handle->nr_channels = 1;
      return handle;
    }
  }
  err = errno;
  nbdedup_handle_close (handle);
  errno = err;
  return NULL;
}

void
nbdedup_handle_close (struct nbdedup_handle *handle)
{
  struct channel *ch;

  if (handle == NULL)
    return;
  if (handle->volume != NULL)
    nbdedup_volume_close (handle->volume);

  /* Wait for the server's answer, so that a "destroy" that follows does not
   * find the volume in use.
   */
  SLIST_FOREACH (ch, &handle->idle, link) {
    struct control_frame f = { .type = CONTROL_VOLUME_CLOSE };

    channel_request (ch, &f, NULL, NULL, 0);
  }
  channel_list_free (&handle->idle);
  cond_destroy (&handle->released);
  lock_destroy (&handle->lock);
  free (handle->name);
  free (handle);
}

uint64_t
nbdedup_handle_size (struct nbdedup_handle *handle)
{
  return handle->size;
}

uint32_t
nbdedup_handle_block_size (struct nbdedup_handle *handle)
{
  return handle->block_size;
}

/* Send one request on any channel; its answer has 'len' bytes. */
static int
handle_request (struct nbdedup_handle *handle, struct control_frame *f,
                const void *payload, void *answer, uint32_t len)
{
  struct channel *ch = channel_get (handle);
  int r;

  if (ch == NULL)
    return -1;
  r = channel_request (ch, f, payload, answer, len);
  channel_put (handle, ch);
  return r;
}

int
nbdedup_handle_read (struct nbdedup_handle *handle, void *buf, uint32_t len,
                     uint64_t offset)
{
  uint8_t *p = buf;

  if (handle->volume != NULL)
    return nbdedup_volume_read (handle->volume, buf, len, offset);

  while (len > 0) {
    const uint32_t n = len < CONTROL_PAYLOAD_MAX ? len : CONTROL_PAYLOAD_MAX;
    struct control_frame f = {
      .type = CONTROL_READ,
      .offset = offset,
      .length = n,
    };

    if (handle_request (handle, &f, NULL, p, n) == -1)
      return -1;
    p += n;
    offset += n;
    len -= n;
  }
  return 0;
}

int
nbdedup_handle_write (struct nbdedup_handle *handle, const void *buf,
                      uint32_t len, uint64_t offset)
{
  const uint8_t *p = buf;

  if (handle->volume != NULL)
    return nbdedup_volume_write (handle->volume, buf, len, offset);

  while (len > 0) {
    const uint32_t n = len < CONTROL_PAYLOAD_MAX ? len : CONTROL_PAYLOAD_MAX;
    struct control_frame f = {
      .type = CONTROL_WRITE,
      .offset = offset,
      .payload = n,
    };

    if (handle_request (handle, &f, p, NULL, 0) == -1)
      return -1;
    p += n;
    offset += n;
    len -= n;
  }
  return 0;
}

int
nbdedup_handle_flush (struct nbdedup_handle *handle)
{
  struct control_frame f = { .type = CONTROL_FLUSH };

  if (handle->volume != NULL)
    return nbdedup_volume_flush (handle->volume);
  return handle_request (handle, &f, NULL, NULL, 0);
}

/* Ask once; returns the extents in 'buf' (owned by the caller) and their
 * number in *nr.
 */
static uint8_t *
request_extents (struct nbdedup_handle *handle, uint64_t len, uint64_t offset,
                 uint32_t *nr)
{
  struct control_frame f = {
    .type = CONTROL_EXTENTS,
    .offset = offset,
    .length = len,
  };
  struct channel *ch = channel_get (handle);
  uint8_t *buf = NULL;

  if (ch == NULL)
    return NULL;
  if (channel_send (ch, &f, NULL) == 0 && channel_recv (ch, &f) == 0) {
    *nr = f.payload / CONTROL_EXTENT_LEN;
    buf = malloc (f.payload);
    if (f.type != CONTROL_REPLY || buf == NULL || *nr == 0 ||
        f.payload % CONTROL_EXTENT_LEN != 0 ||
        control_recv_bytes (ch->fd, buf, f.payload) != 1) {
      free (buf);
      buf = NULL;
      shutdown (ch->fd, SHUT_RDWR);
      channel_lost ();
    }
  }
  channel_put (handle, ch);
  return buf;
}

int
nbdedup_handle_extents (struct nbdedup_handle *handle, uint64_t len,
                        uint64_t offset,
                        int (*fn) (void *opaque, uint64_t offset, uint64_t len,
                                   bool hole),
                        void *opaque)
{
  if (handle->volume != NULL)
    return nbdedup_volume_extents (handle->volume, len, offset, fn, opaque);

  while (len > 0) {
    uint32_t nr = 0, i;
    CLEANUP_FREE uint8_t *buf = request_extents (handle, len, offset, &nr);

    if (buf == NULL)
      return -1;
    for (i = 0; i < nr; ++i) {
      const uint64_t n = get_le64 (buf + i * CONTROL_EXTENT_LEN);
      const bool hole = get_le64 (buf + i * CONTROL_EXTENT_LEN + 8) & 1;
      int r;

      if (n == 0 || n > len)
        return nbdedup_fail (EIO,
                             "%s: the server's list of extents is not "
                             "valid",
                             handle->name);
      r = fn (opaque, offset, n, hole);
      if (r != 0)
        return r == -1 ? -1 : 0;
      offset += n;
      len -= n;
    }
  }
  return 0;
}

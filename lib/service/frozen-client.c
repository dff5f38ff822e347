/* SPDX-License-Identifier: BSD-3-Clause */

/* A frozen moment of a client's pool, in this process or in the server, which
 * keeps it for a connection (control-protocol.h).
 */

#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "drift/frozen.h"
#include "service/client-int.h"

static_assert (NBDEDUP_FROZEN_SETS == FROZEN_SETS, "the same number of sets");
static_assert (NBDEDUP_GOLDEN_SAME == (int) CLASS_SAME &&
                 NBDEDUP_GOLDEN_MOVED == (int) CLASS_MOVED &&
                 NBDEDUP_SIBLING == (int) CLASS_SIBLING &&
                 NBDEDUP_UNIQUE == (int) CLASS_UNIQUE &&
                 NBDEDUP_ZERO == (int) CLASS_ZERO,
               "the same classes");

struct nbdedup_frozen {
  struct frozen *frozen;      /* owned; NULL: a server has it */
  struct channel *ch;         /* owned; to the server */
  struct channel_watch watch; /* of 'ch': tells the client how long it waits */
};

static int
freeze_remotely (struct channel *ch, const char *name, uint64_t memory)
{
  CLEANUP_JSON json_t *args = json_pack ("{s:s*, s:I}", "name", name, "memory",
                                         (json_int_t) memory);
  CLEANUP_FREE char *text = args ? json_dumps (args, JSON_COMPACT) : NULL;
  struct control_frame f = { .type = CONTROL_FREEZE };

  if (text == NULL)
    return nbdedup_fail (ENOMEM, "no memory for the arguments");
  f.payload = strlen (text);
  return channel_request (ch, &f, text, NULL, 0);
}

struct nbdedup_frozen *
nbdedup_client_freeze (struct nbdedup_client *client, const char *name,
                       uint64_t memory)
{
  struct nbdedup_frozen *frozen = calloc (1, sizeof *frozen);

  if (frozen == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  if (client->pool != NULL)
    frozen->frozen = frozen_open (client->pool, name, memory, NULL, NULL);
  else {
    frozen->ch = client_channel_new (client);
    frozen->watch = (struct channel_watch) { client_look, client };
    if (frozen->ch != NULL)
      frozen->ch->watch = &frozen->watch;
    if (frozen->ch != NULL &&
        freeze_remotely (frozen->ch, name, memory) == -1) {
      channel_free (frozen->ch);
      frozen->ch = NULL;
    }
  }
  if (frozen->frozen != NULL || frozen->ch != NULL)
    return frozen;
  free (frozen);
  return NULL;
}

void
nbdedup_frozen_close (struct nbdedup_frozen *frozen)
{
  if (frozen == NULL)
    return;
  frozen_close (frozen->frozen);
  channel_free (frozen->ch);
  free (frozen);
}

static json_t *
request_json (struct channel *ch, uint16_t type, nbdedup_progress_fn *progress,
              void *opaque)
{
  struct control_frame f = {
    .type = type,
    .flags = progress ? CONTROL_FLAG_PROGRESS : 0,
  };

  return channel_send (ch, &f, NULL) == -1
    ? NULL
    : client_recv_json (ch, NULL, progress, opaque);
}

json_t *
nbdedup_frozen_next (struct nbdedup_frozen *frozen,
                     nbdedup_progress_fn *progress, void *opaque)
{
  return frozen->frozen
    ? frozen_next (frozen->frozen, progress, opaque)
    : request_json (frozen->ch, CONTROL_FROZEN_NEXT, progress, opaque);
}

json_t *
nbdedup_frozen_advise (struct nbdedup_frozen *frozen,
                       nbdedup_progress_fn *progress, void *opaque)
{
  return frozen->frozen
    ? frozen_advise (frozen->frozen, progress, opaque)
    : request_json (frozen->ch, CONTROL_FROZEN_ADVISE, progress, opaque);
}

static int
zero_remotely (struct channel *ch, unsigned set, uint64_t clone,
               const struct nbdedup_range *ranges, size_t nr)
{
  struct control_frame f = {
    .type = CONTROL_FROZEN_ZERO,
    .offset = clone,
    .length = set,
    .payload = (uint32_t) nr * CONTROL_RUN_LEN,
  };
  CLEANUP_FREE uint8_t *buf = malloc (f.payload);
  size_t i;

  if (buf == NULL)
    return nbdedup_fail (ENOMEM, "no memory");
  for (i = 0; i < nr; ++i) {
    put_le64 (buf + i * CONTROL_RUN_LEN, ranges[i].offset);
    put_le64 (buf + i * CONTROL_RUN_LEN + 8, ranges[i].len);
  }
  return channel_request (ch, &f, buf, NULL, 0);
}

int
nbdedup_frozen_zero (struct nbdedup_frozen *frozen, unsigned set,
                     uint64_t clone, const struct nbdedup_range *ranges,
                     size_t nr)
{
  size_t i, n;

  for (i = 0; i < nr; i += n) {
    n = nr - i < CONTROL_RUNS_MAX ? nr - i : CONTROL_RUNS_MAX;
    if (frozen->frozen == NULL) {
      if (zero_remotely (frozen->ch, set, clone, ranges + i, n) == -1)
        return -1;
      continue;
    }
    n = 1;
    if (frozen_zero (frozen->frozen, set, clone, ranges[i].offset,
                     ranges[i].len) == -1)
      return -1;
  }
  return 0;
}

static int
local_runs (struct frozen *frozen, uint64_t clone,
            int (*fn) (void *opaque, uint64_t block, uint64_t nr,
                       enum nbdedup_class class),
            void *opaque)
{
  struct class_run run;
  int r;

  while ((r = frozen_classes (frozen, clone, &run)) == 1)
    if (fn (opaque, run.block, run.nr, (enum nbdedup_class) run.class) == -1)
      return -1;
  return r;
}

/* The next runs (owned by the caller), *nr of them. */
static uint8_t *
request_runs (struct channel *ch, uint64_t clone, uint64_t *size, uint32_t *nr)
{
  struct control_frame f = { .type = CONTROL_FROZEN_RUNS, .offset = clone };
  uint8_t *buf;

  if (channel_send (ch, &f, NULL) == -1 || channel_recv (ch, &f) == -1)
    return NULL;
  *size = f.offset;
  *nr = f.payload / CONTROL_RUN_LEN;
  buf = malloc (f.payload + 1);
  if (f.type == CONTROL_REPLY && buf != NULL &&
      f.payload % CONTROL_RUN_LEN == 0 && *nr <= CONTROL_RUNS_MAX &&
      (*nr == 0 || control_recv_bytes (ch->fd, buf, f.payload) == 1))
    return buf;
  free (buf);
  shutdown (ch->fd, SHUT_RDWR);
  channel_lost ();
  return NULL;
}

int
nbdedup_frozen_runs (struct nbdedup_frozen *frozen, uint64_t clone,
                     uint64_t *size,
                     int (*fn) (void *opaque, uint64_t block, uint64_t nr,
                                enum nbdedup_class class),
                     void *opaque)
{
  uint32_t nr, i;

  if (frozen->frozen != NULL) {
    *size = frozen_size (frozen->frozen, clone);
    return local_runs (frozen->frozen, clone, fn, opaque);
  }
  do {
    CLEANUP_FREE uint8_t *buf = request_runs (frozen->ch, clone, size, &nr);

    if (buf == NULL)
      return -1;
    for (i = 0; i < nr; ++i) {
      const uint8_t *p = buf + i * CONTROL_RUN_LEN;
      const uint64_t packed = get_le64 (p + 8);

      if (fn (opaque, get_le64 (p), packed >> 8,
              (enum nbdedup_class) (packed & 0xff)) == -1)
        return -1;
    }
  } while (nr > 0);
  return 0;
}

int
nbdedup_frozen_read (struct nbdedup_frozen *frozen, uint64_t clone, void *buf,
                     uint32_t len, uint64_t offset)
{
  uint8_t *p = buf, number[8];

  if (frozen->frozen != NULL)
    return frozen_read (frozen->frozen, clone, buf, len, offset);
  put_le64 (number, clone);
  while (len > 0) {
    const uint32_t n = len < CONTROL_PAYLOAD_MAX ? len : CONTROL_PAYLOAD_MAX;
    struct control_frame f = {
      .type = CONTROL_FROZEN_READ,
      .offset = offset,
      .length = n,
      .payload = sizeof number,
    };

    if (channel_request (frozen->ch, &f, number, p, n) == -1)
      return -1;
    p += n;
    offset += n;
    len -= n;
  }
  return 0;
}

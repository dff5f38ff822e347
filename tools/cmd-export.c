/* SPDX-License-Identifier: BSD-3-Clause */

/* Export: read a volume or a snapshot, write a file, sync.
 *
 * Chunks of TRANSFER_LEN are read ahead in the order of the volume, and
 * written in that order.  A chunk that is a hole is not read and takes no
 * slot.
 */

#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "image.h"
#include "interrupt.h"
#include "progress.h"
#include "tools.h"
#include "transfer.h"

enum {
  KEY_FORMAT = 0x2000,
};

/* How far to look for holes at once. */
#define WINDOW_LEN (UINT64_C (1) << 30)

static const struct argp_option options[] = {
  { "format", KEY_FORMAT, "FORMAT", 0,
    "The file's format; this version writes raw only, the default", 0 },
  { 0 }
};

struct export {
  struct options common;        /* first: parsers get a pointer to it */
  const char *format;

  struct nbdedup_client *client;
  struct nbdedup_remote *remote;
  struct output output;
  struct progress progress;
  uint64_t size;

  /* The extent found last: from where it was looked for to hole_end all is
   * a hole, from there to data_end data; data_end is where to look next.
   */
  uint64_t hole_end, data_end;
};

static error_t
parse (int key, char *arg, struct argp_state *state)
{
  struct export *ex = state->input;

  if (key != KEY_FORMAT)
    return ARGP_ERR_UNKNOWN;
  ex->format = arg;
  return 0;
}

static int
fail_engine (void)
{
  fail ("export: %s", nbdedup_error ());
  return -1;
}

/* A hole, then data: enough. */
static int
on_extent (void *opaque, uint64_t offset, uint64_t len, bool hole)
{
  struct export *ex = opaque;

  ex->data_end = offset + len;
  if (!hole)
    return 1;
  ex->hole_end = offset + len;
  return 0;
}

/* Is the chunk at 'offset' a hole?  1 or 0; -1.  Offsets do not decrease. */
static int
is_hole (struct export *ex, uint64_t offset, uint32_t len)
{
  while (offset >= ex->data_end) {
    const uint64_t left = ex->size - offset;

    ex->hole_end = ex->data_end = offset;
    if (nbdedup_remote_extents (ex->remote,
                                left < WINDOW_LEN ? left : WINDOW_LEN, offset,
                                on_extent, ex) == -1)
      return fail_engine ();
    if (ex->data_end == offset) {
      fail ("export: the volume does not say where its holes are");
      return -1;
    }
  }
  return offset + len <= ex->hole_end;
}

/* Write what is in the slot, once it has been read. */
static int
write_chunk (struct export *ex, struct transfer *t, unsigned slot,
             uint32_t len, bool hole, uint64_t offset)
{
  uint8_t *buf;

  if (hole)
    return output_zero (&ex->output, len, offset);
  buf = transfer_wait (t, slot);
  if (buf == NULL)
    return -1;
  return output_write (&ex->output, buf, len, offset);
}

static int
copy (struct export *ex, struct transfer *t)
{
  bool hole[TRANSFER_SLOTS] = { false };
  unsigned slot_of[TRANSFER_SLOTS];
  const uint64_t nr =
    ex->size / TRANSFER_LEN + (ex->size % TRANSFER_LEN != 0);
  uint64_t ahead = 0, i;
  unsigned slot = 0;
  int r;

#define CHUNK_LEN(i) \
  ((i) + 1 < nr ? TRANSFER_LEN : (uint32_t) (ex->size - (i) * TRANSFER_LEN))

  for (i = 0; i < nr; ++i) {
    /* At most TRANSFER_SLOTS chunks are between i and ahead, so the next
     * slot in turn has been written already.
     */
    for (; ahead < nr && ahead < i + TRANSFER_SLOTS; ++ahead) {
      const unsigned a = ahead % TRANSFER_SLOTS;

      r = is_hole (ex, ahead * TRANSFER_LEN, CHUNK_LEN (ahead));
      if (r == -1)
        return -1;
      hole[a] = r;
      slot_of[a] = slot;
      if (!hole[a]) {
        transfer_submit (t, slot, ahead * TRANSFER_LEN, CHUNK_LEN (ahead));
        slot = (slot + 1) % TRANSFER_SLOTS;
      }
    }
    if (interrupted () ||
        write_chunk (ex, t, slot_of[i % TRANSFER_SLOTS], CHUNK_LEN (i),
                     hole[i % TRANSFER_SLOTS], i * TRANSFER_LEN) == -1)
      return -1;
    progress_update (&ex->progress, i * TRANSFER_LEN + CHUNK_LEN (i),
                     ex->size);
  }
#undef CHUNK_LEN
  return 0;
}

static int
export_volume (struct export *ex)
{
  struct transfer *t = transfer_new (ex->remote, TRANSFER_READ);
  int r;

  if (t == NULL) {
    fail ("export: %s", strerror (errno));
    return -1;
  }
  progress_start (&ex->progress, "export", PROGRESS_BYTES,
                  ex->common.progress);
  r = copy (ex, t);
  progress_end (&ex->progress);
  if (r == -1 && transfer_error (t) != NULL)
    fail ("export: %s", transfer_error (t));
  transfer_free (t);
  if (r == -1 && interrupted ())
    fail ("export: interrupted");
  return r;
}

static int
export_to (struct export *ex, const char *name, const char *file)
{
  int r;

  ex->remote = nbdedup_client_volume_open (ex->client, name,
                                           NBDEDUP_VOLUME_READONLY);
  if (ex->remote == NULL)
    return fail_engine ();
  ex->size = nbdedup_remote_size (ex->remote);
  r = output_open (&ex->output, file, ex->common.pool, ex->size);
  if (r == 0)
    r = export_volume (ex);
  if (output_close (&ex->output, r == -1) == -1)
    r = -1;
  nbdedup_remote_close (ex->remote);
  return r;
}

int
cmd_export (int argc, char **argv, const char *pool)
{
  struct export ex = {
    .common = { .pool = pool, .min_args = 2, .max_args = 2 },
  };
  int r;

  options_parse (&ex.common, argc, argv, options, parse, "NAME FILE",
                 "Write volume or snapshot NAME to a raw disk image, with "
                 "holes; to a block device; or to standard output ('-').",
                 OPTIONS_POOL | OPTIONS_PROGRESS);
  if (ex.format != NULL && strcmp (ex.format, "raw") != 0)
    return fail ("export: format '%s': this version writes raw images only: "
                 "convert one with 'qemu-img convert' afterwards", ex.format);
  ex.client = client_open (&ex.common);
  if (ex.client == NULL)
    return EXIT_FAILURE;
  interrupt_catch ();
  r = export_to (&ex, ex.common.args[0], ex.common.args[1]);
  if (nbdedup_client_close (ex.client) == -1 && r == 0)
    r = fail_engine ();
  return r == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

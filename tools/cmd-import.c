/* SPDX-License-Identifier: BSD-3-Clause */

/* Import: make a volume, copy a file into it, flush.
 *
 * The volume exists from the start, under its name; whatever goes wrong
 * later, and a signal too, destroys it again.
 *
 * The length of a stream is known at its end only.  Its volume begins
 * small and doubles when it is full; a client sees growth only at its next
 * connection, so the volume is closed and opened again each time.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "image.h"
#include "interrupt.h"
#include "progress.h"
#include "tools.h"
#include "transfer.h"

enum {
  KEY_FORMAT = 0x2000,
  KEY_BLOCK_SIZE,
};

#define SIZE_UNIT 512
#define STREAM_SIZE_FIRST (UINT64_C (64) << 20)

static const struct argp_option options[] = {
  { "format", KEY_FORMAT, "FORMAT", 0,
    "The file's format; this version reads raw only. Without this option a "
    "file that looks like another format is refused", 0 },
  { "block-size", KEY_BLOCK_SIZE, "SIZE", 0,
    "The volume's block size, 4K to 1M; default: the pool's", 0 },
  { 0 }
};

struct import {
  struct options common;        /* first: parsers get a pointer to it */
  const char *format;
  uint64_t block_size;          /* 0: default */

  const char *name;
  struct input input;
  struct nbdedup_client *client;
  struct nbdedup_remote *remote;
  struct progress progress;
  uint64_t size;                /* the volume's, now */
};

static error_t
parse (int key, char *arg, struct argp_state *state)
{
  struct import *im = state->input;

  switch (key) {
  case KEY_FORMAT:
    im->format = arg;
    return 0;
  case KEY_BLOCK_SIZE:
    im->block_size = options_size (state, "block size", arg);
    if (im->block_size == 0)
      usage_error (&im->common, "a block size cannot be 0");
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

static int
fail_engine (void)
{
  fail ("import: %s", nbdedup_error ());
  return -1;
}

static int
call (struct import *im, const char *command, json_t *args)
{
  json_t *result = nbdedup_client_call (im->client, command, args, NULL, NULL);

  json_decref (args);
  if (result == NULL)
    return -1;
  json_decref (result);
  return 0;
}

static int
create_volume (struct import *im)
{
  json_t *args = pack_args (&im->common, "{s:s, s:I}", "name", im->name,
                            "size", (json_int_t) im->size);

  if (im->block_size != 0)
    json_object_set_new (args, "block-size", json_integer (im->block_size));
  return call (im, "create", args) == -1 ? fail_engine () : 0;
}

static int
resize_volume (struct import *im, uint64_t size)
{
  if (call (im, "resize",
            pack_args (&im->common, "{s:s, s:I, s:b}", "name", im->name,
                       "size", (json_int_t) size, "shrink", 1)) == -1)
    return fail_engine ();
  im->size = size;
  return 0;
}

/* Fill a buffer from 'offset' on.  Returns its length (0: the end of the
 * input), rounded up with zeroes, or -1.
 */
static int64_t
fill (struct import *im, uint8_t *buf, uint64_t offset)
{
  const uint64_t left = im->input.is_stream ? TRANSFER_LEN
                                            : im->input.size - offset;
  const uint32_t want = left < TRANSFER_LEN ? left : TRANSFER_LEN;
  const int64_t len = input_read (&im->input, buf, want, offset);
  const uint32_t tail = (SIZE_UNIT - len % SIZE_UNIT) % SIZE_UNIT;

  if (len == -1)
    return -1;
  if (!im->input.is_stream && len < want) {
    fail ("import: %s: became shorter while it was read", im->input.name);
    return -1;
  }
  memset (buf + len, 0, tail);  /* TRANSFER_LEN is a multiple */
  return len + tail;
}

/* Copy from *offset to the volume's end or the input's. */
static int
copy_range (struct import *im, struct transfer *t, uint64_t *offset,
            bool *at_end)
{
  unsigned slot = 0;
  uint8_t *buf;
  int64_t len;

  while (*offset < im->size && !*at_end) {
    if (input_is_hole (&im->input, *offset, TRANSFER_LEN)) {
      if (interrupted ())
        return -1;
      *offset += TRANSFER_LEN;
    }
    else {
      buf = transfer_wait (t, slot);
      if (buf == NULL)
        return -1;
      len = fill (im, buf, *offset);
      if (len == -1)
        return -1;
      if (!transfer_is_zero (buf, len)) {
        transfer_submit (t, slot, *offset, len);
        slot = (slot + 1) % TRANSFER_SLOTS;
      }
      *offset += len;
      *at_end = im->input.is_stream && len < TRANSFER_LEN;
    }
    progress_update (&im->progress, *offset,
                     im->input.is_stream ? 0 : im->input.size);
  }
  return transfer_drain (t);
}

/* Copy into the volume at its present size, and flush. */
static int
copy_volume (struct import *im, uint64_t *offset, bool *at_end)
{
  struct transfer *t;
  int r;

  im->remote = nbdedup_client_volume_open (im->client, im->name, 0);
  if (im->remote == NULL)
    return fail_engine ();
  t = transfer_new (im->remote, TRANSFER_WRITE);
  if (t == NULL) {
    fail ("import: %s", strerror (errno));
    return -1;
  }
  r = copy_range (im, t, offset, at_end);
  if (r == -1 && transfer_error (t) != NULL)
    fail ("import: %s", transfer_error (t));
  transfer_free (t);
  if (r == 0 && nbdedup_remote_flush (im->remote) == -1)
    r = fail_engine ();
  nbdedup_remote_close (im->remote);
  im->remote = NULL;
  return r;
}

static int
copy (struct import *im)
{
  uint64_t offset = 0, exact;
  bool at_end = false;

  for (;;) {
    if (copy_volume (im, &offset, &at_end) == -1)
      return -1;
    if (!im->input.is_stream || at_end)
      break;
    if (resize_volume (im, im->size * 2) == -1)
      return -1;
  }
  if (!im->input.is_stream)
    return 0;
  if (im->input.size == 0) {
    fail ("import: %s: is empty", im->input.name);
    return -1;
  }
  exact = (im->input.size + SIZE_UNIT - 1) / SIZE_UNIT * SIZE_UNIT;
  return exact == im->size ? 0 : resize_volume (im, exact);
}

/* Undo.  If the server went away, whoever has the pool next does it. */
static void
destroy_volume (struct import *im)
{
  json_t *args = pack_args (&im->common, "{s:s, s:b}", "name", im->name,
                            "force", 1);
  int r = call (im, "destroy", json_incref (args));

  if (r == -1 && (errno == EIO || errno == ESHUTDOWN) &&
      nbdedup_client_is_remote (im->client)) {
    nbdedup_client_close (im->client);
    im->client = nbdedup_client_open (im->common.pool, NULL, "nbdedup import");
    if (im->client != NULL)
      r = call (im, "destroy", json_incref (args));
  }
  json_decref (args);
  if (r == -1)
    fail ("import: volume '%s' is left behind half made: destroy it: %s",
          im->name, nbdedup_error ());
}

static int
import_input (struct import *im)
{
  int r;

  im->size = STREAM_SIZE_FIRST;
  if (!im->input.is_stream) {
    if (im->input.size == 0)
      return fail ("import: %s: is empty", im->input.name);
    im->size = (im->input.size + SIZE_UNIT - 1) / SIZE_UNIT * SIZE_UNIT;
  }
  if (create_volume (im) == -1)
    return EXIT_FAILURE;

  progress_start (&im->progress, "import", PROGRESS_BYTES,
                  im->common.progress);
  r = copy (im);
  progress_end (&im->progress);
  if (r == 0 && interrupted ())
    r = -1;
  if (r == -1) {
    destroy_volume (im);
    if (interrupted ())
      fail ("import: interrupted");
    return EXIT_FAILURE;
  }
  if (im->size != im->input.size)
    note ("import: %s: rounded up with zeroes from %" PRIu64 " to %" PRIu64
          " bytes", im->name, im->input.size, im->size);
  return EXIT_SUCCESS;
}

int
cmd_import (int argc, char **argv, const char *pool)
{
  struct import im = {
    .common = { .pool = pool, .min_args = 2, .max_args = 2 },
  };
  int r = EXIT_FAILURE;

  options_parse (&im.common, argc, argv, options, parse, "NAME FILE",
                 "Make volume NAME from a raw disk image ('-': standard "
                 "input). Holes stay holes. A size that is not a multiple of "
                 "512 is rounded up with zeroes.",
                 OPTIONS_POOL | OPTIONS_PROGRESS);
  im.name = im.common.args[0];
  if (input_open (&im.input, im.common.args[1]) == 0 &&
      input_check_format (&im.input, im.format) == 0 &&
      (im.client = client_open (&im.common)) != NULL) {
    interrupt_catch ();
    r = import_input (&im);
    if (nbdedup_client_close (im.client) == -1 && r == EXIT_SUCCESS)
      r = fail ("import: %s", nbdedup_error ());
  }
  input_close (&im.input);
  return r;
}

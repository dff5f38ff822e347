/* SPDX-License-Identifier: BSD-3-Clause */

/* Import: make a volume, copy an image into it, rename it.
 *
 * The volume appears under its name when it is complete and durable.  Until
 * then its name is NAME.importing-XXXXXXXX (random digits, so that no two
 * imports ever write to the same one).  After any failure or a signal the
 * import destroys it.  Only kill -9 and loss of power leave one behind: the
 * next import of NAME finds that it is not open, and destroys it.  It
 * recognizes it by a flag that "create" sets and "rename" clears, not by its
 * name.
 *
 * The length of a stream is known only at its end.  Its volume begins small
 * and doubles when it is full.  A client sees the new size only at its next
 * connection, so the import closes and opens the volume again each time.
 */

#include <config.h>

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "copy.h"
#include "image.h"
#include "interrupt.h"
#include "progress.h"
#include "tools.h"
#include "volume-options.h"
#include "wait.h"

enum {
  KEY_FORMAT = 0x2000,
  KEY_ALLOW_BACKING,
};

#define SIZE_UNIT 512
#define STREAM_SIZE_FIRST (UINT64_C (64) << 20)

/* Of a volume's name; the random digits are at the end of TEMP_SUFFIX. */
#define NAME_LEN_MAX 255
#define TEMP_SUFFIX ".importing-"
#define TEMP_DIGITS 8
#define TEMP_NAME_LEN                                                          \
  ((int) (NAME_LEN_MAX - strlen (TEMP_SUFFIX) - TEMP_DIGITS))

static const struct argp_option options[] = {
  { "format", KEY_FORMAT, "FORMAT", 0,
    "The image's format: raw, qcow2, vmdk, vdi, vhdx, vpc (or vhd), or "
    "another that QEMU reads; default: by its name and first bytes",
    0 },
  VOLUME_OPTIONS,
  { "allow-backing", KEY_ALLOW_BACKING, NULL, 0,
    "Also read the files on this machine that the image refers to", 0 },
  { 0 }
};

struct import {
  struct options common; /* first: parsers get a pointer to it */
  const char *format;
  struct volume_options volume;
  bool allow_backing;

  const char *name;
  char temp[NAME_LEN_MAX + 1]; /* the volume's name until it is complete */
  struct image *source;
  struct nbdedup_client *client;
  struct nbdedup_handle *remote; /* NULL: the volume is not open */
  char *misuse;                  /* owned; an option with an invalid value */
  struct progress progress;
  uint64_t size; /* the volume's present size */
};

static error_t
parse (int key, char *arg, struct argp_state *state)
{
  struct import *im = state->input;

  switch (key) {
  case KEY_FORMAT:
    im->format = arg;
    return 0;
  case KEY_ALLOW_BACKING:
    im->allow_backing = true;
    return 0;
  default:
    return volume_options_parse (&im->volume, &im->common, key, arg, state);
  }
}

static int
fail_engine (void)
{
  fail ("import: %s", nbdedup_error ());
  return -1;
}

/* While there is a volume that must go: after a signal, import_source says that
 * once.
 */
static int
fail_midway (void)
{
  return interrupted () ? -1 : fail_engine ();
}

static int
fail_image (void)
{
  fail ("import: %s", image_error ());
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

/*----------------------------------------------------------------------
 * The volume
 */

/* Did an import of the same name make it?  The name alone proves nothing: users
 * may choose any name.
 */
static bool
is_leftover (const struct import *im, json_t *entry)
{
  const size_t len = strlen (im->temp) - TEMP_DIGITS;
  const char *name = json_text (entry, "name");
  const char *p;

  if (!json_is_true (json_object_get (entry, "importing")))
    return false;
  if (strlen (name) != len + TEMP_DIGITS || strncmp (name, im->temp, len) != 0)
    return false;
  for (p = name + len; *p; ++p)
    if (!isxdigit ((unsigned char) *p))
      return false;
  return true;
}

/* Refuse a name that is taken, now and not after an hour, and destroy the
 * volume that a killed import has left.  A running import that has not opened
 * its volume yet loses it, and fails; two imports are never mixed.
 */
static int
prepare_names (struct import *im)
{
  json_t *list = nbdedup_client_call (im->client, "list", NULL, NULL, NULL);
  json_t *entry;
  size_t i;
  int r = 0;

  if (list == NULL)
    return fail_engine ();
  json_array_foreach (json_object_get (list, "volumes"), i, entry) {
    const char *name = json_text (entry, "name");

    if (strcmp (name, im->name) == 0) {
      fail ("import: there is a volume '%s' already", im->name);
      r = -1;
    }
    else if (is_leftover (im, entry) && json_size (entry, "clients") == 0 &&
             call (im, "destroy",
                   pack_args (&im->common, "{s:s}", "name", name)) == 0)
      note ("import: destroyed %s, left behind by an import that was killed",
            name);
  }
  json_decref (list);
  return r;
}

static int
create_volume (struct import *im)
{
  json_t *args = pack_args (&im->common, "{s:s, s:I, s:b}", "name", im->temp,
                            "size", (json_int_t) im->size, "importing", 1);

  volume_options_add (&im->volume, &im->common, args);
  if (call (im, "create", args) == 0)
    return 0;
  if (errno != EINVAL)
    return fail_engine ();
  im->misuse = copy_string (nbdedup_error ());
  return -1;
}

static int
resize_volume (struct import *im, uint64_t size)
{
  if (call (im, "resize",
            pack_args (&im->common, "{s:s, s:I, s:b}", "name", im->temp, "size",
                       (json_int_t) size, "shrink", 1)) == -1)
    return fail_midway ();
  im->size = size;
  return 0;
}

static void
close_volume (struct import *im)
{
  nbdedup_handle_close (im->remote);
  im->remote = NULL;
}

/* Undo.  If the server has ended, use the pool's next one, or this process. */
static void
destroy_volume (struct import *im)
{
  json_t *args = pack_args (&im->common, "{s:s, s:b}", "name", im->temp,
                            "force", 1);
  int r;

  wait_must_end ();
  r = call (im, "destroy", json_incref (args));
  if (r == -1 && (errno == EIO || errno == ESHUTDOWN) &&
      nbdedup_client_is_served (im->client)) {
    nbdedup_client_close (im->client);
    im->client = nbdedup_client_open (im->common.pool, NULL, "nbdedup import",
                                      NULL);
    if (im->client != NULL)
      r = call (im, "destroy", json_incref (args));
  }
  json_decref (args);
  if (r == -1 && errno != ENOENT)
    fail ("import: cannot destroy the incomplete volume '%s': %s: destroy it "
          "by hand",
          im->temp, nbdedup_error ());
}

/*----------------------------------------------------------------------
 * The copy
 */

/* Copy into the volume at its present size, and flush.  The volume stays
 * open.
 */
static int
copy_volume (struct import *im, uint64_t *offset, bool *at_end)
{
  const uint64_t limit = im->source->is_stream ? im->size : im->source->size;
  struct image *target;
  int r;

  im->remote = nbdedup_client_volume_open (im->client, im->temp, 0);
  if (im->remote == NULL)
    return fail_midway ();
  target = image_volume_new (im->remote, im->name);
  r = copy_images (im->source, target, offset, limit, at_end, &im->progress);
  if (r == -1 && !interrupted ())
    fail_image ();
  if (image_close (target, r == -1) == -1)
    r = interrupted () ? -1 : fail_image ();
  return r;
}

static int
copy_stream (struct import *im)
{
  uint64_t offset = 0, exact;
  bool at_end = false;

  for (;;) {
    if (copy_volume (im, &offset, &at_end) == -1)
      return -1;
    if (at_end)
      break;
    close_volume (im);
    if (resize_volume (im, im->size * 2) == -1)
      return -1;
  }
  if (im->source->size == 0) {
    fail ("import: %s: is empty", im->source->name);
    return -1;
  }
  exact = (im->source->size + SIZE_UNIT - 1) / SIZE_UNIT * SIZE_UNIT;
  if (exact == im->size)
    return 0;
  close_volume (im); /* the resize below shrinks it */
  return resize_volume (im, exact);
}

static int
copy (struct import *im)
{
  uint64_t offset = 0;
  int r;

  progress_start (&im->progress, "import", PROGRESS_BYTES, im->common.progress);
  r = im->source->is_stream ? copy_stream (im)
                            : copy_volume (im, &offset, NULL);
  progress_end (&im->progress);
  return r;
}

/* The volume is complete. */
static int
rename_volume (struct import *im)
{
  json_t *args = pack_args (&im->common, "{s:s, s:s, s:I}", "new", im->name,
                            "old", im->temp, "imported",
                            (json_int_t) im->source->size);
  int r = call (im, "rename", json_incref (args));

  if (r == -1 && errno == EINVAL) {
    /* A server of version 0.9.0 does not know that argument. */
    json_object_del (args, "imported");
    r = call (im, "rename", json_incref (args));
  }
  json_decref (args);
  return r == -1 ? fail_midway () : 0;
}

static int
import_source (struct import *im)
{
  int r;

  im->size = STREAM_SIZE_FIRST;
  if (!im->source->is_stream) {
    if (im->source->size == 0)
      return fail ("import: %s: is empty", im->source->name);
    im->size = (im->source->size + SIZE_UNIT - 1) / SIZE_UNIT * SIZE_UNIT;
  }
  if (prepare_names (im) == -1 || create_volume (im) == -1)
    return EXIT_FAILURE;

  r = copy (im);
  if (r == 0 && interrupted ())
    r = -1;
  if (r == 0)
    r = rename_volume (im);
  close_volume (im);
  if (r == -1) {
    destroy_volume (im);
    if (interrupted ())
      fail ("import: interrupted");
    return EXIT_FAILURE;
  }
  if (im->size != im->source->size)
    note ("import: %s: rounded up with zeroes from %" PRIu64 " to %" PRIu64
          " bytes",
          im->name, im->source->size, im->size);
  return EXIT_SUCCESS;
}

static int
open_source (struct import *im, const char *file)
{
  char *detected;

  im->source = image_open_source (file, im->format, im->allow_backing,
                                  &detected);
  if (im->source == NULL)
    return interrupted () ? fail ("import: interrupted"), -1 : fail_image ();
  /* A guest can write another format's header into a raw disk: the user should
   * check the result.
   */
  if (detected != NULL)
    note ("import: %s: is read as %s; --format raw reads its bytes as they are",
          file, detected);
  free (detected);
  return 0;
}

static int
choose_names (struct import *im)
{
  uint32_t random = 0;

  im->name = im->common.args[0];
  if (nbdedup_volume_check_name (im->name) == -1)
    usage_error (&im->common, "%s", nbdedup_error ());
  if (getrandom (&random, sizeof random, 0) != sizeof random) {
    fail ("import: no random numbers: %s", strerror (errno));
    return -1;
  }
  snprintf (im->temp, sizeof im->temp, "%.*s%s%0*" PRIx32, TEMP_NAME_LEN,
            im->name, TEMP_SUFFIX, TEMP_DIGITS, random);
  return 0;
}

int
cmd_import (int argc, char **argv, const char *pool)
{
  struct import im = {
    .common = { .pool = pool, .min_args = 2, .max_args = 2 },
  };
  int r = EXIT_FAILURE;

  options_parse (&im.common, argc, argv, options, parse, "NAME FILE",
                 "Make volume NAME from a disk image in any format that QEMU "
                 "reads, a block device, an nbd:// URI, or a raw image from "
                 "standard input ('-'). Holes stay holes. A size that is not a "
                 "multiple of 512 is rounded up with zeroes.",
                 OPTIONS_POOL | OPTIONS_PROGRESS);
  image_check_source (&im.common, im.common.args[1], im.format);
  interrupt_catch ();
  if (choose_names (&im) == 0 && open_source (&im, im.common.args[1]) == 0 &&
      (im.client = client_open (&im.common)) != NULL) {
    r = import_source (&im);
    if (nbdedup_client_close (im.client) == -1 && r == EXIT_SUCCESS)
      r = fail ("import: %s", nbdedup_error ());
  }
  image_close (im.source, true);
  if (im.misuse)
    usage_error (&im.common, "%s", im.misuse);
  return r;
}

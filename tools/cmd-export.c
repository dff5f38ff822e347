/* SPDX-License-Identifier: BSD-3-Clause */

/* Export: open a volume or a snapshot, make an image, copy, sync. */

#include <config.h>

#include <errno.h>

#include "copy.h"
#include "image.h"
#include "interrupt.h"
#include "progress.h"
#include "tools.h"

enum {
  KEY_FORMAT = 0x2000,
};

static const struct argp_option options[] = {
  { "format", KEY_FORMAT, "FORMAT", 0,
    "The image's format: raw, qcow2, vmdk, vdi, vhdx, vpc (or vhd), or another "
    "that QEMU writes; default: by FILE's suffix, else raw",
    0 },
  { 0 }
};

struct export
{
  struct options common; /* first: parsers get a pointer to it */
  const char *format;

  struct nbdedup_client *client;
  struct nbdedup_handle *remote;
  struct progress progress;
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

/* 'why': the reason. */
static int
fail_copy (const struct image *target, const char *why)
{
  if (target != NULL && target->stays_partial)
    fail ("export: %s; %s now holds only a part of the volume", why,
          target->name);
  else
    fail ("export: %s", why);
  return -1;
}

static int
export_to (struct export *ex, const char *name, const char *file)
{
  const uint64_t size = nbdedup_handle_size (ex->remote);
  struct image *source = image_volume_new (ex->remote, name);
  struct image *target = image_open_target (file, ex->format, ex->common.pool,
                                            size);
  uint64_t offset = 0;
  int r = -1;

  if (target != NULL) {
    progress_start (&ex->progress, "export", PROGRESS_BYTES,
                    ex->common.progress);
    r = copy_images (source, target, &offset, size, NULL, &ex->progress);
    progress_end (&ex->progress);
    if (interrupted ())
      r = -1;
  }
  if (r == -1)
    fail_copy (target, interrupted () ? "interrupted" : image_error ());
  if (image_close (target, r == -1) == -1 && r == 0)
    r = fail_copy (NULL, interrupted () ? "interrupted" : image_error ());
  image_close (source, true);
  return r;
}

int
cmd_export (int argc, char **argv, const char *pool)
{
  struct export ex = {
    .common = { .pool = pool, .min_args = 2, .max_args = 2 },
  };
  char *misuse = NULL;
  const char *name;
  int r = -1;

  options_parse (&ex.common, argc, argv, options, parse, "NAME FILE",
                 "Write volume or snapshot NAME to a disk image, with holes, "
                 "in any format that QEMU writes; or raw to a block device, an "
                 "nbd:// URI, or standard output ('-').",
                 OPTIONS_READS | OPTIONS_PROGRESS);
  name = ex.common.args[0];
  image_check_target (&ex.common, ex.common.args[1], ex.format);
  interrupt_catch ();
  ex.client = client_open (&ex.common);
  if (ex.client == NULL)
    return EXIT_FAILURE;
  ex.remote = nbdedup_client_volume_open (ex.client, name,
                                          NBDEDUP_VOLUME_READONLY);
  if (ex.remote != NULL)
    r = export_to (&ex, name, ex.common.args[1]);
  else if (errno == EINVAL) /* of a name that no pool has */
    misuse = copy_string (nbdedup_error ());
  else
    fail_engine ();
  nbdedup_handle_close (ex.remote);
  if (nbdedup_client_close (ex.client) == -1 && r == 0)
    r = fail_engine ();
  if (misuse != NULL)
    usage_error (&ex.common, "%s", misuse);
  return r == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

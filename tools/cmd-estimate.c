/* SPDX-License-Identifier: BSD-3-Clause */

/* Estimate: read images as import does, and pass the data to the engine's
 * estimate instead of a volume.
 *
 * The command opens all images first: so it finds an unreadable one before
 * spending hours on the others, and progress knows the sum of their sizes.
 */

#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <sys/stat.h>

#include "copy.h"
#include "dated-name.h"
#include "estimate-print.h"
#include "image.h"
#include "interrupt.h"
#include "progress.h"
#include "tools.h"

enum {
  KEY_FORMAT = 0x2000,
  KEY_BLOCK_SIZE,
  KEY_SECTOR,
  KEY_COMPRESS,
  KEY_EXACT,
  KEY_MEMORY,
  KEY_ALLOW_BACKING,
  KEY_GOLDEN,
  KEY_HISTORY,
};

#define SIZES_MAX 32

static const struct argp_option options[] = {
  { "format", KEY_FORMAT, "FORMAT", 0,
    "The images' format, as for import; default: by name and first bytes", 0 },
  { "block-size", KEY_BLOCK_SIZE, "SIZE[,SIZE...]", 0,
    "Block sizes to compare, 4K to 1M; default: 4K,8K,16K,32K,64K,128K, "
    "those not below the sector",
    0 },
  { "sector", KEY_SECTOR, "SIZE", 0,
    "The pool's sector, 512 to 8K; default: 512", 0 },
  { "compress", KEY_COMPRESS, "NAME", 0,
    "none, lz4, zstd or zstd-N (N from 1 to 19); default: lz4", 0 },
  { "exact", KEY_EXACT, NULL, 0, "Compress every distinct block, not a sample",
    0 },
  { "memory", KEY_MEMORY, "SIZE", 0,
    "Memory for the contents found so far; the command samples if they do not "
    "fit; default: 1G",
    0 },
  { "allow-backing", KEY_ALLOW_BACKING, NULL, 0,
    "Also read the files on this machine that the images refer to", 0 },
  { "golden", KEY_GOLDEN, "FILE", 0,
    "Also report how far the images have diverged from this one, as drift "
    "does for clones",
    0 },
  { "history", KEY_HISTORY, NULL, 0,
    "With --golden: treat the images as copies from several dates, which their "
    "names give, or else their modification times",
    0 },
  { 0 }
};

struct source {
  const char *file;    /* not owned */
  char *name;          /* owned; in a history without its date */
  int64_t time;        /* of its sample */
  struct image *image; /* owned; NULL: to be opened again */
  uint64_t size;
};

struct estimate {
  struct options common; /* first: parsers get a pointer to it */
  const char *format;
  bool allow_backing;
  const char *golden; /* sources[0]; NULL: no classes */
  bool history;
  bool has_sizes; /* --block-size */
  uint32_t sizes[SIZES_MAX];
  struct nbdedup_estimate_settings settings;

  struct nbdedup_estimate *engine; /* owned */
  struct source *sources;          /* owned */
  unsigned nr_sources;             /* common.nr_args, and the golden */
  struct progress progress;
};

/*----------------------------------------------------------------------
 * Options
 */

static uint32_t
parse_size_32 (struct argp_state *state, const char *what, const char *arg)
{
  const uint64_t size = options_size (state, what, arg);

  if (size > UINT32_MAX)
    usage_error (state->input, "%s '%s': too large", what, arg);
  return size;
}

/* "4K,16K" */
static void
parse_sizes (struct estimate *es, struct argp_state *state, const char *arg)
{
  char *copy = copy_string (arg), *rest = copy, *word;

  es->has_sizes = true;
  es->settings.nr_block_sizes = 0;
  while ((word = strsep (&rest, ",")) != NULL) {
    if (es->settings.nr_block_sizes == SIZES_MAX)
      usage_error (&es->common, "more than %d block sizes", SIZES_MAX);
    es->sizes[es->settings.nr_block_sizes++] = parse_size_32 (state,
                                                              "block size",
                                                              word);
  }
  free (copy);
}

static error_t
parse (int key, char *arg, struct argp_state *state)
{
  struct estimate *es = state->input;

  switch (key) {
  case KEY_FORMAT:
    es->format = arg;
    return 0;
  case KEY_BLOCK_SIZE:
    parse_sizes (es, state, arg);
    return 0;
  case KEY_SECTOR:
    es->settings.sector_bytes = parse_size_32 (state, "sector", arg);
    return 0;
  case KEY_COMPRESS:
    es->settings.compress = arg;
    return 0;
  case KEY_EXACT:
    es->settings.exact = true;
    return 0;
  case KEY_MEMORY:
    es->settings.memory_bytes = options_size (state, "memory", arg);
    return 0;
  case KEY_ALLOW_BACKING:
    es->allow_backing = true;
    return 0;
  case KEY_GOLDEN:
    es->golden = arg;
    return 0;
  case KEY_HISTORY:
    es->history = true;
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

/*----------------------------------------------------------------------
 * Reading
 */

static int
fail_image (void)
{
  if (interrupted ())
    fail ("estimate: interrupted");
  else
    fail ("estimate: %s", image_error ());
  return -1;
}

static int
open_source (struct estimate *es, struct source *s, bool first)
{
  bool is_qemu = es->format != NULL && strcmp (es->format, "raw") != 0;
  char *detected;

  s->image = image_open_source (s->file, es->format, es->allow_backing,
                                &detected);
  if (s->image == NULL)
    return fail_image ();
  is_qemu |= detected != NULL;
  if (first && detected != NULL)
    note ("estimate: %s: is read as %s; --format raw reads its bytes as they "
          "are",
          s->file, detected);
  free (detected);
  if (s->image->is_stream)
    return 0;
  s->size = s->image->size;
  if (s->size == 0) {
    fail ("estimate: %s: is empty", s->image->name);
    return -1;
  }
  /* Each of these needs a process: do not keep all open. */
  if (first && is_qemu && es->nr_sources > 1) {
    image_close (s->image, true);
    s->image = NULL;
  }
  return 0;
}

static int
read_source (struct estimate *es, struct source *s, struct image *sink)
{
  uint64_t offset = 0;
  int r;

  if (s->image == NULL && open_source (es, s, false) == -1)
    return -1;
  if (nbdedup_estimate_begin (es->engine, s->name, s->time) == -1) {
    fail ("estimate: %s", nbdedup_error ());
    return -1;
  }
  r = copy_images (s->image, sink, &offset,
                   s->image->is_stream ? UINT64_MAX : s->image->size, NULL,
                   &es->progress);
  if (r == 0 && interrupted ())
    r = -1;
  if (r == -1)
    fail_image ();
  else if (s->image->size == 0) {
    fail ("estimate: %s: is empty", s->image->name);
    r = -1;
  }
  else {
    s->size = s->image->size; /* of a stream it is known only now */
    r = nbdedup_estimate_image (es->engine, s->size);
    if (r == -1)
      fail ("estimate: %s", nbdedup_error ());
  }
  image_close (s->image, true);
  s->image = NULL;
  return r;
}

static int
read_sources (struct estimate *es)
{
  struct image *sink = image_estimate_new (es->engine, &es->settings);
  uint64_t total = 0, before = 0;
  bool known = true;
  unsigned i;
  int r = 0;

  for (i = 0; i < es->nr_sources; ++i) {
    total += es->sources[i].size;
    known &= es->sources[i].size > 0; /* 0: a stream */
  }
  progress_start (&es->progress, "estimate", PROGRESS_BYTES,
                  es->common.progress);
  for (i = 0; i < es->nr_sources && r == 0; ++i) {
    progress_part (&es->progress, before, known ? total : 0);
    r = read_source (es, &es->sources[i], sink);
    before += es->sources[i].size;
  }
  progress_end (&es->progress);
  image_close (sink, true);
  return r;
}

static int
look (void *opaque)
{
  (void) opaque;
  return interrupted () ? -1 : 0;
}

/* Add the classes to the document: "samples", or "drift" if all images are of
 * the same time.
 */
static int
compare (struct estimate *es, json_t *result)
{
  json_t *row;
  size_t i;

  if (nbdedup_estimate_compare (es->engine, result, look, NULL) == -1) {
    if (interrupted ())
      fail ("estimate: interrupted");
    else
      fail ("estimate: %s", nbdedup_error ());
    return -1;
  }
  json_array_foreach (result, i, row) {
    if (es->history)
      continue;
    json_object_set (row, "drift",
                     json_array_get (json_object_get (row, "samples"), 0));
    json_object_del (row, "samples");
  }
  return 0;
}

/* The document, or NULL: reported. */
static json_t *
measure (struct estimate *es)
{
  json_t *result;
  unsigned i;

  for (i = 0; i < es->nr_sources; ++i)
    if (open_source (es, &es->sources[i], true) == -1)
      return NULL;
  if (read_sources (es) == -1)
    return NULL;
  result = nbdedup_estimate_result (es->engine);
  if (result == NULL)
    fail ("estimate: %s", nbdedup_error ());
  else if (es->golden && compare (es, result) == -1) {
    json_decref (result);
    return NULL;
  }
  return result;
}

/*----------------------------------------------------------------------*/

/* Without --block-size use those of the usual sizes that a pool with this
 * sector can have.
 */
static void
fit_default_sizes (struct estimate *es)
{
  size_t *nr = &es->settings.nr_block_sizes;
  size_t i = 0;

  while (i < *nr - 1 && es->sizes[i] < es->settings.sector_bytes)
    i++;
  *nr -= i;
  memmove (es->sizes, es->sizes + i, *nr * sizeof es->sizes[0]);
}

/* The time of a copy: by its name, or when it was last changed. */
static void
date_source (struct estimate *es, struct source *s)
{
  struct stat st;

  if (dated_name (s->file, &s->name, &s->time))
    return;
  if (stat (s->file, &st) == -1 || !S_ISREG (st.st_mode))
    usage_error (&es->common,
                 "--history: %s: has no date in its name, and "
                 "is no file: name it like web-2026-10-01.raw",
                 s->file);
  s->name = copy_string (s->file);
  s->time = st.st_mtime;
}

/* The golden image is the first. */
static void
name_sources (struct estimate *es)
{
  const time_t now = time (NULL);
  struct source *s;
  unsigned i;

  if (es->history && es->golden == NULL)
    usage_error (&es->common, "--history needs --golden");
  es->sources = check_memory (
    calloc (es->common.nr_args + 1, sizeof es->sources[0]));
  s = es->sources;
  if (es->golden) {
    *s++ = (struct source) {
      .file = es->golden,
      .name = copy_string (es->golden),
      .time = now,
    };
    es->settings.compare_directory = getenv ("TMPDIR") ?: "/var/tmp";
  }
  for (i = 0; i < es->common.nr_args; ++i, ++s) {
    s->file = es->common.list[i];
    if (es->history)
      date_source (es, s);
    else {
      s->name = copy_string (s->file);
      s->time = now;
    }
  }
  es->nr_sources = (unsigned) (s - es->sources);
}

/* Exits if an option has a value that no pool could have. */
static void
new_engine (struct estimate *es)
{
  es->engine = nbdedup_estimate_new (&es->settings);
  if (es->engine == NULL && errno == EINVAL)
    usage_error (&es->common, "%s", nbdedup_error ());
  if (es->engine == NULL)
    exit (fail ("estimate: %s", nbdedup_error ()));
}

int
cmd_estimate (int argc, char **argv, const char *pool)
{
  struct estimate es = {
    .common = { .pool = pool, .min_args = 1, .max_args = argc },
    .sizes = { 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10 },
    .settings = {
      .block_sizes = es.sizes, .nr_block_sizes = 6, .sector_bytes = 512,
      .compress = "lz4", .memory_bytes = NBDEDUP_ESTIMATE_MEMORY_DEFAULT,
    },
  };
  json_t *result;
  unsigned i;

  es.common.list = check_memory (calloc (argc, sizeof es.common.list[0]));
  options_parse (&es.common, argc, argv, options, parse, "FILE...",
                 "Estimate what dedup and compression would save on these "
                 "disk images, all of them in one pool. An image is in any "
                 "format that QEMU reads, a block device, an nbd:// URI, or "
                 "raw from standard input ('-'). Needs no pool.",
                 OPTIONS_JSON | OPTIONS_PROGRESS);
  name_sources (&es);
  for (i = 0; i < es.nr_sources; ++i)
    image_check_source (&es.common, es.sources[i].file, es.format);
  if (!es.has_sizes)
    fit_default_sizes (&es);
  new_engine (&es);
  interrupt_catch ();
  result = measure (&es);
  if (result != NULL && es.common.json)
    print_json (result);
  else if (result != NULL)
    estimate_print (result);

  for (i = 0; i < es.nr_sources; ++i) {
    image_close (es.sources[i].image, true);
    free (es.sources[i].name);
  }
  nbdedup_estimate_free (es.engine);
  free (es.common.list);
  free (es.sources);
  if (result == NULL)
    return EXIT_FAILURE;
  json_decref (result);
  return EXIT_SUCCESS;
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* The volumes are read in windows, from the first to the last: of each window
 * first the golden image, then each clone that differs there.  So the golden
 * image is read once, and the clones are compared with it while it is in
 * memory.  That a block of the present size differs tells little about the
 * smaller blocks in it, and a larger block is compared as a whole: the estimate
 * compares the data.
 */

#include <config.h>

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "advise-block-size.h"
#include "image.h"
#include "interrupt.h"
#include "tools.h"

/* A multiple of each unit.  Clones of many: each reads the rows of its map for
 * a window.
 */
#define WINDOW (UINT64_C (4) << 20)

/* For the distinct contents: of 10 million, without sampling. */
#define MEMORY (UINT64_C (128) << 20)

/* Up to so many bytes compress every content and not a sample: the sample's
 * error would be a large part of what a small fleet can save, and this takes
 * some seconds.  High levels of zstd take a hundred times as long as lz4.
 */
#define EXACT_MAX (UINT64_C (1) << 30)
#define EXACT_MAX_ZSTD (UINT64_C (256) << 20)
#define EXACT_MAX_LEVEL (UINT64_C (32) << 20)

/* Moving a fleet takes hours of work and stops its machines: not for less. */
#define SAVES_MIN (UINT64_C (1) << 20)
#define SAVES_MIN_SHARE 0.05

/* Where a sample says that this pays, a larger one says how much: so large that
 * the error (95 %) is this share of the saving, if its first contents are no
 * more than so many times the bytes of EXACT_MAX.
 */
#define ERROR_SHARE 0.02
#define SAMPLE_TIMES 8
#define SAMPLE_USUAL 1300 /* of the first one: the engine's own */

static const uint32_t usual_sizes[] = {
  4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10,
};
#define NR_USUAL (sizeof usual_sizes / sizeof usual_sizes[0])

/* Of the golden image the units with data, of a clone those that differ. */
struct member {
  uint64_t size;
  uint8_t *units; /* owned; a bit for each */
  size_t nr_bytes;
};

struct block_sizes {
  struct nbdedup_client *client; /* not owned, all three */
  struct nbdedup_frozen *frozen;
  const json_t *document;

  uint32_t present; /* block size */
  uint32_t sizes[NR_USUAL + 1];
  size_t nr_sizes;
  uint32_t unit; /* the largest of them */
  uint32_t sector;
  char *compress; /* owned */
  bool has_copy;  /* of pool.db */

  struct member *members; /* owned; the golden image, the clones */
  size_t nr_members;
  struct nbdedup_estimate *estimate; /* owned */
  uint8_t *golden, *clone;           /* owned; a window of each */
};

/*----------------------------------------------------------------------
 * Which parts to read
 */

static void
set_units (struct member *m, uint64_t first, uint64_t end)
{
  const size_t need = end / 8 + 1;
  uint64_t i;

  if (need > m->nr_bytes) {
    m->units = check_memory (realloc (m->units, need * 2));
    memset (m->units + m->nr_bytes, 0, need * 2 - m->nr_bytes);
    m->nr_bytes = need * 2;
  }
  for (i = first; i < end; ++i)
    m->units[i / 8] |= (uint8_t) (1 << i % 8);
}

static bool
has_unit (const struct member *m, uint64_t unit)
{
  return unit / 8 < m->nr_bytes && m->units[unit / 8] >> unit % 8 & 1;
}

static void
add_run (struct block_sizes *b, struct member *m, uint64_t block, uint64_t nr)
{
  set_units (m, block * b->present / b->unit,
             ((block + nr) * b->present + b->unit - 1) / b->unit);
}

void
block_sizes_add_run (struct block_sizes *b, uint64_t clone, uint64_t block,
                     uint64_t nr)
{
  add_run (b, &b->members[clone + 1], block, nr);
}

void
block_sizes_end_clone (struct block_sizes *b, uint64_t clone, uint64_t size)
{
  b->members[clone + 1].size = size;
}

static int
on_golden_run (void *opaque, uint64_t block, uint64_t nr,
               enum nbdedup_class class)
{
  struct block_sizes *b = opaque;

  (void) class;
  add_run (b, &b->members[0], block, nr);
  return 0;
}

/*----------------------------------------------------------------------
 * Begin and free
 */

static int
fail_engine (void)
{
  return image_fail ("%s", nbdedup_error ());
}

/* The usual sizes that the pool can have, and the present one. */
static void
choose_sizes (struct block_sizes *b)
{
  bool is_usual = false;
  size_t i;

  for (i = 0; i < NR_USUAL; ++i) {
    is_usual |= usual_sizes[i] == b->present;
    if (usual_sizes[i] >= b->sector)
      b->sizes[b->nr_sizes++] = usual_sizes[i];
  }
  if (!is_usual)
    b->sizes[b->nr_sizes++] = b->present;
  b->unit = b->sizes[b->nr_sizes - 1];
}

/* Set 'compress': that of the golden image's volume, or the pool's default if
 * that is gone.
 */
static int
read_compress (struct block_sizes *b, const json_t *pool)
{
  const char *golden = json_text (b->document, "golden");
  char *volume;
  json_t *own;

  if (advise_is_destroyed (golden)) {
    b->compress = copy_string (json_text (pool, "compress"));
    return 0;
  }
  volume = advise_volume_of (golden);
  own = advise_properties (b->client, volume);
  free (volume);
  if (own == NULL && errno != ENOENT)
    return fail_engine ();
  b->compress = copy_string (json_text (own ? own : pool, "compress"));
  json_decref (own);
  return 0;
}

static int
read_properties (struct block_sizes *b)
{
  json_t *pool = advise_properties (b->client, NULL);
  uint64_t sector;
  int r;

  if (pool == NULL)
    return fail_engine ();
  r = nbdedup_parse_size (json_text (pool, "sector"), &sector);
  b->sector = (uint32_t) sector;
  b->has_copy = strcmp (json_text (pool, "metadata-copy"), "off") != 0;
  r = r == -1 ? fail_engine () : read_compress (b, pool);
  json_decref (pool);
  return r;
}

struct block_sizes *
block_sizes_begin (struct nbdedup_client *client, struct nbdedup_frozen *frozen,
                   const json_t *document)
{
  struct block_sizes *b = check_memory (calloc (1, sizeof *b));

  b->client = client;
  b->frozen = frozen;
  b->document = document;
  b->present = (uint32_t) json_size (document, "block_size");
  b->nr_members = json_array_size (json_object_get (document, "clones")) + 1;
  b->members = check_memory (calloc (b->nr_members, sizeof *b->members));
  if (read_properties (b) == 0) {
    choose_sizes (b);
    if (nbdedup_frozen_runs (frozen, NBDEDUP_FROZEN_GOLDEN, &b->members[0].size,
                             on_golden_run, b) == 0)
      return b;
    fail_engine ();
  }
  block_sizes_free (b);
  return NULL;
}

uint64_t
block_sizes_golden (const struct block_sizes *b)
{
  return b->members[0].size;
}

void
block_sizes_free (struct block_sizes *b)
{
  size_t i;

  if (b == NULL)
    return;
  for (i = 0; i < b->nr_members; ++i)
    free (b->members[i].units);
  free (b->members);
  free (b->compress);
  nbdedup_estimate_free (b->estimate);
  free (b->golden);
  free (b->clone);
  free (b);
}

/*----------------------------------------------------------------------
 * The estimate
 */

/* The bytes of the golden image, and those that the clones do not share with
 * it.
 */
static uint64_t
bytes_to_read (const struct block_sizes *b)
{
  uint64_t blocks = json_size (b->document, "golden_blocks");
  const json_t *clone;
  size_t i;

  json_array_foreach (json_object_get (b->document, "clones"), i, clone)
    blocks += json_size (clone, "sibling") + json_size (clone, "unique");
  return blocks * b->present;
}

static uint64_t
exact_max (const char *compress)
{
  return strncmp (compress, "zstd", 4) != 0 ? EXACT_MAX
    : compress[4] == '\0'                   ? EXACT_MAX_ZSTD
                                            : EXACT_MAX_LEVEL;
}

static int
new_estimate (struct block_sizes *b, uint64_t sample)
{
  const struct nbdedup_estimate_settings settings = {
    .block_sizes = b->sizes,
    .nr_block_sizes = b->nr_sizes,
    .sector_bytes = b->sector,
    .compress = b->compress,
    .memory_bytes = MEMORY,
    .sample = sample,
    .exact = bytes_to_read (b) <= exact_max (b->compress),
  };

  nbdedup_estimate_free (b->estimate);
  b->estimate = nbdedup_estimate_new (&settings);
  return b->estimate != NULL ? 0 : fail_engine ();
}

static const char *
name_of (const struct block_sizes *b, size_t i)
{
  return i == 0
    ? json_text (b->document, "golden")
    : json_text (json_array_get (json_object_get (b->document, "clones"),
                                 i - 1),
                 "name");
}

/* Read and count the part of a window that a member's units [first, end) have,
 * which is not empty.  1: it cannot be read, because it is damaged; -1:
 * image_error.
 */
static int
read_part (struct block_sizes *b, size_t i, uint64_t window, uint64_t first,
           uint64_t end)
{
  const uint64_t offset = first * b->unit;
  const uint64_t limit = b->members[i].size;
  const uint64_t to = end * b->unit < limit ? end * b->unit : limit;
  uint8_t *golden = b->golden + (offset - window);
  uint8_t *buf = i == 0 ? golden : b->clone;
  const uint32_t len = (uint32_t) (to - offset);
  int r;

  if (nbdedup_frozen_read (b->frozen, i == 0 ? NBDEDUP_FROZEN_GOLDEN : i - 1,
                           buf, len, offset) == -1) {
    r = errno == EIO ? 1 : -1;
    image_fail ("%s: %s", name_of (b, i), nbdedup_error ());
    return r;
  }
  r = i == 0
    ? nbdedup_estimate_add (b->estimate, buf, len, offset)
    : nbdedup_estimate_add_clone (b->estimate, buf, golden, len, offset);
  return r == -1 ? fail_engine () : 0;
}

/* As read_part, for all units in the window. */
static int
read_window_of (struct block_sizes *b, size_t i, uint64_t window)
{
  const struct member *m = &b->members[i];
  const uint64_t stop = (window + WINDOW) / b->unit;
  uint64_t first, end;
  int r;

  for (first = window / b->unit; first < stop; first = end) {
    end = first + 1;
    if (!has_unit (m, first) || first * b->unit >= m->size)
      continue;
    while (end < stop && has_unit (m, end) && end * b->unit < m->size)
      end++;
    r = read_part (b, i, window, first, end);
    if (r != 0)
      return r;
  }
  return 0;
}

/* As read_part. */
static int
read_all (struct block_sizes *b, struct progress *progress)
{
  uint64_t size = 0, window;
  size_t i;
  int r;

  for (i = 0; i < b->nr_members; ++i)
    if (b->members[i].size > size)
      size = b->members[i].size;
  for (window = 0; window < size; window += WINDOW) {
    if (progress)
      progress_update (progress, window, size);
    memset (b->golden, 0, WINDOW);
    for (i = 0; i < b->nr_members; ++i) {
      if (interrupted ())
        return image_fail ("interrupted");
      r = read_window_of (b, i, window);
      if (r != 0)
        return r;
    }
  }
  return 0;
}

/* Compare b->sizes: as read_part, and the estimate's document (owned by the
 * caller).
 */
static int
measure (struct block_sizes *b, uint64_t sample, struct progress *progress,
         json_t **result)
{
  int r;

  *result = NULL;
  if (new_estimate (b, sample) == -1)
    return -1;
  r = read_all (b, progress);
  if (r != 0)
    return r;
  *result = nbdedup_estimate_result (b->estimate);
  return *result != NULL ? 0 : fail_engine ();
}

/*----------------------------------------------------------------------
 * The advice
 */

/* What depends on the block size for as long as the data is there.  The logs
 * are as large as the last writing has made them, and a pool reserves room for
 * the next writing whatever it holds.
 */
static double
bytes_of (const struct block_sizes *b, const json_t *row)
{
  /* The estimate counts pool.db with its copy. */
  const double database = (double) json_size (row, "database_bytes");

  return (double) json_size (row, "stored_bytes") +
    (double) json_size (row, "summary_bytes") +
    (b->has_copy ? database : database / 2);
}

static double
relative_error (const json_t *row, const char *value, const char *error)
{
  const double v = json_number_value (json_object_get (row, value));

  return v > 0 ? json_number_value (json_object_get (row, error)) / v : 0;
}

static double
error_of (const json_t *row)
{
  return (double) json_size (row, "stored_bytes") *
    hypot (relative_error (row, "dedup_ratio", "dedup_error"),
           relative_error (row, "compress_ratio", "compress_error"));
}

/* The best block size, and what the present one and it take. */
struct choice {
  uint32_t best;
  double before, after, error;
};

static struct choice
choose (const struct block_sizes *b, const json_t *result)
{
  struct choice c = { .before = 0 };
  const json_t *present = NULL, *best = NULL, *row;
  size_t i;

  json_array_foreach (result, i, row) {
    if (json_size (row, "block_size") == b->present)
      present = row;
    if (best == NULL || bytes_of (b, row) < bytes_of (b, best))
      best = row;
  }
  c.best = (uint32_t) json_size (best, "block_size");
  c.before = bytes_of (b, present);
  c.after = bytes_of (b, best);
  c.error = hypot (error_of (present), error_of (best));
  return c;
}

/* Would it pay, were the figures exact? */
static bool
may_pay (const struct choice *c)
{
  const double saves = c->before - c->after;

  return saves >= SAVES_MIN && saves >= SAVES_MIN_SHARE * c->before;
}

/* The sample that makes the error of this choice small enough; 0: it is. */
static uint64_t
better_sample (const struct block_sizes *b, const struct choice *c)
{
  const double times = c->error / (ERROR_SHARE * (c->before - c->after));
  const uint32_t larger = c->best > b->present ? c->best : b->present;
  const uint64_t most = SAMPLE_TIMES * exact_max (b->compress) / larger;

  if (times <= 1)
    return 0;
  return (uint64_t) fmin (SAMPLE_USUAL * times * times, (double) most);
}

/* Compare all sizes, then the present one with the best.  As read_part. */
static int
find_best (struct block_sizes *b, struct progress *progress, struct choice *c)
{
  json_t *result;
  uint64_t sample;
  int r = measure (b, 0, progress, &result);

  if (r != 0)
    return r;
  *c = choose (b, result);
  json_decref (result);
  sample = may_pay (c) ? better_sample (b, c) : 0;
  if (sample == 0)
    return 0;
  b->sizes[0] = b->present;
  b->sizes[1] = c->best;
  b->nr_sizes = 2;
  r = measure (b, sample, progress, &result);
  if (r == 0)
    *c = choose (b, result);
  json_decref (result);
  return r;
}

static char *
make_text (const struct block_sizes *b, const struct choice *c,
           const char *notes)
{
  char present[HUMAN_MAX], best[HUMAN_MAX], before[HUMAN_MAX];
  char after[HUMAN_MAX], saves[HUMAN_MAX];

  return make_string ("with blocks of %s instead of %s, %s and its clones "
                      "take %s instead of %s, which saves %s: move them into "
                      "new volumes, each while its machine is stopped%s",
                      block_size_text (c->best, best),
                      block_size_text (b->present, present), name_of (b, 0),
                      human_bytes ((uint64_t) c->after, after),
                      human_bytes ((uint64_t) c->before, before),
                      human_bytes ((uint64_t) (c->before - c->after), saves),
                      notes);
}

static int
append_advice (struct block_sizes *b, const struct choice *c, json_t *advice)
{
  json_t *commands;
  char *notes, *text;
  const int r = advise_new_volumes (b->client, b->document, c->best, &commands,
                                    &notes);

  if (r != 1)
    return r;
  text = make_text (b, c, notes);
  json_array_append_new (
    advice,
    check_memory (json_pack ("{s:s, s:I, s:I, s:I, s:I, s:I, s:s, s:o}",
                             "action", "block-size", "block_size",
                             (json_int_t) c->best, "saves_bytes",
                             (json_int_t) llround (c->before - c->after),
                             "bytes_before", (json_int_t) llround (c->before),
                             "bytes_after", (json_int_t) llround (c->after),
                             "error_bytes", (json_int_t) llround (c->error),
                             "text", text, "commands", commands)));
  free (text);
  free (notes);
  return 0;
}

int
advise_block_size (struct block_sizes *b, struct progress *progress,
                   json_t *advice)
{
  struct choice c;
  int r;

  b->golden = check_memory (malloc (WINDOW));
  b->clone = check_memory (malloc (WINDOW));
  r = find_best (b, progress, &c);
  if (r == 1) {
    note ("drift: %s: no advice on its block size: %s", name_of (b, 0),
          image_error ());
    return 0;
  }
  return r == 0 && may_pay (&c) && c.before - c.after > c.error
    ? append_advice (b, &c, advice)
    : r;
}

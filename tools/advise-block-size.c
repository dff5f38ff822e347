/* SPDX-License-Identifier: BSD-3-Clause */

/* The volumes are read in windows, from the first to the last: of each window
 * first the golden image, then each clone that differs there.  So the golden
 * image is read once, and the clones are compared with it while it is in
 * memory.  That a block of the present size differs tells little about the
 * smaller blocks in it, and a larger block is compared as a whole: the estimate
 * compares the data.  Volumes may be large and almost empty: only what is there
 * takes time and memory.
 */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "advise-block-size.h"
#include "base/array.h"
#include "image.h"
#include "interrupt.h"
#include "tools.h"

/* A multiple of each unit.  Clones of many: each reads the rows of its map for
 * a window.
 */
#define WINDOW (UINT64_C (4) << 20)
/* So many at most: the unit is never smaller than the largest usual size. */
#define WINDOW_UNITS 32

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

/* What to read of one member in one window: of the golden image the units with
 * data, of a clone those that differ.
 */
struct part {
  uint64_t window; /* its number */
  uint32_t member; /* 0: the golden image; 1 ...: the clones */
  uint32_t units;  /* a bit for each; not 0 */
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

  uint64_t *bytes;    /* owned; the size of each member */
  struct part *parts; /* owned; by member and window, then by window and
                       * member */
  size_t nr_parts, nr_golden;
  struct nbdedup_estimate *estimate; /* owned */
  uint8_t *golden, *clone;           /* owned; a window of each */
};

/*----------------------------------------------------------------------
 * Which parts to read
 */

/* The units [first, end) that are in a window, as bits. */
static uint32_t
units_in (const struct block_sizes *b, uint64_t window, uint64_t first,
          uint64_t end)
{
  const uint64_t per = WINDOW / b->unit, start = window * per;
  const uint64_t from = first > start ? first - start : 0;
  const uint64_t to = end - start < per ? end - start : per;

  return (uint32_t) ((UINT64_C (1) << to) - (UINT64_C (1) << from));
}

static void
add_units (struct block_sizes *b, uint32_t member, uint64_t window,
           uint32_t units)
{
  struct part *p = b->nr_parts > 0 ? &b->parts[b->nr_parts - 1] : NULL;

  if (p == NULL || p->member != member || p->window != window) {
    p = check_memory (array_add (&b->parts, &b->nr_parts, sizeof *p));
    p->member = member;
    p->window = window;
  }
  p->units |= units;
}

/* A clone's holes differ only where the golden image has data, and may be as
 * large as the clone.
 */
static void
add_holes (struct block_sizes *b, uint32_t member, uint64_t first, uint64_t end)
{
  const uint64_t per = WINDOW / b->unit;
  uint32_t units;
  size_t i = array_position (b->nr_golden, at,
                             b->parts[at].window < first / per);

  for (; i < b->nr_golden && b->parts[i].window * per < end; ++i) {
    units = b->parts[i].units & units_in (b, b->parts[i].window, first, end);
    if (units != 0)
      add_units (b, member, b->parts[i].window, units);
  }
}

static void
add_run (struct block_sizes *b, uint32_t member, uint64_t block, uint64_t nr,
         enum nbdedup_class class)
{
  const uint64_t per = WINDOW / b->unit;
  const uint64_t first = block * b->present / b->unit;
  const uint64_t end = ((block + nr) * b->present + b->unit - 1) / b->unit;
  uint64_t window;

  if (class == NBDEDUP_ZERO)
    add_holes (b, member, first, end);
  else
    for (window = first / per; window * per < end; ++window)
      add_units (b, member, window, units_in (b, window, first, end));
}

void
block_sizes_add_run (struct block_sizes *b, uint64_t clone, uint64_t block,
                     uint64_t nr, enum nbdedup_class class)
{
  add_run (b, (uint32_t) clone + 1, block, nr, class);
}

void
block_sizes_end_clone (struct block_sizes *b, uint64_t clone, uint64_t size)
{
  b->bytes[clone + 1] = size;
}

static int
on_golden_run (void *opaque, uint64_t block, uint64_t nr,
               enum nbdedup_class class)
{
  add_run (opaque, 0, block, nr, class);
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
  assert (WINDOW % b->unit == 0 && WINDOW / b->unit <= WINDOW_UNITS);
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
  b->bytes = check_memory (
    calloc (json_array_size (json_object_get (document, "clones")) + 1,
            sizeof *b->bytes));
  if (read_properties (b) == 0) {
    choose_sizes (b);
    if (nbdedup_frozen_runs (frozen, NBDEDUP_FROZEN_GOLDEN, &b->bytes[0],
                             on_golden_run, b) == 0) {
      b->nr_golden = b->nr_parts;
      return b;
    }
    fail_engine ();
  }
  block_sizes_free (b);
  return NULL;
}

uint64_t
block_sizes_golden (const struct block_sizes *b)
{
  return b->bytes[0];
}

void
block_sizes_free (struct block_sizes *b)
{
  if (b == NULL)
    return;
  free (b->bytes);
  free (b->parts);
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

/* Read and count the units [first, end) of a window, of one member.  1: they
 * cannot be read, because they are damaged; -1: image_error.
 */
static int
read_units (struct block_sizes *b, const struct part *p, unsigned first,
            unsigned end)
{
  const uint64_t start = p->window * WINDOW;
  const uint64_t offset = start + (uint64_t) first * b->unit;
  const uint64_t limit = start + (uint64_t) end * b->unit;
  const uint64_t size = b->bytes[p->member];
  uint8_t *golden = b->golden + (offset - start);
  uint8_t *buf = p->member == 0 ? golden : b->clone;
  uint32_t len;
  int r;

  if (offset >= size)
    return 0;
  len = (uint32_t) ((limit < size ? limit : size) - offset);
  if (nbdedup_frozen_read (b->frozen,
                           p->member == 0 ? NBDEDUP_FROZEN_GOLDEN
                                          : p->member - UINT64_C (1),
                           buf, len, offset) == -1) {
    r = errno == EIO ? 1 : -1;
    image_fail ("%s: %s", name_of (b, p->member), nbdedup_error ());
    return r;
  }
  r = p->member == 0
    ? nbdedup_estimate_add (b->estimate, buf, len, offset)
    : nbdedup_estimate_add_clone (b->estimate, buf, golden, len, offset);
  return r == -1 ? fail_engine () : 0;
}

/* As read_units, for all units of a part. */
static int
read_part (struct block_sizes *b, const struct part *p)
{
  unsigned first, end;
  int r;

  for (first = 0; first < WINDOW_UNITS; first = end) {
    end = first + 1;
    if (!(p->units >> first & 1))
      continue;
    while (end < WINDOW_UNITS && p->units >> end & 1)
      end++;
    r = read_units (b, p, first, end);
    if (r != 0)
      return r;
  }
  return 0;
}

/* Where the golden image has no data, the clones are compared with zeroes.
 * 'p', and those behind it in its window.
 */
static void
clear_golden (struct block_sizes *b, const struct part *p)
{
  const struct part *stop = b->parts + b->nr_parts;
  const uint64_t window = p->window;
  uint32_t units = 0;
  unsigned i;

  for (; p < stop && p->window == window; ++p)
    units |= p->units;
  for (i = 0; i < WINDOW_UNITS; ++i)
    if (units >> i & 1)
      memset (b->golden + (size_t) i * b->unit, 0, b->unit);
}

/* As read_units. */
static int
read_all (struct block_sizes *b, struct progress *progress)
{
  size_t i;
  int r;

  for (i = 0; i < b->nr_parts; ++i) {
    if (interrupted ())
      return image_fail ("interrupted");
    if (i == 0 || b->parts[i].window != b->parts[i - 1].window) {
      if (progress)
        progress_update (progress, i, b->nr_parts);
      clear_golden (b, &b->parts[i]);
    }
    r = read_part (b, &b->parts[i]);
    if (r != 0)
      return r;
  }
  return 0;
}

/* Compare b->sizes: as read_units, and the estimate's document (owned by the
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

/* Compare all sizes, then the present one with the best.  As read_units. */
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

static int
by_window (const void *a, const void *b)
{
  const struct part *p = a, *q = b;

  if (p->window != q->window)
    return p->window < q->window ? -1 : 1;
  return p->member < q->member ? -1 : p->member > q->member;
}

int
advise_block_size (struct block_sizes *b, struct progress *progress,
                   json_t *advice)
{
  struct choice c;
  int r;

  if (b->nr_parts > 0)
    qsort (b->parts, b->nr_parts, sizeof *b->parts, by_window);
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

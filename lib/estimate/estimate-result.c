/* SPDX-License-Identifier: BSD-3-Clause */

/* Computes the figures of "estimate" from the counts, as "stat" would show
 * them after an import of the images.
 *
 * Metadata.  "stat" counts all files of a pool except "records".  The model
 * computes the sizes of "reserve" and of the journal by their rules; sizing.h
 * has its constants, and where they come from.  Each of several imports leaves
 * the journal empty, so after a long import, or several, its file is smaller
 * than the model says.
 */

#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include <assert.h>
#include <errno.h>
#include <math.h>

#include <jansson.h>

#include "base/error.h"
#include "base/geometry.h"
#include "disk/journal.h"
#include "disk/room.h"
#include "estimate/estimate-int.h"
#include "estimate/sizing.h"
#include "format/format.h"
#include "meta/meta.h"

/* 95 % of all errors are below this many standard errors. */
#define Z_95 1.96

/* The figures of one block size. */
struct figures {
  double blocks, nonzero, distinct;
  double logical_bytes, stored_bytes, metadata_bytes;
  double database_bytes; /* of metadata_bytes: pool.db and its copy */
  double journal_bytes;  /* the same */
  double summary_bytes, ddt_cache_bytes;
  /* A ratio is 0 if its divisor is 0. */
  double dedup_ratio, dedup_error;
  double compress_ratio, compress_error;
  double reduction, reduction_error;
};

static double
ratio (double above, double below)
{
  return below > 0 ? above / below : 0;
}

/* The journal doubles until the changes between two folds fit. */
static double
journal_bytes (double records, double pointers)
{
  const double live = records * SIZING_JOURNAL_RECORD_BYTES +
    pointers * SIZING_JOURNAL_POINTER_BYTES;
  double bytes = (double) JOURNAL_MIN_BYTES;

  while (bytes < live && bytes < SIZING_JOURNAL_FOLD_BYTES)
    bytes *= 2;
  return bytes;
}

static double
database_bytes (double records, double pointers, double stored_bytes)
{
  return SIZING_DB_EMPTY_BYTES + records * SIZING_DB_RECORD_BYTES +
    pointers * SIZING_DB_POINTER_BYTES +
    ceil (stored_bytes / SEGMENT_BYTES) * SIZING_DB_SEGMENT_BYTES;
}

static void
metadata_figures (struct figures *f)
{
  const double db = database_bytes (f->distinct, f->nonzero, f->stored_bytes);
  const uint64_t used = (uint64_t) (db / META_PAGE_BYTES);

  f->database_bytes = 2 * db;
  f->journal_bytes = journal_bytes (f->distinct, f->nonzero);
  /* And the reserve for pool.db and its WAL. */
  f->metadata_bytes = f->database_bytes + f->journal_bytes +
    SIZING_OTHER_FILES_BYTES +
    (double) (room_kept_pages (used) - used + room_kept_wal_pages (used, 1)) *
      META_PAGE_BYTES;
  f->summary_bytes = f->distinct * SIZING_SUMMARY_RECORD_BYTES;
  f->ddt_cache_bytes = sizing_ddt_cache_bytes (f->distinct);
}

static void
dedup_figures (struct size_counts *c, struct figures *f)
{
  struct set_figures set;
  double p;

  set_figures (c->set, &set);
  p = ldexp (1, -(int) set.depth);
  f->blocks = (double) atomic_load (&c->blocks);
  f->nonzero = (double) atomic_load (&c->nonzero);
  f->logical_bytes = f->nonzero * c->block_size;
  /* The estimate may exceed the number of blocks, the true value cannot. */
  f->distinct = fmin ((double) set.kept / p, f->nonzero);
  f->dedup_ratio = ratio (f->nonzero, f->distinct);
  /* Each of the distinct contents was kept with probability p. */
  f->dedup_error = set.kept == 0
    ? 0
    : f->dedup_ratio * Z_95 * sqrt ((1 - p) / (double) set.kept);
}

/* The mean of the sample is the quotient of two estimates, the sum of sectors
 * and the number of blocks.  Its variance (by Taylor expansion, as usual for a
 * quotient) is the weighted sum of squared distances from the mean.
 */
static void
compress_figures (const struct nbdedup_estimate *e, struct size_counts *c,
                  struct figures *f)
{
  const struct sector_sample *s = &c->sample;
  double mean, sum;

  if (s->nr == 0)
    return;
  mean = s->sectors / s->weight;
  f->stored_bytes = mean * f->distinct * e->sector_bytes;
  f->compress_ratio = c->block_size / (mean * e->sector_bytes);
  sum = s->cxx - 2 * mean * s->cx + mean * mean * s->c;
  /* Below 0 only by rounding. */
  f->compress_error = sum <= 0
    ? 0
    : f->compress_ratio * Z_95 * sqrt (sum) / s->weight / mean;
}

static void
reduction_figures (struct figures *f)
{
  double all, dedup, compress;

  metadata_figures (f);
  all = f->stored_bytes + f->metadata_bytes;
  f->reduction = f->logical_bytes / all;
  dedup = ratio (f->dedup_error, f->dedup_ratio);
  compress = ratio (f->compress_error, f->compress_ratio) * f->stored_bytes /
    all;
  f->reduction_error = f->reduction *
    sqrt (dedup * dedup + compress * compress);
}

static json_t *
number (double n)
{
  return json_integer ((json_int_t) llround (n));
}

/* A ratio or its error; null if the ratio's divisor 'below' is 0. */
static json_t *
about_ratio (double value, double below)
{
  return below > 0 ? json_real (value) : json_null ();
}

static json_t *
figures_json (const struct size_counts *c, const struct figures *f)
{
  return json_pack (
    "{s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, "
    "s:o, s:o, s:o, s:b}",
    "block_size", (json_int_t) c->block_size, "blocks", number (f->blocks),
    "zero", number (f->blocks - f->nonzero), "distinct", number (f->distinct),
    "dedup_ratio", about_ratio (f->dedup_ratio, f->distinct), "dedup_error",
    about_ratio (f->dedup_error, f->distinct), "compress_ratio",
    about_ratio (f->compress_ratio, f->distinct), "compress_error",
    about_ratio (f->compress_error, f->distinct), "stored_bytes",
    number (f->stored_bytes), "metadata_bytes", number (f->metadata_bytes),
    "database_bytes", number (f->database_bytes), "journal_bytes",
    number (f->journal_bytes), "summary_bytes", number (f->summary_bytes),
    "ddt_cache_bytes", number (f->ddt_cache_bytes), "reduction",
    json_real (f->reduction), "reduction_error", json_real (f->reduction_error),
    "best", 0);
}

json_t *
nbdedup_estimate_result (struct nbdedup_estimate *e)
{
  json_t *array = json_array (), *row;
  double best_reduction = 0;
  unsigned best = 0, i;

  for (i = 0; i < e->nr_sizes; ++i) {
    struct figures f = { 0 };

    dedup_figures (&e->sizes[i], &f);
    compress_figures (e, &e->sizes[i], &f);
    reduction_figures (&f);
    row = figures_json (&e->sizes[i], &f);
    if (row == NULL || json_array_append_new (array, row) == -1) {
      json_decref (array);
      return nbdedup_fail_null (ENOMEM, "out of memory");
    }
    if (f.reduction > best_reduction) {
      best_reduction = f.reduction;
      best = i;
    }
  }
  if (best_reduction > 0)
    json_object_set_new (json_array_get (array, best), "best", json_true ());
  return array;
}

/* The memory of the sets goes to the comparison: their figures are known. */
int
nbdedup_estimate_compare (struct nbdedup_estimate *e, json_t *result,
                          int (*look) (void *opaque), void *opaque)
{
  json_t *row, *documents;
  unsigned i;

  assert (json_array_size (result) == e->nr_sizes);
  for (i = 0; i < e->nr_sizes; ++i) {
    set_free (e->sizes[i].set);
    e->sizes[i].set = NULL;
  }
  for (i = 0; i < e->nr_sizes; ++i) {
    struct compare_settings settings = {
      .block_size = e->sizes[i].block_size,
      .memory_bytes = e->memory_bytes,
      .look = look,
      .opaque = opaque,
    };

    row = json_array_get (result, i);
    settings.distinct = json_number_value (json_object_get (row, "distinct"));
    settings.stored_bytes = settings.distinct == 0
      ? 0
      : json_number_value (json_object_get (row, "stored_bytes")) /
        settings.distinct;
    documents = compare_result (e->compare, &settings);
    if (documents == NULL)
      return -1;
    if (json_object_set_new (row, "samples", documents) == -1)
      return nbdedup_fail (ENOMEM, "out of memory");
  }
  return 0;
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* Estimates, against brute force.
 *
 *  1. Images of zeroes, repeated, compressible and random pieces, of any
 *     length: every count, at every block size, is what sorting all blocks
 *     finds, and with 'exact' the sectors are those of compressing each
 *     distinct one.  The same with four threads, and for clones, of which only
 *     what the golden image lacks counts.
 *
 *  2. More contents than fit into the memory: over many images the estimate
 *     of distinct contents is within its stated error in 95 %, and right on
 *     average.
 *
 *  3. The same for compression, where only a sample of the contents is
 *     compressed; also when the set is sampled as well.
 *
 * Each image is made from its number, so a test that passed will always pass.
 * With SAMPLE_STEP=N in the environment the test uses only each Nth image, which
 * is too few for 2 and 3 to judge how often an estimate is right.
 */

#ifdef HAVE_CONFIG_H
#include <config.h>
#endif
#undef NDEBUG

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>

#include "format/codec.h"
#include "nbdedup.h"
#include "rigs/testutil.h"

#define NR_SIZES 9
#define PIECE 4096u
#define UNIT (1u << 20) /* the largest block size */

static const uint32_t all_sizes[NR_SIZES] = {
  4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576,
};

static struct nbdedup_estimate *
new_estimate (unsigned nr_sizes, const char *compress, uint64_t memory,
              bool exact)
{
  const struct nbdedup_estimate_settings settings = {
    .block_sizes = all_sizes,
    .nr_block_sizes = nr_sizes,
    .sector_bytes = 512,
    .compress = compress,
    .memory_bytes = memory,
    .exact = exact,
  };
  struct nbdedup_estimate *e = nbdedup_estimate_new (&settings);

  if (e == NULL)
    die ("new: %s", nbdedup_error ());
  return e;
}

static void
add (struct nbdedup_estimate *e, const void *buf, size_t len)
{
  if (nbdedup_estimate_add (e, buf, len, 0) == -1)
    die ("add: %s", nbdedup_error ());
}

/* Get the document, and free 'e'. */
static json_t *
result_of (struct nbdedup_estimate *e)
{
  json_t *result = nbdedup_estimate_result (e);

  if (result == NULL)
    die ("result: %s", nbdedup_error ());
  nbdedup_estimate_free (e);
  return result;
}

static double
number (const json_t *result, unsigned row, const char *key)
{
  const json_t *v = json_object_get (json_array_get (result, row), key);

  if (!json_is_number (v))
    die ("row %u: %s is no number", row, key);
  return json_number_value (v);
}

static void
same (const char *what, uint64_t seed, uint32_t size, double found,
      double expected)
{
  if (found != expected)
    die ("image %d, blocks of %u: %s %.17g, expected %.17g", (int) seed, size,
         what, found, expected);
}

/*----------------------------------------------------------------------
 * 1. Brute force
 */

struct image {
  uint8_t *data; /* padded to UNIT with zeroes */
  size_t len;
};

static struct image
make_image (uint64_t seed)
{
  struct rng rng = rng_make (seed, 1);
  const unsigned nr = rng_between (&rng, 1, 900);
  struct image image = { .len = nr * PIECE - rng_below (&rng, PIECE) };
  unsigned i, run;
  uint8_t *p;

  image.data = xcalloc (1, (image.len + UNIT - 1) / UNIT * UNIT);
  for (i = 0; i < nr; i += run) {
    run = rng_between (&rng, 1, 40);
    if (run > nr - i)
      run = nr - i;
    p = image.data + i * PIECE;
    switch (rng_below (&rng, 4)) {
    case 0: /* zeroes */
      break;
    case 1: /* an earlier piece, perhaps shifted */
      memmove (p, image.data + rng_below (&rng, i + 1) * PIECE, run * PIECE);
      break;
    case 2:
      fill_random (p, run * PIECE, rng_next (&rng));
      break;
    default:
      fill_compressible (p, run * PIECE, rng_next (&rng));
      /* Without this larger blocks would all compress alike. */
      fill_random (p, rng_below (&rng, run * PIECE), rng_next (&rng));
    }
  }
  memset (image.data + image.len, 0, -image.len % UNIT);
  return image;
}

static uint32_t compared; /* by compare_blocks: bytes */

static int
compare_blocks (const void *a, const void *b)
{
  return memcmp (*(const uint8_t *const *) a, *(const uint8_t *const *) b,
                 compared);
}

static uint32_t
sectors (struct codec_ctx *codec, const uint8_t *block, uint32_t size)
{
  static const struct compression lz4 = { CODEC_LZ4, 0 };
  static uint8_t out[UNIT];
  size_t n = codec_compress (codec, &lz4, block, size, out, size - 512);

  return n ? (n + 511) / 512 : size / 512;
}

struct truth {
  uint64_t blocks, zero, distinct, sectors;
};

static struct truth
brute_force (const struct image *images, unsigned nr_images, uint32_t size)
{
  static const uint8_t zeroes[UNIT];
  struct codec_ctx *codec = codec_ctx_new ();
  struct truth t = { 0 };
  const uint8_t **blocks;
  uint64_t nr = 0, i;
  unsigned j;
  size_t off;

  for (j = 0; j < nr_images; ++j)
    t.blocks += (images[j].len + size - 1) / size;
  blocks = xcalloc (t.blocks, sizeof *blocks);
  for (j = 0; j < nr_images; ++j)
    for (off = 0; off < images[j].len; off += size)
      if (memcmp (images[j].data + off, zeroes, size) == 0)
        t.zero++;
      else
        blocks[nr++] = images[j].data + off;
  compared = size;
  qsort (blocks, nr, sizeof *blocks, compare_blocks);
  for (i = 0; i < nr; ++i)
    if (i == 0 || memcmp (blocks[i - 1], blocks[i], size) != 0) {
      t.distinct++;
      t.sectors += sectors (codec, blocks[i], size);
    }
  free (blocks);
  codec_ctx_free (codec);
  return t;
}

static void
check_row (const json_t *result, unsigned row, const struct truth *t,
           uint64_t seed, uint64_t *nr_shared)
{
  const uint32_t size = all_sizes[row];

  same ("block_size", seed, size, number (result, row, "block_size"), size);
  same ("blocks", seed, size, number (result, row, "blocks"), t->blocks);
  same ("zero", seed, size, number (result, row, "zero"), t->zero);
  same ("distinct", seed, size, number (result, row, "distinct"), t->distinct);
  same ("stored_bytes", seed, size, number (result, row, "stored_bytes"),
        t->sectors * 512);
  if (t->distinct == 0) {
    assert (json_is_null (
      json_object_get (json_array_get (result, row), "dedup_ratio")));
    return;
  }
  same ("dedup_ratio", seed, size, number (result, row, "dedup_ratio"),
        (double) (t->blocks - t->zero) / t->distinct);
  same ("dedup_error", seed, size, number (result, row, "dedup_error"), 0);
  same ("compress_error", seed, size, number (result, row, "compress_error"),
        0);
  *nr_shared += t->blocks - t->zero - t->distinct;
}

/* Add an image in pieces of any multiple of the largest block size. */
static void
add_image (struct nbdedup_estimate *e, const struct image *image,
           struct rng *rng)
{
  size_t off, n;

  nbdedup_estimate_image (e, image->len);
  for (off = 0; off < image->len; off += n) {
    n = rng_between (rng, 1, 3) * UNIT;
    if (n > image->len - off)
      n = image->len - off;
    add (e, image->data + off, n);
  }
}

static void
test_brute_force (uint64_t seed, uint64_t *nr_shared)
{
  struct rng rng = rng_make (seed, 2);
  struct image images[2];
  struct nbdedup_estimate *e;
  struct truth t;
  json_t *result;
  unsigned i;

  images[0] = make_image (seed);
  images[1] = make_image (rng_percent (&rng, 50) ? seed : seed + 1000);
  e = new_estimate (NR_SIZES, "lz4", NBDEDUP_ESTIMATE_MEMORY_DEFAULT, true);
  for (i = 0; i < 2; ++i)
    add_image (e, &images[i], &rng);
  result = result_of (e);
  assert (json_array_size (result) == NR_SIZES);
  for (i = 0; i < NR_SIZES; ++i) {
    t = brute_force (images, 2, all_sizes[i]);
    check_row (result, i, &t, seed, nr_shared);
  }
  json_decref (result);
  free (images[0].data);
  free (images[1].data);
}

/*----------------------------------------------------------------------
 * 1a. Clones: a block that the golden image has at the same place takes
 * nothing, not even metadata; all others are distinct contents, or are not.
 */

/* Change some pieces, a few of them to zeroes. */
static struct image
make_clone (const struct image *golden, struct rng *rng)
{
  const size_t padded = (golden->len + UNIT - 1) / UNIT * UNIT;
  struct image clone = { .len = golden->len };
  size_t off;

  clone.data = xcalloc (1, padded);
  memcpy (clone.data, golden->data, golden->len);
  for (off = 0; off < clone.len; off += PIECE)
    if (rng_percent (rng, 10)) {
      if (rng_percent (rng, 30))
        memset (clone.data + off, 0, PIECE);
      else
        fill_random (clone.data + off, PIECE, rng_below (rng, 1000));
    }
  memset (clone.data + clone.len, 0, padded - clone.len);
  return clone;
}

/* Its blocks that are neither zero nor those of the golden image. */
static uint64_t
own_blocks (const struct image *clone, const struct image *golden,
            uint32_t size)
{
  static const uint8_t zeroes[UNIT];
  uint64_t nr = 0;
  size_t off;

  for (off = 0; off < clone->len; off += size)
    nr += memcmp (clone->data + off, golden->data + off, size) != 0 &&
      memcmp (clone->data + off, zeroes, size) != 0;
  return nr;
}

static void
test_clone (uint64_t seed)
{
  struct rng rng = rng_make (seed, 5);
  struct image images[2] = { make_image (seed) };
  struct nbdedup_estimate *e = new_estimate (NR_SIZES, "lz4",
                                             NBDEDUP_ESTIMATE_MEMORY_DEFAULT,
                                             true);
  json_t *result;
  unsigned i;
  size_t off;

  images[1] = make_clone (&images[0], &rng);
  add_image (e, &images[0], &rng);
  for (off = 0; off < images[1].len; off += UNIT)
    assert (nbdedup_estimate_add_clone (e, images[1].data + off,
                                        images[0].data + off,
                                        images[1].len - off < UNIT
                                          ? images[1].len - off
                                          : UNIT,
                                        off) == 0);
  nbdedup_estimate_image (e, images[1].len);
  result = result_of (e);
  for (i = 0; i < NR_SIZES; ++i) {
    struct truth all = brute_force (images, 2, all_sizes[i]);
    struct truth first = brute_force (images, 1, all_sizes[i]);

    same ("distinct", seed, all_sizes[i], number (result, i, "distinct"),
          all.distinct);
    same ("stored_bytes", seed, all_sizes[i],
          number (result, i, "stored_bytes"), all.sectors * 512);
    same ("the others", seed, all_sizes[i],
          number (result, i, "blocks") - number (result, i, "zero"),
          first.blocks - first.zero +
            own_blocks (&images[1], &images[0], all_sizes[i]));
  }
  json_decref (result);
  free (images[0].data);
  free (images[1].data);
}

/*----------------------------------------------------------------------
 * Contents by number: block 'id' of 4 KiB is like no other, and compresses by
 * an amount of its own.
 */

static void
make_block (uint8_t *block, uint64_t seed, uint64_t id)
{
  struct rng rng = rng_make (seed, id);
  static uint8_t noise[PIECE];

  if (noise[0] == 0)
    fill_random (noise, PIECE, 1);
  memcpy (block, noise, PIECE);
  /* Some are all noise, more often the later ones, so that a sample that
   * prefers early ones is wrong.
   */
  if (id < 8000 || rng_percent (&rng, 30))
    memset (block, 1, rng_below (&rng, 4) * rng_below (&rng, PIECE / 3));
  memcpy (block, &seed, 8);
  memcpy (block + 8, &id, 8);
}

/* Add an image of 'nr' contents, then of a fifth of them once more.  Returns
 * the number of blocks.  If they will not be compressed, 16 different bytes per
 * content are enough.
 */
static uint64_t
add_contents (struct nbdedup_estimate *e, uint64_t seed, uint64_t nr,
              bool will_compress)
{
  static uint8_t buf[UNIT];
  struct rng rng = rng_make (seed, 3);
  uint64_t words[2] = { seed + 1 }, total = 0, i;
  unsigned used = 0;

  memset (buf, 0, UNIT);
  for (i = 0; i < nr * 2; ++i) {
    words[1] = i % nr;
    if (i >= nr && !rng_percent (&rng, 20))
      continue;
    if (will_compress)
      make_block (buf + used, seed, words[1]);
    else
      memcpy (buf + used, words, sizeof words);
    used += PIECE;
    total++;
    if (used == UNIT) {
      add (e, buf, UNIT);
      used = 0;
    }
  }
  add (e, buf, used);
  nbdedup_estimate_image (e, total * PIECE);
  return total;
}

/* For many estimates: how many are right within the error, and how far off they
 * are on average, in units of one estimate's standard error.
 */
struct score {
  unsigned nr, within;
  double sum, squares;
};

static void
score_add (struct score *s, double found, double error, double expected)
{
  const double deviation = (found - expected) / (error / 1.96);

  if (error <= 0)
    die ("an estimate has no error");
  s->nr++;
  s->within += fabs (found - expected) <= error;
  s->sum += deviation;
  s->squares += deviation * deviation;
}

/* The share that is within the error has a standard error itself.  The mean
 * of nr deviations has one of 1 / sqrt (nr), their root mean square one of
 * 1 / sqrt (2 nr).  Allow three of each.
 */
static void
score_check (const struct score *s, const char *what)
{
  const double share = (double) s->within / s->nr;
  const double mean = s->sum / s->nr, rms = sqrt (s->squares / s->nr);

  printf ("%s: %u estimates, %.1f %% within their error, "
          "deviation in standard errors %+.3f on average, rms %.3f\n",
          what, s->nr, 100 * share, mean, rms);
  if (share < 0.95 - 3 * sqrt (0.95 * 0.05 / s->nr))
    die ("%s: the stated error is too small", what);
  if (rms < 1 - 3 / sqrt (2 * s->nr))
    die ("%s: the stated error is too large", what);
  if (fabs (mean) > 3 / sqrt (s->nr))
    die ("%s: the estimate is biased", what);
}

/* A number of contents that needs a depth of about 1 to 3. */
static void
test_sampled_set (uint64_t seed, struct score *score)
{
  struct rng rng = rng_make (seed, 4);
  const uint64_t nr = rng_between (&rng, 25000, 80000);
  struct nbdedup_estimate *e = new_estimate (1, "none",
                                             NBDEDUP_ESTIMATE_MEMORY_MIN,
                                             false);
  const uint64_t total = add_contents (e, seed, nr, false);
  json_t *result = result_of (e);

  same ("blocks", seed, PIECE, number (result, 0, "blocks"), total);
  same ("zero", seed, PIECE, number (result, 0, "zero"), 0);
  score_add (score, number (result, 0, "distinct"),
             number (result, 0, "dedup_error") /
               number (result, 0, "dedup_ratio") *
               number (result, 0, "distinct"),
             nr);
  json_decref (result);
}

/*----------------------------------------------------------------------
 * 3. Compression
 */

static void
test_sample (uint64_t seed, uint64_t nr, uint64_t memory, struct score *score)
{
  struct nbdedup_estimate *exact, *sampled;
  json_t *right, *found;

  exact = new_estimate (1, "lz4", NBDEDUP_ESTIMATE_MEMORY_DEFAULT, true);
  add_contents (exact, seed, nr, true);
  right = result_of (exact);
  sampled = new_estimate (1, "lz4", memory, false);
  add_contents (sampled, seed, nr, true);
  found = result_of (sampled);
  same ("compress_error", seed, PIECE, number (right, 0, "compress_error"), 0);
  score_add (score, number (found, 0, "compress_ratio"),
             number (found, 0, "compress_error"),
             number (right, 0, "compress_ratio"));
  json_decref (right);
  json_decref (found);
}

/* A sample of 16 times the size, of many contents: about a quarter of the
 * error.  Allow three standard errors.
 */
static void
test_larger_sample (void)
{
  struct nbdedup_estimate_settings settings = {
    .block_sizes = all_sizes,
    .nr_block_sizes = 1,
    .sector_bytes = 512,
    .compress = "lz4",
    .memory_bytes = NBDEDUP_ESTIMATE_MEMORY_DEFAULT,
  };
  double error[3], ratio[3];
  struct nbdedup_estimate *e;
  json_t *result;
  unsigned i;

  for (i = 0; i < 3; ++i) {
    settings.sample = i == 1 ? 1300 * 16 : 0;
    settings.exact = i == 2;
    e = nbdedup_estimate_new (&settings);
    assert (e != NULL);
    add_contents (e, 1, 200000, true);
    result = result_of (e);
    ratio[i] = number (result, 0, "compress_ratio");
    error[i] = number (result, 0, "compress_error");
    json_decref (result);
  }
  printf ("larger sample: error %g instead of %g, deviation %g\n", error[1],
          error[0], ratio[1] - ratio[2]);
  assert (error[1] < 0.3 * error[0] && error[1] > 0.15 * error[0]);
  assert (fabs (ratio[1] - ratio[2]) < 1.5 * error[1]);
}

/*----------------------------------------------------------------------
 * 4. Threads
 */

#define NR_THREADS 4

struct job {
  struct nbdedup_estimate *e;
  const struct image *image;
  unsigned first;
};

static void *
run_job (void *opaque)
{
  const struct job *job = opaque;
  size_t off, n;

  for (off = (size_t) job->first * UNIT; off < job->image->len;
       off += NR_THREADS * UNIT) {
    n = job->image->len - off < UNIT ? job->image->len - off : UNIT;
    add (job->e, job->image->data + off, n);
  }
  return NULL;
}

static json_t *
run_threads (const struct image *image, uint64_t memory, bool exact)
{
  struct nbdedup_estimate *e = new_estimate (NR_SIZES, "lz4", memory, exact);
  struct job jobs[NR_THREADS];
  pthread_t threads[NR_THREADS];
  unsigned i;

  nbdedup_estimate_image (e, image->len);
  for (i = 0; i < NR_THREADS; ++i) {
    jobs[i] = (struct job) { e, image, i };
    assert (pthread_create (&threads[i], NULL, run_job, &jobs[i]) == 0);
  }
  for (i = 0; i < NR_THREADS; ++i)
    pthread_join (threads[i], NULL);
  return result_of (e);
}

static void
test_threads (void)
{
  struct image image = { .len = 48 * UNIT + 12345 };
  uint64_t nr_shared = 0, i;
  struct truth t;
  json_t *result;

  image.data = xcalloc (1, 49 * UNIT);
  fill_random (image.data, image.len / 2, 1);
  fill_compressible (image.data + image.len / 3, image.len / 3, 2);
  memcpy (image.data + 40 * UNIT, image.data, 8 * UNIT);
  result = run_threads (&image, NBDEDUP_ESTIMATE_MEMORY_DEFAULT, true);
  for (i = 0; i < NR_SIZES; ++i) {
    t = brute_force (&image, 1, all_sizes[i]);
    check_row (result, i, &t, 0, &nr_shared);
  }
  assert (nr_shared > 0);
  json_decref (result);

  /* The sets become deeper while other threads use them. */
  t = brute_force (&image, 1, PIECE);
  result = run_threads (&image, NBDEDUP_ESTIMATE_MEMORY_MIN, false);
  assert (number (result, 0, "dedup_error") > 0);
  assert (fabs (number (result, 0, "distinct") - t.distinct) <
          t.distinct * 0.2);
  json_decref (result);
  free (image.data);
}

/*----------------------------------------------------------------------*/

static void
refused (uint32_t size, uint32_t sector, const char *compress, uint64_t memory)
{
  const struct nbdedup_estimate_settings settings = {
    .block_sizes = &size,
    .nr_block_sizes = size ? 1 : 0,
    .sector_bytes = sector,
    .compress = compress,
    .memory_bytes = memory,
  };

  errno = 0;
  if (nbdedup_estimate_new (&settings) != NULL || errno != EINVAL)
    die ("block %u, sector %u, %s was not refused", size, sector, compress);
}

static void
test_refused (void)
{
  static const uint8_t block[UNIT] = { 1 };
  static uint8_t buf[PIECE];
  struct nbdedup_estimate *e;
  uint64_t i;
  int r = 0;

  refused (0, 512, "lz4", 1 << 20);
  refused (2048, 512, "lz4", 1 << 20);
  refused (4097, 512, "lz4", 1 << 20);
  refused (2 << 20, 512, "lz4", 1 << 20);
  refused (4096, 8192, "lz4", 1 << 20);
  refused (4096, 256, "lz4", 1 << 20);
  refused (16384, 16384, "lz4", 1 << 20);
  refused (4096, 512, "gzip", 1 << 20);
  refused (4096, 512, "lz4", (256 << 10) - 1);

  /* Exact, but there is not enough memory. */
  e = new_estimate (1, "none", NBDEDUP_ESTIMATE_MEMORY_MIN, true);
  for (i = 0; i < 100000 && r == 0; ++i) {
    make_block (buf, 1, i);
    r = nbdedup_estimate_add (e, buf, PIECE, 0);
  }
  assert (r == -1 && errno == ENOSPC && i > 10000);
  nbdedup_estimate_free (e);

  /* A list may have a size twice, and any order. */
  {
    const uint32_t sizes[] = { 65536, 4096, 65536 };
    const struct nbdedup_estimate_settings settings = {
      .block_sizes = sizes,
      .nr_block_sizes = 3,
      .sector_bytes = 4096,
      .compress = "zstd",
      .memory_bytes = 1 << 20,
      .exact = true,
    };
    json_t *result;

    e = nbdedup_estimate_new (&settings);
    add (e, block, 65536 * 2);
    nbdedup_estimate_image (e, 65536 * 2);
    result = result_of (e);
    assert (json_array_size (result) == 2);
    same ("zero", 0, 4096, number (result, 0, "zero"), 31);
    same ("distinct", 0, 65536, number (result, 1, "distinct"), 1);
    same ("stored", 0, 65536, number (result, 1, "stored_bytes"), 4096);
    json_decref (result);
  }
}

int
main (void)
{
  const uint64_t step = number_from_environment ("SAMPLE_STEP", 1);
  struct score set = { 0 }, sample = { 0 }, both = { 0 };
  uint64_t nr_shared = 0, seed;

  test_refused ();
  for (seed = 0; seed < 40; seed += step)
    test_brute_force (seed, &nr_shared);
  assert (step > 1 || nr_shared > 1000);
  for (seed = 0; seed < 20; seed += step)
    test_clone (seed);
  test_threads ();
  for (seed = 0; seed < 120; seed += step)
    test_sampled_set (seed, &set);
  for (seed = 0; seed < 200; seed += step)
    test_sample (seed, 1500 + seed * 15, NBDEDUP_ESTIMATE_MEMORY_DEFAULT,
                 &sample);
  for (seed = 0; seed < 60; seed += step)
    test_sample (seed, 40000, NBDEDUP_ESTIMATE_MEMORY_MIN, &both);
  test_larger_sample ();
  if (step == 1) {
    score_check (&set, "contents, sampled");
    score_check (&sample, "compression");
    score_check (&both, "compression, contents sampled");
  }
  return EXIT_SUCCESS;
}

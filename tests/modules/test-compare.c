/* SPDX-License-Identifier: BSD-3-Clause */

/* The classes of images that are in no pool ("estimate --golden"), against
 * brute force.
 *
 * An image is a list of numbers, one for each piece of 4 KiB: 0 is zeroes, and
 * equal numbers are equal contents.  A block of any size is a part of the list,
 * so brute force compares numbers.
 *
 *  1. Small images of several sizes and times, at five block sizes.
 *
 *  2. More contents than the table has slots, so that they are counted in
 *     parts: every figure stays the same with any memory.
 *
 *  3. A look that says stop.
 */

#ifdef HAVE_CONFIG_H
#include <config.h>
#endif
#undef NDEBUG

#include <assert.h>

#include "nbdedup.h"
#include "rigs/testutil.h"

#define PIECE 4096u
#define UNIT (1u << 20)
#define NR_SIZES 5
#define IMAGES_MAX 6

static const uint32_t all_sizes[NR_SIZES] = {
  4096, 8192, 16384, 65536, 1048576,
};

struct image {
  uint32_t *pieces; /* and a unit of zeroes behind them */
  unsigned nr;
  int64_t time;
};

struct classes {
  uint64_t zero, same, moved, sibling, unique, logical;
};

static unsigned
round_up (unsigned nr)
{
  return (nr + UNIT / PIECE - 1) / (UNIT / PIECE) * (UNIT / PIECE);
}

static void
image_free (struct image *image)
{
  free (image->pieces);
}

static struct nbdedup_estimate *
new_estimate (unsigned nr_sizes, uint64_t memory)
{
  const struct nbdedup_estimate_settings settings = {
    .block_sizes = all_sizes,
    .nr_block_sizes = nr_sizes,
    .sector_bytes = 512,
    .compress = "none",
    .memory_bytes = memory,
    .compare_directory = usual_directory (),
  };
  struct nbdedup_estimate *e = nbdedup_estimate_new (&settings);

  if (e == NULL)
    die ("new: %s", nbdedup_error ());
  return e;
}

static void
add_image (struct nbdedup_estimate *e, const struct image *image,
           const char *name)
{
  static uint8_t buf[UNIT];
  unsigned i, j, n;

  if (nbdedup_estimate_begin (e, name, image->time) == -1)
    die ("begin: %s", nbdedup_error ());
  for (i = 0; i < image->nr; i += n) {
    n = image->nr - i < UNIT / PIECE ? image->nr - i : UNIT / PIECE;
    memset (buf, 0, sizeof buf);
    for (j = 0; j < n; ++j)
      memcpy (buf + j * PIECE, &image->pieces[i + j], sizeof (uint32_t));
    if (nbdedup_estimate_add (e, buf, n * PIECE, (uint64_t) i * PIECE) == -1)
      die ("add: %s", nbdedup_error ());
  }
  if (nbdedup_estimate_image (e, (uint64_t) image->nr * PIECE) == -1)
    die ("image: %s", nbdedup_error ());
}

static json_t *
result_of (const struct image *images, unsigned nr, unsigned nr_sizes,
           uint64_t memory)
{
  struct nbdedup_estimate *e = new_estimate (nr_sizes, memory);
  json_t *result;
  char name[16];
  unsigned i;

  for (i = 0; i < nr; ++i) {
    snprintf (name, sizeof name, "%u", i);
    add_image (e, &images[i], name);
  }
  result = nbdedup_estimate_result (e);
  if (result == NULL || nbdedup_estimate_compare (e, result, NULL, NULL) == -1)
    die ("result: %s", nbdedup_error ());
  nbdedup_estimate_free (e);
  return result;
}

/*----------------------------------------------------------------------
 * Brute force
 */

static bool
is_zero_block (const uint32_t *p, unsigned per)
{
  while (per > 0 && *p == 0)
    p++, per--;
  return per == 0;
}

static bool
has_block (const struct image *image, const uint32_t *block, unsigned per)
{
  unsigned i;

  for (i = 0; i < image->nr; i += per)
    if (memcmp (image->pieces + i, block, per * sizeof *block) == 0)
      return true;
  return false;
}

static void
classify (const struct image *images, unsigned nr, unsigned which, unsigned per,
          struct classes *c)
{
  const struct image *golden = &images[0], *image = &images[which];
  const uint32_t *p;
  unsigned i, j;

  memset (c, 0, sizeof *c);
  for (i = 0; i < image->nr; i += per) {
    p = image->pieces + i;
    if (is_zero_block (p, per)) {
      c->zero++;
      continue;
    }
    c->logical++;
    if (i < golden->nr &&
        memcmp (golden->pieces + i, p, per * sizeof *p) == 0) {
      c->same++;
      continue;
    }
    for (j = 1; j < nr; ++j)
      if (j != which && images[j].time == image->time &&
          has_block (&images[j], p, per))
        break;
    if (has_block (golden, p, per))
      c->moved++;
    else if (j < nr)
      c->sibling++;
    else
      c->unique++;
  }
}

static uint64_t
figure (const json_t *object, const char *key)
{
  const json_t *v = json_object_get (object, key);

  if (!json_is_integer (v))
    die ("%s is no number", key);
  return (uint64_t) json_integer_value (v);
}

static void
same_figure (uint64_t seed, uint32_t size, const json_t *clone, const char *key,
             uint64_t expected)
{
  if (figure (clone, key) != expected)
    die ("seed %d, blocks of %u, clone %s: %s is %d, expected %d", (int) seed,
         size, json_string_value (json_object_get (clone, "name")), key,
         (int) figure (clone, key), (int) expected);
}

static unsigned nr_of_class[4];

static void
check_clone (uint64_t seed, const struct image *images, unsigned nr,
             uint32_t size, const json_t *clone)
{
  const unsigned which = (unsigned) atoi (
    json_string_value (json_object_get (clone, "name")));
  struct classes c;

  classify (images, nr, which, size / PIECE, &c);
  same_figure (seed, size, clone, "zero", c.zero);
  same_figure (seed, size, clone, "golden_same", c.same);
  same_figure (seed, size, clone, "golden_moved", c.moved);
  same_figure (seed, size, clone, "sibling", c.sibling);
  same_figure (seed, size, clone, "unique", c.unique);
  same_figure (seed, size, clone, "logical", c.logical);
  nr_of_class[0] += c.same > 0;
  nr_of_class[1] += c.moved > 0;
  nr_of_class[2] += c.sibling > 0;
  nr_of_class[3] += c.unique > 0;
}

/* Distinct blocks of the images of one time, and of the golden one. */
static uint64_t
count_distinct (const struct image *images, unsigned nr, int64_t time,
                unsigned per, int only_in)
{
  uint64_t distinct = 0;
  const uint32_t *p;
  unsigned i, j, k;

  for (j = 0; j < nr; ++j)
    for (i = 0; i < images[j].nr; i += per) {
      p = images[j].pieces + i;
      if ((j > 0 && images[j].time != time) || is_zero_block (p, per))
        continue;
      /* Count the first appearance; of those of one image, if no other image
       * has it.
       */
      for (k = 0;
           k < i && memcmp (images[j].pieces + k, p, per * sizeof *p) != 0;
           k += per)
        ;
      if (k < i)
        continue;
      for (k = 0; k < nr; ++k)
        if (k != j && (k == 0 || images[k].time == time) &&
            (only_in >= 0 || k < j) && has_block (&images[k], p, per))
          break;
      distinct += k == nr && (only_in < 0 || (int) j == only_in);
    }
  return distinct;
}

static void
check_document (uint64_t seed, const struct image *images, unsigned nr,
                const json_t *row, const json_t *document)
{
  const uint32_t size = (uint32_t) figure (document, "block_size");
  const int64_t time = (int64_t) figure (document, "time");
  const double each = (double) figure (row, "stored_bytes") /
    (double) figure (row, "distinct");
  const json_t *fleet = json_object_get (document, "fleet"), *clone;
  const unsigned per = size / PIECE;
  struct classes golden;
  uint64_t logical;
  size_t i;

  classify (images, nr, 0, per, &golden);
  logical = golden.logical;
  assert (figure (document, "golden_blocks") == golden.logical);
  json_array_foreach (json_object_get (document, "clones"), i, clone) {
    check_clone (seed, images, nr, size, clone);
    logical += figure (clone, "logical");
    same_figure (seed, size, clone, "only_here_bytes",
                 (uint64_t) (count_distinct (images, nr, time, per,
                                             atoi (json_string_value (
                                               json_object_get (clone,
                                                                "name")))) *
                               each +
                             0.5));
  }
  same_figure (seed, size, fleet, "logical", logical);
  same_figure (seed, size, fleet, "distinct",
               count_distinct (images, nr, time, per, -1));
}

/*----------------------------------------------------------------------*/

static struct image
make_image (struct rng *rng, const struct image *golden)
{
  struct image image = {
    .nr = (unsigned) rng_between (rng, 1, 600),
    .time = golden ? (int64_t) rng_between (rng, 1, 2) : 7,
  };
  unsigned i, run, from;

  image.pieces = xcalloc (round_up (image.nr), sizeof image.pieces[0]);
  if (golden)
    for (i = 0; i < image.nr && i < golden->nr; ++i)
      image.pieces[i] = golden->pieces[i];
  for (i = 0; i < image.nr; i += run) {
    run = (unsigned) rng_between (rng, 1, 60);
    if (run > image.nr - i)
      run = image.nr - i;
    from = (unsigned) rng_below (rng, i + 1);
    switch (rng_below (rng, golden ? 6 : 3)) {
    case 0:
      memmove (image.pieces + i, image.pieces + from,
               run * sizeof image.pieces[0]);
      break;
    case 1: /* numbers that other images have, too */
      while (run > 0 && i < image.nr)
        image.pieces[i++] = 1 + (uint32_t) rng_below (rng, 40), run--;
      break;
    case 2:
      image.pieces[i] = (uint32_t) rng_below (rng, UINT32_MAX);
      break;
    default: /* as in the golden image */
      break;
    }
  }
  return image;
}

static void
test_small (uint64_t seed)
{
  struct rng rng = rng_make (seed, 1);
  const unsigned nr = (unsigned) rng_between (&rng, 2, IMAGES_MAX);
  struct image images[IMAGES_MAX];
  json_t *result, *row, *document;
  size_t i, j, nr_clones;
  int64_t last;

  for (i = 0; i < nr; ++i)
    images[i] = make_image (&rng, i ? images : NULL);
  result = result_of (images, nr, NR_SIZES, NBDEDUP_ESTIMATE_MEMORY_DEFAULT);
  json_array_foreach (result, i, row) {
    nr_clones = 0;
    last = 0;
    json_array_foreach (json_object_get (row, "samples"), j, document) {
      assert ((int64_t) figure (document, "time") > last);
      last = (int64_t) figure (document, "time");
      nr_clones += json_array_size (json_object_get (document, "clones"));
      check_document (seed, images, nr, row, document);
    }
    assert (nr_clones == nr - 1);
  }
  json_decref (result);
  for (i = 0; i < nr; ++i)
    image_free (&images[i]);
}

/* Three images of 'nr' numbers: the first clone has the golden image's backward
 * in its second half, the second one new numbers there, of which the first one
 * has none.
 */
static void
test_parts (unsigned nr, uint64_t memory)
{
  struct image images[3];
  json_t *result, *document, *clones;
  unsigned i, j;

  for (i = 0; i < 3; ++i) {
    images[i] = (struct image) { .nr = nr, .time = 1 };
    images[i].pieces = xcalloc (round_up (nr), sizeof images[i].pieces[0]);
    for (j = 0; j < nr; ++j)
      images[i].pieces[j] = j < nr / 2 || i == 0 ? j + 1
        : i == 1                                 ? nr - (j - nr / 2)
                                                 : nr + j;
  }
  result = result_of (images, 3, 1, memory);
  document = json_array_get (json_object_get (json_array_get (result, 0),
                                              "samples"),
                             0);
  clones = json_object_get (document, "clones");
  for (i = 1; i < 3; ++i) {
    const json_t *clone = json_array_get (clones, i - 1);

    same_figure (0, PIECE, clone, "golden_same", nr / 2);
    same_figure (0, PIECE, clone, "golden_moved", i == 1 ? nr / 2 : 0);
    same_figure (0, PIECE, clone, "sibling", 0);
    same_figure (0, PIECE, clone, "unique", i == 2 ? nr / 2 : 0);
  }
  same_figure (0, PIECE, json_object_get (document, "fleet"), "distinct",
               nr + nr / 2);
  json_decref (result);
  for (i = 0; i < 3; ++i)
    image_free (&images[i]);
}

static int
stop (void *opaque)
{
  ++*(unsigned *) opaque;
  return -1;
}

static void
test_stop (void)
{
  const struct image image = {
    .pieces = xcalloc (70000, sizeof (uint32_t)),
    .nr = 70000,
  };
  struct nbdedup_estimate *e = new_estimate (1,
                                             NBDEDUP_ESTIMATE_MEMORY_DEFAULT);
  unsigned calls = 0;
  json_t *result;

  add_image (e, &image, "golden");
  add_image (e, &image, "clone");
  result = nbdedup_estimate_result (e);
  assert (result != NULL);
  assert (nbdedup_estimate_compare (e, result, stop, &calls) == -1);
  assert (calls == 1);
  json_decref (result);
  nbdedup_estimate_free (e);
  free (image.pieces);
}

int
main (void)
{
  const uint64_t step = number_from_environment ("SAMPLE_STEP", 1);
  uint64_t seed;
  unsigned i;

  for (seed = 0; seed < 60; seed += step)
    test_small (seed);
  for (i = 0; i < 4; ++i)
    assert (step > 1 || nr_of_class[i] > 20);
  test_parts (40000, NBDEDUP_ESTIMATE_MEMORY_MIN);
  test_parts (40000, NBDEDUP_ESTIMATE_MEMORY_DEFAULT);
  test_stop ();
  return EXIT_SUCCESS;
}

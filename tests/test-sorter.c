/* SPDX-License-Identifier: BSD-3-Clause */

/* sorter.h: everything that was added comes back, in order, however little
 * memory there is; a disk that fails is an error.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <sys/resource.h>

#include "nbdedup.h"
#include "sorter.h"
#include "testutil.h"

struct item {
  uint64_t key;
  uint64_t check;
  uint32_t nr;
};

static char dir[] = "/tmp/test-sorter-XXXXXX";

static int
compare (const void *a, const void *b)
{
  const struct item *x = a, *y = b;

  return x->key < y->key ? -1 : x->key > y->key;
}

static uint64_t
make_key (struct rng *rng, uint64_t i, uint64_t nr, unsigned kind)
{
  switch (kind) {
  case 0:
    return rng_next (rng);
  case 1:
    return i;
  case 2:
    return nr - i;
  case 3:
    return rng_below (rng, 3);
  default:                      /* all in one part, but for one */
    return i == 7 ? UINT64_MAX : rng_below (rng, 1000);
  }
}

static void
sort_some (uint64_t seed, uint64_t nr, uint64_t memory_bytes, unsigned kind)
{
  struct rng rng = rng_make (seed, nr);
  struct sorter *s = sorter_new (dir, sizeof (struct item), compare,
                                 memory_bytes);
  uint64_t i, last = 0, sum = 0, found = 0;
  struct item item = { 0 };
  const struct item *p;
  const void *next;
  int r;

  for (i = 0; i < nr; ++i) {
    item.key = make_key (&rng, i, nr, kind);
    item.nr = (uint32_t) i;
    item.check = item.key * 31 + item.nr;
    sum += item.check;
    if (sorter_add (s, &item) == -1)
      die ("add: %s", nbdedup_error ());
  }
  if (sorter_count (s) != nr || sorter_finish (s) == -1)
    die ("finish: %s", nbdedup_error ());
  for (i = 0; (r = sorter_next (s, &next)) == 1; ++i) {
    p = next;
    if (p->key < last || p->check != p->key * 31 + p->nr)
      die ("item %" PRIu64 " of %" PRIu64 " is wrong", i, nr);
    last = p->key;
    found += p->check;
  }
  if (r != 0 || i != nr || found != sum)
    die ("%" PRIu64 " of %" PRIu64 " items came back (%d)", i, nr, r);
  sorter_free (s);
}

static void
sort_sizes (uint64_t seed)
{
  uint64_t fits = SORTER_MEMORY_MIN / 2 / sizeof (struct item), nr;
  unsigned kind;

  for (kind = 0; kind < 5; ++kind) {
    for (nr = 0; nr < 4; ++nr)
      sort_some (seed, nr, SORTER_MEMORY_MIN, kind);
    /* Just in memory; one more; a last run of one; many merges. */
    sort_some (seed, fits, SORTER_MEMORY_MIN, kind);
    sort_some (seed, fits + 1, SORTER_MEMORY_MIN, kind);
    sort_some (seed, 2 * fits + 1, SORTER_MEMORY_MIN, kind);
    sort_some (seed, 100 * fits + 7, SORTER_MEMORY_MIN, kind);
    sort_some (seed, 100 * fits + 7, 8 * SORTER_MEMORY_MIN, kind);
  }
}

static void
fail_on_full_disk (void)
{
  struct sorter *s = sorter_new (dir, sizeof (struct item), compare,
                                 SORTER_MEMORY_MIN);
  struct rlimit limit = { 1 << 20, RLIM_INFINITY };
  struct item item = { 0 };
  int r = 0;

  signal (SIGXFSZ, SIG_IGN);
  if (setrlimit (RLIMIT_FSIZE, &limit) == -1)
    die ("setrlimit: %s", strerror (errno));
  while (r == 0 && sorter_count (s) < 1000000)
    r = sorter_add (s, &item);
  if (r != -1 || errno != EFBIG || !strstr (nbdedup_error (), dir))
    die ("a full disk: %d, %s", r, nbdedup_error ());
  sorter_free (s);
}

static void
fail_without_directory (void)
{
  struct sorter *s = sorter_new ("/nonexistent", sizeof (struct item),
                                 compare, SORTER_MEMORY_MIN);
  struct item item = { 0 };
  int r = 0;

  while (r == 0)
    r = sorter_add (s, &item);
  if (errno != ENOENT || !strstr (nbdedup_error (), "/nonexistent"))
    die ("no directory: %s", nbdedup_error ());
  sorter_free (s);
}

int
main (void)
{
  const char *seed = getenv ("SEED");
  uint64_t n = seed ? strtoull (seed, NULL, 0) : (uint64_t) time (NULL);

  printf ("SEED=%" PRIu64 "\n", n);
  if (mkdtemp (dir) == NULL)
    die ("%s: %s", dir, strerror (errno));
  sort_sizes (n);
  fail_without_directory ();
  fail_on_full_disk ();
  /* Nothing has a name: it is empty. */
  if (rmdir (dir) == -1)
    die ("%s: %s", dir, strerror (errno));
  return 0;
}

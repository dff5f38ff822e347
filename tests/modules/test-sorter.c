/* SPDX-License-Identifier: BSD-3-Clause */

/* sorter.h: everything that was added comes back, in order, however little
 * memory there is; a full disk is an error; and the sorter calls its look
 * function often enough, whatever it does.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <sys/resource.h>

#include "base/error.h"
#include "disk/sorter.h"
#include "nbdedup.h"
#include "rigs/testutil.h"

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
  default: /* all but one in one part */
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
    /* All in memory; one more; a last run of one; many merges. */
    sort_some (seed, fits, SORTER_MEMORY_MIN, kind);
    sort_some (seed, fits + 1, SORTER_MEMORY_MIN, kind);
    sort_some (seed, 2 * fits + 1, SORTER_MEMORY_MIN, kind);
    sort_some (seed, 100 * fits + 7, SORTER_MEMORY_MIN, kind);
    sort_some (seed, 100 * fits + 7, 8 * SORTER_MEMORY_MIN, kind);
  }
}

struct looks {
  uint64_t nr;      /* so far */
  uint64_t stop_at; /* 0: never */
};

static int
on_look (void *opaque)
{
  struct looks *l = opaque;

  return ++l->nr == l->stop_at ? nbdedup_fail (EINTR, "enough") : 0;
}

/* Sort everything, or until look 'stop_at' stops it.  'found' is the number of
 * looks while adding items, in sorter_finish, and while items come back.
 */
static void
sort_looking (uint64_t nr, uint64_t memory_bytes, uint64_t stop_at,
              uint64_t found[3])
{
  struct looks looks = { .stop_at = stop_at };
  struct sorter *s = sorter_new (dir, sizeof (struct item), compare,
                                 memory_bytes);
  struct item item = { 0 };
  const void *next;
  uint64_t i;
  int r = 0;

  sorter_set_look (s, on_look, &looks);
  for (i = 0; i < nr && r == 0; ++i) {
    item.key = i * UINT64_C (0x9e3779b97f4a7c15);
    r = sorter_add (s, &item);
  }
  found[0] = looks.nr;
  if (r == 0)
    r = sorter_finish (s);
  found[1] = looks.nr - found[0];
  for (i = 0; r == 0 && (r = sorter_next (s, &next)) == 1; ++i)
    r = 0;
  found[2] = looks.nr - found[0] - found[1];
  if (stop_at == 0 && i != nr)
    die ("%" PRIu64 " of %" PRIu64 " items came back", i, nr);
  if (stop_at != 0 && (r != -1 || errno != EINTR || looks.nr != stop_at))
    die ("it was to stop at look %" PRIu64 ", and looks up %" PRIu64
         " times: %d",
         stop_at, looks.nr, r);
  sorter_free (s);
}

/* There are enough looks while sorting in memory, and during repeated merges.
 */
static void
look_up (void)
{
  const uint64_t fits = SORTER_MEMORY_MIN / 2 / sizeof (struct item);
  const uint64_t nr = (UINT64_C (24) << 20) / sizeof (struct item);
  uint64_t found[3], ignored[3], all, i;

  sort_looking (nr, UINT64_C (64) << 20, 0, found);
  if (found[1] < 12)
    die ("sorting 24 MiB looks up %" PRIu64 " times", found[1]);

  /* 100 runs, merged in pairs: 6 times all of them. */
  sort_looking (100 * fits, SORTER_MEMORY_MIN, 0, found);
  if (found[0] < 99 || found[1] < 6 * 2 * 100 || found[2] < 2 * 100)
    die ("looks: %" PRIu64 " for 100 runs, %" PRIu64 " while they are "
         "merged, %" PRIu64 " while all comes back",
         found[0], found[1], found[2]);

  sort_looking (7 * fits, SORTER_MEMORY_MIN, 0, found);
  all = found[0] + found[1] + found[2];
  for (i = 1; i <= all; ++i)
    sort_looking (7 * fits, SORTER_MEMORY_MIN, i, ignored);
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
  struct sorter *s = sorter_new ("/nonexistent", sizeof (struct item), compare,
                                 SORTER_MEMORY_MIN);
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
  look_up ();
  fail_without_directory ();
  fail_on_full_disk ();
  /* The directory is empty, because the files have no names. */
  if (rmdir (dir) == -1)
    die ("%s: %s", dir, strerror (errno));
  return 0;
}

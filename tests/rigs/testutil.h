/* SPDX-License-Identifier: BSD-3-Clause */

/* Shared by the randomised test programs: a seeded generator, contents of the
 * kinds that matter to this engine, and a way to fail.
 */

#ifndef NBDEDUP_TESTUTIL_H
#define NBDEDUP_TESTUTIL_H

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mix.h"

/* Print and end the program with status 1. */
#define die(...)                                                               \
  do {                                                                         \
    fflush (stdout);                                                           \
    fprintf (stderr, "FAILED: " __VA_ARGS__);                                  \
    fputc ('\n', stderr);                                                      \
    exit (EXIT_FAILURE);                                                       \
  } while (0)

static inline void *
xmalloc (size_t len)
{
  void *p = malloc (len ? len : 1);

  if (p == NULL)
    die ("out of memory");
  return p;
}

static inline void *
xcalloc (size_t n, size_t len)
{
  void *p = calloc (n ? n : 1, len ? len : 1);

  if (p == NULL)
    die ("out of memory");
  return p;
}

/* splitmix64: small, and random enough that no codec shrinks the data. */
struct rng {
  uint64_t state;
};

static inline uint64_t
rng_next (struct rng *rng)
{
  return mix (rng->state += MIX_STEP);
}

/* A generator of its own for 'stream' (a thread, a round) of 'seed'. */
static inline struct rng
rng_make (uint64_t seed, uint64_t stream)
{
  struct rng rng = { seed };

  rng.state = rng_next (&rng) ^ (stream * UINT64_C (0xd1342543de82ef95));
  rng_next (&rng);
  return rng;
}

/* 0 .. n-1 */
static inline uint64_t
rng_below (struct rng *rng, uint64_t n)
{
  return n ? rng_next (rng) % n : 0;
}

/* lo .. hi */
static inline uint64_t
rng_between (struct rng *rng, uint64_t lo, uint64_t hi)
{
  return lo + rng_below (rng, hi - lo + 1);
}

static inline bool
rng_percent (struct rng *rng, unsigned percent)
{
  return rng_below (rng, 100) < percent;
}

static inline void
fill_random (void *buf, size_t len, uint64_t seed)
{
  struct rng rng = rng_make (seed, 1);
  uint8_t *p = buf;
  uint64_t v;

  while (len >= 8) {
    v = rng_next (&rng);
    memcpy (p, &v, 8);
    p += 8;
    len -= 8;
  }
  v = rng_next (&rng);
  memcpy (p, &v, len);
}

/* A content that is different for each seed, and compresses to about one
 * eighth: 64 bytes of noise, repeated.
 */
static inline void
fill_compressible (void *buf, size_t len, uint64_t seed)
{
  uint8_t pattern[64];
  uint8_t *p = buf;
  size_t i, n;

  fill_random (pattern, sizeof pattern, seed);
  for (i = 0; i < len; i += n) {
    n = len - i < sizeof pattern ? len - i : sizeof pattern;
    memcpy (p + i, pattern, n);
    if ((i / sizeof pattern) % 8 == 7)
      fill_random (pattern, 16, seed + i);
  }
}

enum content {
  CONTENT_UNIQUE,       /* incompressible, never seen before */
  CONTENT_COMPRESSIBLE, /* the same, but compressible */
  CONTENT_DUPLICATE,    /* one of 'nr_dups' contents */
  CONTENT_ZERO,
};

static inline enum content
content_pick (struct rng *rng)
{
  unsigned n = rng_below (rng, 100);

  return n < 30 ? CONTENT_UNIQUE
    : n < 60    ? CONTENT_COMPRESSIBLE
    : n < 90    ? CONTENT_DUPLICATE
                : CONTENT_ZERO;
}

/* Fill 'buf' in pieces of 'piece' bytes, so that a write of several whole
 * blocks includes blocks that exist elsewhere.
 */
static inline void
fill_content (uint8_t *buf, size_t len, size_t piece, unsigned nr_dups,
              struct rng *rng)
{
  enum content kind = content_pick (rng);
  size_t i, n;
  uint64_t dup;

  for (i = 0; i < len; i += n) {
    n = len - i < piece ? len - i : piece;
    switch (kind) {
    case CONTENT_UNIQUE:
      fill_random (buf + i, n, rng_next (rng));
      break;
    case CONTENT_COMPRESSIBLE:
      fill_compressible (buf + i, n, rng_next (rng));
      break;
    case CONTENT_DUPLICATE:
      dup = rng_below (rng, nr_dups);
      if (dup & 1)
        fill_random (buf + i, n, dup);
      else
        fill_compressible (buf + i, n, dup);
      break;
    case CONTENT_ZERO:
      memset (buf + i, 0, n);
      break;
    }
    if (rng_percent (rng, 20))
      kind = content_pick (rng);
  }
}

static inline bool
all_zero (const void *buf, size_t len)
{
  const uint8_t *p = buf;

  return len == 0 || (p[0] == 0 && memcmp (p, p + 1, len - 1) == 0);
}

/* The seed from the environment, or a new one.  The caller prints it. */
static inline uint64_t
seed_from_environment (void)
{
  const char *s = getenv ("SEED");
  struct timespec ts;

  if (s && s[0])
    return strtoull (s, NULL, 0);
  clock_gettime (CLOCK_REALTIME, &ts);
  return ((uint64_t) ts.tv_nsec * 7919 + ts.tv_sec + getpid ()) % 1000000000;
}

static inline uint64_t
number_from_environment (const char *name, uint64_t otherwise)
{
  const char *s = getenv (name);

  return s && s[0] ? strtoull (s, NULL, 0) : otherwise;
}

/* A test that goes through all places takes each so many-th one only: 1, or
 * SWEEP_STEP of the environment, which "make check" sets.
 */
static inline unsigned
sweep_step (void)
{
  return (unsigned) number_from_environment ("SWEEP_STEP", 1);
}

/* The first place, from 1 on, of a sweep that takes each step-th: another one
 * in each run, so that runs take different places.  SEED repeats it.
 */
static inline unsigned
sweep_start (unsigned step)
{
  uint64_t seed;

  if (step == 1)
    return 1;
  seed = seed_from_environment ();
  printf ("SEED=%" PRIu64 ": from %u on, each %uth\n", seed,
          (unsigned) (seed % step) + 1, step);
  fflush (stdout);
  return (unsigned) (seed % step) + 1;
}

/* The handler of SIGALRM. */
static inline void
too_long (int sig)
{
  static const char text[] = "FAILED: a round takes too long\n";
  ssize_t r;

  (void) sig;
  r = write (STDERR_FILENO, text, sizeof text - 1);
  (void) r;
  _exit (EXIT_FAILURE);
}

/* The directory for a test's files. */
static inline const char *
usual_directory (void)
{
  return getenv ("TMPDIR") ?: "/tmp";
}

/* A directory where a sync costs nothing.  A fold is faster than a large read
 * there, so races between the two show.
 */
static inline const char *
fast_directory (void)
{
  static const char memory[] = "/dev/shm";
  struct statvfs fs;

  if (access (memory, W_OK) == 0 && statvfs (memory, &fs) == 0 &&
      (uint64_t) fs.f_bavail * fs.f_frsize > UINT64_C (300) << 20)
    return memory;
  return usual_directory ();
}

/* Make a directory in 'parent'. */
static inline void
make_directory (char path[PATH_MAX], const char *parent, const char *name)
{
  int n = snprintf (path, PATH_MAX, "%s/%s-XXXXXX", parent, name);

  if (n >= PATH_MAX || mkdtemp (path) == NULL)
    die ("%s: %s", path, strerror (errno));
}

static inline void
remove_directory (const char *path)
{
  char command[PATH_MAX + 20];

  snprintf (command, sizeof command, "rm -rf '%s'", path);
  if (system (command) != 0)
    die ("%s", command);
}

/* The path of an open file; this thread's next call overwrites it. */
static inline const char *
path_of_fd (int fd)
{
  static _Thread_local char path[PATH_MAX];
  char link[32];
  ssize_t n;

  snprintf (link, sizeof link, "/proc/self/fd/%d", fd);
  n = readlink (link, path, sizeof path - 1);
  path[n > 0 ? n : 0] = '\0';
  return path;
}

/* The same without its directory. */
static inline const char *
name_of_fd (int fd)
{
  const char *path = path_of_fd (fd), *slash = strrchr (path, '/');

  return slash ? slash + 1 : path;
}

static inline bool
is_file (int fd, const char *name)
{
  return strcmp (name_of_fd (fd), name) == 0;
}

static inline bool
ends_with (const char *text, const char *end)
{
  size_t len = strlen (text), n = strlen (end);

  return len >= n && strcmp (text + len - n, end) == 0;
}

/* For nbdedup_pool_list: count the exports. */
static inline int
count_export (void *opaque, const char *name, uint64_t size, bool readonly)
{
  (void) name;
  (void) size;
  (void) readonly;
  ++*(unsigned *) opaque;
  return 0;
}

struct content_ref {
  const uint8_t *data;
  uint32_t len;
};

static inline int
content_compare (const void *a, const void *b)
{
  const struct content_ref *x = a, *y = b;

  if (x->len != y->len)
    return x->len < y->len ? -1 : 1;
  return memcmp (x->data, y->data, x->len);
}

/* Keep one of each content.  Returns how many there are. */
static inline uint64_t
distinct_contents (struct content_ref *refs, uint64_t nr)
{
  uint64_t i, distinct = 0;

  qsort (refs, nr, sizeof refs[0], content_compare);
  for (i = 0; i < nr; ++i)
    if (i == 0 || content_compare (&refs[distinct - 1], &refs[i]) != 0)
      refs[distinct++] = refs[i];
  return distinct;
}

/* The first byte that differs, or len. */
static inline size_t
first_difference (const uint8_t *a, const uint8_t *b, size_t len)
{
  size_t i;

  for (i = 0; i < len && a[i] == b[i]; ++i)
    ;
  return i;
}

/* The data read from volume 'name' must be as expected. */
static inline void
expect_bytes (const char *when, const char *name, uint32_t block_size,
              uint64_t offset, uint64_t len, const uint8_t *found,
              const uint8_t *expected)
{
  size_t i = first_difference (found, expected, len);
  uint64_t at = offset + i;

  if (i < len)
    die ("%s: %s (blocks of %u): read of %" PRIu64 " bytes at %" PRIu64
         " differs at %" PRIu64 " (block %" PRIu64 " byte %" PRIu64 "): found "
         "0x%02x, expected 0x%02x",
         when, name, block_size, len, offset, at, at / block_size,
         at % block_size, found[i], expected[i]);
}

#endif /* NBDEDUP_TESTUTIL_H */

/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/mix.h"
#include "core/filter.h"

#define LINE_BYTES 64u
#define LINE_BITS_LOG 9u        /* of LINE_BYTES * 8 */
#define NR_BITS 6u              /* set for each number */

struct filter {
  uint64_t nr_lines;
  atomic_uint_fast64_t (*lines)[LINE_BYTES / sizeof (uint64_t)];   /* owned */
};

struct filter *
filter_new (size_t bytes)
{
  struct filter *f = malloc (sizeof *f);
  void *lines;

  if (f == NULL)
    return NULL;
  f->nr_lines = bytes < LINE_BYTES ? 1 : (bytes + LINE_BYTES - 1) / LINE_BYTES;
  if (posix_memalign (&lines, LINE_BYTES, f->nr_lines * LINE_BYTES) != 0) {
    free (f);
    return NULL;
  }
  memset (lines, 0, f->nr_lines * LINE_BYTES);
  f->lines = lines;
  return f;
}

void
filter_free (struct filter *f)
{
  if (f == NULL)
    return;
  free (f->lines);
  free (f);
}

size_t
filter_bytes (const struct filter *f)
{
  return f->nr_lines * LINE_BYTES;
}

/* The number's line, by its high bits (Lemire: Fast Random Integer Generation
 * in an Interval, 2019, section 4), and the positions of its bits there, nine
 * bits each, which must not depend on the line.
 */
static atomic_uint_fast64_t *
find_line (const struct filter *f, uint64_t n, uint64_t *positions)
{
  const uint64_t line =
    (uint64_t) ((unsigned __int128) n * f->nr_lines >> 64);

  *positions = mix (n);
  return f->lines[line];
}

void
filter_add (struct filter *f, uint64_t n)
{
  uint64_t positions;
  atomic_uint_fast64_t *line = find_line (f, n, &positions);
  unsigned i;

  for (i = 0; i < NR_BITS; ++i, positions >>= LINE_BITS_LOG)
    atomic_fetch_or_explicit (&line[positions >> 6 & 7],
                              UINT64_C (1) << (positions & 63),
                              memory_order_relaxed);
}

bool
filter_may_have (const struct filter *f, uint64_t n)
{
  uint64_t positions, word;
  atomic_uint_fast64_t *line = find_line (f, n, &positions);
  unsigned i;

  for (i = 0; i < NR_BITS; ++i, positions >>= LINE_BITS_LOG) {
    word = atomic_load_explicit (&line[positions >> 6 & 7],
                                 memory_order_relaxed);
    if (!(word >> (positions & 63) & 1))
      return false;
  }
  return true;
}

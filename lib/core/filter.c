/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "base/mix.h"
#include "core/filter.h"

#define LINE_BYTES 64u
#define LINE_BITS_LOG 9u /* of LINE_BYTES * 8 */
#define NR_BITS 6u       /* set for each number */

struct filter {
  void *memory; /* owned */
  uint64_t nr_lines;
  atomic_uint_fast64_t (*lines)[LINE_BYTES / sizeof (uint64_t)];
};

size_t
filter_bytes_for (size_t bytes)
{
  return bytes < LINE_BYTES
    ? LINE_BYTES
    : (bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
}

struct filter *
filter_new (size_t bytes)
{
  struct filter *f = malloc (sizeof *f);
  uintptr_t p;

  if (f == NULL)
    return NULL;
  f->nr_lines = filter_bytes_for (bytes) / LINE_BYTES;
  /* calloc, since the kernel gives zeroes page by page when they are used. */
  f->memory = calloc (f->nr_lines + 1, LINE_BYTES);
  if (f->memory == NULL) {
    free (f);
    return NULL;
  }
  p = (uintptr_t) f->memory;
  f->lines = (void *) ((uint8_t *) f->memory +
                       (LINE_BYTES - p % LINE_BYTES) % LINE_BYTES);
  /* One access to memory for each question. */
  assert ((uintptr_t) f->lines % LINE_BYTES == 0);
  return f;
}

void
filter_free (struct filter *f)
{
  if (f == NULL)
    return;
  free (f->memory);
  free (f);
}

size_t
filter_bytes (const struct filter *f)
{
  return f->nr_lines * LINE_BYTES;
}

void
filter_get (const struct filter *f, size_t offset, uint8_t *buf, size_t len)
{
  const atomic_uint_fast64_t *words = f->lines[0];
  size_t i;

  assert (offset % 8 == 0 && len % 8 == 0);
  assert (len <= filter_bytes (f) && offset <= filter_bytes (f) - len);
  for (i = 0; i < len; i += 8)
    put_le64 (buf + i,
              atomic_load_explicit (&words[(offset + i) / 8],
                                    memory_order_relaxed));
}

void
filter_merge (struct filter *f, size_t offset, const uint8_t *buf, size_t len)
{
  atomic_uint_fast64_t *words = f->lines[0];
  size_t i;

  assert (offset % 8 == 0 && len % 8 == 0);
  assert (len <= filter_bytes (f) && offset <= filter_bytes (f) - len);
  for (i = 0; i < len; i += 8)
    atomic_fetch_or_explicit (&words[(offset + i) / 8], get_le64 (buf + i),
                              memory_order_relaxed);
}

/* The number's line, by its high bits (Lemire: Fast Random Integer Generation
 * in an Interval, 2019, section 4), and the positions of its bits there, nine
 * bits each, which must not depend on the line.
 */
static atomic_uint_fast64_t *
find_line (const struct filter *f, uint64_t n, uint64_t *positions)
{
  const uint64_t line = (uint64_t) ((unsigned __int128) n * f->nr_lines >> 64);

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

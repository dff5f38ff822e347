/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <stdlib.h>

#include "base/error.h"
#include "data/io-counters.h"

const char *const io_op_names[IO_OPS] = {
  [IO_READ] = "read", [IO_WRITE] = "write", [IO_FLUSH] = "flush",
  [IO_TRIM] = "trim", [IO_ZERO] = "zero",
};

uint64_t
io_bucket_ns (unsigned bucket)
{
  assert (bucket < IO_BUCKETS - 1);
  return UINT64_C (1000) << bucket;
}

struct io_counters *
io_counters_new (void)
{
  struct io_counters *c = calloc (1, sizeof *c);

  if (c == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  return c;
}

static void
add (_Atomic uint64_t *to, const _Atomic uint64_t *from)
{
  io_count (to, io_counted (from));
}

void
io_counters_add (struct io_counters *to, const struct io_counters *from)
{
  unsigned i, j;

  for (i = 0; i < IO_OPS; ++i) {
    add (&to->ops[i].bytes, &from->ops[i].bytes);
    add (&to->ops[i].ns, &from->ops[i].ns);
    add (&to->ops[i].errors, &from->ops[i].errors);
    for (j = 0; j < IO_BUCKETS; ++j)
      add (&to->ops[i].buckets[j], &from->ops[i].buckets[j]);
  }
  add (&to->cache_hits, &from->cache_hits);
  add (&to->cache_misses, &from->cache_misses);
  /* Last: what has ended has begun. */
  add (&to->begun, &from->begun);
}

uint64_t
io_op_requests (const struct io_op_counters *o)
{
  uint64_t nr = 0;
  unsigned i;

  for (i = 0; i < IO_BUCKETS; ++i)
    nr += io_counted (&o->buckets[i]);
  return nr;
}

uint64_t
io_in_flight (const struct io_counters *c)
{
  uint64_t ended = 0, begun;
  unsigned i;

  for (i = 0; i < IO_OPS; ++i)
    ended += io_op_requests (&c->ops[i]) + io_counted (&c->ops[i].errors);
  begun = io_counted (&c->begun);
  return begun > ended ? begun - ended : 0;
}

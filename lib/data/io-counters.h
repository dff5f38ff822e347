/* SPDX-License-Identifier: BSD-3-Clause */

/* Counters of clients' requests, for "top" and monitoring.
 *
 * Each connection to a volume has counters of its own, so the threads of
 * different connections share no cache line.  Threads of one connection add to
 * them with relaxed atomics.  A request costs two looks at the clock and four
 * or five additions, and no lock: 60 ns, a hundredth of what the server
 * computes for the smallest one.
 *
 * A connection that closes leaves its counts to its volume, which keeps them
 * until it is freed: at the latest when the pool is closed.  Nothing of this is
 * stored.
 *
 * The figures of a request that runs meanwhile may be counted in part: each
 * counter is right, and grows only, but two of them need not be of one moment.
 */

#ifndef NBDEDUP_IO_COUNTERS_H
#define NBDEDUP_IO_COUNTERS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"

enum io_op { IO_READ, IO_WRITE, IO_FLUSH, IO_TRIM, IO_ZERO };
#define IO_OPS 5

/* "read" ... */
extern const char *const io_op_names[IO_OPS];

/* Bucket i counts the requests that took at most 2^i microseconds and more than
 * the bucket before; the last one counts all that took longer.
 */
#define IO_BUCKETS 25
/* The upper bound of a bucket but the last. */
extern uint64_t io_bucket_ns (unsigned bucket);

/* Of the requests that succeeded, but for 'errors'. */
struct io_op_counters {
  _Atomic uint64_t bytes;
  _Atomic uint64_t ns; /* how long they took, in all */
  _Atomic uint64_t buckets[IO_BUCKETS];
  _Atomic uint64_t errors; /* requests that failed */
};

struct io_counters {
  _Atomic uint64_t begun; /* requests, also those that run */
  /* Blocks that reads found in memory (dirty, or in the record cache), and
   * those that they had to get from "records".  Holes are neither.
   */
  _Atomic uint64_t cache_hits, cache_misses;
  struct io_op_counters ops[IO_OPS];
};

static inline void
io_count (_Atomic uint64_t *counter, uint64_t n)
{
  atomic_fetch_add_explicit (counter, n, memory_order_relaxed);
}

static inline uint64_t
io_counted (const _Atomic uint64_t *counter)
{
  return atomic_load_explicit (counter, memory_order_relaxed);
}

static inline unsigned
io_bucket_of (uint64_t ns)
{
  const uint64_t us = ns == 0 ? 0 : (ns - 1) / 1000; /* rounded up, less 1 */
  const unsigned bits = us == 0 ? 0 : 64 - (unsigned) __builtin_clzll (us);

  return bits < IO_BUCKETS - 1 ? bits : IO_BUCKETS - 1;
}

/* A request begins: its time, for io_end. */
static inline uint64_t
io_begin (struct io_counters *c)
{
  io_count (&c->begun, 1);
  return clock_ns ();
}

/* It ended with this result, which is returned; errno stays. */
static inline int
io_end (struct io_counters *c, enum io_op op, uint64_t bytes, uint64_t began,
        int result)
{
  struct io_op_counters *o = &c->ops[op];
  uint64_t ns;

  if (result == -1) {
    io_count (&o->errors, 1);
    return -1;
  }
  ns = clock_ns () - began;
  if (bytes > 0)
    io_count (&o->bytes, bytes);
  io_count (&o->ns, ns);
  io_count (&o->buckets[io_bucket_of (ns)], 1);
  return result;
}

/* All zero; NULL: ENOMEM.  The caller frees it with free. */
extern struct io_counters *io_counters_new (void);

/* Add 'from', whose requests need not have ended. */
extern void
io_counters_add (struct io_counters *to, const struct io_counters *from);

extern uint64_t io_op_requests (const struct io_op_counters *o);

/* Requests that have begun and not ended. */
extern uint64_t io_in_flight (const struct io_counters *c);

/* What the workers made of a volume's blocks. */
struct dedup_counters {
  _Atomic uint64_t hits;         /* the content was there already */
  _Atomic uint64_t misses;       /* it was stored */
  _Atomic uint64_t zeroes;       /* it became a hole */
  _Atomic uint64_t stored_bytes; /* sectors that the misses took */
};

#endif /* NBDEDUP_IO_COUNTERS_H */

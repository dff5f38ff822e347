/* SPDX-License-Identifier: BSD-3-Clause */

/* Rates: the difference of two documents of nbdedup_counters. */

#ifndef NBDEDUP_TOP_RATES_H
#define NBDEDUP_TOP_RATES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

enum top_op { TOP_READ, TOP_WRITE, TOP_FLUSH, TOP_TRIM, TOP_ZERO };
#define TOP_OPS 5

/* "read" ... */
extern const char *const top_op_names[TOP_OPS];

/* The most buckets of latencies that a server may have. */
#define TOP_BUCKETS 64

struct top_requests {
  uint64_t nr, bytes, ns;
  uint64_t latency[TOP_BUCKETS];
};

struct top_row {
  const char *name; /* borrowed from the later document */
  uint64_t clients, requests, dirty_bytes; /* at its moment */

  /* In the interval. */
  uint64_t cache_hits, cache_misses, dedup_hits, dedup_misses, errors;
  struct top_requests ops[TOP_OPS];
};

struct top_rates {
  double seconds;    /* between the documents */
  const json_t *now; /* the later one; borrowed */
  const json_t *before;
  struct top_row *rows; /* owned; of volumes, in the document's order */
  size_t nr;
  struct top_row total;            /* "(pool)" */
  uint64_t bounds_ns[TOP_BUCKETS]; /* of latencies, but the last's */
  size_t nr_bounds;
};

/* Are both of one server, in this order?  If not there is no difference. */
extern bool top_is_same_server (const json_t *before, const json_t *now);

extern void top_rates_init (struct top_rates *rates, const json_t *before,
                            const json_t *now);
extern void top_rates_destroy (struct top_rates *rates);

/* The nanoseconds that this share (0 .. 1) of the requests took at most, as
 * Prometheus' histogram_quantile computes it; NaN: there were none.
 */
extern double top_quantile_ns (const struct top_rates *rates,
                               const struct top_requests *requests,
                               double share);

/* The per cent of both that 'hits' are; NaN: there were none. */
extern double top_percent (uint64_t hits, uint64_t misses);

/* What a key of an object of the documents has grown by. */
extern uint64_t
top_growth (const struct top_rates *rates, const char *object, const char *key);

/* The document of "top --json" (nbdedup-top(1)). */
extern json_t *top_rates_json (const struct top_rates *rates, const char *pool);

#endif /* NBDEDUP_TOP_RATES_H */

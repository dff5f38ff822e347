/* SPDX-License-Identifier: BSD-3-Clause */

/* Measures the speed of the hashes and codecs on this machine. */

#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/mix.h"
#include "format/codec.h"
#include "format/hash.h"

#define BENCH_LEN_MAX (UINT32_C (64) << 20)

/* Each run repeats the call until this much time has passed, so that the
 * clock does not matter; the median of the runs is the result.
 */
#define RUN_NS 2000000
#define NR_RUNS 7

/* The number of buffers of random data, used in turn: the branch predictor
 * would learn a single one.
 */
#define NR_BLOCKS 8

struct bench {
  uint32_t len;
  size_t nr_blocks;
  uint8_t *blocks; /* nr_blocks * len bytes */
  uint8_t *packed; /* the last compressed block */
  size_t packed_len;
  int packed_codec;
  uint8_t *out; /* len bytes */

  struct hasher *hasher; /* either this one ... */
  struct codec_ctx *ctx; /* ... or these two */
  struct compression compression;
};

/* Run the hash or codec once on block number 'i'. */
typedef int bench_fn (struct bench *b, size_t i);

static int
bench_hash (struct bench *b, size_t i)
{
  struct digest digest;

  return hasher_digest (b->hasher, 0, b->blocks + i * b->len, b->len, &digest);
}

/* A block that does not get smaller is stored as it is: a copy. */
static int
bench_compress (struct bench *b, size_t i)
{
  const uint8_t *block = b->blocks + i * b->len;

  b->packed_len = codec_compress (b->ctx, &b->compression, block, b->len,
                                  b->packed, b->len - 1);
  b->packed_codec = b->compression.codec;
  if (b->packed_len == 0) {
    memcpy (b->packed, block, b->len);
    b->packed_len = b->len;
    b->packed_codec = CODEC_NONE;
  }
  return 0;
}

static int
bench_decompress (struct bench *b, size_t i)
{
  (void) i;
  return codec_decompress (b->ctx, b->packed_codec, b->packed, b->packed_len,
                           b->out, b->len);
}

static int
run (struct bench *b, bench_fn *fn, double *ns)
{
  uint64_t start, now, calls = 0, batch = 1, i;

  start = clock_ns ();
  do {
    for (i = 0; i < batch; ++i)
      if (fn (b, (calls + i) % b->nr_blocks) == -1)
        return -1;
    calls += batch;
    now = clock_ns ();
    if (now - start < RUN_NS / 16)
      batch *= 2;
  } while (now - start < RUN_NS);
  *ns = (double) (now - start) / calls;
  return 0;
}

static int
compare_doubles (const void *a, const void *b)
{
  double x = *(const double *) a, y = *(const double *) b;

  return (x > y) - (x < y);
}

static int
median_of_runs (struct bench *b, bench_fn *fn, double *ns)
{
  double results[NR_RUNS];
  size_t i;

  if (fn (b, 0) == -1) /* warm up */
    return -1;
  for (i = 0; i < NR_RUNS; ++i)
    if (run (b, fn, &results[i]) == -1)
      return -1;
  qsort (results, NR_RUNS, sizeof results[0], compare_doubles);
  *ns = results[NR_RUNS / 2];
  return 0;
}

/* The random bytes only have to be incompressible. */
#define PATTERN_BYTES 4096u

static void
fill (uint8_t *buf, size_t len, unsigned random_percent)
{
  const size_t random_bytes = PATTERN_BYTES * random_percent / 100;
  uint8_t word[8];
  size_t i;

  for (i = 0; i < len; ++i) {
    if (i % 8 == 0)
      put_le64 (word, mix_two (i, 0));
    buf[i] = i % PATTERN_BYTES < random_bytes ? word[i % 8] : 0;
  }
}

static int
bench_one (struct bench *b, double *ns, double *ns_decompress)
{
  *ns_decompress = 0;
  if (b->hasher)
    return median_of_runs (b, bench_hash, ns);
  if (median_of_runs (b, bench_compress, ns) == -1)
    return -1;
  return median_of_runs (b, bench_decompress, ns_decompress);
}

/* Find out whether 'name' is a hash or a codec, and prepare it. */
static int
bench_prepare (struct bench *b, const char *name)
{
  static const struct hash_key key = { .known = true };
  const char *const *names;

  for (names = nbdedup_hash_names (); *names; ++names) {
    if (strcmp (name, *names) == 0) {
      b->hasher = hasher_new (hash_by_name (name), &key);
      return b->hasher ? 0 : -1;
    }
  }
  if (compression_parse (name, &b->compression) == -1)
    return nbdedup_fail (EINVAL,
                         "bench '%s': neither a hash nor a codec of "
                         "this nbdedup",
                         name);
  b->ctx = codec_ctx_new ();
  return b->ctx ? 0 : -1;
}

int
nbdedup_bench (const char *name, uint32_t len, unsigned random_percent,
               double *ns, double *ns_decompress)
{
  CLEANUP_FREE uint8_t *blocks = NULL;
  CLEANUP_FREE uint8_t *packed = NULL;
  CLEANUP_FREE uint8_t *out = NULL;
  struct bench b = { .len = len,
                     .nr_blocks = random_percent > 0 ? NR_BLOCKS : 1 };
  int r;

  if (len == 0 || len > BENCH_LEN_MAX)
    return nbdedup_fail (EINVAL,
                         "a block of %" PRIu32 " bytes: not "
                         "between 1 and %" PRIu32,
                         len, BENCH_LEN_MAX);
  if (random_percent > 100)
    return nbdedup_fail (EINVAL, "%u percent: not between 0 and 100",
                         random_percent);
  if ((uint64_t) len * b.nr_blocks > BENCH_LEN_MAX)
    b.nr_blocks = 1;
  b.blocks = blocks = calloc (b.nr_blocks, len);
  b.packed = packed = malloc (len);
  b.out = out = malloc (len);
  if (blocks == NULL || packed == NULL || out == NULL)
    return nbdedup_fail (ENOMEM, "out of memory");
  if (random_percent > 0)
    fill (blocks, b.nr_blocks * len, random_percent);

  r = bench_prepare (&b, name);
  if (r == 0)
    r = bench_one (&b, ns, ns_decompress);
  hasher_free (b.hasher);
  codec_ctx_free (b.ctx);
  return r;
}

/*----------------------------------------------------------------------
 * Names
 */

#define NR_HASHES_MAX 8

static const char *hash_names[NR_HASHES_MAX + 1];

static void
init_hash_names (void)
{
  size_t n = 0;
  int id;

  for (id = HASH_SHA256; id <= HASH_GMAC; ++id) {
    if (hash_name (id) != NULL) {
      assert (n < NR_HASHES_MAX);
      hash_names[n++] = hash_name (id);
    }
  }
}

const char *const *
nbdedup_hash_names (void)
{
  static pthread_once_t once = PTHREAD_ONCE_INIT;

  pthread_once (&once, init_hash_names);
  return hash_names;
}

const char *
nbdedup_hash_auto (uint32_t block_size, char *why, size_t len)
{
  struct hash_choice c;

  if (hash_choose (block_size, &c) == -1)
    return NULL;
  if (c.id == HASH_SHA256)
    snprintf (why, len, "no other is %.1f times as fast", HASH_GAIN);
  else if (c.sha256_ns == 0)
    snprintf (why, len, "it is the fastest, and sha256 does not work here");
  else
    snprintf (why, len, "%.1f times as fast as sha256%s",
              (double) c.sha256_ns / (double) c.ns,
              !hash_is_keyed (c.id)
                ? ""
                : "; it has a secret key, which the pool's files hold: see "
                  "nbdedup-safety(7)");
  return hash_name (c.id);
}

const char *const *
nbdedup_codec_names (void)
{
  static const char *const names[] = { "none", "lz4", "zstd", NULL };

  return names;
}

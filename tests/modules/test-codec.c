/* SPDX-License-Identifier: BSD-3-Clause */

/* Compression: round trips of many kinds of data and lengths, outputs that
 * are too small, damaged inputs, giving up on incompressible data.  ("nbdedup
 * bench" measures what that costs.)
 */

#ifdef HAVE_CONFIG_H
#include <config.h>
#endif
#undef NDEBUG

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/error.h"
#include "format/codec.h"
#include "rigs/testutil.h"

#define LEN_MAX (1 << 20)
#define GUARD 64 /* bytes after an output that must not change */

static uint8_t src[LEN_MAX + 8], packed[LEN_MAX + GUARD], out[LEN_MAX + GUARD];
static struct rng rng = { 1 };

/* Text like log lines. */
static void
fill_text (uint8_t *buf, size_t len)
{
  static const char *const words[] = {
    "kernel: ",  "systemd[1]: ", "Started ",  "session ", "of user ", "error ",
    "usb 1-1: ", "device ",      "timeout\n", "ext4-fs ", "\n",
  };
  const char *w = "";
  size_t i;

  for (i = 0; i < len; ++i) {
    if (*w == '\0')
      w = words[rng_next (&rng) % (sizeof words / sizeof words[0])];
    buf[i] = rng_below (&rng, 16) == 0 ? 'a' + (char) rng_below (&rng, 26) : *w;
    w++;
  }
}

enum kind {
  KIND_ZERO,
  KIND_TEXT,
  KIND_RANDOM,
  KIND_HALF,
  KIND_PERIOD,
  KIND_COPY,
  KIND_CHUNKS,
  KIND_NIBBLES,
  NR_KINDS
};

static void
fill (enum kind kind, size_t len)
{
  size_t i, period;

  fill_random (src, len, rng_next (&rng));
  switch (kind) {
  case KIND_ZERO:
    memset (src, 0, len);
    break;
  case KIND_TEXT:
    fill_text (src, len);
    break;
  case KIND_HALF: /* zeroes behind random bytes */
    memset (src + len / 2, 0, len - len / 2);
    break;
  case KIND_PERIOD: /* random bytes, repeated */
    period = (len < 65536 ? len : 65536) / 5 + 3;
    for (i = period; i < len; ++i)
      src[i] = src[i - period];
    break;
  case KIND_COPY: /* equal file system blocks */
    i = len / 2 & ~(size_t) 511;
    if (i > 32768) /* LZ4 looks back 64 KiB */
      i = 32768;
    if (i >= 2048)
      memcpy (src + i + 1024, src + 1024, i - 1024);
    break;
  case KIND_CHUNKS: /* what fio writes: 30 % compressible */
    for (i = 0; i < len; ++i)
      if (i % 512 >= 358)
        src[i] = 0;
    break;
  case KIND_NIBBLES: /* for an entropy coder only */
    for (i = 0; i < len; ++i)
      src[i] &= 0x0f;
    break;
  case KIND_RANDOM:
  default:
    break;
  }
}

static bool
should_compress (enum kind kind, int codec, size_t len)
{
  if (len < 4096 || codec == CODEC_NONE)
    return false;
  switch (kind) {
  case KIND_RANDOM:
    return false;
  case KIND_NIBBLES:
    return codec == CODEC_ZSTD;
  default:
    return true;
  }
}

/* Compress into 'dst_len' bytes.  No byte after them may change. */
static size_t
compress (struct codec_ctx *ctx, const struct compression *c, size_t len,
          size_t dst_len)
{
  size_t i, n;

  memset (packed + dst_len, 0x5a, GUARD);
  n = codec_compress (ctx, c, src, len, packed, dst_len);
  assert (n <= dst_len);
  for (i = 0; i < GUARD; ++i)
    assert (packed[dst_len + i] == 0x5a);
  return n;
}

static void
check_round_trip (struct codec_ctx *ctx, int codec, size_t n, size_t len)
{
  size_t i;

  memset (out, 0xee, len);
  memset (out + len, 0x5a, GUARD);
  assert (codec_decompress (ctx, codec, packed, n, out, len) == 0);
  assert (memcmp (out, src, len) == 0);
  for (i = 0; i < GUARD; ++i)
    assert (out[len + i] == 0x5a);

  /* Decompressing to one byte more or less fails. */
  assert (codec_decompress (ctx, codec, packed, n, out, len + 1) == -1);
  assert (errno == EIO);
  if (len > 1) {
    assert (codec_decompress (ctx, codec, packed, n, out, len - 1) == -1);
    assert (errno == EIO);
  }
}

static void
test_round_trips (void)
{
  static const char *const names[] = {
    "none", "lz4", "zstd", "zstd-1", "zstd-9", "zstd-19",
  };
  static const size_t lens[] = {
    1,    7,    15,   16,   100,   512,   2047,   2048,
    2049, 4096, 5000, 8192, 16384, 65536, 131072, 1 << 20,
  };
  struct codec_ctx *ctx = codec_ctx_new ();
  struct compression c;
  size_t i, j, n, len;
  int kind;

  assert (ctx != NULL);
  for (i = 0; i < sizeof names / sizeof names[0]; ++i) {
    assert (compression_parse (names[i], &c) == 0);
    for (j = 0; j < sizeof lens / sizeof lens[0]; ++j) {
      len = lens[j];
      if (c.level > 9 && len > 65536)
        continue; /* slow */
      for (kind = 0; kind < NR_KINDS; ++kind) {
        fill (kind, len);
        n = compress (ctx, &c, len, len > 512 ? len - 512 : len);
        if (should_compress (kind, c.codec, len))
          assert (n > 0);
        if (kind == KIND_RANDOM || c.codec == CODEC_NONE)
          assert (n == 0);
        if (n > 0)
          check_round_trip (ctx, c.codec, n, len);
      }
    }
  }
  codec_ctx_free (ctx);
}

/* Outputs of every size up to what is needed. */
static void
test_small_outputs (void)
{
  static const char *const names[] = { "lz4", "zstd" };
  struct codec_ctx *ctx = codec_ctx_new ();
  struct compression c;
  size_t i, need, dst_len, n;

  assert (ctx != NULL);
  for (i = 0; i < 2; ++i) {
    assert (compression_parse (names[i], &c) == 0);
    fill (KIND_TEXT, 4096);
    need = compress (ctx, &c, 4096, 4095);
    assert (need > 0);
    for (dst_len = 0; dst_len < need; ++dst_len)
      if (compress (ctx, &c, 4096, dst_len) > 0)
        check_round_trip (ctx, c.codec, compress (ctx, &c, 4096, dst_len),
                          4096);
    n = compress (ctx, &c, 4096, need + 64);
    assert (n > 0);
    check_round_trip (ctx, c.codec, n, 4096);
    assert (codec_compress (ctx, &c, src, 0, packed, 4096) == 0);
  }
  codec_ctx_free (ctx);
}

/* A disk may return any bytes: the decoder must not crash, and succeed only
 * with exactly the length asked for.
 */
static void
test_damaged_inputs (void)
{
  static const char *const names[] = { "lz4", "zstd" };
  struct codec_ctx *ctx = codec_ctx_new ();
  struct compression c;
  static uint8_t good[16384];
  size_t i, n, len = 16384;
  unsigned round;

  assert (ctx != NULL);
  for (i = 0; i < 2; ++i) {
    assert (compression_parse (names[i], &c) == 0);
    fill (KIND_TEXT, len);
    n = compress (ctx, &c, len, len - 512);
    assert (n > 0);
    memcpy (good, packed, n);

    for (round = 0; round < 3000; ++round) {
      /* Exactly as large as claimed, so that sanitizers see overruns. */
      uint8_t *in, *dst = malloc (len);
      size_t in_len = n;

      assert (dst != NULL);
      if (round % 3 == 0)
        in_len = rng_next (&rng) % n; /* cut */
      in = malloc (in_len + 1);
      assert (in != NULL);
      memcpy (in, good, in_len);
      if (round % 3 == 1 || in_len == 0)
        fill_random (in, in_len, rng_next (&rng)); /* garbage */
      else
        in[rng_next (&rng) % in_len] ^= 1 << rng_next (&rng) % 8;
      errno = 0;
      if (codec_decompress (ctx, c.codec, in, in_len, dst, len) == -1)
        assert (errno == EIO);
      else
        assert (in_len > 0);
      free (in);
      free (dst);
    }
    /* A damaged record does not spoil the context. */
    memcpy (packed, good, n);
    check_round_trip (ctx, c.codec, n, len);
  }

  memcpy (packed, src, len);
  assert (codec_decompress (ctx, CODEC_NONE, packed, len, out, len) == 0);
  assert (memcmp (out, src, len) == 0);
  assert (codec_decompress (ctx, CODEC_NONE, packed, len - 1, out, len) == -1 &&
          errno == EIO);
  assert (codec_decompress (ctx, 3, packed, len, out, len) == -1);
  assert (errno == EIO);
  assert (codec_decompress (ctx, -1, packed, len, out, len) == -1);
  assert (errno == EIO);
  codec_ctx_free (ctx);
  codec_ctx_free (NULL);
}

static void
test_names (void)
{
  static const char *const bad[] = {
    "",        "gzip",    "LZ4",     "lz4 ",
    "lz4-1",   "zstd-",   "zstd-0",  "zstd-20",
    "zstd-03", "zstd--1", "zstd-3x", "zstd-99999999999999999999",
    "none-1",
  };
  const char *const *names = nbdedup_codec_names ();
  char buf[COMPRESSION_NAME_MAX], name[COMPRESSION_NAME_MAX];
  struct compression c = { 77, 77 };
  size_t i;

  for (i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
    errno = 0;
    assert (compression_parse (bad[i], &c) == -1);
    assert (errno == EINVAL);
    assert (strstr (nbdedup_error (), "none, lz4, zstd, zstd-N") != NULL);
    assert (c.codec == 77 && c.level == 77);
  }
  for (i = 1; i <= 19; ++i) {
    sprintf (name, "zstd-%zu", i);
    assert (compression_parse (name, &c) == 0);
    assert (c.codec == CODEC_ZSTD && c.level == (int) i);
    compression_name (&c, buf);
    assert (strcmp (buf, i == 3 ? "zstd" : name) == 0);
  }
  for (i = 0; names[i]; ++i) {
    assert (compression_parse (names[i], &c) == 0);
    compression_name (&c, buf);
    assert (strcmp (buf, names[i]) == 0);
    assert (strcmp (codec_name (c.codec), names[i]) == 0);
  }
  assert (i == 3);
  assert (codec_name (3) == NULL && codec_name (-1) == NULL);
}

static void
test_bench (void)
{
  const char *const *names;
  double ns, ns_decompress;

  for (names = nbdedup_codec_names (); *names; ++names) {
    ns = ns_decompress = -1;
    assert (nbdedup_bench (*names, 4096, 0, &ns, &ns_decompress) == 0);
    assert (ns > 0 && ns_decompress > 0);
    assert (nbdedup_bench (*names, 4096, 100, &ns, &ns_decompress) == 0);
    assert (ns > 0 && ns_decompress > 0);
    assert (nbdedup_bench (*names, 8192, 50, &ns, &ns_decompress) == 0);
    assert (ns > 0 && ns_decompress > 0);
    assert (nbdedup_bench (*names, 1, 100, &ns, &ns_decompress) == 0);
  }
  assert (nbdedup_bench ("lz4", 4096, 101, &ns, &ns_decompress) == -1);
  assert (errno == EINVAL);
  assert (nbdedup_bench ("gzip", 4096, 100, &ns, &ns_decompress) == -1);
  assert (errno == EINVAL);
}

int
main (void)
{
  test_names ();
  test_round_trips ();
  test_small_outputs ();
  test_damaged_inputs ();
  test_bench ();
  return 0;
}

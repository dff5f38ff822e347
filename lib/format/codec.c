/* SPDX-License-Identifier: BSD-3-Clause */

/* Compression of records.
 *
 * Stored forms:
 *   CODEC_LZ4   one raw LZ4 block, no frame
 *   CODEC_ZSTD  one Zstandard frame without content size and checksum:
 *               the size is known from the pointer, which also has a checksum
 *
 * Incompressible data.  For 4 KiB, SHA-256 takes 2.2 us, and LZ4 needs 0.85 us
 * to find that random bytes do not compress; zstd needs much longer.  So both
 * are tried only if a sample of the block does not look random (seems_random:
 * 0.13 us).  The sample looks for what compressors exploit: byte values that
 * are more frequent than others, and repetitions.
 */

#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lz4.h>
#include <zstd.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/mix.h"
#include "format/codec.h"

#define ZSTD_LEVEL_DEFAULT 3
#define ZSTD_LEVEL_MAX 19

struct codec_ctx {
  void *lz4; /* owned, all three; NULL until needed */
  ZSTD_CCtx *cctx;
  ZSTD_DCtx *dctx;
  int cctx_level; /* the level set in cctx */
};

/*----------------------------------------------------------------------
 * Names
 */

const char *
codec_name (int id)
{
  switch (id) {
  case CODEC_NONE:
    return "none";
  case CODEC_LZ4:
    return "lz4";
  case CODEC_ZSTD:
    return "zstd";
  default:
    return NULL;
  }
}

/* Parses "1" .. "19"; 0: it is something else. */
static int
parse_level (const char *s)
{
  int level = 0;

  if (*s < '1' || *s > '9')
    return 0;
  for (; *s >= '0' && *s <= '9'; ++s) {
    level = level * 10 + (*s - '0');
    if (level > ZSTD_LEVEL_MAX)
      return 0;
  }
  return *s == '\0' ? level : 0;
}

int
compression_parse (const char *name, struct compression *c)
{
  if (strcmp (name, "none") == 0)
    *c = (struct compression) { CODEC_NONE, 0 };
  else if (strcmp (name, "lz4") == 0)
    *c = (struct compression) { CODEC_LZ4, 0 };
  else if (strcmp (name, "zstd") == 0)
    *c = (struct compression) { CODEC_ZSTD, ZSTD_LEVEL_DEFAULT };
  else if (strncmp (name, "zstd-", 5) == 0 && parse_level (name + 5) > 0)
    *c = (struct compression) { CODEC_ZSTD, parse_level (name + 5) };
  else
    return nbdedup_fail (EINVAL,
                         "compress '%s': not known; choose one of: "
                         "none, lz4, zstd, zstd-N (N from 1 to %d)",
                         name, ZSTD_LEVEL_MAX);
  return 0;
}

static int
clamp_level (int level)
{
  if (level < 1)
    return 1;
  return level > ZSTD_LEVEL_MAX ? ZSTD_LEVEL_MAX : level;
}

void
compression_name (const struct compression *c, char buf[COMPRESSION_NAME_MAX])
{
  const char *name = codec_name (c->codec);

  assert (name != NULL);
  if (c->codec == CODEC_ZSTD && c->level != ZSTD_LEVEL_DEFAULT)
    snprintf (buf, COMPRESSION_NAME_MAX, "%s-%u", name,
              (unsigned) clamp_level (c->level) & 0x1f);
  else
    snprintf (buf, COMPRESSION_NAME_MAX, "%s", name);
}

/*----------------------------------------------------------------------
 * Contexts
 */

struct codec_ctx *
codec_ctx_new (void)
{
  struct codec_ctx *ctx = calloc (1, sizeof *ctx);

  if (ctx == NULL)
    return nbdedup_fail_null (ENOMEM, "compression: out of memory");
  return ctx;
}

void
codec_ctx_free (struct codec_ctx *ctx)
{
  if (ctx == NULL)
    return;
  free (ctx->lz4);
  ZSTD_freeCCtx (ctx->cctx);
  ZSTD_freeDCtx (ctx->dctx);
  free (ctx);
}

/*----------------------------------------------------------------------
 * The sample
 */

/* Shorter blocks are not worth a sample. */
#define SAMPLE_LEN_MIN 2048

/* True if the byte values of the block's sample are as evenly distributed as
 * random ones.
 *
 * Counts the pairs of equal bytes among n.  Random bytes have n (n - 1) / 512
 * on average, with a standard deviation of about the square root of that; the
 * function allows five of them.  A share p of one byte value, for example
 * zeroes, adds p * p * n * n / 2 pairs: with 128 bytes the function detects a
 * share of 7 %, with 512 one of 3 %.
 *
 * It takes 4 bytes at a time, at an odd distance, so that the sample does not
 * keep step with any structure in the data.
 */
static bool
bytes_seem_random (const uint8_t *src, size_t len)
{
  unsigned words, n, mean, allowed, pairs = 0, i;
  uint16_t seen[256];
  size_t step;
  uint32_t w;

  words = len < 8192 ? 32 : len < 32768 ? 64 : 128;
  n = words * 4;
  mean = n * (n - 1) / 512;
  /* 5 * sqrt (mean), for n = 128, 256 and 512. */
  allowed = mean + (n == 128 ? 28 : n == 256 ? 56 : 113);

  memset (seen, 0, sizeof seen);
  step = ((len - 4) / words - 1) | 1;
  for (i = 0; i < words; ++i) {
    memcpy (&w, src, 4);
    src += step;
    pairs += seen[w & 0xff]++;
    pairs += seen[w >> 8 & 0xff]++;
    pairs += seen[w >> 16 & 0xff]++;
    pairs += seen[w >> 24]++;
  }
  return pairs <= allowed;
}

/* True if the block seems to contain no string of 8 bytes twice.
 *
 * Looks at 'step' successive positions from the start, then at every
 * step'th one.  That finds all repetitions at a multiple of 'step' bytes
 * (equal file system blocks), and any period of the whole block, because
 * every distance is a multiple of 'step' less one of the first positions.
 * For 4 KiB, where time is short, it looks at half of the first positions: then
 * it finds a period if that period, or a multiple of it inside the block, fits.
 *
 * The table holds 32 other bits of each string's hash.  Taking two strings for
 * equal by mistake only costs an attempt to compress.  But with 16 bits that
 * happened to one block in 150, and one attempt of zstd-19 takes longer than
 * hashing 100 blocks.
 */
#define REPEAT_POSITIONS 1024
#define REPEAT_TABLE_BITS 11

static bool
repeats_position (uint32_t *table, const uint8_t *p, unsigned shift)
{
  uint64_t w;
  uint32_t tag, old;

  memcpy (&w, p, 8);
  w *= MIX_STEP;
  tag = w | 1; /* 0 is an empty entry */
  old = table[w >> shift];
  table[w >> shift] = tag;
  return old == tag;
}

static bool
no_repetition (const uint8_t *src, size_t len)
{
  uint32_t table[1 << REPEAT_TABLE_BITS];
  unsigned bits;
  size_t step, first, i;

  step = 64;
  while (len / step > REPEAT_POSITIONS)
    step *= 2;
  first = len <= 4096 ? step / 2 : step;
  bits = len <= 4096 ? 9 : REPEAT_TABLE_BITS;
  memset (table, 0, sizeof table[0] << bits);

  for (i = 0; i < first; ++i)
    if (repeats_position (table, src + i, 64 - bits))
      return false;
  for (i = step; i + 8 <= len; i += step)
    if (repeats_position (table, src + i, 64 - bits))
      return false;
  return true;
}

static bool
seems_random (const void *src, size_t len)
{
  if (len < SAMPLE_LEN_MIN)
    return false;
  return bytes_seem_random (src, len) && no_repetition (src, len);
}

/*----------------------------------------------------------------------
 * Compress
 */

static size_t
compress_lz4 (struct codec_ctx *ctx, const void *src, size_t src_len, void *dst,
              size_t dst_len)
{
  int r;

  if (ctx->lz4 == NULL) {
    ctx->lz4 = malloc (LZ4_sizeofState ());
    if (ctx->lz4 == NULL)
      return 0;
  }
  r = LZ4_compress_fast_extState (ctx->lz4, src, dst, src_len, dst_len, 1);
  return r > 0 ? r : 0;
}

static bool
prepare_zstd (struct codec_ctx *ctx, int level)
{
  if (ctx->cctx == NULL) {
    ctx->cctx = ZSTD_createCCtx ();
    if (ctx->cctx == NULL)
      return false;
    if (ZSTD_isError (
          ZSTD_CCtx_setParameter (ctx->cctx, ZSTD_c_contentSizeFlag, 0)) ||
        ZSTD_isError (
          ZSTD_CCtx_setParameter (ctx->cctx, ZSTD_c_checksumFlag, 0))) {
      ZSTD_freeCCtx (ctx->cctx);
      ctx->cctx = NULL;
      return false;
    }
    ctx->cctx_level = 0;
  }
  if (ctx->cctx_level != level) {
    if (ZSTD_isError (
          ZSTD_CCtx_setParameter (ctx->cctx, ZSTD_c_compressionLevel, level)))
      return false;
    ctx->cctx_level = level;
  }
  return true;
}

static size_t
compress_zstd (struct codec_ctx *ctx, int level, const void *src,
               size_t src_len, void *dst, size_t dst_len)
{
  size_t r;

  if (!prepare_zstd (ctx, level))
    return 0;
  r = ZSTD_compress2 (ctx->cctx, dst, dst_len, src, src_len);
  return ZSTD_isError (r) ? 0 : r;
}

size_t
codec_compress (struct codec_ctx *ctx, const struct compression *c,
                const void *src, size_t src_len, void *dst, size_t dst_len)
{
  if (src_len == 0 || src_len > LZ4_MAX_INPUT_SIZE || dst_len == 0)
    return 0;
  if (dst_len > INT_MAX)
    dst_len = INT_MAX;

  switch (c->codec) {
  case CODEC_LZ4:
    if (seems_random (src, src_len))
      return 0;
    return compress_lz4 (ctx, src, src_len, dst, dst_len);
  case CODEC_ZSTD:
    if (seems_random (src, src_len))
      return 0;
    return compress_zstd (ctx, clamp_level (c->level), src, src_len, dst,
                          dst_len);
  default: /* CODEC_NONE: the caller stores it raw */
    return 0;
  }
}

/*----------------------------------------------------------------------
 * Decompress
 */

static int
fail_damaged (int codec, size_t src_len, size_t dst_len)
{
  return nbdedup_fail (EIO,
                       "codec %s: the %zu stored bytes are not the "
                       "compressed form of %zu bytes: the record is damaged",
                       codec_name (codec), src_len, dst_len);
}

static int
decompress_zstd (struct codec_ctx *ctx, const void *src, size_t src_len,
                 void *dst, size_t dst_len)
{
  size_t r;

  if (ctx->dctx == NULL) {
    ctx->dctx = ZSTD_createDCtx ();
    if (ctx->dctx == NULL)
      return nbdedup_fail (ENOMEM, "codec zstd: out of memory");
  }
  r = ZSTD_decompressDCtx (ctx->dctx, dst, dst_len, src, src_len);
  if (ZSTD_isError (r) || r != dst_len)
    return fail_damaged (CODEC_ZSTD, src_len, dst_len);
  return 0;
}

size_t
codec_store (struct codec_ctx *ctx, const struct compression *c,
             uint32_t sector_bytes, const void *src, size_t src_len, void *dst,
             int *codec, const uint8_t **stored)
{
  size_t n = 0;

  if (c->codec != CODEC_NONE && src_len > sector_bytes)
    n = codec_compress (ctx, c, src, src_len, dst, src_len - sector_bytes);
  *codec = n ? c->codec : CODEC_NONE;
  if (stored)
    *stored = n ? dst : src;
  return n ? n : src_len;
}

int
codec_decompress (struct codec_ctx *ctx, int codec, const void *src,
                  size_t src_len, void *dst, size_t dst_len)
{
  int r;

  if (codec_name (codec) == NULL)
    return nbdedup_fail (EIO,
                         "codec number %d: not known to this nbdedup: "
                         "the record is damaged, or a newer version wrote it",
                         codec);
  if (src_len == 0 || src_len > INT_MAX || dst_len == 0 || dst_len > INT_MAX)
    return fail_damaged (codec, src_len, dst_len);

  switch (codec) {
  case CODEC_LZ4:
    r = LZ4_decompress_safe (src, dst, src_len, dst_len);
    if (r < 0 || (size_t) r != dst_len)
      return fail_damaged (codec, src_len, dst_len);
    return 0;
  case CODEC_ZSTD:
    return decompress_zstd (ctx, src, src_len, dst, dst_len);
  default:
    if (src_len != dst_len)
      return fail_damaged (codec, src_len, dst_len);
    memcpy (dst, src, dst_len);
    return 0;
  }
}

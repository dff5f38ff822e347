/* SPDX-License-Identifier: BSD-3-Clause */

/* Compression of records.  A volume may mix codecs: each record has its own.
 */

#ifndef NBDEDUP_CODEC_H
#define NBDEDUP_CODEC_H

#include <stddef.h>
#include <stdint.h>
#include <stdint.h>

/* Stored in pointers (4 bits); never reused. */
enum codec_id {
  CODEC_NONE = 0,
  CODEC_LZ4 = 1,
  CODEC_ZSTD = 2,
};

/* The property "compress": none, lz4, zstd (level 3), zstd-N (N = 1 .. 19). */
struct compression {
  int codec;
  int level; /* zstd only */
};

/* Returns 0, or -1 (EINVAL) with a text that lists the choices. */
extern int compression_parse (const char *name, struct compression *c);

/* The property's value for 'c', in 'buf'. */
#define COMPRESSION_NAME_MAX 16
extern void
compression_name (const struct compression *c, char buf[COMPRESSION_NAME_MAX]);

/* NULL for an unknown codec. */
extern const char *codec_name (int id);

/* Contexts of the compression libraries, for one thread at a time; NULL:
 * ENOMEM.  The first use of a library makes its context.
 */
struct codec_ctx;
extern struct codec_ctx *codec_ctx_new (void);
extern void codec_ctx_free (struct codec_ctx *ctx);

/* Compress 'src' into at most 'dst_len' bytes.  Returns the bytes used, or 0 if
 * the result does not fit: that is no error, the caller stores the data raw.
 * If a sample shows that the data does not compress, the function gives up
 * early, so that incompressible data costs at most 5 % more than "none".
 */
extern size_t codec_compress (struct codec_ctx *ctx,
                              const struct compression *c, const void *src,
                              size_t src_len, void *dst, size_t dst_len);

/* The stored form of a block: compressed in 'dst', which has room for 'src_len'
 * bytes, if that saves a sector; else the block itself.  Returns the number of
 * bytes, the codec in '*codec', and where the bytes are in '*stored', which may
 * be NULL.
 */
extern size_t codec_store (struct codec_ctx *ctx, const struct compression *c,
                           uint32_t sector_bytes, const void *src,
                           size_t src_len, void *dst, int *codec,
                           const uint8_t **stored);

/* Decompress to exactly 'dst_len' bytes.  Accepts any input: -1 (EIO) if it is
 * not the compressed form of that many bytes.
 */
extern int codec_decompress (struct codec_ctx *ctx, int codec, const void *src,
                             size_t src_len, void *dst, size_t dst_len);

#endif /* NBDEDUP_CODEC_H */

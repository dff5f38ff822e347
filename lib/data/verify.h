/* SPDX-License-Identifier: BSD-3-Clause */

/* For scrub: check that a record matches its digest and, if not, rewrite it
 * from content that has the digest.
 *
 * A rewrite must store the same bytes at the same address: the record's
 * pointers, in any number of layers, hold its address and the checksum of its
 * stored bytes.  So the verifier compresses the content as before, and writes
 * it if the checksum matches.  It does if the library still compresses as it
 * did.
 *
 * A rewrite destroys nothing: the verifier writes only a record that cannot
 * be read, in whole sectors, which hold nothing else.  After a crash in the
 * middle the record is damaged, or whole.
 *
 * Threads: one at a time uses a verifier.  Callers read the record from
 * pool.db and call the functions, except init and free, within one
 * quiesce_enter .. quiesce_leave, so its sectors are not reused meanwhile.
 */

#ifndef NBDEDUP_VERIFY_H
#define NBDEDUP_VERIFY_H

#include <stdbool.h>
#include <stdint.h>

#include "format/format.h"
#include "meta/meta.h"

struct nbdedup_pool;

struct verifier {
  struct nbdedup_pool *pool;  /* not owned */
  struct hasher *hasher;      /* owned */
  struct codec_ctx *codec;    /* owned */
  uint8_t *raw, *block, *out; /* owned; BLOCK_SIZE_MAX each */
};

/* ENOMEM; EIO: the key of the pool's hash is lost. */
extern int verifier_init (struct verifier *v, struct nbdedup_pool *pool);
/* Accepts an all-zero struct. */
extern void verifier_free (struct verifier *v);

/* The record's content, borrowed until the next call.  NULL: the record is
 * damaged, or, if errno is ENOMEM, there was no memory to check it.
 */
extern const uint8_t *verify_read (struct verifier *v, const struct record *r);

/* Rewrite a damaged record if 'content', 'len' bytes, is its content.  1: it
 * is written (store_sync makes it durable); 0: this is not its content, or no
 * longer compresses to the same bytes; -1: the write failed.
 */
extern int verify_write_again (struct verifier *v, const struct record *r,
                               const uint8_t *content_locked, uint32_t len);

/* The same from another record with this content: a duplicate, or a copy. */
extern int verify_write_from (struct verifier *v, const struct record *r,
                              const struct record *from);

/* The same from the record cache. */
extern int verify_write_cached (struct verifier *v, const struct record *r);

#endif /* NBDEDUP_VERIFY_H */

/* SPDX-License-Identifier: BSD-3-Clause */

/* One record, for scrub: is it what its digest says, and, if not, write it
 * again from content that has the digest.
 *
 * It can only be written where it stands, and only as the same bytes: its
 * pointers, in any number of layers, hold its address and the checksum of its
 * stored bytes.  So the content is compressed again as it was, and written if
 * the checksum says that the bytes are those.  They are if the library still
 * compresses as it did.
 *
 * Nothing that is needed is overwritten: only a record that cannot be read is
 * written, in whole sectors, which hold nothing else.  A crash in the
 * middle leaves it damaged, or whole.
 *
 * Threads: one at a time uses a verifier.  All but new and free are called
 * between quiesce_enter and quiesce_leave, within which the record was read
 * from pool.db: so its sectors are not reused meanwhile.
 */

#ifndef NBDEDUP_VERIFY_H
#define NBDEDUP_VERIFY_H

#include <stdbool.h>
#include <stdint.h>

#include "format/format.h"
#include "meta/meta.h"

struct nbdedup_pool;

struct verifier {
  struct nbdedup_pool *pool;    /* not owned */
  struct hasher *hasher;        /* owned */
  struct codec_ctx *codec;      /* owned */
  uint8_t *raw, *block, *out;   /* owned; BLOCK_SIZE_MAX each */
};

extern int verifier_init (struct verifier *v, struct nbdedup_pool *pool);
/* One that is all zeroes, too. */
extern void verifier_free (struct verifier *v);

/* The record's content, borrowed until the next call.  NULL: it is damaged, or,
 * with ENOMEM in errno, there was no memory to know.
 */
extern const uint8_t *verify_read (struct verifier *v, const struct record *r);

/* The record at 'addr', as pool.db knows it: 1; 0: there is none; -1.  'row'
 * is room for its row.  It needs no verifier, and no quiesce_enter.
 */
extern int verify_find (struct meta_conn *c, uint64_t addr, struct blob *row,
                        struct record *r);

/* The record is damaged: write it again, if 'content', 'len' bytes, is its
 * own.  1: it is written (store_sync makes it durable); 0: it is not its
 * content, or cannot be brought into its stored form; -1: it cannot be
 * written.
 */
extern int verify_write_again (struct verifier *v, const struct record *r,
                               const uint8_t *content_locked, uint32_t len);

/* The same from another record of these bytes: a duplicate, or a copy. */
extern int verify_write_from (struct verifier *v, const struct record *r,
                              const struct record *from);

/* The same from the record cache. */
extern int verify_write_cached (struct verifier *v, const struct record *r);

#endif /* NBDEDUP_VERIFY_H */

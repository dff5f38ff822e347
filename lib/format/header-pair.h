/* SPDX-License-Identifier: BSD-3-Clause */

/* The header of "records" and of "journal".  It is stored twice, so that one
 * copy is valid at every moment, even if a write is torn.
 *
 * A copy has HEADER_LEN bytes, little-endian.  Copy 0 is at the start of the
 * file, copy 1 further on, never in the same sector or page:
 *
 *   OFFSET  SIZE  FIELD
 *      0      8   magic
 *      8      4   format version
 *     12      4   own32: see store.c and journal.c
 *     16      8   features_incompat: unknown bit: refuse to open
 *     24      8   features_compat: unknown bit: ignore
 *     32      8   features_autoclear: unknown bit: clear before writing
 *     40     16   uuid of the pool
 *     56      8   epoch of the running or last session
 *     64      8   own64: see store.c and journal.c; it never decreases
 *     72     40   own: see store.c; zero in the journal
 *    112    392   zero
 *    504      8   XXH3_64bits of bytes 0 .. 503
 *
 * Magic, version and checksum are at these offsets in every format version, so
 * that an old program can distinguish a newer file from a damaged one.
 *
 * A copy is valid if and only if its magic and its checksum are right.  Of
 * two valid copies the one with the higher (epoch, own64) counts: they
 * differ only if a crash came between the two writes of header_pair_write.
 * That function first writes the copy that does not count, and syncs before
 * it writes the other one.
 *
 * Threads: one at a time may use a pair; the caller ensures that.
 */

#ifndef NBDEDUP_HEADER_PAIR_H
#define NBDEDUP_HEADER_PAIR_H

#include <stdint.h>

#include "base/geometry.h"

#define HEADER_LEN 512
#define HEADER_OWN_LEN 40

struct file_header {
  uint32_t own32;
  uint64_t features_incompat, features_compat, features_autoclear;
  uint8_t uuid[UUID_LEN];
  uint64_t epoch;
  uint64_t own64;
  uint8_t own[HEADER_OWN_LEN];
};

/* The differences between the two kinds of file. */
struct header_kind {
  char magic[8 + 1];
  uint32_t version;
  uint64_t known_incompat, known_autoclear;
  uint64_t copy_distance; /* of copy 1 from the start of the file */

  /* The ends of messages: "FILE: <no_magic>", and what to do about any
   * damage.
   */
  const char *no_magic;
  const char *restore;

  /* Fail with EIO and a text if own32 or own64 is impossible. */
  int (*check) (const char *path, const struct file_header *h);
};

/* The pair of one open file. */
struct header_pair {
  const struct header_kind *kind; /* not owned */
  struct file_header header;      /* of the copy that counts */
  unsigned good_copy;             /* the number of that copy */
};

enum copy_state { COPY_VALID, COPY_NO_MAGIC, COPY_BAD_CHECKSUM };

extern void header_pack (const struct header_kind *kind,
                         const struct file_header *h, uint8_t buf[HEADER_LEN]);
extern enum copy_state
header_state (const struct header_kind *kind, const uint8_t buf[HEADER_LEN]);

/* Read both copies, and fill in 'pair' with the one that counts.  EIO: no valid
 * copy, or two of different pools.  EINVAL: a newer format, or an unknown
 * incompatible feature.  The text, which begins with 'path', says which, and
 * what to do.
 */
extern int header_pair_read (struct header_pair *pair,
                             const struct header_kind *kind, int fd,
                             const char *path);

/* Write 'header' over both copies, one after the other, and sync each.  -1
 * with errno on error (no text recorded); 'pair' then has the copy that counts
 * on the disk.
 */
extern int header_pair_write (struct header_pair *pair, int fd,
                              const struct file_header *header);

/* The same with a new epoch, and without the bits of features_autoclear
 * that this program does not know.
 */
extern int
header_pair_set_epoch (struct header_pair *pair, int fd, uint64_t epoch);

#endif /* NBDEDUP_HEADER_PAIR_H */

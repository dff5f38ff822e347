/* SPDX-License-Identifier: BSD-3-Clause */

/* Reading the committed frames of a WAL that has two copies, before SQLite
 * recovers it.
 *
 * SQLite ends a WAL at the first frame whose salts or cumulative checksum are
 * wrong (https://sqlite.org/fileformat2.html#walformat): one flipped bit would
 * lose every later commit.  This module takes each frame from the file in
 * which it continues the chain that the header began.  The checksum covers
 * everything before the frame, so a frame of another moment never fits.
 */

#ifndef NBDEDUP_CKSUM_CHAIN_H
#define NBDEDUP_CKSUM_CHAIN_H

#include <stdbool.h>
#include <stdint.h>

#include "vfs/wal-format.h"

/* The first bytes of a database, including the NUL. */
#define CKSUM_DB_MAGIC "SQLite format 3"

struct cksum_chain {
  uint8_t header[WAL_HEADER_BYTES];
  uint32_t page_size;
  uint64_t nr_frames; /* up to the last commit */
  /* How many of the header and these frames each file lacks. */
  uint64_t bad[2];
};

/* Follow the chain that begins with the header in file 'which' of 'fds' (-1:
 * no such file).  'fn' gets each page, and must discard those after the last
 * 'commit'.  1: there is a chain, perhaps of no frames; 0: no valid header; -1:
 * no memory, with a text.
 */
extern int cksum_chain_read (const int fds[2], unsigned which,
                             struct cksum_chain *c,
                             void (*fn) (void *opaque, uint32_t number,
                                         const uint8_t *page,
                                         uint32_t page_size, bool commit),
                             void *opaque);

/* Write the parts of the chain that file 'which' lacks to it, and sync it.  0;
 * -1 with errno (no text recorded).
 */
extern int cksum_chain_repair (const int fds[2], unsigned which,
                               const struct cksum_chain *c);

/* Read page 'number' (from 1) of the database 'fd' into 'page'; true if its
 * checksum is right.
 */
extern bool cksum_chain_db_page (int fd, uint32_t page_size, uint64_t number,
                                 uint8_t *page);
/* The page size according to a database's first bytes, or 0. */
extern uint32_t cksum_chain_db_page_size (const uint8_t *page);

#endif /* NBDEDUP_CKSUM_CHAIN_H */

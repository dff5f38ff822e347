/* SPDX-License-Identifier: BSD-3-Clause */

/* The file "warm": what the caches of an earlier session held, so that the next
 * one need not begin with empty caches.  nbdedup-format(5) describes it.
 *
 * Precedents: InnoDB's dump of its buffer pool, PostgreSQL's autoprewarm and
 * ZFS's persistent L2ARC.
 *
 * Nothing depends on the file.  A missing, damaged, cut off, foreign or old one
 * costs time only, so nothing here logs or records an error text, and nothing
 * is synced: checksums tell what has reached the disk.
 *
 * Threads: one at a time uses a warm_file or a warm_writer.
 */

#ifndef NBDEDUP_WARM_FILE_H
#define NBDEDUP_WARM_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/geometry.h"

#define WARM_FILE "warm"

/* A state of the hash index.  Two sessions never make the same fold of a pool,
 * except after a restored backup; 'index_entries' is there for that.
 */
struct warm_stamp {
  uint64_t epoch, fold, index_entries;
};

enum warm_type {
  WARM_RECORDS = 1, /* addresses, 8 bytes each */
  WARM_LEAVES = 2,  /* layer and leaf, 16 bytes each */
  WARM_FILTER = 3,  /* one for each part of the filter */
};

struct warm_section {
  uint32_t type;
  uint32_t part;   /* of the filter; else 0 */
  uint64_t len;    /* of the payload, in bytes */
  uint64_t nr;     /* numbers added to the part; else 0 */
  uint64_t offset; /* of the payload; in a file only */
};

/*----------------------------------------------------------------------
 * Reading
 */

struct warm_file;

/* NULL: there is none, or it is not one of this pool. */
extern struct warm_file *
warm_file_open (const char *path, const uint8_t uuid[UUID_LEN]);
extern void warm_file_close (struct warm_file *file);

/* Was its filter saved in this state of the index? */
extern bool
warm_file_is_of (const struct warm_file *file, const struct warm_stamp *stamp);

/* NULL: it has no such section.  The section may still be damaged. */
extern const struct warm_section *warm_file_find (const struct warm_file *file,
                                                  enum warm_type type,
                                                  uint32_t part);

/* Read a section's payload in pieces of whole 8-byte words.  0; -1: it is
 * damaged (the function may have got some of it), or the function returned
 * false.
 */
extern int warm_file_read (struct warm_file *file,
                           const struct warm_section *section,
                           bool (*fn) (void *opaque, uint64_t offset,
                                       const uint8_t *buf, size_t len),
                           void *opaque);

/* The filter in the file is also that of a later state: it had all entries.
 * Only the header changes; one that is torn makes the file invalid.
 */
extern int warm_file_restamp (struct warm_file *file, const char *path,
                              const struct warm_stamp *stamp);

/*----------------------------------------------------------------------
 * Writing
 */

struct warm_writer;

/* Write a new file beside 'path'.  'stamp' NULL: it will have no filter. */
extern struct warm_writer *warm_writer_new (const char *path,
                                            const uint8_t uuid[UUID_LEN],
                                            const struct warm_stamp *stamp);
/* A section; its payload follows. */
extern void
warm_writer_begin (struct warm_writer *w, const struct warm_section *section);
extern void
warm_writer_put (struct warm_writer *w, const void *buf, size_t len);
extern void warm_writer_end (struct warm_writer *w);
/* Replace the file at 'path' if all could be written: 0.  Else it stays as it
 * was: -1.  Frees 'w'.
 */
extern int warm_writer_finish (struct warm_writer *w);

/* May a file of this size be written?  The pool's data must not lack the
 * space.
 */
extern bool warm_file_fits (const char *path, uint64_t bytes);
/* Remove it, and what a killed process has left beside it. */
extern void warm_file_remove (const char *path);

#endif /* NBDEDUP_WARM_FILE_H */

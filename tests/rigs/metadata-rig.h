/* SPDX-License-Identifier: BSD-3-Clause */

/* Samples of a pool whose pool.db has a second copy, and damage to them.
 *
 * All directories are below one that start_samples makes: "closed" and
 * "foreign" are pools that were closed; "killed" was "closed" until a process
 * worked on it and ended without closing it; "earlier" has the files of a
 * moment in between.  Tests copy one of them to "work" and spoil that.
 */

#ifndef NBDEDUP_METADATA_RIG_H
#define NBDEDUP_METADATA_RIG_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "rigs/pool-util.h"

#define NR_BLOCKS 1024u
#define PAGE 8192u
#define FRAME (PAGE + 24)
#define WAL_HEADER 32

#define expect(condition)                                       \
  do {                                                          \
    if (!(condition))                                           \
      die ("%s line %d (%s): not true: %s", __func__, __LINE__, \
           doing, #condition);                                  \
  } while (0)

extern char doing[200];         /* for messages */

/* Before any thread: this forks. */
extern void start_samples (void);
extern void end_samples (void);

/* The file of a sample; one of four buffers in turn. */
extern const char *in (const char *dir, const char *file);

/* 'from' that is not there: so is 'to', afterwards. */
extern void copy_file (const char *from, const char *to);
extern void copy_pool (const char *from, const char *to);

/* Bytes of the file that mean something: pool.db and its WAL have room behind
 * them.  0: it is not there.
 */
extern uint64_t size_of (const char *dir, const char *file);

/* One bit. */
extern void flip (const char *dir, const char *file, uint64_t offset);

/* As far as they mean something. */
extern bool are_equal (const char *dir, const char *a, const char *b);

/* Open the sample as 'pool'. */
extern int try_open (const char *dir);
extern int try_open_readonly (const char *dir);
extern int force_open_readonly (const char *dir);

extern void put (struct nbdedup_volume *v, unsigned block, uint64_t content);

/* 1: right, 0: EIO; anything else ends the test. */
extern int get (struct nbdedup_volume *v, unsigned block, uint64_t content);

/* What a block of volume "v" has.  A killed pool's newest writes are in its
 * WAL.
 */
extern uint64_t content_of (unsigned block, bool killed);

/* Write, flush and fold every step-th block of v. */
extern void write_some (bool killed, unsigned first, unsigned step);
extern void fold (void);

/* The property metadata-copy. */
extern void set_copy (const char *value);

/* Read-only, all that was flushed is there. */
extern void expect_readable (const char *dir, bool killed);

/* All that was flushed is there, and it can be written.  'copy_too': both
 * copies are equal when the pool is closed.
 */
extern void expect_whole (const char *dir, bool killed, bool copy_too);

extern const char *const metadata_files[4];

enum damage {
  MISSING, EMPTY, SHORT, HALF, ZEROES, NOISE, DIRECTORY, OLD_SESSION,
  EARLIER, NR_DAMAGES
};
extern const char *const damages[NR_DAMAGES];

/* Whether the sample has a file that this damage changes. */
extern bool can_spoil (const char *dir, const char *file, enum damage damage,
                       bool killed);
extern void spoil (const char *dir, const char *file, enum damage damage);

#endif /* NBDEDUP_METADATA_RIG_H */

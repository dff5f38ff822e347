/* SPDX-License-Identifier: BSD-3-Clause */

/* Samples of a pool whose pool.db has a second copy, and damage to them.
 *
 * start_samples makes a directory with these pools: "closed" and "foreign" were
 * closed; "killed" is a copy of "closed" that a process worked on and did not
 * close; "earlier" has the files of "killed" from the middle of that work.
 * A test copies one of them to "work" and damages the copy.
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

#define expect(condition)                                                      \
  do {                                                                         \
    if (!(condition))                                                          \
      die ("%s line %d (%s): not true: %s", __func__, __LINE__, doing,         \
           #condition);                                                        \
  } while (0)

extern char doing[200]; /* for messages */

/* Call it before starting a thread: it forks. */
extern void start_samples (void);
extern void end_samples (void);

/* The path of a sample's file, in one of four buffers in turn. */
extern const char *in (const char *dir, const char *file);

/* If 'from' does not exist, 'to' is removed. */
extern void copy_file (const char *from, const char *to);
extern void copy_pool (const char *from, const char *to);

/* Name the case for messages, and copy the sample to "work". */
extern void begin_case (const char *sample, const char *fmt, ...)
  __attribute__ ((format (printf, 2, 3)));
/* The same, and open "work". */
#define open_case(...)                                                         \
  do {                                                                         \
    begin_case (__VA_ARGS__);                                                  \
    must (try_open ("work"));                                                  \
  } while (0)

/* The number of bytes in use: pool.db and its WAL have free space at the end.
 * 0: there is no such file.
 */
extern uint64_t size_of (const char *dir, const char *file);

/* Flip one bit. */
extern void flip (const char *dir, const char *file, uint64_t offset);

/* Compare the bytes in use. */
extern bool are_equal (const char *dir, const char *a, const char *b);

/* Open the sample as 'pool'. */
extern int try_open (const char *dir);
extern int try_open_readonly (const char *dir);
extern int force_open_readonly (const char *dir);

extern void put (struct nbdedup_volume *v, unsigned block, uint64_t content);

/* Read a block.  1: its content is right; 0: EIO; otherwise the test ends. */
extern int get (struct nbdedup_volume *v, unsigned block, uint64_t content);

/* The content of a block of volume "v".  A killed pool's newest writes are in
 * its WAL.
 */
extern uint64_t content_of (unsigned block, bool killed);

/* Write every step-th block of "v", flush and fold. */
extern void write_some (bool killed, unsigned first, unsigned step);
extern void fold (void);

/* Set the property metadata-copy. */
extern void set_copy (const char *value);

/* Is the volume there that "killed" got before its last checkpoint?  0, or -1
 * and errno.  Cases of other samples have none: 0.
 */
extern int find_late (void);

/* Opened read-only, the pool must have all flushed data. */
extern void expect_readable (const char *dir, bool killed);

/* The pool must have all flushed data, and accept a write.  'copy_too': both
 * copies must be equal when the pool is closed.
 */
extern void expect_whole (const char *dir, bool killed, bool copy_too);

extern const char *const metadata_files[4];

enum damage {
  MISSING,
  EMPTY,
  SHORT,
  HALF,
  ZEROES,
  NOISE,
  DIRECTORY,
  OLD_SESSION,
  EARLIER,
  NR_DAMAGES
};
extern const char *const damages[NR_DAMAGES];

/* True if the sample has a file that this damage changes. */
extern bool
can_spoil (const char *dir, const char *file, enum damage damage, bool killed);
extern void spoil (const char *dir, const char *file, enum damage damage);

#endif /* NBDEDUP_METADATA_RIG_H */

/* SPDX-License-Identifier: BSD-3-Clause */

/* Shared by the tests of the history of drift: a pool, commands that may fail,
 * samples.
 */

#ifndef NBDEDUP_HISTORY_RIG_H
#define NBDEDUP_HISTORY_RIG_H

#include "rigs/pool-util.h"

extern char directory[PATH_MAX];

#define fatal(fmt, ...)                                                        \
  die ("%s line %d: " fmt, __func__, __LINE__, ##__VA_ARGS__)

/* Make and open a pool; check, close and remove it. */
extern void history_begin (void);
extern void history_end (void);

extern void open_pool (void);

/* Run a command that must fail with 'error', or, with 0, succeed.  Returns
 * NULL if it fails.
 */
extern json_t *try (const char *command, json_t *args, int error);
extern json_t *record (const char *golden);
extern json_int_t check_errors (void);

/* The array of samples, as a new reference.  'name' NULL: all. */
extern json_t *samples_of (const char *name);

/* Run SQL on the closed pool, with the VFS that maintains its checksums. */
extern int64_t sql (const char *text);

/* Make a volume with some data. */
extern void make_golden (const char *name, uint64_t fill);

#endif /* NBDEDUP_HISTORY_RIG_H */

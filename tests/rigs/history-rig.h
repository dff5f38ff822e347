/* SPDX-License-Identifier: BSD-3-Clause */

/* What the tests of the history of drift share: a pool, commands that may
 * fail, samples.
 */

#ifndef NBDEDUP_HISTORY_RIG_H
#define NBDEDUP_HISTORY_RIG_H

#include "rigs/pool-util.h"

extern char directory[PATH_MAX];

#define fatal(fmt, ...)                                         \
  die ("%s line %d: " fmt, __func__, __LINE__, ##__VA_ARGS__)

/* A new pool, open; it is checked, closed and removed. */
extern void history_begin (void);
extern void history_end (void);

extern void open_pool (void);

/* NULL if it fails with 'error'; 0: it must not. */
extern json_t *try (const char *command, json_t *args, int error);
extern json_t *record (const char *golden);
extern json_int_t check_errors (void);

/* The array, a new reference; 'name' NULL: all. */
extern json_t *samples_of (const char *name);

/* SQL on the closed pool, through the VFS that keeps its checksums right. */
extern int64_t sql (const char *text);

/* A volume with something in it. */
extern void make_golden (const char *name, uint64_t fill);

#endif /* NBDEDUP_HISTORY_RIG_H */

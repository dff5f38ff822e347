/* SPDX-License-Identifier: BSD-3-Clause */

/* Shared by the threads of test-concurrent. */

#ifndef NBDEDUP_CONCURRENT_H
#define NBDEDUP_CONCURRENT_H

#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "nbdedup.h"
#include "rigs/testutil.h"

#define NR_STEADY 3  /* volumes that are never destroyed */
#define NR_WRITERS 4 /* of steady volumes */
#define NR_GUESTS 3  /* clients of volumes that are destroyed */
#define NR_DUPS 30
#define STEADY_BYTES (UINT32_C (2) << 20)
#define MOVING_BYTES (UINT32_C (1) << 20)
#define MAX_REQUEST (UINT32_C (256) << 10)

extern struct nbdedup_pool *pool;
extern char directory[PATH_MAX];
extern uint64_t seed;
extern atomic_bool stop;
extern atomic_uint nr_requests, nr_commands, nr_cut_off;

extern struct steady {
  char name[8];
  uint32_t block_size;
  uint8_t *data; /* the expected content */
} steady[NR_STEADY];

#define fatal(fmt, ...)                                                        \
  die ("SEED=%" PRIu64 " %s line %d: " fmt, seed, __func__, __LINE__,          \
       ##__VA_ARGS__)

#define must(call)                                                             \
  do {                                                                         \
    if ((call) != 0)                                                           \
      fatal ("%s: %s", #call, nbdedup_error ());                               \
  } while (0)

/* Run a command that may fail with 'error' (0: it must not fail). */
#define ANY_ERROR (-1)
extern json_t *try (const char *command, json_t *args, int error);
extern void run (const char *command, json_t *args);

extern struct nbdedup_volume *open_volume (const char *name, unsigned flags);
extern int
ignore_extent (void *opaque, uint64_t offset, uint64_t len, bool hole);

/* concurrent-volumes.c: threads that read and write volumes, and threads that
 * make, destroy, resize and rename them.  'arg' is the thread's number, where
 * there are several of one kind.
 */
extern void *writer (void *arg);
extern void verify_data (const char *when);
extern void *destroyer (void *arg);
extern void *guest (void *arg);
extern void *mover (void *arg);
extern void *follower (void *arg);

/* concurrent-clones.c: threads that make golden images and clones, and threads
 * that measure them.
 */
extern void make_golden (void);
extern void *herder (void *arg);
extern void *measurer (void *arg);
extern void *cloner (void *arg);
extern void *drifter (void *arg);

#endif /* NBDEDUP_CONCURRENT_H */

/* SPDX-License-Identifier: BSD-3-Clause */

/* Loss of power, made from kill -9.
 *
 * powercut.so, preloaded into a server, writes to the file $POWERCUT_LOG what
 * each write to a file below $POWERCUT_DIR is about to overwrite, and when
 * such a file was synced.  After the server was killed powercut_undo takes
 * back writes that no sync covered: for each sector either all of them, or
 * none, or those after a random moment; and for some files also their
 * growth.  That is what a disk without a battery may do.
 *
 * What it does not do: lose the creation or removal of a file.
 */

#ifndef NBDEDUP_POWERCUT_UNDO_H
#define NBDEDUP_POWERCUT_UNDO_H

#include <stdint.h>

#include "testutil.h"

#define POWERCUT_MAGIC UINT32_C (0x54554357)
#define POWERCUT_PATH_MAX 200

enum powercut_kind {
  POWERCUT_WRITE = 1,           /* 'len' old bytes follow */
  POWERCUT_TRUNCATE = 2,        /* the file was longer: old bytes follow */
  POWERCUT_SYNC = 3,            /* all entries up to 'offset' are durable */
};

struct powercut_entry {
  uint32_t magic;
  uint32_t kind;
  uint64_t seq;
  uint64_t offset, len;
  uint64_t size;                /* of the file, before; SYNC: when it began */
  char path[POWERCUT_PATH_MAX];
};

/* Take back what was not synced.  No log: nothing was written. */
extern void powercut_undo (const char *log, struct rng *rng);

#endif /* NBDEDUP_POWERCUT_UNDO_H */

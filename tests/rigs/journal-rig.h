/* SPDX-License-Identifier: BSD-3-Clause */

/* A journal below the working directory, its batches' content known, and a
 * disk that can lose power.
 *
 * pwrite, pwritev, fdatasync and fsync are the program's own: they keep book
 * of what a power failure would leave.
 */

#ifndef NBDEDUP_JOURNAL_RIG_H
#define NBDEDUP_JOURNAL_RIG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "disk/journal.h"

/* SEED, and a directory of our own to work in. */
extern void journal_begin (void);
extern void journal_end (void);

extern const uint8_t uuid[UUID_LEN];

struct disk {
  bool on;                      /* keep book */
  bool crashed;                 /* nothing arrives any more */
  uint64_t countdown;           /* calls until then; 0: none */
  uint8_t *stable;              /* as of the last sync */
  uint64_t stable_len;
  uint8_t *dirty;               /* by sector: written since */
};

extern struct disk disk;
extern atomic_bool fail_sync, fail_write;

/* Begin to keep book of "journal", which is on disk as it is. */
extern void disk_start (void);
extern void disk_stop (void);

/* Lose power: "journal" becomes what was synced and any of the rest. */
extern void disk_crash (void);

/* Batches whose content follows from their number; their lengths. */
#define NR_MAX 100000
extern uint32_t lens[NR_MAX];

/* Batch 'expect', which is the next one, of 'len' bytes: as
 * journal_append, which is given 'settled'.
 */
extern uint64_t settled;
extern int append (struct journal *j, uint32_t len, uint64_t expect);

/* pool.db: what it says at the moment. */
struct said {
  uint64_t folded, position, epoch;
};
extern struct said pool;

/* A new journal, open, in session 2. */
extern struct journal *start (void);
extern struct journal *reopen (void);

/* What it gave is 'replayed' and 'first_suspect'; 'damaged' is the batch of
 * which it gave only the list, which is its number.
 */
extern int replay (struct journal *j);
extern uint64_t replayed, first_suspect, damaged;

/* It must replay up to 'last', or not at all; the last error says so. */
extern void expect_last (uint64_t last);
extern void expect_damage (const char *text);
extern void expect_text (const char *text);

#endif /* NBDEDUP_JOURNAL_RIG_H */

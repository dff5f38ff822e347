/* SPDX-License-Identifier: BSD-3-Clause */

/* A journal in the working directory, with batches of known content, and a disk
 * that can lose power.
 *
 * The program has its own pwrite, pwritev, fdatasync and fsync, which record
 * what a power failure would leave, and its own pread.
 */

#ifndef NBDEDUP_JOURNAL_RIG_H
#define NBDEDUP_JOURNAL_RIG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "disk/journal.h"

/* Read SEED, and change to a new directory. */
extern void journal_begin (void);
extern void journal_end (void);

extern const uint8_t uuid[UUID_LEN];

struct disk {
  bool on;            /* record */
  bool crashed;       /* writes are lost */
  uint64_t countdown; /* calls until the crash; 0: no crash */
  uint8_t *stable;    /* as of the last sync */
  uint64_t stable_len;
  uint8_t *dirty; /* by sector: written since */
};

extern struct disk disk;
extern atomic_bool fail_sync, fail_write;

/* Sectors that the disk cannot read: [start, end) of the file.  A write of all
 * of them repairs them; one of a part fails, as in the page cache, which reads
 * the rest first.
 */
struct bad_sectors {
  uint64_t start, end;
  unsigned times; /* so many reads fail; 0: all */
  uint64_t also;  /* one more, which is never repaired; 0: none */
};
extern struct bad_sectors broken;

/* Begin to record "journal".  Its present content is durable. */
extern void disk_start (void);
extern void disk_stop (void);

/* Lose power: "journal" keeps what was synced, and any part of the rest. */
extern void disk_crash (void);

/* The lengths of the batches.  The content follows from the number. */
#define NR_MAX 100000
extern uint32_t lens[NR_MAX];

/* Append the next batch, number 'expect', of 'len' bytes.  Returns what
 * journal_append returns, which gets 'settled'.
 */
extern uint64_t settled;
extern int append (struct journal *j, uint32_t len, uint64_t expect);

/* What pool.db says at present. */
struct said {
  uint64_t folded, position, epoch;
};
extern struct said pool;

/* Make and open a journal, in session 2. */
extern struct journal *start (void);
extern struct journal *reopen (void);

/* Replay the journal: sets 'replayed', 'first_suspect' and 'damaged', the batch
 * of which the replay gave only the list, which is its number.
 */
extern int replay (struct journal *j);
extern uint64_t replayed, first_suspect, damaged;

/* The journal must replay up to 'last', or not at all, with 'text' in the
 * error; the last error must have 'text'.
 */
extern void expect_last (uint64_t last);
extern void expect_damage (const char *text);
extern void expect_text (const char *text);

#endif /* NBDEDUP_JOURNAL_RIG_H */

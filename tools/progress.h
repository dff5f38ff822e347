/* SPDX-License-Identifier: BSD-3-Clause */

/* A progress bar on stderr: redrawn in place on a terminal; elsewhere a line
 * every second, only with --progress.  There is one at a time, and one thread
 * uses it.
 */

#ifndef NBDEDUP_PROGRESS_H
#define NBDEDUP_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

enum progress_unit {
  PROGRESS_BYTES, /* with sizes, a rate and the time left */
  PROGRESS_PARTS, /* other units: per cent only */
};

struct progress {
  const char *what; /* not owned */
  enum progress_unit unit;
  bool shown, terminal;
  bool drawn; /* at least once */
  uint64_t start_ms, last_ms;
  uint64_t done, total;
  bool is_part; /* updates are for a part of a whole */
  uint64_t before, whole;
};

/* 'force': show it even if stderr is not a terminal. */
extern void progress_start (struct progress *progress, const char *what,
                            enum progress_unit unit, bool force);

/* 'total' 0: not known.  Cheap: draws at most a few times a second. */
extern void
progress_update (struct progress *progress, uint64_t done, uint64_t total);

/* From now on progress_update is for one part, which comes after 'before' units
 * of other parts.  'whole' 0: not known.
 */
extern void
progress_part (struct progress *progress, uint64_t before, uint64_t whole);

/* Make room for a message on the terminal; the bar comes back. */
extern void progress_hide (void);

/* Show it as complete, since not every last step is reported. */
extern void progress_complete (struct progress *progress);

/* Leave the terminal as other messages expect it. */
extern void progress_end (struct progress *progress);

#endif /* NBDEDUP_PROGRESS_H */

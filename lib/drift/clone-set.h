/* SPDX-License-Identifier: BSD-3-Clause */

/* Clone sets: a golden image and the volumes that were cloned from it,
 * directly or through others; and whether they have changed.
 *
 * The state of a clone set is a number.  Two states of a session differ (except
 * by a chance of 1 in 2^64) if a member's content or size, or the set of
 * members, may have changed in between.  It comes from counters in memory;
 * states of different sessions cannot be compared.  A write is counted after
 * it was done and before it is answered, so each write that a state counts is
 * visible.
 */

#ifndef NBDEDUP_CLONE_SET_H
#define NBDEDUP_CLONE_SET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "volume/volume.h"

struct clone_set {
  uint64_t golden; /* id of the snapshot */
  uint64_t state;
  bool is_destroyed;
  char label[VOLUME_LABEL_MAX]; /* the snapshot's, from volume_label */
};

/* All that exist now, ascending by id; the caller frees the array, which is
 * NULL if there are none.
 */
extern int
clone_sets_get (struct volumes *volumes, struct clone_set **sets, size_t *nr);

#endif /* NBDEDUP_CLONE_SET_H */

/* SPDX-License-Identifier: BSD-3-Clause */

/* Clone sets: a golden image and the volumes that were cloned from it,
 * directly or through others; and whether they have changed.
 *
 * The state of a clone set is a number that differs, but for one chance in
 * 2^64, when a member's content or size, or the set of members, may have
 * changed in between.  It is taken from counters in memory, and says nothing
 * across sessions.  A write is counted when it has been done, before it is
 * answered: what a state has counted can be seen from then on.
 */

#ifndef NBDEDUP_CLONE_SET_H
#define NBDEDUP_CLONE_SET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "volume/volume.h"

struct clone_set {
  uint64_t golden;              /* id of the snapshot */
  uint64_t state;
  bool is_destroyed;
  char label[VOLUME_LABEL_MAX]; /* the snapshot's, as volume_label says it */
};

/* All that exist now, ascending by id; the caller frees the array, which is
 * NULL if there are none.
 */
extern int clone_sets_get (struct volumes *volumes, struct clone_set **sets,
                           size_t *nr);

#endif /* NBDEDUP_CLONE_SET_H */

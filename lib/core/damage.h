/* SPDX-License-Identifier: BSD-3-Clause */

/* Damage to the content of volumes, as events: which volume, and where.
 *
 * Threads: any; the log is not waited for (events_post).
 */

#ifndef NBDEDUP_DAMAGE_H
#define NBDEDUP_DAMAGE_H

#include <stdint.h>

#include "core/events.h"

struct damage_place {
  const char *name;        /* of a volume or a snapshot */
  uint64_t offset, length; /* bytes */
};

/* The members "name", "offset" and "length" of a report's place. */
extern struct damage_place damage_place_of (const json_t *place);

/* 'found' says by what: a word.  'what' ends the message: "are damaged".
 * 'where': in the log, or in the history, or both.
 */
#define DAMAGE_LOG 1u
#define DAMAGE_KEEP 2u
extern void damage_tell (struct events *e, const struct damage_place *place,
                         const char *found, const char *what, unsigned where);

#endif /* NBDEDUP_DAMAGE_H */

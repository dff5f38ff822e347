/* SPDX-License-Identifier: BSD-3-Clause */

/* Several requests on one volume in flight.
 *
 * The main thread goes through the slots in turn: it waits until a slot
 * is idle, uses what is in its buffer (export) or fills it (import), and
 * submits it.  A few threads do the requests.  So the file on the other
 * side is read and written in order, by one thread.  Slots must be
 * submitted in turn: 0, 1, ... TRANSFER_SLOTS - 1, 0, ...
 */

#ifndef NBDEDUP_TRANSFER_H
#define NBDEDUP_TRANSFER_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "nbdedup.h"

#define TRANSFER_LEN (UINT32_C (1) << 20)       /* of a buffer */
#define TRANSFER_SLOTS 8

enum transfer_op { TRANSFER_READ, TRANSFER_WRITE };

struct transfer;

/* Start the threads; NULL: errno says why. */
extern struct transfer *transfer_new (struct nbdedup_remote *remote,
                                      enum transfer_op op);

/* Wait until the slot is idle; its buffer, or NULL if any request failed
 * (see transfer_error) or a signal came.
 */
extern uint8_t *transfer_wait (struct transfer *transfer, unsigned slot);

extern void transfer_submit (struct transfer *transfer, unsigned slot,
                             uint64_t offset, uint32_t len);

/* Nothing but zeroes: a new volume has them already. */
static inline bool
transfer_is_zero (const uint8_t *buf, uint32_t len)
{
  return len == 0 || (buf[0] == 0 && memcmp (buf, buf + 1, len - 1) == 0);
}

/* Wait for all slots; -1 if any request failed. */
extern int transfer_drain (struct transfer *transfer);

/* The text of the first failure, or NULL. */
extern const char *transfer_error (struct transfer *transfer);

/* Stop: requests not begun are dropped. */
extern void transfer_free (struct transfer *transfer);

#endif /* NBDEDUP_TRANSFER_H */

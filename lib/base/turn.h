/* SPDX-License-Identifier: BSD-3-Clause */

/* Whose turn it is: a thread may hold some locks for as long as a command
 * takes.  Beside each of them stands a turn, which says who holds it, so that a
 * thread that waits for it can tell its user on whom, and since when.
 *
 *   turn_set_name ("nbdedup scrub (PID 77)");
 *   if (turn_take (&turn, &lock, look, opaque) == -1)
 *     return -1;
 *   ...
 *   turn_give (&turn, &lock);
 *
 * Threads: any.
 */

#ifndef NBDEDUP_TURN_H
#define NBDEDUP_TURN_H

#include <time.h>

#include "base/lock.h"

#define TURN_NAME_MAX 192

struct turn {
  struct lock guard; /* innermost; protects everything below */
  char who[TURN_NAME_MAX];
  time_t since; /* 0: no thread has taken it with turn_take */
};

extern void turn_init (struct turn *t);
extern void turn_destroy (struct turn *t);

/* How those who wait for this thread call it.  "", the initial value: a thread
 * of the server's own.
 */
extern void turn_set_name (const char *who);

/* Take lock 'l'.  While another thread has it, call 'look' several times a
 * second; if that returns -1, return that without the lock.  Meanwhile
 * turn_awaited has the reason.
 */
extern int turn_take (struct turn *t, struct lock *l,
                      int (*look) (void *opaque), void *opaque);
/* Release it. */
extern void turn_give (struct turn *t, struct lock *l);

/* On what this thread waits, as a clause; NULL: it does not. */
extern const char *turn_awaited (void);

#endif /* NBDEDUP_TURN_H */

/* SPDX-License-Identifier: BSD-3-Clause */

/* SIGINT, SIGTERM and SIGHUP ask import and export to stop and clean up.
 * Another one within a second is the same wish; one after that kills the
 * command at once.  They end top.
 */

#ifndef NBDEDUP_INTERRUPT_H
#define NBDEDUP_INTERRUPT_H

#include <stdbool.h>
#include <stdint.h>

extern void interrupt_catch (void);
extern bool interrupted (void);

/* End the waits of all threads in interrupt_poll, because the command has
 * failed.
 */
extern void interrupt_stop (void);

/* Wait so long, or until a signal comes. */
extern void interrupt_wait (uint64_t ms);

/* Wait until 'fd' is ready for 'events' of poll, or a signal comes, or a thread
 * calls interrupt_stop.  Returns the events of poll, or 0.
 */
extern short interrupt_poll (int fd, short events);

#endif /* NBDEDUP_INTERRUPT_H */

/* SPDX-License-Identifier: BSD-3-Clause */

/* SIGINT, SIGTERM and SIGHUP ask import and export to stop and clean up.
 * A second one kills at once.
 */

#ifndef NBDEDUP_INTERRUPT_H
#define NBDEDUP_INTERRUPT_H

#include <stdbool.h>

extern void interrupt_catch (void);
extern bool interrupted (void);

/* End all waiting in interrupt_poll, for all threads: something failed, and
 * there is no point in going on.
 */
extern void interrupt_stop (void);

/* Wait until 'fd' is ready for 'events' of poll, or a signal came, or
 * interrupt_stop: what poll found, or 0.
 */
extern short interrupt_poll (int fd, short events);

#endif /* NBDEDUP_INTERRUPT_H */

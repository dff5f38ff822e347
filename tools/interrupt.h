/* SPDX-License-Identifier: BSD-3-Clause */

/* SIGINT, SIGTERM and SIGHUP ask import and export to stop and clean up.
 * A second one kills at once.
 */

#ifndef NBDEDUP_INTERRUPT_H
#define NBDEDUP_INTERRUPT_H

#include <stdbool.h>

extern void interrupt_catch (void);
extern bool interrupted (void);

/* Wait until 'fd' is ready for 'events' of poll, or a signal came:
 * true if it is ready.
 */
extern bool interrupt_poll (int fd, short events);

#endif /* NBDEDUP_INTERRUPT_H */

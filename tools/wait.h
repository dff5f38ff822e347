/* SPDX-License-Identifier: BSD-3-Clause */

/* Messages while a command waits for another one to close the pool, for its
 * turn in the server, or for the server's answer.
 */

#ifndef NBDEDUP_WAIT_H
#define NBDEDUP_WAIT_H

#include "nbdedup.h"

/* Set the command's name for the messages of wait_for_pool. */
extern void wait_set_command (const char *command);

/* For nbdedup_client_open: reports the wait within a second, and detects a pipe
 * between the two commands.
 */
extern nbdedup_wait_fn wait_for_pool;

/* For an error (EBUSY) that ended such a wait: what to do, with ": " before it,
 * or "".
 */
extern const char *wait_advice (void);

/* From now on wait_for_pool waits although a signal has come: the command must
 * undo what it did.
 */
extern void wait_must_end (void);

/* For commands that wait so briefly that they report nothing. */
extern nbdedup_wait_fn wait_silently;

#endif /* NBDEDUP_WAIT_H */

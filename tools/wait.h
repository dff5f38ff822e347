/* SPDX-License-Identifier: BSD-3-Clause */

/* While a command waits until another has done with the pool. */

#ifndef NBDEDUP_WAIT_H
#define NBDEDUP_WAIT_H

#include "nbdedup.h"

/* The command's name, for what wait_for_pool says. */
extern void wait_set_command (const char *command);

/* For nbdedup_client_open: says so before a second has gone, and notices a
 * pipe between the two.
 */
extern nbdedup_wait_fn wait_for_pool;

/* For commands that wait so short a time that they say nothing. */
extern nbdedup_wait_fn wait_silently;

#endif /* NBDEDUP_WAIT_H */

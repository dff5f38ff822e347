/* SPDX-License-Identifier: BSD-3-Clause */

/* Threads that leave the CPUs to those who wait for answers. */

#ifndef NBDEDUP_PRIORITY_H
#define NBDEDUP_PRIORITY_H

/* A tenth of the share of a CPU that others have, when there is not enough
 * for all.
 */
#define PRIORITY_STEP 10

/* The calling thread, from now on: one that is not root cannot take it back.
 * Again changes nothing.
 */
extern void thread_lower_priority (void);

#endif /* NBDEDUP_PRIORITY_H */

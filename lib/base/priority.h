/* SPDX-License-Identifier: BSD-3-Clause */

/* Low priority for background threads, so that clients' requests run first. */

#ifndef NBDEDUP_PRIORITY_H
#define NBDEDUP_PRIORITY_H

/* The step of the nice value: a tenth of another thread's share of a busy
 * CPU.
 */
#define PRIORITY_STEP 10

/* Lower the priority of the calling thread, for good: only root could raise
 * it again.  A second call changes nothing.
 */
extern void thread_lower_priority (void);

#endif /* NBDEDUP_PRIORITY_H */

/* SPDX-License-Identifier: BSD-3-Clause */

/* Starting threads. */

#ifndef NBDEDUP_THREAD_H
#define NBDEDUP_THREAD_H

#include <pthread.h>

/* Call fn (arg) in a thread, perhaps before this returns.  It blocks the
 * signals that the caller blocks.  -1: the system has refused to start one.
 */
extern int thread_start (pthread_t *thread, void *(*fn) (void *arg), void *arg);

#endif /* NBDEDUP_THREAD_H */

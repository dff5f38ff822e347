/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <string.h>

#include "base/error.h"
#include "base/thread.h"

int
thread_start (pthread_t *thread, void *(*fn) (void *arg), void *arg)
{
  const int err = pthread_create (thread, NULL, fn, arg);

  return err == 0
    ? 0
    : nbdedup_fail (err, "cannot start a thread: %s", strerror (err));
}

/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <sys/resource.h>
#include <unistd.h>

#include "base/priority.h"

/* On Linux this is the nice value of the thread alone; that of the first
 * thread is the process's.  If the kernel refuses, the thread keeps its value.
 */
void
thread_lower_priority (void)
{
  setpriority (PRIO_PROCESS, (id_t) gettid (),
               getpriority (PRIO_PROCESS, (id_t) getpid ()) + PRIORITY_STEP);
}

/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <sys/resource.h>
#include <unistd.h>

#include "base/priority.h"

/* Linux: of this thread alone; the first one's is the process's.  If it is
 * refused the thread runs all the same.
 */
void
thread_lower_priority (void)
{
  setpriority (PRIO_PROCESS, (id_t) gettid (),
               getpriority (PRIO_PROCESS, (id_t) getpid ()) + PRIORITY_STEP);
}

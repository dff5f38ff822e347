/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#ifdef HAVE_SYSTEMD
#include <systemd/sd-daemon.h>
#endif

#include "notify.h"

/* An error is not reported: the service manager notices that it was not told,
 * and ends the server.
 */
void
notify_ready (const char *pool)
{
#ifdef HAVE_SYSTEMD
  sd_notifyf (0, "READY=1\nSTATUS=Serving %s", pool);
#else
  (void) pool;
#endif
}

void
notify_stopping (void)
{
#ifdef HAVE_SYSTEMD
  sd_notify (0, "STOPPING=1\nSTATUS=Making all writes durable");
#endif
}

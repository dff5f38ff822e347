/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "interrupt.h"

/* A signal that comes so soon after the first one is the same wish: timeout
 * sends its signal to the process and to the process group, and a terminal that
 * closes, and its shell, each send SIGHUP.
 */
#define REPEAT_MS 1000

static atomic_uint_least64_t caught_ms; /* by clock_ms; 0: no signal yet */
static atomic_bool stopped;             /* also set by the first signal */
static int event_fd = -1;               /* readable once stopped */

void
interrupt_stop (void)
{
  const uint64_t one = 1;
  const int err = errno;

  atomic_store (&stopped, true);
  if (write (event_fd, &one, sizeof one) == -1)
    errno = err; /* full, but readable */
  errno = err;
}

/* Any thread may get the signal; the descriptor wakes those that poll.
 * sigaction keeps a signal blocked until its handler returns: that ends the
 * process here.
 */
static void
handler (int sig)
{
  const struct sigaction end = { .sa_handler = SIG_DFL };
  const uint64_t now = clock_ms ();
  const int err = errno;
  uint64_t first = 0;

  if (atomic_compare_exchange_strong (&caught_ms, &first, now))
    interrupt_stop ();
  else if (now >= first + REPEAT_MS && sigaction (sig, &end, NULL) == 0)
    raise (sig);
  errno = err;
}

void
interrupt_catch (void)
{
  static const int signals[] = { SIGINT, SIGTERM, SIGHUP };
  struct sigaction sa = {
    .sa_handler = handler,
    .sa_flags = SA_RESTART,
  };
  struct sigaction old;
  unsigned i;

  event_fd = eventfd (0, EFD_CLOEXEC | EFD_NONBLOCK);
  for (i = 0; i < sizeof signals / sizeof signals[0]; ++i)
    /* Keep ignoring a signal that nohup ignores. */
    if (sigaction (signals[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
      sigaction (signals[i], &sa, NULL);
}

bool
interrupted (void)
{
  return atomic_load (&caught_ms) != 0;
}

void
interrupt_wait (uint64_t ms)
{
  const uint64_t end = clock_ms () + ms;
  struct pollfd pfd = { .fd = event_fd, .events = POLLIN };
  uint64_t now;

  while (!atomic_load (&stopped) && (now = clock_ms ()) < end)
    poll (&pfd, 1, end - now < INT_MAX ? (int) (end - now) : INT_MAX);
}

short
interrupt_poll (int fd, short events)
{
  struct pollfd pfd[2] = {
    { .fd = fd, .events = events },
    { .fd = event_fd, .events = POLLIN },
  };

  while (!atomic_load (&stopped))
    if (poll (pfd, 2, -1) > 0 && pfd[0].revents != 0)
      return pfd[0].revents;
  return 0;
}

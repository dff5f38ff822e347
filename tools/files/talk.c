/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "files.h"

/* Messages wait here until the next READ, or the end. */
static char out[64 << 10];
static size_t nr_out;

void
give_up (const char *why)
{
  fprintf (stderr, "nbdedup-files: %s\n", why);
  exit (EXIT_FAILURE);
}

static void
flush_out (void)
{
  size_t done = 0;
  ssize_t r;

  while (done < nr_out) {
    r = send (FILES_FD, out + done, nr_out - done, MSG_NOSIGNAL);
    if (r == -1 && errno == EINTR)
      continue;
    if (r <= 0)
      exit (EXIT_FAILURE); /* the parent is gone */
    done += r;
  }
  nr_out = 0;
}

static void
put (const void *p, size_t len)
{
  size_t n;

  for (; len > 0; len -= n, p = (const char *) p + n) {
    if (nr_out == sizeof out)
      flush_out ();
    n = sizeof out - nr_out < len ? sizeof out - nr_out : len;
    memcpy (out + nr_out, p, n);
    nr_out += n;
  }
}

static void
send_message (enum files_type type, uint64_t a, uint64_t b, const void *p,
              size_t len)
{
  const struct files_message m = { type, len, a, b };

  put (&m, sizeof m);
  put (p, len);
}

void
send_text (enum files_type type, const char *text, size_t len)
{
  if (len > FILES_TEXT_MAX)
    len = FILES_TEXT_MAX;
  send_message (type, 0, 0, text, len);
}

void
send_same_package (uint64_t number)
{
  send_message (FILES_PACKAGE, number + 1, 0, NULL, 0);
}

void
send_note (const char *fmt, ...)
{
  char text[512];
  va_list ap;

  va_start (ap, fmt);
  vsnprintf (text, sizeof text, fmt, ap);
  va_end (ap);
  send_text (FILES_NOTE, text, strlen (text));
}

void
send_extent (uint64_t offset, uint64_t len)
{
  send_message (FILES_EXTENT, offset, len, NULL, 0);
}

void
send_done (void)
{
  send_message (FILES_DONE, 0, 0, NULL, 0);
  flush_out ();
}

static void
receive (void *buf, size_t len)
{
  size_t done = 0;
  ssize_t r;

  while (done < len) {
    r = recv (FILES_FD, (char *) buf + done, len - done, 0);
    if (r == -1 && errno == EINTR)
      continue;
    if (r <= 0)
      exit (EXIT_FAILURE);
    done += r;
  }
}

bool
read_image (uint64_t offset, void *buf, uint32_t len)
{
  struct files_message answer;

  send_message (FILES_READ, offset, len, NULL, 0);
  flush_out ();
  receive (&answer, sizeof answer);
  if (answer.type != FILES_READ || (answer.len != 0 && answer.len != len))
    give_up ("the parent's answer does not follow the protocol");
  if (answer.len == 0)
    return false;
  receive (buf, len);
  return true;
}

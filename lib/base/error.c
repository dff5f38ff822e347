/* SPDX-License-Identifier: BSD-3-Clause */

/* The text of the last failure, one per thread. */

#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

#define MESSAGE_MAX 1024

static __thread char message[MESSAGE_MAX] = "no error";

const char *
nbdedup_error (void)
{
  return message;
}

/* End a message that does not fit with "...", without splitting a UTF-8
 * character.
 */
static void
mark_cut (char text[MESSAGE_MAX])
{
  size_t end = MESSAGE_MAX - sizeof "...";

  while (end > 0 && ((unsigned char) text[end] & 0xc0) == 0x80)
    end--;
  strcpy (&text[end], "...");
}

/* Control characters, also the two-byte ones U+0080 to U+009F, could
 * break the line or drive a terminal.
 */
void
error_replace_controls (char *text)
{
  unsigned char *p;

  for (p = (unsigned char *) text; *p; ++p) {
    if (*p < 0x20 || *p == 0x7f)
      *p = '?';
    else if (*p == 0xc2 && p[1] >= 0x80 && p[1] <= 0x9f)
      p[0] = p[1] = '?';
  }
}

int
nbdedup_fail (int err, const char *fmt, ...)
{
  char text[MESSAGE_MAX]; /* arguments may point into 'message' */
  va_list args;
  int n;

  va_start (args, fmt);
  n = vsnprintf (text, sizeof text, fmt, args);
  va_end (args);

  if (n < 0)
    snprintf (text, sizeof text, "%s (the message could not be formatted)",
              strerror (err));
  else if ((size_t) n >= sizeof text)
    mark_cut (text);
  error_replace_controls (text);

  strcpy (message, text);
  errno = err;
  return -1;
}

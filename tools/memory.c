/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <stdio.h>
#include <string.h>

#include "tools.h"

void *
check_memory (void *p)
{
  if (p == NULL)
    exit (fail ("out of memory"));
  return p;
}

char *
copy_string (const char *s)
{
  return check_memory (strdup (s));
}

char *
make_string_va (const char *fmt, va_list ap)
{
  char *s;

  return check_memory (vasprintf (&s, fmt, ap) == -1 ? NULL : s);
}

char *
make_string (const char *fmt, ...)
{
  va_list ap;
  char *s;

  va_start (ap, fmt);
  s = make_string_va (fmt, ap);
  va_end (ap);
  return s;
}

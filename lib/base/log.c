/* SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

#include "base/error.h"
#include "base/log.h"

#define LINE_MAX_BYTES 2048

static _Atomic (nbdedup_log_fn *) log_fn;
static __thread bool hushed;

void
nbdedup_set_log (nbdedup_log_fn *fn)
{
  log_fn = fn;
}

void
log_hush (bool hush)
{
  hushed = hush;
}

void
nbdedup_log (enum nbdedup_log_level level, const char *fmt, ...)
{
  nbdedup_log_fn *fn = log_fn;
  char line[LINE_MAX_BYTES];
  int err = errno;
  va_list args;

  if (fn == NULL || hushed)
    return;
  va_start (args, fmt);
  vsnprintf (line, sizeof line, fmt, args);
  va_end (args);
  error_replace_controls (line);
  fn (level, line);
  errno = err;
}

/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <errno.h>
#include <stdio.h>

#include "base/error.h"
#include "core/engine.h"

char *
pool_file (const char *pool_path, const char *name)
{
  char *s;

  if (asprintf (&s, "%s/%s", pool_path, name) == -1)
    return nbdedup_fail_null (ENOMEM, "no memory");
  return s;
}

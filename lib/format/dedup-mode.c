/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <string.h>

#include "base/error.h"
#include "format/dedup-mode.h"

static const char *const dedup_names[] = { "on", "off", "verify" };

int
dedup_parse (const char *name, enum dedup_mode *mode)
{
  unsigned i;

  for (i = 0; i < 3; ++i)
    if (strcmp (name, dedup_names[i]) == 0) {
      *mode = (enum dedup_mode) i;
      return 0;
    }
  return nbdedup_fail (EINVAL, "dedup '%s': must be on, off or verify", name);
}

const char *
dedup_name (enum dedup_mode mode)
{
  return dedup_names[mode];
}

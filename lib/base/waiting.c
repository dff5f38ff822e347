/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <stddef.h>

#include "base/waiting.h"

static __thread struct waiting mine;

void
waiting_set (const struct waiting *waiting)
{
  mine = *waiting;
}

void
waiting_begin (void)
{
  if (mine.begin)
    mine.begin (mine.opaque);
}

void
waiting_end (void)
{
  if (mine.end)
    mine.end (mine.opaque);
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* See op-log.h. */

#include <config.h>

#include <stdio.h>

#include "models/op-log.h"

#define NR_LAST 60

static char texts[NR_LAST][OP_LOG_TEXT];
static unsigned nr;

char *
op_log_next (void)
{
  return texts[nr++ % NR_LAST];
}

void
op_log_note (const char *text)
{
  snprintf (op_log_next (), OP_LOG_TEXT, "%s", text);
}

void
op_log_print (void)
{
  unsigned i;

  for (i = nr < NR_LAST ? 0 : nr - NR_LAST; i < nr; ++i)
    fprintf (stderr, "%5u %s\n", i, texts[i % NR_LAST]);
}

unsigned
op_log_nr (void)
{
  return nr;
}

void
op_log_clear (void)
{
  nr = 0;
}

/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/since.h"
#include "base/turn.h"

/* How long a thread that waits does not look at anything else. */
#define LOOK_MS 50

static _Thread_local char me[TURN_NAME_MAX];
static _Thread_local char awaited[TURN_NAME_MAX + 64];

void
turn_init (struct turn *t)
{
  lock_init (&t->guard);
  t->who[0] = 0;
  t->since = 0;
}

void
turn_destroy (struct turn *t)
{
  lock_destroy (&t->guard);
}

void
turn_set_name (const char *who)
{
  snprintf (me, sizeof me, "%s", who);
}

const char *
turn_awaited (void)
{
  return awaited[0] ? awaited : NULL;
}

static void
describe (struct turn *t)
{
  char since[SINCE_MAX];

  WITH_LOCK (&t->guard);
  snprintf (awaited, sizeof awaited, "%s has been at work%s",
            t->who[0] ? t->who : "the server itself",
            since_text (t->since, since));
}

int
turn_take (struct turn *t, struct lock *l, int (*look) (void *opaque),
           void *opaque)
{
  int r = 0;

  while (r == 0 && !lock_try_ms (l, awaited[0] ? LOOK_MS : 0)) {
    describe (t);
    r = look (opaque);
  }
  awaited[0] = 0;
  if (r == -1)
    return -1;
  assert_held (l);
  WITH_LOCK (&t->guard);
  snprintf (t->who, sizeof t->who, "%s", me);
  t->since = (time_t) clock_wall_s ();
  return 0;
}

void
turn_give (struct turn *t, struct lock *l)
{
  assert_held (l);
  {
    WITH_LOCK (&t->guard);
    t->who[0] = 0;
    t->since = 0;
  }
  lock_release (l);
}

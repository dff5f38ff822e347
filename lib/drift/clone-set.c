/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/mix.h"
#include "drift/clone-set.h"

/* A member's part of the state of one clone set. */
struct member {
  const struct volume *golden;
  uint64_t part;
};

struct members {
  struct member *p; /* owned */
  size_t nr;
};

static void
cleanup_members (struct members *m)
{
  free (m->p);
}

/* Summed over the members, in any order. */
static uint64_t
part_of (const struct volume *v)
{
  return mix (mix (mix (v->id) + v->incarnation) + v->changes);
}

static int
add_member (struct members *m, const struct volume *golden,
            const struct volume *v)
{
  return array_push (&m->p, &m->nr, (struct member) { golden, part_of (v) });
}

/* The volume counts in the clone set of each snapshot on its line of origins,
 * also of destroyed ones, but not of its own.
 */
static int
add_to_sets (struct members *m, const struct volume *v)
{
  const struct volume *s;

  for (s = v->origin; s; s = s->origin)
    if (s->of != v && add_member (m, s, v) == -1)
      return -1;
  return 0;
}

static int
compare_members (const void *a, const void *b)
{
  const struct member *x = a, *y = b;

  return x->golden->id < y->golden->id ? -1 : x->golden->id > y->golden->id;
}

/* Sum up the members, which are sorted by golden image. */
static size_t
sum_up (const struct members *m, struct clone_set *sets)
{
  const struct volume *last = NULL;
  struct clone_set *f = sets;
  size_t i;

  for (i = 0; i < m->nr; ++i) {
    if (m->p[i].golden != last) {
      last = m->p[i].golden;
      f = last == m->p[0].golden ? sets : f + 1;
      f->golden = last->id;
      f->state = 0;
      f->is_destroyed = last->label != NULL;
      volume_label (last, f->label);
    }
    f->state += m->p[i].part;
  }
  return m->nr ? (size_t) (f - sets) + 1 : 0;
}

static size_t
count_sets (const struct members *m)
{
  size_t i, nr = 0;

  for (i = 0; i < m->nr; ++i)
    nr += i == 0 || m->p[i].golden != m->p[i - 1].golden;
  return nr;
}

int
clone_sets_get (struct volumes *vs, struct clone_set **sets, size_t *nr)
{
  struct members m __attribute__ ((cleanup (cleanup_members))) = { NULL };
  size_t i;

  *sets = NULL;
  *nr = 0;
  WITH_LOCK (&vs->lock);
  for (i = 0; i < vs->list.nr; ++i)
    if (add_to_sets (&m, vs->list.p[i]) == -1)
      return -1;
  if (m.nr == 0)
    return 0;
  assert (m.p != NULL);
  qsort (m.p, m.nr, sizeof *m.p, compare_members);
  *sets = calloc (count_sets (&m), sizeof **sets);
  if (*sets == NULL)
    return nbdedup_fail (ENOMEM, "no memory for a list of clones");
  *nr = sum_up (&m, *sets);
  return 0;
}

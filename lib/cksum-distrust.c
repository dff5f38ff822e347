/* SPDX-License-Identifier: BSD-3-Clause */

/* What something else wrote to, while we use it: see cksum-mirror.h and
 * cksum-own.h.
 */

#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include "cksum-mirror-int.h"

/* Without a copy that is as good, nothing could tell which pages are old. */
void
mirror_distrust (void *mirror)
{
  struct cksum_mirror *m = mirror;

  assert_held (&m->first.lock);
  m->nr_foreign++;
  if (cksum_mirror_state (m) != CKSUM_MIRROR_SYNCED)
    return;
  if (!atomic_exchange (&m->distrusted, true))
    m->ops.distrusted (m->ops.opaque);
  m->ops.wake (m->ops.opaque);
}

bool
cksum_mirror_is_distrusted (struct cksum_mirror *m)
{
  return atomic_load (&m->distrusted);
}

uint64_t
cksum_mirror_foreign_changes (struct cksum_mirror *m)
{
  cksum_own_look (&m->first);
  return atomic_load (&m->nr_foreign);
}

void
cksum_mirror_change_begin (struct cksum_mirror *m)
{
  cksum_own_begin (&m->first);
}

void
cksum_mirror_change_end (struct cksum_mirror *m)
{
  cksum_own_end (&m->first);
}

/* It was read before: so a change that is not seen here came later. */
static bool
is_doubtful (struct cksum_mirror *m)
{
  if (cksum_mirror_state (m) == CKSUM_MIRROR_SYNCED)
    cksum_own_look (&m->first);
  return cksum_mirror_is_distrusted (m);
}

bool
cksum_first_is_right (struct cksum_shared *s, const uint8_t *page,
                      uint32_t page_size, uint64_t offset)
{
  struct cksum_mirror *m = cksum_get_mirror (s);

  if (m != NULL && !cksum_knows_page (s, offset / page_size) &&
      is_doubtful (m))
    return false;
  return cksum_page_is_right (s, page, page_size, offset);
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* Files that another program wrote to while this process uses them: see
 * cksum-mirror.h and cksum-own.h.
 */

#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include <string.h>

#include "base/bytes.h"
#include "base/fullio.h"
#include "vfs/cksum-mirror-int.h"

static enum mirror_touch
touch_of (struct cksum_mirror *m, unsigned side)
{
  return atomic_load (&m->touch[side]);
}

static bool
has_copy (struct cksum_mirror *m)
{
  return cksum_mirror_state (m) == CKSUM_MIRROR_SYNCED;
}

bool
cksum_mirror_is_distrusted (struct cksum_mirror *m)
{
  enum mirror_touch first = touch_of (m, 0);

  return first == FOREIGN ||
    (first != UNTOUCHED && has_copy (m) && touch_of (m, 1) == UNTOUCHED);
}

bool
cksum_mirror_is_touched (struct cksum_mirror *m)
{
  return touch_of (m, 0) != UNTOUCHED ||
    (has_copy (m) && touch_of (m, 1) != UNTOUCHED);
}

static void
note (struct cksum_mirror *m, unsigned side)
{
  m->nr_foreign++;
  if (touch_of (m, side) != FOREIGN)
    atomic_store (&m->touch[side], NOTICED);
  m->ops.wake (m->ops.opaque);
}

void
mirror_note_first_locked (void *mirror)
{
  struct cksum_mirror *m = mirror;

  assert_held (&m->first.lock);
  note (m, 0);
}

void
mirror_note_copy_locked (void *mirror)
{
  struct cksum_mirror *m = mirror;

  assert_held (&m->files[CKSUM_DB].own.lock);
  note (m, 1);
}

/*----------------------------------------------------------------------
 * Judging
 */

struct judged {
  struct cksum_mirror *m;
  struct cksum_file *f; /* NULL: the copy */
};

static int
read_judged_locked (void *opaque, uint64_t page, uint64_t *sum)
{
  const struct judged *j = opaque;
  struct mirror_file *file = &j->m->files[CKSUM_DB];
  uint8_t *buf = file->page + 2 * (FRAME_HEADER_BYTES + PAGE_SIZE_MAX);
  uint32_t page_size = cksum_get_page_size (j->m->shared);
  uint64_t offset = page * page_size;

  assert_held (&file->lock);
  if (j->f != NULL
        ? real_read (j->f, buf, (int) page_size, (sqlite3_int64) offset) !=
          SQLITE_OK
        : full_pread (file->fd, buf, page_size, offset) != (int64_t) page_size)
    return -1;
  if (!cksum_page_is_good (buf, page_size, offset))
    return 0;
  *sum = get_le64 (buf + page_size - CKSUM_RESERVE);
  return 1;
}

static void
judge_locked (struct judged j, struct cksum_own *own, unsigned side)
{
  assert_held (&j.m->files[CKSUM_DB].lock);
  cksum_own_look (own);
  WITH_LOCK (&own->lock);
  if (touch_of (j.m, side) == NOTICED)
    atomic_store (&j.m->touch[side],
                  cksum_own_is_of_another_moment_locked (own,
                                                         read_judged_locked, &j)
                    ? FOREIGN
                    : TOUCHED);
}

/* "distrusted" makes that durable before our next change. */
void
mirror_tell_trust_locked (struct cksum_mirror *m)
{
  bool distrusted = cksum_mirror_is_distrusted (m);

  assert_held (&m->files[CKSUM_DB].lock);
  if (atomic_exchange (&m->distrusted, distrusted) != distrusted)
    m->ops.distrusted (m->ops.opaque);
}

void
mirror_judge_copy_locked (struct cksum_mirror *m)
{
  struct mirror_file *file = &m->files[CKSUM_DB];

  assert_held (&file->lock);
  if (file->fd != -1)
    judge_locked ((struct judged) { m, NULL }, &file->own, 1);
  mirror_tell_trust_locked (m);
}

void
mirror_judge_locked (struct cksum_mirror *m, struct cksum_file *f)
{
  assert_held (&m->files[CKSUM_DB].lock);
  judge_locked ((struct judged) { m, f }, &m->first, 0);
  mirror_judge_copy_locked (m);
  if (has_copy (m) && touch_of (m, 1) == FOREIGN)
    mirror_lose_locked (m, "reading: another program wrote to it");
}

/*----------------------------------------------------------------------
 * Which page is right
 */

static bool
is_good (const struct mirror_page *p, unsigned side, uint32_t page_size,
         uint64_t offset)
{
  return p->got[side] == (int64_t) page_size &&
    cksum_page_is_good (p->bytes[side], page_size, offset);
}

static int
choose_unknown (struct cksum_mirror *m, const struct mirror_page *p,
                uint32_t page_size, uint64_t offset)
{
  bool may[2] = {
    touch_of (m, 0) != FOREIGN && is_good (p, 0, page_size, offset),
    has_copy (m) && touch_of (m, 1) != FOREIGN &&
      is_good (p, 1, page_size, offset),
  };

  if (may[0] != may[1])
    return may[0] ? 0 : 1;
  if (!may[0])
    return -1;
  if (touch_of (m, 0) == UNTOUCHED ||
      memcmp (p->bytes[0], p->bytes[1], page_size) == 0)
    return 0;
  return touch_of (m, 1) == UNTOUCHED ? 1 : -1;
}

int
mirror_choose_locked (struct cksum_mirror *m, const struct mirror_page *p,
                      uint32_t page_size, uint64_t offset)
{
  const uint64_t number = offset / page_size;
  int side;

  assert_held (&m->files[CKSUM_DB].lock);
  if (cksum_knows_page (m->shared, number)) {
    for (side = 0; side < 2; ++side)
      if (p->got[side] == (int64_t) page_size &&
          cksum_page_is_right (m->shared, p->bytes[side], page_size, offset))
        return side;
    return -1;
  }
  side = choose_unknown (m, p, page_size, offset);
  if (side != -1)
    cksum_expect_page (m->shared, number,
                       get_le64 (p->bytes[side] + page_size - CKSUM_RESERVE));
  return side;
}

/* The caller has read the page already, so a change that is not visible here
 * came after that.
 */
static bool
is_doubtful (struct cksum_mirror *m)
{
  cksum_own_look (&m->first);
  return touch_of (m, 0) != UNTOUCHED;
}

bool
cksum_first_is_right (struct cksum_shared *s, const uint8_t *page,
                      uint32_t page_size, uint64_t offset)
{
  struct cksum_mirror *m = cksum_get_mirror (s);

  if (m != NULL && !cksum_knows_page (s, offset / page_size) && is_doubtful (m))
    return false;
  return cksum_page_is_right (s, page, page_size, offset);
}

/*----------------------------------------------------------------------
 * Our own changes, and those of other programs
 */

void
cksum_mirror_watch (struct cksum_mirror *m)
{
  cksum_own_watch (&m->first, m->path);
}

uint64_t
cksum_mirror_foreign_changes (struct cksum_mirror *m)
{
  struct mirror_file *file = &m->files[CKSUM_DB];

  WITH_LOCK (&file->lock);
  cksum_own_look (&m->first);
  cksum_own_look (&file->own);
  return atomic_load (&m->nr_foreign) - m->nr_foreign_before;
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

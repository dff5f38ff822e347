/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>

#include "base/lock.h"
#include "core/ddt-int.h"

/* The most groups that one lookup reads ahead. */
#define AHEAD_MAX 8u

static struct recent *
recent_of_locked (struct ddt *ddt, uint64_t group)
{
  assert_held (&ddt->lock);
  return &ddt->recent[group % NR_RECENT];
}

/* Was the group noted, and may its records still be in the cache?  A note that
 * is older than all of the cache says nothing.
 */
static bool
is_recent_locked (struct ddt *ddt, uint64_t group)
{
  const struct recent *r = recent_of_locked (ddt, group);

  return r->next == group + 1 && ddt->nr_cached - r->cached <= ddt->nr_clean;
}

static void
note_locked (struct ddt *ddt, uint64_t group, unsigned ahead)
{
  *recent_of_locked (ddt, group) = (struct recent) {
    .next = group + 1,
    .ahead = ahead,
    .cached = ddt->nr_cached,
  };
}

bool
note_hit_locked (struct ddt *ddt, uint64_t group, unsigned *ahead)
{
  unsigned before;

  assert_held (&ddt->lock);
  *ahead = 0;
  if (is_recent_locked (ddt, group))
    return true;
  note_locked (ddt, group, 0);
  if (group == 0 || !is_recent_locked (ddt, group - 1))
    return false;
  before = recent_of_locked (ddt, group - 1)->ahead;
  if (ddt->budget_bytes > 0)
    *ahead = before == 0 ? 1 : 2 * before < AHEAD_MAX ? 2 * before : AHEAD_MAX;
  return true;
}

/* The note comes before the read, so that no other thread reads the same. */
static bool
begin_group (struct ddt *ddt, uint64_t group, unsigned ahead)
{
  WITH_LOCK (&ddt->lock);
  WITH_CONSISTENT (ddt, ddt);
  if (is_recent_locked (ddt, group))
    return false;
  note_locked (ddt, group, ahead);
  return true;
}

static void
cache_row (struct ddt *ddt, uint64_t group, const struct blob *row)
{
  struct record r;
  size_t off = 0;

  WITH_LOCK (&ddt->lock);
  WITH_CONSISTENT (ddt, ddt);
  while (record_next (group, row->p, row->len, &off, &r) == 1)
    cache_record_locked (ddt, &r);
}

void
read_ahead (struct ddt *ddt, uint64_t group, unsigned nr)
{
  struct blob row CLEANUP_BLOB = { NULL };
  struct meta_conn *c;
  unsigned i;
  int r;

  for (i = 1; i <= nr && begin_group (ddt, group + i, i); ++i) {
    c = meta_reader_try (ddt->meta);
    if (c == NULL)
      return;
    r = meta_record_get (c, group + i, &row);
    meta_reader_put (ddt->meta, c);
    if (r != 1)
      return;
    cache_row (ddt, group + i, &row);
  }
}

/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/priority.h"
#include "core/ddt-filter.h"
#include "core/filter.h"
#include "meta/meta-index.h"

/* So many lookups go to pool.db first: a pool that is only read, or served for
 * a moment, reads no index.
 */
#define LOOKUPS_BEFORE 4096u
/* For fewer entries a filter is not made smaller. */
#define ENTRIES_MIN (UINT64_C (1) << 12)
/* Entries read before the connection is given back, so that it keeps no old
 * state of pool.db alive.
 */
#define ENTRIES_AT_ONCE 16384u

struct ddt_filter {
  struct meta *meta;            /* not owned */
  struct lock *lock;            /* the ddt's */
  uint64_t max_bytes;
  struct ddt_filter_ops ops;

  /* Written under the lock.  The thread reads the atomic ones without it, and
   * adds numbers to 'made' without it: it has a low priority, and must not keep
   * workers waiting.
   */
  struct filter *used;          /* complete; NULL: none */
  struct filter *made;          /* being made; NULL: none */
  /* Numbers added, some of them twice. */
  uint64_t nr_used;
  atomic_uint_fast64_t nr_made;
  uint64_t nr_most;             /* in 'used', before the next one is made */
  uint64_t lookups;             /* that no filter answered */
  atomic_uint resets;
  bool wanted;                  /* the thread shall make one */
  bool failed;                  /* it could not: until the next reset */
  bool has_thread;
  atomic_bool stop;
  pthread_t thread;
  pthread_cond_t wake;          /* wanted, or stop */
};

static uint64_t
bytes_for (uint64_t entries)
{
  return entries * FILTER_BITS / 8;
}

/*----------------------------------------------------------------------
 * The thread
 */

/* Add the entries from '*prefix' on. */
static int
add_entries (struct ddt_filter *f, struct filter *made, struct meta_conn *c,
             uint64_t *prefix)
{
  struct index_cursor *cu;
  struct index_runs runs;
  struct index_entry e;
  unsigned i = 0;
  int r = 1, sum;

  if (meta_index_runs (c, &runs) == -1)
    return -1;
  cu = meta_index_cursor (c, &runs, *prefix);
  if (cu == NULL)
    return -1;
  while (i++ < ENTRIES_AT_ONCE &&
         (r = meta_index_cursor_next (cu, &e, &sum)) == 1)
    if (sum > 0) {
      filter_add (made, e.prefix);
      f->nr_made++;
    }
  if (r == 1 && meta_index_cursor_at (cu, prefix) == 0)
    r = 0;
  meta_index_cursor_free (cu);
  return r == -1 ? -1 : !r;
}

/* 1: all of the index is in the filter; 0: not yet; -1: it cannot be read, or
 * the filter is not wanted any more.
 */
static int
add_some_entries (struct ddt_filter *f, struct filter *made, unsigned resets,
                  uint64_t *prefix)
{
  struct meta_conn *c = meta_reader_get (f->meta);
  int r = -1;

  if (!f->stop && f->resets == resets && meta_freeze (c) == 0) {
    r = add_entries (f, made, c, prefix);
    meta_unfreeze (c);
  }
  meta_reader_put (f->meta, c);
  return r;
}

/* The index grows: room for twice its entries, as far as the limit allows. */
static struct filter *
new_filter (struct ddt_filter *f)
{
  struct meta_conn *c = meta_reader_get (f->meta);
  struct meta_state state;
  int r = meta_state_get (c, &state);
  uint64_t entries, bytes;

  meta_reader_put (f->meta, c);
  if (r == -1)
    return NULL;
  entries = state.index_entries;
  {
    WITH_LOCK (f->lock);
    entries += f->ops.nr_new_locked (f->ops.opaque);
  }
  bytes = bytes_for (2 * (entries < ENTRIES_MIN ? ENTRIES_MIN : entries));
  return filter_new (bytes < f->max_bytes ? bytes : f->max_bytes);
}

static void
end_locked (struct ddt_filter *f, bool complete)
{
  assert_held (f->lock);
  if (complete) {
    filter_free (f->used);
    f->used = f->made;
    f->nr_used = f->nr_made;
    f->nr_most = filter_bytes (f->used) * 8 / FILTER_BITS;
    if (f->nr_most < 2 * f->nr_used)    /* it is as large as it may be */
      f->nr_most = 2 * f->nr_used;
  }
  else {
    filter_free (f->made);
    f->failed = true;
  }
  f->made = NULL;
}

static void
make_one (struct ddt_filter *f)
{
  struct filter *made = new_filter (f);
  uint64_t prefix = 0;
  unsigned resets;
  int r;

  {
    WITH_LOCK (f->lock);
    resets = f->resets;
    if (made == NULL) {
      f->failed = true;
      return;
    }
    f->made = made;
    f->nr_made = 0;
    f->ops.add_new_locked (f->ops.opaque);
  }
  do
    r = add_some_entries (f, made, resets, &prefix);
  while (r == 0);
  WITH_LOCK (f->lock);
  end_locked (f, r == 1 && f->resets == resets);
  if (f->resets != resets)
    f->failed = false;          /* a later lookup may ask for one */
}

static void *
filter_thread (void *arg)
{
  struct ddt_filter *f = arg;

  thread_lower_priority ();
  for (;;) {
    {
      WITH_LOCK (f->lock);
      while (!f->stop && !f->wanted)
        lock_wait (f->lock, &f->wake);
      if (f->stop)
        return NULL;
      f->wanted = false;
    }
    make_one (f);
  }
}

/* Without a thread there is no filter. */
static void
want_one_locked (struct ddt_filter *f)
{
  assert_held (f->lock);
  if (!f->has_thread) {
    if (pthread_create (&f->thread, NULL, filter_thread, f) != 0) {
      f->failed = true;
      return;
    }
    f->has_thread = true;
  }
  f->wanted = true;
  pthread_cond_signal (&f->wake);
}

/*----------------------------------------------------------------------*/

struct ddt_filter *
ddt_filter_new (struct meta *meta, struct lock *lock, uint64_t max_bytes,
                const struct ddt_filter_ops *ops)
{
  struct ddt_filter *f = calloc (1, sizeof *f);

  if (f == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory for the dedup table");
  f->meta = meta;
  f->lock = lock;
  f->max_bytes = max_bytes;
  f->ops = *ops;
  f->failed = max_bytes == 0;
  cond_init (&f->wake);
  return f;
}

void
ddt_filter_free (struct ddt_filter *f)
{
  if (f == NULL)
    return;
  {
    WITH_LOCK (f->lock);
    f->stop = true;
    pthread_cond_signal (&f->wake);
  }
  if (f->has_thread)
    pthread_join (f->thread, NULL);
  filter_free (f->used);
  filter_free (f->made);
  pthread_cond_destroy (&f->wake);
  free (f);
}

void
ddt_filter_add_locked (struct ddt_filter *f, uint64_t prefix)
{
  assert_held (f->lock);
  if (f->made) {
    filter_add (f->made, prefix);
    f->nr_made++;
  }
  if (f->used) {
    filter_add (f->used, prefix);
    f->nr_used++;
    if (!f->made && !f->wanted && !f->failed && f->nr_used > f->nr_most)
      want_one_locked (f);
  }
}

bool
ddt_filter_may_have_locked (struct ddt_filter *f, uint64_t prefix)
{
  assert_held (f->lock);
  if (f->used)
    return filter_may_have (f->used, prefix);
  if (!f->made && !f->wanted && !f->failed &&
      ++f->lookups >= LOOKUPS_BEFORE)
    want_one_locked (f);
  return true;
}

void
ddt_filter_reset_locked (struct ddt_filter *f)
{
  assert_held (f->lock);
  filter_free (f->used);
  f->used = NULL;
  f->nr_used = 0;
  f->resets++;
  f->failed = f->max_bytes == 0;
}

size_t
ddt_filter_bytes_locked (const struct ddt_filter *f)
{
  assert_held (f->lock);
  return f->used ? filter_bytes (f->used) : 0;
}

size_t
ddt_filter_memory_locked (const struct ddt_filter *f)
{
  return ddt_filter_bytes_locked (f) + (f->made ? filter_bytes (f->made) : 0);
}

/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/background.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/priority.h"
#include "core/ddt-filter.h"
#include "core/filter.h"
#include "meta/meta-index.h"

/* So many lookups go to pool.db first: a pool that is only read, or served for
 * a moment, reads no index.
 */
#define LOOKUPS_BEFORE 4096u
/* So many before a saved filter is read. */
#define LOOKUPS_BEFORE_SAVED 16u
/* For fewer entries a part is not made smaller. */
#define ENTRIES_MIN UINT64_C (64)
/* Entries read before the connection is given back, so that it keeps no old
 * state of pool.db alive.
 */
#define ENTRIES_AT_ONCE 65536u
/* Parts made before memory goes back to the system. */
#define PARTS_PER_TRIM 8u

struct part {
  struct filter *used;  /* complete; NULL: none */
  uint64_t nr;          /* numbers added to it, some of them twice */
  uint64_t nr_most;     /* before the next one is made */
  bool wanted;          /* the thread must make one */
  struct filter *saved; /* not read yet, or being read; NULL: none */
  uint64_t nr_saved;    /* numbers added to it */
};

struct ddt_filter {
  struct meta *meta;  /* not owned */
  struct lock *lock;  /* the ddt's */
  uint64_t max_bytes; /* of a part */
  struct ddt_filter_ops ops;

  /* Written under the lock.  The thread reads the atomic ones without it, and
   * adds numbers to 'made' without it: its priority may be low, and no worker
   * must wait for it.
   */
  struct part parts[DDT_FILTER_PARTS];
  unsigned nr_used;             /* parts that are complete */
  size_t bytes;                 /* theirs, and of those being read */
  struct warm_file *file;       /* owned: of the saved parts; NULL: none */
  bool must_read;               /* the thread must read them */
  uint64_t nr_added;            /* numbers since the filter was made */
  struct filter *made;          /* being made; NULL: none */
  unsigned made_part;           /* of 'made' */
  atomic_uint_fast64_t nr_made; /* numbers added to it */
  unsigned nr_wanted;
  uint64_t lookups; /* that no filter answered */
  atomic_uint resets;
  bool failed;              /* it could not: until the next reset */
  struct background thread; /* wakes up when nr_wanted > 0 or must_read */
};

static unsigned
part_of (uint64_t prefix)
{
  return (unsigned) (prefix >> (64 - DDT_FILTER_BITS));
}

/* The filters take the place of a number from its highest bits, which are the
 * same in all of a part.
 */
static uint64_t
number_of (uint64_t prefix)
{
  return prefix << DDT_FILTER_BITS;
}

static uint64_t
bytes_for (uint64_t entries)
{
  return entries * FILTER_BITS / 8;
}

/*----------------------------------------------------------------------
 * The thread
 */

static int
add_entry (void *opaque, const struct index_entry *e)
{
  struct ddt_filter *f = opaque;

  if (!e->removed) {
    filter_add (f->made, number_of (e->prefix));
    f->nr_made++;
  }
  return 0;
}

/* Add the entries whose prefix is in first .. last.  -1: the index cannot be
 * read, or the filter is not wanted any more.
 *
 * All of them from one state of pool.db: a merge moves entries from run to run,
 * but not to another prefix.
 */
static int
add_range (struct ddt_filter *f, unsigned resets, uint64_t first, uint64_t last)
{
  struct meta_conn *c = meta_reader_get (f->meta);
  struct index_runs runs;
  int r = -1;

  if (!f->thread.stop && f->resets == resets && meta_freeze (c) == 0) {
    r = meta_index_runs (c, &runs);
    if (r == 0)
      r = meta_index_range (c, &runs, first, last, add_entry, f);
    meta_unfreeze (c);
  }
  meta_reader_put (f->meta, c);
  return r;
}

/* Add all entries of a part that is being made: so many at once that the
 * connection soon sees a newer state, and keeps no old one alive.
 */
static int
add_part (struct ddt_filter *f, unsigned resets, uint64_t entries)
{
  const uint64_t part = (uint64_t) f->made_part << (64 - DDT_FILTER_BITS);
  uint64_t first, last = (UINT64_C (1) << (64 - DDT_FILTER_BITS)) - 1;
  const uint64_t step = last / (entries / ENTRIES_AT_ONCE + 1) + 1;
  int r = 0;

  for (first = 0; first <= last && r == 0; first += step)
    r = add_range (f, resets, part + first,
                   part + (last - first < step ? last : first + step - 1));
  return r;
}

/* The index grows: room for twice its entries, as far as the limit allows.
 * '*entries': those of a part.
 */
static struct filter *
new_filter (struct ddt_filter *f, uint64_t *entries)
{
  struct meta_conn *c = meta_reader_get (f->meta);
  struct meta_state state;
  int r = meta_state_get (c, &state);
  uint64_t bytes;

  meta_reader_put (f->meta, c);
  if (r == -1)
    return NULL;
  *entries = state.index_entries;
  {
    WITH_LOCK (f->lock);
    *entries += f->ops.nr_new_locked (f->ops.opaque);
  }
  *entries /= DDT_FILTER_PARTS;
  bytes = bytes_for (2 * (*entries < ENTRIES_MIN ? ENTRIES_MIN : *entries));
  return filter_new (bytes < f->max_bytes ? bytes : f->max_bytes);
}

static void
drop_part_locked (struct ddt_filter *f, struct part *part)
{
  assert_held (f->lock);
  if (part->used == NULL)
    return;
  assert (f->nr_used > 0 && f->bytes >= filter_bytes (part->used));
  f->bytes -= filter_bytes (part->used);
  f->nr_used--;
  filter_free (part->used);
  part->used = NULL;
}

static void
use_locked (struct ddt_filter *f, struct part *part, struct filter *filter,
            uint64_t nr)
{
  const uint64_t most = filter_bytes (filter) * 8 / FILTER_BITS;

  assert_held (f->lock);
  drop_part_locked (f, part);
  part->used = filter;
  part->nr = nr;
  part->nr_most = most;
  if (filter_bytes (filter) >= filter_bytes_for (f->max_bytes))
    part->nr_most = most < 2 * nr ? 2 * nr : most;
  else if (nr > most) /* removals, which merges take out, made it too small */
    part->nr_most = nr + most;
  f->bytes += filter_bytes (filter);
  f->nr_used++;
  assert (f->nr_used <= DDT_FILTER_PARTS);
}

static void
fail_locked (struct ddt_filter *f)
{
  unsigned i;

  assert_held (f->lock);
  f->failed = true;
  for (i = 0; i < DDT_FILTER_PARTS; ++i)
    f->parts[i].wanted = false;
  f->nr_wanted = 0;
}

static void
make_part (struct ddt_filter *f, unsigned part)
{
  uint64_t entries;
  struct filter *made = new_filter (f, &entries);
  unsigned resets;
  int r;

  {
    WITH_LOCK (f->lock);
    resets = f->resets;
    if (made == NULL) {
      fail_locked (f);
      return;
    }
    f->made = made;
    f->made_part = part;
    f->nr_made = 0;
    f->ops.add_new_locked (f->ops.opaque, part);
  }
  r = add_part (f, resets, entries);
  WITH_LOCK (f->lock);
  if (r == 0 && f->resets == resets) {
    use_locked (f, &f->parts[part], f->made, f->nr_made);
    f->made = NULL;
    return;
  }
  filter_free (f->made);
  f->made = NULL;
  if (f->resets == resets) /* else a later lookup may ask for one */
    fail_locked (f);
}

/* Take a part's saved filter away. */
static struct filter *
take_saved_locked (struct ddt_filter *f, struct part *part)
{
  struct filter *saved = TAKE_PTR (part->saved);

  assert_held (f->lock);
  assert (f->bytes >= filter_bytes (saved));
  f->bytes -= filter_bytes (saved);
  return saved;
}

static bool
merge_piece (void *opaque, uint64_t offset, const uint8_t *buf, size_t len)
{
  filter_merge (opaque, offset, buf, len);
  return true;
}

/* Other threads may add numbers to the part at the same time.  Only this one
 * frees a part that is being read.
 */
static void
read_part (struct ddt_filter *f, struct part *part,
           const struct warm_section *s)
{
  struct filter *saved;
  int r = -1;

  if (f->resets == 0)
    r = warm_file_read (f->file, s, merge_piece, part->saved);
  WITH_LOCK (f->lock);
  saved = take_saved_locked (f, part);
  if (r == 0 && f->resets == 0)
    use_locked (f, part, saved, s->nr + part->nr_saved);
  else /* a later lookup may ask for one */
    filter_free (saved);
}

static void
read_saved (struct ddt_filter *f, bool at_end)
{
  unsigned i;

  {
    WITH_LOCK (f->lock);
    f->must_read = false;
  }
  for (i = 0; i < DDT_FILTER_PARTS && (at_end || !f->thread.stop); ++i)
    if (f->parts[i].saved)
      read_part (f, &f->parts[i], warm_file_find (f->file, WARM_FILTER, i));
}

/* Wait until a part is wanted.  False: stop. */
static bool
get_wanted (struct ddt_filter *f, unsigned *part)
{
  WITH_LOCK (f->lock);
  while (!f->thread.stop && !f->must_read && f->nr_wanted == 0)
    lock_wait (f->lock, &f->thread.wake);
  if (f->thread.stop)
    return false;
  if (f->must_read) {
    *part = DDT_FILTER_PARTS;
    return true;
  }
  for (*part = 0; !f->parts[*part].wanted; ++*part)
    assert (*part < DDT_FILTER_PARTS - 1);
  f->parts[*part].wanted = false;
  f->nr_wanted--;
  return true;
}

/* As the filter grows, the DDT drops entries.  malloc keeps their pages, most
 * of which are free as a whole: without this, the pool has both.
 */
static void
give_memory_back (void)
{
#ifdef __GLIBC__
  malloc_trim (0);
#endif
}

static bool
is_complete (struct ddt_filter *f)
{
  WITH_LOCK (f->lock);
  return f->nr_used == DDT_FILTER_PARTS;
}

/* While parts are missing, new blocks search all runs of the index, with all
 * processors: until then the thread needs its share of them, too.
 */
static void *
filter_thread (void *arg)
{
  struct ddt_filter *f = arg;
  unsigned part = 0, made = 0;

  while (get_wanted (f, &part)) {
    if (is_complete (f))
      thread_lower_priority ();
    if (part == DDT_FILTER_PARTS)
      read_saved (f, false);
    else
      make_part (f, part);
    if (++made % PARTS_PER_TRIM == 0)
      give_memory_back ();
  }
  return NULL;
}

/* Without a thread there is no filter. */
static bool
start_thread_locked (struct ddt_filter *f)
{
  assert_held (f->lock);
  if (!f->thread.runs)
    f->failed = background_start (&f->thread, filter_thread, f) == -1;
  cond_signal (&f->thread.wake);
  return f->thread.runs;
}

static void
want_locked (struct ddt_filter *f, unsigned part)
{
  assert_held (f->lock);
  if (f->failed || f->parts[part].wanted || f->parts[part].saved ||
      (f->made && f->made_part == part) || !start_thread_locked (f))
    return;
  f->parts[part].wanted = true;
  f->nr_wanted++;
}

/* Lookups went to pool.db so often that all parts are wanted. */
static void
want_all_locked (struct ddt_filter *f)
{
  unsigned i;

  assert_held (f->lock);
  for (i = 0; i < DDT_FILTER_PARTS; ++i)
    if (f->parts[i].used == NULL)
      want_locked (f, i);
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
  /* One more: the part that is being made. */
  f->max_bytes = max_bytes / (DDT_FILTER_PARTS + 1);
  f->ops = *ops;
  f->failed = f->max_bytes == 0;
  background_init (&f->thread, lock);
  return f;
}

/* One that has fewer bits for each number than it could get now is not worth
 * reading.
 */
static bool
is_good_size (const struct ddt_filter *f, const struct warm_section *s)
{
  const uint64_t most = filter_bytes_for (f->max_bytes);

  return s && s->len > 0 && s->len <= most &&
    filter_bytes_for (s->len) == s->len &&
    (s->len == most || s->nr <= s->len * 8 / FILTER_BITS);
}

void
ddt_filter_offer_locked (struct ddt_filter *f, struct warm_file *file)
{
  const struct warm_section *s;
  struct filter *saved;
  unsigned i;

  assert_held (f->lock);
  assert (f->file == NULL && f->nr_added == 0);
  f->file = file;
  for (i = 0; i < DDT_FILTER_PARTS; ++i) {
    s = warm_file_find (file, WARM_FILTER, i);
    if (!is_good_size (f, s))
      continue;
    saved = filter_new (s->len);
    if (saved)
      f->bytes += filter_bytes (saved);
    f->parts[i].saved = saved;
  }
}

void
ddt_filter_stop (struct ddt_filter *f)
{
  background_stop (&f->thread);
}

static void
save_part (const struct filter *filter, struct warm_writer *w)
{
  const size_t bytes = filter_bytes (filter);
  uint8_t buf[4096];
  size_t at, n;

  for (at = 0; at < bytes; at += n) {
    n = bytes - at < sizeof buf ? bytes - at : sizeof buf;
    filter_get (filter, at, buf, n);
    warm_writer_put (w, buf, n);
  }
}

void
ddt_filter_save (struct ddt_filter *f, struct warm_writer *w)
{
  struct warm_section s = { .type = WARM_FILTER };

  assert (!f->thread.runs);
  read_saved (f, true);
  for (; s.part < DDT_FILTER_PARTS; ++s.part) {
    if (f->parts[s.part].used == NULL)
      continue;
    s.len = filter_bytes (f->parts[s.part].used);
    s.nr = f->parts[s.part].nr;
    warm_writer_begin (w, &s);
    save_part (f->parts[s.part].used, w);
    warm_writer_end (w);
  }
}

bool
ddt_filter_is_unchanged_locked (const struct ddt_filter *f)
{
  assert_held (f->lock);
  return f->nr_added == 0 && f->resets == 0;
}

void
ddt_filter_free (struct ddt_filter *f)
{
  unsigned i;

  if (f == NULL)
    return;
  background_destroy (&f->thread);
  for (i = 0; i < DDT_FILTER_PARTS; ++i) {
    filter_free (f->parts[i].used);
    filter_free (f->parts[i].saved);
  }
  filter_free (f->made);
  warm_file_close (f->file);
  free (f);
}

void
ddt_filter_add_locked (struct ddt_filter *f, uint64_t prefix)
{
  const unsigned nr = part_of (prefix);
  struct part *part = &f->parts[nr];

  assert_held (f->lock);
  f->nr_added++;
  if (part->saved) {
    filter_add (part->saved, number_of (prefix));
    part->nr_saved++;
  }
  if (f->made && f->made_part == nr) {
    filter_add (f->made, number_of (prefix));
    f->nr_made++;
  }
  if (part->used) {
    filter_add (part->used, number_of (prefix));
    if (++part->nr > part->nr_most)
      want_locked (f, nr);
  }
}

bool
ddt_filter_may_have_locked (struct ddt_filter *f, uint64_t prefix)
{
  const struct part *part = &f->parts[part_of (prefix)];

  assert_held (f->lock);
  if (part->used)
    return filter_may_have (part->used, number_of (prefix));
  if (f->failed)
    return true;
  f->lookups++;
  if (f->file && f->lookups == LOOKUPS_BEFORE_SAVED)
    f->must_read = start_thread_locked (f);
  if (f->lookups % LOOKUPS_BEFORE == 0)
    want_all_locked (f);
  return true;
}

void
ddt_filter_reset_locked (struct ddt_filter *f)
{
  unsigned i;

  assert_held (f->lock);
  for (i = 0; i < DDT_FILTER_PARTS; ++i)
    drop_part_locked (f, &f->parts[i]);
  f->resets++;
  f->failed = f->max_bytes == 0;
  if (f->file) /* to free the saved ones */
    f->must_read = start_thread_locked (f);
}

size_t
ddt_filter_bytes_locked (const struct ddt_filter *f)
{
  assert_held (f->lock);
  return f->nr_used == DDT_FILTER_PARTS ? f->bytes : 0;
}

size_t
ddt_filter_memory_locked (const struct ddt_filter *f)
{
  assert_held (f->lock);
  return f->bytes + (f->made ? filter_bytes (f->made) : 0);
}

/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/background.h"
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/priority.h"
#include "core/ddt.h"
#include "core/engine.h"
#include "core/map.h"
#include "core/record-cache.h"
#include "core/txg.h"
#include "data/read.h"
#include "data/volume-types.h"
#include "disk/warm-file.h"
#include "meta/meta.h"
#include "report/warmer.h"
#include "volume/volume.h"

/* The most that a list names.  A list is made under the lock of its cache,
 * which clients' reads take: a save beside them takes less, some milliseconds.
 */
#define RECORDS_MAX ((size_t) 1 << 19)
#define LEAVES_MAX ((size_t) 1 << 17)
#define MEANWHILE_MAX ((size_t) 1 << 16)
/* Between two saves. */
#define SAVE_MS (5 * 60 * 1000)
/* Read in the order of addresses, before the next ones. */
#define BATCH 256u
/* No volume has as many leaves. */
#define LEAF_MAX (UINT64_C (1) << 48)

/* Of records: their addresses.  Of leaves: twice the layer's id, plus 1 if it
 * is a frozen layer's; then the number of the leaf.  The latest used is first.
 */
struct list {
  uint64_t *p; /* owned */
  size_t nr;   /* numbers in p[] */
  size_t at;   /* those before it are done */
};

struct lists {
  struct list records, leaves;
};

struct warmer {
  struct nbdedup_pool *pool; /* not owned */
  struct background thread;
  atomic_size_t waiting, loaded;

  /* The thread's own, and after its end that of warm_save. */
  struct lists todo; /* to be read */
  uint64_t saved;    /* checksum of what was saved last */
};

static void
lists_free (struct lists *l)
{
  free (l->records.p);
  free (l->leaves.p);
  *l = (struct lists) { .records = { NULL } };
}

#define CLEANUP_LISTS __attribute__ ((cleanup (lists_free)))

/*----------------------------------------------------------------------
 * Lists in a file
 */

static bool
read_numbers (void *opaque, uint64_t offset, const uint8_t *buf, size_t len)
{
  struct list *l = opaque;
  size_t i;

  assert (offset % 8 == 0 && len % 8 == 0); /* warm_file_open has checked */
  for (i = 0; i < len; i += 8)
    l->p[(offset + i) / 8] = get_le64 (buf + i);
  return true;
}

/* A list that cannot be read is empty. */
static void
read_list (struct warm_file *f, enum warm_type type, size_t max, struct list *l)
{
  const struct warm_section *s = warm_file_find (f, type, 0);

  if (s == NULL || s->len == 0 || s->len / 8 > max)
    return;
  l->p = malloc (s->len);
  if (l->p && warm_file_read (f, s, read_numbers, l) == 0)
    l->nr = s->len / 8;
}

static void
read_lists (struct nbdedup_pool *pool, struct lists *l)
{
  CLEANUP_FREE char *path = pool_file (pool->path, WARM_FILE);
  struct warm_file *f = path ? warm_file_open (path, pool->uuid) : NULL;

  if (f == NULL)
    return;
  read_list (f, WARM_RECORDS, RECORDS_MAX, &l->records);
  read_list (f, WARM_LEAVES, 2 * LEAVES_MAX, &l->leaves);
  l->leaves.nr -= l->leaves.nr % 2;
  warm_file_close (f);
}

static void
write_list (struct warm_writer *w, enum warm_type type, struct list *l)
{
  const struct warm_section s = { .type = type, .len = l->nr * 8 };
  size_t i;

  for (i = 0; i < l->nr; ++i)
    put_le64 (&l->p[i], l->p[i]);
  warm_writer_begin (w, &s);
  if (l->nr > 0)
    warm_writer_put (w, l->p, l->nr * 8);
  warm_writer_end (w);
}

/* Append what the list of an earlier session still has. */
static void
add_rest (struct list *l, const struct list *rest, size_t max)
{
  size_t nr = rest->nr - rest->at;

  assert (rest->at <= rest->nr && l->nr <= max);
  if (nr > max - l->nr)
    nr = max - l->nr;
  if (nr > 0)
    memcpy (l->p + l->nr, rest->p + rest->at, nr * sizeof *l->p);
  l->nr += nr;
}

/* What the caches hold now.  -1: no memory. */
static int
list_caches (struct nbdedup_pool *pool, size_t max_records, size_t max_leaves,
             struct lists *l)
{
  CLEANUP_FREE struct map_cached *leaves = malloc (max_leaves * sizeof *leaves);
  size_t i, nr;

  l->records.p = malloc (max_records * sizeof *l->records.p);
  l->leaves.p = malloc (2 * max_leaves * sizeof *l->leaves.p);
  if (leaves == NULL || l->records.p == NULL || l->leaves.p == NULL)
    return -1;
  l->records.nr = record_cache_list (pool->records, l->records.p, max_records);
  nr = map_list_cached (pool->map, leaves, max_leaves);
  assert (l->records.nr <= max_records && nr <= max_leaves);
  for (i = 0; i < nr; ++i) {
    l->leaves.p[2 * i] = leaves[i].layer << 1 | leaves[i].resolved;
    l->leaves.p[2 * i + 1] = leaves[i].leaf;
  }
  l->leaves.nr = 2 * nr;
  return 0;
}

/* Failures are silent: the next session begins colder, no more. */
static void
write_lists (struct nbdedup_pool *pool, struct lists *l,
             const struct warm_stamp *stamp)
{
  CLEANUP_FREE char *path = pool_file (pool->path, WARM_FILE);
  struct warm_writer *w;
  struct ddt_info info;
  uint64_t bytes;

  if (path == NULL)
    return;
  ddt_get_info (pool->ddt, &info);
  bytes = (l->records.nr + l->leaves.nr) * 8 + (stamp ? info.filter_memory : 0);
  if (!warm_file_fits (pool->path, bytes)) {
    warm_file_remove (path);
    return;
  }
  w = warm_writer_new (path, pool->uuid, stamp);
  if (w == NULL)
    return;
  write_list (w, WARM_RECORDS, &l->records);
  write_list (w, WARM_LEAVES, &l->leaves);
  if (stamp)
    ddt_save_filter (pool->ddt, w);
  warm_writer_finish (w);
}

/*----------------------------------------------------------------------
 * The thread
 */

/* 1; 0: the cache is full.  Errors are for those who need the block. */
static int
load_leaf (struct nbdedup_pool *pool, const uint64_t *numbers)
{
  unsigned ticket = quiesce_enter (&pool->quiesce);
  struct layer *layer = volumes_find_layer (pool->volumes, numbers[0] >> 1);
  int r = 1;

  if (layer && !layer->gone && layer->frozen == (numbers[0] & 1) &&
      numbers[1] < LEAF_MAX)
    r = map_warm (pool->map, layer, numbers[1]);
  quiesce_leave (&pool->quiesce, ticket);
  return r != 0;
}

static int
load_record (struct nbdedup_pool *pool, const uint64_t *addr)
{
  struct blob row CLEANUP_BLOB = { NULL };
  struct meta_conn *c;
  struct record record;
  unsigned ticket;
  int r = 1, found;

  if (record_cache_has (pool->records, *addr))
    return 1;
  c = meta_reader_get (pool->meta);
  ticket = quiesce_enter (&pool->quiesce);
  found = meta_record_find (c, *addr, &row, &record);
  meta_reader_put (pool->meta, c);
  if (found == 1)
    r = read_warm (pool, &record.ptr, record.lsize);
  quiesce_leave (&pool->quiesce, ticket);
  return r != 0;
}

static int
compare_numbers (const void *a, const void *b)
{
  const uint64_t *x = a, *y = b;

  return *x < *y ? -1 : *x > *y;
}

static int
compare_leaves (const void *a, const void *b)
{
  const uint64_t *x = a, *y = b;
  int r = compare_numbers (x, y);

  return r ? r : compare_numbers (x + 1, y + 1);
}

/* 'size' numbers make an entry. */
static void
load_list (struct warmer *w, struct list *l, size_t size,
           int (*compare) (const void *, const void *),
           int (*load) (struct nbdedup_pool *, const uint64_t *))
{
  uint64_t begun;
  size_t end;

  assert (l->nr % size == 0 && l->at == 0);
  while (l->at < l->nr && !w->thread.stop) {
    begun = clock_ms ();
    end = l->nr - l->at < BATCH * size ? l->nr : l->at + BATCH * size;
    qsort (l->p + l->at, (end - l->at) / size, size * sizeof *l->p, compare);
    for (; l->at < end && !w->thread.stop; l->at += size) {
      if (!load (w->pool, l->p + l->at)) {
        w->waiting -= (l->nr - l->at) / size;
        l->at = l->nr;
        return;
      }
      w->waiting--;
      w->loaded++;
    }
    background_wait_ms (&w->thread, clock_ms () - begun);
  }
}

void
warmer_save_lists (struct warmer *w)
{
  struct lists CLEANUP_LISTS l = { .records = { NULL } };
  uint64_t sum;

  if (list_caches (w->pool, MEANWHILE_MAX, MEANWHILE_MAX, &l) == -1)
    return;
  sum = XXH3_64bits_withSeed (l.records.p, l.records.nr * 8,
                              XXH3_64bits (l.leaves.p, l.leaves.nr * 8));
  if (l.records.nr + l.leaves.nr == 0 ||
      (sum == w->saved && warm_file_fits (w->pool->path, 0)))
    return;
  w->saved = sum;
  write_lists (w->pool, &l, NULL);
}

static void *
warmer_thread (void *arg)
{
  struct warmer *w = arg;

  thread_lower_priority ();
  read_lists (w->pool, &w->todo);
  w->waiting = w->todo.records.nr + w->todo.leaves.nr / 2;
  load_list (w, &w->todo.leaves, 2, compare_leaves, load_leaf);
  load_list (w, &w->todo.records, 1, compare_numbers, load_record);
  while (background_wait_ms (&w->thread, SAVE_MS))
    if (w->pool->settings.read_only == NBDEDUP_READ_ONLY_OFF)
      warmer_save_lists (w);
  return NULL;
}

struct warmer *
warmer_start (struct nbdedup_pool *pool)
{
  struct warmer *w = calloc (1, sizeof *w);

  if (w == NULL)
    return NULL;
  w->pool = pool;
  background_init (&w->thread, NULL);
  if (background_start (&w->thread, warmer_thread, w) == 0)
    return w;
  warmer_free (w);
  return NULL;
}

void
warmer_cancel (struct warmer *w)
{
  if (w)
    background_cancel (&w->thread);
}

void
warmer_stop (struct warmer *w)
{
  if (w)
    background_stop (&w->thread);
}

void
warmer_free (struct warmer *w)
{
  if (w == NULL)
    return;
  background_destroy (&w->thread);
  lists_free (&w->todo);
  free (w);
}

json_t *
warmer_status (struct warmer *w)
{
  if (w == NULL)
    return NULL;
  return json_pack ("{s:I, s:I}", "waiting", (json_int_t) w->waiting, "loaded",
                    (json_int_t) w->loaded);
}

/*----------------------------------------------------------------------
 * The session
 */

static void
stamp_of (const struct meta_state *state, struct warm_stamp *stamp)
{
  *stamp = (struct warm_stamp) {
    .epoch = state->epoch,
    .fold = state->fold,
    .index_entries = state->index_entries,
  };
}

void
warm_offer (struct nbdedup_pool *pool, const struct meta_state *state)
{
  CLEANUP_FREE char *path = pool_file (pool->path, WARM_FILE);
  struct warm_file *f = path ? warm_file_open (path, pool->uuid) : NULL;
  struct warm_stamp stamp;

  stamp_of (state, &stamp);
  if (f == NULL || state->opening || !warm_file_is_of (f, &stamp)) {
    warm_file_close (f);
    return;
  }
  pool->warm_stamp = stamp;
  ddt_offer_filter (pool->ddt, f);
}

/* No entry was added: the filter that this session began with is still right.
 * False: it is not, or was none.
 */
static bool
keep_filter (struct nbdedup_pool *pool, const struct warm_stamp *stamp)
{
  CLEANUP_FREE char *path = pool_file (pool->path, WARM_FILE);
  struct warm_file *f;
  bool kept = false;

  if (pool->warm_stamp.epoch == 0 || !ddt_filter_is_unchanged (pool->ddt))
    return false;
  f = path ? warm_file_open (path, pool->uuid) : NULL;
  if (f && warm_file_is_of (f, &pool->warm_stamp))
    kept = warm_file_restamp (f, path, stamp) == 0;
  warm_file_close (f);
  return kept;
}

/* A command's caches say nothing about what clients use: it hands the lists
 * on.
 */
void
warm_save (struct nbdedup_pool *pool)
{
  struct lists CLEANUP_LISTS l = { .records = { NULL } };
  struct warmer *w = pool->warmer;
  struct meta_state state;
  struct warm_stamp stamp;
  struct ddt_info info;

  ddt_stop_filter (pool->ddt);
  ddt_get_info (pool->ddt, &info);
  txg_get_state (pool->txg, &state);
  stamp_of (&state, &stamp);
  if (w == NULL) {
    if (keep_filter (pool, &stamp) || info.filter_memory == 0)
      return;
    read_lists (pool, &l);
  }
  else {
    if (list_caches (pool, RECORDS_MAX, LEAVES_MAX, &l) == -1)
      return;
    add_rest (&l.records, &w->todo.records, RECORDS_MAX);
    add_rest (&l.leaves, &w->todo.leaves, 2 * LEAVES_MAX);
  }
  if (l.records.nr + l.leaves.nr + info.filter_memory == 0)
    keep_filter (pool, &stamp);
  else
    write_lists (pool, &l, &stamp);
}

void
warm_forget (const char *path)
{
  CLEANUP_FREE char *file = pool_file (path, WARM_FILE);

  if (file)
    warm_file_remove (file);
}

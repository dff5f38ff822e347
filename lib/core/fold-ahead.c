/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/thread.h"
#include "core/fold-ahead.h"
#include "format/counts.h"

/* The fold looks again after so many rows, and starts the threads if a quarter
 * of them were read from the disk.
 */
#define LOOK_ROWS 16u
#define LOOK_BYTES (LOOK_ROWS / 4 * META_PAGE_BYTES)
/* The unit of ru_inblock. */
#define INBLOCK_BYTES 512

/* Bytes that this thread has read from disks; not those from memory. */
static uint64_t
bytes_read (void)
{
  struct rusage usage;

  return getrusage (RUSAGE_THREAD, &usage) == 0
    ? (uint64_t) usage.ru_inblock * INBLOCK_BYTES
    : 0;
}

/* Does the fold need the record's own entry, and not only its count? */
static bool
needs_record (uint64_t group, const struct blob *row, uint64_t addr)
{
  struct counts counts;
  uint64_t count;

  if (counts_unpack (group, row->p, row->len, &counts) == -1)
    return false;
  count = counts.of[addr % RECORD_GROUP_SECTORS];
  return count == COUNT_SAME || count == COUNT_DEAD || count < 2;
}

static void
read_group (struct meta_conn *c, uint64_t addr, struct blob *row)
{
  const uint64_t group = addr / RECORD_GROUP_SECTORS;
  const int r = meta_count_get (c, group, row);

  if (r == 0 || (r == 1 && needs_record (group, row, addr)))
    (void) meta_record_get (c, group, row);
}

static void
read_leaf (struct meta_conn *c, const struct map_change *mc, struct blob *row)
{
  uint64_t displaced[LEAF_BLOCKS], last = UINT64_MAX;
  uint8_t buf[LEAF_LEN_MAX];
  struct leaf leaf, below;
  int pointers, blocks;
  unsigned nr, i;
  size_t len = 0;

  if (meta_leaf_get (c, mc->layer->branch, mc->leaf, mc->layer->seq, buf,
                     &len) != 1 ||
      leaf_unpack (buf, len, &leaf) == -1)
    return;
  memset (below.state, MAP_HOLE, sizeof below.state); /* counts do not matter */
  map_apply (mc, &leaf, &below, displaced, &nr, &pointers, &blocks);
  for (i = 0; i < nr; ++i) {
    if (displaced[i] / RECORD_GROUP_SECTORS != last)
      read_group (c, displaced[i], row);
    last = displaced[i] / RECORD_GROUP_SECTORS;
  }
}

/* Row 'i': the leaves come first, as in the fold. */
static void
read_row (const struct fold *f, struct meta_conn *c, size_t i, struct blob *row)
{
  if (i < f->nr_map_changes) {
    read_leaf (c, &f->map_changes[i], row);
    return;
  }
  i -= f->nr_map_changes;
  if (i == 0 ||
      f->changes[i - 1].addr / RECORD_GROUP_SECTORS !=
        f->changes[i].addr / RECORD_GROUP_SECTORS)
    read_group (c, f->changes[i].addr, row);
}

/* It holds a reader for one row, so that clients' lookups get theirs.  It never
 * waits for one: a thread that has a reader may wait for the fold, and the fold
 * waits for this thread.
 */
static void *
ahead_thread (void *fold)
{
  struct fold *f = fold;
  struct fold_ahead *a = &f->ahead;
  struct meta *meta = f->parts->meta;
  struct blob row CLEANUP_BLOB = { NULL };
  const size_t nr = f->nr_map_changes + f->nr_changes;
  struct meta_conn *c;
  size_t i;

  while (!a->stop && (i = a->next++) < nr) {
    c = meta_reader_try (meta);
    if (c == NULL)
      continue;
    read_row (f, c, i, &row);
    meta_reader_put (meta, c);
  }
  return NULL;
}

void
fold_ahead_begin (struct fold *f)
{
  struct fold_ahead *a = &f->ahead;

  assert (a->nr_threads == 0);
  a->stop = false;
  a->next = 0;
  a->rows = 0;
  a->was_read = bytes_read ();
}

/* If the system refuses a thread, those that run are enough. */
static void
start (struct fold *f, size_t next)
{
  struct fold_ahead *a = &f->ahead;

  a->next = next;
  while (a->nr_threads < META_READERS_AHEAD &&
         thread_start (&a->threads[a->nr_threads], ahead_thread, f) == 0)
    a->nr_threads++;
}

void
fold_ahead_look (struct fold *f, size_t next)
{
  struct fold_ahead *a = &f->ahead;
  uint64_t bytes;

  if (++a->rows % LOOK_ROWS != 0 || a->nr_threads > 0)
    return;
  bytes = bytes_read ();
  if (bytes - a->was_read >= LOOK_BYTES)
    start (f, next);
  a->was_read = bytes;
}

void
fold_ahead_end (struct fold *f)
{
  struct fold_ahead *a = &f->ahead;

  a->stop = true;
  for (; a->nr_threads > 0; a->nr_threads--)
    pthread_join (a->threads[a->nr_threads - 1], NULL);
}

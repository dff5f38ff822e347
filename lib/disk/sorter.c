/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/error.h"
#include "base/fullio.h"
#include "base/tempfile.h"
#include "disk/sorter.h"

/* The size of one read of a run: smaller reads would make a disk seek. */
#define READ_BYTES 65536

/* The sorter distributes the items in memory to so many parts, which fit in the
 * CPU's caches, before sorting: three times as fast as sorting them whole.
 */
#define NR_PARTS 1024

/* Call 'look' after sorting so many bytes: some milliseconds. */
#define LOOK_BYTES (1u << 20)

/* Sorted items in the file, and the part of them that is in memory. */
struct run {
  uint64_t offset, end; /* of the part that is not read yet */
  uint8_t *buf;         /* not owned: a part of the sorter's */
  size_t pos, len;
};

struct sorter {
  const char *dir;
  size_t item_len;
  sorter_compare_fn *compare;
  int fd; /* -1: none yet */
  uint64_t file_end;
  uint64_t nr_items;
  int (*look) (void *opaque); /* or NULL */
  void *opaque;               /* of look; not owned */

  /* Adding: unsorted items.  Merging: the runs' parts. */
  uint8_t *buf;   /* owned */
  uint8_t *spare; /* owned; as large, to distribute items to */
  size_t len, cap;
  size_t pos; /* of the next item, if there is no run */
  bool finished;

  struct run *runs; /* owned */
  size_t nr_runs;
  size_t *heap; /* owned; runs, the least item first */
  size_t nr_heap;
  bool advance; /* the first one's item has been taken */
};

struct sorter *
sorter_new (const char *dir, size_t item_len, sorter_compare_fn *compare,
            uint64_t memory_bytes)
{
  struct sorter *s = calloc (1, sizeof *s);

  assert (memory_bytes >= SORTER_MEMORY_MIN && item_len <= READ_BYTES / 16);
  assert (item_len >= sizeof (uint64_t)); /* it begins with the key */
  if (s == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  s->dir = dir;
  s->item_len = item_len;
  s->compare = compare;
  s->fd = -1;
  s->cap = (size_t) (memory_bytes / 2 / item_len) * item_len;
  s->buf = malloc (s->cap);
  s->spare = malloc (s->cap);
  if (s->buf == NULL || s->spare == NULL) {
    sorter_free (s);
    return nbdedup_fail_null (ENOMEM,
                              "cannot allocate %" PRIu64 " bytes of "
                              "memory for sorting: allow less",
                              memory_bytes);
  }
  return s;
}

void
sorter_free (struct sorter *s)
{
  if (s == NULL)
    return;
  if (s->fd != -1)
    close (s->fd);
  free (s->heap);
  free (s->runs);
  free (s->spare);
  free (s->buf);
  free (s);
}

void
sorter_set_look (struct sorter *s, int (*look) (void *opaque), void *opaque)
{
  s->look = look;
  s->opaque = opaque;
}

static int
look (struct sorter *s)
{
  return s->look ? s->look (s->opaque) : 0;
}

uint64_t
sorter_count (const struct sorter *s)
{
  return s->nr_items;
}

/*----------------------------------------------------------------------
 * The file
 */

static int
append (struct sorter *s, const void *buf, size_t len)
{
  if (s->fd == -1 && (s->fd = tempfile_open (s->dir)) == -1)
    return -1;
  if (full_pwrite (s->fd, buf, len, s->file_end) == -1)
    return nbdedup_fail (errno, "%s: writing a temporary file: %s%s", s->dir,
                         strerror (errno),
                         errno == ENOSPC
                           ? ": allow more memory, or free some space there"
                           : "");
  s->file_end += len;
  return 0;
}

/* Read the next part of a run: 1; 0: it has ended.  Frees the space of what it
 * has read, if the file system can do that.
 */
static int
fill (struct sorter *s, struct run *run, size_t max)
{
  uint64_t left = run->end - run->offset;
  int64_t n;

  assert (run->offset <= run->end);
  if (left == 0)
    return 0;
  if (look (s) == -1)
    return -1;
  if (max > left)
    max = (size_t) left;
  n = full_pread (s->fd, run->buf, max, run->offset);
  if (n != (int64_t) max)
    return nbdedup_fail (EIO, "%s: reading a temporary file: %s", s->dir,
                         n == -1 ? strerror (errno) : "it is too short");
  fallocate (s->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
             (off_t) run->offset, (off_t) max);
  run->offset += max;
  run->pos = 0;
  run->len = max;
  return 1;
}

/*----------------------------------------------------------------------
 * Runs
 */

static int
add_run (struct sorter *s, uint64_t offset, uint64_t end)
{
  return array_push (&s->runs, &s->nr_runs,
                     (struct run) { .offset = offset, .end = end });
}

static uint64_t
key_of (const uint8_t *item)
{
  uint64_t key;

  memcpy (&key, item, sizeof key);
  return key;
}

/* The shift that turns a key, less the least one, into the number of a part.
 * It depends on the keys' range, not on their size.
 */
static unsigned
find_shift (const struct sorter *s, uint64_t *least)
{
  uint64_t most = 0, key;
  unsigned shift = 0;
  size_t i;

  *least = UINT64_MAX;
  for (i = 0; i < s->len; i += s->item_len) {
    key = key_of (s->buf + i);
    if (key < *least)
      *least = key;
    if (key > most)
      most = key;
  }
  while ((most - *least) >> shift >= NR_PARTS)
    shift++;
  return shift;
}

/* Sort the items in memory. */
static int
sort_buffer (struct sorter *s)
{
  size_t ends[NR_PARTS] = { 0 }, i, begin = 0, n, looked = 0;
  uint64_t least;
  unsigned shift, part;
  uint8_t *swap;

  if (s->len == 0)
    return 0;
  shift = find_shift (s, &least);
  for (i = 0; i < s->len; i += s->item_len)
    ends[(key_of (s->buf + i) - least) >> shift] += s->item_len;
  for (part = 0; part < NR_PARTS; ++part) {
    n = ends[part];
    ends[part] = begin;
    begin += n;
  }
  assert (begin == s->len); /* each item has a part */
  for (i = 0; i < s->len; i += s->item_len) {
    part = (unsigned) ((key_of (s->buf + i) - least) >> shift);
    memcpy (s->spare + ends[part], s->buf + i, s->item_len);
    ends[part] += s->item_len;
  }
  swap = s->buf;
  s->buf = s->spare;
  s->spare = swap;
  for (part = 0, begin = 0; part < NR_PARTS; begin = ends[part++]) {
    n = (ends[part] - begin) / s->item_len;
    if (n > 1)
      qsort (s->buf + begin, n, s->item_len, s->compare);
    if (ends[part] - looked >= LOOK_BYTES) {
      looked = ends[part];
      if (look (s) == -1)
        return -1;
    }
  }
  return look (s);
}

static int
write_run (struct sorter *s)
{
  uint64_t offset = s->file_end;

  if (sort_buffer (s) == -1 || append (s, s->buf, s->len) == -1)
    return -1;
  s->len = 0;
  return add_run (s, offset, s->file_end);
}

int
sorter_add (struct sorter *s, const void *item)
{
  assert (!s->finished);
  assert (s->len % s->item_len == 0 && s->len <= s->cap);
  if (s->len == s->cap && write_run (s) == -1)
    return -1;
  memcpy (s->buf + s->len, item, s->item_len);
  s->len += s->item_len;
  s->nr_items++;
  return 0;
}

/*----------------------------------------------------------------------
 * Merging
 */

static bool
is_less (const struct sorter *s, size_t a, size_t b)
{
  const struct run *x = &s->runs[a], *y = &s->runs[b];

  return s->compare (x->buf + x->pos, y->buf + y->pos) < 0;
}

static void
sift_down (struct sorter *s, size_t i)
{
  size_t child, run = s->heap[i];

  while ((child = 2 * i + 1) < s->nr_heap) {
    if (child + 1 < s->nr_heap &&
        is_less (s, s->heap[child + 1], s->heap[child]))
      child++;
    if (!is_less (s, s->heap[child], run))
      break;
    s->heap[i] = s->heap[child];
    i = child;
  }
  s->heap[i] = run;
}

/* How many runs to merge at once. */
static size_t
fan_in (const struct sorter *s)
{
  size_t n = s->cap / READ_BYTES;

  return n < 2 ? 2 : n;
}

/* Start to merge the first 'nr' runs, with 'room' bytes of the buffer. */
static int
begin_merge (struct sorter *s, size_t nr, size_t room)
{
  size_t part = room / nr / s->item_len * s->item_len, i;
  int r;

  assert (nr > 0 && nr <= s->nr_runs && part > 0);
  free (s->heap);
  s->heap = malloc ((nr + 1) * sizeof *s->heap);
  if (s->heap == NULL)
    return nbdedup_fail (ENOMEM, "no memory");
  s->nr_heap = 0;
  s->advance = false;
  for (i = 0; i < nr; ++i) {
    s->runs[i].buf = s->buf + i * part;
    r = fill (s, &s->runs[i], part);
    if (r == -1)
      return -1;
    if (r == 1)
      s->heap[s->nr_heap++] = i;
  }
  for (i = s->nr_heap / 2; i-- > 0;)
    sift_down (s, i);
  return 0;
}

/* As sorter_next, for the running merge; 'part' as in begin_merge. */
static int
next_merged (struct sorter *s, size_t part, const void **item)
{
  struct run *run;
  int r;

  if (s->advance) {
    s->advance = false;
    run = &s->runs[s->heap[0]];
    run->pos += s->item_len;
    assert (run->pos <= run->len);
    if (run->pos == run->len) {
      r = fill (s, run, part);
      if (r == -1)
        return -1;
      if (r == 0)
        s->heap[0] = s->heap[--s->nr_heap];
    }
    if (s->nr_heap > 0)
      sift_down (s, 0);
  }
  if (s->nr_heap == 0)
    return 0;
  run = &s->runs[s->heap[0]];
  *item = run->buf + run->pos;
  s->advance = true;
  return 1;
}

/* Merge the first 'nr' runs into one new last one. */
static int
merge_some (struct sorter *s, size_t nr)
{
  size_t room = s->cap / 2, part = room / nr / s->item_len * s->item_len;
  uint8_t *out = s->buf + room / s->item_len * s->item_len;
  size_t len = 0, max = (s->cap - room) / s->item_len * s->item_len;
  uint64_t offset = s->file_end;
  const void *item;
  int r;

  if (begin_merge (s, nr, room) == -1)
    return -1;
  while ((r = next_merged (s, part, &item)) == 1) {
    if (len == max) {
      if (append (s, out, len) == -1)
        return -1;
      len = 0;
    }
    memcpy (out + len, item, s->item_len);
    len += s->item_len;
  }
  if (r == -1 || append (s, out, len) == -1)
    return -1;
  memmove (s->runs, s->runs + nr, (s->nr_runs - nr) * sizeof *s->runs);
  s->nr_runs -= nr;
  return add_run (s, offset, s->file_end);
}

int
sorter_finish (struct sorter *s)
{
  size_t fan = fan_in (s), most = fan < 4 ? 2 : fan / 2, nr;

  assert (!s->finished);
  s->finished = true;
  if (s->nr_runs == 0)
    return sort_buffer (s);
  if (s->len > 0 && write_run (s) == -1)
    return -1;
  /* Merge the oldest runs first: then the runs have about the same length. */
  while (s->nr_runs > fan) {
    nr = s->nr_runs - fan + 1;
    if (merge_some (s, nr < most ? nr : most) == -1)
      return -1;
  }
  return begin_merge (s, s->nr_runs, s->cap);
}

int
sorter_next (struct sorter *s, const void **item)
{
  assert (s->finished);
  if (s->nr_runs > 0)
    return next_merged (s, s->cap / s->nr_runs / s->item_len * s->item_len,
                        item);
  if (s->pos == s->len)
    return 0;
  *item = s->buf + s->pos;
  s->pos += s->item_len;
  return 1;
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* What becomes of one record. */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "base/xxh3.h"
#include "core/engine.h"
#include "core/txg.h"
#include "data/quota.h"
#include "disk/room.h"
#include "meta/meta-index.h"
#include "report/rewrite-int.h"
#include "space/space.h"

/*----------------------------------------------------------------------
 * Looking
 */

static bool
is_usable (const struct record *r)
{
  return r->refcount > 0 && !(r->flags & RECORD_COPY);
}

static int
find_in_row (const struct blob *row, uint64_t addr, struct record *r)
{
  const uint64_t group = addr / RECORD_GROUP_SECTORS;
  size_t off = 0;
  int n;

  while ((n = record_next (group, row->p, row->len, &off, r)) == 1)
    if (r->ptr.addr == addr)
      return is_usable (r);
  return n;
}

static int
read_row (struct rewrite *w, uint64_t addr, struct blob *row)
{
  struct meta_conn *c = meta_reader_get (w->pool->meta);
  int r = meta_record_get (c, addr / RECORD_GROUP_SECTORS, row);

  meta_reader_put (w->pool->meta, c);
  return r;
}

int
rewrite_look (struct rewrite *w, uint64_t addr, struct record *r)
{
  if (w->group != addr / RECORD_GROUP_SECTORS) {
    w->group = UINT64_MAX;
    if (read_row (w, addr, &w->row) == -1)
      return -1;
    w->group = addr / RECORD_GROUP_SECTORS;
  }
  return find_in_row (&w->row, addr, r);
}

/* The same, of this moment. */
static int
look_again (struct rewrite *w, uint64_t addr, struct record *r)
{
  return read_row (w, addr, &w->fresh) == -1 ? -1
                                             : find_in_row (&w->fresh, addr, r);
}

static bool
is_same_content (const struct record *a, const struct record *b)
{
  return a->lsize == b->lsize && a->domain == b->domain &&
    memcmp (&a->digest, &b->digest, sizeof a->digest) == 0;
}

/* Is the record still there, and the same?  1, 0, -1. */
static int
is_there (struct rewrite *w, const struct record *r)
{
  struct record now;
  int found = look_again (w, r->ptr.addr, &now);

  return found != 1
    ? found
    : now.ptr.cksum == r->ptr.cksum && now.ptr.psize == r->ptr.psize &&
      now.ptr.codec == r->ptr.codec && is_same_content (&now, r);
}

/* 1 and the record's content, borrowed; 0: it is gone, or damaged; -1. */
static int
read_record_content (struct rewrite *w, const struct record *r,
                     const uint8_t **content)
{
  const unsigned ticket = quiesce_enter (&w->pool->quiesce);
  int there = is_there (w, r);

  if (there == 1) {
    *content = verify_read (&w->v, r);
    there = *content ? 1 : errno == ENOMEM ? -1 : 0;
    w->damaged += there == 0;
  }
  quiesce_leave (&w->pool->quiesce, ticket);
  return there == -1 && errno == ENOMEM
    ? nbdedup_fail (ENOMEM, "no memory to rewrite records")
    : there;
}

/*----------------------------------------------------------------------
 * Moving
 */

/* 1; 0: the record cannot move now; 2: the batch has enough; -1. */
static int
drain (struct rewrite *w, uint64_t addr)
{
  const uint64_t segment = addr / (SEGMENT_BYTES / w->pool->sector_bytes);
  struct moves_batch *b = &w->batch;
  int r;

  if (b->nr_segments > 0 && b->segments[b->nr_segments - 1] == segment)
    return 1;
  if (b->nr_segments == MOVES_SEGMENTS_MAX)
    return 2;
  r = space_drain_one (w->pool->space, segment);
  if (r == 1)
    b->segments[b->nr_segments++] = segment;
  return r;
}

/* Prepare to move this record.  From now on its sectors are no others'.  As
 * drain.
 */
static int
prepare (struct rewrite *w, const struct record *r)
{
  int ret = drain (w, r->ptr.addr);

  if (ret == 1)
    ret = is_there (w, r);
  if (ret != 1)
    return ret;
  if (txg_reserve (w->pool->txg, 1, ROOM_NEW) == -1)
    return -1;
  w->batch.reserved++;
  assert (w->batch.reserved > w->batch.nr); /* one for each move */
  return 1;
}

/*----------------------------------------------------------------------
 * Pass 1 and 2: dedup
 */

/* An entry may be out of date.  1, 0, -1. */
static int
is_equal_at (struct rewrite *w, struct meta_conn *c, const struct record *r,
             uint64_t addr, struct record *other)
{
  int found = meta_record_find (c, addr, &w->fresh, other);

  return found != 1 ? found
                    : is_usable (other) && other->flags & RECORD_INDEXED &&
      is_same_content (other, r);
}

/* Find the one with the lowest address, below '*limit', among a run's entries
 * with the digest: 1 and '*limit' is its address; 0; -1.
 */
static int
find_in_run (struct rewrite *w, struct meta_conn *c, unsigned run,
             const struct record *r, uint64_t *limit, struct record *other)
{
  struct index_entry e;
  struct record at;
  size_t off;
  int ret = meta_index_find (c, run, digest_prefix (&r->digest), &w->index);

  if (ret != 1)
    return ret;
  for (off = 0; off < w->index.len; off += INDEX_ENTRY_LEN) {
    index_entry_unpack (w->index.p + off, &e);
    if (e.removed || e.addr == r->ptr.addr || e.addr >= *limit)
      continue;
    ret = is_equal_at (w, c, r, e.addr, &at);
    if (ret == 1) {
      *other = at;
      *limit = e.addr;
    }
    if (ret != 0)
      return ret;
  }
  return 0;
}

/* Find the equal record that the index has, and to which this one would move:
 * 1, 0, -1.
 */
static int
find_equal (struct rewrite *w, const struct record *r, struct record *other)
{
  uint64_t limit = r->flags & RECORD_INDEXED ? r->ptr.addr : UINT64_MAX;
  struct meta_conn *c = meta_reader_get (w->pool->meta);
  struct index_runs runs;
  unsigned run;
  int found = 0, ret = meta_index_runs (c, &runs);

  for (run = 0; run < INDEX_RUNS && ret != -1; ++run)
    if (index_runs_has (&runs, run)) {
      ret = find_in_run (w, c, run, r, &limit, other);
      found |= ret == 1;
    }
  meta_reader_put (w->pool->meta, c);
  return ret == -1 ? -1 : found;
}

int
rewrite_index_record (struct rewrite *w, const struct record *r)
{
  struct record other;
  int found;

  if (r->flags & RECORD_INDEXED)
    return 0;
  found = find_equal (w, r, &other);
  if (found != 0)
    return found == -1 ? -1 : 0;
  if (quota_is_over (w->pool, w->nr_names)) {
    w->over_quota++;
    return 0;
  }
  return array_push (&w->names, &w->nr_names,
                     (struct record_name) { r->ptr.addr, r->digest });
}

/* Equal digests prove nothing about bytes that damage has changed, so compare
 * both contents.
 */
static int
have_same_content (struct rewrite *w, const struct record *a,
                   const struct record *b)
{
  const uint8_t *content = NULL;
  int r = read_record_content (w, a, &content);

  if (r != 1)
    return r;
  assert (content != NULL);
  memcpy (w->content, content, a->lsize);
  r = read_record_content (w, b, &content);
  return r != 1 ? r : memcmp (w->content, content, a->lsize) == 0;
}

int
rewrite_join_record (struct rewrite *w, const struct record *r)
{
  struct record other;
  int ret = find_equal (w, r, &other);

  if (ret == 1)
    ret = have_same_content (w, r, &other);
  if (ret == 1)
    ret = prepare (w, r);
  if (ret != 1)
    return ret == 2 ? 1 : ret;
  return array_push (&w->batch.p, &w->batch.nr,
                     (struct move) {
                       .record = other,
                       .old = r->ptr,
                       .inserted = true,
                     });
}

/*----------------------------------------------------------------------
 * Pass 3: the stored form
 */

/* Is there nothing to find out about it?  The level is not stored, so whether
 * zstd would do better today is known only afterwards.
 */
static bool
is_surely_right (const struct rewrite *w, const struct record *r)
{
  return r->ptr.codec == w->compression.codec && r->ptr.codec != CODEC_ZSTD;
}

/* 'new' is the form that it would have today.  Do not replace a compressed
 * record by a raw one just because today's codec fails where its own did not.
 */
static bool
is_better (const struct rewrite *w, const struct record *r,
           const struct pointer *new)
{
  const uint32_t sector = w->pool->sector_bytes;

  return sectors_of (new->psize, sector) < sectors_of (r->ptr.psize, sector) ||
    (new->codec != r->ptr.codec &&new->codec == w->compression.codec);
}

/* The old record goes when no pointer names it any more, so a mistake in what
 * replaces it, for example by faulty memory, would be the end of the data.
 */
static int
verify_form (struct rewrite *w, const struct record *r,
             const struct pointer *new, const uint8_t *content)
{
  if (new->codec == CODEC_NONE ||
      (codec_decompress (w->v.codec, new->codec, w->v.out, new->psize,
                         w->content, r->lsize) == 0 &&
       memcmp (w->content, content, r->lsize) == 0))
    return 0;
  return nbdedup_fail (EIO,
                       "the record at %" PRIu64 " does not decompress to "
                       "its content: test this machine's memory",
                       r->ptr.addr);
}

/* Make the new form in w->v.out: 1; 0: the record stays as it is; -1. */
static int
make_form (struct rewrite *w, const struct record *r, struct pointer *new)
{
  const uint8_t *content = NULL, *stored;
  int codec, ret = read_record_content (w, r, &content);

  if (ret != 1)
    return ret;
  assert (content != NULL);
  new->psize = (uint32_t) codec_store (w->v.codec, &w->compression,
                                       w->pool->sector_bytes, content, r->lsize,
                                       w->v.out, &codec, &stored);
  assert (new->psize > 0 && new->psize <= r->lsize);
  if (stored != w->v.out)
    memcpy (w->v.out, stored, new->psize);
  new->codec = (uint8_t) codec;
  new->cksum = xxh3_64 (w->v.out, new->psize);
  if (!is_better (w, r, new))
    return 0;
  return verify_form (w, r, new, content) == -1 ? -1 : 1;
}

static int
place_form (struct rewrite *w, const struct record *r,
            const struct pointer *new)
{
  const uint32_t sector = w->pool->sector_bytes;
  const size_t len = (size_t) sectors_of (new->psize, sector) * sector;
  uint8_t *p = mover_room (&w->mover, len);
  struct move *move;

  if (p == NULL)
    return -1;
  memcpy (p, w->v.out, new->psize);
  move = array_add (&w->batch.p, &w->batch.nr, sizeof *move);
  if (move == NULL)
    return -1;
  move->record = *r;
  move->old = r->ptr;
  move->record.ptr = *new;
  move->record.flags &= RECORD_INDEXED;
  if (mover_place (&w->mover, move) == -1) {
    w->batch.nr--;
    return -1;
  }
  w->new_bytes += len;
  return 0;
}

int
rewrite_form_record (struct rewrite *w, const struct record *r)
{
  struct pointer new = { 0 };
  int ret;

  if (is_surely_right (w, r))
    return 0;
  ret = make_form (w, r, &new);
  if (ret == 1)
    ret = prepare (w, r);
  return ret == 1 ? place_form (w, r, &new) : ret == 2 ? 1 : ret;
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* The allocator.
 *
 * Segments are found through lists by the length of their longest free
 * run, each length its own list, with a bitmap of the lists that are not
 * empty: no search ever looks at all segments.  There are two sets of
 * lists: segments that have a free slot (or whose slots are not known,
 * because their map was not read since the pool was opened), where a record
 * needs only its own sectors, and segments where it needs a new summary
 * chunk too.  Wholly empty segments have a list of their own: they are
 * taken only when a record fits nowhere else.
 *
 * The promise of space_reserve
 * ----------------------------
 *
 * A reserved record must find room even if each free run were used in the
 * worst way.  Let L be the sectors of the largest record reserved at the
 * moment, K the slots that a chunk hands out, c what a new chunk can cost:
 * its sectors and the gap in front of it that aligns it.  For a segment
 * with longest run R and f free slots, room (R, f) is the greatest N with
 *
 *   N + c * ceil (max (0, N - f) / K)  <=  R - L
 *
 * that is, the sectors of records that fit into R - L if each had one
 * sector only, which needs the most slots.  The invariant is
 *
 *   sum of room over all BACKED segments >= sectors reserved      (1)
 *
 * (the records that were allocated, but not yet unreserved, count on the
 * right side still: that errs on the safe side).  It is enough:
 *
 *  - If a record of r <= L sectors is owed, some segment has room >= 1,
 *    hence R >= L + 1, and R >= L + 1 + c if it has no free slot: record
 *    and chunk fit.
 *
 *  - Placing r sectors at the start of a free run, and a chunk at the start
 *    of some run, lowers the sum by r at most, which is what is owed less
 *    then.  With N = room (R, f), N - r satisfies the inequality for what
 *    is left, because r >= 1: with a free slot that is (R - r, f - 1), else
 *    (R - r - c, K - 1).  Placing in another run than the longest leaves
 *    more.
 *
 *  - Freeing raises it.  What else could lower it (punching an empty
 *    segment, dropping a map from memory together with a chunk that
 *    pool.db does not know) is only done if (1) still holds after it.
 *
 * The sum is kept for each power of two that a record can have, so that L
 * may be as small as the blocks in use allow.
 *
 * That is too little for a pool that is nearly full of records of one
 * size: a hole of exactly that size counts as nothing.  So as long as
 * records of one size L only are reserved, another sum may promise
 * instead: whole (R, f), the number of records of L sectors that fit into
 * the longest run with the chunks that they need, and
 *
 *   sum of whole over all BACKED segments >= records reserved     (2)
 *
 * Placing r <= L sectors lowers one segment's whole by one at most, and one
 * record less is owed then; if the longest run holds L, the record fits
 * there.  A record of another size is promised room by (1) alone, which
 * counts all that is reserved.
 *
 * Unknown slots count as none; more than 255 as 255, which gives less room
 * and leaves the argument as it is.
 */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "cleanup.h"
#include "error.h"
#include "lock.h"
#include "segment.h"
#include "space.h"
#include "store.h"

/* Index of a segment in links: no segment. */
#define NONE ((UINT32_C (1) << 28) - 1)

/* Classes of record sizes: 4 KiB << class, up to 1 MiB. */
#define NR_CLASSES 9
#define CLASS_BYTES(c) (UINT32_C (4096) << (c))

#define SLOTS_MAX 255

/* How far past the end of what is known a segment in the journal can be:
 * more than can be allocated between two folds.
 */
#define CLAIM_DISTANCE_MAX (UINT64_C (1) << 20)

/* 12 bytes per segment of the file. */
struct seg {
  uint32_t nr_free:14;          /* sectors */
  uint32_t largest:14;          /* the longest free run */
  uint32_t backed:1;
  uint32_t damaged:1;           /* its map cannot be read: not used */
  uint32_t slots_known:1;
  uint32_t next:28;
  uint32_t slots_high:4;        /* free slots, up to SLOTS_MAX */
  uint32_t prev:28;
  uint32_t slots_low:4;
};

/* A segment's map in memory. */
struct entry {
  LIST_ENTRY (entry) hash_link;
  TAILQ_ENTRY (entry) lru_link; /* on the list if and only if pins == 0 */
  uint32_t id;
  uint32_t pins;
  bool chunks_dirty;            /* has chunks that no fold has asked for */
  struct segment_map *map;      /* owned */
};

LIST_HEAD (entry_list, entry);
TAILQ_HEAD (entry_queue, entry);

#define BUCKET_WORDS ((SEGMENT_BYTES / 512) / 64 + 1)

/* Lists of segments by the length of their longest run. */
struct buckets {
  uint32_t *heads;              /* owned; nr_sectors + 1 */
  uint64_t nonempty[BUCKET_WORDS];
};

struct space {
  struct store *store;          /* not owned; outlives the space */
  struct space_ops ops;
  uint32_t sector_bytes;
  unsigned nr_sectors;          /* of a segment */
  unsigned base_sectors;        /* the store's header in segment 0 */
  unsigned slots_per_chunk;     /* without the header's */
  unsigned chunk_cost;          /* c above */

  struct lock lock;             /* protects everything below */

  struct seg *segs;             /* owned */
  uint64_t *absent;             /* owned; bitmap: segment is ABSENT */
  uint32_t nr_segs, max_segs;
  struct buckets with_slots, without_slots;
  uint32_t empty, nr_empty;     /* list of the wholly empty ones */
  uint32_t current;             /* where batches go, or NONE */

  uint64_t room[NR_CLASSES];    /* the sum above, in sectors */
  uint64_t whole[NR_CLASSES];   /* and the other one, in records */
  uint64_t reserved_records[NR_CLASSES];
  uint64_t reserved_nr, reserved_sectors;
  uint64_t free_sectors, used_sectors, nr_backed;
  uint64_t max_sectors;         /* 0: no limit */

  struct entry_list *hash;      /* owned; nr_hash is a power of two */
  uint32_t nr_hash, nr_entries, max_entries;
  struct entry_queue lru;       /* first: most recently used */
};

/*----------------------------------------------------------------------
 * Segments: what is known of each, and the lists
 */

static unsigned
seg_slots (const struct seg *s)
{
  return s->slots_high << 4 | s->slots_low;
}

/* Sectors of an empty segment that can be used. */
static unsigned
usable_sectors (const struct space *space, uint32_t id)
{
  return space->nr_sectors - (id == 0 ? space->base_sectors : 0);
}

static bool
seg_is_empty (const struct space *space, uint32_t id)
{
  return space->segs[id].nr_free == usable_sectors (space, id);
}

/* room (R, f) above, for records of at most CLASS_BYTES (class). */
static unsigned
get_room (const struct space *space, unsigned class, unsigned largest,
          unsigned slots)
{
  const unsigned k = space->slots_per_chunk, c = space->chunk_cost;
  unsigned max_record = CLASS_BYTES (class) / space->sector_bytes;
  unsigned x, y, rest;

  if (max_record == 0)
    max_record = 1;
  if (largest <= max_record)
    return 0;
  x = largest - max_record;
  if (x <= slots)
    return x;
  y = x - slots;
  rest = y % (k + c);
  return slots + y / (k + c) * k + (rest > c ? rest - c : 0);
}

/* whole (R, f) above: how many records of one class, and of no other, fit
 * into the longest run.
 */
static unsigned
get_whole (const struct space *space, unsigned class, unsigned largest,
           unsigned slots)
{
  const unsigned k = space->slots_per_chunk, c = space->chunk_cost;
  unsigned record = CLASS_BYTES (class) / space->sector_bytes, n, cost;

  if (record == 0)
    record = 1;
  n = largest / record;
  if (n <= slots)
    return n;
  cost = (n - slots + k - 1) / k * c;
  n = largest > cost ? (largest - cost) / record : 0;
  return n > slots ? n : slots;
}

/* The list a segment belongs to; '*buckets' is NULL for that of the empty
 * ones.  NULL: none.
 */
static uint32_t *
seg_list (struct space *space, uint32_t id, struct buckets **buckets)
{
  struct seg *s = &space->segs[id];

  *buckets = NULL;
  if (!s->backed || s->damaged)
    return NULL;
  if (seg_is_empty (space, id))
    return &space->empty;
  if (s->largest == 0)
    return NULL;
  *buckets = s->slots_known && seg_slots (s) == 0 ?
    &space->without_slots : &space->with_slots;
  return &(*buckets)->heads[s->largest];
}

/* Take a segment out of its list and out of all sums, before it changes. */
static void
seg_remove (struct space *space, uint32_t id)
{
  struct seg *s = &space->segs[id];
  struct buckets *buckets;
  uint32_t *head;
  unsigned c;

  assert_held (&space->lock);
  if (!s->backed)
    return;
  head = seg_list (space, id, &buckets);
  if (head != NULL) {
    if (s->prev != NONE)
      space->segs[s->prev].next = s->next;
    else
      *head = s->next;
    if (s->next != NONE)
      space->segs[s->next].prev = s->prev;
    if (head == &space->empty)
      space->nr_empty--;
    else if (*head == NONE)
      buckets->nonempty[s->largest / 64] &= ~(UINT64_C (1) << s->largest % 64);
  }
  if (!s->damaged)
    for (c = 0; c < NR_CLASSES; ++c) {
      space->room[c] -= get_room (space, c, s->largest, seg_slots (s));
      space->whole[c] -= get_whole (space, c, s->largest, seg_slots (s));
    }
  space->nr_backed--;
  space->free_sectors -= s->nr_free;
  space->used_sectors -= space->nr_sectors - s->nr_free;
}

static void
seg_insert (struct space *space, uint32_t id)
{
  struct seg *s = &space->segs[id];
  struct buckets *buckets;
  uint32_t *head;
  unsigned c;

  assert_held (&space->lock);
  if (!s->backed)
    return;
  head = seg_list (space, id, &buckets);
  if (head != NULL) {
    s->prev = NONE;
    s->next = *head;
    if (*head != NONE)
      space->segs[*head].prev = id;
    *head = id;
    if (head == &space->empty)
      space->nr_empty++;
    else
      buckets->nonempty[s->largest / 64] |= UINT64_C (1) << s->largest % 64;
  }
  if (!s->damaged)
    for (c = 0; c < NR_CLASSES; ++c) {
      space->room[c] += get_room (space, c, s->largest, seg_slots (s));
      space->whole[c] += get_whole (space, c, s->largest, seg_slots (s));
    }
  space->nr_backed++;
  space->free_sectors += s->nr_free;
  space->used_sectors += space->nr_sectors - s->nr_free;
}

static void
seg_set_slots (struct seg *s, bool known, unsigned slots)
{
  if (slots > SLOTS_MAX)
    slots = SLOTS_MAX;
  s->slots_known = known;
  s->slots_high = slots >> 4;
  s->slots_low = slots & 15;
}

/* Take what is known of a segment from its map. */
static void
seg_refresh (struct space *space, const struct segment_map *map)
{
  const uint32_t id = map->id;
  unsigned start;

  seg_remove (space, id);
  space->segs[id].nr_free = map->nr_sectors - map->nr_used;
  space->segs[id].largest = segment_map_largest_run (map, &start);
  seg_set_slots (&space->segs[id], true, segment_map_nr_free_slots (map));
  seg_insert (space, id);
}

static void
set_absent (struct space *space, uint32_t id, bool absent)
{
  const uint64_t bit = UINT64_C (1) << id % 64;

  if (absent)
    space->absent[id / 64] |= bit;
  else
    space->absent[id / 64] &= ~bit;
}

/* Make the table at least 'nr' long; new ones are ABSENT. */
static int
extend_segs (struct space *space, uint64_t nr)
{
  struct seg *segs;
  uint64_t *absent;
  uint64_t max = space->max_segs;

  if (nr > NONE)
    return nbdedup_fail (ENOSPC, "space: segment %" PRIu64 ": there can be "
                         "only %" PRIu32, nr - 1, NONE);
  if (nr > max) {
    max = nr + nr / 4 + 64;
    max -= max % 64;
    segs = realloc (space->segs, max * sizeof *segs);
    if (segs == NULL)
      goto nomem;
    space->segs = segs;
    absent = realloc (space->absent, max / 64 * sizeof *absent);
    if (absent == NULL)
      goto nomem;
    memset (absent + space->max_segs / 64, 0,
            (max - space->max_segs) / 64 * sizeof *absent);
    space->absent = absent;
    space->max_segs = max;
  }
  for (; space->nr_segs < nr; space->nr_segs++) {
    memset (&space->segs[space->nr_segs], 0, sizeof space->segs[0]);
    set_absent (space, space->nr_segs, true);
  }
  return 0;

 nomem:
  return nbdedup_fail (ENOMEM, "space: no memory for %" PRIu64 " segments",
                       nr);
}

/* ABSENT becomes BACKED and empty. */
static int
back_segment (struct space *space, uint32_t id)
{
  struct seg *s = &space->segs[id];

  assert (!s->backed);
  if (store_allocate_segment (space->store, id) == -1)
    return -1;
  set_absent (space, id, false);
  s->backed = 1;
  s->nr_free = s->largest = usable_sectors (space, id);
  seg_set_slots (s, true, 0);
  seg_insert (space, id);
  return 0;
}

/* Take a new segment: the first ABSENT one, else one past the end. */
static int
grow (struct space *space)
{
  uint32_t id = space->nr_segs;
  uint32_t w;

  for (w = 0; w < (space->nr_segs + 63) / 64; ++w)
    if (space->absent[w] != 0) {
      id = 64 * w + __builtin_ctzll (space->absent[w]);
      break;
    }
  if (id == space->nr_segs) {
    if (extend_segs (space, (uint64_t) id + 1) == -1)
      return -1;
    if (back_segment (space, id) == -1) {
      set_absent (space, id, false);
      space->nr_segs--;
      return -1;
    }
    return 0;
  }
  return back_segment (space, id);
}

/* One of the empty segments: the last or the first in the file, among the
 * 64 that were emptied last.
 */
static uint32_t
pick_empty (const struct space *space, bool last)
{
  uint32_t id, n, best = space->empty;

  for (id = space->empty, n = 0; id != NONE && n < 64;
       id = space->segs[id].next, ++n)
    if (last ? id > best : id < best)
      best = id;
  return best;
}

/* The class of the largest records that are reserved. */
static unsigned
top_class (const struct space *space)
{
  unsigned c = NR_CLASSES - 1;

  while (c > 0 && space->reserved_records[c] == 0)
    c--;
  return c;
}

/* An empty segment becomes ABSENT. */
static void
punch (struct space *space, uint32_t id)
{
  const uint32_t base = id == 0 ? space->base_sectors : 0;

  seg_remove (space, id);
  space->segs[id].backed = 0;
  set_absent (space, id, true);
  /* If this fails the space stays with the file until the segment is used
   * again: no harm.
   */
  store_punch (space->store, (uint64_t) id * space->nr_sectors + base,
               space->nr_sectors - base);
}

/* Give back empty segments beyond the spare ones, as far as what is
 * reserved does not need them.  As much as the spare ones hold is kept on
 * top of that, else a full pool would punch and allocate a segment with
 * every write.
 */
static void
punch_empty (struct space *space)
{
  const unsigned c = top_class (space);
  const uint64_t fresh = get_room (space, c, space->nr_sectors, 0);

  while (space->nr_empty > SPACE_SPARE_SEGMENTS &&
         space->room[c] >= space->reserved_sectors +
         SPACE_SPARE_SEGMENTS * fresh)
    punch (space, pick_empty (space, true));
}

/*----------------------------------------------------------------------
 * Maps in memory
 */

static struct entry_list *
hash_list (struct space *space, uint32_t id)
{
  return &space->hash[(id * UINT32_C (2654435761) >> 7) &
                      (space->nr_hash - 1)];
}

static struct entry *
find_entry (struct space *space, uint32_t id)
{
  struct entry *e;

  LIST_FOREACH (e, hash_list (space, id), hash_link)
    if (e->id == id)
      return e;
  return NULL;
}

/* Twice as many hash lists; it is no error if that is not possible. */
static void
grow_hash (struct space *space)
{
  struct entry_list *old = space->hash, *lists;
  const uint32_t nr_old = space->nr_hash;
  struct entry *e;
  uint32_t i;

  lists = calloc (2 * (size_t) nr_old, sizeof *lists);
  if (lists == NULL)
    return;
  space->hash = lists;
  space->nr_hash = 2 * nr_old;
  for (i = 0; i < nr_old; ++i)
    while ((e = LIST_FIRST (&old[i])) != NULL) {
      LIST_REMOVE (e, hash_link);
      LIST_INSERT_HEAD (hash_list (space, e->id), e, hash_link);
    }
  free (old);
}

static void
free_entry (struct space *space, struct entry *e)
{
  LIST_REMOVE (e, hash_link);
  if (e->pins == 0)
    TAILQ_REMOVE (&space->lru, e, lru_link);
  space->nr_entries--;
  segment_map_free (e->map);
  free (e);
}

/* Drop the map.  False if that cannot be: without it, a chunk that pool.db
 * does not know is forgotten, and its free slots are part of a promise.
 */
static bool
evict (struct space *space, struct entry *e)
{
  const struct seg *s = &space->segs[e->id];
  const unsigned c = top_class (space);
  const bool known = s->slots_known;
  const unsigned slots = seg_slots (s);

  assert (e->pins == 0);
  if (e->chunks_dirty) {
    seg_remove (space, e->id);
    seg_set_slots (&space->segs[e->id], false, 0);
    seg_insert (space, e->id);
    if (space->room[c] < space->reserved_sectors) {
      seg_remove (space, e->id);
      seg_set_slots (&space->segs[e->id], known, slots);
      seg_insert (space, e->id);
      return false;
    }
  }
  free_entry (space, e);
  return true;
}

/* Make room for one more map. */
static void
evict_some (struct space *space)
{
  struct entry *e, *prev;

  for (e = TAILQ_LAST (&space->lru, entry_queue);
       e != NULL && space->nr_entries >= space->max_entries; e = prev) {
    prev = TAILQ_PREV (e, entry_queue, lru_link);
    evict (space, e);
  }
}

static void
mark_damaged (struct space *space, uint32_t id)
{
  seg_remove (space, id);
  space->segs[id].damaged = 1;
  seg_insert (space, id);
  if (space->current == id)
    space->current = NONE;
}

static struct segment_map *
load_map (struct space *space, uint32_t id)
{
  CLEANUP_FREE uint8_t *buf = NULL;
  size_t len;

  /* An empty segment has no row, or not for long. */
  if (seg_is_empty (space, id))
    return segment_map_new (id, space->sector_bytes);

  switch (space->ops.load (space->ops.opaque, id, &buf, &len)) {
  case 1:
    return segment_map_unpack (id, space->sector_bytes, buf, len);
  case 0:
    return nbdedup_fail_null (EIO, "space: segment %" PRIu32 " has records, "
                              "but no row in pool.db: run nbdedup check "
                              "--repair", id);
  default:
    return NULL;
  }
}

/* The map of a BACKED segment, from memory or from pool.db.  NULL on error;
 * a segment whose map is damaged is not used any more.
 */
static struct entry *
get_entry (struct space *space, uint32_t id)
{
  struct entry *e;
  int err;

  assert_held (&space->lock);
  e = find_entry (space, id);
  if (e != NULL) {
    if (e->pins == 0) {
      TAILQ_REMOVE (&space->lru, e, lru_link);
      TAILQ_INSERT_HEAD (&space->lru, e, lru_link);
    }
    return e;
  }

  if (space->segs[id].damaged)
    return nbdedup_fail_null (EIO, "space: segment %" PRIu32 ": its map is "
                              "damaged: run nbdedup check --repair", id);
  evict_some (space);
  e = calloc (1, sizeof *e);
  if (e == NULL)
    return nbdedup_fail_null (ENOMEM, "space: no memory for a map");
  e->id = id;
  e->map = load_map (space, id);
  if (e->map == NULL) {
    err = errno;
    free (e);
    if (err == EIO)
      mark_damaged (space, id);
    errno = err;
    return NULL;
  }
  if (space->nr_entries >= space->nr_hash)
    grow_hash (space);
  LIST_INSERT_HEAD (hash_list (space, id), e, hash_link);
  TAILQ_INSERT_HEAD (&space->lru, e, lru_link);
  space->nr_entries++;
  seg_refresh (space, e->map);
  return e;
}

static void
pin (struct space *space, struct entry *e)
{
  if (e->pins++ == 0)
    TAILQ_REMOVE (&space->lru, e, lru_link);
}

/* Unpin once.  A segment without records that nobody holds becomes an empty
 * one: its chunks go, and its map.  May free 'e'.
 */
static void
unpin (struct space *space, struct entry *e)
{
  assert (e->pins > 0);
  if (--e->pins > 0)
    return;
  TAILQ_INSERT_HEAD (&space->lru, e, lru_link);
  if (!segment_map_is_empty (e->map))
    return;
  segment_map_reset (e->map);
  seg_refresh (space, e->map);
  if (space->current == e->id)
    space->current = NONE;
  free_entry (space, e);
  punch_empty (space);
}

/*----------------------------------------------------------------------
 * Opening and closing
 */

static int
init_buckets (struct space *space, struct buckets *buckets)
{
  unsigned i;

  buckets->heads = malloc ((space->nr_sectors + 1) * sizeof (uint32_t));
  if (buckets->heads == NULL)
    return -1;
  for (i = 0; i <= space->nr_sectors; ++i)
    buckets->heads[i] = NONE;
  return 0;
}

struct space *
space_new (struct store *store, const struct space_ops *ops,
           uint64_t budget_bytes)
{
  struct space *space;
  unsigned chunk_sectors;
  uint64_t max;

  space = calloc (1, sizeof *space);
  if (space == NULL)
    return nbdedup_fail_null (ENOMEM, "space: no memory");
  lock_init (&space->lock);
  TAILQ_INIT (&space->lru);
  space->store = store;
  space->ops = *ops;
  space->sector_bytes = store_get_header (store)->sector_bytes;
  space->nr_sectors = SEGMENT_BYTES / space->sector_bytes;
  space->base_sectors = STORE_HEADER_BYTES / space->sector_bytes;
  chunk_sectors = segment_chunk_sectors (space->sector_bytes);
  space->slots_per_chunk =
    chunk_sectors * space->sector_bytes / SUMMARY_SLOT_BYTES - 1;
  space->chunk_cost = 2 * chunk_sectors - 1;
  space->empty = space->current = NONE;

  max = budget_bytes / (segment_map_memory (space->sector_bytes) +
                        sizeof (struct entry) + sizeof (struct entry_list) +
                        16 /* malloc's own */);
  space->max_entries = max < 2 ? 2 : max < INT_MAX ? max : INT_MAX;
  space->nr_hash = 64;
  space->hash = calloc (space->nr_hash, sizeof *space->hash);
  if (space->hash == NULL || init_buckets (space, &space->with_slots) == -1 ||
      init_buckets (space, &space->without_slots) == -1) {
    space_free_all (space);
    return nbdedup_fail_null (ENOMEM, "space: no memory");
  }
  return space;
}

void
space_free_all (struct space *space)
{
  struct entry *e;
  uint32_t i;

  if (space == NULL)
    return;
  /* The next open would not know them.  (After a crash they stay with the
   * file, until they are used again as the first ABSENT ones: nobody can
   * tell then, before the journal is replayed, that they are empty.)
   */
  if (space->segs != NULL) {
    WITH_LOCK (&space->lock);
    while (space->empty != NONE)
      punch (space, space->empty);
  }
  for (i = 0; space->hash != NULL && i < space->nr_hash; ++i)
    while ((e = LIST_FIRST (&space->hash[i])) != NULL)
      free_entry (space, e);
  free (space->hash);
  free (space->with_slots.heads);
  free (space->without_slots.heads);
  free (space->segs);
  free (space->absent);
  lock_destroy (&space->lock);
  free (space);
}

int
space_add_segment (struct space *space, uint64_t segment, uint32_t nr_free,
                   uint32_t largest_run)
{
  const uint64_t length = store_length (space->store);
  struct seg *s;
  WITH_LOCK (&space->lock);

  if (segment >= NONE || segment >= length / SEGMENT_BYTES)
    return nbdedup_fail (EIO, "space: pool.db knows segment %" PRIu64 ", but "
                         "records has only %" PRIu64 " bytes: it is "
                         "truncated, or of another pool: restore it",
                         segment, length);
  if (segment < space->nr_segs)
    return nbdedup_fail (EIO, "space: segment %" PRIu64 " is out of order",
                         segment);
  if (nr_free > usable_sectors (space, segment) || largest_run > nr_free ||
      (nr_free > 0 && largest_run == 0))
    return nbdedup_fail (EIO, "space: segment %" PRIu64 ": %" PRIu32 " free "
                         "sectors, longest run %" PRIu32 ": cannot be: run "
                         "nbdedup check --repair", segment, nr_free,
                         largest_run);
  if (extend_segs (space, segment + 1) == -1)
    return -1;
  set_absent (space, segment, false);
  s = &space->segs[segment];
  s->backed = 1;
  s->nr_free = nr_free;
  s->largest = largest_run;
  seg_set_slots (s, false, 0);
  seg_insert (space, segment);
  return 0;
}

void
space_set_max (struct space *space, uint64_t max_bytes)
{
  WITH_LOCK (&space->lock);

  space->max_sectors = max_bytes / space->sector_bytes;
  if (max_bytes > 0 && space->max_sectors == 0)
    space->max_sectors = 1;
}

/*----------------------------------------------------------------------
 * Reservations
 */

static unsigned
class_of (uint32_t lsize)
{
  unsigned c = 0;

  while (CLASS_BYTES (c) < lsize)
    c++;
  assert (c < NR_CLASSES);
  return c;
}

static uint64_t
sectors_of (const struct space *space, uint32_t lsize, unsigned nr)
{
  return (uint64_t) nr *
    ((lsize + space->sector_bytes - 1) / space->sector_bytes);
}

/* If there are reservations of this class only: are there so many holes of
 * its size?
 */
static bool
fits_alone (const struct space *space, unsigned class, unsigned nr)
{
  return space->reserved_records[class] == space->reserved_nr &&
    space->whole[class] >= space->reserved_nr + nr;
}

int
space_reserve (struct space *space, uint32_t lsize, unsigned nr)
{
  const uint64_t need = sectors_of (space, lsize, nr);
  const unsigned class = class_of (lsize);
  unsigned c;
  uint64_t chunks;
  int err;
  WITH_LOCK (&space->lock);

  if (space->max_sectors > 0) {
    chunks = (space->reserved_nr + nr) / space->slots_per_chunk + 1;
    if (space->used_sectors + space->reserved_sectors + need +
        chunks * segment_chunk_sectors (space->sector_bytes) >
        space->max_sectors)
      return nbdedup_fail (ENOSPC, "the pool has reached its max-size: free "
                           "some space in it, or raise max-size");
  }

  c = top_class (space);
  if (c < class)
    c = class;
  while (space->room[c] < space->reserved_sectors + need &&
         !fits_alone (space, class, nr))
    if (grow (space) == -1) {
      err = errno;
      punch_empty (space);
      errno = err;
      return -1;
    }
  space->reserved_records[class] += nr;
  space->reserved_nr += nr;
  space->reserved_sectors += need;
  return 0;
}

void
space_unreserve (struct space *space, uint32_t lsize, unsigned nr)
{
  const uint64_t sectors = sectors_of (space, lsize, nr);
  const unsigned class = class_of (lsize);
  WITH_LOCK (&space->lock);

  assert (space->reserved_records[class] >= nr);
  assert (space->reserved_sectors >= sectors);
  space->reserved_records[class] -= nr;
  space->reserved_nr -= nr;
  space->reserved_sectors -= sectors;
  punch_empty (space);
}

/*----------------------------------------------------------------------
 * Allocation
 */

/* The shortest free run of at least 'len' sectors. */
static int
find_run (const struct segment_map *map, unsigned len)
{
  unsigned n, best_len = UINT_MAX;
  int run, best = -1;

  for (run = segment_map_next_run (map, 0, &n); run != -1;
       run = segment_map_next_run (map, run + n, &n))
    if (n >= len && n < best_len) {
      best = run;
      best_len = n;
      if (n == len)
        break;
    }
  return best;
}

/* Where a chunk goes: at the start, as far as it can be aligned, of the
 * shortest run that holds it.
 */
static int
find_chunk_place (const struct segment_map *map)
{
  const unsigned cs = map->chunk_sectors;
  unsigned n, aligned, best_len = UINT_MAX;
  int run, best = -1;

  for (run = segment_map_next_run (map, 0, &n); run != -1;
       run = segment_map_next_run (map, run + n, &n)) {
    aligned = (run + cs - 1) / cs * cs;
    if (aligned + cs <= run + n && n < best_len) {
      best = aligned;
      best_len = n;
    }
  }
  return best;
}

/* Add a chunk, in place of a lost one if there is any.  Returns its number,
 * or -1 if there is no room.
 */
static int
add_chunk (struct segment_map *map)
{
  int sector = find_chunk_place (map);
  unsigned i;

  if (sector == -1)
    return -1;
  for (i = 0; i < map->nr_chunks; ++i)
    if (map->chunks[i] == SEGMENT_CHUNK_LOST)
      break;
  if (i >= map->max_chunks)
    return -1;
  if (segment_map_place_chunk (map, i, sector) == -1)
    abort ();                   /* the place was free and aligned */
  return i;
}

/* Place 'nr' records of 'total' sectors in one free run of a segment, with
 * the chunks that they need.  Returns false, with nothing changed, if they
 * do not fit.
 */
static bool
place (struct space *space, struct entry *e, unsigned nr,
       const uint32_t *nr_sectors, uint64_t total, struct placement *out)
{
  struct segment_map *map = e->map;
  const uint64_t base = map->id * space->nr_sectors;
  const unsigned spc = map->slots_per_chunk;
  uint8_t added[SEGMENT_BYTES / 4096];  /* chunks' numbers: below 128 */
  unsigned i, nr_added = 0, sector;
  int r;

  if (total > space->nr_sectors)
    return false;
  while (segment_map_nr_free_slots (map) < nr) {
    r = add_chunk (map);
    if (r == -1)
      goto no_room;
    added[nr_added++] = r;
  }
  r = find_run (map, total);
  if (r == -1)
    goto no_room;

  sector = r;
  if (segment_map_set (map, sector, total) == -1)
    abort ();                   /* find_run found it free */
  for (i = 0; i < nr; ++i) {
    r = segment_map_find_slot (map);
    if (r == -1 || segment_map_set_slot (map, r) == -1)
      abort ();                 /* counted above */
    out[i].addr = base + sector;
    out[i].slot = r;
    out[i].chunk_addr = base + map->chunks[r / spc];
    sector += nr_sectors[i];
    pin (space, e);
  }
  if (nr_added > 0)
    e->chunks_dirty = true;
  seg_refresh (space, map);
  return true;

 no_room:
  while (nr_added > 0)
    if (segment_map_drop_chunk (map, added[--nr_added]) == -1)
      abort ();                 /* nothing was put into it */
  return false;
}

/* The first list, from 'len' on, that is not empty; UINT_MAX: none. */
static unsigned
find_bucket (const struct space *space, const struct buckets *b, uint64_t len)
{
  unsigned w;
  uint64_t word;

  if (len > space->nr_sectors)
    return UINT_MAX;
  w = len / 64;
  word = b->nonempty[w] & UINT64_MAX << len % 64;
  while (word == 0) {
    if (++w >= BUCKET_WORDS)
      return UINT_MAX;
    word = b->nonempty[w];
  }
  return 64 * w + __builtin_ctzll (word);
}

/* The segment with the shortest longest run that is at least 'len', if it
 * has free slots, or 'len_without' if it has none.  NONE if there is none.
 */
static uint32_t
find_segment (const struct space *space, uint64_t len, uint64_t len_without)
{
  const unsigned b0 = find_bucket (space, &space->with_slots, len);
  const unsigned b1 = find_bucket (space, &space->without_slots, len_without);

  if (b0 <= b1)
    return b0 == UINT_MAX ? NONE : space->with_slots.heads[b0];
  return space->without_slots.heads[b1];
}

/* Try one segment.  Returns 1, 0 if the records do not fit or the segment
 * turned out to be damaged, -1 on error.
 */
static int
try_segment (struct space *space, uint32_t id, unsigned nr,
             const uint32_t *nr_sectors, uint64_t total,
             struct placement *out)
{
  struct entry *e = get_entry (space, id);

  if (e == NULL)
    return errno == EIO ? 0 : -1;
  return place (space, e, nr, nr_sectors, total, out);
}

/* Place the first of 'nr' records, or all of them together, or something
 * in between.  Returns how many, -1 on error.
 */
static int
place_some (struct space *space, unsigned nr, const uint32_t *nr_sectors,
            struct placement *out)
{
  uint64_t total = 0, surely;
  uint32_t id;
  unsigned i;
  bool known;
  int r;

  for (i = 0; i < nr; ++i)
    total += nr_sectors[i];

  /* All of them in the current segment. */
  id = space->current;
  if (id != NONE && space->segs[id].largest >= total) {
    r = try_segment (space, id, nr, nr_sectors, total, out);
    if (r != 0)
      return r == 1 ? (int) nr : -1;
  }

  /* All of them where they surely fit, whatever the slots. */
  if (nr > 1) {
    surely = total + (uint64_t) space->chunk_cost *
      ((nr + space->slots_per_chunk - 1) / space->slots_per_chunk);
    id = find_segment (space, surely, surely);
    if (id != NONE) {
      r = try_segment (space, id, nr, nr_sectors, total, out);
      if (r == 1)
        space->current = id;
      if (r != 0)
        return r == 1 ? (int) nr : -1;
    }
  }

  /* The first one, best fit.  If it does not fit in a segment whose slots
   * were not known, they are now: the next search will not find it again.
   */
  for (;;) {
    id = find_segment (space, nr_sectors[0],
                       nr_sectors[0] + space->chunk_cost);
    if (id == NONE)
      break;
    known = space->segs[id].slots_known;
    r = try_segment (space, id, 1, nr_sectors, nr_sectors[0], out);
    if (r != 0)
      return r;
    if (known && !space->segs[id].damaged)
      mark_damaged (space, id);
  }

  /* A new segment. */
  if (space->empty == NONE && grow (space) == -1)
    return -1;
  id = pick_empty (space, false);
  space->current = id;
  r = nr > 1 ? try_segment (space, id, nr, nr_sectors, total, out) : 0;
  if (r != 0)
    return r == 1 ? (int) nr : -1;
  r = try_segment (space, id, 1, nr_sectors, nr_sectors[0], out);
  if (r == 0)
    return nbdedup_fail (EINVAL, "space: a record of %" PRIu32 " sectors is "
                         "too large", nr_sectors[0]);
  return r;
}

/* Take back an allocation that could not be completed. */
static void
undo (struct space *space, const struct placement *p, uint32_t nr_sectors)
{
  struct entry *e = find_entry (space, p->addr / space->nr_sectors);

  if (segment_map_clear (e->map, p->addr % space->nr_sectors,
                         nr_sectors) == -1 ||
      segment_map_clear_slot (e->map, p->slot) == -1)
    abort ();                   /* we set them */
  seg_refresh (space, e->map);
  unpin (space, e);
}

int
space_alloc (struct space *space, unsigned nr, const uint32_t *nr_sectors,
             struct placement *out)
{
  unsigned done, i;
  int r, err;
  WITH_LOCK (&space->lock);

  for (i = 0; i < nr; ++i)
    assert (nr_sectors[i] > 0);
  for (done = 0; done < nr; done += r) {
    r = place_some (space, nr - done, nr_sectors + done, out + done);
    if (r == -1) {
      err = errno;
      while (done-- > 0)
        undo (space, &out[done], nr_sectors[done]);
      errno = err;
      return -1;
    }
  }
  return 0;
}

int
space_claim (struct space *space, const struct placement *p,
             uint32_t nr_sectors)
{
  const uint64_t segment = p->addr / space->nr_sectors;
  const unsigned sector = p->addr % space->nr_sectors;
  uint64_t known;
  struct entry *e;
  unsigned chunk, nr_chunks;
  bool lost;
  int err;
  WITH_LOCK (&space->lock);

  known = store_length (space->store) / SEGMENT_BYTES;
  if (known < space->nr_segs)
    known = space->nr_segs;
  if (segment >= known + CLAIM_DISTANCE_MAX || segment >= NONE)
    return nbdedup_fail (EIO, "space: the journal names sector %" PRIu64
                         ", far past the end of records", p->addr);
  if (nr_sectors == 0 || nr_sectors > space->nr_sectors - sector ||
      p->chunk_addr / space->nr_sectors != segment)
    return nbdedup_fail (EIO, "space: the journal names sectors %" PRIu64
                         " + %" PRIu32 ", chunk %" PRIu64 ": cannot be",
                         p->addr, nr_sectors, p->chunk_addr);
  if (segment >= space->nr_segs && extend_segs (space, segment + 1) == -1)
    return -1;
  if (!space->segs[segment].backed && back_segment (space, segment) == -1)
    return -1;
  e = get_entry (space, segment);
  if (e == NULL)
    goto fail;

  chunk = p->slot / e->map->slots_per_chunk;
  nr_chunks = e->map->nr_chunks;
  lost = chunk < nr_chunks && e->map->chunks[chunk] == SEGMENT_CHUNK_LOST;
  if (segment_map_place_chunk (e->map, chunk,
                               p->chunk_addr % space->nr_sectors) == -1)
    goto fail;
  if (lost || chunk >= nr_chunks)
    e->chunks_dirty = true;
  if (segment_map_set (e->map, sector, nr_sectors) == -1 ||
      segment_map_set_slot (e->map, p->slot) == -1) {
    seg_refresh (space, e->map);
    goto fail;
  }
  pin (space, e);
  seg_refresh (space, e->map);
  return 0;

 fail:
  /* Other records of the journal may be in there: it must not be punched
   * as an empty one when the pool is closed now.
   */
  if (seg_is_empty (space, segment)) {
    err = errno;
    mark_damaged (space, segment);
    errno = err;
  }
  return -1;
}

/*----------------------------------------------------------------------
 * The fold
 */

void
space_committed (struct space *space, uint64_t addr)
{
  struct entry *e;
  WITH_LOCK (&space->lock);

  e = find_entry (space, addr / space->nr_sectors);
  assert (e != NULL);
  unpin (space, e);
}

int
space_unlink (struct space *space, uint64_t addr)
{
  const uint64_t segment = addr / space->nr_sectors;
  struct entry *e;
  WITH_LOCK (&space->lock);

  if (segment >= space->nr_segs || !space->segs[segment].backed)
    return nbdedup_fail (EIO, "space: sector %" PRIu64 ": there is no record",
                         addr);
  e = get_entry (space, segment);
  if (e == NULL)
    return -1;
  pin (space, e);
  return 0;
}

void
space_release (struct space *space, uint64_t addr, uint32_t nr_sectors,
               uint16_t slot)
{
  struct entry *e;
  WITH_LOCK (&space->lock);

  e = find_entry (space, addr / space->nr_sectors);
  assert (e != NULL);
  /* If the map disagrees the sectors stay in use: a leak, which check
   * finds, and not two records in one place.
   */
  if (segment_map_clear (e->map, addr % space->nr_sectors, nr_sectors) == 0)
    segment_map_clear_slot (e->map, slot);
  seg_refresh (space, e->map);
  unpin (space, e);
}

int
space_get_chunks (struct space *space, uint64_t segment, uint16_t **chunks,
                  unsigned *nr_chunks)
{
  struct entry *e;
  WITH_LOCK (&space->lock);

  if (segment >= space->nr_segs || !space->segs[segment].backed)
    return nbdedup_fail (EIO, "space: segment %" PRIu64 " is not in use",
                         segment);
  e = get_entry (space, segment);
  if (e == NULL)
    return -1;
  *nr_chunks = e->map->nr_chunks;
  *chunks = malloc ((*nr_chunks + 1) * sizeof **chunks);
  if (*chunks == NULL)
    return nbdedup_fail (ENOMEM, "space: no memory");
  memcpy (*chunks, e->map->chunks, *nr_chunks * sizeof **chunks);
  e->chunks_dirty = false;
  return 0;
}

void
space_get_info (struct space *space, struct space_info *info)
{
  WITH_LOCK (&space->lock);

  info->free_bytes = space->free_sectors * space->sector_bytes;
  info->used_bytes = space->used_sectors * space->sector_bytes;
  info->reserved_bytes = space->reserved_sectors * space->sector_bytes;
  info->nr_segments = space->nr_backed;
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* See space-model.h. */

#include <config.h>

#undef NDEBUG
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "format/segment.h"
#include "models/space-model.h"

struct store *store;
struct space *space;
uint32_t sector_bytes;
unsigned nr_sectors, spc;
static unsigned chunk_sectors;
uint64_t budget;
bool with_puncher;

struct record records[MAX_RECORDS];

uint32_t owner[MAX_SEGMENTS * 8192];
static uint32_t slot_owner[MAX_SEGMENTS][65536];
static struct {
  uint64_t addr;
  unsigned refs;
} chunks[MAX_SEGMENTS][128];

uint64_t live_sectors;
static uint64_t live_chunks;

/* Rows of table "segment": committed, and as the running fold leaves them. */
struct row {
  uint8_t *buf;
  size_t len;
  uint32_t nr_free, largest;
};
static struct row rows[MAX_SEGMENTS], next_rows[MAX_SEGMENTS];
bool folding;
unsigned nr_loads;
int64_t damaged_segment = -1;

unsigned
rnd (unsigned n)
{
  return (unsigned) random () % n;
}

uint64_t
length_of (struct store *s)
{
  uint64_t length;

  assert (store_length (s, &length) == 0);
  return length;
}

static int
load (void *opaque, uint64_t segment, uint8_t **buf, size_t *len)
{
  (void) opaque;
  nr_loads++;
  assert (segment < MAX_SEGMENTS);
  if ((int64_t) segment == damaged_segment)
    return nbdedup_fail (EIO, "damaged row");
  if (rows[segment].buf == NULL)
    return 0;
  *len = rows[segment].len;
  *buf = malloc (*len);
  assert (*buf);
  memcpy (*buf, rows[segment].buf, *len);
  return 1;
}

void
open_space (void)
{
  const struct space_ops ops = { .load = load };
  unsigned i;

  store = store_open ("records", false);
  assert (store);
  space = space_new (store, &ops, budget);
  assert (space);
  for (i = 0; i < MAX_SEGMENTS; ++i)
    if (rows[i].buf != NULL)
      assert (space_add_segment (space, i, rows[i].nr_free, rows[i].largest) ==
              0);
  if (with_puncher)
    assert (space_start_puncher (space, false) == 0);
}

void
close_space (void)
{
  space_destroy (space);
  assert (store_close (store) == 0);
}

void
forget_rows (void)
{
  unsigned i;

  for (i = 0; i < MAX_SEGMENTS; ++i) {
    free (rows[i].buf);
    rows[i].buf = NULL;
  }
}

void
start (uint32_t sector)
{
  struct store_header h = { .epoch = 1, .sector_bytes = sector };

  forget_rows ();
  memset (records, 0, sizeof records);
  memset (owner, 0, sizeof owner);
  memset (slot_owner, 0, sizeof slot_owner);
  memset (chunks, 0, sizeof chunks);
  live_sectors = live_chunks = 0;
  folding = false;
  unlink ("records");
  assert (store_create ("records", &h) == 0);
  sector_bytes = sector;
  nr_sectors = SEGMENT_BYTES / sector;
  chunk_sectors = sector < 4096 ? 4096 / sector : 1;
  spc = chunk_sectors * sector / 64;
  open_space ();
}

/* Segments that are being drained. */
static uint64_t drained[MAX_SEGMENTS];
static unsigned nr_drained;

/* In the model, give record 'i' its place, or take it away. */
static void
take (unsigned i)
{
  const struct record *r = &records[i];
  const uint64_t seg = r->p.addr / nr_sectors;
  const unsigned chunk = r->p.slot / spc;
  uint32_t k;

  for (k = 0; k < nr_drained; ++k)
    assert (drained[k] != seg);

  assert (seg < MAX_SEGMENTS);
  assert (r->p.addr >= STORE_HEADER_BYTES / sector_bytes);
  assert ((r->p.addr + r->nr - 1) / nr_sectors == seg);
  assert (r->p.chunk_addr / nr_sectors == seg);
  assert (r->p.chunk_addr % chunk_sectors == 0);
  assert (r->p.chunk_addr >= STORE_HEADER_BYTES / sector_bytes);
  assert (r->p.slot % spc != 0);
  assert ((r->p.addr + r->nr) * sector_bytes <= length_of (store));

  assert (slot_owner[seg][r->p.slot] == 0);
  slot_owner[seg][r->p.slot] = i + 1;
  if (chunks[seg][chunk].refs++ == 0) {
    chunks[seg][chunk].addr = r->p.chunk_addr;
    for (k = 0; k < chunk_sectors; ++k) {
      assert (owner[r->p.chunk_addr + k] == 0);
      owner[r->p.chunk_addr + k] = CHUNK_OWNER;
    }
    live_chunks++;
  }
  assert (chunks[seg][chunk].addr == r->p.chunk_addr);
  for (k = 0; k < r->nr; ++k) {
    assert (owner[r->p.addr + k] == 0);
    owner[r->p.addr + k] = i + 1;
  }
  live_sectors += r->nr;
}

void
release (uint64_t addr, uint32_t nr, uint16_t slot)
{
  const struct space_freed freed = { addr, nr, slot };

  space_release (space, &freed, 1);
}

void
drop (unsigned i)
{
  struct record *r = &records[i];
  const uint64_t seg = r->p.addr / nr_sectors;
  const unsigned chunk = r->p.slot / spc;
  uint32_t k;

  for (k = 0; k < r->nr; ++k) {
    assert (owner[r->p.addr + k] == i + 1);
    owner[r->p.addr + k] = 0;
  }
  assert (slot_owner[seg][r->p.slot] == i + 1);
  slot_owner[seg][r->p.slot] = 0;
  if (--chunks[seg][chunk].refs == 0) {
    for (k = 0; k < chunk_sectors; ++k)
      owner[chunks[seg][chunk].addr + k] = 0;
    live_chunks--;
  }
  live_sectors -= r->nr;
  r->state = FREE;
  r->doomed = false;
}

void
check_info (void)
{
  const uint64_t file_bytes = store_file_bytes (store);
  struct space_info info;

  space_get_info (space, &info);
  assert (info.used_bytes + info.free_bytes ==
          info.nr_segments * SEGMENT_BYTES);
  assert (info.used_bytes >=
          (live_sectors + live_chunks * chunk_sectors) * sector_bytes);
  assert (info.nr_segments * SEGMENT_BYTES <=
          length_of (store) + SEGMENT_BYTES);
  /* Punching one segment takes nothing of another. */
  assert (info.nr_segments * SEGMENT_BYTES <= file_bytes);
}

static void
add (const struct placement *p, uint32_t size)
{
  unsigned k = 0;

  while (records[k].state != FREE)
    assert (++k < MAX_RECORDS);
  records[k].p = *p;
  records[k].nr = size;
  records[k].state = ALLOCATED;
  take (k);
}

unsigned
alloc (unsigned nr, const uint32_t *sizes)
{
  struct placement out[MAX_BATCH];
  unsigned i;

  if (space_alloc (space, nr, sizes, out) == -1)
    return 0;
  for (i = 0; i < nr; ++i)
    add (&out[i], sizes[i]);
  return nr;
}

bool
alloc_apart (uint32_t size, const uint64_t *segments, unsigned nr_segments)
{
  struct placement out;
  unsigned i;

  if (space_alloc_apart (space, size, segments, nr_segments, &out) == -1)
    return false;
  for (i = 0; i < nr_segments; ++i)
    assert (out.addr / nr_sectors != segments[i]);
  if (rnd (8) == 0) {
    space_undo (space, &out, size);
    return true;
  }
  add (&out, size);
  return true;
}

bool
alloc_dense (uint32_t size)
{
  struct placement out;

  if (space_alloc_dense (space, size, &out) == -1)
    return false;
  add (&out, size);
  return true;
}

void
drain (uint64_t max_bytes)
{
  struct space_info before, after;
  unsigned i, j;

  if (nr_drained > 0)
    return;
  space_get_info (space, &before);
  nr_drained = space_drain (space, max_bytes, drained, MAX_SEGMENTS);
  space_get_info (space, &after);
  /* It may take segment 0 again, whose header counts as used. */
  assert (after.used_bytes - before.used_bytes == 0 ||
          after.used_bytes - before.used_bytes < SEGMENT_BYTES / 2);
  for (i = 0; i < nr_drained; ++i)
    for (j = 0; j < i; ++j)
      assert (drained[i] != drained[j]);
}

void
undrain (void)
{
  const unsigned nr = nr_drained;

  nr_drained = 0;
  assert (space_undrain (space, drained, nr) <= nr);
}

unsigned
nr_in_state (enum state state)
{
  unsigned i, n = 0;

  for (i = 0; i < MAX_RECORDS; ++i)
    n += records[i].state == state;
  return n;
}

/*----------------------------------------------------------------------
 * Folding, as fold.c does it
 */

static void
fold_record (unsigned i, bool insert)
{
  const struct record *r = &records[i];
  const uint64_t seg = r->p.addr / nr_sectors;
  struct row *row = &next_rows[seg];
  struct segment_map *map;
  uint16_t *c;
  unsigned nr, start_sector;

  map = row->buf ? segment_map_unpack (seg, sector_bytes, row->buf, row->len)
                 : segment_map_new (seg, sector_bytes);
  assert (map);
  if (insert) {
    if (segment_map_set_slot (map, r->p.slot) == -1) {
      assert (space_get_chunks (space, seg, &c, &nr) == 0);
      assert (segment_map_set_chunks (map, c, nr) == 0);
      free (c);
      assert (segment_map_set_slot (map, r->p.slot) == 0);
    }
    assert (segment_map_set (map, r->p.addr % nr_sectors, r->nr) == 0);
    assert (map->chunks[r->p.slot / spc] == r->p.chunk_addr % nr_sectors);
  }
  else {
    assert (space_unlink (space, r->p.addr) == 0);
    assert (segment_map_clear_slot (map, r->p.slot) == 0);
    assert (segment_map_clear (map, r->p.addr % nr_sectors, r->nr) == 0);
  }
  free (row->buf);
  row->buf = NULL;
  if (!segment_map_is_empty (map)) {
    row->buf = segment_map_pack (map, &row->len);
    assert (row->buf);
    row->nr_free = map->nr_sectors - map->nr_used;
    row->largest = segment_map_largest_run (map, &start_sector);
  }
  segment_map_free (map);
}

void
fold_begin (unsigned kill)
{
  unsigned i;

  assert (!folding);
  folding = true;
  for (i = 0; i < MAX_SEGMENTS; ++i) {
    next_rows[i] = rows[i];
    if (rows[i].buf) {
      next_rows[i].buf = malloc (rows[i].len);
      assert (next_rows[i].buf);
      memcpy (next_rows[i].buf, rows[i].buf, rows[i].len);
    }
  }
  for (i = 0; i < MAX_RECORDS; ++i)
    if (records[i].state == ALLOCATED) {
      if (rnd (100) < kill)
        records[i].state = DYING;
      else {
        records[i].state = INSERTING;
        fold_record (i, true);
      }
    }
    else if (records[i].state == COMMITTED &&
             (records[i].doomed || rnd (100) < kill)) {
      records[i].state = UNLINKED;
      fold_record (i, false);
    }
}

static void
commit_rows (void)
{
  unsigned i;

  for (i = 0; i < MAX_SEGMENTS; ++i) {
    free (rows[i].buf);
    rows[i] = next_rows[i];
    next_rows[i].buf = NULL;
  }
}

void
fold_end (void)
{
  unsigned i;

  assert (folding);
  commit_rows ();
  for (i = 0; i < MAX_RECORDS; ++i)
    if (records[i].state == INSERTING) {
      space_committed (space, records[i].p.addr);
      records[i].state = COMMITTED;
    }
  for (i = 0; i < MAX_RECORDS; ++i)
    if (records[i].state == UNLINKED || records[i].state == DYING) {
      release (records[i].p.addr, records[i].nr, records[i].p.slot);
      drop (i);
    }
  folding = false;
}

void
fold (unsigned kill)
{
  fold_begin (kill);
  fold_end ();
}

void
crash (void)
{
  static unsigned claims[MAX_RECORDS];
  const bool committed = folding && rnd (2);
  const unsigned keep = rnd (101);
  unsigned i, k, t, n = 0;

  nr_drained = 0;
  if (committed)
    commit_rows ();
  else if (folding)
    for (i = 0; i < MAX_SEGMENTS; ++i) {
      free (next_rows[i].buf);
      next_rows[i].buf = NULL;
    }
  folding = false;
  close_space ();

  for (i = 0; i < MAX_RECORDS; ++i)
    switch (records[i].state) {
    case INSERTING:
      if (committed) {
        records[i].state = COMMITTED;
        break;
      }
      /* fall through */
    case ALLOCATED:
    case DYING:
      if ((committed && records[i].state == DYING) || rnd (100) >= keep)
        drop (i);
      else {
        claims[n++] = i;
        records[i].state = ALLOCATED;
      }
      break;
    case UNLINKED:
      if (committed)
        drop (i);
      else
        records[i].state = COMMITTED;
      break;
    case COMMITTED:
    case FREE:
      break;
    }
  open_space ();
  for (i = 0; i < n; ++i) {
    k = i + rnd (n - i);
    t = claims[i];
    claims[i] = claims[k];
    claims[k] = t;
    if (space_claim (space, &records[claims[i]].p, records[claims[i]].nr,
                     false) == -1) {
      fprintf (stderr, "claim: %s\n", nbdedup_error ());
      abort ();
    }
  }
  /* A second claim of the same sectors is an overlap. */
  if (n > 0) {
    assert (space_claim (space, &records[claims[0]].p, 1, false) == -1);
    assert (errno == EIO);
  }
}

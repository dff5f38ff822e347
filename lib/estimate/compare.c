/* SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/mman.h>

#include "base/array.h"
#include "base/error.h"
#include "base/fullio.h"
#include "base/tempfile.h"
#include "estimate/compare.h"
#include "format/format.h"

/* An image's hashes begin and end at whole blocks of any size. */
#define UNIT_BYTES BLOCK_SIZE_MAX

/* A table is full at this share, because probing gets long beyond it. */
#define FULL_NUMERATOR 3
#define FULL_DENOMINATOR 4

/* The smallest table, of NBDEDUP_ESTIMATE_MEMORY_MIN. */
#define SLOTS_MIN (UINT64_C (1) << 14)

/* Call 'look' after so many blocks: some milliseconds. */
#define LOOK_BLOCKS (UINT64_C (1) << 16)

struct compared {
  char *name; /* owned */
  int64_t time;
  uint64_t first; /* the place of its first piece in the file */
  uint64_t bytes;
};

struct compare {
  const char *dir;
  uint32_t piece_bytes;
  int fd;
  struct compared *images; /* owned; images[0] is the golden one */
  size_t nr;
};

#define NO_CLONE UINT32_MAX

_Static_assert (SLOTS_MIN * 16 == NBDEDUP_ESTIMATE_MEMORY_MIN, "SLOTS_MIN");

/* A content. */
struct slot {
  uint64_t key;   /* 0: empty */
  uint32_t first; /* the first clone that has it, or NO_CLONE */
  bool golden;    /* the golden image has it */
  bool several;   /* more than one clone has it */
};

_Static_assert (sizeof (struct slot) == 16, "SLOTS_MIN");

/* The contents of one part. */
struct contents {
  struct slot *slots; /* owned */
  uint64_t mask;
  uint64_t nr_used;
  unsigned part_bits, part;
};

struct class_counts {
  uint64_t blocks, logical, same, moved, sibling, unique;
  uint64_t only_here; /* distinct contents */
};

/* One comparison: a block size, and the images of one time. */
struct run {
  struct compare *c;
  const struct compare_settings *settings;
  const XXH128_hash_t *pieces; /* the file, mapped */
  unsigned per;                /* pieces of a block */
  const size_t *members;       /* images; members[0] is 0 */
  size_t nr;
  struct class_counts *counts; /* by member */
  uint64_t distinct;
  uint64_t looked; /* blocks since the last look */
};

static int
fail_memory (void)
{
  return nbdedup_fail (ENOMEM, "out of memory");
}

/*----------------------------------------------------------------------
 * The file
 */

struct compare *
compare_new (const char *dir, uint32_t piece_bytes)
{
  struct compare *c = calloc (1, sizeof *c);

  assert (UNIT_BYTES % piece_bytes == 0);
  if (c == NULL)
    return nbdedup_fail_null (ENOMEM, "out of memory");
  c->dir = dir;
  c->piece_bytes = piece_bytes;
  c->fd = tempfile_open (dir);
  if (c->fd != -1)
    return c;
  compare_free (c);
  return NULL;
}

void
compare_free (struct compare *c)
{
  const int err = errno;

  if (c == NULL)
    return;
  while (c->nr > 0)
    free (c->images[--c->nr].name);
  free (c->images);
  if (c->fd != -1)
    close (c->fd);
  free (c);
  errno = err;
}

static uint64_t
pieces_of (const struct compare *c, uint64_t bytes)
{
  const uint64_t units = bytes / UNIT_BYTES + (bytes % UNIT_BYTES != 0);

  return units * (UNIT_BYTES / c->piece_bytes);
}

int
compare_begin (struct compare *c, const char *name, int64_t time)
{
  const struct compared *last = c->nr > 0 ? &c->images[c->nr - 1] : NULL;
  const uint64_t first = last ? last->first + pieces_of (c, last->bytes) : 0;
  struct compared *image;
  char *copy = strdup (name);

  if (copy == NULL)
    return fail_memory ();
  if (c->nr == NO_CLONE) {
    free (copy);
    return nbdedup_fail (EINVAL, "too many images");
  }
  image = array_add (&c->images, &c->nr, sizeof *image);
  if (image == NULL) {
    free (copy);
    return -1;
  }
  *image = (struct compared) { copy, time, first, 0 };
  return 0;
}

/* EIO: the caller takes ENOSPC for a lack of memory. */
static int
fail_file (const struct compare *c, const char *what)
{
  return nbdedup_fail (EIO, "%s: %s a temporary file: %s%s", c->dir, what,
                       strerror (errno),
                       errno == ENOSPC
                         ? ": set TMPDIR to a directory with more room"
                         : "");
}

int
compare_put (struct compare *c, uint64_t first, const XXH128_hash_t *hashes,
             unsigned nr)
{
  const struct compared *image = &c->images[c->nr - 1];

  assert (c->nr > 0);
  if (full_pwrite (c->fd, hashes, nr * sizeof hashes[0],
                   (image->first + first) * sizeof hashes[0]) == -1)
    return fail_file (c, "writing");
  return 0;
}

int
compare_end (struct compare *c, uint64_t bytes)
{
  struct compared *image = &c->images[c->nr - 1];
  const uint64_t end = image->first + pieces_of (c, bytes);

  assert (c->nr > 0);
  image->bytes = bytes;
  /* What is not written are holes. */
  if (ftruncate (c->fd, (off_t) (end * sizeof (XXH128_hash_t))) == -1)
    return fail_file (c, "extending");
  return 0;
}

/*----------------------------------------------------------------------
 * Contents
 */

/* Never 0, which means an empty slot. */
static uint64_t
key_of (const XXH128_hash_t *hash)
{
  return hash->high64 | (hash->high64 == 0);
}

static struct slot *
find_slot (struct contents *t, const XXH128_hash_t *hash)
{
  const uint64_t key = key_of (hash);
  uint64_t i = key & t->mask;

  while (t->slots[i].key != 0 && t->slots[i].key != key)
    i = (i + 1) & t->mask;
  return &t->slots[i];
}

/* Other bits than those that find_slot compares. */
static bool
is_in_part (const struct contents *t, const XXH128_hash_t *hash)
{
  return t->part_bits == 0 || hash->low64 >> (64 - t->part_bits) == t->part;
}

static bool
is_full (const struct contents *t)
{
  return t->nr_used > t->mask / FULL_DENOMINATOR * FULL_NUMERATOR;
}

static uint64_t
count_blocks (const struct run *r, size_t member)
{
  const uint64_t bytes = r->c->images[r->members[member]].bytes;
  const uint32_t size = r->settings->block_size;

  return bytes / size + (bytes % size != 0);
}

/* False: the block is zeroes, or beyond the image's end. */
static bool
hash_block (const struct run *r, size_t member, uint64_t block,
            XXH128_hash_t *hash)
{
  const struct compared *image = &r->c->images[r->members[member]];
  const XXH128_hash_t *p = r->pieces + image->first + block * r->per;
  unsigned i;

  if (block >= count_blocks (r, member))
    return false;
  for (i = 0; i < r->per && is_zero_hash (&p[i]); ++i)
    ;
  if (i == r->per)
    return false;
  *hash = hash_of_pieces (p, r->per);
  return true;
}

static int
look (struct run *r)
{
  if (++r->looked % LOOK_BLOCKS != 0 || r->settings->look == NULL)
    return 0;
  return r->settings->look (r->settings->opaque);
}

static void
note_content (struct contents *t, struct slot *slot, const XXH128_hash_t *hash,
              size_t member)
{
  if (slot->key == 0) {
    *slot = (struct slot) { .key = key_of (hash), .first = NO_CLONE };
    t->nr_used++;
  }
  if (member == 0)
    slot->golden = true;
  else if (slot->first == NO_CLONE)
    slot->first = (uint32_t) member;
  else if (slot->first != member)
    slot->several = true;
}

/* Find the contents of the part.  1: they do not fit; -1: failed. */
static int
find_contents (struct run *r, struct contents *t)
{
  XXH128_hash_t hash;
  uint64_t block, nr;
  size_t member;

  t->nr_used = 0;
  memset (t->slots, 0, (t->mask + 1) * sizeof t->slots[0]);
  for (member = 0; member < r->nr; ++member) {
    nr = count_blocks (r, member);
    for (block = 0; block < nr; ++block) {
      if (look (r) == -1)
        return -1;
      if (!hash_block (r, member, block, &hash) || !is_in_part (t, &hash))
        continue;
      if (is_full (t))
        return 1;
      note_content (t, find_slot (t, &hash), &hash, member);
    }
  }
  return 0;
}

static void
count_block (const struct run *r, struct contents *t, size_t member,
             uint64_t block, const XXH128_hash_t *hash)
{
  const struct slot *slot = find_slot (t, hash);
  struct class_counts *n = &r->counts[member];
  XXH128_hash_t golden;

  assert (slot->key != 0);
  n->logical++;
  if (member == 0)
    return;
  if (hash_block (r, 0, block, &golden) && XXH128_isEqual (golden, *hash))
    n->same++;
  else if (slot->golden)
    n->moved++;
  else if (slot->several)
    n->sibling++;
  else
    n->unique++;
}

/* Classify the blocks whose contents are in the part. */
static int
count_part (struct run *r, struct contents *t)
{
  XXH128_hash_t hash;
  uint64_t block, nr, i;
  size_t member;

  for (member = 0; member < r->nr; ++member) {
    nr = count_blocks (r, member);
    for (block = 0; block < nr; ++block) {
      if (look (r) == -1)
        return -1;
      if (hash_block (r, member, block, &hash) && is_in_part (t, &hash))
        count_block (r, t, member, block, &hash);
    }
  }
  r->distinct += t->nr_used;
  for (i = 0; i <= t->mask; ++i) {
    const struct slot *slot = &t->slots[i];

    if (slot->key != 0 && !slot->golden && !slot->several)
      r->counts[slot->first].only_here++;
  }
  return 0;
}

/* 1: a part does not fit. */
static int
count_parts (struct run *r, struct contents *t)
{
  int e;

  memset (r->counts, 0, r->nr * sizeof r->counts[0]);
  r->distinct = 0;
  for (t->part = 0; t->part < 1u << t->part_bits; ++t->part) {
    e = find_contents (r, t);
    if (e == 0)
      e = count_part (r, t);
    if (e != 0)
      return e;
  }
  return 0;
}

/* A table for the contents, and parts if it would be too large. */
static int
make_table (const struct run *r, struct contents *t)
{
  const double wanted = r->settings->distinct * FULL_DENOMINATOR /
    FULL_NUMERATOR * 1.05;
  uint64_t slots = SLOTS_MIN;

  while ((double) slots < wanted &&
         slots * 2 * sizeof t->slots[0] <= r->settings->memory_bytes)
    slots *= 2;
  t->mask = slots - 1;
  t->part_bits = 0;
  while (ldexp (wanted, -(int) t->part_bits) > (double) slots)
    t->part_bits++;
  t->slots = malloc (slots * sizeof t->slots[0]);
  return t->slots == NULL ? fail_memory () : 0;
}

static int
count (struct run *r)
{
  struct contents t = { NULL };
  int e = make_table (r, &t);

  while (e == 0 && (e = count_parts (r, &t)) == 1) {
    t.part_bits++;
    e = 0;
  }
  free (t.slots);
  return e;
}

/*----------------------------------------------------------------------
 * Documents
 */

static json_t *
clone_json (const struct run *r, size_t member)
{
  const struct class_counts *n = &r->counts[member];

  return json_pack ("{s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "name",
                    nbdedup_json_text (r->c->images[r->members[member]].name),
                    "zero",
                    (json_int_t) (count_blocks (r, member) - n->logical),
                    "golden_same", (json_int_t) n->same, "golden_moved",
                    (json_int_t) n->moved, "sibling", (json_int_t) n->sibling,
                    "unique", (json_int_t) n->unique, "logical",
                    (json_int_t) n->logical, "only_here_bytes",
                    (json_int_t) llround ((double) n->only_here *
                                          r->settings->stored_bytes));
}

static json_t *
fleet_json (const struct run *r)
{
  uint64_t logical = 0;
  size_t i;

  for (i = 0; i < r->nr; ++i)
    logical += r->counts[i].logical;
  return json_pack ("{s:I, s:I, s:o, s:I}", "logical", (json_int_t) logical,
                    "distinct", (json_int_t) r->distinct, "dedup_ratio",
                    r->distinct == 0
                      ? json_null ()
                      : json_real ((double) logical / (double) r->distinct),
                    "distinct_stored_bytes",
                    (json_int_t) llround ((double) r->distinct *
                                          r->settings->stored_bytes));
}

static json_t *
document (const struct run *r)
{
  json_t *clones = json_array (), *result;
  size_t i;

  for (i = 1; i < r->nr; ++i)
    json_array_append_new (clones, clone_json (r, i));
  result = json_pack ("{s:o, s:I, s:I, s:I, s:o, s:o}", "golden",
                      nbdedup_json_text (r->c->images[0].name), "time",
                      (json_int_t) r->c->images[r->members[1]].time,
                      "block_size", (json_int_t) r->settings->block_size,
                      "golden_blocks", (json_int_t) r->counts[0].logical,
                      "clones", clones, "fleet", fleet_json (r));
  if (result == NULL || json_array_size (clones) != r->nr - 1) {
    json_decref (result);
    return fail_memory (), NULL;
  }
  return result;
}

static json_t *
compare_members (struct run *r)
{
  json_t *result = NULL;

  r->counts = calloc (r->nr, sizeof r->counts[0]);
  if (r->counts == NULL)
    return fail_memory (), NULL;
  if (count (r) == 0)
    result = document (r);
  free (r->counts);
  return result;
}

/* The next time after '*time' at which there are images (the 'first' of all),
 * and in 'members' those images, behind the golden one.
 */
static size_t
next_members (const struct compare *c, int64_t *time, bool first,
              size_t *members)
{
  size_t nr = 1, i;
  int64_t next = 0;
  bool found = false;

  for (i = 1; i < c->nr; ++i)
    if ((first || c->images[i].time > *time) &&
        (!found || c->images[i].time < next)) {
      next = c->images[i].time;
      found = true;
    }
  members[0] = 0;
  for (i = 1; i < c->nr && found; ++i)
    if (c->images[i].time == next)
      members[nr++] = i;
  *time = next;
  return nr;
}

static json_t *
compare_all (struct run *r, size_t *members)
{
  json_t *documents = json_array (), *d;
  int64_t time = 0;

  r->members = members;
  while ((r->nr = next_members (r->c, &time, json_array_size (documents) == 0,
                                members)) > 1) {
    d = compare_members (r);
    if (d == NULL || json_array_append_new (documents, d) == -1) {
      json_decref (documents);
      return NULL;
    }
  }
  return documents;
}

json_t *
compare_result (struct compare *c, const struct compare_settings *settings)
{
  struct run r = {
    .c = c,
    .settings = settings,
    .per = settings->block_size / c->piece_bytes,
  };
  const off_t bytes = lseek (c->fd, 0, SEEK_END);
  size_t *members = calloc (c->nr + 1, sizeof *members);
  json_t *result = NULL;
  void *map = NULL;

  assert (r.per > 0 && c->nr > 1);
  if (members == NULL)
    return fail_memory (), NULL;
  if (bytes > 0) /* 0: all images are empty */
    map = mmap (NULL, (size_t) bytes, PROT_READ, MAP_SHARED, c->fd, 0);
  if (map == MAP_FAILED)
    fail_file (c, "mapping");
  else {
    r.pieces = map;
    result = compare_all (&r, members);
  }
  if (map != NULL && map != MAP_FAILED)
    munmap (map, (size_t) bytes);
  free (members);
  return result;
}

/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "disk/sorter.h"
#include "drift/record-join.h"

#define WHO_BITS 24
#define RELEASE (UINT64_C (1) << 63)
#define NO_CONTENT (UINT64_C (1) << 62)
#define STEP_ITEMS 65536

static_assert (ADDR_MAX <= UINT64_MAX >> WHO_BITS,
               "an address and a number fit together");

struct join_item {
  uint64_t addr_who; /* the address in the upper bits */
  uint64_t block;    /* also RELEASE, NO_CONTENT; NO_CONTENT alone:
                                 * a new reference */
};

/* References to one record that a party drops; and does it add any? */
struct party {
  uint64_t drops;
  bool adds, is_seen;
};

struct record_join {
  struct view *v;        /* not owned */
  struct sorter *sorter; /* owned */

  /* The pass */
  uint64_t *freed;       /* not owned */
  struct party *parties; /* owned; by who */
  uint32_t *seen;        /* owned; parties that drop or add one */
  uint32_t nr_seen;
  struct blob row;      /* of records */
  uint64_t group;       /* its number; UINT64_MAX: none yet */
  size_t off;           /* of the entry after 'record' */
  struct record record; /* at the current address */
};

static int
compare_items (const void *a, const void *b)
{
  const struct join_item *x = a, *y = b;

  if (x->addr_who != y->addr_who)
    return x->addr_who < y->addr_who ? -1 : 1;
  return x->block < y->block ? -1 : x->block > y->block;
}

struct record_join *
record_join_new (struct view *v, uint64_t memory_bytes)
{
  struct record_join *t = calloc (1, sizeof *t);

  if (t == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  t->v = v;
  t->group = UINT64_MAX;
  t->sorter = sorter_new (v->dir, sizeof (struct join_item), compare_items,
                          memory_bytes);
  if (t->sorter == NULL) {
    free (t);
    return NULL;
  }
  sorter_set_look (t->sorter, v->look, v->opaque);
  return t;
}

void
record_join_free (struct record_join *t)
{
  if (t == NULL)
    return;
  sorter_free (t->sorter);
  blob_free (&t->row);
  free (t->parties);
  free (t->seen);
  free (t);
}

static int
add (struct record_join *t, uint64_t addr, uint32_t who, uint64_t block)
{
  struct join_item item = { addr << WHO_BITS | who, block };

  assert (addr <= ADDR_MAX && who <= RECORD_JOIN_WHO_MAX);
  return sorter_add (t->sorter, &item);
}

int
record_join_add_content (struct record_join *t, uint64_t addr, uint32_t who,
                         uint64_t block, bool releases)
{
  assert (block < NO_CONTENT);
  return add (t, addr, who, releases ? block | RELEASE : block);
}

int
record_join_add_release (struct record_join *t, uint64_t addr, uint32_t who)
{
  return add (t, addr, who, RELEASE | NO_CONTENT);
}

int
record_join_add_reference (struct record_join *t, uint64_t addr, uint32_t who)
{
  return add (t, addr, who, NO_CONTENT);
}

uint64_t
record_join_count (const struct record_join *t)
{
  return sorter_count (t->sorter);
}

/* Addresses ascend, so this reads each row of records once, and each of its
 * entries once.
 */
static int
find_record (struct record_join *t, uint64_t addr)
{
  uint64_t group = addr / RECORD_GROUP_SECTORS;
  int n;

  if (group != t->group) {
    if (meta_record_get (t->v->c, group, &t->row) == -1 ||
        view_look (t->v) == -1)
      return -1;
    t->group = group;
    t->off = 0;
  }
  while (t->off < t->row.len) {
    n = record_unpack (group, t->row.p + t->off, t->row.len - t->off,
                       &t->record);
    if (n == -1)
      return -1;
    if (t->record.ptr.addr > addr)
      break;
    t->off += (size_t) n;
    if (t->record.ptr.addr == addr)
      return 0;
  }
  return nbdedup_fail (EIO,
                       "pool.db: the record at %" PRIu64 " is missing: "
                       "run nbdedup check",
                       addr);
}

static struct party *
see_party (struct record_join *t, uint32_t who)
{
  struct party *p = &t->parties[who];

  if (!p->is_seen)
    t->seen[t->nr_seen++] = who;
  p->is_seen = true;
  return p;
}

/* A record's references are all counted: add its sectors to the parties that
 * would free it.
 */
static int
end_record (struct record_join *t)
{
  uint64_t anyway = t->parties[0].drops, refcount = t->record.refcount;
  uint32_t i, who;
  struct party *p;

  for (i = 0; i < t->nr_seen; ++i) {
    /* NOLINTNEXTLINE(clang-analyzer-core.*): run_item has filled it. */
    who = t->seen[i];
    p = &t->parties[who];
    if (who != 0) {
      if (p->drops + anyway > refcount)
        return nbdedup_fail (EIO,
                             "pool.db: the maps refer to the record at %" PRIu64
                             " more often than its reference count "
                             "says: run nbdedup check",
                             t->record.ptr.addr);
      if (p->drops + anyway == refcount && !p->adds)
        t->freed[who] += sectors_of (t->record.ptr.psize, t->v->sector_bytes);
    }
    *p = (struct party) { .drops = 0 };
  }
  t->nr_seen = 0;
  return 0;
}

static int
run_item (struct record_join *t, const struct join_item *item, uint64_t *addr,
          record_join_content_fn *content, void *opaque)
{
  uint32_t who = item->addr_who & RECORD_JOIN_WHO_MAX;

  if (item->addr_who >> WHO_BITS != *addr) {
    if (end_record (t) == -1)
      return -1;
    *addr = item->addr_who >> WHO_BITS;
    if (find_record (t, *addr) == -1)
      return -1;
  }
  if (item->block & RELEASE)
    see_party (t, who)->drops++;
  else if (item->block & NO_CONTENT)
    see_party (t, who)->adds = true;
  if (item->block & NO_CONTENT)
    return 0;
  return content (opaque, &t->record, who, item->block & ~RELEASE);
}

int
record_join_run (struct record_join *t, uint64_t *freed, uint32_t nr_who,
                 record_join_content_fn *content,
                 int (*step) (void *, uint64_t), void *opaque)
{
  uint64_t addr = 0, done = 0; /* no record is at address 0 */
  const void *item;
  int r;

  assert (t->parties == NULL);
  t->freed = freed;
  t->parties = calloc ((size_t) nr_who + 1, sizeof *t->parties);
  t->seen = malloc (((size_t) nr_who + 1) * sizeof *t->seen);
  if (t->parties == NULL || t->seen == NULL)
    return nbdedup_fail (ENOMEM, "no memory");
  if (sorter_finish (t->sorter) == -1)
    return -1;
  while ((r = sorter_next (t->sorter, &item)) == 1) {
    if (run_item (t, item, &addr, content, opaque) == -1 ||
        (++done % STEP_ITEMS == 0 && step (opaque, done) == -1))
      return -1;
  }
  return r == -1 ? -1 : end_record (t);
}

/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "base/backoff.h"
#include "base/error.h"
#include "base/invariant.h"
#include "base/lock.h"
#include "base/hashtable.h"
#include "base/mix.h"
#include "base/waiting.h"
#include "core/ddt-filter.h"
#include "core/ddt.h"

/*  STATE   in LRU   may be evicted   left by
 *  CLEAN   yes      yes              eviction, death
 *  NEW     no       no               ddt_fold_done (-> CLEAN), death
 *
 * Only records with RECORD_INDEXED are in by_digest; the others are
 * reached through their ref alone, and exist only while NEW.
 */
struct ddt_entry {
  struct hashtable_link link; /* in by_digest */
  TAILQ_ENTRY (ddt_entry) lru;
  struct record record;
  uint64_t chunk_addr;
  uint64_t copy_of; /* 0: not a copy */
  bool is_new;
};

struct ref {
  struct hashtable_link link; /* in refs */
  uint64_t addr;
  int64_t delta[2];        /* by parity of the txg */
  bool taken[2];           /* the txg has taken a reference at some time */
  struct ddt_entry *entry; /* NEW: owned until ddt_fold_done; or NULL */
  uint8_t new_in;          /* parity of the txg that made 'entry' */
  bool dead;
  bool pruned; /* lookups must not find it now */
};

/* Groups of records with a hit lately; for as many runs of duplicates at once
 * neighbours are found.
 */
#define NR_RECENT 64u

struct ddt {
  struct meta *meta;         /* not owned; outlives the ddt */
  size_t budget_bytes;       /* for CLEAN entries and the filter */
  struct ddt_filter *filter; /* owned */

  struct lock lock; /* protects everything below */
  struct hashtable by_digest, refs;
  TAILQ_HEAD (, ddt_entry) lru; /* least recently used first */
  size_t nr_clean;
  struct index_runs runs;
  uint64_t recent[NR_RECENT]; /* is_near_locked: groups + 1; 0: none */
  unsigned open;              /* parity of the open txg */
  uint64_t hits, misses;
  size_t changes; /* for invariant_is_due */

  atomic_size_t pending_bytes; /* written under the lock, read without */
};

/*----------------------------------------------------------------------
 * True whenever the lock is not held, besides the invariants of ddt.h:
 *
 *  (4) CLEAN entries are within the budget, on the LRU list, and indexed.
 *      (When the filter has grown, they shrink with the next insertions.)
 *
 *  (5) A ref with a NEW entry has its address, and owns it.
 *
 *  (6) A txg that has never taken a reference has none to add; the open one
 *      has never taken any to a dead record.
 *
 *  (7) pending_bytes counts all refs and all NEW entries.
 *
 *  (8) A record that is being pruned has no entry.
 *
 * Checking (5) to (8), and invariant (1) of ddt.h, visits all refs.
 */

_Static_assert (DDT_FILTER_BITS <= HASHTABLE_BITS,
                "the buckets of a part of the filter");
#define REF_BYTES (sizeof (struct ref) + 16)
#define NEW_BYTES (sizeof (struct ddt_entry) + 16)
/* 16: the allocator's and the bucket array's share of an entry. */
#define CLEAN_BYTES (sizeof (struct ddt_entry) + 16)

struct ddt_sums {
  const struct ddt *ddt;
  size_t bytes;
};

static void
assert_ref_locked (void *opaque, struct hashtable_link *l)
{
  const struct ref *r = hashtable_entry (l, struct ref, link);
  struct ddt_sums *sums = opaque;
  unsigned i;

  for (i = 0; i < 2; ++i)
    assert (r->taken[i] ? r->delta[i] >= 0 : r->delta[i] == 0);
  assert (!r->dead || !r->taken[sums->ddt->open]);
  assert (!r->pruned || (!r->dead && r->entry == NULL));
  sums->bytes += REF_BYTES;
  if (r->entry == NULL)
    return;
  assert (r->entry->is_new && r->entry->record.ptr.addr == r->addr);
  sums->bytes += NEW_BYTES;
}

static void
assert_all_locked (struct ddt *ddt)
{
  struct ddt_sums sums = { .ddt = ddt };
  const struct ddt_entry *e;
  size_t nr = 0;

  hashtable_visit (&ddt->refs, assert_ref_locked, &sums);
  assert (sums.bytes == ddt->pending_bytes);
  TAILQ_FOREACH (e, &ddt->lru, lru) {
    assert (!e->is_new && e->record.flags & RECORD_INDEXED);
    nr++;
  }
  assert (nr == ddt->nr_clean);
}

static void
ddt_assert_consistent_locked (struct ddt *ddt)
{
  assert_held (&ddt->lock);
  assert (ddt->open <= 1);
  assert (ddt->nr_clean * CLEAN_BYTES <= ddt->budget_bytes);
  assert (TAILQ_EMPTY (&ddt->lru) == (ddt->nr_clean == 0));
  assert (ddt->nr_clean <= ddt->by_digest.nr_entries);
  assert (ddt->pending_bytes >= ddt->refs.nr_entries * REF_BYTES);
  if (invariant_is_due (&ddt->changes,
                        ddt->refs.nr_entries + ddt->refs.nr_buckets +
                          ddt->nr_clean))
    assert_all_locked (ddt);
}

DEFINE_WITH_CONSISTENT (ddt)

/*----------------------------------------------------------------------*/

static uint64_t
nr_new_locked (void *opaque)
{
  const struct ddt *ddt = opaque;

  return ddt->refs.nr_entries;
}

/* In by_digest, so that the lowest bits are the filter's part.  A prefix would
 * not do: its own lowest bits are 0.
 */
static uint64_t
hash_of (const struct digest *digest)
{
  const uint64_t word = digest_word (digest);

  return word << DDT_FILTER_BITS | word >> (64 - DDT_FILTER_BITS);
}

static void
add_entry_to_filter_locked (void *opaque, struct hashtable_link *l)
{
  const struct ddt_entry *e = hashtable_entry (l, struct ddt_entry, link);
  struct ddt *ddt = opaque;

  if (e->is_new)
    ddt_filter_add_locked (ddt->filter, digest_prefix (&e->record.digest));
}

static void
add_new_to_filter_locked (void *opaque, unsigned part)
{
  struct ddt *ddt = opaque;

  hashtable_visit_some (&ddt->by_digest, part, DDT_FILTER_BITS,
                        add_entry_to_filter_locked, ddt);
}

struct ddt *
ddt_new (struct meta *meta, uint64_t budget_bytes)
{
  struct ddt *ddt = calloc (1, sizeof *ddt);
  const struct ddt_filter_ops ops = {
    nr_new_locked,
    add_new_to_filter_locked,
    ddt,
  };

  if (ddt == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory for the dedup table");
  lock_init (&ddt->lock);
  TAILQ_INIT (&ddt->lru);
  ddt->meta = meta;
  ddt->budget_bytes = budget_bytes;
  ddt->filter = ddt_filter_new (meta, &ddt->lock,
                                DDT_FILTER_BUDGET (budget_bytes), &ops);
  if (ddt->filter == NULL || hashtable_init (&ddt->by_digest) == -1 ||
      hashtable_init (&ddt->refs) == -1) {
    ddt_free (ddt);
    return nbdedup_fail_null (ENOMEM, "no memory for the dedup table");
  }
  return ddt;
}

static void
free_ref (void *opaque, struct hashtable_link *l)
{
  struct ref *r = hashtable_entry (l, struct ref, link);
  struct ddt *ddt = opaque;

  if (r->entry) {
    if (r->entry->record.flags & RECORD_INDEXED)
      hashtable_remove (&ddt->by_digest, &r->entry->link);
    free (r->entry);
  }
  free (r);
}

static void
free_entry (void *opaque, struct hashtable_link *l)
{
  (void) opaque;
  free (hashtable_entry (l, struct ddt_entry, link));
}

void
ddt_free (struct ddt *ddt)
{
  if (ddt == NULL)
    return;
  ddt_filter_free (ddt->filter); /* its thread reads the tables */
  if (ddt->refs.buckets)
    hashtable_visit (&ddt->refs, free_ref, ddt);
  if (ddt->by_digest.buckets)
    hashtable_visit (&ddt->by_digest, free_entry, ddt);
  hashtable_destroy (&ddt->refs);
  hashtable_destroy (&ddt->by_digest);
  lock_destroy (&ddt->lock);
  free (ddt);
}

static struct ref *
find_ref_locked (struct ddt *ddt, uint64_t addr)
{
  uint64_t hash = mix (addr);
  struct hashtable_link *l;

  assert_held (&ddt->lock);
  for (l = hashtable_chain (&ddt->refs, hash); l; l = l->next)
    if (hashtable_entry (l, struct ref, link)->addr == addr)
      return hashtable_entry (l, struct ref, link);
  return NULL;
}

static struct ref *
get_ref_locked (struct ddt *ddt, uint64_t addr)
{
  struct ref *r = find_ref_locked (ddt, addr);

  if (r)
    return r;
  r = patient_calloc (1, sizeof *r);
  if (r == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory for a reference");
  r->addr = addr;
  hashtable_insert (&ddt->refs, &r->link, mix (addr));
  ddt->pending_bytes += REF_BYTES;
  return r;
}

static void
drop_ref_locked (struct ddt *ddt, struct ref *r)
{
  assert_held (&ddt->lock);
  assert (r->entry == NULL);
  assert (ddt->pending_bytes >= REF_BYTES);
  hashtable_remove (&ddt->refs, &r->link);
  free (r);
  ddt->pending_bytes -= REF_BYTES;
}

/* Must lookups miss the record, whatever they have read in pool.db? */
static bool
is_hidden_locked (struct ddt *ddt, uint64_t addr)
{
  struct ref *r = find_ref_locked (ddt, addr);

  return r && (r->dead || r->pruned);
}

static struct ddt_entry *
find_entry_locked (struct ddt *ddt, const struct digest *digest, uint32_t lsize,
                   uint64_t domain)
{
  uint64_t hash = hash_of (digest);
  struct hashtable_link *l;
  struct ddt_entry *e;

  assert_held (&ddt->lock);
  for (l = hashtable_chain (&ddt->by_digest, hash); l; l = l->next) {
    e = hashtable_entry (l, struct ddt_entry, link);
    if (l->hash == hash && /* first: the digest is in another cache line */
        memcmp (&e->record.digest, digest, sizeof *digest) == 0 &&
        e->record.lsize == lsize && e->record.domain == domain)
      return e;
  }
  return NULL;
}

/* Forget a CLEAN entry. */
static void
drop_clean_locked (struct ddt *ddt, struct ddt_entry *e)
{
  assert_held (&ddt->lock);
  assert (!e->is_new && ddt->nr_clean > 0);
  TAILQ_REMOVE (&ddt->lru, e, lru);
  hashtable_remove (&ddt->by_digest, &e->link);
  ddt->nr_clean--;
  free (e);
}

/* A few at once: when the filter has grown there are many to drop. */
static void
add_clean_locked (struct ddt *ddt, struct ddt_entry *e)
{
  const size_t max = (ddt->budget_bytes -
                      ddt_filter_memory_locked (ddt->filter)) /
    CLEAN_BYTES;
  unsigned i;

  assert_held (&ddt->lock);
  assert (e->record.flags & RECORD_INDEXED);
  e->is_new = false;
  TAILQ_INSERT_TAIL (&ddt->lru, e, lru);
  ddt->nr_clean++;
  for (i = 0; i < 4 && ddt->nr_clean > max; ++i)
    drop_clean_locked (ddt, TAILQ_FIRST (&ddt->lru));
}

/* Put a record of pool.db in the cache, unless its digest already has an
 * entry, or the record has died or left the index since it was read.
 */
static void
cache_record_locked (struct ddt *ddt, const struct record *r)
{
  struct ddt_entry *e;

  if (!(r->flags & RECORD_INDEXED) || ddt->budget_bytes == 0 ||
      is_hidden_locked (ddt, r->ptr.addr) ||
      find_entry_locked (ddt, &r->digest, r->lsize, r->domain))
    return;
  e = calloc (1, sizeof *e);
  if (e == NULL)
    return; /* a cache may drop entries */
  e->record = *r;
  hashtable_insert (&ddt->by_digest, &e->link, hash_of (&r->digest));
  add_clean_locked (ddt, e);
}

static int
take_ref_locked (struct ddt *ddt, const struct record *r, struct pointer *ptr)
{
  struct ref *ref = get_ref_locked (ddt, r->ptr.addr);

  if (ref == NULL)
    return -1;
  assert (!ref->dead);
  ref->delta[ddt->open]++;
  ref->taken[ddt->open] = true;
  *ptr = r->ptr;
  return 1;
}

/* 1: a reference was taken; 0: not in memory, and if '*stored' is false, not in
 * pool.db either.
 */
static int
lookup_memory (struct ddt *ddt, const struct digest *digest, uint32_t lsize,
               uint64_t domain, struct pointer *ptr, struct index_runs *runs,
               bool *stored)
{
  struct ddt_entry *e;

  WITH_LOCK (&ddt->lock);
  WITH_CONSISTENT (ddt, ddt);
  e = find_entry_locked (ddt, digest, lsize, domain);
  if (e == NULL) {
    *stored = ddt_filter_may_have_locked (ddt->filter, digest_prefix (digest));
    ddt->misses += !*stored;
    *runs = ddt->runs;
    return 0;
  }
  /* Its entry was removed when it died, or was pruned. */
  assert (!is_hidden_locked (ddt, e->record.ptr.addr));
  if (!e->is_new) {
    TAILQ_REMOVE (&ddt->lru, e, lru);
    TAILQ_INSERT_TAIL (&ddt->lru, e, lru);
  }
  ddt->hits++;
  return take_ref_locked (ddt, &e->record, ptr);
}

/* A row of table "record", read without the lock. */
struct group_row {
  struct blob records;
  uint64_t group;
};

/* Has this group, or the one before it, had a hit lately?  Remember it. */
static bool
is_near_locked (struct ddt *ddt, uint64_t group)
{
  uint64_t *here = &ddt->recent[group % NR_RECENT];
  bool near = *here == group + 1 ||
    (group > 0 && ddt->recent[(group - 1) % NR_RECENT] == group);

  assert_held (&ddt->lock);
  *here = group + 1;
  return near;
}

/* Look for a record at 'addr' with the digest in the row of its group.
 * A copy of an image repeats the order in which the records were written: at
 * the second hit nearby the function caches the rest of the row.  It does not
 * at the first, because scattered duplicates would drive everything else out of
 * the cache, and each pay for a row of entries that no lookup finds.
 */
static int
take_from_row (struct ddt *ddt, struct group_row *row, uint64_t addr,
               const struct digest *digest, uint32_t lsize, uint64_t domain,
               struct pointer *ptr)
{
  struct record r;
  size_t off = 0;
  int found = 0;

  WITH_LOCK (&ddt->lock);
  WITH_CONSISTENT (ddt, ddt);
  while (record_next (row->group, row->records.p, row->records.len, &off, &r) ==
         1) {
    if (!found) {
      if (r.ptr.addr != addr)
        continue;
      if (!(r.flags & RECORD_INDEXED) || r.lsize != lsize ||
          r.domain != domain ||
          memcmp (&r.digest, digest, sizeof *digest) != 0 ||
          is_hidden_locked (ddt, addr) || take_ref_locked (ddt, &r, ptr) == -1)
        return 0;
      found = 1;
    }
    cache_record_locked (ddt, &r);
    if (r.ptr.addr == addr && !is_near_locked (ddt, row->group))
      return 1;
  }
  return found;
}

/* Look in one run.  An entry that another run removes is of a dead record, or
 * of none, or its sectors have a record that is not in the index: a copy, or
 * one of a volume without dedup, even of the same content.
 */
static int
lookup_run (struct ddt *ddt, struct meta_conn *c, unsigned run,
            const struct digest *digest, uint32_t lsize, uint64_t domain,
            struct pointer *ptr)
{
  const uint64_t prefix = digest_prefix (digest);
  struct blob index CLEANUP_BLOB = { NULL };
  struct group_row row = { .group = 0 };
  struct index_entry e;
  uint64_t low;
  size_t off;
  int found = 0;

  if (meta_index_get (c, run, prefix, &low, &index) != 1)
    return 0;
  for (off = meta_index_find (&index, prefix); off < index.len && !found;
       off += INDEX_ENTRY_LEN) {
    index_entry_unpack (index.p + off, &e);
    if (e.prefix != prefix)
      break;
    if (e.removed)
      continue;
    row.group = e.addr / RECORD_GROUP_SECTORS;
    if (meta_record_get (c, row.group, &row.records) == 1)
      found = take_from_row (ddt, &row, e.addr, digest, lsize, domain, ptr);
  }
  blob_free (&row.records);
  return found;
}

/* The largest runs first: most entries are there. */
static int
lookup_meta (struct ddt *ddt, struct meta_conn *c,
             const struct index_runs *runs, const struct digest *digest,
             uint32_t lsize, uint64_t domain, struct pointer *ptr)
{
  unsigned run;
  int found = 0;

  for (run = INDEX_RUNS; run-- > 0 && !found;)
    if (index_runs_has (runs, run))
      found = lookup_run (ddt, c, run, digest, lsize, domain, ptr);
  return found;
}

int
ddt_lookup (struct ddt *ddt, const struct digest *digest, uint32_t lsize,
            uint64_t domain, struct pointer *ptr)
{
  struct index_runs runs = { { 0 } };
  struct meta_conn *c;
  bool stored = true;
  int r;

  /* Memory first: a record that moves to pool.db between the two lookups is
   * found by the second.
   */
  r = lookup_memory (ddt, digest, lsize, domain, ptr, &runs, &stored);
  if (r != 0 || !stored)
    return r == 1;
  waiting_begin ();
  c = meta_reader_get (ddt->meta);
  r = lookup_meta (ddt, c, &runs, digest, lsize, domain, ptr);
  meta_reader_put (ddt->meta, c);
  waiting_end ();
  WITH_LOCK (&ddt->lock);
  WITH_CONSISTENT (ddt, ddt);
  ddt->misses++;
  return r;
}

static int
insert (struct ddt *ddt, const struct record *record, uint64_t chunk_addr,
        uint64_t copy_of, struct pointer *ptr)
{
  struct ddt_entry *e, *old = NULL;
  struct ref *ref;
  int r = 0;

  assert (record->ptr.addr > 0 && record->lsize > 0);
  WITH_LOCK (&ddt->lock);
  WITH_CONSISTENT (ddt, ddt);
  if (record->flags & RECORD_INDEXED)
    old = find_entry_locked (ddt, &record->digest, record->lsize,
                             record->domain);
  if (old && (r = take_ref_locked (ddt, &old->record, ptr)) == -1)
    return -1;
  ref = get_ref_locked (ddt, record->ptr.addr);
  e = patient_calloc (1, sizeof *e);
  if (ref == NULL || e == NULL) {
    free (e);
    return nbdedup_fail (ENOMEM, "no memory for a record");
  }
  /* The address was free, so no ref of an earlier record is left. */
  assert (!ref->dead && ref->entry == NULL);
  assert (ref->delta[0] == 0 && ref->delta[1] == 0);
  e->record = *record;
  e->chunk_addr = chunk_addr;
  e->copy_of = copy_of;
  e->is_new = true;
  ref->entry = e;
  ref->new_in = (uint8_t) ddt->open;
  ref->taken[ddt->open] = true;
  ddt->pending_bytes += NEW_BYTES;
  if (old) {
    /* This record is already logged: it stays, without references and
     * invisible, until the fold frees it.
     */
    e->record.flags &= ~RECORD_INDEXED;
    return r;
  }
  if (record->flags & RECORD_INDEXED) {
    hashtable_insert (&ddt->by_digest, &e->link, hash_of (&record->digest));
    ddt_filter_add_locked (ddt->filter, digest_prefix (&record->digest));
  }
  ref->delta[ddt->open] = 1;
  *ptr = record->ptr;
  return 0;
}

int
ddt_insert (struct ddt *ddt, const struct record *record, uint64_t chunk_addr,
            struct pointer *ptr)
{
  return insert (ddt, record, chunk_addr, 0, ptr);
}

int
ddt_insert_copy (struct ddt *ddt, const struct record *record,
                 uint64_t chunk_addr, uint64_t copy_of)
{
  struct pointer ptr;

  assert (!(record->flags & RECORD_INDEXED));
  assert (copy_of != 0 && copy_of != record->ptr.addr);
  return insert (ddt, record, chunk_addr, copy_of, &ptr);
}

int
ddt_replay_record (struct ddt *ddt, const struct record *record,
                   uint64_t chunk_addr)
{
  struct pointer ptr;
  int r = ddt_insert (ddt, record, chunk_addr, &ptr);

  /* Replay of the pointers adds its references. */
  if (r != -1)
    ddt_unref (ddt, ptr.addr);
  return r == -1 ? -1 : 0;
}

bool
ddt_is_new (struct ddt *ddt, uint64_t addr)
{
  const struct ref *r;

  WITH_LOCK (&ddt->lock);
  r = find_ref_locked (ddt, addr);
  return r && r->entry;
}

int
ddt_ref (struct ddt *ddt, uint64_t addr, int64_t delta)
{
  struct ref *r;

  assert (delta >= 0); /* ddt_unref drops one */
  WITH_LOCK (&ddt->lock);
  WITH_CONSISTENT (ddt, ddt);
  r = get_ref_locked (ddt, addr);
  if (r == NULL)
    return -1;
  assert (!r->dead);
  r->delta[ddt->open] += delta;
  r->taken[ddt->open] = true;
  return 0;
}

void
ddt_unref (struct ddt *ddt, uint64_t addr)
{
  struct ref *r;

  WITH_LOCK (&ddt->lock);
  WITH_CONSISTENT (ddt, ddt);
  r = find_ref_locked (ddt, addr);
  assert (r && r->delta[ddt->open] > 0);
  /* A ref with count 0 stays: the fold must still check a NEW record. */
  r->delta[ddt->open]--;
}

void
ddt_cut (struct ddt *ddt)
{
  WITH_LOCK (&ddt->lock);
  WITH_CONSISTENT (ddt, ddt);
  ddt->open ^= 1;
}

struct changes {
  struct ddt_change *p;
  size_t nr;
  unsigned parity;
};

static void
add_change_locked (void *opaque, struct hashtable_link *l)
{
  struct ref *r = hashtable_entry (l, struct ref, link);
  struct changes *c = opaque;
  struct ddt_entry *e = r->entry && r->new_in == c->parity ? r->entry : NULL;

  /* A record that died in an attempt to fold that then failed is still a
   * change; one that died in an earlier fold has no change left here.
   */
  if (r->delta[c->parity] == 0 && !r->taken[c->parity] && e == NULL)
    return;
  c->p[c->nr++] = (struct ddt_change) {
    .addr = r->addr,
    .delta = r->delta[c->parity],
    .record = e ? &e->record : NULL,
    .chunk_addr = e ? e->chunk_addr : 0,
    .copy_of = e ? e->copy_of : 0,
  };
}

static int
compare_changes (const void *a, const void *b)
{
  const struct ddt_change *x = a, *y = b;

  return x->addr < y->addr ? -1 : x->addr > y->addr;
}

int
ddt_get_changes (struct ddt *ddt, struct ddt_change **changes, size_t *nr)
{
  struct changes c = { .nr = 0 };

  {
    WITH_LOCK (&ddt->lock);
    WITH_CONSISTENT (ddt, ddt);
    c.parity = ddt->open ^ 1;
    c.p = malloc ((ddt->refs.nr_entries + 1) * sizeof *c.p);
    if (c.p == NULL)
      return nbdedup_fail (ENOMEM, "no memory for %zu changes",
                           ddt->refs.nr_entries);
    hashtable_visit (&ddt->refs, add_change_locked, &c);
  }
  qsort (c.p, c.nr, sizeof *c.p, compare_changes);
  *changes = c.p;
  *nr = c.nr;
  return 0;
}

/* No lookup finds the record any more: drop its entry, if it has one. */
static void
drop_entry_locked (struct ddt *ddt, uint64_t addr, const struct digest *digest)
{
  struct hashtable_link *l;
  struct ddt_entry *e;

  for (l = hashtable_chain (&ddt->by_digest, hash_of (digest)); l;
       l = l->next) {
    e = hashtable_entry (l, struct ddt_entry, link);
    if (e->record.ptr.addr != addr)
      continue;
    if (e->is_new) {
      /* ddt_fold_done frees it. */
      hashtable_remove (&ddt->by_digest, &e->link);
      e->record.flags &= ~RECORD_INDEXED;
    }
    else
      drop_clean_locked (ddt, e);
    break;
  }
}

bool
ddt_try_kill (struct ddt *ddt, uint64_t addr, const struct digest *digest)
{
  struct ref *r;

  WITH_LOCK (&ddt->lock);
  WITH_CONSISTENT (ddt, ddt);
  r = get_ref_locked (ddt, addr);
  if (r == NULL || r->taken[ddt->open])
    return false; /* without memory a later fold kills it */
  r->dead = true;
  drop_entry_locked (ddt, addr, digest);
  return true;
}

bool
ddt_try_prune (struct ddt *ddt, uint64_t addr, const struct digest *digest)
{
  struct ref *r;

  WITH_LOCK (&ddt->lock);
  WITH_CONSISTENT (ddt, ddt);
  r = find_ref_locked (ddt, addr);
  if (r && (r->taken[ddt->open] || r->entry || r->dead))
    return false;
  r = get_ref_locked (ddt, addr);
  if (r == NULL)
    return false;
  r->pruned = true;
  drop_entry_locked (ddt, addr, digest);
  return true;
}

void
ddt_end_prune (struct ddt *ddt, const uint64_t *addrs, size_t nr)
{
  struct ref *r;
  size_t i;

  WITH_LOCK (&ddt->lock);
  WITH_CONSISTENT (ddt, ddt);
  for (i = 0; i < nr; ++i) {
    r = find_ref_locked (ddt, addrs[i]);
    assert (r && r->pruned);
    r->pruned = false;
    if (!r->taken[0] && !r->taken[1])
      drop_ref_locked (ddt, r);
  }
}

void
ddt_expect (struct ddt *ddt, const struct digest *digest)
{
  WITH_LOCK (&ddt->lock);
  ddt_filter_add_locked (ddt->filter, digest_prefix (digest));
}

static void
fold_ref_locked (void *opaque, struct hashtable_link *l)
{
  struct ref *r = hashtable_entry (l, struct ref, link);
  struct ddt *ddt = opaque;
  unsigned folding = ddt->open ^ 1;
  struct ddt_entry *e;

  r->delta[folding] = 0;
  r->taken[folding] = false;
  if (r->entry && r->new_in == folding) {
    e = r->entry;
    r->entry = NULL;
    ddt->pending_bytes -= NEW_BYTES;
    if (!r->dead && (e->record.flags & RECORD_INDEXED))
      add_clean_locked (ddt, e);
    else {
      if (e->record.flags & RECORD_INDEXED)
        hashtable_remove (&ddt->by_digest, &e->link);
      free (e);
    }
  }
  if (!r->dead && !r->pruned && r->entry == NULL && !r->taken[ddt->open])
    drop_ref_locked (ddt, r);
}

void
ddt_fold_done (struct ddt *ddt)
{
  WITH_LOCK (&ddt->lock);
  WITH_CONSISTENT (ddt, ddt);
  hashtable_visit (&ddt->refs, fold_ref_locked, ddt);
}

void
ddt_forget (struct ddt *ddt, uint64_t addr)
{
  struct ref *r;

  WITH_LOCK (&ddt->lock);
  WITH_CONSISTENT (ddt, ddt);
  r = find_ref_locked (ddt, addr);
  assert (r && r->dead && r->entry == NULL);
  assert (!r->taken[0] && !r->taken[1]);
  drop_ref_locked (ddt, r);
}

void
ddt_forget_clean (struct ddt *ddt)
{
  struct ddt_entry *e;

  WITH_LOCK (&ddt->lock);
  WITH_CONSISTENT (ddt, ddt);
  while ((e = TAILQ_FIRST (&ddt->lru)) != NULL)
    drop_clean_locked (ddt, e);
}

void
ddt_set_runs (struct ddt *ddt, const struct index_runs *runs)
{
  WITH_LOCK (&ddt->lock);
  WITH_CONSISTENT (ddt, ddt);
  ddt->runs = *runs;
}

void
ddt_forget_filter (struct ddt *ddt)
{
  WITH_LOCK (&ddt->lock);
  WITH_CONSISTENT (ddt, ddt);
  ddt_filter_reset_locked (ddt->filter);
}

void
ddt_offer_filter (struct ddt *ddt, struct warm_file *file)
{
  WITH_LOCK (&ddt->lock);
  ddt_filter_offer_locked (ddt->filter, file);
}

void
ddt_stop_filter (struct ddt *ddt)
{
  ddt_filter_stop (ddt->filter);
}

void
ddt_save_filter (struct ddt *ddt, struct warm_writer *w)
{
  ddt_filter_save (ddt->filter, w);
}

bool
ddt_filter_is_unchanged (struct ddt *ddt)
{
  WITH_LOCK (&ddt->lock);
  return ddt_filter_is_unchanged_locked (ddt->filter);
}

size_t
ddt_pending_bytes (struct ddt *ddt)
{
  return ddt->pending_bytes;
}

void
ddt_get_info (struct ddt *ddt, struct ddt_info *info)
{
  WITH_LOCK (&ddt->lock);
  info->hits = ddt->hits;
  info->misses = ddt->misses;
  info->cache_bytes = ddt->by_digest.nr_entries * sizeof (struct ddt_entry) +
    ddt->refs.nr_entries * sizeof (struct ref) +
    (ddt->by_digest.nr_buckets + ddt->refs.nr_buckets) * sizeof (void *) +
    ddt_filter_memory_locked (ddt->filter);
  info->filter_memory = ddt_filter_memory_locked (ddt->filter);
  info->filter_bytes = ddt_filter_bytes_locked (ddt->filter);
}

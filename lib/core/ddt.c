/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/backoff.h"
#include "base/error.h"
#include "base/mix.h"
#include "core/ddt-int.h"

/*----------------------------------------------------------------------*/

static uint64_t
nr_new_locked (void *opaque)
{
  const struct ddt *ddt = opaque;

  return ddt->refs.nr_entries;
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
  STAILQ_INIT (&ddt->taken[0]);
  STAILQ_INIT (&ddt->taken[1]);
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
  spares_free (&ddt->spare_refs);
  spares_free (&ddt->spare_entries);
  hashtable_destroy (&ddt->refs);
  hashtable_destroy (&ddt->by_digest);
  lock_destroy (&ddt->lock);
  free (ddt);
}

struct ref *
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

struct ref *
get_ref_locked (struct ddt *ddt, uint64_t addr)
{
  struct ref *r = find_ref_locked (ddt, addr);

  assert_held (&ddt->lock);
  if (r)
    return r;
  r = spares_take (&ddt->spare_refs, sizeof *r)
    ?: patient_calloc (1, sizeof *r);
  if (r == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory for a reference");
  r->addr = addr;
  hashtable_insert (&ddt->refs, &r->link, mix (addr));
  ddt->pending_bytes += REF_BYTES;
  return r;
}

void
drop_ref_locked (struct ddt *ddt, struct ref *r)
{
  assert_held (&ddt->lock);
  assert (r->entry == NULL && !r->taken[0] && !r->taken[1]);
  assert (ddt->pending_bytes >= REF_BYTES);
  hashtable_remove (&ddt->refs, &r->link);
  spares_give (&ddt->spare_refs, r, SPARES_MAX);
  ddt->pending_bytes -= REF_BYTES;
}

/* The open txg takes a reference, or has to check whether any is left. */
static void
mark_taken_locked (struct ddt *ddt, struct ref *r)
{
  const unsigned open = ddt->open;

  assert_held (&ddt->lock);
  if (r->taken[open])
    return;
  r->taken[open] = true;
  STAILQ_INSERT_TAIL (&ddt->taken[open], r, in_taken[open]);
}

bool
is_hidden_locked (struct ddt *ddt, uint64_t addr)
{
  struct ref *r = find_ref_locked (ddt, addr);

  assert_held (&ddt->lock);
  return r && (r->dead || r->pruned);
}

struct ddt_entry *
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

void
drop_clean_locked (struct ddt *ddt, struct ddt_entry *e)
{
  assert_held (&ddt->lock);
  assert (!e->is_new && ddt->nr_clean > 0);
  TAILQ_REMOVE (&ddt->lru, e, lru);
  hashtable_remove (&ddt->by_digest, &e->link);
  ddt->nr_clean--;
  spares_give (&ddt->spare_entries, e, SPARES_MAX);
}

/* A few at once: when the filter has grown there are many to drop. */
void
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
  ddt->nr_cached++;
  for (i = 0; i < 4 && ddt->nr_clean > max; ++i)
    drop_clean_locked (ddt, TAILQ_FIRST (&ddt->lru));
}

void
drop_new_locked (struct ddt *ddt)
{
  assert_held (&ddt->lock);
  assert (ddt->nr_new > 0 && ddt->index_entries >= ddt->nr_new);
  ddt->nr_new--;
  ddt->index_entries--;
}

int
take_ref_locked (struct ddt *ddt, const struct record *r, struct pointer *ptr)
{
  struct ref *ref = get_ref_locked (ddt, r->ptr.addr);

  assert_held (&ddt->lock);
  if (ref == NULL)
    return -1;
  assert (!ref->dead);
  ref->delta[ddt->open]++;
  mark_taken_locked (ddt, ref);
  *ptr = r->ptr;
  return 1;
}

static int
insert_locked (struct ddt *ddt, const struct ddt_new *new, uint64_t copy_of)
{
  const struct record *record = new->record;
  struct ddt_entry *e, *old = NULL;
  struct ref *ref;

  assert (record->ptr.addr > 0 && record->lsize > 0);
  if (record->flags & RECORD_INDEXED)
    old = find_entry_locked (ddt, &record->digest, record->lsize,
                             record->domain);
  if (old && take_ref_locked (ddt, &old->record, new->ptr) == -1)
    return -1;
  e = spares_take (&ddt->spare_entries, sizeof *e)
    ?: patient_calloc (1, sizeof *e);
  ref = e ? get_ref_locked (ddt, record->ptr.addr) : NULL;
  if (ref == NULL) {
    free (e);
    return nbdedup_fail (ENOMEM, "no memory for a record");
  }
  /* The address was free, so no ref of an earlier record is left. */
  assert (!ref->dead && ref->entry == NULL);
  assert (ref->delta[0] == 0 && ref->delta[1] == 0);
  e->record = *record;
  e->chunk_addr = new->chunk_addr;
  e->copy_of = copy_of;
  e->is_new = true;
  ref->entry = e;
  ref->new_in = (uint8_t) ddt->open;
  mark_taken_locked (ddt, ref);
  ddt->pending_bytes += NEW_BYTES;
  if (old) {
    /* This record is already logged: it stays, without references and
     * invisible, until the fold frees it.
     */
    e->record.flags &= ~RECORD_INDEXED;
    return 0;
  }
  if (record->flags & RECORD_INDEXED) {
    hashtable_insert (&ddt->by_digest, &e->link, hash_of (&record->digest));
    ddt_filter_add_locked (ddt->filter, digest_prefix (&record->digest));
    ddt->nr_new++;
    ddt->index_entries++;
  }
  ref->delta[ddt->open] = 1;
  *new->ptr = record->ptr;
  return 0;
}

/* 'copy_of' 0: none of them is a copy. */
static int
insert (struct ddt *ddt, unsigned nr, const struct ddt_new *new,
        uint64_t copy_of)
{
  unsigned i;

  WITH_LOCK (&ddt->lock);
  WITH_CONSISTENT (ddt, ddt);
  for (i = 0; i < nr; ++i)
    if (insert_locked (ddt, &new[i], copy_of) == -1)
      return -1;
  return 0;
}

/* So many are added at once, while the lookups of other threads wait. */
#define INSERT_MAX 16u

int
ddt_insert (struct ddt *ddt, unsigned nr, const struct ddt_new *records)
{
  unsigned i, n;

  for (i = 0; i < nr; i += n) {
    n = nr - i < INSERT_MAX ? nr - i : INSERT_MAX;
    if (insert (ddt, n, records + i, 0) == -1)
      return -1;
  }
  return 0;
}

int
ddt_insert_copy (struct ddt *ddt, const struct record *record,
                 uint64_t chunk_addr, uint64_t copy_of)
{
  struct pointer ptr;

  assert (!(record->flags & RECORD_INDEXED));
  assert (copy_of != 0 && copy_of != record->ptr.addr);
  return insert (ddt, 1, &(struct ddt_new) { record, chunk_addr, &ptr },
                 copy_of);
}

int
ddt_replay_record (struct ddt *ddt, const struct record *record,
                   uint64_t chunk_addr)
{
  struct pointer ptr;
  const struct ddt_new new = { record, chunk_addr, &ptr };

  if (ddt_insert (ddt, 1, &new) == -1)
    return -1;
  /* Replay of the pointers adds its references. */
  ddt_unref (ddt, ptr.addr);
  return 0;
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
  mark_taken_locked (ddt, r);
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

uint64_t
ddt_index_entries (struct ddt *ddt)
{
  return ddt->index_entries;
}

void
ddt_set_index_entries (struct ddt *ddt, uint64_t entries)
{
  WITH_LOCK (&ddt->lock);
  WITH_CONSISTENT (ddt, ddt);
  ddt->index_entries = entries + ddt->nr_new;
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

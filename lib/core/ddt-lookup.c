/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/waiting.h"
#include "core/ddt-int.h"

void
cache_record_locked (struct ddt *ddt, const struct record *r)
{
  struct ddt_entry *e;

  assert_held (&ddt->lock);
  if (!(r->flags & RECORD_INDEXED) || ddt->budget_bytes == 0 ||
      is_hidden_locked (ddt, r->ptr.addr) ||
      find_entry_locked (ddt, &r->digest, r->lsize, r->domain))
    return;
  e = spares_take (&ddt->spare_entries, sizeof *e) ?: calloc (1, sizeof *e);
  if (e == NULL)
    return; /* a cache may drop entries */
  e->record = *r;
  hashtable_insert (&ddt->by_digest, &e->link, hash_of (&r->digest));
  add_clean_locked (ddt, e);
}

/* False: not in memory, and may be in pool.db. */
static bool
answer_locked (struct ddt *ddt, struct ddt_query *q, uint32_t lsize,
               uint64_t domain)
{
  struct ddt_entry *e = find_entry_locked (ddt, q->digest, lsize, domain);

  q->found = false;
  if (e == NULL) {
    if (ddt_filter_may_have_locked (ddt->filter, digest_prefix (q->digest)))
      return false;
    ddt->misses++;
    return true;
  }
  /* Its entry was removed when it died, or was pruned. */
  assert (!is_hidden_locked (ddt, e->record.ptr.addr));
  if (!e->is_new) {
    TAILQ_REMOVE (&ddt->lru, e, lru);
    TAILQ_INSERT_TAIL (&ddt->lru, e, lru);
  }
  ddt->hits++;
  q->found = take_ref_locked (ddt, &e->record, q->ptr) == 1;
  return true;
}

/* Answer queries in memory: how many, up to the first that may be in pool.db;
 * for that one, where to search.  Many at once: the workers would wait for each
 * other.
 */
static unsigned
lookup_memory (struct ddt *ddt, unsigned nr, struct ddt_query *queries,
               uint32_t lsize, uint64_t domain, struct index_search *search)
{
  unsigned i;

  WITH_LOCK (&ddt->lock);
  WITH_CONSISTENT (ddt, ddt);
  for (i = 0; i < nr && answer_locked (ddt, &queries[i], lsize, domain); ++i)
    ;
  if (i < nr)
    index_order_get (&ddt->order, &ddt->runs, search);
  return i;
}

/* Rows that are worth caching: 'nr', from the one after 'group' on. */
struct ahead {
  uint64_t group;
  unsigned nr;
};

/* A row of table "record", read without the lock. */
struct group_row {
  struct blob records;
  uint64_t group;
};

/* Look for a record at 'addr' with the digest in the row of its group.
 * A copy of an image repeats the order in which the records were written: at
 * the second hit nearby the function caches the rest of the row, and '*ahead'
 * says how many of the next rows are worth the same.  It does not at the first,
 * because scattered duplicates would drive everything else out of the cache,
 * and each pay for a row of entries that no lookup finds.
 */
static int
take_from_row (struct ddt *ddt, struct group_row *row, uint64_t addr,
               const struct digest *digest, uint32_t lsize, uint64_t domain,
               struct pointer *ptr, unsigned *ahead)
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
    if (r.ptr.addr == addr && !note_hit_locked (ddt, row->group, ahead))
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
            struct pointer *ptr, struct ahead *ahead)
{
  struct blob index CLEANUP_BLOB = { NULL };
  struct group_row row = { .group = 0 };
  struct index_entry e;
  size_t off;
  int found = 0;

  if (meta_index_find (c, run, digest_prefix (digest), &index) != 1)
    return 0;
  for (off = 0; off < index.len && !found; off += INDEX_ENTRY_LEN) {
    index_entry_unpack (index.p + off, &e);
    if (e.removed)
      continue;
    row.group = e.addr / RECORD_GROUP_SECTORS;
    if (meta_record_get (c, row.group, &row.records) == 1)
      found = take_from_row (ddt, &row, e.addr, digest, lsize, domain, ptr,
                             &ahead->nr);
  }
  ahead->group = row.group;
  blob_free (&row.records);
  return found;
}

/* The run that has it, or -1. */
static int
lookup_meta (struct ddt *ddt, struct meta_conn *c,
             const struct index_search *search, const struct digest *digest,
             uint32_t lsize, uint64_t domain, struct pointer *ptr,
             struct ahead *ahead)
{
  unsigned i;

  for (i = 0; i < search->nr; ++i)
    if (lookup_run (ddt, c, search->runs[i], digest, lsize, domain, ptr, ahead))
      return search->runs[i];
  return -1;
}

static bool
lookup_stored (struct ddt *ddt, const struct index_search *search,
               const struct ddt_query *q, uint32_t lsize, uint64_t domain)
{
  struct ahead ahead = { .nr = 0 };
  struct meta_conn *c;
  int run;

  waiting_begin ();
  c = meta_reader_get (ddt->meta);
  run = lookup_meta (ddt, c, search, q->digest, lsize, domain, q->ptr, &ahead);
  meta_reader_put (ddt->meta, c);
  read_ahead (ddt, ahead.group, ahead.nr);
  waiting_end ();
  WITH_LOCK (&ddt->lock);
  WITH_CONSISTENT (ddt, ddt);
  ddt->misses++;
  if (run != -1)
    index_order_hit (&ddt->order, (unsigned) run);
  return run != -1;
}

/* Memory first: a record that moves to pool.db between the two lookups is found
 * by the second.
 */
void
ddt_lookup (struct ddt *ddt, unsigned nr, struct ddt_query *queries,
            uint32_t lsize, uint64_t domain)
{
  struct index_search search;
  unsigned i;

  for (i = 0; i < nr; ++i) {
    i += lookup_memory (ddt, nr - i, queries + i, lsize, domain, &search);
    if (i < nr)
      queries[i].found = lookup_stored (ddt, &search, &queries[i], lsize,
                                        domain);
  }
}

/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "core/ddt-int.h"

void
ddt_cut (struct ddt *ddt)
{
  WITH_LOCK (&ddt->lock);
  WITH_CONSISTENT (ddt, ddt);
  ddt->open ^= 1;
  assert (STAILQ_EMPTY (&ddt->taken[ddt->open]));
}

static struct ddt_change
change_of (const struct ref *r, unsigned parity)
{
  struct ddt_entry *e = r->entry && r->new_in == parity ? r->entry : NULL;

  return (struct ddt_change) {
    .addr = r->addr,
    .delta = r->delta[parity],
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
  struct ddt_change *p;
  const struct ref *r;
  unsigned folding;
  size_t n = 0;

  {
    WITH_LOCK (&ddt->lock);
    WITH_CONSISTENT (ddt, ddt);
    folding = ddt->open ^ 1;
    p = malloc ((ddt->refs.nr_entries + 1) * sizeof *p);
    if (p == NULL)
      return nbdedup_fail (ENOMEM, "no memory for %zu changes",
                           ddt->refs.nr_entries);
    /* A record that died in an attempt to fold that then failed is still a
     * change.
     */
    STAILQ_FOREACH (r, &ddt->taken[folding], in_taken[folding])
      p[n++] = change_of (r, folding);
  }
  qsort (p, n, sizeof *p, compare_changes);
  *changes = p;
  *nr = n;
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
      drop_new_locked (ddt);
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

void
ddt_revive (struct ddt *ddt, uint64_t addr)
{
  struct ref *r;

  WITH_LOCK (&ddt->lock);
  WITH_CONSISTENT (ddt, ddt);
  r = find_ref_locked (ddt, addr);
  assert (r && r->dead && !r->pruned);
  r->dead = false;
  if (!r->taken[0] && !r->taken[1])
    drop_ref_locked (ddt, r);
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
fold_ref_locked (struct ddt *ddt, struct ref *r)
{
  const unsigned folding = ddt->open ^ 1;
  struct ddt_entry *e;

  r->delta[folding] = 0;
  r->taken[folding] = false;
  if (r->entry && r->new_in == folding) {
    e = r->entry;
    r->entry = NULL;
    ddt->pending_bytes -= NEW_BYTES;
    if (e->record.flags & RECORD_INDEXED)
      drop_new_locked (ddt);
    if (!r->dead && (e->record.flags & RECORD_INDEXED))
      add_clean_locked (ddt, e);
    else {
      if (e->record.flags & RECORD_INDEXED)
        hashtable_remove (&ddt->by_digest, &e->link);
      spares_give (&ddt->spare_entries, e, SPARES_MAX);
    }
  }
  if (!r->dead && !r->pruned && r->entry == NULL && !r->taken[ddt->open])
    drop_ref_locked (ddt, r);
}

void
ddt_fold_done (struct ddt *ddt, uint64_t index_entries)
{
  struct ref *r;
  unsigned folding;

  WITH_LOCK (&ddt->lock);
  WITH_CONSISTENT (ddt, ddt);
  folding = ddt->open ^ 1;
  while ((r = STAILQ_FIRST (&ddt->taken[folding])) != NULL) {
    STAILQ_REMOVE_HEAD (&ddt->taken[folding], in_taken[folding]);
    fold_ref_locked (ddt, r);
  }
  ddt->index_entries = index_entries + ddt->nr_new;
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
  memset (ddt->recent, 0, sizeof ddt->recent);
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* Shared by ddt.c (the tables, their references and new records), ddt-lookup.c
 * (by digest, in memory and in pool.db), ddt-fold.c (what a fold takes, kills
 * and prunes) and ddt-consistent.c (the invariants).
 */

#ifndef NBDEDUP_DDT_INT_H
#define NBDEDUP_DDT_INT_H

#include <stdatomic.h>
#include <sys/queue.h>

#include "base/hashtable.h"
#include "base/invariant.h"
#include "base/lock.h"
#include "base/spares.h"
#include "core/ddt-filter.h"
#include "core/index-order.h"
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
  int64_t delta[2];               /* by parity of the txg */
  bool taken[2];                  /* the txg has taken a reference at some
                                   * time; the ref is in its list */
  STAILQ_ENTRY (ref) in_taken[2]; /* valid while taken */
  struct ddt_entry *entry;        /* NEW: owned until ddt_fold_done; or NULL */
  uint8_t new_in;                 /* parity of the txg that made 'entry' */
  bool dead;
  bool pruned; /* lookups must not find it now */
};

/* Groups of records that a lookup hit lately, or read ahead, by their lowest
 * bits.  A run of duplicates that reads ahead uses nine, so as many as twenty
 * runs at once seldom lose one to another.
 */
#define NR_RECENT 256u
struct recent {
  uint64_t next;   /* the group's number and 1; 0: none */
  uint64_t cached; /* nr_cached then */
  unsigned ahead;  /* its place among those that one lookup read ahead, from 1
                    * on; 0: a lookup hit it */
};

/* A fold frees what some seconds of new records then take: 4 MiB in all. */
#define SPARES_MAX 16384

struct ddt {
  struct meta *meta;         /* not owned; outlives the ddt */
  size_t budget_bytes;       /* for CLEAN entries and the filter */
  struct ddt_filter *filter; /* owned */

  struct lock lock; /* protects everything below */
  struct hashtable by_digest, refs;
  /* By parity of the txg, in the order of the first reference.  The fold
   * visits them so, because that is nearly their order in memory, and by
   * address; a visit of the table misses the processor's caches each time.
   */
  STAILQ_HEAD (, ref) taken[2];
  TAILQ_HEAD (, ddt_entry) lru; /* least recently used first */
  size_t nr_clean;
  uint64_t nr_cached;                      /* entries that became CLEAN, ever */
  struct spares spare_refs, spare_entries; /* at most SPARES_MAX of each */
  struct index_runs runs;
  struct index_order order; /* of lookups in them */
  struct recent recent[NR_RECENT];
  unsigned open; /* parity of the open txg */
  uint64_t hits, misses;
  size_t changes; /* for invariant_is_due */
  size_t nr_new;  /* NEW entries with RECORD_INDEXED */

  /* Written under the lock, read without: */
  atomic_size_t pending_bytes;
  _Atomic uint64_t index_entries; /* of pool.db, and nr_new */
};

_Static_assert (DDT_FILTER_BITS <= HASHTABLE_BITS,
                "the buckets of a part of the filter");
#define REF_BYTES (sizeof (struct ref) + 16)
#define NEW_BYTES (sizeof (struct ddt_entry) + 16)
/* 16: the allocator's and the bucket array's share of an entry. */
#define CLEAN_BYTES (sizeof (struct ddt_entry) + 16)

/* ddt-consistent.c: true whenever the lock is not held. */
extern void ddt_assert_consistent_locked (struct ddt *ddt);
DEFINE_WITH_CONSISTENT (ddt)

/* In by_digest, so that the lowest bits are the filter's part.  A prefix would
 * not do: its own lowest bits are 0.
 */
static inline uint64_t
hash_of (const struct digest *digest)
{
  const uint64_t word = digest_word (digest);

  return word << DDT_FILTER_BITS | word >> (64 - DDT_FILTER_BITS);
}

/* ddt.c.  NULL: there is none; get_ref_locked makes it, or ENOMEM. */
extern struct ref *find_ref_locked (struct ddt *ddt, uint64_t addr);
extern struct ref *get_ref_locked (struct ddt *ddt, uint64_t addr);
extern void drop_ref_locked (struct ddt *ddt, struct ref *r);

/* A NEW entry with RECORD_INDEXED is gone, before a fold has added it. */
extern void drop_new_locked (struct ddt *ddt);

/* Take a reference to the record of an entry, in the open txg: 1, or -1. */
extern int
take_ref_locked (struct ddt *ddt, const struct record *r, struct pointer *ptr);

/* Must lookups miss the record, whatever they have read in pool.db? */
extern bool is_hidden_locked (struct ddt *ddt, uint64_t addr);

extern struct ddt_entry *find_entry_locked (struct ddt *ddt,
                                            const struct digest *digest,
                                            uint32_t lsize, uint64_t domain);

/* The cache of CLEAN entries: a NEW one becomes CLEAN; forget one. */
extern void add_clean_locked (struct ddt *ddt, struct ddt_entry *e);
extern void drop_clean_locked (struct ddt *ddt, struct ddt_entry *e);
/* ddt-lookup.c: put a record of pool.db in the cache, unless its digest already
 * has an entry, or the record has died or left the index since it was read.
 */
extern void cache_record_locked (struct ddt *ddt, const struct record *r);

/* ddt-ahead.c.  A lookup has hit a record of this group in pool.db.  False:
 * neither it nor the group before was hit or read ahead lately.  '*ahead': how
 * many of the groups that follow are worth reading now: none at first, one for
 * the second group in a row, then twice as many each time.
 */
extern bool note_hit_locked (struct ddt *ddt, uint64_t group, unsigned *ahead);
/* Cache 'nr' groups, from the one after 'group' on, up to one that was noted
 * lately, or that cannot be read at once.  The caller is in the same section of
 * the quiesce (base/quiesce.h) as its lookup, so that dead records are hidden.
 */
extern void read_ahead (struct ddt *ddt, uint64_t group, unsigned nr);

#endif /* NBDEDUP_DDT_INT_H */

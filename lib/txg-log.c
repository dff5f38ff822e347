/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "cleanup.h"
#include "error.h"
#include "lock.h"
#include "meta.h"               /* struct blob */
#include "txg-log.h"

/* A flush whose new records are at most this large in all carries them in
 * the journal.  Two syncs cost about twice one; copying 64 KiB into the
 * journal costs less than a sync.
 */
#define INLINE_MAX (64u << 10)

/* Write a batch, unsynced, when the buffer is this large: bounds memory,
 * and keeps a body below JOURNAL_BODY_MAX.
 */
#define BUFFER_MAX (1u << 20)

#define POINTERS_PER_ENTRY 1024

/* The entries not yet written.  Records stand in a buffer of their own, and
 * in front in the batch: then pointers to neighbouring blocks merge into
 * one entry.
 */
struct pending {
  struct blob records, maps;
  size_t last_pointers;         /* offset in maps of an entry that may grow,
                                 * or SIZE_MAX */
  uint64_t record_bytes;        /* stored bytes of the records */
};

struct txg_log {
  struct journal *journal;      /* not owned */
  struct store *store;          /* not owned */
  uint32_t sector_bytes;

  struct lock lock;             /* protects everything below, and keeps
                                 * batches in the order of installation */
  struct pending pending;
  uint64_t store_wanted;        /* the store must be synced before a batch
                                 * with this number or a higher one is
                                 * called durable */
  uint64_t store_synced;        /* ... and was, for this one */
  bool dropped;                 /* entries went into the folding txg without
                                 * being in the journal */
  atomic_size_t bytes;
};

struct txg_log *
txg_log_new (struct journal *journal, struct store *store,
             uint32_t sector_bytes)
{
  struct txg_log *log = calloc (1, sizeof *log);

  if (log == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  log->journal = journal;
  log->store = store;
  log->sector_bytes = sector_bytes;
  log->pending.last_pointers = SIZE_MAX;
  lock_init (&log->lock);
  return log;
}

static void
pending_free (struct pending *p)
{
  blob_free (&p->records);
  blob_free (&p->maps);
}

void
txg_log_free (struct txg_log *log)
{
  if (log == NULL)
    return;
  pending_free (&log->pending);
  lock_destroy (&log->lock);
  free (log);
}

static void
pending_clear (struct pending *p)
{
  p->records.len = p->maps.len = 0;
  p->last_pointers = SIZE_MAX;
  p->record_bytes = 0;
}

static bool
pending_is_empty (const struct pending *p)
{
  return p->records.len == 0 && p->maps.len == 0;
}

static void
update_bytes_locked (struct txg_log *log)
{
  log->bytes = log->pending.records.len + log->pending.maps.len;
}

/* Records with their bytes, read back from where they were just written
 * (the page cache, as a rule).
 */
static int
inline_records (struct txg_log *log, struct blob *out)
{
  const struct blob *in = &log->pending.records;
  struct journal_entry e;
  size_t off, padded;

  for (off = 0; off < in->len; off += JE_RECORD_LEN) {
    if (je_unpack (in->p + off, in->len - off, &e) == -1)
      return -1;
    padded = (e.record.ptr.psize + 7) & ~(size_t) 7;
    if (blob_reserve (out, out->len + JE_RECORD_LEN + padded) == -1)
      return -1;
    je_record_pack (&e.record, e.chunk_addr, true, out->p + out->len);
    out->len += JE_RECORD_LEN;
    memset (out->p + out->len, 0, padded);
    if (store_read (log->store, e.record.ptr.addr, out->p + out->len,
                    e.record.ptr.psize) == -1)
      return -1;
    out->len += padded;
  }
  return 0;
}

/* Write the buffer as one batch.  'flush': it will be synced at once, so
 * that carrying small records pays.  0, 1 (no room), -1.
 */
static int
append_locked (struct txg_log *log, bool flush)
{
  struct pending *p = &log->pending;
  struct blob data CLEANUP_BLOB = { NULL };
  struct iovec iov[2];
  bool carried = false;
  uint64_t seq;
  int r;

  assert_held (&log->lock);
  if (pending_is_empty (p))
    return 0;
  iov[0] = (struct iovec) { p->records.p, p->records.len };
  iov[1] = (struct iovec) { p->maps.p, p->maps.len };
  if (p->record_bytes > 0 && p->record_bytes <= INLINE_MAX && flush) {
    if (inline_records (log, &data) == -1)
      return errno == ENOMEM ? 1 : -1;
    iov[0] = (struct iovec) { data.p, data.len };
    carried = true;
  }
  if (iov[0].iov_len + iov[1].iov_len > JOURNAL_BODY_MAX)
    return 1;                   /* grew while there was no room */
  r = journal_append (log->journal, iov, 2, &seq);
  /* A ring that cannot grow is full, too; and without memory there is no way
   * to write to it.
   */
  if (r != 0)
    return r == -1 && (errno == ENOSPC || errno == ENOMEM) ? 1 : r;
  if (p->record_bytes > 0 && !carried)
    log->store_wanted = seq;
  pending_clear (p);
  update_bytes_locked (log);
  return 0;
}

/* Called after each addition: keep the buffer small. */
static int
added_locked (struct txg_log *log)
{
  const struct pending *p = &log->pending;

  update_bytes_locked (log);
  if (p->records.len + p->maps.len < BUFFER_MAX)
    return 0;
  /* 1, no room: the buffer grows until the fold, within the budget that
   * txg_throttle watches; but not beyond what one batch can hold.
   */
  return append_locked (log, false) == -1 ? -1 : 0;
}

int
txg_log_add_record (struct txg_log *log, const struct record *r,
                    uint64_t chunk_addr)
{
  struct blob *b = &log->pending.records;

  WITH_LOCK (&log->lock);
  if (blob_reserve (b, b->len + JE_RECORD_LEN) == -1)
    return -1;
  je_record_pack (r, chunk_addr, false, b->p + b->len);
  b->len += JE_RECORD_LEN;
  log->pending.record_bytes += r->ptr.psize;
  return added_locked (log);
}

/* Can the last entry take this block as its next? */
static bool
grows_last (const struct pending *p, uint64_t layer, uint64_t block)
{
  const uint8_t *e;
  unsigned count;

  if (p->last_pointers == SIZE_MAX)
    return false;
  e = p->maps.p + p->last_pointers;
  count = get_le16 (e + 2);
  return count < POINTERS_PER_ENTRY && get_le64 (e + 8) == layer &&
    get_le64 (e + 16) + count == block;
}

int
txg_log_add_pointer (struct txg_log *log, uint64_t layer, uint64_t block,
                     const struct pointer *ptr)
{
  struct pending *p = &log->pending;
  struct blob *b = &p->maps;
  unsigned count;

  WITH_LOCK (&log->lock);
  if (blob_reserve (b, b->len + JE_POINTERS_LEN + POINTER_LEN) == -1)
    return -1;
  if (!grows_last (p, layer, block)) {
    p->last_pointers = b->len;
    je_pointers_pack (layer, block, 0, b->p + b->len);
    b->len += JE_POINTERS_LEN;
  }
  count = get_le16 (b->p + p->last_pointers + 2);
  block = get_le64 (b->p + p->last_pointers + 16);
  pointer_pack (ptr, b->p + b->len);
  b->len += POINTER_LEN;
  je_pointers_pack (layer, block, (uint16_t) (count + 1),
                    b->p + p->last_pointers);
  return added_locked (log);
}

int
txg_log_add_holes (struct txg_log *log, uint64_t layer, uint64_t block,
                   uint64_t count)
{
  struct blob *b = &log->pending.maps;

  WITH_LOCK (&log->lock);
  if (blob_reserve (b, b->len + JE_HOLES_LEN) == -1)
    return -1;
  je_holes_pack (layer, block, count, b->p + b->len);
  b->len += JE_HOLES_LEN;
  log->pending.last_pointers = SIZE_MAX;
  return added_locked (log);
}

int
txg_log_flush (struct txg_log *log)
{
  uint64_t seq, position, wanted;
  int r;

  {
    WITH_LOCK (&log->lock);
    if (log->dropped)
      return 1;
    r = append_locked (log, true);
    if (r != 0)
      return r;
    journal_get_end (log->journal, &seq, &position);
    wanted = log->store_wanted > log->store_synced ? log->store_wanted : 0;
  }
  if (wanted) {
    if (store_sync (log->store) == -1)
      return -1;
    WITH_LOCK (&log->lock);
    if (log->store_synced < wanted)
      log->store_synced = wanted;
  }
  return journal_sync (log->journal, seq);
}

int
txg_log_cut (struct txg_log *log, uint64_t *seq, uint64_t *position)
{
  int r;

  WITH_LOCK (&log->lock);
  r = append_locked (log, false);
  if (r == -1)
    return -1;
  if (r == 1) {
    log->dropped = true;
    pending_clear (&log->pending);
    update_bytes_locked (log);
  }
  journal_get_end (log->journal, seq, position);
  return 0;
}

void
txg_log_folded (struct txg_log *log)
{
  WITH_LOCK (&log->lock);
  log->dropped = false;
}

size_t
txg_log_bytes (struct txg_log *log)
{
  return log->bytes;
}

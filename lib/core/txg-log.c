/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/invariant.h"
#include "base/lock.h"
#include "core/txg-log.h"
#include "meta/meta.h" /* struct blob */

/* A flush carries its new records in the journal if they are at most this
 * large in total.  Two syncs cost about twice one; copying 64 KiB into the
 * journal costs less than a sync.
 */
#define INLINE_MAX (64u << 10)

/* Write a batch, unsynced, when the buffer is this large: bounds memory,
 * and keeps a body below JOURNAL_BODY_MAX.
 */
#define BUFFER_MAX (1u << 20)

/* Try again after so many bytes more if the journal had no room. */
#define RETRY_STEP (256u << 10)

#define POINTERS_PER_ENTRY 1024

/* The entries not yet written.  Records are in a buffer of their own, and come
 * first in the batch, so pointers to neighbouring blocks merge into one entry.
 */
struct pending {
  struct blob records, maps;
  size_t last_pointers;  /* offset in maps of an entry that may grow,
                                 * or SIZE_MAX */
  uint64_t record_bytes; /* stored bytes of the records */
};

/* See txg-log.h. */
struct place {
  uint64_t records, maps; /* offsets in the streams */
};

struct txg_log {
  struct journal *journal; /* not owned */
  struct store *store;     /* not owned */
  uint32_t sector_bytes;

  struct lock lock; /* protects everything below, and keeps
                                 * batches in the order of installation */
  struct pending pending;
  struct place start;  /* of 'pending' */
  uint64_t synced;     /* records before this offset are durable */
  uint64_t needed;     /* all batches are settled when this is */
  uint64_t settled;    /* batches up to this number are ... */
  uint64_t told;       /* ... and a header records up to this one */
  struct place cut;    /* the folding txg ends here ... */
  uint64_t cut_seq;    /* ... and with this batch */
  bool dropped;        /* the folding txg has entries that are not in
                                 * the journal */
  size_t retry;        /* the journal had no room: try again when the buffer
                                 * is this large; 0: it had */
  atomic_size_t bytes; /* written under the lock, read without */
};

/* True whenever the lock is not held; txg-log.h explains "settled" and
 * "place".
 *
 *  (1) No header claims more than is settled, and no place is past the end.
 *
 *  (2) Records that a batch needs were written: they are before the buffer.
 *
 *  (3) The sums match the buffer.
 */
static void
txg_log_assert_consistent_locked (struct txg_log *log)
{
  const struct pending *p = &log->pending;

  assert_held (&log->lock);
  assert (log->told <= log->settled);
  assert (log->synced <= log->start.records + p->records.len);
  assert (log->needed <= log->start.records);
  assert (log->cut.records <= log->start.records + p->records.len);
  assert (log->cut.maps <= log->start.maps + p->maps.len);
  assert (p->last_pointers == SIZE_MAX || p->last_pointers < p->maps.len);
  assert (p->records.len % JE_RECORD_LEN == 0);
  assert ((p->record_bytes > 0) == (p->records.len > 0));
  assert (log->bytes == p->records.len + p->maps.len);
}

DEFINE_WITH_CONSISTENT (txg_log)

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
remove_front (struct blob *b, size_t len)
{
  assert (len <= b->len);
  b->len -= len;
  memmove (b->p, b->p + len, b->len);
}

/* Remove the entries before a place: they are in a batch, or dropped. */
static int
pending_remove_locked (struct txg_log *log, const struct place *end)
{
  struct pending *p = &log->pending;
  struct journal_entry e;
  size_t off;

  assert_held (&log->lock);
  if (end->records > log->start.records)
    remove_front (&p->records, end->records - log->start.records);
  if (end->maps > log->start.maps)
    remove_front (&p->maps, end->maps - log->start.maps);
  log->start = *end;
  log->retry = 0;
  p->last_pointers = SIZE_MAX;
  p->record_bytes = 0;
  for (off = 0; off < p->records.len; off += JE_RECORD_LEN) {
    if (je_unpack (p->records.p + off, p->records.len - off, &e) == -1)
      return -1;
    p->record_bytes += e.record.ptr.psize;
  }
  log->bytes = p->records.len + p->maps.len;
  return 0;
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

static struct place
end_locked (const struct txg_log *log)
{
  return (struct place) {
    log->start.records + log->pending.records.len,
    log->start.maps + log->pending.maps.len,
  };
}

static int
fail_lost_write (const struct pointer *p)
{
  return nbdedup_fail (EIO,
                       "records: sector %" PRIu64 ", written since the last "
                       "flush, reads as something else: its write failed: "
                       "restart the server, or run the command again",
                       p->addr);
}

/* Add records with their bytes, read back from the store: usually from the page
 * cache, but if that could not write a page it may have dropped it, and then
 * the disk has what was there before.
 */
static int
inline_records_locked (struct txg_log *log, struct blob *out)
{
  const struct blob *in = &log->pending.records;
  struct journal_entry e;
  size_t off, padded;

  assert_held (&log->lock);
  for (off = 0; off < in->len; off += JE_RECORD_LEN) {
    if (je_unpack (in->p + off, in->len - off, &e) == -1)
      return -1;
    padded = (e.record.ptr.psize + 7) & ~(size_t) 7;
    if (blob_reserve_patient (out, out->len + JE_RECORD_LEN + padded) == -1)
      return -1;
    je_record_pack (&e.record, e.chunk_addr,
                    JE_DATA | (e.over_quota ? JE_OVER_QUOTA : 0),
                    out->p + out->len);
    out->len += JE_RECORD_LEN;
    memset (out->p + out->len, 0, padded);
    if (store_read (log->store, e.record.ptr.addr, out->p + out->len,
                    e.record.ptr.psize) == -1)
      return -1;
    if (pointer_check_stored (&e.record.ptr, out->p + out->len) == -1)
      return fail_lost_write (&e.record.ptr);
    out->len += padded;
  }
  return 0;
}

/* A batch's list of blocks, for the case that its body is damaged: its pointers
 * are lost then, and all other blocks are certain.  Holes are as reliable as
 * in the body.
 */
static int
list_changes (const uint8_t *maps, size_t len, struct blob *list)
{
  struct journal_entry e;
  uint8_t *last = NULL;
  uint64_t count;
  size_t off;
  int64_t n;

  /* No entry is longer than that of the body. */
  if (blob_reserve_patient (list, len) == -1)
    return -1;
  for (off = 0; off < len; off += (size_t) n) {
    n = je_unpack (maps + off, len - off, &e);
    if (n == -1)
      return -1;
    if (e.type != JE_HOLES && last && get_le64 (last + 8) == e.layer) {
      count = get_le64 (last + 24);
      if (get_le64 (last + 16) + count == e.block) {
        put_le64 (last + 24, count + e.count);
        continue;
      }
    }
    last = e.type == JE_HOLES ? NULL : list->p + list->len;
    if (e.type == JE_HOLES)
      je_holes_pack (e.layer, e.block, e.count, list->p + list->len);
    else
      je_lost_pack (e.layer, e.block, e.count, list->p + list->len);
    list->len += JE_HOLES_LEN;
  }
  return 0;
}
static_assert (JE_HOLES_LEN <= JE_POINTERS_LEN + POINTER_LEN,
               "a list fits where the body fits");

static int
append_iov_locked (struct txg_log *log, const struct iovec *iov, int nr_iov,
                   const struct iovec *list, uint64_t needed, uint64_t *seq)
{
  const bool settled = needed <= log->synced;
  int r;

  assert_held (&log->lock);
  r = journal_append (log->journal, iov, nr_iov, list,
                      settled ? JOURNAL_ITSELF : log->settled, seq);
  /* A ring that cannot grow counts as full, and so does one that cannot be
   * written for lack of memory.
   */
  if (r != 0)
    return r == -1 && (errno == ENOSPC || errno == ENOMEM) ? 1 : r;
  log->needed = needed;
  if (settled)
    log->settled = *seq;
  log->told = log->settled;
  return 0;
}

/* Append a batch that is only a header. */
static int
append_empty_locked (struct txg_log *log, uint64_t *seq)
{
  return append_iov_locked (log, NULL, 0, &(struct iovec) { NULL, 0 },
                            log->needed, seq);
}

/* Write the buffer up to 'end' as one batch, with the records' bytes if
 * 'carry'.  0, 1 (no room), -1.
 */
static int
append_locked (struct txg_log *log, const struct place *end, bool carry,
               uint64_t *seq)
{
  const struct pending *p = &log->pending;
  struct blob data CLEANUP_BLOB = { NULL };
  struct blob list CLEANUP_BLOB = { NULL };
  uint64_t needed = log->needed;
  struct iovec iov[2];
  int r;

  assert_held (&log->lock);
  iov[0] = (struct iovec) { p->records.p, end->records - log->start.records };
  iov[1] = (struct iovec) { p->maps.p, end->maps - log->start.maps };
  if (carry) {
    assert (iov[0].iov_len == p->records.len);
    if (inline_records_locked (log, &data) == -1)
      return errno == ENOMEM ? 1 : -1;
    iov[0] = (struct iovec) { data.p, data.len };
  }
  else if (iov[0].iov_len > 0)
    needed = end->records;
  if (iov[0].iov_len + iov[1].iov_len > JOURNAL_BODY_MAX)
    return 1; /* grew while there was no room */
  if (list_changes (iov[1].iov_base, iov[1].iov_len, &list) == -1)
    return errno == ENOMEM ? 1 : -1;
  r = append_iov_locked (log, iov, 2, &(struct iovec) { list.p, list.len },
                         needed, seq);
  return r ? r : pending_remove_locked (log, end);
}

/* Write the buffer without a sync. */
static int
append_all_locked (struct txg_log *log)
{
  const struct place end = end_locked (log);
  uint64_t seq;

  return pending_is_empty (&log->pending)
    ? 0
    : append_locked (log, &end, false, &seq);
}

/* Called after each addition: keep the buffer small. */
static int
added_locked (struct txg_log *log)
{
  int r;

  update_bytes_locked (log);
  /* No entry in the journal may follow one that is missing there. */
  if (log->bytes < BUFFER_MAX || log->bytes < log->retry || log->dropped)
    return 0;
  /* 1, no room: the buffer grows until the fold, within the budget that
   * txg_throttle watches; but not beyond what one batch can hold.  A try costs
   * a look at all entries, so one for each addition would cost more than all
   * else.
   */
  r = append_all_locked (log);
  if (r == 1)
    log->retry = log->bytes + RETRY_STEP;
  return r == -1 ? -1 : 0;
}

int
txg_log_add_record (struct txg_log *log, const struct record *r,
                    uint64_t chunk_addr, bool over_quota)
{
  struct blob *b = &log->pending.records;

  WITH_LOCK (&log->lock);
  WITH_CONSISTENT (txg_log, log);
  if (blob_reserve_patient (b, b->len + JE_RECORD_LEN) == -1)
    return -1;
  je_record_pack (r, chunk_addr, over_quota ? JE_OVER_QUOTA : 0, b->p + b->len);
  b->len += JE_RECORD_LEN;
  log->pending.record_bytes += r->ptr.psize;
  return added_locked (log);
}

/* Can the last entry be extended by this block? */
static bool
grows_last_locked (const struct pending *p, uint64_t layer, uint64_t block)
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
  WITH_CONSISTENT (txg_log, log);
  if (blob_reserve_patient (b, b->len + JE_POINTERS_LEN + POINTER_LEN) == -1)
    return -1;
  if (!grows_last_locked (p, layer, block)) {
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

static int
add_range (struct txg_log *log, uint64_t layer, uint64_t block, uint64_t count,
           void (*pack) (uint64_t layer, uint64_t block, uint64_t count,
                         uint8_t *buf))
{
  struct blob *b = &log->pending.maps;

  WITH_LOCK (&log->lock);
  WITH_CONSISTENT (txg_log, log);
  if (blob_reserve_patient (b, b->len + JE_HOLES_LEN) == -1)
    return -1;
  pack (layer, block, count, b->p + b->len);
  b->len += JE_HOLES_LEN;
  log->pending.last_pointers = SIZE_MAX;
  return added_locked (log);
}

int
txg_log_add_holes (struct txg_log *log, uint64_t layer, uint64_t block,
                   uint64_t count)
{
  return add_range (log, layer, block, count, je_holes_pack);
}

int
txg_log_add_lost (struct txg_log *log, uint64_t layer, uint64_t block,
                  uint64_t count)
{
  return add_range (log, layer, block, count, je_lost_pack);
}

/*----------------------------------------------------------------------
 * Flush
 */

struct flush {
  struct place end;      /* the flush covers entries before it */
  bool written;          /* they are in the journal ... */
  uint64_t written_seq;  /* ... in batches up to this number */
  uint64_t sync_seq;     /* last batch when the store's sync began */
  struct place sync_end; /* the sync covers entries before it */
  uint64_t seq;          /* sync the journal up to this batch */
};

static uint64_t
last_seq_locked (struct txg_log *log)
{
  uint64_t seq, position;

  assert_held (&log->lock);
  journal_get_end (log->journal, &seq, &position);
  return seq;
}

/* The caller must sync the store. */
#define SYNC_STORE 2

static int
want_sync_locked (struct txg_log *log, struct flush *f)
{
  assert_held (&log->lock);
  f->sync_end = f->written ? log->start : f->end;
  f->sync_seq = last_seq_locked (log);
  return SYNC_STORE;
}

/* 0: only the journal needs a sync.  1: no room.  SYNC_STORE.  -1. */
static int
begin_flush_locked (struct txg_log *log, struct flush *f)
{
  const struct pending *p = &log->pending;

  assert_held (&log->lock);
  if (log->dropped)
    return 1;
  f->end = end_locked (log);
  if (log->needed <= log->synced && p->record_bytes <= INLINE_MAX) {
    if (!pending_is_empty (p))
      return append_locked (log, &f->end, p->records.len > 0, &f->seq);
    f->seq = last_seq_locked (log);
    return log->told == f->seq ? 0 : append_empty_locked (log, &f->seq);
  }
  /* This flush does not cover entries added from here on. */
  log->pending.last_pointers = SIZE_MAX;
  return want_sync_locked (log, f);
}

/* The store was synced.  Returns as begin_flush_locked. */
static int
go_on_locked (struct txg_log *log, struct flush *f)
{
  assert_held (&log->lock);
  if (log->synced < f->sync_end.records)
    log->synced = f->sync_end.records;
  if (log->settled < f->sync_seq)
    log->settled = f->sync_seq;
  if (log->dropped)
    return 1;
  if (log->start.records < f->end.records || log->start.maps < f->end.maps)
    return append_locked (log, &f->end, false, &f->seq);

  /* Another thread has written the entries, or there were none. */
  if (!f->written) {
    f->written = true;
    f->written_seq = last_seq_locked (log);
  }
  if (log->needed <= log->synced)
    log->settled = last_seq_locked (log);
  if (log->settled < f->written_seq)
    return want_sync_locked (log, f);
  f->seq = last_seq_locked (log);
  if (log->told >= f->written_seq)
    return 0;
  return append_empty_locked (log, &f->seq);
}

int
txg_log_flush (struct txg_log *log)
{
  struct flush f = { .written = false };
  int r;

  {
    WITH_LOCK (&log->lock);
    WITH_CONSISTENT (txg_log, log);
    r = begin_flush_locked (log, &f);
  }
  while (r == SYNC_STORE) {
    if (store_sync (log->store) == -1)
      return -1;
    WITH_LOCK (&log->lock);
    WITH_CONSISTENT (txg_log, log);
    r = go_on_locked (log, &f);
  }
  return r ? r : journal_sync (log->journal, f.seq);
}

int
txg_log_cut (struct txg_log *log, uint64_t *seq, uint64_t *position)
{
  int r;

  WITH_LOCK (&log->lock);
  WITH_CONSISTENT (txg_log, log);
  r = append_all_locked (log);
  if (r == -1)
    return -1;
  log->cut = end_locked (log);
  if (r == 1) {
    log->dropped = true;
    if (pending_remove_locked (log, &log->cut) == -1)
      return -1;
  }
  journal_get_end (log->journal, seq, position);
  log->cut_seq = *seq;
  return 0;
}

bool
txg_log_folded (struct txg_log *log)
{
  WITH_LOCK (&log->lock);
  WITH_CONSISTENT (txg_log, log);
  const bool dropped = log->dropped;

  log->dropped = false;
  /* The fold synced the store, and replay skips what pool.db has. */
  if (log->synced < log->cut.records)
    log->synced = log->cut.records;
  if (log->settled < log->cut_seq)
    log->settled = log->cut_seq;
  if (log->told < log->cut_seq)
    log->told = log->cut_seq;
  return dropped;
}

bool
txg_log_waits_for_room (struct txg_log *log)
{
  return log->bytes >= BUFFER_MAX;
}

size_t
txg_log_bytes (struct txg_log *log)
{
  return log->bytes;
}

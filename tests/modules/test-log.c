/* SPDX-License-Identifier: BSD-3-Clause */

/* The journal's buffer: when a batch is settled.
 *
 * After a flush has returned the journal alone, without a mark, says of each
 * batch that its records are durable.  Here other threads' additions, cuts and
 * flushes come at the worst moment: while a flush syncs the store (a hook runs
 * in the sync).
 */

#include <config.h>

#undef NDEBUG
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/xxh3.h"
#include "core/txg-log.h"
#include "disk/store.h"
#include "rigs/testutil.h"

#define SECTOR 512
#define BLOCK 4096
#define EPOCH 1

static char dir[] = "log-XXXXXX";
static const uint8_t uuid[UUID_LEN] = "0123456789abcde";
static struct store *store;
static struct journal *journal;
static struct txg_log *txg_log;
static uint64_t next_addr, next_block;

/*----------------------------------------------------------------------
 * Syncs
 */

static unsigned syncs_store, syncs_journal;
static uint64_t synced_addr; /* records before this one are durable */
static void (*hook) (void);

int
fdatasync (int fd)
{
  void (*fn) (void) = hook;
  uint64_t addr = next_addr;

  if (is_file (fd, "journal"))
    syncs_journal++;
  else if (is_file (fd, "records")) {
    syncs_store++;
    if (fn) {
      hook = NULL;
      fn ();
    }
    synced_addr = addr;
  }
  return (int) syscall (SYS_fdatasync, fd);
}

/*----------------------------------------------------------------------
 * Tries to write a batch
 */

/* The journal asks how large its file system is when it finds no room: at most
 * twice for each batch.
 */
static unsigned asked;

int
fstatvfs (int fd, struct statvfs *fs)
{
  asked++;
  assert (is_file (fd, "journal"));
  return statvfs (".", fs);
}

/*----------------------------------------------------------------------*/

static void
begin (void)
{
  struct store_header header = { .epoch = EPOCH, .sector_bytes = SECTOR };
  uint64_t epoch;

  unlink ("records");
  unlink ("journal");
  memcpy (header.uuid, uuid, UUID_LEN);
  assert (store_create ("records", &header) == 0);
  assert (journal_create ("journal", uuid, EPOCH) == 0);
  store = store_open ("records", false);
  journal = journal_open ("journal", uuid, &epoch);
  assert (store && journal);
  assert (journal_replay (journal, 0, 0, EPOCH, NULL, NULL) == 0);
  txg_log = txg_log_new (journal, store, SECTOR);
  assert (txg_log);
  next_addr = 1024;
  next_block = 0;
  synced_addr = 0;
  syncs_store = syncs_journal = 0;
}

static void
end (void)
{
  assert (hook == NULL);
  txg_log_free (txg_log);
  journal_close (journal);
  store_close (store);
}

/* Do as a worker does: write, add the record, then the pointer. */
static void
add (unsigned nr)
{
  static const uint8_t data[BLOCK] = "data";
  const uint64_t cksum = xxh3_64 (data, BLOCK);
  struct record r = { .lsize = BLOCK };

  for (; nr > 0; --nr) {
    r.ptr = (struct pointer) {
      .addr = next_addr,
      .psize = BLOCK,
      .cksum = cksum,
    };
    assert (store_write (store, next_addr, data, BLOCK) == 0);
    next_addr += BLOCK / SECTOR;
    assert (txg_log_add_record (txg_log, &r, 8, false) == 0);
    assert (txg_log_add_pointer (txg_log, 1, next_block++, &r.ptr) == 0);
  }
}

/* What a replay finds if no mark has survived. */
static struct found {
  uint64_t last, first_suspect;
  uint64_t pointers;
} found;

static int
count (void *opaque, uint64_t seq, enum journal_trust trust,
       const uint8_t *body, size_t len)
{
  const bool suspect = trust == JOURNAL_SUSPECT;
  struct journal_entry e;
  int64_t n;
  size_t off;

  (void) opaque;
  found.last = seq;
  if (suspect && found.first_suspect == 0)
    found.first_suspect = seq;
  for (off = 0; off < len; off += (size_t) n) {
    n = je_unpack (body + off, len - off, &e);
    assert (n > 0);
    if (e.type == JE_POINTERS)
      found.pointers += e.count;
    /* A record that is not known as durable must be carried. */
    if (e.type == JE_RECORD && !suspect)
      assert (e.data || e.record.ptr.addr < synced_addr);
  }
  return 0;
}

static void
look (void)
{
  static uint8_t buf[8 << 20];
  struct journal *j;
  uint64_t epoch;
  ssize_t len;
  size_t i;
  int fd;

  fd = open ("journal", O_RDONLY);
  assert (fd >= 0);
  len = read (fd, buf, sizeof buf);
  assert (len > 0);
  close (fd);
  for (i = 0; i < (size_t) len; i += 512)
    if (memcmp (buf + i, "NBJB\3", 5) == 0)
      memset (buf + i, 0, 512);
  fd = open ("copy", O_RDWR | O_CREAT | O_TRUNC, 0600);
  assert (fd >= 0 && write (fd, buf, len) == len);
  close (fd);
  j = journal_open ("copy", uuid, &epoch);
  assert (j);
  found = (struct found) { .last = 0 };
  if (journal_replay (j, 0, 0, EPOCH, count, NULL) == -1) {
    fprintf (stderr, "%s\n", nbdedup_error ());
    abort ();
  }
  journal_close (j);
}

static void
flush (void)
{
  const uint64_t wanted = next_block;

  assert (txg_log_flush (txg_log) == 0);
  look ();
  assert (found.pointers >= wanted);
}

static void
cut (void)
{
  uint64_t seq, position;

  assert (txg_log_cut (txg_log, &seq, &position) == 0);
}

/*----------------------------------------------------------------------*/

/* Small: carried, one sync.  Large: the store first, then the batch. */
static void
test_sizes (void)
{
  begin ();
  add (3);
  flush ();
  assert (found.last == 1 && found.first_suspect == 0);
  assert (syncs_store == 0 && syncs_journal == 1);
  add (100);
  flush ();
  assert (found.last == 2 && found.first_suspect == 0);
  assert (syncs_store == 1 && syncs_journal == 2);
  flush (); /* nothing new */
  assert (found.last == 2);
  assert (syncs_store == 1 && syncs_journal == 2);
  add (1);
  flush ();
  assert (syncs_store == 1 && syncs_journal == 3);
  end ();
}

/* The page cache could not write a record, and has dropped it.  A batch that
 * carries what is there instead would be answered as durable.
 */
static void
test_dropped_page (void)
{
  static const uint8_t old[BLOCK] = "old";
  uint64_t seq, position;

  begin ();
  add (3);
  assert (store_write (store, 1024 + BLOCK / SECTOR, old, BLOCK) == 0);
  errno = 0;
  assert (txg_log_flush (txg_log) == -1 && errno == EIO);
  assert (strstr (nbdedup_error (),
                  "records: sector 1032, written since the last flush, reads "
                  "as something else"));
  journal_get_end (journal, &seq, &position);
  assert (seq == 0);
  end ();
}

static void
nothing_is_written_yet (void)
{
  uint64_t seq, position;

  journal_get_end (journal, &seq, &position);
  assert (seq == 0);
}

static void
test_store_is_synced_first (void)
{
  begin ();
  hook = nothing_is_written_yet;
  add (100);
  flush ();
  end ();
}

static void
add_more (void)
{
  add (50);
}

/* Entries that come during a flush are neither covered nor called durable. */
static void
test_added_meanwhile (void)
{
  begin ();
  hook = add_more;
  add (100);
  assert (txg_log_flush (txg_log) == 0);
  look ();
  assert (found.last == 1 && found.first_suspect == 0);
  assert (found.pointers == 100);
  assert (syncs_store == 1);
  flush ();
  assert (found.first_suspect == 0 && found.pointers == 150);
  assert (syncs_store == 2);
  end ();
}

static void
add_more_and_cut (void)
{
  add (50);
  cut ();
}

/* Another thread writes our entries, together with some not durable yet. */
static void
test_cut_meanwhile (void)
{
  begin ();
  hook = add_more_and_cut;
  add (100);
  assert (txg_log_flush (txg_log) == 0);
  look ();
  assert (found.first_suspect == 0 && found.pointers == 150);
  assert (syncs_store == 2 && syncs_journal == 1);
  end ();
}

static void
cut_only (void)
{
  cut ();
}

/* Another thread writes our entries, and only these. */
static void
test_same_cut_meanwhile (void)
{
  begin ();
  hook = cut_only;
  add (100);
  flush ();
  assert (found.first_suspect == 0 && found.pointers == 100);
  assert (syncs_store == 1 && syncs_journal == 1);
  end ();
}

static void
flush_more (void)
{
  add (50);
  cut ();
  add (1);
}

/* A flush after a cut settles the batches that the cut wrote. */
static void
test_flush_after_cut (void)
{
  begin ();
  add (3);
  cut ();
  look ();
  assert (found.last == 1 && found.first_suspect == 1);
  flush ();
  assert (found.first_suspect == 0);
  assert (syncs_store == 1);
  add (3);
  cut ();
  add (3);
  flush ();
  assert (found.first_suspect == 0 && found.pointers == 9);
  assert (syncs_store == 2);

  add (3);
  hook = flush_more;
  cut ();
  add (100);
  assert (txg_log_flush (txg_log) == 0);
  look ();
  assert (found.first_suspect == 0 && found.pointers >= 112);
  end ();
}

/* Once a fold is done, its records are durable: one sync is enough. */
static void
test_flush_after_fold (void)
{
  begin ();
  add (3);
  cut ();
  assert (store_sync (store) == 0);
  assert (!txg_log_folded (txg_log));
  syncs_store = 0;
  add (3);
  flush ();
  assert (found.first_suspect == 0 && found.last == 2);
  assert (syncs_store == 0);
  end ();
}

/* The buffer is written when it is large, without a flush. */
static void
test_full_buffer (void)
{
  begin ();
  add (12000);
  look ();
  assert (found.last == 1 && found.first_suspect == 1);
  flush ();
  assert (found.first_suspect == 0 && found.pointers == 12000);
  assert (syncs_store == 1);
  end ();
}

static void
fill_journal (void)
{
  static uint8_t body[JOURNAL_BODY_MAX];
  uint64_t seq;
  size_t size;

  for (size = JOURNAL_BODY_MAX; size >= 512; size /= 2)
    while (journal_append (journal, &(struct iovec) { body, size }, 1,
                           &(struct iovec) { NULL, 0 }, 0, &seq) == 0)
      ;
}

/* The buffer is large and the journal has no room: the txg is told, and not
 * every addition packs a batch, which takes time by the buffer's size.
 */
static void
test_tries_are_few (void)
{
  uint64_t seq, before, position;

  begin ();
  fill_journal ();
  assert (!txg_log_waits_for_room (txg_log));
  asked = 0;
  add (20000);
  assert (txg_log_waits_for_room (txg_log));
  assert (asked > 0 && asked <= 20);
  journal_get_end (journal, &before, &position);
  journal_trim (journal, before, position);
  add (4000); /* it does try, and finds room */
  journal_get_end (journal, &seq, &position);
  assert (seq == before + 1);
  assert (!txg_log_waits_for_room (txg_log));
  assert (txg_log_flush (txg_log) == 0);
  end ();
}

/* A cut finds no room in the journal.  Then only the folding transaction has
 * the entries, and the journal must not refer to them before it is durable.
 */
static void
test_no_room (void)
{
  uint64_t seq, position, before;

  begin ();
  fill_journal ();
  add (1);
  assert (txg_log_flush (txg_log) == 1);
  cut ();
  assert (txg_log_flush (txg_log) == 1);
  journal_get_end (journal, &before, &position);
  journal_trim (journal, before, position); /* there is room again */
  add (12000);
  journal_get_end (journal, &seq, &position);
  assert (seq == before);
  assert (txg_log_flush (txg_log) == 1);
  assert (store_sync (store) == 0);
  assert (txg_log_folded (txg_log)); /* no batch has it */
  assert (txg_log_flush (txg_log) == 0);
  end ();
}

/* Whether a reader accepts an entry of so many blocks. */
static bool
accepts_holes (bool lost, uint64_t block, uint64_t count)
{
  uint8_t buf[JE_HOLES_LEN];
  struct journal_entry e;

  (lost ? je_lost_pack : je_holes_pack) (1, block, 0, buf);
  put_le64 (buf + 24, count);
  return je_unpack (buf, sizeof buf, &e) == (int64_t) sizeof buf;
}

/* A replay of these would take years, or leave the map's range. */
static void
test_impossible_blocks (void)
{
  const uint64_t end = VOLUME_SIZE_MAX / BLOCK_SIZE_MIN;
  uint8_t buf[JE_POINTERS_LEN + POINTER_LEN] = { 0 };
  struct journal_entry e;
  int lost;

  for (lost = 0; lost < 2; ++lost) {
    assert (accepts_holes (lost, 0, JE_HOLES_MAX));
    assert (accepts_holes (lost, end - JE_HOLES_MAX, JE_HOLES_MAX));
    assert (!accepts_holes (lost, 0, JE_HOLES_MAX + 1));
    assert (!accepts_holes (lost, end - JE_HOLES_MAX + 1, JE_HOLES_MAX));
    assert (!accepts_holes (lost, UINT64_MAX, JE_HOLES_MAX));
    assert (!accepts_holes (lost, 0, UINT64_MAX));
  }
  je_pointers_pack (1, end - 1, 1, buf);
  assert (je_unpack (buf, sizeof buf, &e) == (int64_t) sizeof buf);
  je_pointers_pack (1, end, 1, buf);
  assert (je_unpack (buf, sizeof buf, &e) == -1);
}

int
main (void)
{
  char cmd[64];

  assert (mkdtemp (dir) != NULL && chdir (dir) == 0);
  test_sizes ();
  test_dropped_page ();
  test_store_is_synced_first ();
  test_added_meanwhile ();
  test_cut_meanwhile ();
  test_same_cut_meanwhile ();
  test_flush_after_cut ();
  test_flush_after_fold ();
  test_full_buffer ();
  test_tries_are_few ();
  test_no_room ();
  test_impossible_blocks ();
  assert (chdir ("..") == 0);
  snprintf (cmd, sizeof cmd, "rm -rf %s", dir);
  assert (system (cmd) == 0);
  return 0;
}

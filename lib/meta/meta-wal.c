/* SPDX-License-Identifier: BSD-3-Clause */

/* Checkpoints of the WAL, and its size.
 *
 * A separate thread checkpoints the WAL: a checkpoint inside a commit would
 * stop the fold for up to a second.  A passive checkpoint can starve if
 * commits come faster than it copies.  So if the WAL has reached wal_limit, or
 * would reach it with the next fold (meta_wal_is_full), the fold waits for the
 * checkpoint, and restarts the WAL.
 */

#include <config.h>

#include <assert.h>
#include <sys/stat.h>

#include "base/error.h"
#include "format/format.h"
#include "meta/meta-int.h"
#include "vfs/cksum-snapshot.h"

/* Checkpoint when the WAL has a third of the pages at which a fold waits for
 * it, and not at more than these.  A checkpoint writes a page once that many
 * folds have changed, so large ones write less.
 */
#define WAL_PAGES_MAX 4096
#define WAL_SHARE 3
#define WAL_LIMIT_BYTES (UINT64_C (96) << 20)
#define WAL_LIMIT_BYTES_MIN (UINT64_C (1) << 20)
/* How long the fold waits for readers before it lets the WAL grow further. */
#define READERS_WAIT_MS 100

static uint64_t
get_commits (struct meta *m)
{
  WITH_LOCK (&m->lock);
  return m->nr_commits;
}

/* SQLite refuses a checkpoint (SQLITE_BUSY, at once) while another one is
 * running, so ours wait for each other.  The wait is no longer than copying
 * the WAL, which the waiting thread would otherwise do itself.
 *
 * A failed checkpoint loses nothing: the WAL still has everything.  But SQLite
 * would sync again next time, although the kernel may have dropped the pages
 * that it failed to write.  So the pool makes no further commit.
 */
static int
checkpoint_locked (struct meta *m, struct meta_conn *c, int mode)
{
  uint64_t nr_commits;
  int rc, frames, copied;

  assert_held (&m->copying);
  nr_commits = get_commits (m);
  rc = sqlite3_wal_checkpoint_v2 (c->db, NULL, mode, &frames, &copied);
  if (rc == SQLITE_IOERR_FSYNC)
    m->writer.sync_failed = true;
  m->copied_commits = rc == SQLITE_OK && copied == frames ? nr_commits
                                                          : COPIED_PARTLY;
  return rc;
}

/* The WAL starts again: nothing in it has been copied. */
static void
wal_begins_locked (struct meta *m)
{
  assert_held (&m->lock);
  m->wal_begun++;
  m->wal_pages = m->copied_pages = 0;
}

static bool
wants_checkpoint_locked (const struct meta *m)
{
  return m->wal_pages - m->copied_pages >= m->checkpoint_pages;
}

/* Copy what the WAL has now, as far as readers allow.  A failure is not lost:
 * the WAL keeps growing, and the commit that cannot extend it reports why.
 */
static int
copy_locked (struct meta *m, struct meta_conn *c)
{
  unsigned begun;
  int pages, rc;

  assert_held (&m->copying);
  {
    WITH_LOCK (&m->lock);
    begun = m->wal_begun;
    pages = m->wal_pages;
  }
  cksum_snapshots_look (m->path);
  rc = checkpoint_locked (m, c, SQLITE_CHECKPOINT_PASSIVE);
  WITH_LOCK (&m->lock);
  WITH_CONSISTENT (meta, m);
  if (m->wal_begun == begun && pages > m->copied_pages)
    m->copied_pages = pages;
  return rc;
}

/* Another thread may have copied meanwhile: see meta_copy_all_locked. */
static bool
still_wants_checkpoint (struct meta *m)
{
  WITH_LOCK (&m->lock);
  return wants_checkpoint_locked (m);
}

void *
meta_checkpoint_thread (void *arg)
{
  struct meta *m = arg;

  for (;;) {
    {
      WITH_LOCK (&m->lock);
      while (!m->thread.stop && !wants_checkpoint_locked (m))
        lock_wait (&m->lock, &m->thread.wake);
      if (m->thread.stop)
        return NULL;
    }
    WITH_LOCK (&m->copying);
    if (still_wants_checkpoint (m))
      copy_locked (m, &m->checkpointer);
  }
}

int
meta_wal_hook (void *arg, sqlite3 *db, const char *name, int pages)
{
  struct meta *m = arg;

  (void) db;
  (void) name;
  WITH_LOCK (&m->lock);
  WITH_CONSISTENT (meta, m);
  if (pages < m->wal_pages)
    wal_begins_locked (m);
  m->wal_pages = pages;
  m->nr_commits++;
  if (wants_checkpoint_locked (m))
    cond_signal (&m->thread.wake);
  return SQLITE_OK;
}

int
meta_checkpoint (struct meta *m)
{
  /* Use the writer: TRUNCATE waits for readers, not for itself. */
  WITH_LOCK (&m->copying);
  if (checkpoint_locked (m, &m->writer, SQLITE_CHECKPOINT_TRUNCATE) !=
      SQLITE_OK)
    return meta_fail (&m->writer, "checkpoint");
  WITH_LOCK (&m->lock);
  wal_begins_locked (m);
  return 0;
}

/* Let no new reader start, and wait until no thread reads, but at most
 * READERS_WAIT_MS: a scrub may look for damage for longer.
 */
static void
hold_readers (struct meta *m)
{
  unsigned tries;

  assert_held (&m->copying);
  WITH_LOCK (&m->lock);
  m->hold_readers = true;
  for (tries = 0; m->nr_free < NR_READERS && tries < READERS_WAIT_MS; ++tries)
    lock_wait_ms (&m->lock, &m->all_free, 1);
}

static void
let_readers (struct meta *m, bool restarted)
{
  WITH_LOCK (&m->lock);
  WITH_CONSISTENT (meta, m);
  m->hold_readers = false;
  cond_broadcast (&m->reader_free);
  if (restarted)
    wal_begins_locked (m);
}

/* Without need no checkpoint follows another one: beside a commit of another
 * thread, SQLite before 3.51.3 might then take the WAL for copied that begins
 * again (https://sqlite.org/wal.html#walresetbug).
 */
int
meta_copy_all_locked (struct meta *m, bool hold)
{
  int rc;

  assert_held (&m->copying);
  if (m->copied_commits == get_commits (m))
    return 1;
  if (hold)
    hold_readers (m);
  rc = copy_locked (m, &m->checkpointer);
  if (hold)
    let_readers (m, false);
  if (m->copied_commits != COPIED_PARTLY)
    return 1;
  return rc == SQLITE_OK || rc == SQLITE_BUSY
    ? 0
    : meta_fail (&m->checkpointer, "checkpoint");
}

void
meta_copy_ahead (struct meta *m)
{
  if (m->readonly)
    return; /* it has no connection for that */
  WITH_LOCK (&m->copying);
  meta_copy_all_locked (m, false);
}

void
meta_copy_wal (struct meta *m)
{
  WITH_LOCK (&m->copying);
  copy_locked (m, &m->writer);
}

bool
meta_restart_wal (struct meta *m, enum meta_restart how)
{
  int r;

  /* Copy while others read.  Then hold the readers: the WAL restarts only when
   * no reader is inside it, and lookups follow each other so closely that it
   * never would by itself.
   */
  WITH_LOCK (&m->copying);
  copy_locked (m, &m->writer);
  if (how == META_EXPEL)
    cksum_snapshots_give_way (m->path);
  hold_readers (m);
  r = checkpoint_locked (m, &m->writer,
                         how == META_RESTART ? SQLITE_CHECKPOINT_RESTART
                                             : SQLITE_CHECKPOINT_TRUNCATE);
  let_readers (m, r == SQLITE_OK);
  return r == SQLITE_OK;
}

static uint64_t
pool_bytes (struct meta *m)
{
  struct stat st;

  return stat (m->path, &st) == 0 ? (uint64_t) st.st_size : WAL_LIMIT_BYTES;
}

/* The WAL may be as large as pool.db, within limits: a small pool may be on a
 * small file system.  The WAL's file keeps its size while the pool is open, so
 * the limit applies before the file grows.  Otherwise the fold that was
 * promised most when the WAL was nearly full would determine the size.
 */
static uint64_t
wal_limit (uint64_t pool_bytes)
{
  if (pool_bytes < WAL_LIMIT_BYTES_MIN)
    return WAL_LIMIT_BYTES_MIN;
  return pool_bytes < WAL_LIMIT_BYTES ? pool_bytes : WAL_LIMIT_BYTES;
}

/* True if the WAL can take 'pages' without growing beyond its limit. */
static bool
has_room (struct meta *m, uint64_t pages, uint64_t limit)
{
  return pages * META_PAGE_BYTES <= limit ||
    pages <= meta_files_wal_pages (m->files);
}

static int
checkpoint_pages (uint64_t limit)
{
  const uint64_t pages = limit / META_PAGE_BYTES / WAL_SHARE;

  assert (limit >= WAL_LIMIT_BYTES_MIN && limit <= WAL_LIMIT_BYTES);
  return pages < META_CHECKPOINT_PAGES_MIN ? META_CHECKPOINT_PAGES_MIN
    : pages > WAL_PAGES_MAX                ? WAL_PAGES_MAX
                                           : (int) pages;
}

bool
meta_wal_is_full (struct meta *m, uint64_t need)
{
  const uint64_t limit = wal_limit (pool_bytes (m));
  uint64_t pages;

  {
    WITH_LOCK (&m->lock);
    pages = (uint64_t) m->wal_pages;
    m->checkpoint_pages = checkpoint_pages (limit);
  }
  return pages > 0 &&
    (pages * META_PAGE_BYTES >= limit || !has_room (m, pages + need, limit));
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* Opening and closing pool.db, its copy, and the readers.  The tables are in
 * meta-tables.c.
 */

#include <config.h>

#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "format/format.h"
#include "meta/meta-int.h"
#include "meta/meta-pair.h"
#include "vfs/cksum-snapshot.h"
#include "vfs/cksum-vfs.h"

#define FROZEN_CACHE_BYTES (UINT64_C (2) << 20)
/* How often, and how far apart, meta_frozen_open tries to copy the WAL. */
#define FROZEN_TRIES 60
#define FROZEN_RETRY_MS 20

void
meta_assert_consistent_locked (struct meta *m)
{
  unsigned i, j;

  assert_held (&m->lock);
  assert (m->nr_free <= NR_READERS);
  for (i = 0; i < m->nr_free; ++i) {
    assert (m->free[i] >= m->readers && m->free[i] < m->readers + NR_READERS);
    for (j = 0; j < i; ++j)
      assert (m->free[i] != m->free[j]);
  }
  assert (m->copied_pages >= 0 && m->copied_pages <= m->wal_pages);
}

int
meta_blank_damage (struct meta *m)
{
  return meta_copy_blank (m->copy);
}

bool
meta_saw_damage (struct meta *m)
{
  bool saw = m->writer.saw_damage;
  unsigned i;

  for (i = 0; i < NR_READERS; ++i)
    saw |= m->readers[i].saw_damage;
  return saw;
}

static int
conn_open_of (struct meta *m, struct meta_conn *c, uint64_t cache_bytes)
{
  return m->readonly ? meta_conn_open_readonly (c, m->path, cache_bytes)
                     : meta_conn_open (c, m->path, false, cache_bytes);
}

static int
open_connections (struct meta *m, uint64_t budget)
{
  unsigned i;

  assert (m->nr_free == 0);
  if (conn_open_of (m, &m->writer, budget / 2) == -1)
    return -1;
  for (i = 0; i < NR_READERS; ++i) {
    if (conn_open_of (m, &m->readers[i], budget / 2 / NR_READERS) == -1)
      return -1;
    m->free[m->nr_free++] = &m->readers[i];
  }
  if (m->readonly)
    return 0;
  if (meta_conn_open (&m->checkpointer, m->path, false, 0) == -1)
    return -1;
  sqlite3_wal_hook (m->writer.db, meta_wal_hook, m);
  return 0;
}

static int
start_copy (struct meta *m)
{
  struct meta_conn c = { NULL };

  if (meta_conn_open (&c, m->path, false, 0) == -1)
    return -1;
  if (meta_copy_start (m->copy, &c) == -1)
    return -1;
  return 0;
}

static int
start_writing (struct meta *m)
{
  m->files = meta_files_open (m->path, META_PAGE_BYTES, m->copy);
  if (m->files == NULL || meta_count_pages (m) == -1 || start_copy (m) == -1)
    return -1;
  return background_start (&m->thread, meta_checkpoint_thread, m);
}

static struct meta *
open_meta (const char *path, uint64_t budget_bytes, bool readonly,
           const struct meta_session *session, bool force)
{
  struct meta *m;
  int err;

  if (cksum_vfs_register () == -1)
    return NULL;
  m = calloc (1, sizeof *m);
  if (m == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  lock_init (&m->copying);
  lock_init (&m->lock);
  m->checkpoint_pages = META_CHECKPOINT_PAGES_MIN;
  m->copied_commits = COPIED_PARTLY;
  background_init (&m->thread, &m->lock);
  cond_init (&m->reader_free);
  cond_init (&m->all_free);
  m->readonly = readonly;
  m->path = strdup (path);
  if (m->path == NULL) {
    nbdedup_fail (ENOMEM, "no memory");
    goto err;
  }
  if (!readonly) {
    m->copy = meta_copy_new (path, session, force);
    if (m->copy == NULL)
      goto err;
  }
  if (meta_probe (path) == -1 || open_connections (m, budget_bytes) == -1 ||
      (!readonly &&
       (meta_copy_opened (m->copy) == -1 || start_writing (m) == -1)))
    goto err;
  return m;

err:
  err = errno;
  meta_close (m);
  errno = err;
  return NULL;
}

struct meta *
meta_open (const char *path, uint64_t budget_bytes,
           const struct meta_session *session, bool force)
{
  return open_meta (path, budget_bytes, false, session, force);
}

/* A WAL that this process may not read is neither missing nor damaged: without
 * it the pool would be of an older moment.
 */
static int
check_wal (const char *path)
{
  CLEANUP_FREE char *wal = NULL;
  CLEANUP_CLOSE int fd = -1;

  if (asprintf (&wal, "%s-wal", path) == -1) {
    wal = NULL;
    return nbdedup_fail (ENOMEM, "no memory");
  }
  fd = open (wal, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd == -1 && errno != ENOENT)
    return nbdedup_fail (errno, "%s: cannot be opened: %s", wal,
                         strerror (errno));
  return 0;
}

struct meta *
meta_open_readonly (const char *path, uint64_t budget_bytes,
                    const struct meta_session *session, bool force)
{
  struct meta_pair_choice choice;
  struct cksum_shared *prepared = NULL;
  struct meta *m = NULL;
  int stand_in = -1, err;

  if (cksum_vfs_register () == -1 || check_wal (path) == -1 ||
      meta_pair_choose (path, session, force, &choice) == -1)
    return NULL;
  if (choice.stand_in)
    stand_in = open (choice.stand_in,
                     O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  prepared = cksum_readonly_prepare (choice.path, stand_in, choice.wal,
                                     choice.without_wal);
  choice.wal = -1; /* the VFS owns it now */
  if (prepared)
    m = open_meta (choice.path, budget_bytes, true, session, false);
  err = errno;
  if (m)
    m->prepared = prepared;
  else
    cksum_readonly_release (prepared);
  meta_pair_choice_free (&choice);
  errno = err;
  return m;
}

void
meta_opened (struct meta *m)
{
  m->opened = true;
  /* The last connection that is closed removes the WAL. */
  sqlite3_db_config (m->writer.db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0, NULL);
}

int
meta_close (struct meta *m)
{
  unsigned i;
  int r = 0;

  if (m == NULL)
    return 0;
  meta_copy_stop (m->copy);
  if (m->thread.runs) {
    background_stop (&m->thread);
    assert (m->nr_free == NR_READERS && m->nr_frozen == 0);
    if (m->writer.sync_failed)
      r = nbdedup_fail (EIO, "pool.db: an earlier fdatasync has failed");
    else if (m->opened) {
      r = meta_checkpoint (m);
      if (r == 0 && m->kept_wal_pages > 0)
        meta_trim_files (m, m->kept_pages, m->kept_wal_pages);
    }
    /* Then only the WAL is certain: closing must not remove it. */
    if (r == -1)
      sqlite3_db_config (m->writer.db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1,
                         NULL);
  }
  for (i = 0; i < NR_READERS; ++i)
    meta_conn_close (&m->readers[i]);
  meta_conn_close (&m->checkpointer);
  meta_conn_close (&m->writer);
  meta_copy_free (m->copy, m->opened && r == 0);
  cksum_readonly_release (m->prepared);
  meta_files_close (m->files);
  cond_destroy (&m->all_free);
  cond_destroy (&m->reader_free);
  background_destroy (&m->thread);
  lock_destroy (&m->lock);
  lock_destroy (&m->copying);
  free (m->path);
  free (m);
  return r;
}

int
meta_copy_check_value (struct meta *m, const char *value)
{
  return meta_copy_try (m->copy, value);
}

int
meta_copy_set (struct meta *m, const char *value)
{
  return meta_copy_configure (m->copy, value);
}

void
meta_copy_room (struct meta *m)
{
  meta_copy_retry (m->copy);
}

void
meta_copy_get_status (struct meta *m, struct meta_copy_status *status)
{
  memset (status, 0, sizeof *status);
  if (m->copy)
    meta_copy_status (m->copy, status);
}

int
meta_copy_check (struct meta *m,
                 void (*fn) (void *opaque, bool repaired, const char *text),
                 int (*step) (void *opaque, uint64_t bytes), void *opaque)
{
  /* A read-only pool uses only the copy that was chosen. */
  return m->copy ? meta_copy_compare (m->copy, fn, step, opaque) : 0;
}

struct meta_conn *
meta_writer (struct meta *m)
{
  return &m->writer;
}

struct meta_conn *
meta_reader_get (struct meta *m)
{
  WITH_LOCK (&m->lock);
  WITH_CONSISTENT (meta, m);
  while (m->nr_free == 0 || m->hold_readers)
    lock_wait (&m->lock, &m->reader_free);
  return m->free[--m->nr_free];
}

struct meta_conn *
meta_reader_try (struct meta *m)
{
  WITH_LOCK (&m->lock);
  WITH_CONSISTENT (meta, m);
  return m->nr_free == 0 || m->hold_readers ? NULL : m->free[--m->nr_free];
}

void
meta_reader_put (struct meta *m, struct meta_conn *c)
{
  /* A statement that was not reset would keep its view of pool.db open.  That
   * would hide later commits, and keep the WAL from restarting.  The caller
   * must close a view that meta_freeze has opened.
   */
  assert (!sqlite3_get_autocommit (c->db) ||
          sqlite3_txn_state (c->db, NULL) == SQLITE_TXN_NONE);
  WITH_LOCK (&m->lock);
  WITH_CONSISTENT (meta, m);
  assert (m->nr_free < NR_READERS);
  m->free[m->nr_free++] = c;
  cond_signal (&m->reader_free);
  if (m->nr_free == NR_READERS)
    cond_signal (&m->all_free);
}

/* 1: a snapshot; 0: none, for the WAL has a damaged page; -1.  Folds, and the
 * readers that wait, have their turn between the attempts.
 */
static int
begin_snapshot (struct meta *m, struct meta_conn *c)
{
  bool is_damaged = false;
  unsigned tries;
  int r;

  for (tries = 0; tries < FROZEN_TRIES; ++tries) {
    {
      WITH_LOCK (&m->copying);
      r = meta_copy_all_locked (m, tries > 0);
      if (r == 1)
        c->snapshot = cksum_snapshot_begin (m->path);
      else if (r == -1)
        is_damaged = meta_is_damaged (&m->checkpointer);
    }
    if (r != 0)
      return c->snapshot ? 1 : is_damaged ? 0 : -1;
    clock_sleep_ms (FROZEN_RETRY_MS);
  }
  return nbdedup_fail (EBUSY,
                       "pool.db: other commands read it: try again "
                       "later");
}

/* No commit changes a read-only pool.  A reader in the WAL reads all but its
 * damaged pages, and the WAL cannot start again anyway.
 */
static int
open_frozen (struct meta *m, struct meta_conn *c)
{
  const int r = m->readonly ? 0 : begin_snapshot (m, c);

  switch (r) {
  case 1:
    return meta_conn_open_snapshot (c, m->path, FROZEN_CACHE_BYTES);
  case 0:
    return conn_open_of (m, c, FROZEN_CACHE_BYTES);
  default:
    return -1;
  }
}

struct meta_conn *
meta_frozen_open (struct meta *m)
{
  struct meta_conn *c = calloc (1, sizeof *c);
  struct meta_state state;

  if (c == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  {
    WITH_LOCK (&m->lock);
    m->nr_frozen++;
  }
  if (open_frozen (m, c) == -1 || meta_freeze (c) == -1 ||
      meta_state_get (c, &state) == -1) {
    meta_frozen_close (m, c);
    return NULL;
  }
  return c;
}

void
meta_frozen_close (struct meta *m, struct meta_conn *c)
{
  const int err = errno;

  if (c->db)
    meta_unfreeze (c);
  meta_conn_close (c);
  free (c);
  errno = err;
  WITH_LOCK (&m->lock);
  assert (m->nr_frozen > 0);
  m->nr_frozen--;
}

bool
meta_is_frozen (struct meta *m)
{
  WITH_LOCK (&m->lock);
  return m->nr_frozen > 0;
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* The pages of pool.db and its WAL: how many there are, and room for more. */

#include <config.h>

#include <assert.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "base/cleanup.h"
#include "format/format.h"
#include "meta/meta-int.h"
#include "vfs/cksum-snapshot.h"
#include "vfs/cksum-vfs.h"

static uint64_t
free_bytes (struct meta *m)
{
  struct statvfs fs;

  return statvfs (m->path, &fs) == -1 ? UINT64_MAX
                                      : (uint64_t) fs.f_bavail * fs.f_frsize;
}

int
meta_count_pages (struct meta *m)
{
  uint64_t all, unused;

  if (meta_page_counts (&m->writer, &all, &unused) == -1)
    return -1;
  m->used_pages = all > unused ? all - unused : 1;
  m->all_pages = all;
  return 0;
}

void
meta_committed (struct meta *m)
{
  assert (!m->readonly);
  /* On failure the counts stay as they were until the next commit. */
  (void) meta_count_pages (m);
}

void
meta_trim_files (struct meta *m, uint64_t db_pages, uint64_t wal_pages)
{
  const uint64_t read = cksum_snapshots_pages (m->path);
  uint64_t pages = db_pages > m->all_pages ? db_pages : m->all_pages;

  meta_files_trim (m->files, pages > read ? pages : read, wal_pages);
}

/* Count the pages of the files now. */
static void
get_readonly_pages (struct meta *m, struct meta_pages *pages)
{
  CLEANUP_FREE char *wal = NULL;
  struct meta_conn *c = meta_reader_get (m);
  uint64_t all = 0, unused = 0;
  struct stat st;

  memset (pages, 0, sizeof *pages);
  if (meta_page_counts (c, &all, &unused) == 0 && all > unused) {
    pages->used = all - unused;
    pages->unused = unused;
  }
  meta_reader_put (m, c);
  if (stat (m->path, &st) == 0)
    pages->allocated = (uint64_t) st.st_size / META_PAGE_BYTES;
  if (asprintf (&wal, "%s-wal", m->path) == -1)
    wal = NULL;
  else if (stat (wal, &st) == 0)
    pages->wal_allocated = (uint64_t) st.st_size / META_PAGE_BYTES;
}

void
meta_get_pages (struct meta *m, struct meta_pages *pages)
{
  if (m->readonly) {
    get_readonly_pages (m, pages);
    return;
  }
  pages->used = m->used_pages;
  pages->unused = m->all_pages - pages->used;
  pages->allocated = meta_files_db_pages (m->files);
  pages->wal_allocated = meta_files_wal_pages (m->files);
  WITH_LOCK (&m->lock);
  pages->wal_used = (uint64_t) m->wal_pages;
}

int
meta_get_traffic (struct meta *m, struct meta_traffic *traffic)
{
  uint64_t bytes[CKSUM_WRITTEN];

  if (cksum_get_written (m->path, bytes) == -1)
    return -1;
  traffic->db_bytes = bytes[CKSUM_WRITTEN_DB];
  traffic->wal_bytes = bytes[CKSUM_WRITTEN_WAL];
  traffic->copy_bytes = bytes[CKSUM_WRITTEN_COPY];
  return 0;
}

int
meta_allocate (struct meta *m, uint64_t db_pages, uint64_t wal_pages)
{
  assert (!m->readonly);
  return meta_files_allocate (m->files, db_pages, wal_pages);
}

uint64_t
meta_free_pages (struct meta *m)
{
  return free_bytes (m) / META_PAGE_BYTES;
}

void
meta_give_back (struct meta *m, uint64_t db_pages, uint64_t wal_pages,
                enum meta_restart how)
{
  assert (how != META_RESTART);
  if (meta_restart_wal (m, how))
    meta_trim_files (m, db_pages, wal_pages);
}

int
meta_vacuum (struct meta *m)
{
  const uint64_t used = m->used_pages;
  uint64_t wal;

  assert (!m->readonly);
  if (meta_is_frozen (m))
    return 0;
  {
    WITH_LOCK (&m->lock);
    wal = (uint64_t) m->wal_pages;
  }
  m->writer.write_failed = false;
  if (meta_allocate (m, 0, wal + used + used / 8 + 16) == -1 ||
      meta_exec (&m->writer, "VACUUM", "vacuum") == -1)
    return -1;
  meta_committed (m);
  return 1;
}

void
meta_set_kept (struct meta *m, uint64_t db_pages, uint64_t wal_pages)
{
  m->kept_pages = db_pages;
  m->kept_wal_pages = wal_pages;
}

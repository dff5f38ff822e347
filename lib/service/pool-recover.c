/* SPDX-License-Identifier: BSD-3-Clause */

/* Recovering a pool whose pool.db is lost.
 *
 * Opening the pool does the work (meta-pair.h).  Here it may also use a copy
 * that no mark confirms: the epochs of the other files and the journal decide
 * whether the copy is of their moment.  So a recovery can be interrupted and
 * repeated like any opening.  If there is no copy, "records" still shows which
 * records it has: the search finds summary chunks by their header, which every
 * chunk has and which data cannot match by chance.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "core/engine.h"
#include "core/events.h"
#include "core/fold-summary.h"
#include "disk/store.h"
#include "format/format.h"
#include "format/segment.h"
#include "meta/meta.h"

#define PIECE_BYTES (1 << 20)

struct found {
  struct store *store;
  const struct store_header *header;
  uint64_t records, bytes, stored_bytes;
};

static void
count_chunk (struct found *f, const uint8_t *buf, uint64_t offset)
{
  const uint32_t per_segment = SEGMENT_BYTES / f->header->sector_bytes;
  struct record r;
  uint64_t birth;
  unsigned i;

  for (i = 1; i < summary_chunk_slots (f->header->sector_bytes); ++i)
    if (summary_slot_unpack (f->header->uuid, offset + i * SUMMARY_SLOT_BYTES,
                             offset / SEGMENT_BYTES, per_segment,
                             buf + i * SUMMARY_SLOT_BYTES, &r, &birth) == 1) {
      f->records++;
      f->bytes += r.lsize;
      f->stored_bytes += r.ptr.psize;
    }
}

/* Chunks are aligned to their size. */
static int
find_records (struct found *f, const char *path)
{
  CLEANUP_FREE uint8_t *buf = malloc (PIECE_BYTES);
  const uint32_t sector = f->header->sector_bytes;
  const uint32_t step = summary_chunk_bytes (sector);
  uint64_t length, offset, n, i;
  uint32_t index;

  if (buf == NULL)
    return nbdedup_fail (ENOMEM, "%s: no memory", path);
  if (store_length (f->store, &length) == -1)
    return -1;
  for (offset = 0; offset + step <= length; offset += n) {
    n = length - offset < PIECE_BYTES ? length - offset : PIECE_BYTES;
    n -= n % step;
    /* A piece that cannot be read counts as empty. */
    if (store_read (f->store, offset / sector, buf, (size_t) n) == -1)
      continue;
    for (i = 0; i < n; i += step)
      if (summary_header_unpack (f->header->uuid, (offset + i) / sector, sector,
                                 buf + i, &index))
        count_chunk (f, buf + i, offset + i);
  }
  return 0;
}

static json_t *
list_records (const char *path, const char *why)
{
  CLEANUP_FREE char *records = pool_file (path, "records");
  struct found f = { .store = records ? store_open (records, true) : NULL };
  json_t *result = NULL;

  if (f.store == NULL)
    return NULL;
  f.header = store_get_header (f.store);
  if (find_records (&f, records) == 0)
    result = json_pack ("{s:b, s:o, s:I, s:I, s:I}", "recovered", 0, "missing",
                        nbdedup_json_text (why), "records",
                        (json_int_t) f.records, "record_bytes",
                        (json_int_t) f.bytes, "stored_bytes",
                        (json_int_t) f.stored_bytes)
      ?: nbdedup_fail_null (ENOMEM, "no memory");
  store_close (f.store);
  return result;
}

static int
count_volume (void *opaque, const char *name, uint64_t size, bool readonly)
{
  (void) name;
  (void) size;
  *(json_int_t *) opaque += !readonly;
  return 0;
}

/* Any file of the pool except pool.db shows that it is one. */
static int
check_is_pool (const char *path)
{
  CLEANUP_FREE char *journal = pool_file (path, "journal");
  CLEANUP_FREE char *records = pool_file (path, "records");
  struct stat st;

  if (journal == NULL || records == NULL)
    return -1;
  if (stat (path, &st) == -1)
    return nbdedup_fail (errno, "%s: %s: give the directory of a pool", path,
                         strerror (errno));
  if (lstat (journal, &st) == 0 || lstat (records, &st) == 0)
    return 0;
  if (errno == EACCES)
    return nbdedup_fail (errno,
                         "%s: %s: run this as a user who may read and write "
                         "the pool",
                         path, strerror (errno));
  if (errno != ENOENT && errno != ENOTDIR)
    return nbdedup_fail (errno, "%s: %s", path, strerror (errno));
  return nbdedup_fail (ENOENT,
                       "%s: not a pool: it has neither records nor a journal: "
                       "give the directory of a pool",
                       path);
}

/* Give up the journal only if nothing else helps. */
static struct nbdedup_pool *
open_damaged (const char *path, bool without_journal)
{
  static const char who[] = "nbdedup recover";
  struct nbdedup_pool *pool = nbdedup_pool_open (path, NULL, who,
                                                 NBDEDUP_OPEN_RECOVER);

  if (pool == NULL && without_journal && (errno == EIO || errno == ENOENT))
    pool = nbdedup_pool_open (path, NULL, who,
                              NBDEDUP_OPEN_RECOVER |
                                NBDEDUP_OPEN_WITHOUT_JOURNAL);
  return pool;
}

static void
keep_event (struct nbdedup_pool *pool, bool without_journal, json_int_t volumes)
{
  CLEANUP_JSON json_t *event = NULL;

  event_find_asker ();
  event = event_new ("recover", "{s:b, s:I}", "without_journal",
                     (int) without_journal, "volumes", volumes);
  events_keep (pool->events, event);
  event_log (NBDEDUP_LOG_INFO, pool->path, event, NULL);
}

json_t *
nbdedup_pool_recover (const char *path, bool without_journal)
{
  struct nbdedup_pool *pool;
  json_int_t volumes = 0;
  char why[512];

  if (check_is_pool (path) == -1)
    return NULL;
  pool = open_damaged (path, without_journal);
  if (pool != NULL) {
    nbdedup_pool_list (pool, count_volume, &volumes);
    keep_event (pool, without_journal, volumes);
    if (nbdedup_pool_close (pool) == -1)
      return NULL;
    return json_pack ("{s:b, s:I}", "recovered", 1, "volumes", volumes)
      ?: nbdedup_fail_null (ENOMEM, "no memory");
  }
  if (errno != EIO && errno != ENOENT)
    return NULL; /* in use, newer, no room ... */
  snprintf (why, sizeof why, "%s", nbdedup_error ());
  return list_records (path, why);
}

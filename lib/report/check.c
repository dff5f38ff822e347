/* SPDX-License-Identifier: BSD-3-Clause */

/* Recount one frozen state of pool.db, in windows of records that fit the
 * memory budget.  A window holds the rows of records, by ascending address.
 * For each window check reads all maps once, looks up their pointers in it,
 * and counts them.
 *
 * With "repair" check runs twice: problems found by the second run were not
 * repaired.
 */

#include <config.h>

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "core/engine.h"
#include "core/txg.h"
#include "data/sync.h"
#include "drift/history.h"
#include "format/index-row.h"
#include "format/segment.h"
#include "meta/meta-index.h"
#include "meta/meta.h"
#include "report/check-window.h"
#include "report/check.h"
#include "report/mend.h"

/* Texts in the result; the count is complete. */
#define PROBLEMS_MAX 100

/* Compare two problems by the text before the colon, because figures change. */
static bool
is_of_same (const char *a, const char *b)
{
  size_t n = strcspn (a, ":");

  return n == strcspn (b, ":") && strncmp (a, b, n) == 0;
}

static void
was_not_repaired (struct check *ck, const char *text)
{
  json_t *repair;
  size_t i;

  json_array_foreach (ck->repairs, i, repair)
    if (is_of_same (text,
                    json_string_value (json_object_get (repair, "problem"))))
      json_object_set_new (repair, "repaired", json_false ());
}

void
check_problem (struct check *ck, const char *fmt, ...)
{
  char text[512];
  va_list ap;

  ck->nr_errors++;
  if (ck->repairs == NULL && json_array_size (ck->problems) >= PROBLEMS_MAX)
    return;
  va_start (ap, fmt);
  vsnprintf (text, sizeof text, fmt, ap);
  va_end (ap);
  if (ck->repairs != NULL)
    was_not_repaired (ck, text);
  if (json_array_size (ck->problems) < PROBLEMS_MAX)
    json_array_append_new (ck->problems, nbdedup_json_text (text));
}

static int
look (struct check *ck)
{
  if (ck->progress && ck->progress (ck->opaque, ck->done, 0) != 0)
    return nbdedup_fail (EINTR, "interrupted");
  return meta_frozen_check (ck->c);
}

int
check_step (struct check *ck)
{
  return ++ck->done % 1024 == 0 ? look (ck) : 0;
}

/* A page may take as long as many rows. */
static int
look_before_page (void *opaque)
{
  struct check *ck = opaque;

  return ++ck->done % 64 == 0 ? look (ck) : 0;
}

/*----------------------------------------------------------------------
 * Index, totals
 */

/* Does the record that an entry names exist, with a matching digest? */
static int
check_index_entry (struct check *ck, const struct index_entry *e)
{
  struct record r;
  int found = check_get_record (ck, e->addr, &r);

  return found == 1
    ? r.flags & RECORD_INDEXED && index_entry_matches (e, &r.digest)
    : found;
}

/* Each address in limbo must have a record, without references. */
static int
check_limbo (void *opaque, uint64_t addr)
{
  struct check *ck = opaque;
  struct record r;
  int found = check_get_record (ck, addr, &r);

  if (found == 1 && r.refcount == 0)
    ck->in_limbo++;
  else if (found != -1)
    check_problem (ck,
                   "limbo, sector %" PRIu64 ": there is no record without "
                   "references",
                   addr);
  return found == -1 ? -1 : check_step (ck);
}

/* The order of the entries of each row. */
static int
check_index_row (void *opaque, unsigned run, uint64_t low, const uint8_t *buf,
                 size_t len)
{
  struct check *ck = opaque;

  if (!index_row_is_in_order (low, buf, len))
    check_problem (ck, "hash index, run %u, row %016" PRIx64 ": not in order",
                   run, low);
  return check_step (ck);
}

/* Each entry that some run adds and no other removes must have its record.  One
 * that is removed more often than added, or added twice, is stale, too.
 */
static int
check_index (struct check *ck)
{
  struct index_cursor *cu;
  struct index_runs runs;
  struct index_entry e;
  int r = -1, sum, found;

  if (meta_index_scan (ck->c, check_index_row, ck) == -1 ||
      meta_index_runs (ck->c, &runs) == -1)
    return -1;
  cu = meta_index_cursor (ck->c, &runs, 0);
  if (cu == NULL)
    return -1;
  while ((r = meta_index_cursor_next (cu, &e, &sum)) == 1) {
    ck->index_entries += (uint64_t) (int64_t) sum;
    found = sum > 0 ? check_index_entry (ck, &e) : 0;
    if (found == -1 || check_step (ck) == -1) {
      r = -1;
      break;
    }
    ck->good_entries += found == 1;
    if (found == 1 ? sum > 1 : sum != 0)
      ck->stale_entries++;
  }
  meta_index_cursor_free (cu);
  return r;
}

static void
check_total (struct check *ck, const char *what, uint64_t stored,
             uint64_t found)
{
  if (stored != found)
    check_problem (ck, "%s: %" PRIu64 " stored, %" PRIu64 " found", what,
                   stored, found);
}

static int
check_segment_row (void *opaque, uint64_t segment, uint32_t nr_free,
                   uint32_t largest_run)
{
  struct check *ck = opaque;
  struct segment_map *map = NULL;
  unsigned start;
  int r;

  ck->row.len = 0;
  r = meta_segment_get (ck->c, segment, &ck->row);
  if (r == 1)
    map = segment_map_unpack (segment, ck->state.sector_bytes, ck->row.p,
                              ck->row.len);
  if (map == NULL && check_is_no_problem ())
    return -1;
  if (map == NULL)
    check_problem (ck, "segment %" PRIu64 ": %s", segment, nbdedup_error ());
  else if ((uint32_t) (map->nr_sectors - map->nr_used) != nr_free ||
           segment_map_largest_run (map, &start) != largest_run)
    check_problem (ck, "segment %" PRIu64 ": its count of free space is wrong",
                   segment);
  else if (segment_map_is_empty (map))
    check_problem (ck, "segment %" PRIu64 ": has a space map, but no record",
                   segment);
  segment_map_free (map);
  return 0;
}

static int
stray_counts (void *opaque, uint64_t group)
{
  check_problem (opaque, "counts of group %" PRIu64 ": there are no records",
                 group);
  return check_step (opaque);
}

static int
step_through (void *opaque)
{
  return check_step (opaque);
}

static void
wrong_blocks (void *opaque, uint64_t layer, uint64_t stored, uint64_t found)
{
  check_problem (opaque,
                 "layer %" PRIu64 ": %" PRIu64 " blocks counted, %" PRIu64
                 " found",
                 layer, stored, found);
}

static void
quick_check_problem (void *opaque, const char *text)
{
  check_problem (opaque, "pool.db: %s", text);
}

static void
wrong_sample (void *opaque, const char *text)
{
  check_problem (opaque, "%s", text);
}

/* Collect what the pool has in memory and the check compares with a state of
 * pool.db.
 */
static int
collect (struct check *ck)
{
  if (meta_state_get (ck->c, &ck->state) == -1 ||
      meta_copies_get_sectors (ck->c, &ck->state.copy_sectors) == -1 ||
      meta_layer_scan (ck->c, check_collect_layer, ck) == -1)
    return -1;
  if (ck->nr_layers > 0)
    qsort (ck->layers, ck->nr_layers, sizeof *ck->layers, check_compare_layers);
  check_set_ends (ck);
  ck->recount = recount_new (ck->pool);
  return ck->recount ? 0 : -1;
}

/* After pool_sync: freeze pool.db, and collect.  Both are of one moment: no
 * command changes volumes meanwhile, and folds by themselves change no layer.
 */
static int
check_begin (struct check *ck)
{
  assert_held (&ck->pool->admin);
  ck->c = meta_frozen_open (ck->pool->meta);
  if (ck->c != NULL && collect (ck) == 0)
    return 0;
  if (check_is_no_problem ())
    return -1;
  snprintf (ck->why, sizeof ck->why, "%s", nbdedup_error ());
  return 0;
}

static int
check_all (struct check *ck)
{
  size_t i;

  if (ck->c != NULL &&
      meta_quick_check (ck->c, quick_check_problem, look_before_page, ck) ==
        -1) {
    if (check_is_no_problem ())
      return -1;
    check_problem (ck, "%s", nbdedup_error ());
  }
  if (ck->why[0] != 0)
    return nbdedup_fail (EIO, "%s", ck->why);
  ck->first_window = true;
  do
    if (check_window (ck) == -1)
      return -1;
  while (ck->more);
  if (check_end_segment (ck) == -1)
    return -1;
  for (i = 0; i < ck->nr_layers; ++i)
    if (ck->layers[i].found != ck->layers[i].pointers)
      check_problem (ck,
                     "layer %" PRIu64 ": %" PRIu64 " pointers counted, %" PRIu64
                     " found",
                     ck->layers[i].id, ck->layers[i].pointers,
                     ck->layers[i].found);
  if (recount_blocks (ck->recount, ck->c, step_through, wrong_blocks, ck) ==
        -1 ||
      meta_segment_scan (ck->c, check_segment_row, ck) == -1 ||
      meta_count_scan_strays (ck->c, stray_counts, ck) == -1 ||
      check_index (ck) == -1 ||
      meta_limbo_scan (ck->c, check_limbo, ck) == -1 ||
      history_check (ck->c, ck->state.next_id, step_through, wrong_sample,
                     ck) == -1)
    return -1;
  if (ck->in_limbo < ck->unreferenced)
    check_problem (ck,
                   "limbo: %" PRIu64 " records have no references, %" PRIu64
                   " of them are in it",
                   ck->unreferenced, ck->in_limbo);
  check_total (ck, "records", ck->state.records, ck->records);
  check_total (ck, "record bytes", ck->state.record_bytes, ck->record_bytes);
  check_total (ck, "stored sectors", ck->state.stored_sectors,
               ck->stored_sectors);
  check_total (ck, "sectors of copies", ck->state.copy_sectors,
               ck->copy_sectors);
  check_total (ck, "hash index entries", ck->state.index_entries,
               ck->index_entries);
  return 0;
}

/* The numbers of items checked, which prove that the check has read them. */
static json_t *
list_checked (const struct check *ck)
{
  uint64_t references = 0;
  size_t i;

  for (i = 0; i < ck->nr_layers; ++i)
    references += ck->layers[i].found;
  return json_pack ("{s:I, s:I, s:I, s:I}", "layers",
                    (json_int_t) ck->nr_layers, "references",
                    (json_int_t) references, "records",
                    (json_int_t) ck->records, "index_entries",
                    (json_int_t) ck->index_entries);
}

static json_t *
check_result (const struct check *ck)
{
  return json_pack ("{s:I, s:O, s:o, s:I, s:I}", "errors",
                    (json_int_t) ck->nr_errors, "problems", ck->problems,
                    "checked", list_checked (ck), "stale_index_entries",
                    (json_int_t) ck->stale_entries, "missing_index_entries",
                    (json_int_t) (ck->indexed > ck->good_entries
                                    ? ck->indexed - ck->good_entries
                                    : 0));
}

static int
check_new (struct check *ck)
{
  /* A sixteenth of the metadata budget, on top of the caches': they are
   * mostly empty in an offline check, and a server has slack.
   */
  ck->max = ck->pool->settings.ddt_cache_bytes / 16 / sizeof *ck->window;
  if (ck->max < 2 * RECORD_GROUP_SECTORS)
    ck->max = 2 * RECORD_GROUP_SECTORS;
  ck->window = malloc (ck->max * sizeof *ck->window);
  ck->problems = json_array ();
  return ck->window && ck->problems
    ? 0
    : nbdedup_fail (ENOMEM, "no memory to check");
}

static void
check_free (struct check *ck)
{
  const int err = errno;

  if (ck->c)
    meta_frozen_close (ck->pool->meta, ck->c);
  recount_free (ck->recount);
  segment_map_free (ck->map);
  blob_free (&ck->row);
  free (ck->window);
  free (ck->layers);
  free (ck->slots);
  json_decref (ck->problems);
  errno = err;
}

/* After check_begin.  NULL: the check failed. */
static json_t *
check_finish (struct check *ck)
{
  if (check_all (ck) == -1) {
    if (check_is_no_problem ())
      return NULL;
    /* Unreadable data is a problem found, not a failed check. */
    check_problem (ck, "%s", nbdedup_error ());
  }
  return check_result (ck);
}

/* One check while no other command runs; its result is that of command.h,
 * without "repair".
 */
static json_t *
check_alone (struct nbdedup_pool *pool, json_t *repairs,
             nbdedup_progress_fn *progress, void *opaque)
{
  struct check ck = {
    .pool = pool,
    .progress = progress,
    .opaque = opaque,
    .repairs = repairs,
  };
  json_t *result = NULL;

  assert_held (&pool->admin);
  if (check_new (&ck) == 0 && pool_sync (pool) == 0 && check_begin (&ck) == 0)
    result = check_finish (&ck);
  check_free (&ck);
  return result;
}

static json_t *
check_beside_others (struct nbdedup_pool *pool, nbdedup_progress_fn *progress,
                     void *opaque)
{
  struct check ck = {
    .pool = pool,
    .progress = progress,
    .opaque = opaque,
  };
  json_t *result = NULL;
  int r = check_new (&ck) == 0 ? pool_sync_for_view (pool) : -1;

  if (r == 0) {
    WITH_LOCK (&pool->admin);
    r = check_begin (&ck);
  }
  if (r == 0)
    result = check_finish (&ck);
  check_free (&ck);
  return result;
}

static json_int_t
get_number (const json_t *result, const char *key)
{
  return json_integer_value (json_object_get (result, key));
}

static json_t *
list_repairs (const json_t *result)
{
  json_t *repairs = json_array (), *text;
  size_t i;

  json_array_foreach (json_object_get (result, "problems"), i, text)
    json_array_append_new (repairs,
                           json_pack ("{s:O, s:b}", "problem", text, "repaired",
                                      1));
  return repairs;
}

static int
forget_loss (void *arg, struct meta_conn *c, struct meta_state *state)
{
  (void) arg;
  (void) c;
  state->features_compat &= ~(uint64_t) FEATURE_COMPAT_RECORDS_LOST;
  return 0;
}

/* Every pointer has its record again, and every count has been recounted. */
static int
end_repair (struct nbdedup_pool *pool, const json_t *result)
{
  struct meta_state state;

  assert_held (&pool->admin);
  txg_get_state (pool->txg, &state);
  if (get_number (result, "errors") > 0 ||
      !(state.features_compat & FEATURE_COMPAT_RECORDS_LOST))
    return 0;
  return txg_run (pool->txg, forget_loss, NULL, NULL);
}

/* A repair replaces maps of segments, so no reader may keep dead records in
 * them (space_keep_begin); none can begin before pool->admin is released.
 */
static int
free_kept (struct nbdedup_pool *pool)
{
  assert_held (&pool->admin);
  space_keep_give_way (pool->space);
  return txg_run (pool->txg, NULL, NULL, NULL);
}

static json_t *
check_and_repair (struct nbdedup_pool *pool, nbdedup_progress_fn *progress,
                  void *opaque)
{
  json_t *result, *first, *repairs, *places;
  uint64_t lost = 0;

  result = check_alone (pool, NULL, progress, opaque);
  if (result == NULL)
    return NULL;
  first = result;
  repairs = list_repairs (first);
  if (get_number (first, "errors") > 0 ||
      get_number (first, "stale_index_entries") > 0 ||
      get_number (first, "missing_index_entries") > 0)
    result = free_kept (pool) == -1 ||
        check_repair (pool, &lost, progress, opaque) == -1
      ? NULL
      : check_alone (pool, repairs, progress, opaque);
  else
    json_incref (result);
  places = json_array ();
  lost += mend_take (pool, places);
  if (result != NULL)
    json_object_update_new (result,
                            json_pack ("{s:I, s:I, s:O, s:O, s:b}", "found",
                                       get_number (first, "errors"),
                                       "lost_blocks", (json_int_t) lost, "lost",
                                       places, "repairs", repairs,
                                       "try_offline",
                                       get_number (result, "errors") > 0 &&
                                         !pool->settings.repair));
  json_decref (places);
  json_decref (first);
  json_decref (repairs);
  if (result != NULL && end_repair (pool, result) == -1) {
    json_decref (result);
    return NULL;
  }
  return result;
}

json_t *
check_run (struct nbdedup_pool *pool, bool repair,
           nbdedup_progress_fn *progress, void *opaque)
{
  json_t *result;

  if (!repair)
    return check_beside_others (pool, progress, opaque);
  assert_held (&pool->admin);
  /* Set it before the first fold, which may meet the damage. */
  txg_set_repairing (pool->txg, true);
  result = check_and_repair (pool, progress, opaque);
  txg_set_repairing (pool->txg, pool->settings.repair);
  return result;
}

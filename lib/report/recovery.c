/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "core/engine.h"
#include "core/events.h"
#include "core/txg.h"
#include "meta/meta.h"
#include "report/recovery.h"
#include "report/status.h"
#include "volume/volume.h"

#define REPORT_NAME "recovery"
/* Lines of the log about dropped blocks, and places in the event. */
#define LOG_LINES_MAX 20
#define EVENT_PLACES_MAX 10

struct recovery {
  struct nbdedup_pool *pool;
  uint64_t begin_ns; /* by clock_ns */
  struct replay_report replay;
  json_t *document, *event; /* owned */
  char *event_text;         /* owned */
  struct txg_event kept;    /* the same text */
};

static double
seconds_of (const struct recovery *rec)
{
  return (double) (clock_ns () - rec->begin_ns) / 1e9;
}

static json_t *
describe_range (struct nbdedup_pool *pool, const struct replay_range *range)
{
  const struct layer *layer = volumes_find_layer (pool->volumes, range->layer);
  char name[VOLUME_FULL_NAME_MAX];

  /* The layer existed during the replay; it may have lost its name since. */
  if (layer == NULL ||
      volumes_describe_layer (pool->volumes, layer->branch, layer->seq, name) ==
        NULL)
    return NULL;
  return json_pack ("{s:s, s:I, s:I}", "name", name, "offset",
                    (json_int_t) (range->block * layer->block_size), "length",
                    (json_int_t) (range->count * layer->block_size));
}

static json_t *
describe_ranges (struct nbdedup_pool *pool, const struct replay_ranges *ranges)
{
  json_t *places = json_array (), *place;
  size_t i;

  for (i = 0; i < ranges->nr; ++i) {
    place = describe_range (pool, &ranges->p[i]);
    if (place)
      json_array_append_new (places, place);
  }
  return places;
}

static json_t *
make_document (struct recovery *rec)
{
  const struct replay_report *r = &rec->replay;

  return json_pack ("{s:I, s:f, s:I, s:I, s:I, s:b, s:I, s:o, s:I, s:I, "
                    "s:o}",
                    "time", (json_int_t) clock_wall_s (), "seconds",
                    seconds_of (rec), "batches", (json_int_t) r->batches,
                    "records", (json_int_t) r->records, "blocks",
                    (json_int_t) r->blocks, "cut_short", (int) r->cut_short,
                    "dropped_blocks", (json_int_t) r->dropped.blocks, "dropped",
                    describe_ranges (rec->pool, &r->dropped), "damaged",
                    (json_int_t) r->damaged, "lost_blocks",
                    (json_int_t) r->lost.blocks, "lost",
                    describe_ranges (rec->pool, &r->lost));
}

/* Up to EVENT_PLACES_MAX of the places, for an event. */
static json_t *
first_places (const json_t *document, const char *key)
{
  json_t *places = json_deep_copy (json_object_get (document, key));

  while (json_array_size (places) > EVENT_PLACES_MAX)
    json_array_remove (places, json_array_size (places) - 1);
  return places;
}

static json_t *
make_event (const struct recovery *rec)
{
  const struct replay_report *r = &rec->replay;

  return event_new ("recovered",
                    "{s:f, s:I, s:I, s:I, s:b, s:I, s:o, s:I, "
                    "s:I, s:o}",
                    "seconds", seconds_of (rec), "batches",
                    (json_int_t) r->batches, "records", (json_int_t) r->records,
                    "blocks", (json_int_t) r->blocks, "cut_short",
                    (int) r->cut_short, "dropped_blocks",
                    (json_int_t) r->dropped.blocks, "dropped",
                    first_places (rec->document, "dropped"), "damaged_batches",
                    (json_int_t) r->damaged, "lost_blocks",
                    (json_int_t) r->lost.blocks, "lost",
                    first_places (rec->document, "lost"));
}

/* In the transaction that makes the replay durable. */
static int
put_report (void *arg, struct meta_conn *c, struct meta_state *state)
{
  struct recovery *rec = arg;
  CLEANUP_FREE char *text = NULL;

  (void) state;
  json_decref (rec->document); /* of an earlier attempt */
  json_decref (rec->event);
  free (rec->event_text);
  rec->document = make_document (rec);
  rec->event = make_event (rec);
  rec->kept.text = rec->event_text = events_text_of (rec->event);
  if (rec->document)
    text = json_dumps (rec->document, JSON_COMPACT);
  if (text == NULL)
    return nbdedup_fail (ENOMEM, "no memory for a report");
  /* Add the table to a pool from before there were reports. */
  return meta_history_make (c) == -1 ? -1
                                     : meta_report_put (c, REPORT_NAME, text);
}

/* Log what became of these places. */
static void
log_places (const struct recovery *rec, enum nbdedup_log_level level,
            const char *key, const char *what)
{
  const json_t *place;
  size_t i;

  json_array_foreach (json_object_get (rec->document, key), i, place) {
    if (i == LOG_LINES_MAX) {
      nbdedup_log (level, "%s: recovery: other places are affected, too",
                   rec->pool->path);
      return;
    }
    nbdedup_log (level,
                 "%s: recovery: %s: %" PRId64 " bytes at offset %" PRId64 " %s",
                 rec->pool->path,
                 json_string_value (json_object_get (place, "name")),
                 (int64_t) json_integer_value (
                   json_object_get (place, "length")),
                 (int64_t) json_integer_value (
                   json_object_get (place, "offset")),
                 what);
  }
}

static void
log_recovery (const struct recovery *rec)
{
  const struct replay_report *r = &rec->replay;
  const char *path = rec->pool->path;
  char message[256];

  snprintf (message, sizeof message,
            "recovered after a crash: %" PRIu64 " batches, %" PRIu64
            " records, %" PRIu64 " blocks in %.1f s%s",
            r->batches, r->records, r->blocks, seconds_of (rec),
            r->cut_short ? "; the crash interrupted the batch after them" : "");
  event_log (r->damaged > 0            ? NBDEDUP_LOG_ERROR
               : r->dropped.blocks > 0 ? NBDEDUP_LOG_WARNING
                                       : NBDEDUP_LOG_INFO,
             path, rec->event, message);
  if (r->dropped.blocks > 0)
    nbdedup_log (NBDEDUP_LOG_WARNING,
                 "%s: recovery: the writes of %" PRIu64
                 " blocks are lost: no flush had been answered since, and "
                 "their data did not reach the disk",
                 path, r->dropped.blocks);
  log_places (rec, NBDEDUP_LOG_WARNING, "dropped",
              "have their previous content");
  if (r->damaged > 0)
    nbdedup_log (NBDEDUP_LOG_ERROR,
                 "%s: recovery: %" PRIu64 " batches of the "
                 "journal are damaged: the content of %" PRIu64 " blocks is "
                 "lost",
                 path, r->damaged, r->lost.blocks);
  log_places (rec, NBDEDUP_LOG_ERROR, "lost",
              "cannot be read until a client writes or zeroes whole blocks "
              "there");
}

int
recovery_run (struct nbdedup_pool *pool)
{
  struct recovery rec = { .pool = pool };
  int r;

  WITH_LOCK (&pool->admin); /* layers keep their names */
  rec.begin_ns = clock_ns ();
  txg_set_event (&rec.kept);
  r = txg_replay (pool->txg, &rec.replay, put_report, &rec);
  txg_set_event (NULL);
  if (r == 0 && rec.document)
    log_recovery (&rec);
  json_decref (rec.document);
  json_decref (rec.event);
  free (rec.event_text);
  free (rec.replay.dropped.p);
  free (rec.replay.lost.p);
  return r;
}

json_t *
recovery_report (struct nbdedup_pool *pool)
{
  return status_report (pool, REPORT_NAME);
}

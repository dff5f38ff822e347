/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <inttypes.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "core/txg.h"
#include "data/watch.h"
#include "report/scrub-int.h"
#include "report/status.h"

/* With more damaged records than these the position is not stored any more,
 * because a report must be a small row.
 */
#define KEPT_MAX 2000
/* How often to check, while waiting, whether to go on. */
#define LOOK_MS 100
/* The most time that a delayed scrub may catch up. */
#define CREDIT_MS 1000

/*----------------------------------------------------------------------
 * In pool.db
 */

struct reports {
  const char *position, *report; /* NULL: as it is */
};

static int
put_reports (void *arg, struct meta_conn *c, struct meta_state *state)
{
  const struct reports *r = arg;

  (void) state;
  if (meta_history_make (c) == -1)
    return -1;
  if (r->report && meta_report_put (c, SCRUB_REPORT, r->report) == -1)
    return -1;
  return r->position ? meta_report_put (c, SCRUB_POSITION, r->position) : 0;
}

static int
keep (struct scrub *s)
{
  CLEANUP_JSON json_t *damaged = json_array (), *position = NULL;
  CLEANUP_FREE char *text = NULL;
  struct reports r = { .report = NULL };
  size_t i;

  if (s->f.nr_damaged > KEPT_MAX)
    return 0;
  for (i = 0; i < s->f.nr_damaged; ++i)
    json_array_append_new (damaged,
                           json_integer ((json_int_t) s->f.damaged[i]));
  position = json_pack ("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:O}",
                        "group", (json_int_t) s->next_group, "begun",
                        (json_int_t) s->f.begun, "records",
                        (json_int_t) s->f.records, "bytes",
                        (json_int_t) s->f.bytes, "errors",
                        (json_int_t) s->f.errors, "repaired_records",
                        (json_int_t) s->f.repaired, "summary_errors",
                        (json_int_t) s->f.summary_errors, "total",
                        (json_int_t) s->total, "damaged", damaged);
  if (position)
    text = json_dumps (position, JSON_COMPACT);
  if (text == NULL)
    return nbdedup_fail (ENOMEM, "no memory to scrub");
  r.position = text;
  s->kept_ms = clock_ms ();
  return txg_run (s->pool->txg, put_reports, NULL, &r);
}

int
scrub_state_finish (struct scrub *s, const char *report)
{
  struct reports r = { .report = report };

  assert_held (&s->pool->scrub->one);
  if (!s->args->again)
    r.position = "{}";
  return txg_run (s->pool->txg, put_reports, NULL, &r);
}

static uint64_t
number (const json_t *position, const char *key)
{
  json_int_t n = json_integer_value (json_object_get (position, key));

  return n > 0 ? (uint64_t) n : 0;
}

static int
load_damaged (struct scrub *s, const json_t *damaged)
{
  size_t i, nr = json_array_size (damaged);
  uint64_t addr, last = 0;

  for (i = 0; i < nr; ++i) {
    addr = (uint64_t) json_integer_value (json_array_get (damaged, i));
    if (addr <= last)
      continue;
    if (array_push (&s->f.damaged, &s->f.nr_damaged, addr) == -1)
      return -1;
    last = addr;
  }
  return 0;
}

/* If the stored position cannot be read, begin without it: only past progress
 * is lost.
 */
int
scrub_state_load (struct scrub *s)
{
  CLEANUP_JSON json_t *position = status_report (s->pool, SCRUB_POSITION);

  if (number (position, "group") == 0)
    return 0;
  s->next_group = number (position, "group");
  s->f.begun = number (position, "begun");
  s->f.records = number (position, "records");
  s->f.bytes = number (position, "bytes");
  s->f.errors = number (position, "errors");
  s->f.repaired = number (position, "repaired_records");
  s->f.summary_errors = number (position, "summary_errors");
  return load_damaged (s, json_object_get (position, "damaged"));
}

/*----------------------------------------------------------------------
 * In memory
 */

int
scrub_state_note (struct scrub *s, bool now)
{
  struct scrub_live *live = &s->pool->scrub->live;

  assert_held (&s->pool->scrub->one);
  {
    WITH_LOCK (&live->lock);
    live->running = true;
    live->begun = s->f.begun;
    live->records = s->f.records;
    live->bytes = s->f.bytes;
    live->errors = s->f.errors;
    live->total = s->total;
  }
  if (scrub_is_readonly (s))
    return 0;
  if (s->kept_ms == 0)
    s->kept_ms = clock_ms ();
  return now || clock_ms () - s->kept_ms >= s->pool->settings.commit_interval_ms
    ? keep (s)
    : 0;
}

void
scrub_state_end (struct scrub *s)
{
  WITH_LOCK (&s->pool->scrub->live.lock);
  s->pool->scrub->live.running = false;
}

json_t *
scrub_progress (struct nbdedup_pool *pool)
{
  struct scrub_live *live = &pool->scrub->live;
  CLEANUP_JSON json_t *position = NULL;

  {
    WITH_LOCK (&live->lock);
    if (live->running)
      return json_pack ("{s:b, s:I, s:I, s:I, s:I, s:I}", "running", 1, "begun",
                        (json_int_t) live->begun, "records",
                        (json_int_t) live->records, "bytes",
                        (json_int_t) live->bytes, "errors",
                        (json_int_t) live->errors, "total",
                        (json_int_t) live->total);
  }
  position = status_report (pool, SCRUB_POSITION);
  if (position == NULL)
    return NULL;
  if (number (position, "group") == 0)
    return json_null ();
  return json_pack ("{s:b, s:I, s:I, s:I, s:I, s:I}", "running", 0, "begun",
                    (json_int_t) number (position, "begun"), "records",
                    (json_int_t) number (position, "records"), "bytes",
                    (json_int_t) number (position, "bytes"), "errors",
                    (json_int_t) number (position, "errors"), "total",
                    (json_int_t) number (position, "total"));
}

/*----------------------------------------------------------------------
 * The pace
 */

/* The property may change meanwhile.  A pool without a server has no clients to
 * slow down for.
 */
static uint64_t
get_rate (const struct scrub *s)
{
  if (s->args->has_rate)
    return s->args->rate;
  return s->pool->watch->on ? s->pool->scrub->rate : 0;
}

int
scrub_pace (struct scrub *s)
{
  const uint64_t bytes = s->f.bytes + s->metadata_bytes;
  struct rate_limit *p = &s->limit;
  uint64_t due, now = clock_ms (), rest;

  for (;;) {
    if (scrub_go_on (s) == -1)
      return -1;
    if (p->rate != get_rate (s))
      *p = (struct rate_limit) { get_rate (s), now, bytes };
    if (p->rate == 0)
      return 0;
    now = clock_ms ();
    due = p->begin_ms +
      (uint64_t) ((double) (bytes - p->begin_bytes) * 1000 / (double) p->rate);
    if (now >= due) {
      if (now - due > CREDIT_MS)
        p->begin_ms += now - due;
      return 0;
    }
    rest = due - now < LOOK_MS ? due - now : LOOK_MS;
    clock_sleep_ms (rest);
  }
}

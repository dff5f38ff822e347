/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "core/engine.h"
#include "core/pool-property.h"
#include "core/txg.h"
#include "data/capacity.h"
#include "drift/alert.h"
#include "drift/drift.h"
#include "drift/clone-set.h"
#include "drift/history.h"
#include "format/codec.h"
#include "format/retention.h"
#include "meta/meta.h"
#include "volume/volume.h"

/*----------------------------------------------------------------------
 * A sample's form: compact JSON, compressed where that makes it smaller
 */

struct sample {
  struct meta_sample row;
  uint8_t *data; /* owned */
};

static int
encode (struct codec_ctx *ctx, json_t *document, struct sample *s)
{
  const struct compression lz4 = { .codec = CODEC_LZ4 };
  CLEANUP_FREE char *text = json_dumps (document, JSON_COMPACT);
  uint8_t *packed;
  size_t n;

  if (text == NULL)
    return nbdedup_fail (ENOMEM, "no memory for a sample");
  s->row.length = strlen (text);
  if (s->row.length > SAMPLE_LENGTH_MAX)
    return nbdedup_fail (EFBIG,
                         "a drift sample of %" PRIu64 " bytes is too "
                         "large to record",
                         s->row.length);
  packed = malloc (s->row.length);
  if (packed == NULL)
    return nbdedup_fail (ENOMEM, "no memory for a sample");
  n = codec_compress (ctx, &lz4, text, s->row.length, packed,
                      s->row.length - 1);
  s->row.codec = n ? CODEC_LZ4 : CODEC_NONE;
  s->row.len = n ? n : s->row.length;
  if (n == 0)
    memcpy (packed, text, s->row.len);
  assert (s->row.len > 0 && s->row.len <= s->row.length);
  s->row.data = s->data = packed;
  return 0;
}

/* NULL: EIO or ENOMEM. */
static json_t *
decode_text (struct codec_ctx *ctx, const struct meta_sample *s)
{
  CLEANUP_FREE char *text = NULL;
  json_error_t error;
  json_t *document;

  if (s->length == 0 || s->length > SAMPLE_LENGTH_MAX || s->codec > INT8_MAX)
    return nbdedup_fail_null (EIO, "length %" PRIu64 ", codec %" PRIu64,
                              s->length, s->codec);
  text = malloc (s->length);
  if (text == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory for %" PRIu64 " bytes",
                              s->length);
  if (codec_decompress (ctx, (int) s->codec, s->data, s->len, text,
                        s->length) == -1)
    return NULL;
  errno = 0; /* only errno tells ENOMEM from a bad text */
  document = json_loadb (text, s->length, 0, &error);
  if (document == NULL && errno == ENOMEM)
    return nbdedup_fail_null (ENOMEM, "no memory for it");
  if (document == NULL)
    return nbdedup_fail_null (EIO, "not JSON: %s", error.text);
  if (!json_is_string (json_object_get (document, "golden")) ||
      (uint64_t) json_integer_value (json_object_get (document, "time")) !=
        s->time) {
    json_decref (document);
    return nbdedup_fail_null (EIO,
                              "not the sample of a golden image at the "
                              "time %" PRIu64,
                              s->time);
  }
  return document;
}

static json_t *
decode (struct codec_ctx *ctx, const struct meta_sample *s)
{
  json_t *document = decode_text (ctx, s);
  char why[256];

  if (document == NULL) {
    snprintf (why, sizeof why, "%s", nbdedup_error ());
    nbdedup_fail (errno,
                  "pool.db: the drift sample %" PRIu64 " cannot be read: %s",
                  s->id, why);
  }
  return document;
}

/*----------------------------------------------------------------------
 * Recording
 */

struct recording {
  struct sample *samples; /* owned */
  size_t nr;
  struct retention_policy policy;
  struct alert_update *alerts; /* owned */
};

struct times {
  struct retention_sample *p; /* owned */
  size_t nr;
};

static int
add_time (void *opaque, uint64_t id, uint64_t time_s, bool asked)
{
  struct times *t = opaque;

  return array_push (&t->p, &t->nr,
                     (struct retention_sample) {
                       .id = id,
                       .time = time_s,
                       .asked = asked,
                     });
}

static int
retention_history (struct meta_conn *c, const struct retention_policy *policy,
                   uint64_t golden, uint64_t now_s)
{
  struct times t = { NULL };
  size_t i;
  int r = meta_sample_times (c, golden, add_time, &t);

  if (r == 0)
    retention_apply (policy, now_s, t.p, t.nr);
  for (i = 0; i < t.nr && r == 0; ++i)
    if (t.p[i].drop)
      r = meta_sample_delete (c, t.p[i].id);
  free (t.p);
  return r;
}

static int
record_in_transaction (void *arg, struct meta_conn *c, struct meta_state *state)
{
  struct recording *rec = arg;
  struct meta_sample *s;
  size_t i;

  for (i = 0; i < rec->nr; ++i) {
    s = &rec->samples[i].row;
    s->id = state->next_id++;
    if (meta_sample_put (c, s) == -1 ||
        retention_history (c, &rec->policy, s->golden, s->time) == -1)
      return -1;
  }
  return alert_update_put (rec->alerts, c);
}

/* Pages that the samples take, overflow and thinning included. */
static uint64_t
pages_of (const struct recording *rec)
{
  uint64_t bytes = 0;
  size_t i;

  for (i = 0; i < rec->nr; ++i)
    bytes += rec->samples[i].row.len;
  bytes += alert_update_bytes (rec->alerts);
  return bytes / META_PAGE_BYTES + 4 * rec->nr + 8;
}

static int
get_policy (struct nbdedup_pool *pool, struct retention_policy *policy)
{
  CLEANUP_FREE char *text = NULL;

  if (pool_property_get (pool, "drift-keep", &text) == -1)
    return -1;
  return retention_policy_parse (text, policy);
}

/* The document with what only the forecast needs, without the id, which the row
 * has; NULL: ENOMEM.
 */
static json_t *
recorded_form (struct nbdedup_pool *pool, json_t *document)
{
  json_t *copy = json_copy (document);
  struct capacity cap;

  if (copy == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory for a sample");
  json_object_del (copy, GOLDEN_ID);
  /* Not known: the sample is worth it all the same. */
  if (capacity_used (pool, &cap) == 0)
    json_object_set_new (copy, POOL_USED,
                         json_integer ((json_int_t) cap.used_bytes));
  return copy;
}

static int
fill_sample (struct nbdedup_pool *pool, struct codec_ctx *ctx, json_t *document,
             bool asked, struct sample *s)
{
  CLEANUP_JSON json_t *copy = recorded_form (pool, document);

  s->row.asked = asked;
  s->row.time = (uint64_t) json_integer_value (
    json_object_get (document, "time"));
  s->row.golden = (uint64_t) json_integer_value (
    json_object_get (document, GOLDEN_ID));
  return copy ? encode (ctx, copy, s) : -1;
}

static int
record (struct nbdedup_pool *pool, json_t *documents, bool asked)
{
  struct recording rec = { .nr = json_array_size (documents) };
  struct codec_ctx *ctx = codec_ctx_new ();
  json_t *document;
  size_t i;
  int r = -1;

  rec.samples = calloc (rec.nr ? rec.nr : 1, sizeof *rec.samples);
  if (rec.samples == NULL || ctx == NULL)
    nbdedup_fail (ENOMEM, "no memory for samples");
  else
    r = get_policy (pool, &rec.policy);
  if (r == 0 && (rec.alerts = alert_update_new (pool)) == NULL)
    r = -1;
  json_array_foreach (documents, i, document) {
    if (r == -1)
      break;
    r = fill_sample (pool, ctx, document, asked, &rec.samples[i]);
    if (r == 0)
      r = alert_update_add (rec.alerts, rec.samples[i].row.golden, document);
  }
  if (r == 0 && rec.nr > 0) {
    r = txg_run_large (pool->txg, pages_of (&rec), record_in_transaction, NULL,
                       &rec);
    if (r == -1 && errno == ENOSPC)
      nbdedup_fail (ENOSPC,
                    "the pool's file system is full: nothing was "
                    "recorded");
  }
  if (r == 0)
    alert_update_log (rec.alerts);
  alert_update_free (rec.alerts);
  for (i = 0; rec.samples && i < rec.nr; ++i)
    free (rec.samples[i].data);
  free (rec.samples);
  codec_ctx_free (ctx);
  return r;
}

json_t *
history_drift (struct nbdedup_pool *pool, struct drift_golden which,
               uint64_t memory_bytes, bool asked, nbdedup_progress_fn *progress,
               void *opaque)
{
  CLEANUP_JSON json_t *documents = NULL;
  json_t *result = drift_run (pool, which, memory_bytes, progress, opaque);

  if (result == NULL)
    return NULL;
  documents = which.name || which.id
    ? json_pack ("[O]", result)
    : json_incref (json_object_get (result, "goldens"));
  if (record (pool, documents, asked) == -1) {
    json_decref (result);
    return NULL;
  }
  return result;
}

/*----------------------------------------------------------------------
 * Reading
 */

struct get {
  struct codec_ctx *ctx;
  const char *name; /* only those of this name; NULL: all */
  json_t *samples;
  uint64_t bytes; /* of their text */
  uint64_t last;  /* id of the last one read: of the sample, or
                                 * in history_newest of the golden image */
  bool more;
  nbdedup_progress_fn *progress;
  void *opaque;
  uint64_t done;
};

/* The golden image may have been destroyed before or after the sample. */
static bool
is_of_name (const json_t *document, const char *name)
{
  const char *golden = json_string_value (json_object_get (document, "golden"));
  size_t len = strcspn (name, " ");

  return strncmp (golden, name, len) == 0 &&
    (golden[len] == '\0' || strcmp (golden + len, VOLUME_DESTROYED) == 0);
}

static int
get_sample (void *opaque, const struct meta_sample *s)
{
  struct get *g = opaque;
  json_t *document;

  if (g->bytes >= HISTORY_PART_BYTES) {
    g->more = true;
    return 1;
  }
  g->last = s->id;
  if (g->progress && g->progress (g->opaque, g->done++, 0) != 0)
    return nbdedup_fail (EINTR, "interrupted");
  document = decode (g->ctx, s);
  if (document == NULL)
    return -1;
  json_object_del (document, POOL_USED);
  if (json_object_set_new (document, GOLDEN_ID,
                           json_integer ((json_int_t) s->golden)) == -1) {
    json_decref (document);
    return nbdedup_fail (ENOMEM, "no memory for the drift history");
  }
  if (g->name && !is_of_name (document, g->name))
    json_decref (document);
  else if (json_array_append_new (g->samples, document) == -1)
    return nbdedup_fail (ENOMEM, "no memory for the drift history");
  else
    g->bytes += s->length;
  return 0;
}

static int
get_begin (struct get *g)
{
  g->ctx = codec_ctx_new ();
  g->samples = json_array ();
  if (g->ctx == NULL || g->samples == NULL)
    return nbdedup_fail (ENOMEM, "no memory for the drift history");
  return 0;
}

/* The result, unless 'r' is -1. */
static json_t *
get_end (struct get *g, int r)
{
  json_t *result = NULL;

  if (r != -1)
    result = json_pack ("{s:O, s:I}", "samples", g->samples, "next",
                        (json_int_t) g->last);
  if (result && !g->more)
    json_object_del (result, "next");
  codec_ctx_free (g->ctx);
  json_decref (g->samples);
  return result;
}

/* The id of the newest destroyed snapshot of this name; 0: there is none. */
static uint64_t
find_tombstone (struct volumes *vs, const char *name)
{
  uint64_t id = 0;
  size_t i;

  WITH_LOCK (&vs->lock);
  for (i = 0; i < vs->tombstones.nr; ++i)
    if (vs->tombstones.p[i]->id > id &&
        strcmp (vs->tombstones.p[i]->label, name) == 0)
      id = vs->tombstones.p[i]->id;
  return id;
}

/* The id of a snapshot that exists, or that is the origin of clones; else 0.
 * -1: not a snapshot's name.
 */
static int
find_golden (struct nbdedup_pool *pool, const char *name, uint64_t *id)
{
  const char *suffix = strstr (name, VOLUME_DESTROYED);
  CLEANUP_FREE char *plain = strdup (name);
  struct volume *s;

  if (plain == NULL)
    return nbdedup_fail (ENOMEM, "no memory");
  if (suffix && suffix[strlen (VOLUME_DESTROYED)] == '\0')
    plain[suffix - name] = '\0';
  WITH_LOCK (&pool->admin);
  s = volumes_find_snapshot (pool->volumes, plain);
  if (s == NULL && errno != ENOENT)
    return -1;
  *id = s && !suffix ? s->id : find_tombstone (pool->volumes, plain);
  return 0;
}

json_t *
history_get (struct nbdedup_pool *pool, struct drift_golden which,
             uint64_t after, nbdedup_progress_fn *progress, void *opaque)
{
  struct get g = { .progress = progress, .opaque = opaque };
  struct meta_conn *c;
  int r;

  assert (which.name == NULL || which.id == 0);
  if (which.name && find_golden (pool, which.name, &which.id) == -1)
    return NULL;
  g.name = which.id ? NULL : which.name;
  r = get_begin (&g);
  if (r == 0) {
    c = meta_reader_get (pool->meta);
    r = meta_sample_scan (c, which.id, after, get_sample, &g);
    meta_reader_put (pool->meta, c);
  }
  if (r == 0 && g.name && after == 0 && json_array_size (g.samples) == 0)
    r = nbdedup_fail (ENOENT,
                      "there is no snapshot '%s', and no drift "
                      "history of one",
                      g.name);
  return get_end (&g, r);
}

/* Show only the newest of several destroyed images of one name, because metrics
 * are distinguished by their labels.
 */
static bool
has_newer_twin (const struct clone_set *sets, size_t nr)
{
  size_t i;

  for (i = 1; i < nr && sets->is_destroyed; ++i)
    if (sets[i].is_destroyed && strcmp (sets->label, sets[i].label) == 0)
      return true;
  return false;
}

/* Its document has the old name, which another image may have now. */
static int
get_newest_of (struct get *g, struct meta_conn *c, const struct clone_set *f)
{
  const size_t nr = json_array_size (g->samples);
  json_t *document;

  if (meta_sample_newest (c, f->golden, get_sample, g) == -1)
    return -1;
  if (g->more)
    return 1;
  g->last = f->golden;
  document = json_array_get (g->samples, nr);
  if (document &&
      json_object_set_new (document, "golden", json_string (f->label)) == -1)
    return nbdedup_fail (ENOMEM, "no memory for the drift history");
  return 0;
}

json_t *
history_newest (struct nbdedup_pool *pool, uint64_t after,
                nbdedup_progress_fn *progress, void *opaque)
{
  CLEANUP_FREE struct clone_set *sets = NULL;
  struct get g = { .progress = progress, .opaque = opaque };
  struct meta_conn *c;
  size_t nr, i;
  int r;

  if (clone_sets_get (pool->volumes, &sets, &nr) == -1)
    return NULL;
  if (get_begin (&g) == -1)
    return get_end (&g, -1);
  c = meta_reader_get (pool->meta);
  for (i = 0, r = 0; i < nr && r == 0; ++i)
    if (sets[i].golden > after && !has_newer_twin (&sets[i], nr - i))
      r = get_newest_of (&g, c, &sets[i]);
  meta_reader_put (pool->meta, c);
  return get_end (&g, r);
}

struct each {
  struct codec_ctx *ctx;
  const struct times *wanted; /* not owned; by id; NULL: all */
  int (*fn) (void *opaque, json_t *document);
  void *opaque;
};

/* A sample that was recorded since the list was made is not in it. */
static bool
is_dropped (const struct times *t, uint64_t id)
{
  const size_t i = array_position (t->nr, k, t->p[k].id < id);

  return i == t->nr || t->p[i].id != id || t->p[i].drop;
}

static int
lend_document (void *opaque, const struct meta_sample *s)
{
  struct each *e = opaque;
  CLEANUP_JSON json_t *document = NULL;

  if (e->wanted && is_dropped (e->wanted, s->id))
    return 0;
  document = decode (e->ctx, s);
  if (document == NULL)
    return errno == ENOMEM ? -1 : 0;
  return e->fn (e->opaque, document);
}

static int
each (struct meta_conn *c, uint64_t golden, uint64_t after, struct each *e)
{
  int r;

  e->ctx = codec_ctx_new ();
  if (e->ctx == NULL)
    return nbdedup_fail (ENOMEM, "no memory for the drift history");
  r = meta_sample_scan (c, golden, after, lend_document, e);
  codec_ctx_free (e->ctx);
  return r;
}

int
history_each (struct nbdedup_pool *pool, uint64_t golden, uint64_t after,
              int (*fn) (void *opaque, json_t *document), void *opaque)
{
  struct each e = { .fn = fn, .opaque = opaque };
  struct meta_conn *c = meta_reader_get (pool->meta);
  int r = each (c, golden, after, &e);

  meta_reader_put (pool->meta, c);
  return r;
}

/* 't' is ascending by id, and nearly so by time. */
static void
spread (struct times *t, size_t most)
{
  uint64_t first = UINT64_MAX, last = 0, interval, before = UINT64_MAX;
  size_t i;

  for (i = 0; i < t->nr; ++i) {
    first = t->p[i].time < first ? t->p[i].time : first;
    last = t->p[i].time > last ? t->p[i].time : last;
  }
  for (i = 0; i < t->nr; ++i) {
    interval = (t->p[i].time - first) / ((last - first) / most + 1);
    t->p[i].drop = interval == before && i + 1 < t->nr;
    before = interval;
  }
}

int
history_spread (struct nbdedup_pool *pool, uint64_t golden, size_t most,
                int (*fn) (void *opaque, json_t *document), void *opaque)
{
  struct times wanted = { NULL };
  struct each e = { .wanted = &wanted, .fn = fn, .opaque = opaque };
  struct meta_conn *c = meta_reader_get (pool->meta);
  int r = meta_sample_times (c, golden, add_time, &wanted);

  if (r == 0) {
    spread (&wanted, most);
    r = each (c, golden, 0, &e);
  }
  meta_reader_put (pool->meta, c);
  free (wanted.p);
  return r;
}

static int
keep_document (void *opaque, json_t *document)
{
  *(json_t **) opaque = json_incref (document);
  return 0;
}

json_t *
history_newest_of (struct nbdedup_pool *pool, uint64_t golden)
{
  json_t *document = NULL;
  struct each e = {
    .ctx = codec_ctx_new (),
    .fn = keep_document,
    .opaque = &document,
  };
  struct meta_conn *c;
  int r;

  if (e.ctx == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory for the drift history");
  c = meta_reader_get (pool->meta);
  r = meta_sample_newest (c, golden, lend_document, &e);
  meta_reader_put (pool->meta, c);
  codec_ctx_free (e.ctx);
  if (r == 0 && document == NULL)
    return nbdedup_fail_null (ENOENT, "no drift sample can be read");
  return document;
}

static int
keep_last (void *opaque, uint64_t id, uint64_t time_s, bool asked)
{
  (void) id;
  (void) asked;
  *(uint64_t *) opaque = time_s;
  return 0;
}

int
history_last (struct nbdedup_pool *pool, uint64_t golden, uint64_t *time_s)
{
  struct meta_conn *c = meta_reader_get (pool->meta);
  int r;

  *time_s = UINT64_MAX;
  r = meta_sample_times (c, golden, keep_last, time_s);
  meta_reader_put (pool->meta, c);
  return r == -1 ? -1 : *time_s != UINT64_MAX;
}

/*----------------------------------------------------------------------
 * Checking
 */

struct check_history {
  struct codec_ctx *ctx;
  uint64_t next_id;
  int (*step) (void *opaque);
  void (*wrong) (void *opaque, const char *text);
  void *opaque;
};

static int
check_sample (void *opaque, const struct meta_sample *s)
{
  struct check_history *ch = opaque;
  json_t *document = decode (ch->ctx, s);
  char text[128];

  if (document == NULL && errno == ENOMEM)
    return -1;
  if (document == NULL)
    ch->wrong (ch->opaque, nbdedup_error ());
  json_decref (document);
  if (s->golden == 0 || s->golden >= ch->next_id || s->id >= ch->next_id) {
    snprintf (text, sizeof text,
              "drift sample %" PRIu64 " of snapshot %" PRIu64
              ": both ids must be below %" PRIu64,
              s->id, s->golden, ch->next_id);
    ch->wrong (ch->opaque, text);
  }
  return ch->step (ch->opaque);
}

int
history_check (struct meta_conn *c, uint64_t next_id,
               int (*step) (void *opaque),
               void (*wrong) (void *opaque, const char *text), void *opaque)
{
  struct check_history ch = {
    .ctx = codec_ctx_new (),
    .next_id = next_id,
    .step = step,
    .wrong = wrong,
    .opaque = opaque,
  };
  int r;

  if (ch.ctx == NULL)
    return nbdedup_fail (ENOMEM, "no memory to check");
  r = meta_sample_scan (c, 0, 0, check_sample, &ch);
  codec_ctx_free (ch.ctx);
  return r;
}

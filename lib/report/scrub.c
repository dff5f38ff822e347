/* SPDX-License-Identifier: BSD-3-Clause */

/* Read every record; verify its checksum, its decompression, its full
 * digest, and the summary slot that describes it in the store.  A missing or
 * damaged slot is not damage to data; scrub rewrites it.  Read every page of
 * both copies of pool.db, and repair one from the other.
 *
 * The pool is in use meanwhile.  Scrub reads and verifies each row of records
 * between quiesce_enter and quiesce_leave, so that none of its sectors can
 * be reused before that is done.
 *
 * Scrub rewrites a damaged record if its content is available: from the record
 * cache, from a record with the same digest, or from a client that offers it
 * between two calls (verify.h).
 */

#include <config.h>

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "core/txg.h"
#include "data/sync.h"
#include "report/check.h"
#include "report/scrub-int.h"
#include "report/status.h"

/* The most damaged records whose places in volumes are reported. */
#define DAMAGED_MAX 65536
/* Summary chunks that one fold repairs. */
#define REPAIR_MAX 64

int
scrub_go_on (struct scrub *s)
{
  uint64_t done = s->f.records < s->total ? s->f.records : s->total;

  if (s->progress && s->progress (s->opaque, done, s->total) != 0)
    return nbdedup_fail (EINTR, "interrupted");
  return 0;
}

/* Does the store itself describe the record?  The chunk's address is in
 * the segment's map.
 */
static bool
has_summary (struct scrub *s, const struct segment_map *map,
             const struct record *r)
{
  unsigned index = r->slot / map->slots_per_chunk;
  struct summary_chunk chunk = {
    .uuid = s->pool->uuid,
    .sector_bytes = s->pool->sector_bytes,
    .index = index,
  };

  if (index >= map->nr_chunks || map->chunks[index] == SEGMENT_CHUNK_LOST)
    return false;
  chunk.addr = map->id * map->nr_sectors + map->chunks[index];
  /* Neighbouring records usually have their slots in the same chunk. */
  if (s->chunk_addr != chunk.addr) {
    s->chunk_addr = chunk.addr;
    if (store_read (s->pool->store, chunk.addr, s->chunk,
                    summary_chunk_bytes (chunk.sector_bytes)) == -1)
      memset (s->chunk, 0, sizeof s->chunk);
  }
  return summary_describes (&chunk, s->chunk, r);
}

/* The folding thread, which may be writing the chunk just now, checks it again
 * and repairs it.
 */
static int
note_summary (struct scrub *s, uint64_t segment, unsigned index)
{
  const struct chunk_id *p = s->suspects;

  if (s->nr_suspects > 0 && p[s->nr_suspects - 1].segment == segment &&
      p[s->nr_suspects - 1].index == index)
    return 0;
  return array_push (&s->suspects, &s->nr_suspects,
                     (struct chunk_id) { segment, index });
}

static int
compare_chunks (const void *a, const void *b)
{
  const struct chunk_id *x = a, *y = b;

  if (x->segment != y->segment)
    return x->segment < y->segment ? -1 : 1;
  return x->index < y->index ? -1 : x->index > y->index;
}

/* In a fold's transaction. */
static int
repair_chunks (void *arg, struct meta_conn *c, struct meta_state *state)
{
  struct scrub *s = arg;
  uint64_t nr;
  size_t i;

  s->repaired = 0;
  for (i = 0; i < s->nr_suspects; ++i) {
    if (i > 0 && compare_chunks (&s->suspects[i - 1], &s->suspects[i]) == 0)
      continue;
    if (summary_repair (c, s->pool->store, state, s->suspects[i].segment,
                        s->suspects[i].index, &nr) == -1)
      return -1;
    s->repaired += nr;
  }
  return 0;
}

/* Not between quiesce_enter and quiesce_leave, for which a fold waits. */
static int
repair_summaries (struct scrub *s)
{
  if (s->nr_suspects == 0)
    return 0;
  qsort (s->suspects, s->nr_suspects, sizeof s->suspects[0], compare_chunks);
  if (txg_run (s->pool->txg, repair_chunks, NULL, s) == -1 ||
      store_sync (s->pool->store) == -1)
    return -1;
  s->f.summary_errors += s->repaired;
  s->nr_suspects = 0;
  return 0;
}

static int
note_damaged (struct scrub *s, uint64_t addr)
{
  s->f.errors++;
  if (s->f.nr_damaged == DAMAGED_MAX)
    return 0;
  return array_push (&s->f.damaged, &s->f.nr_damaged, addr);
}

static int
scrub_record (struct scrub *s, const struct record *r)
{
  /* Like the total, this does not count copies. */
  s->f.records += !(r->flags & RECORD_COPY);
  s->f.bytes += r->ptr.psize;
  if (verify_read (&s->v, r))
    return 0;
  if (errno == ENOMEM)
    return nbdedup_fail (ENOMEM, "no memory to scrub");
  /* A record that cannot be written counts as damaged, too. */
  if (!scrub_is_readonly (s) && verify_write_cached (&s->v, r) == 1) {
    s->f.repaired++;
    return 0;
  }
  return note_damaged (s, r->ptr.addr);
}

static struct segment_map *
get_segment (struct scrub *s, struct meta_conn *c, uint64_t segment)
{
  struct blob b CLEANUP_BLOB = { NULL };

  if (meta_segment_get (c, segment, &b) != 1)
    return NULL;
  return segment_map_unpack (segment, s->pool->sector_bytes, b.p, b.len);
}

static int
scrub_row (struct scrub *s, struct meta_conn *c, uint64_t group)
{
  uint64_t segment = group * RECORD_GROUP_SECTORS /
    (SEGMENT_BYTES / s->pool->sector_bytes);
  struct segment_map *map = get_segment (s, c, segment);
  struct record r;
  size_t off = 0;
  int n, ret = 0;

  s->chunk_addr = 0;
  while (ret == 0 &&
         (n = record_next (group, s->row.p, s->row.len, &off, &r)) != 0) {
    if (n == -1) {
      s->f.errors++;
      break;
    }
    ret = scrub_record (s, &r);
    /* A read-only pool cannot rewrite the slot. */
    if (ret == 0 && map && !scrub_is_readonly (s) && !has_summary (s, map, &r))
      ret = note_summary (s, segment, r.slot / map->slots_per_chunk);
  }
  segment_map_free (map);
  return ret;
}

struct next {
  uint64_t group;
  bool found;
};

static int
note_group (void *opaque, uint64_t group, const uint8_t *buf, size_t len)
{
  struct next *n = opaque;

  (void) buf;
  (void) len;
  n->group = group;
  n->found = true;
  return 1;
}

/* For each group of records, from 'first' on: read its row into s->row and call
 * 'fn', both with 'c' inside quiesce_enter; then, outside, call 'end' with the
 * next group.  After the last call 'end' with true.
 */
static int
each_row (struct scrub *s, uint64_t first,
          int (*fn) (struct scrub *s, struct meta_conn *c, uint64_t group),
          int (*end) (struct scrub *s, uint64_t group, bool at_end))
{
  struct next next = { .group = first };
  struct meta_conn *c;
  unsigned ticket;
  int r;

  for (;; next.group++) {
    /* Get a reader for each row: others may need it during a pause. */
    c = meta_reader_get (s->pool->meta);
    ticket = quiesce_enter (&s->pool->quiesce);
    next.found = false;
    r = meta_record_scan (c, next.group, note_group, &next);
    if (r == 0 && next.found) {
      r = meta_record_get (c, next.group, &s->row);
      if (r == 1)
        r = fn (s, c, next.group);
    }
    quiesce_leave (&s->pool->quiesce, ticket);
    meta_reader_put (s->pool->meta, c);
    if (r == 0)
      r = end (s, next.group + 1, !next.found);
    if (r == -1 || !next.found)
      return r;
  }
}

static int
row_scrubbed (struct scrub *s, uint64_t group, bool at_end)
{
  s->next_group = group;
  if ((s->nr_suspects >= REPAIR_MAX || at_end) && repair_summaries (s) == -1)
    return -1;
  return scrub_state_note (s, false) == -1 ? -1 : scrub_pace (s);
}

/*----------------------------------------------------------------------
 * Damaged records whose content others have
 */

/* The damaged record is repaired, or does not exist any more. */
static void
forget_damaged (struct scrub *s, size_t i)
{
  assert (i < s->f.nr_damaged);
  s->f.errors--;
  memmove (&s->f.damaged[i], &s->f.damaged[i + 1],
           (--s->f.nr_damaged - i) * sizeof s->f.damaged[0]);
}

/* Check the damaged records again; call 'fn' for those that still are. */
static int
look_again (struct scrub *s,
            int (*fn) (struct scrub *s, const struct record *r))
{
  struct meta_conn *c = meta_reader_get (s->pool->meta);
  struct record rec;
  unsigned ticket;
  size_t i = 0;
  int r = 0;

  while (r != -1 && i < s->f.nr_damaged) {
    ticket = quiesce_enter (&s->pool->quiesce);
    r = meta_record_find (c, s->f.damaged[i], &s->found, &rec);
    if (r == 0)
      forget_damaged (s, i);
    else if (r == 1 && verify_read (&s->v, &rec)) {
      s->f.repaired++;
      forget_damaged (s, i);
    }
    else if (r == 1 && errno == ENOMEM)
      r = nbdedup_fail (ENOMEM, "no memory to scrub");
    else if (r == 1) {
      r = fn (s, &rec);
      ++i;
    }
    quiesce_leave (&s->pool->quiesce, ticket);
    if (r != -1)
      r = scrub_go_on (s);
  }
  meta_reader_put (s->pool->meta, c);
  return r == -1 ? -1 : 0;
}

static int
note_wanted (struct scrub *s, const struct record *r)
{
  return array_push (&s->wanted, &s->nr_wanted, *r);
}

static int
find_wanted (struct scrub *s)
{
  s->nr_wanted = 0;
  return look_again (s, note_wanted);
}

static int
compare_digests (const void *a, const void *b)
{
  const struct record *x = a, *y = b;

  return memcmp (&x->digest, &y->digest, sizeof x->digest);
}

/* 'r' has the digest of a damaged record, which may have changed since. */
static int
write_from_duplicate (struct scrub *s, struct meta_conn *c,
                      const struct record *r, const struct record *wanted)
{
  struct record now;
  int n;

  if (r->ptr.addr == wanted->ptr.addr || r->lsize != wanted->lsize ||
      r->domain != wanted->domain)
    return 0;
  n = meta_record_find (c, wanted->ptr.addr, &s->found, &now);
  if (n == 1 && compare_digests (&now, r) == 0 && !verify_read (&s->v, &now))
    verify_write_from (&s->v, &now, r);
  return n == -1 ? -1 : 0;
}

static int
look_for_duplicates (struct scrub *s, struct meta_conn *c, uint64_t group)
{
  const struct record *w, *end = s->wanted + s->nr_wanted;
  struct record r;
  size_t off = 0;

  /* A damaged row is counted already. */
  while (record_next (group, s->row.p, s->row.len, &off, &r) == 1) {
    w = bsearch (&r, s->wanted, s->nr_wanted, sizeof *w, compare_digests);
    if (w == NULL)
      continue;
    while (w > s->wanted && compare_digests (w - 1, &r) == 0)
      --w;
    for (; w < end && compare_digests (w, &r) == 0; ++w)
      if (write_from_duplicate (s, c, &r, w) == -1)
        return -1;
  }
  return 0;
}

static int
row_looked_at (struct scrub *s, uint64_t group, bool at_end)
{
  (void) group;
  (void) at_end;
  return scrub_go_on (s);
}

static int
repair_records (struct scrub *s)
{
  if (scrub_is_readonly (s))
    return 0;
  if (find_wanted (s) == -1)
    return -1;
  if (s->nr_wanted > 0) {
    qsort (s->wanted, s->nr_wanted, sizeof s->wanted[0], compare_digests);
    if (each_row (s, 0, look_for_duplicates, row_looked_at) == -1 ||
        find_wanted (s) == -1)
      return -1;
  }
  return s->f.repaired > 0 ? store_sync (s->pool->store) : 0;
}

/* For a client that may have the content. */
static json_t *
describe_wanted (const struct scrub *s)
{
  json_t *records = json_array (), *wanted;
  char key[HASH_KEY_TEXT];
  char hex[2 * DIGEST_LEN + 1];
  const struct record *r;
  size_t i;
  unsigned j;

  for (i = 0; i < s->nr_wanted; ++i) {
    r = &s->wanted[i];
    for (j = 0; j < DIGEST_LEN; ++j)
      snprintf (hex + 2 * j, 3, "%02x", r->digest.b[j]);
    json_array_append_new (records,
                           json_pack ("{s:I, s:I, s:I, s:s}", "address",
                                      (json_int_t) r->ptr.addr, "length",
                                      (json_int_t) r->lsize, "domain",
                                      (json_int_t) r->domain, "digest", hex));
  }
  wanted = json_pack ("{s:s, s:o}", "hash", hash_name (s->pool->hash),
                      "records", records);
  /* The client could read the key in the pool's files: the socket has their
   * mode.
   */
  if (s->pool->hash_key.known) {
    hash_key_format (&s->pool->hash_key, key);
    json_object_set_new (wanted, "key", json_string (key));
  }
  return wanted;
}

int
scrub_offer (struct nbdedup_pool *pool, uint64_t addr, const void *content,
             uint32_t len)
{
  struct blob row CLEANUP_BLOB = { NULL };
  struct meta_conn *c;
  struct verifier v;
  struct record rec;
  unsigned ticket;
  int r;

  if (len > BLOCK_SIZE_MAX || addr > ADDR_MAX)
    return nbdedup_fail (EINVAL,
                         "a record at sector %" PRIu64 " cannot have %" PRIu32
                         " bytes",
                         addr, len);
  if (verifier_init (&v, pool) == -1)
    return -1;
  c = meta_reader_get (pool->meta);
  ticket = quiesce_enter (&pool->quiesce);
  r = meta_record_find (c, addr, &row, &rec);
  if (r == 1)
    r = verify_read (&v, &rec) ? 0
                               : verify_write_again (&v, &rec, content, len);
  quiesce_leave (&pool->quiesce, ticket);
  meta_reader_put (pool->meta, c);
  if (r == 1 && store_sync (pool->store) == -1)
    r = -1;
  verifier_free (&v);
  return r;
}

/*----------------------------------------------------------------------
 * Metadata
 */

static void
note_page (void *opaque, bool repaired, const char *text)
{
  struct scrub *s = opaque;

  if (json_array_size (s->metadata) < DAMAGED_MAX)
    json_array_append_new (s->metadata, nbdedup_json_text (text));
  s->f.metadata_errors += !repaired;
}

static int
pages_compared (void *opaque, uint64_t bytes)
{
  struct scrub *s = opaque;

  s->metadata_bytes += bytes;
  return scrub_pace (s);
}

static int
scrub_metadata (struct scrub *s)
{
  /* This starts the pace before the first page. */
  return scrub_pace (s) == -1 ||
      meta_copy_check (s->pool->meta, note_page, pages_compared, s) == -1
    ? -1
    : 0;
}

/*----------------------------------------------------------------------
 * The report of the last scrub for "status"
 */

/* The scrub succeeds also if its report cannot be stored. */
static void
keep_report (struct scrub *s, const json_t *result)
{
  struct nbdedup_pool *pool = s->pool;
  CLEANUP_JSON json_t *report = NULL;
  CLEANUP_FREE char *text = NULL;

  if (scrub_is_readonly (s))
    return;
  report = json_deep_copy (result);
  if (report) {
    json_object_del (report, "damaged");
    json_object_del (report, "affected");
    json_object_del (report, "metadata");
    json_object_set_new (report, "time", json_integer ((json_int_t) s->f.time));
    text = json_dumps (report, JSON_COMPACT);
  }
  if (text == NULL || scrub_state_finish (s, text) == -1)
    nbdedup_log (NBDEDUP_LOG_WARNING,
                 "%s: cannot keep the result of the scrub "
                 "for \"status\": %s",
                 pool->path, text ? nbdedup_error () : "no memory");
}

static json_t *
make_result (const struct scrub *s)
{
  const struct scrubbed *f = &s->f;

  return json_pack ("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:O, s:O, s:I, "
                    "s:O}",
                    "begun", (json_int_t) f->begun, "records",
                    (json_int_t) f->records, "bytes", (json_int_t) f->bytes,
                    "errors",
                    (json_int_t) (f->errors + f->summary_errors +
                                  s->lost_blocks + f->metadata_errors),
                    "repaired_records", (json_int_t) f->repaired, "lost_blocks",
                    (json_int_t) s->lost_blocks, "hidden_blocks",
                    (json_int_t) s->hidden_blocks, "summary_errors",
                    (json_int_t) f->summary_errors, "damaged", s->places,
                    "affected", s->affected, "metadata_errors",
                    (json_int_t) f->metadata_errors, "metadata", s->metadata);
}

static int
scrub_all (struct scrub *s)
{
  struct meta_state state;

  s->f.begun = clock_wall_s ();
  if (pool_sync (s->pool) == -1 ||
      (!s->args->restart && !scrub_is_readonly (s) &&
       scrub_state_load (s) == -1))
    return -1;
  scrub_tell_begun (s);
  txg_get_state (s->pool->txg, &state);
  s->total = state.records;
  s->f.metadata_errors = 0; /* metadata is always read in full */
  if (scrub_metadata (s) == -1 ||
      each_row (s, s->next_group, scrub_row, row_scrubbed) == -1 ||
      repair_records (s) == -1)
    return -1;
  s->f.time = clock_wall_s ();
  return 0;
}

/* Store the position, so that the next scrub resumes.  Keeps the error. */
static void
keep_position (struct scrub *s)
{
  const int err = errno;
  char text[512];

  snprintf (text, sizeof text, "%s", nbdedup_error ());
  if (s->next_group > 0 && repair_summaries (s) == 0 &&
      scrub_state_note (s, true) == 0 && err == EINTR)
    snprintf (text, sizeof text,
              "interrupted; the next scrub continues where "
              "this one stopped");
  nbdedup_fail (err, "%s", text);
}

static void
scrubbed_free (struct scrubbed *scrubbed)
{
  if (scrubbed)
    free (scrubbed->damaged);
  free (scrubbed);
}

struct scrub_shared *
scrub_shared_new (void)
{
  struct scrub_shared *shared = calloc (1, sizeof *shared);

  if (shared == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  lock_init (&shared->one);
  turn_init (&shared->turn);
  lock_init (&shared->live.lock);
  return shared;
}

void
scrub_shared_free (struct scrub_shared *shared)
{
  if (shared == NULL)
    return;
  scrubbed_free (shared->last);
  lock_destroy (&shared->live.lock);
  lock_destroy (&shared->one);
  turn_destroy (&shared->turn);
  free (shared);
}

/* Check the findings of the last scrub again. */
static int
scrub_again (struct scrub *s)
{
  struct scrubbed *last = TAKE_PTR (s->pool->scrub->last);

  assert_held (&s->pool->scrub->one);
  if (last == NULL)
    return nbdedup_fail (EINVAL, "no scrub has run since the server started");
  s->f = *last;
  free (last);
  scrub_tell_begun (s);
  s->total = s->f.records;
  return find_wanted (s) == -1 ? -1 : store_sync (s->pool->store);
}

/* Keep the findings for scrub_again. */
static void
keep_scrubbed (struct scrub *s)
{
  assert_held (&s->pool->scrub->one);
  scrubbed_free (s->pool->scrub->last);
  s->pool->scrub->last = malloc (sizeof *s->pool->scrub->last);
  if (s->pool->scrub->last) {
    *s->pool->scrub->last = s->f;
    s->f.damaged = NULL;
  }
}

static int
look (void *opaque)
{
  return scrub_go_on (opaque);
}

static int
lock_scrub (struct scrub *s)
{
  struct scrub_shared *shared = s->pool->scrub;
  int r;

  /* This makes the server's own scrub yield. */
  shared->waiting += !s->args->scheduled;
  r = turn_take (&shared->turn, &shared->one, look, s);
  shared->waiting -= !s->args->scheduled;
  return r;
}

json_t *
scrub_run (struct nbdedup_pool *pool, const struct scrub_args *args,
           nbdedup_progress_fn *progress, void *opaque)
{
  struct scrub s = {
    .pool = pool,
    .args = args,
    .progress = progress,
    .opaque = opaque,
  };
  json_t *result = NULL;

  if (lock_scrub (&s) == -1)
    return NULL;
  s.places = json_array ();
  s.affected = json_array ();
  s.metadata = json_array ();
  if (s.places == NULL || s.affected == NULL || s.metadata == NULL)
    nbdedup_fail (ENOMEM, "no memory to scrub");
  else if (verifier_init (&s.v, pool) == 0 &&
           (args->again ? scrub_again (&s) : scrub_all (&s)) == 0 &&
           scrub_locate (&s) == 0)
    result = make_result (&s);
  if (result == NULL && !args->again && !scrub_is_readonly (&s))
    keep_position (&s);
  scrub_state_end (&s);
  if (result) {
    keep_report (&s, result);
    if (args->wanted)
      json_object_set_new (result, "wanted", describe_wanted (&s));
  }
  if (s.f.time != 0)
    keep_scrubbed (&s);
  turn_give (&pool->scrub->turn, &pool->scrub->one);
  scrub_tell_ended (&s, result);
  verifier_free (&s.v);
  free (s.f.damaged);
  free (s.suspects);
  free (s.wanted);
  blob_free (&s.row);
  blob_free (&s.found);
  json_decref (s.places);
  json_decref (s.affected);
  json_decref (s.metadata);
  return result;
}

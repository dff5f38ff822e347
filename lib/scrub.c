/* SPDX-License-Identifier: BSD-3-Clause */

/* Read every record, verify its checksum, its decompression, its full
 * digest, and the summary slot that describes it in the store.  A slot that
 * is missing or damaged is no damage of data, and is written again.  Read
 * every page of both copies of pool.db, and repair one from the other.
 *
 * The pool is in use meanwhile: each row of records is read and verified
 * between quiesce_enter and quiesce_leave, so that none of its sectors can
 * be reused before it is done.
 */

#include <config.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

#include "check.h"
#include "cleanup.h"
#include "codec.h"
#include "error.h"
#include "fold-summary.h"
#include "hash.h"
#include "log.h"
#include "pool.h"
#include "status.h"

/* Damaged records whose places in volumes are looked up. */
#define DAMAGED_MAX 65536
/* Summary chunks that are repaired by one fold. */
#define REPAIR_MAX 64

struct chunk_id {
  uint64_t segment;
  unsigned index;
};

struct scrub {
  struct nbdedup_pool *pool;
  struct hasher *hasher;        /* owned */
  struct codec_ctx *codec;      /* owned */
  uint8_t *raw, *block;         /* owned; BLOCK_SIZE_MAX each */
  uint64_t records, bytes, errors, summary_errors, lost_blocks;
  uint64_t chunk_addr;          /* what 'chunk' is; 0: nothing */
  uint8_t chunk[SUMMARY_CHUNK_MAX];
  struct chunk_id *suspects;    /* owned */
  size_t nr_suspects;
  uint64_t repaired;            /* slots, by one fold */
  uint64_t *damaged;            /* owned; ascending */
  size_t nr_damaged;
  json_t *places;               /* owned */
  json_t *metadata;             /* owned; what was wrong there */
  uint64_t metadata_errors;     /* of it, what could not be repaired */
  struct blob row;
  uint64_t total;
  nbdedup_progress_fn *progress;
  void *opaque;
};

static bool
is_good (struct scrub *s, const struct record *r)
{
  struct digest digest;
  const uint8_t *p = s->raw;

  if (store_read (s->pool->store, r->ptr.addr, s->raw, r->ptr.psize) == -1 ||
      XXH3_64bits (s->raw, r->ptr.psize) != r->ptr.cksum)
    return false;
  if (r->ptr.codec != CODEC_NONE) {
    if (codec_decompress (s->codec, r->ptr.codec, s->raw, r->ptr.psize,
                          s->block, r->lsize) == -1)
      return false;
    p = s->block;
  }
  return hasher_digest (s->hasher, r->domain, p, r->lsize, &digest) == 0 &&
    memcmp (&digest, &r->digest, sizeof digest) == 0;
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
    .uuid = s->pool->uuid, .sector_bytes = s->pool->sector_bytes,
    .index = index,
  };

  if (index >= map->nr_chunks || map->chunks[index] == SEGMENT_CHUNK_LOST)
    return false;
  chunk.addr = map->id * map->nr_sectors + map->chunks[index];
  /* Neighbours have theirs in the same chunk, as a rule. */
  if (s->chunk_addr != chunk.addr) {
    s->chunk_addr = chunk.addr;
    if (store_read (s->pool->store, chunk.addr, s->chunk,
                    summary_chunk_bytes (chunk.sector_bytes)) == -1)
      memset (s->chunk, 0, sizeof s->chunk);
  }
  return summary_describes (&chunk, s->chunk, r);
}

/* Its chunk is looked at again, and repaired, by the folding thread, which
 * may just have been writing it.
 */
static int
note_summary (struct scrub *s, uint64_t segment, unsigned index)
{
  struct chunk_id *p = s->suspects;

  if (s->nr_suspects > 0 && p[s->nr_suspects - 1].segment == segment &&
      p[s->nr_suspects - 1].index == index)
    return 0;
  p = realloc (p, (s->nr_suspects + 1) * sizeof *p);
  if (p == NULL)
    return nbdedup_fail (ENOMEM, "no memory to scrub");
  s->suspects = p;
  p[s->nr_suspects++] = (struct chunk_id) { segment, index };
  return 0;
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
    if (i > 0 &&
        compare_chunks (&s->suspects[i - 1], &s->suspects[i]) == 0)
      continue;
    if (summary_repair (c, s->pool->store, state, s->suspects[i].segment,
                        s->suspects[i].index, &nr) == -1)
      return -1;
    s->repaired += nr;
  }
  return 0;
}

/* Not inside quiesce_enter: a fold waits for those. */
static int
repair_summaries (struct scrub *s)
{
  if (s->nr_suspects == 0)
    return 0;
  qsort (s->suspects, s->nr_suspects, sizeof s->suspects[0], compare_chunks);
  if (txg_run (s->pool->txg, repair_chunks, NULL, s) == -1 ||
      store_sync (s->pool->store) == -1)
    return -1;
  s->summary_errors += s->repaired;
  s->nr_suspects = 0;
  return 0;
}

static int
note_damaged (struct scrub *s, uint64_t addr)
{
  uint64_t *p;

  s->errors++;
  if (s->nr_damaged == DAMAGED_MAX)
    return 0;
  p = realloc (s->damaged, (s->nr_damaged + 1) * sizeof *p);
  if (p == NULL)
    return nbdedup_fail (ENOMEM, "no memory to scrub");
  s->damaged = p;
  p[s->nr_damaged++] = addr;
  return 0;
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
  size_t off;
  int n, ret = 0;

  s->chunk_addr = 0;
  for (off = 0; off < s->row.len && ret == 0; off += (size_t) n) {
    n = record_unpack (group, s->row.p + off, s->row.len - off, &r);
    if (n == -1) {
      s->errors++;
      break;
    }
    s->records++;
    s->bytes += r.ptr.psize;
    if (!is_good (s, &r))
      ret = note_damaged (s, r.ptr.addr);
    if (ret == 0 && map && !has_summary (s, map, &r))
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

static int
scrub_records (struct scrub *s)
{
  struct next next = { .group = 0 };
  struct meta_conn *c = meta_reader_get (s->pool->meta);
  unsigned ticket;
  int r;

  for (;; next.group++) {
    ticket = quiesce_enter (&s->pool->quiesce);
    next.found = false;
    r = meta_record_scan (c, next.group, note_group, &next);
    if (r == 0 && next.found) {
      r = meta_record_get (c, next.group, &s->row);
      if (r == 1)
        r = scrub_row (s, c, next.group);
    }
    quiesce_leave (&s->pool->quiesce, ticket);
    if (r == 0 && (s->nr_suspects >= REPAIR_MAX || !next.found))
      r = repair_summaries (s);
    if (r == 0 && s->progress &&
        s->progress (s->opaque, s->records, s->total) != 0)
      r = nbdedup_fail (EINTR, "interrupted");
    if (r == -1 || !next.found)
      break;
  }
  meta_reader_put (s->pool->meta, c);
  return r;
}

/*----------------------------------------------------------------------
 * Where in the volumes is the damage?
 */

static int
compare_u64 (const void *a, const void *b)
{
  uint64_t x = *(const uint64_t *) a, y = *(const uint64_t *) b;

  return x < y ? -1 : x > y;
}

struct locate {
  struct scrub *s;
  struct meta_conn *c;
};

static bool
is_damaged (const struct scrub *s, const struct leaf *leaf, unsigned i)
{
  struct pointer ptr;

  if (leaf->state[i] != MAP_POINTER || s->nr_damaged == 0)
    return leaf->state[i] == MAP_LOST;
  /* Only the address is wanted: whatever the layer's block size is. */
  (void) pointer_unpack (leaf->ptr[i], BLOCK_SIZE_MAX, &ptr);
  return bsearch (&ptr.addr, s->damaged, s->nr_damaged, sizeof ptr.addr,
                  compare_u64) != NULL;
}

/* Each damaged block is told once, by the name whose layer has it: what
 * inherits it is damaged as well.
 */
static int
locate_in_leaf (void *opaque, uint64_t branch, uint64_t leaf_nr,
                uint64_t seq, const uint8_t *buf, size_t len)
{
  struct locate *lo = opaque;
  struct volumes *vs = lo->s->pool->volumes;
  char name[VOLUME_FULL_NAME_MAX];
  struct layer *layer = NULL;
  struct leaf leaf;
  unsigned i;

  if (leaf_unpack (buf, len, &leaf) == -1)
    return -1;
  for (i = 0; i < LEAF_BLOCKS; ++i) {
    if (!is_damaged (lo->s, &leaf, i))
      continue;
    if (layer == NULL &&
        (layer = volumes_describe_layer (vs, branch, seq, name)) == NULL)
      return 0;                 /* it is being given back */
    if (leaf.state[i] == MAP_LOST)
      lo->s->lost_blocks++;
    json_array_append_new (lo->s->places, json_pack
                           ("{s:s, s:I, s:I}", "name", name,
                            "offset", (json_int_t)
                            ((leaf_nr * LEAF_BLOCKS + i) *
                             layer->block_size),
                            "length", (json_int_t) layer->block_size));
  }
  return 0;
}

static int
locate_damage (struct scrub *s)
{
  struct locate lo = { .s = s };
  int r;

  if (pool_sync (s->pool) == -1)
    return -1;
  lo.c = meta_reader_get (s->pool->meta);
  r = meta_leaf_scan_all (lo.c, locate_in_leaf, &lo);
  meta_reader_put (s->pool->meta, lo.c);
  return r;
}

static void
note_page (void *opaque, bool repaired, const char *text)
{
  struct scrub *s = opaque;

  if (json_array_size (s->metadata) < DAMAGED_MAX)
    json_array_append_new (s->metadata, json_string (text));
  s->metadata_errors += !repaired;
}

static int
scrub_metadata (struct scrub *s)
{
  return meta_copy_check (s->pool->meta, note_page, s) == -1 ? -1 : 0;
}

/*----------------------------------------------------------------------
 * What "status" tells of the last scrub
 */

static int
put_report (void *arg, struct meta_conn *c, struct meta_state *state)
{
  (void) state;
  return meta_history_make (c) == -1 ? -1
    : meta_report_put (c, SCRUB_REPORT, arg);
}

/* The result counts, not whether it could be kept. */
static void
keep_report (struct nbdedup_pool *pool, const json_t *result)
{
  CLEANUP_JSON json_t *report = NULL;
  CLEANUP_FREE char *text = NULL;

  if (pool->settings.read_only != NBDEDUP_READ_ONLY_OFF)
    return;
  report = json_deep_copy (result);
  if (report) {
    json_object_del (report, "damaged");
    json_object_del (report, "metadata");
    json_object_set_new (report, "time",
                         json_integer ((json_int_t) time (NULL)));
    text = json_dumps (report, JSON_COMPACT);
  }
  if (text == NULL || txg_run (pool->txg, put_report, NULL, text) == -1)
    nbdedup_log (NBDEDUP_LOG_WARNING, "%s: the result of the scrub cannot be "
                 "kept for \"status\": %s", pool->path,
                 text ? nbdedup_error () : "no memory");
}

json_t *
scrub_run (struct nbdedup_pool *pool, nbdedup_progress_fn *progress,
           void *opaque)
{
  struct scrub s = { .pool = pool, .progress = progress, .opaque = opaque };
  struct meta_state state;
  json_t *result = NULL;

  assert_held (&pool->admin);
  if (pool_sync (pool) == -1)
    return NULL;
  txg_get_state (pool->txg, &state);
  s.total = state.records;
  s.hasher = hasher_new (pool->hash);
  s.codec = codec_ctx_new ();
  s.raw = malloc (BLOCK_SIZE_MAX);
  s.block = malloc (BLOCK_SIZE_MAX);
  s.places = json_array ();
  s.metadata = json_array ();
  if (s.hasher == NULL || s.codec == NULL || s.raw == NULL ||
      s.block == NULL || s.places == NULL || s.metadata == NULL)
    nbdedup_fail (ENOMEM, "no memory to scrub");
  else if (scrub_metadata (&s) == 0 && scrub_records (&s) == 0 &&
           locate_damage (&s) == 0)
    result = json_pack ("{s:I, s:I, s:I, s:I, s:I, s:O, s:I, s:O}",
                        "records", (json_int_t) s.records,
                        "bytes", (json_int_t) s.bytes,
                        "errors", (json_int_t)
                        (s.errors + s.summary_errors + s.lost_blocks +
                         s.metadata_errors),
                        "lost_blocks", (json_int_t) s.lost_blocks,
                        "summary_errors", (json_int_t) s.summary_errors,
                        "damaged", s.places,
                        "metadata_errors", (json_int_t) s.metadata_errors,
                        "metadata", s.metadata);
  if (result)
    keep_report (pool, result);
  hasher_free (s.hasher);
  codec_ctx_free (s.codec);
  free (s.raw);
  free (s.block);
  free (s.damaged);
  free (s.suspects);
  blob_free (&s.row);
  json_decref (s.places);
  json_decref (s.metadata);
  return result;
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* What storing records again would save ("rewrite --dedup").
 *
 * All records that the golden image and its clones show are sorted by digest.
 * Of several with one content, "rewrite --dedup" keeps the one that the hash
 * index has at the lowest address; if the index has none, the first that it
 * comes to.  Of those that stay, a random sample is compressed as today
 * (reservoir sampling: algorithm R in J. Vitter, "Random sampling with a
 * reservoir", TOMS 11, 1985), if their codec is not the volume's.
 */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/mix.h"
#include "disk/sorter.h"
#include "drift/advise-int.h"

#define SAMPLE_MAX 4096u
#define SAMPLE_BYTES (UINT64_C (256) << 20)

struct stored_item {
  struct digest digest;
  uint64_t domain;
  struct pointer ptr;
  uint32_t lsize;
  uint32_t who;
  uint64_t is_indexed;
};

/* Of the golden image or a clone: the last that shows a record has it. */
struct part {
  bool misses;            /* "rewrite --dedup" must look at it */
  uint64_t other_sectors; /* of records with another codec than today's */
  uint64_t tried_sectors; /* ... of them in the sample */
  int64_t saved_sectors;  /* what storing those again saves */
};

struct again {
  struct view *v;                    /* not owned */
  const struct drift_blocks *blocks; /* not owned */
  const struct compression *golden;  /* of the golden image's volume, not
                                         * owned; NULL: it is destroyed, and
                                         * only clones can be named */
  struct sorter *sorter;             /* owned */
  struct part *parts;                /* owned; 0: the golden image; clone + 1 */
  uint64_t missed_sectors;

  struct stored_item keep; /* of the present content */
  bool has_keep;
  struct stored_item *sample; /* owned */
  size_t nr_sample, cap;
  uint64_t nr_other; /* records with another codec than today's */
  uint64_t random;   /* state: SplitMix64 */
};

static int
compare_items (const void *a, const void *b)
{
  const struct stored_item *x = a, *y = b;
  const int r = digest_compare (&x->digest, &y->digest);

  if (r != 0)
    return r;
  if (x->domain != y->domain)
    return x->domain < y->domain ? -1 : 1;
  if (x->lsize != y->lsize)
    return x->lsize < y->lsize ? -1 : 1;
  if (x->is_indexed != y->is_indexed)
    return x->is_indexed ? -1 : 1;
  return x->ptr.addr < y->ptr.addr ? -1 : x->ptr.addr > y->ptr.addr;
}

static const struct compression *
find_golden_compression (const struct view *v, const struct view_name *golden)
{
  size_t i;

  for (i = 0; i < v->nr_names && golden->volume_id != 0; ++i)
    if (!v->names[i].is_snapshot && v->names[i].id == golden->volume_id)
      return &v->names[i].compression;
  return NULL;
}

struct again *
again_new (struct view *v, const struct drift_blocks *blocks,
           uint64_t memory_bytes)
{
  struct again *g = calloc (1, sizeof *g);

  if (g == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  g->v = v;
  g->blocks = blocks;
  g->golden = find_golden_compression (v, &blocks->golden);
  g->sorter = sorter_new (v->dir, sizeof (struct stored_item), compare_items,
                          memory_bytes);
  g->parts = calloc (blocks->nr + 1, sizeof *g->parts);
  if (g->sorter && g->parts) {
    sorter_set_look (g->sorter, v->look, v->opaque);
    return g;
  }
  if (g->sorter)
    nbdedup_fail (ENOMEM, "no memory");
  again_free (g);
  return NULL;
}

void
again_free (struct again *g)
{
  if (g == NULL)
    return;
  sorter_free (g->sorter);
  free (g->parts);
  free (g->sample);
  free (g);
}

int
again_add (struct again *g, const struct record *record, uint32_t who)
{
  struct stored_item item;

  if (who == WHO_GOLDEN && g->golden == NULL)
    return 0; /* "rewrite" cannot come to it */
  memset (&item, 0, sizeof item);
  item.digest = record->digest;
  item.domain = record->domain;
  item.ptr = record->ptr;
  item.lsize = record->lsize;
  item.who = who < WHO_CLONES ? 0 : who - WHO_CLONES + 1;
  item.is_indexed = (record->flags & RECORD_INDEXED) != 0;
  return sorter_add (g->sorter, &item);
}

/*----------------------------------------------------------------------
 * Contents
 */

static uint32_t
sectors_of_item (const struct again *g, const struct stored_item *item)
{
  return sectors_of (item->ptr.psize, g->v->sector_bytes);
}

static bool
have_same_content (const struct stored_item *a, const struct stored_item *b)
{
  return memcmp (&a->digest, &b->digest, sizeof a->digest) == 0 &&
    a->domain == b->domain && a->lsize == b->lsize;
}

/* Today's compression of a volume that shows the record. */
static const struct compression *
compression_of (const struct again *g, uint32_t who)
{
  if (who == 0 && g->golden)
    return g->golden;
  assert (g->blocks->nr > 0); /* of a destroyed one */
  return &g->blocks->clones[who == 0 ? 0 : who - 1]->compression;
}

/* As rewrite-record.c, but the level of zstd is not stored. */
static bool
may_change (const struct again *g, const struct stored_item *item)
{
  return item->ptr.codec != compression_of (g, item->who)->codec;
}

static uint64_t
next_random (struct again *g)
{
  g->random += MIX_STEP;
  return mix (g->random);
}

static int
sample_item (struct again *g, const struct stored_item *item)
{
  const uint64_t by_bytes = SAMPLE_BYTES / item->lsize;
  const uint64_t max = by_bytes < SAMPLE_MAX ? by_bytes : SAMPLE_MAX;
  uint64_t i;

  if (!may_change (g, item))
    return 0;
  g->nr_other++;
  g->parts[item->who].other_sectors += sectors_of_item (g, item);
  if (g->nr_sample < max)
    return array_push (&g->sample, &g->nr_sample, *item);
  i = next_random (g) % g->nr_other;
  if (i < g->nr_sample)
    g->sample[i] = *item;
  return 0;
}

/* The first of a content that the fleet has.  The index may have another one,
 * of other volumes, which then is the fleet's.
 */
static int
begin_content (struct again *g, const struct stored_item *item)
{
  struct stored_item other = *item;
  struct record record;
  int found = item->is_indexed
    ? 0
    : advise_find_content (g->v, &item->digest, item->lsize, &record);

  g->has_keep = true;
  g->keep = *item;
  if (found != 1)
    return found == -1 ? -1 : sample_item (g, item);
  g->missed_sectors += sectors_of_item (g, item);
  g->parts[item->who].misses = true;
  other.ptr = record.ptr;
  return sample_item (g, &other);
}

/* The first of a content stays. */
static int
take_item (struct again *g, const struct stored_item *item)
{
  if (g->has_keep && have_same_content (&g->keep, item)) {
    g->missed_sectors += sectors_of_item (g, item);
    g->parts[item->who].misses = true;
    /* It must get into the index, or nothing finds it. */
    if (!g->keep.is_indexed)
      g->parts[g->keep.who].misses = true;
    return 0;
  }
  return begin_content (g, item);
}

/*----------------------------------------------------------------------
 * Compression
 */

struct trial {
  struct codec_ctx *codec; /* owned */
  uint8_t *in, *out;       /* owned */
  uint32_t len;
};

static int
make_room (struct trial *t, uint32_t len)
{
  if (t->len >= len)
    return 0;
  free (t->in);
  free (t->out);
  t->in = malloc (len);
  t->out = malloc (len);
  t->len = len;
  return t->in && t->out ? 0 : nbdedup_fail (ENOMEM, "no memory");
}

/* Would "rewrite" store it again?  As is_better in rewrite-record.c. */
static int
try_item (struct again *g, struct trial *t, const struct stored_item *item,
          const struct advise_source *source)
{
  const struct compression *today = compression_of (g, item->who);
  const uint32_t now = sectors_of_item (g, item);
  struct part *part = &g->parts[item->who];
  uint32_t new;
  int codec;

  if (make_room (t, item->lsize) == -1)
    return -1;
  if (source->read_record (source->opaque, &item->ptr, item->lsize, t->in) ==
      -1)
    return errno == EIO ? 0 : -1; /* damaged: it stays as it is */
  new = sectors_of ((uint32_t) codec_store (t->codec, today, g->v->sector_bytes,
                                            t->in, item->lsize, t->out, &codec,
                                            NULL),
                    g->v->sector_bytes);
  part->tried_sectors += now;
  if (new < now || codec == today->codec)
    part->saved_sectors += (int64_t) now - new;
  return view_look (g->v);
}

static int
try_sample (struct again *g, const struct advise_source *source)
{
  struct trial t = { .codec = codec_ctx_new () };
  size_t i;
  int r = t.codec ? 0 : -1;

  for (i = 0; i < g->nr_sample && r == 0; ++i)
    r = try_item (g, &t, &g->sample[i], source);
  codec_ctx_free (t.codec);
  free (t.in);
  free (t.out);
  return r;
}

int
again_run (struct again *g, const struct advise_source *source)
{
  const void *item;
  int r;

  if (sorter_finish (g->sorter) == -1)
    return -1;
  while ((r = sorter_next (g->sorter, &item)) == 1)
    if (take_item (g, item) == -1)
      return -1;
  return r == -1 ? -1 : try_sample (g, source);
}

/* What storing the part's records again saves, from its sample; negative if it
 * costs, because today's compression is weaker.
 */
static int64_t
saved_by_codec (const struct part *part)
{
  return part->tried_sectors == part->other_sectors ? part->saved_sectors
    : part->tried_sectors == 0
    ? 0
    : (int64_t) ((double) part->saved_sectors / (double) part->tried_sectors *
                 (double) part->other_sectors);
}

/* The volumes to rewrite for these parts.  Any clone may be the one that
 * inherits a record of a destroyed golden image.
 */
static json_t *
names_json (const struct again *g, const bool *wanted)
{
  const bool all = wanted[0] && g->golden == NULL;
  json_t *names = json_array ();
  uint32_t i;

  if (wanted[0] && !all)
    json_array_append_new (names, json_string (g->blocks->golden.name));
  for (i = 0; i < g->blocks->nr; ++i)
    if (all || wanted[i + 1])
      json_array_append_new (names, json_string (g->blocks->clones[i]->name));
  return names;
}

json_t *
again_json (const struct again *g)
{
  int64_t missed_sectors = (int64_t) g->missed_sectors, compress_sectors = 0;
  int64_t lost_sectors = 0;
  const json_int_t sector = g->v->sector_bytes;
  CLEANUP_FREE bool *missed = calloc (g->blocks->nr + 1, sizeof *missed);
  CLEANUP_FREE bool *compress = calloc (g->blocks->nr + 1, sizeof *compress);
  int64_t saved;
  uint32_t i;

  if (missed == NULL || compress == NULL)
    return NULL;
  for (i = 0; i <= g->blocks->nr; ++i) {
    saved = saved_by_codec (&g->parts[i]);
    missed[i] = g->parts[i].misses;
    compress[i] = g->parts[i].tried_sectors > 0;
    compress_sectors += saved;
    lost_sectors += saved < 0 ? saved : 0;
  }
  /* At worst: a volume that is rewritten shows all that grow. */
  if (missed_sectors > 0)
    missed_sectors += lost_sectors;
  return json_pack ("{s:I, s:o, s:I, s:o}", "missed_bytes",
                    (json_int_t) missed_sectors * sector, "missed",
                    names_json (g, missed), "compress_bytes",
                    (json_int_t) compress_sectors * sector, "compress",
                    names_json (g, compress));
}

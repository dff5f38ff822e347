/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <errno.h>
#include <stdlib.h>

#include "advise-block-size.h"
#include "base/array.h"
#include "drift-advice.h"
#include "drift-files.h"
#include "drift-map.h"
#include "drift-report.h"
#include "files-helper.h"
#include "files/protocol.h"
#include "image.h"
#include "interrupt.h"
#include "progress.h"

struct asking {
  const struct options *opts;
  struct nbdedup_frozen *frozen; /* owned */
  struct progress progress;
  struct nbdedup_client *client; /* not owned */
  struct block_sizes *sizes;     /* owned; as give_back */
  struct give_back *give_back;   /* owned; of the present document; NULL: no
                                 * advice is wanted */
  struct golden_files golden;    /* owned; of the present document */
  unsigned flags;                /* of drift_files_ask */
};

/* The helper has a bit for each sector of what it is asked for, so of larger
 * images it can tell the owners of a part only.
 */
#define WHOLE_IMAGE_MAX (UINT64_C (1) << 40)

/* Runs of blocks that are unique, or a sibling's. */
struct run {
  uint64_t offset, len;
  bool unique;
};

struct runs {
  struct run *p; /* owned */
  size_t nr;
  struct byte_ranges changed; /* owned; not as the golden image has it */
  uint64_t block_size, size;  /* of the clone, in bytes */
  uint64_t clone;
  struct block_sizes *sizes; /* not owned; NULL: no advice is wanted */
  bool is_mapped;
  struct drift_map *map; /* owned; NULL: none is needed yet */
};

static struct drift_map *
get_map (struct runs *runs)
{
  if (runs->map == NULL)
    runs->map = drift_map_new (runs->size, runs->block_size);
  return runs->map;
}

/* Append to ranges that do not touch.  The last block may end behind the
 * image.
 */
static void
add_range (struct byte_ranges *ranges, uint64_t offset, uint64_t len,
           uint64_t size)
{
  struct byte_range *last;

  if (len > size - offset)
    len = size - offset;
  if (ranges->nr > 0) {
    last = &ranges->p[ranges->nr - 1];
    if (last->offset + last->len == offset) {
      last->len += len;
      return;
    }
  }
  *(struct byte_range *) check_memory (
    array_add (&ranges->p, &ranges->nr,
               sizeof *ranges->p)) = (struct byte_range) { offset, len };
}

static int
on_run (void *opaque, uint64_t block, uint64_t nr, enum nbdedup_class class)
{
  struct runs *runs = opaque;
  const uint64_t offset = block * runs->block_size;
  const uint64_t len = nr * runs->block_size;

  if (runs->is_mapped)
    drift_map_add (get_map (runs), block, nr, class);
  if (runs->sizes != NULL)
    block_sizes_add_run (runs->sizes, runs->clone, block, nr, class);
  if (class != NBDEDUP_GOLDEN_SAME)
    add_range (&runs->changed, offset, len, runs->size);
  if (class != NBDEDUP_SIBLING && class != NBDEDUP_UNIQUE)
    return 0;
  *(struct run *) check_memory (
    array_add (&runs->p, &runs->nr, sizeof *runs->p)) = (struct run) {
    offset, len, class == NBDEDUP_UNIQUE
  };
  return 0;
}

/* The same as ranges; owned by the caller. */
static struct byte_ranges
make_ranges (const struct runs *runs)
{
  struct byte_ranges ranges = { NULL, 0 };
  size_t i;

  for (i = 0; i < runs->nr; ++i)
    add_range (&ranges, runs->p[i].offset, runs->p[i].len, runs->size);
  return ranges;
}

/* Find the owners of all runs; for advice, of all of the image.  -1:
 * image_error.
 */
static int
find_owners (struct asking *a, const struct runs *runs,
             struct files_answer *answer)
{
  struct byte_range all = { 0, runs->size };
  const bool whole = a->give_back != NULL && runs->size <= WHOLE_IMAGE_MAX;
  struct byte_ranges ranges = make_ranges (runs);
  const struct files_question question = {
    .frozen = a->frozen,
    .clone = runs->clone,
    .size = runs->size,
    .ranges = whole ? (struct byte_ranges) { &all, 1 } : ranges,
    .golden = &a->golden,
    .changed = runs->changed,
  };
  const int r = files_helper_ask (&question, answer);
  size_t i;

  free (ranges.p);
  if (r == -1)
    return -1;
  if (r == 1) {
    owner_map_clear (answer->map, PSEUDO_UNKNOWN);
    json_array_append_new (
      answer->notes,
      json_sprintf ("all of it: %s, so its files are not known",
                    image_error ()));
  }
  for (i = 0; i < runs->nr; ++i)
    owner_map_count (answer->map, runs->p[i].offset, runs->p[i].len,
                     runs->p[i].unique);
  return 0;
}

/* -1: image_error. */
static int
add_clone (struct asking *a, const json_t *document, json_t *clone,
           uint64_t number, bool is_mapped)
{
  struct runs runs = {
    .block_size = json_size (document, "block_size"),
    .is_mapped = is_mapped,
    .clone = number,
    .sizes = a->sizes,
  };
  struct files_answer answer = { .notes = check_memory (json_array ()) };
  int r = 0;

  if (nbdedup_frozen_runs (a->frozen, number, &runs.size, on_run, &runs) == -1)
    r = image_fail ("%s", nbdedup_error ());
  else {
    if (a->sizes != NULL)
      block_sizes_end_clone (a->sizes, number, runs.size);
    answer.map = owner_map_new (runs.size, PSEUDO_OUTSIDE);
    if (runs.nr > 0)
      r = find_owners (a, &runs, &answer);
    if (r == 0 && a->give_back != NULL)
      give_back_add (a->give_back, answer.map);
    if (r == 0)
      drift_tally (clone, &answer);
    if (r == 0 && is_mapped)
      json_object_set_new (clone, "map", drift_map_json (get_map (&runs)));
  }
  drift_map_free (runs.map);
  json_object_set (clone, "notes", answer.notes);
  owner_map_free (answer.map);
  files_answer_free (&answer);
  free (runs.p);
  free (runs.changed.p);
  return r;
}

/* Is it one of the most diverged? */
static bool
is_mapped (const json_t *sorted, const json_t *clone)
{
  size_t i;

  for (i = 0; i < CLONES_MAPPED; ++i)
    if (json_array_get (sorted, i) == clone)
      return true;
  return false;
}

static int
add_clones (struct asking *a, json_t *document)
{
  json_t *sorted = a->flags & DRIFT_MAPS ? drift_by_divergence (document)
                                         : NULL;
  const json_t *clones = json_object_get (document, "clones");
  const size_t nr = json_array_size (clones);
  json_t *clone;
  size_t i;
  int r = 0;

  json_array_foreach (clones, i, clone) {
    progress_update (&a->progress, i, nr);
    r = interrupted ()
      ? image_fail ("interrupted")
      : add_clone (a, document, clone, i, is_mapped (sorted, clone));
    if (r == -1)
      break;
  }
  json_decref (sorted);
  return r;
}

static int
on_progress (void *opaque, uint64_t done, uint64_t total)
{
  (void) opaque;
  (void) done;
  (void) total;
  return interrupted ();
}

/* Compute the advice for the present document.  -1: image_error. */
static int
add_advice (struct asking *a, json_t *document)
{
  json_t *figures = NULL, *more;
  int r;

  if (give_back_tell (a->give_back, a->frozen) == 0)
    figures = nbdedup_frozen_advise (a->frozen, on_progress, a);
  if (figures == NULL)
    return image_fail ("%s", nbdedup_error ());
  more = check_memory (json_array ());
  r = advise_block_size (a->sizes, &a->progress, more);
  if (r == 0)
    json_object_set_new (document, "advice",
                         drift_advice (document, figures, a->give_back, more));
  json_decref (more);
  json_decref (figures);
  return r;
}

/* -1: image_error. */
static int
begin_advice (struct asking *a, const json_t *document)
{
  if (!(a->flags & DRIFT_ADVICE))
    return 0;
  a->give_back = give_back_new ();
  a->sizes = block_sizes_begin (a->client, a->frozen, document);
  return a->sizes ? 0 : -1;
}

static int
ignore_run (void *opaque, uint64_t block, uint64_t nr, enum nbdedup_class class)
{
  (void) opaque;
  (void) block;
  (void) nr;
  (void) class;
  return 0;
}

/* Have several clones something to ask for? */
static bool
needs_map (const json_t *document)
{
  const json_t *clone;
  unsigned nr = 0;
  size_t i;

  json_array_foreach (json_object_get (document, "clones"), i, clone)
    nr += json_size (clone, "sibling") + json_size (clone, "unique") > 0;
  return nr > 1;
}

/* Read the golden image's files, once for all clones.  -1: image_error. */
static int
begin_golden (struct asking *a, const json_t *document)
{
  uint64_t size;

  a->golden = (struct golden_files) { .map = -1 };
  if (!needs_map (document))
    return 0;
  if (a->sizes != NULL)
    size = block_sizes_golden (a->sizes);
  else if (nbdedup_frozen_runs (a->frozen, NBDEDUP_FROZEN_GOLDEN, &size,
                                ignore_run, NULL) == -1)
    return image_fail ("%s", nbdedup_error ());
  return files_helper_map (a->frozen, size, &a->golden);
}

/* Complete a document.  -1: image_error. */
static int
add_all (struct asking *a, json_t *document)
{
  int r = begin_advice (a, document);

  if (r == 0)
    r = begin_golden (a, document);
  if (r == 0)
    r = add_clones (a, document);
  if (r == 0 && a->give_back != NULL)
    r = add_advice (a, document);
  golden_files_free (&a->golden);
  give_back_free (a->give_back);
  a->give_back = NULL;
  block_sizes_free (a->sizes);
  a->sizes = NULL;
  return r;
}

/* An array of all documents.  NULL: image_error. */
static json_t *
get_documents (struct asking *a)
{
  json_t *documents = check_memory (json_array ()), *document;

  while ((document = nbdedup_frozen_next (a->frozen, on_progress, a)) != NULL) {
    if (json_object_size (document) == 0) {
      json_decref (document);
      return documents;
    }
    json_array_append_new (documents, document);
    if (add_all (a, document) == -1) {
      json_decref (documents);
      return NULL;
    }
  }
  image_fail ("%s", nbdedup_error ());
  json_decref (documents);
  return NULL;
}

static json_t *
ask (struct asking *a, struct nbdedup_client *client, const char *golden,
     uint64_t memory)
{
  json_t *documents = NULL;

  a->frozen = nbdedup_client_freeze (client, golden, memory);
  if (a->frozen == NULL) {
    image_fail ("%s", nbdedup_error ());
    return NULL;
  }
  progress_start (&a->progress, "drift", PROGRESS_PARTS, a->opts->progress);
  documents = get_documents (a);
  if (documents != NULL)
    progress_complete (&a->progress);
  progress_end (&a->progress);
  nbdedup_frozen_close (a->frozen);
  return documents;
}

json_t *
drift_files_ask (const struct options *opts, const char *golden,
                 uint64_t memory, unsigned flags)
{
  struct asking a = { .opts = opts, .flags = flags, .golden.map = -1 };
  struct nbdedup_client *client;
  json_t *documents, *result;

  if (files_helper_check (flags & DRIFT_ADVICE ? "advise" : "files") == -1) {
    fail ("drift: %s", image_error ());
    return NULL;
  }
  client = client_open (opts);
  if (client == NULL)
    return NULL;
  a.client = client;
  documents = ask (&a, client, golden, memory);
  if (documents == NULL)
    fail ("drift: %s", image_error ());
  if (nbdedup_client_close (client) == -1 && documents != NULL) {
    fail ("drift: %s", nbdedup_error ());
    json_decref (documents);
    documents = NULL;
  }
  if (documents == NULL)
    return NULL;
  need_all_args ("drift"); /* or there was no memory for a piece */
  if (golden == NULL)
    return check_memory (json_pack ("{s:o}", "goldens", documents));
  result = json_incref (json_array_get (documents, 0));
  json_decref (documents);
  return result;
}

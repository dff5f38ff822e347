/* SPDX-License-Identifier: BSD-3-Clause */

/* What diverged data belongs to, from the lists of "--files": by cause, by
 * package and by place, of one clone or of all.
 */

#include <config.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "drift-map.h"
#include "drift-report.h"
#include "drift-view.h"
#include "tools.h"

/* A place has a row if it has this part of the bytes. */
#define PLACE_PART 32

#define PACKAGES_SHOWN 10
#define NOTES_SHOWN 10
#define OWNERS_SHOWN 3

/*----------------------------------------------------------------------
 * Sums by name
 */

struct share {
  const char *clone;
  uint64_t bytes;
};

/* The names are the documents'.  Clones come one after the other. */
struct part {
  const char *name;
  uint64_t sibling, unique;
  size_t nr_clones;
  struct share present;            /* of the clone that came last */
  struct share most[OWNERS_SHOWN]; /* of the others, the most first */
  json_t *causes; /* owned; of a place: {cause: bytes}, or NULL */
};

struct parts {
  struct part *p; /* owned */
  size_t nr;
  json_t *index; /* owned; name: number */
};

static void
parts_begin (struct parts *parts)
{
  *parts = (struct parts) { .index = check_memory (json_object ()) };
}

static void
parts_free (struct parts *parts)
{
  size_t i;

  for (i = 0; i < parts->nr; ++i)
    json_decref (parts->p[i].causes);
  free (parts->p);
  json_decref (parts->index);
}

static struct part *
find_part (struct parts *parts, const char *name)
{
  const json_t *number = json_object_get (parts->index, name);
  struct part *part;

  if (number != NULL)
    return &parts->p[json_integer_value (number)];
  json_object_set_new (parts->index, name,
                       view_pack ("I", (json_int_t) parts->nr));
  part = check_memory (array_add (&parts->p, &parts->nr, sizeof *part));
  part->name = name;
  return part;
}

/* Let the present clone be one of the others. */
static void
settle (struct part *part)
{
  struct share share = part->present, swap;
  size_t i;

  for (i = 0; i < OWNERS_SHOWN; ++i)
    if (share.bytes > part->most[i].bytes) {
      swap = part->most[i];
      part->most[i] = share;
      share = swap;
    }
  part->present = (struct share) { NULL, 0 };
}

static struct part *
add_to_part (struct parts *parts, const char *name, const char *clone,
             const json_t *entry)
{
  struct part *part = find_part (parts, name);
  const uint64_t sibling = json_size (entry, "sibling");
  const uint64_t unique = json_size (entry, "unique");

  if (part->present.clone != clone) {
    settle (part);
    part->present.clone = clone;
    part->nr_clones++;
  }
  part->present.bytes += sibling + unique;
  part->sibling += sibling;
  part->unique += unique;
  return part;
}

static uint64_t
bytes_of (const struct part *part)
{
  return part->sibling + part->unique;
}

static int
compare_bytes (const void *pa, const void *pb)
{
  const struct part *a = pa, *b = pb;

  if (bytes_of (a) != bytes_of (b))
    return bytes_of (a) > bytes_of (b) ? -1 : 1;
  return strcmp (a->name, b->name);
}

static int
compare_names (const void *pa, const void *pb)
{
  const struct part *a = pa, *b = pb;

  return strcmp (a->name, b->name);
}

static uint64_t
sum_of (const struct parts *parts)
{
  uint64_t sum = 0;
  size_t i;

  for (i = 0; i < parts->nr; ++i)
    sum += bytes_of (&parts->p[i]);
  return sum;
}

/*----------------------------------------------------------------------
 * Places
 */

static bool
is_tree (const char *path)
{
  return *path == '<' || path[strlen (path) - 1] == '/';
}

static bool
is_in (const char *path, const char *place)
{
  const size_t len = strlen (place);

  return place[len - 1] == '/' ? strncmp (path, place, len) == 0
                               : strcmp (path, place) == 0;
}

/* Remove what has too few bytes once what is chosen below it has been taken
 * away, so that the rest are apart, and as deep as they can be.
 */
static void
choose_places (struct parts *places, uint64_t least)
{
  const size_t nr = places->nr;
  size_t *parent = check_memory (calloc (nr + 1, sizeof *parent));
  uint64_t *taken = check_memory (calloc (nr + 1, sizeof *taken));
  size_t i, n = 0, above = nr; /* nr: none */

  if (nr > 0)
    qsort (places->p, nr, sizeof *places->p, compare_names);
  for (i = 0; i < nr; ++i) {
    while (above != nr && !is_in (places->p[i].name, places->p[above].name))
      above = parent[above];
    parent[i] = above;
    above = i;
  }
  for (i = nr; i-- > 0;) {
    const uint64_t all = bytes_of (&places->p[i]);

    if (all < taken[i] + least)
      places->p[i].name = NULL;
    taken[parent[i]] += places->p[i].name == NULL ? taken[i] : all;
  }
  for (i = 0; i < nr; ++i)
    if (places->p[i].name != NULL)
      places->p[n++] = places->p[i];
  places->nr = n;
  free (parent);
  free (taken);
}

/* Of the places that contain the path, the last in order is the deepest. */
static const char *
find_place (const struct parts *places, const char *path)
{
  size_t i;

  for (i = places->nr; i-- > 0;)
    if (is_in (path, places->p[i].name))
      return places->p[i].name;
  return "elsewhere";
}

static void
add_cause (struct part *part, const json_t *entry)
{
  const char *cause = json_text (entry, "cause");

  if (part->causes == NULL)
    part->causes = check_memory (json_object ());
  json_object_set_new (part->causes, cause,
                       view_pack ("I",
                                  (json_int_t) (json_size (part->causes,
                                                           cause) +
                                                json_size (entry, "sibling") +
                                                json_size (entry, "unique"))));
}

/* The cause of most of a place's bytes; NULL: it has none. */
static const char *
main_cause (const struct part *part)
{
  const char *cause, *most = NULL;
  json_t *bytes;

  json_object_foreach (part->causes, cause, bytes)
    if (most == NULL ||
        json_integer_value (bytes) >
          (json_int_t) json_size (part->causes, most))
      most = cause;
  return most;
}

/* Into an empty 'places': of several clones only directories. */
static void
collect_places (struct parts *places, const json_t *clones, uint64_t all)
{
  const bool is_one = json_array_size (clones) == 1;
  struct parts trees;
  json_t *clone, *entry;
  size_t i, j;

  parts_begin (&trees);
  json_array_foreach (clones, i, clone)
    json_array_foreach (json_object_get (clone, "files"), j, entry)
      if (is_one || is_tree (json_text (entry, "path")))
        add_to_part (&trees, json_text (entry, "path"),
                     json_text (clone, "name"), entry);
  choose_places (&trees, all / PLACE_PART + 1);
  json_array_foreach (clones, i, clone)
    json_array_foreach (json_object_get (clone, "files"), j, entry) {
      const char *path = json_text (entry, "path");

      if (*path == '<' || !is_tree (path))
        add_cause (add_to_part (places, find_place (&trees, path),
                                json_text (clone, "name"), entry),
                   entry);
    }
  parts_free (&trees);
}

/*----------------------------------------------------------------------
 * Views
 */

/* Which clones have most of it. */
static json_t *
shares_view (const struct part *part)
{
  json_t *views = view_pack ("[]");
  size_t i;

  for (i = 0; i < OWNERS_SHOWN && part->most[i].clone != NULL; ++i)
    json_array_append_new (views,
                           view_pack ("{s:s, s:o, s:b}", "clone",
                                      part->most[i].clone, "bytes",
                                      view_bytes (part->most[i].bytes), "first",
                                      i == 0));
  return views;
}

static json_t *
part_view (const struct part *part, const struct part *first, uint64_t all)
{
  const uint64_t most = bytes_of (first);
  char percent[PERCENT_MAX];

  return view_pack (
    "{s:s, s:o, s:o, s:o, s:b, s:b, s:b, s:s, s:o, s:o, s:I, s:b, s:b, s:o,"
    " s:b, s:s*, s:b}",
    "what", part->name, "total", view_bytes (bytes_of (part)), "unique_bytes",
    view_bytes (part->unique), "sibling_bytes", view_bytes (part->sibling),
    "has_unique", part->unique > 0, "has_sibling", part->sibling > 0,
    "has_both", part->unique > 0 && part->sibling > 0, "percent",
    drift_percent (bytes_of (part), all, percent), "unique_width",
    view_width (part->unique, most), "sibling_width",
    view_width (part->sibling, most), "nr_having", (json_int_t) part->nr_clones,
    "one_has", part->nr_clones == 1, "later", part != first, "shares",
    shares_view (part), "more_have", part->nr_clones > OWNERS_SHOWN,
    "main_cause", main_cause (part), "only_cause",
    json_object_size (part->causes) == 1);
}

/* The first parts, the most bytes first; frees them. */
static json_t *
parts_view (struct parts *parts, uint64_t all, size_t shown)
{
  json_t *views = view_pack ("[]");
  size_t i;

  for (i = 0; i < parts->nr; ++i)
    settle (&parts->p[i]);
  if (parts->nr > 0)
    qsort (parts->p, parts->nr, sizeof *parts->p, compare_bytes);
  for (i = 0; i < parts->nr && i < shown; ++i)
    json_array_append_new (views, part_view (&parts->p[i], &parts->p[0], all));
  parts_free (parts);
  return views;
}

static void
collect (struct parts *parts, const json_t *clones, const char *list,
         const char *key)
{
  json_t *clone, *entry;
  size_t i, j;

  parts_begin (parts);
  json_array_foreach (clones, i, clone)
    json_array_foreach (json_object_get (clone, list), j, entry)
      add_to_part (parts, json_text (entry, key), json_text (clone, "name"),
                   entry);
}

/* Each note once, with the number of clones that have it. */
static json_t *
notes_view (const json_t *clones)
{
  json_t *views = view_pack ("[]"), *clone, *note;
  struct parts parts;
  size_t i, j;

  parts_begin (&parts);
  json_array_foreach (clones, i, clone)
    json_array_foreach (json_object_get (clone, "notes"), j, note)
      add_to_part (&parts, json_string_value (note), json_text (clone, "name"),
                   NULL);
  for (i = 0; i < parts.nr && i < NOTES_SHOWN; ++i)
    json_array_append_new (views,
                           view_pack ("{s:s, s:I, s:b}", "note",
                                      parts.p[i].name, "nr_having",
                                      (json_int_t) parts.p[i].nr_clones,
                                      "one_has", parts.p[i].nr_clones == 1));
  parts_free (&parts);
  return views;
}

/* Of these clones together. */
static json_t *
why_view (const json_t *clones)
{
  struct parts causes, packages, places;
  json_t *view;
  uint64_t all;
  size_t nr_packages;

  collect (&causes, clones, "causes", "cause");
  collect (&packages, clones, "packages", "package");
  all = sum_of (&causes);
  parts_begin (&places);
  collect_places (&places, clones, all);
  nr_packages = packages.nr;
  view = view_pack ("{s:o, s:o, s:o, s:o, s:o, s:b, s:b, s:I}", "all",
                    view_bytes (all), "causes",
                    parts_view (&causes, all, SIZE_MAX), "packages",
                    parts_view (&packages, all, PACKAGES_SHOWN), "places",
                    parts_view (&places, all, SIZE_MAX), "notes",
                    notes_view (clones), "has_packages", nr_packages > 0,
                    "has_any", all > 0, "packages_left",
                    (json_int_t) (nr_packages > PACKAGES_SHOWN
                                    ? nr_packages - PACKAGES_SHOWN
                                    : 0));
  json_object_set_new (view, "has_notes",
                       json_boolean (json_array_size (
                                       json_object_get (view, "notes")) > 0));
  return view;
}

static json_t *
reason_view (const json_t *document, json_t *clone, size_t i, const char *nth)
{
  json_t *one = view_pack ("[O]", clone), *view = why_view (one);
  const json_t *map = json_object_get (clone, "map");
  struct drift_clone figures;
  char *prefix = make_string ("m%s-%zu", nth, i + 1);

  drift_clone_read (document, clone, &figures);
  json_object_update_new (view,
                          view_pack ("{s:s, s:b, s:o, s:o, s:o*}", "name",
                                     json_text (clone, "name"), "first", i == 0,
                                     "clone_unique",
                                     view_bytes (figures.class[CLASS_UNIQUE]),
                                     "clone_sibling",
                                     view_bytes (figures.class[CLASS_SIBLING]),
                                     "map",
                                     map == NULL
                                       ? NULL
                                       : drift_view_map (map, prefix)));
  free (prefix);
  json_decref (one);
  return view;
}

void
drift_view_why (json_t *view, const json_t *document)
{
  json_t *sorted = drift_by_divergence (document), *clone;
  json_t *reasons = view_pack ("[]");
  char *nth = make_string ("%" JSON_INTEGER_FORMAT,
                           json_integer_value (json_object_get (view, "nth")));
  size_t i;

  if (json_object_get (json_array_get (sorted, 0), "files") != NULL) {
    json_array_foreach (sorted, i, clone)
      if (i < CLONES_MAPPED)
        json_array_append_new (reasons, reason_view (document, clone, i, nth));
    json_object_set_new (view, "why", why_view (sorted));
    json_object_set (view, "reasons", reasons);
  }
  json_decref (reasons);
  json_decref (sorted);
  free (nth);
}

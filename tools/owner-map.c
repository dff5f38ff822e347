/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "owner-map.h"
#include "tools.h"

/* 96 MiB; a clone of 20 GiB with 5 % diverged has 64 Ki blocks of 16 KiB. */
#define EXTENTS_MAX (UINT32_C (4) << 20)

struct extent {
  uint64_t offset, len;
  uint64_t owner; /* index */
};

struct owner_map {
  uint64_t size;
  struct owner *owners; /* owned; the first one has the rest */
  size_t nr_owners;
  struct extent *extents; /* owned; sorted by owner_map_end */
  size_t nr_extents;
};

static void
add_owner (struct owner_map *m, char *path)
{
  struct owner *owner = check_memory (
    array_add (&m->owners, &m->nr_owners, sizeof *owner));

  owner->path = path;
}

struct owner_map *
owner_map_new (uint64_t size, const char *rest)
{
  struct owner_map *m = check_memory (calloc (1, sizeof *m));

  m->size = size;
  add_owner (m, copy_string (rest));
  return m;
}

static void
forget (struct owner_map *m)
{
  size_t i;

  for (i = 0; i < m->nr_owners; ++i)
    free (m->owners[i].path);
  free (m->owners);
  free (m->extents);
  m->owners = NULL;
  m->extents = NULL;
  m->nr_owners = m->nr_extents = 0;
}

void
owner_map_free (struct owner_map *m)
{
  if (m == NULL)
    return;
  forget (m);
  free (m);
}

void
owner_map_clear (struct owner_map *m, const char *rest)
{
  forget (m);
  add_owner (m, copy_string (rest));
}

/* The length of the UTF-8 character at 's', if it may be printed; else 0. */
static size_t
character_len (const unsigned char *s, size_t len)
{
  const size_t n = *s < 0x80  ? 1
    : *s >= 0xc2 && *s < 0xe0 ? 2
    : *s >= 0xe0 && *s < 0xf0 ? 3
    : *s >= 0xf0 && *s < 0xf5 ? 4
                              : 0;
  size_t i;

  if (n == 0 || n > len || *s < 0x20 || *s == 0x7f)
    return 0;
  for (i = 1; i < n; ++i)
    if ((s[i] & 0xc0) != 0x80)
      return 0;
  /* Overlong ones, surrogates, beyond Unicode, and the controls U+0080 ... */
  if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
      (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f) ||
      (s[0] == 0xc2 && s[1] < 0xa0))
    return 0;
  /* ... and those that change the direction of text. */
  if (s[0] == 0xe2 &&
      ((s[1] == 0x80 && s[2] >= 0x8e) ||
       (s[1] == 0x81 && s[2] >= 0xa6 && s[2] <= 0xa9)) &&
      !(s[1] == 0x80 && s[2] >= 0x90 && s[2] <= 0xa7))
    return 0;
  return n;
}

char *
owner_clean_text (const char *text, size_t len)
{
  char *clean = check_memory (malloc (4 * len + 1)), *p = clean;
  size_t i, n;

  for (i = 0; i < len; i += n) {
    n = character_len ((const unsigned char *) text + i, len - i);
    if (n > 0) {
      memcpy (p, text + i, n);
      p += n;
      continue;
    }
    p += sprintf (p, "\\x%02x", (unsigned char) text[i]);
    n = 1;
  }
  *p = '\0';
  return clean;
}

void
owner_map_owner (struct owner_map *m, const char *path, size_t len)
{
  char *clean = owner_clean_text (path, len), *escaped;
  const size_t end = strlen (clean);

  if (end > 0 && clean[end - 1] == '/') {
    escaped = make_string ("%.*s\\x2f", (int) end - 1, clean);
    free (clean);
    clean = escaped;
  }
  add_owner (m, clean);
}

int
owner_map_extent (struct owner_map *m, uint64_t offset, uint64_t len)
{
  struct extent *e;

  if (m->nr_owners < 2 || len == 0 || offset >= m->size ||
      len > m->size - offset || m->nr_extents == EXTENTS_MAX)
    return -1;
  e = check_memory (array_add (&m->extents, &m->nr_extents, sizeof *e));
  *e = (struct extent) { offset, len, m->nr_owners - 1 };
  return 0;
}

static int
compare_extents (const void *a, const void *b)
{
  const struct extent *x = a, *y = b;

  return x->offset < y->offset ? -1 : x->offset > y->offset;
}

int
owner_map_end (struct owner_map *m)
{
  size_t i;

  if (m->nr_extents > 0)
    qsort (m->extents, m->nr_extents, sizeof *m->extents, compare_extents);
  for (i = 1; i < m->nr_extents; ++i)
    if (m->extents[i].offset < m->extents[i - 1].offset + m->extents[i - 1].len)
      return -1;
  return 0;
}

struct nbdedup_range *
owner_map_ranges (const struct owner_map *m, bool (*wanted) (const char *path),
                  size_t *nr)
{
  struct nbdedup_range *ranges = check_memory (
    calloc (m->nr_extents + 1, sizeof *ranges));
  bool *is_wanted = check_memory (calloc (m->nr_owners + 1, 1));
  const struct extent *e;
  size_t i, n = 0;

  for (i = 0; i < m->nr_owners; ++i)
    is_wanted[i] = wanted (m->owners[i].path);
  for (i = 0; i < m->nr_extents; ++i) {
    e = &m->extents[i];
    if (!is_wanted[e->owner])
      continue;
    if (n > 0 && ranges[n - 1].offset + ranges[n - 1].len == e->offset)
      ranges[n - 1].len += e->len;
    else
      ranges[n++] = (struct nbdedup_range) { e->offset, e->len };
  }
  free (is_wanted);
  *nr = n;
  return ranges;
}

static void
add_bytes (struct owner_map *m, uint64_t owner, uint64_t len, bool unique)
{
  assert (owner < m->nr_owners);
  *(unique ? &m->owners[owner].unique : &m->owners[owner].sibling) += len;
}

void
owner_map_count (struct owner_map *m, uint64_t offset, uint64_t len,
                 bool unique)
{
  const uint64_t end = offset + len;
  size_t i = array_position (m->nr_extents, k,
                             m->extents[k].offset + m->extents[k].len <=
                               offset);
  uint64_t next;

  while (offset < end) {
    if (i == m->nr_extents || m->extents[i].offset >= end) {
      add_bytes (m, 0, end - offset, unique);
      return;
    }
    if (m->extents[i].offset > offset) {
      add_bytes (m, 0, m->extents[i].offset - offset, unique);
      offset = m->extents[i].offset;
    }
    next = m->extents[i].offset + m->extents[i].len;
    if (next > end)
      next = end;
    add_bytes (m, m->extents[i].owner, next - offset, unique);
    offset = next;
    i++;
  }
}

static int
compare_owners (const void *a, const void *b)
{
  const struct owner *x = a, *y = b;

  return strcmp (x->path, y->path);
}

const struct owner *
owner_map_owners (struct owner_map *m, size_t *nr)
{
  struct owner *o = m->owners;
  size_t i, n = 0;

  free (m->extents); /* which have indices */
  m->extents = NULL;
  m->nr_extents = 0;
  if (m->nr_owners > 0)
    qsort (o, m->nr_owners, sizeof *o, compare_owners);
  for (i = 0; i < m->nr_owners; ++i)
    if (o[i].sibling == 0 && o[i].unique == 0)
      free (o[i].path);
    else if (n > 0 && strcmp (o[n - 1].path, o[i].path) == 0) {
      o[n - 1].sibling += o[i].sibling;
      o[n - 1].unique += o[i].unique;
      free (o[i].path);
    }
    else
      o[n++] = o[i];
  m->nr_owners = *nr = n;
  return o;
}

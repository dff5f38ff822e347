/* SPDX-License-Identifier: BSD-3-Clause */

/* Asks the helper nbdedup-files, confined (confine.h), which files own which
 * parts of a clone.  What it says is not trusted: it parses a guest's data.
 *
 * Each clone has a helper of its own, so that none can mislead it about
 * another.  What clones inherit of their golden image need not be parsed again
 * for each: a helper for the golden image makes a map of its files
 * (files/golden-map.h), which the clones' helpers read.
 */

#ifndef NBDEDUP_FILES_HELPER_H
#define NBDEDUP_FILES_HELPER_H

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "nbdedup.h"
#include "files/protocol.h"
#include "owner-map.h"

/* A list of dpkg's: the files of a package, one a line. */
struct package_list {
  char *name, *files; /* owned */
  size_t len, cap;
};

struct files_answer {
  struct owner_map *map;         /* not owned */
  struct package_list *packages; /* owned */
  size_t nr_packages;
  json_t *notes; /* owned; an array of lines */
};

extern void files_answer_free (struct files_answer *answer);

/* The map of a golden image, and its packages. */
struct golden_files {
  int map; /* owned descriptor; -1: there is none */
  struct files_answer answer;
};

extern void golden_files_free (struct golden_files *golden);

struct byte_ranges {
  struct byte_range *p; /* ascending, apart */
  size_t nr;
};

struct files_question {
  struct nbdedup_frozen *frozen; /* not owned */
  uint64_t clone, size;
  struct byte_ranges ranges;         /* not owned: what has no owner yet */
  const struct golden_files *golden; /* not owned; NULL: no map is known */
  struct byte_ranges changed; /* not owned: what is not the golden image's */
};

/* -1 unless the helper, which --OPTION needs, is there: image_error. */
extern int files_helper_check (const char *option);

/* 0: the map is complete; 1: the helper has failed, or what it said is not
 * valid: image_error says why, and the map must be cleared; -1: the pool has
 * failed, the command was interrupted, or the helper cannot be confined:
 * image_error.
 */
extern int files_helper_ask (const struct files_question *question,
                             struct files_answer *answer);

/* Map the golden image, of 'size' bytes.  If the helper fails, or the map is
 * too large, there is none.  -1: as above.
 */
extern int files_helper_map (struct nbdedup_frozen *frozen, uint64_t size,
                             struct golden_files *golden);

#endif /* NBDEDUP_FILES_HELPER_H */

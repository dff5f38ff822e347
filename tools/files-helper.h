/* SPDX-License-Identifier: BSD-3-Clause */

/* Asks the helper nbdedup-files, confined (confine.h), which files own which
 * parts of a clone.  What it says is not trusted: it parses a guest's data.
 */

#ifndef NBDEDUP_FILES_HELPER_H
#define NBDEDUP_FILES_HELPER_H

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "nbdedup.h"
#include "owner-map.h"

/* A list of dpkg's: the files of a package, one a line. */
struct package_list {
  char *name, *files;           /* owned */
  size_t len, cap;
};

struct byte_range {
  uint64_t offset, len;
};

struct files_question {
  struct nbdedup_frozen *frozen;        /* not owned */
  uint64_t clone, size;
  const struct byte_range *ranges;      /* ascending, apart; not owned */
  size_t nr_ranges;
};

struct files_answer {
  struct owner_map *map;        /* not owned */
  struct package_list *packages;        /* owned */
  size_t nr_packages;
  json_t *notes;                /* owned; an array of lines */
};

extern void files_answer_free (struct files_answer *answer);

/* -1 unless the helper is there: image_error. */
extern int files_helper_check (void);

/* 0: the map is complete; 1: the helper has failed, or what it said is not
 * valid: image_error says why, and the map must be cleared; -1: the pool has
 * failed, the command was interrupted, or the helper cannot be confined:
 * image_error.
 */
extern int files_helper_ask (const struct files_question *question,
                             struct files_answer *answer);

#endif /* NBDEDUP_FILES_HELPER_H */

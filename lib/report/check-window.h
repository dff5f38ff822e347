/* SPDX-License-Identifier: BSD-3-Clause */

/* Shared by check.c (what is checked, and the result) and check-window.c (the
 * records of a window, and what maps, segments and copies say of them).
 */

#ifndef NBDEDUP_CHECK_WINDOW_H
#define NBDEDUP_CHECK_WINDOW_H

#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "format/segment.h"
#include "meta/meta-index.h"
#include "meta/meta.h"
#include "nbdedup.h"

struct window_record {
  struct pointer ptr;
  uint64_t refcount, found;
  uint32_t lsize;
  bool is_copy;
};

struct check {
  struct nbdedup_pool *pool;
  struct meta_conn *c;
  struct meta_state state;
  uint64_t nr_errors;
  json_t *problems; /* owned */
  json_t *repairs;  /* of the check before the repair; or NULL */

  struct window_record *window; /* owned; ascending by address */
  size_t nr, max;
  uint64_t first_addr; /* of the window's first group */
  uint64_t next_group; /* first group past the window */
  bool more;           /* there are records past the window */

  uint64_t records, record_bytes, stored_sectors; /* with references */
  uint64_t copy_sectors;                          /* of stored_sectors */
  struct segment_map *map; /* of a segment, by its records */
  uint16_t *slots;         /* owned; the records' slots in summaries */
  size_t nr_slots;

  char why[512]; /* it could not begin to read pool.db; "": it could */
  struct recount *recount; /* owned */
  struct layer_count {
    uint64_t id, branch, seq, pointers, found;
    uint64_t end; /* no pointers may be past it: its size */
    uint32_t block_size;
  } *layers; /* owned; ascending by branch, seq */
  size_t nr_layers;
  bool first_window;

  uint64_t index_entries, stale_entries;
  uint64_t good_entries, indexed;  /* entries with a record; the reverse */
  uint64_t unreferenced, in_limbo; /* records without references */
  struct blob row;

  nbdedup_progress_fn *progress;
  void *opaque;
  uint64_t done;
};

/* Add a problem to the result: "WHERE: WHAT". */
extern void check_problem (struct check *ck, const char *fmt, ...)
  __attribute__ ((format (printf, 2, 3)));

/* Did the last failure have a cause outside of the pool, such as a lack of
 * memory?
 */
static inline bool
check_is_no_problem (void)
{
  return errno != EIO;
}

/* Report progress now and then.  -1: the caller wants to stop. */
extern int check_step (struct check *ck);

/* For meta_layer_scan: add a layer to ck->layers. */
extern int check_collect_layer (void *opaque, const struct meta_layer *ml);
/* For qsort. */
extern int check_compare_layers (const void *a, const void *b);
/* Once ck->layers is sorted: how far each may reach. */
extern void check_set_ends (struct check *ck);

/* Count the next window of records, and all pointers into it. */
extern int check_window (struct check *ck);
/* After the last window: compare the last segment with its row. */
extern int check_end_segment (struct check *ck);

/* 1; 0: there is no such record; -1. */
extern int check_get_record (struct check *ck, uint64_t addr, struct record *r);

#endif /* NBDEDUP_CHECK_WINDOW_H */

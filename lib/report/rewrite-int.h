/* SPDX-License-Identifier: BSD-3-Clause */

/* Shared by rewrite.c (the passes and their batches), rewrite-collect.c (the
 * records of a volume) and rewrite-record.c (what becomes of one).
 */

#ifndef NBDEDUP_REWRITE_INT_H
#define NBDEDUP_REWRITE_INT_H

#include "core/moves.h"
#include "data/verify.h"
#include "disk/sorter.h"
#include "format/codec.h"
#include "meta/meta.h"
#include "report/index-flag.h"
#include "report/mover.h"
#include "report/pace.h"
#include "report/rewrite.h"

struct rewrite {
  struct nbdedup_pool *pool;
  const struct rewrite_args *args;
  nbdedup_progress_fn *progress;
  void *opaque;
  struct compression compression;
  uint64_t volume_id;
  bool is_snapshot; /* then the id is a snapshot's */
  struct pace pace;

  /* The pass: */
  unsigned pass, nr_passes;
  struct sorter *addrs; /* owned; addresses, some several times */
  uint64_t done;        /* of them */
  uint64_t addr;        /* the next one; UINT64_MAX: the end */

  /* The batch: */
  struct moves_batch batch;
  struct move *sent; /* owned; what the folds have of it */
  size_t nr_sent;
  uint64_t new_bytes;
  struct mover mover;

  /* To enter the index. */
  struct record_name *names; /* owned */
  size_t nr_names;
  struct index_entry *ops; /* owned; of one fold */
  size_t nr_ops;

  /* Scratch. */
  struct verifier v;
  uint8_t *content; /* owned; BLOCK_SIZE_MAX */
  struct blob row, fresh, index;
  uint64_t group; /* of 'row'; UINT64_MAX: none */

  /* The result. */
  uint64_t records, rewritten, joined, indexed, damaged, over_quota;
  uint64_t before_bytes, after_bytes;
};

/* Report the progress; -1 (EINTR): stop. */
extern int rewrite_go_on (struct rewrite *w);

/* rewrite-collect.c: begin a pass with the first address. */
extern int rewrite_collect (struct rewrite *w);
/* Go on to the next one. */
extern int rewrite_next (struct rewrite *w);
/* Find the volume or snapshot; under pool->admin.  NULL: ENOENT. */
extern struct volume *rewrite_find (struct rewrite *w);

/* rewrite-record.c: the passes' functions for the record at w->addr.  0; 1: the
 * batch must go first; -1.
 */
extern int rewrite_index_record (struct rewrite *w, const struct record *r);
extern int rewrite_join_record (struct rewrite *w, const struct record *r);
extern int rewrite_form_record (struct rewrite *w, const struct record *r);

/* The record at 'addr', with references, that is no copy: 1, 0, -1.  It may be
 * a little out of date.
 */
extern int rewrite_look (struct rewrite *w, uint64_t addr, struct record *r);

#endif /* NBDEDUP_REWRITE_INT_H */

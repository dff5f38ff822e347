/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <string.h>

#include "drift/advise-int.h"
#include "meta/meta-index.h"
#include "meta/meta.h"

/* Does a record of the run have this content?  1 and that; 0; -1. */
static int
find_in_run (struct view *v, unsigned run, const struct digest *digest,
             uint32_t lsize, struct blob *index, struct blob *row,
             struct record *record)
{
  struct index_entry e;
  size_t off;
  int r = meta_index_find (v->c, run, digest_prefix (digest), index);

  if (r != 1)
    return r;
  for (off = 0; off < index->len; off += INDEX_ENTRY_LEN) {
    index_entry_unpack (index->p + off, &e);
    r = e.removed ? 0 : meta_record_find (v->c, e.addr, row, record);
    if (r == -1)
      return -1;
    if (r == 1 && record->lsize == lsize &&
        memcmp (&record->digest, digest, sizeof *digest) == 0)
      return 1;
  }
  return 0;
}

int
advise_find_content (struct view *v, const struct digest *digest,
                     uint32_t lsize, struct record *record)
{
  struct blob index = { NULL }, row = { NULL };
  struct index_runs runs;
  unsigned run;
  int r = meta_index_runs (v->c, &runs);

  for (run = 0; run < INDEX_RUNS && r == 0; ++run)
    if (index_runs_has (&runs, run))
      r = find_in_run (v, run, digest, lsize, &index, &row, record);
  blob_free (&index);
  blob_free (&row);
  return r;
}

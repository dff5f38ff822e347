/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <errno.h>
#include <stdlib.h>

#include "base/error.h"
#include "drift/advise-int.h"

struct advise {
  struct view *v;                    /* not owned */
  const struct drift_blocks *blocks; /* not owned */
  struct advise_source source;
  uint64_t memory_bytes;
  struct drift_progress *progress; /* not owned */
  struct zeroes *zeroes;           /* owned */
  struct bases *bases;             /* owned */
  struct again *again;             /* owned */

  /* The join of all references: of the record at hand */
  struct record record;
  bool has_record, is_shown;
  uint32_t shown_by;                  /* a party, if is_shown */
  uint64_t drops[WHO_PROMOTE + 1];    /* references, by party */
  uint64_t freed_by[WHO_PROMOTE + 1]; /* sectors, of all records */
};

struct advise *
advise_new (struct view *v, const struct drift_blocks *blocks,
            const struct advise_source *source, uint64_t memory_bytes)
{
  struct advise *a = calloc (1, sizeof *a);

  if (a == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  a->v = v;
  a->blocks = blocks;
  a->source = *source;
  a->memory_bytes = memory_bytes;
  a->zeroes = zeroes_new (v, blocks, &a->source, memory_bytes / 4);
  if (a->zeroes)
    return a;
  advise_free (a);
  return NULL;
}

void
advise_free (struct advise *a)
{
  if (a == NULL)
    return;
  zeroes_free (a->zeroes);
  bases_free (a->bases);
  again_free (a->again);
  free (a);
}

int
advise_zero (struct advise *a, unsigned set, uint64_t clone, uint64_t offset,
             uint64_t len)
{
  return zeroes_add (a->zeroes, set, clone, offset, len);
}

/*----------------------------------------------------------------------
 * All references
 */

static int
end_record (struct advise *a)
{
  const uint32_t sectors = sectors_of (a->record.ptr.psize, a->v->sector_bytes);
  unsigned who;

  if (!a->has_record)
    return 0;
  for (who = WHO_REBASE; who <= WHO_PROMOTE; ++who)
    if (!a->is_shown && a->drops[who] > 0 &&
        a->drops[who] + a->drops[WHO_BACKGROUND] >= a->record.refcount)
      a->freed_by[who] += sectors;
  return a->is_shown || a->shown_by == WHO_GOLDEN
    ? again_add (a->again, &a->record, a->shown_by)
    : 0;
}

static void
begin_record (struct advise *a, const struct record *record)
{
  unsigned who;

  a->has_record = true;
  a->record = *record;
  a->is_shown = false;
  a->shown_by = WHO_BACKGROUND;
  for (who = 0; who <= WHO_PROMOTE; ++who)
    a->drops[who] = 0;
}

static int
on_reference (void *opaque, const struct record *record, uint32_t who,
              uint64_t block)
{
  struct advise *a = opaque;

  (void) block;
  if (!a->has_record || a->record.ptr.addr != record->ptr.addr) {
    if (end_record (a) == -1)
      return -1;
    begin_record (a, record);
  }
  if (who <= WHO_PROMOTE) {
    a->drops[who]++;
    return 0;
  }
  a->shown_by = who; /* the golden image comes before clones */
  a->is_shown |= who != WHO_GOLDEN;
  return 0;
}

static int
step (void *opaque, uint64_t done)
{
  struct advise *a = opaque;

  (void) done;
  return drift_progress (a->progress, a->progress->done);
}

/* Once a clone shows a record its new layer, or its new golden image, refers
 * to that, whatever else is dropped.
 */
static int
run_all (struct advise *a)
{
  const uint64_t part = a->memory_bytes / 4;
  struct record_join *join = record_join_new (a->v, part);
  int r = -1;

  a->bases = bases_new (a->v, a->blocks, part);
  a->again = again_new (a->v, a->blocks, part);
  if (join && a->bases && a->again &&
      bases_run (a->bases, join, a->progress) == 0 &&
      record_join_run (join, NULL, WHO_CLONES + a->blocks->nr, on_reference,
                       step, a) == 0 &&
      end_record (a) == 0)
    r = again_run (a->again, &a->source);
  record_join_free (join);
  return r;
}

json_t *
advise_run (struct advise *a, struct drift_progress *progress)
{
  const uint32_t sector = a->v->sector_bytes;
  json_t *result;

  a->progress = progress;
  if (zeroes_run (a->zeroes, progress) == -1 || run_all (a) == -1)
    return NULL;
  result = json_pack ("{s:o, s:I, s:o, s:o, s:o}", "sets",
                      zeroes_json (a->zeroes), "own_blocks",
                      (json_int_t) bases_own_blocks (a->bases), "rebase",
                      bases_json (a->bases, WHO_REBASE,
                                  a->freed_by[WHO_REBASE] * sector),
                      "promote",
                      bases_json (a->bases, WHO_PROMOTE,
                                  a->freed_by[WHO_PROMOTE] * sector),
                      "rewrite", again_json (a->again));
  return result ? result : nbdedup_fail_null (ENOMEM, "no memory");
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* Shared by advise.c (the passes), advise-zero.c (bytes to give back),
 * advise-base.c (next golden images), advise-rewrite.c (storing again) and
 * advise-content.c (the hash index).
 */

#ifndef NBDEDUP_ADVISE_INT_H
#define NBDEDUP_ADVISE_INT_H

#include <stdbool.h>
#include <stdint.h>

#include "drift/advise.h"
#include "drift/record-join.h"
#include "drift/view.h"

/* Numbers of parties in the join of all references (advise.c): the background
 * work; what following one piece of advice drops; the golden image, where no
 * clone inherits from it, and where one does; then the clones.
 */
enum {
  WHO_BACKGROUND,
  WHO_REBASE,
  WHO_PROMOTE,
  WHO_GOLDEN,
  WHO_INHERITED,
  WHO_CLONES,
};

/*----------------------------------------------------------------------
 * advise-content.c
 */

/* Has the hash index a record with this content (the digest of which includes
 * the domain)?  1 and that; 0; -1.
 */
extern int advise_find_content (struct view *v, const struct digest *digest,
                                uint32_t lsize, struct record *record);

/*----------------------------------------------------------------------
 * advise-zero.c
 */

struct zeroes;

/* 'v', 'blocks' and 'source' outlive it. */
extern struct zeroes *
zeroes_new (struct view *v, const struct drift_blocks *blocks,
            const struct advise_source *source, uint64_t memory_bytes);
extern void zeroes_free (struct zeroes *z);
/* As advise_zero. */
extern int zeroes_add (struct zeroes *z, unsigned set, uint64_t clone,
                       uint64_t offset, uint64_t len);
extern int zeroes_run (struct zeroes *z, struct drift_progress *progress);
extern json_t *zeroes_json (const struct zeroes *z);

/*----------------------------------------------------------------------
 * advise-base.c
 */

struct bases;

/* 'v' and 'blocks' outlive it. */
extern struct bases *bases_new (struct view *v,
                                const struct drift_blocks *blocks,
                                uint64_t memory_bytes);
extern void bases_free (struct bases *b);
/* Compare all candidates.  Adds the contents of the golden image and its clones
 * to 'join', as parties WHO_GOLDEN ..., and what following the best advice
 * would drop.
 */
extern int bases_run (struct bases *b, struct record_join *join,
                      struct drift_progress *progress);
/* Of all clones now. */
extern uint64_t bases_own_blocks (const struct bases *b);
/* The best one for WHO_REBASE or WHO_PROMOTE; null: there is none.  'freed' is
 * that party's.
 */
extern json_t *
bases_json (const struct bases *b, unsigned who, uint64_t freed_bytes);

/*----------------------------------------------------------------------
 * advise-rewrite.c
 */

struct again;

extern struct again *again_new (struct view *v,
                                const struct drift_blocks *blocks,
                                uint64_t memory_bytes);
extern void again_free (struct again *g);
/* A record that party 'who' shows (WHO_GOLDEN ...), each once. */
extern int
again_add (struct again *g, const struct record *record, uint32_t who);
extern int again_run (struct again *g, const struct advise_source *source);
extern json_t *again_json (const struct again *g);

#endif /* NBDEDUP_ADVISE_INT_H */

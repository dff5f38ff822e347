/* SPDX-License-Identifier: BSD-3-Clause */

/* For reading only: chooses one of the two copies of pool.db, and a WAL,
 * without changing any (meta-pair.h).
 */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "meta/meta-pair-int.h"

/* True if the WAL of side i needs no repair; the side matches the choice. */
static bool
has_whole_wal (const struct pair *p, int i, const struct choice *c)
{
  return c->log == -1 || p->logs[c->log].chain.bad[i] == 0;
}

/* Returns the side to read; *stand_in is the side for its damaged pages; -1:
 * none.  One side at least can be read, or pair_choose had chosen none.
 */
static int
choose_side (const struct pair *p, const struct choice *c, int *stand_in)
{
  bool can[2], has[2];
  int i, side;

  for (i = FIRST; i <= SECOND; ++i) {
    has[i] = pair_is_of_same_moment (p, i, c);
    can[i] = has[i] && p->sides[i].header;
  }
  /* Only the WAL has page 1. */
  if (!can[FIRST] && !can[SECOND])
    can[c->side] = true;
  side = can[FIRST] &&
      (has_whole_wal (p, FIRST, c) || !can[SECOND] ||
       !has_whole_wal (p, SECOND, c))
    ? FIRST
    : SECOND;
  *stand_in = has[!side] ? !side : -1;
  return side;
}

/* In memory, assemble the WAL of side i with the frames that only the other WAL
 * has: a loss of power may leave the last commit torn in both.  Returns a file
 * descriptor.
 */
static int
merge_wals (const struct pair *p, int i, int k)
{
  int fd = memfd_create ("nbdedup-wal", MFD_CLOEXEC), fds[2];

  fds[i] = fd;
  fds[!i] = p->fds[!i];
  if (fd == -1 || (p->fds[i] != -1 && pair_copy_bytes (p->fds[i], fd) == -1) ||
      cksum_chain_repair (fds, (unsigned) i, &p->logs[k].chain) == -1) {
    nbdedup_fail (errno == ENOMEM || errno == ENOSPC ? ENOMEM : EIO,
                  "%s: cannot be merged with its copy: %s", p->sides[i].wal,
                  strerror (errno));
    if (fd != -1)
      close (fd);
    return -1;
  }
  return fd;
}

/* Decide what to open: the two sides, and the choice except for its paths. */
static int
decide_readonly (struct pair *p, const struct meta_mark *mark, bool force,
                 int *side, int *stand_in, struct meta_pair_choice *choice)
{
  const struct side *first = &p->sides[FIRST];
  struct choice c;
  int r;

  *side = FIRST;
  *stand_in = -1;
  r = pair_choose (p, mark, &c);
  if (r != 0)
    return r == 1 ? 0 : -1;
  if (c.side == -1 && mark->distrusted)
    return force ? 0 : pair_fail_distrusted (ESTALE, first->db);
  choice->without_wal = p->logs[0].there && c.log == -1 &&
    (c.side != -1 || (first->header && first->state));
  if (choice->without_wal && !pair_may_do_without_wal (p, &c))
    return force ? 0 : pair_fail_other_time (ESTALE, first->wal);
  if (c.side == -1)
    return 0; /* opening pool.db reports the error */
  *side = choose_side (p, &c, stand_in);
  if (has_whole_wal (p, *side, &c))
    return 0;
  choice->wal = merge_wals (p, *side, c.log);
  return choice->wal == -1 ? -1 : 0;
}

int
meta_pair_choose (const char *db, const struct meta_session *session,
                  bool force, struct meta_pair_choice *choice)
{
  struct meta_mark mark;
  struct pair p;
  int side, stand_in, r;

  *choice = (struct meta_pair_choice) { .wal = -1 };
  r = pair_open (&p, db, session, false, &mark);
  if (r == 0)
    r = decide_readonly (&p, &mark, force, &side, &stand_in, choice);
  if (r == 0) {
    choice->path = strdup (p.sides[side].db);
    if (stand_in != -1)
      choice->stand_in = strdup (p.sides[stand_in].db);
    if (choice->path == NULL || (stand_in != -1 && choice->stand_in == NULL))
      r = nbdedup_fail (ENOMEM, "no memory");
  }
  if (r == -1)
    meta_pair_choice_free (choice);
  pair_close (&p);
  return r;
}

void
meta_pair_choice_free (struct meta_pair_choice *choice)
{
  free (choice->path);
  free (choice->stand_in);
  if (choice->wal != -1)
    close (choice->wal);
  *choice = (struct meta_pair_choice) { .wal = -1 };
}

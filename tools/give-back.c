/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "drift-causes.h"
#include "files/protocol.h"
#include "give-back.h"
#include "tools.h"

struct ranges {
  struct nbdedup_range *p; /* owned */
  size_t nr;
  uint64_t bytes;
};

struct clone_ranges {
  struct ranges sets[NR_GIVE_BACK];
};

struct give_back {
  struct clone_ranges *clones; /* owned */
  size_t nr;
};

struct give_back *
give_back_new (void)
{
  return check_memory (calloc (1, sizeof (struct give_back)));
}

void
give_back_free (struct give_back *g)
{
  size_t i;
  int set;

  if (g == NULL)
    return;
  for (i = 0; i < g->nr; ++i)
    for (set = 0; set < NR_GIVE_BACK; ++set)
      free (g->clones[i].sets[set].p);
  free (g->clones);
  free (g);
}

static bool
is_free (const char *path)
{
  return strcmp (path, PSEUDO_FREE) == 0;
}

static bool
is_free_or_swap (const char *path)
{
  return is_free (path) || strcmp (drift_cause (path, NULL), CAUSE_SWAP) == 0;
}

static bool
is_free_or_temporary (const char *path)
{
  return is_free (path) ||
    strcmp (drift_cause (path, NULL), CAUSE_TEMPORARY) == 0;
}

static bool
is_free_or_journal (const char *path)
{
  return is_free (path) || strcmp (path, PSEUDO_JOURNAL) == 0;
}

void
give_back_add (struct give_back *g, const struct owner_map *map)
{
  static bool (*const wanted[]) (const char *) = {
    [GIVE_BACK_FREE] = is_free,
    [GIVE_BACK_SWAP] = is_free_or_swap,
    [GIVE_BACK_TEMPORARY] = is_free_or_temporary,
    [GIVE_BACK_JOURNAL] = is_free_or_journal,
  };
  struct clone_ranges *clone = check_memory (
    array_add (&g->clones, &g->nr, sizeof *clone));
  struct ranges *r;
  size_t i;
  int set;

  for (set = 0; set < NR_GIVE_BACK; ++set) {
    r = &clone->sets[set];
    r->p = owner_map_ranges (map, wanted[set], &r->nr);
    for (i = 0; i < r->nr; ++i)
      r->bytes += r->p[i].len;
  }
}

uint64_t
give_back_bytes (const struct give_back *g, uint64_t clone,
                 enum give_back_set set)
{
  assert (clone < g->nr);
  return g->clones[clone].sets[set].bytes -
    (set == GIVE_BACK_FREE ? 0 : g->clones[clone].sets[GIVE_BACK_FREE].bytes);
}

bool
give_back_has (const struct give_back *g, enum give_back_set set)
{
  size_t i;

  for (i = 0; i < g->nr; ++i)
    if (give_back_bytes (g, i, set) > 0)
      return true;
  return false;
}

int
give_back_tell (const struct give_back *g, struct nbdedup_frozen *frozen)
{
  const struct ranges *r;
  size_t i;
  int set;

  for (set = 0; set < NR_GIVE_BACK; ++set) {
    if (!give_back_has (g, set))
      continue;
    for (i = 0; i < g->nr; ++i) {
      r = &g->clones[i].sets[set];
      if (nbdedup_frozen_zero (frozen, (unsigned) set, i, r->p, r->nr) == -1)
        return -1;
    }
  }
  return 0;
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* A hash table against an array: links are found, visited and removed while the
 * table doubles, which it does in small steps, and without memory for it.
 */

#include <config.h>

#include <assert.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* The header's calloc, which can be made to fail. */
static bool no_memory;

static void *
calloc_or_fail (size_t nr, size_t size)
{
  return no_memory ? NULL : calloc (nr, size);
}

#define calloc calloc_or_fail
#include "base/hashtable.h"
#undef calloc
#include "rigs/testutil.h"

#define NR 20000u

struct item {
  struct hashtable_link link;
  uint64_t hash;
  bool in;
  unsigned visits;
};

static struct item items[NR];
static struct hashtable table;
static struct rng rng;
static size_t nr_in;

static bool
is_found (const struct item *it)
{
  struct hashtable_link *l = hashtable_chain (&table, it->hash);

  while (l != NULL && l != &it->link)
    l = l->next;
  return l != NULL;
}

static void
visit (void *opaque, struct hashtable_link *l)
{
  struct item *it = hashtable_entry (l, struct item, link);

  assert (opaque == &table);
  assert (l->hash == it->hash);
  it->visits++;
}

/* Each link is visited once, in the part where it belongs. */
static void
check_visits (void)
{
  const unsigned bits = (unsigned) rng_below (&rng, HASHTABLE_BITS + 1);
  const uint64_t lowest = rng_below (&rng, UINT64_C (1) << bits);
  unsigned i;

  hashtable_visit (&table, visit, &table);
  hashtable_visit_some (&table, lowest, bits, visit, &table);
  for (i = 0; i < NR; ++i) {
    assert (items[i].visits ==
            (!items[i].in
               ? 0u
               : 1u + ((items[i].hash & ((1u << bits) - 1)) == lowest)));
    items[i].visits = 0;
    assert (is_found (&items[i]) == items[i].in);
  }
}

static void
insert (struct item *it)
{
  it->in = true;
  hashtable_insert (&table, &it->link, it->hash);
  nr_in++;
}

static void
take_out (struct item *it)
{
  it->in = false;
  hashtable_remove (&table, &it->link);
  nr_in--;
}

static void
take_out_visited (void *opaque, struct hashtable_link *l)
{
  (void) opaque;
  take_out (hashtable_entry (l, struct item, link));
}

/* Links of the old array that this insertion has moved. */
static size_t
insert_and_count (struct item *it)
{
  const bool moves = table.old != NULL;
  const size_t before = table.nr_moved;

  insert (it);
  if (!moves)
    return 0;
  return (table.old ? table.nr_moved : table.nr_buckets / 2) - before;
}

/* Insertions, more than removals; then removals. */
static void
change_all (void)
{
  size_t most = HASHTABLE_MIN;
  unsigned i, nr_growths = 0;
  struct item *it;

  for (i = 0; nr_in < NR / 4 * 3; ++i) {
    it = &items[rng_below (&rng, NR)];
    if (it->in && rng_below (&rng, 8) == 0)
      take_out (it);
    else if (!it->in)
      assert (insert_and_count (it) <= HASHTABLE_MOVES);
    assert (table.nr_entries == nr_in);
    assert (table.nr_buckets == most || table.nr_buckets == 2 * most);
    nr_growths += table.nr_buckets != most;
    most = table.nr_buckets;
    if (i % 4096 == 0 || (table.old && i % 512 == 0))
      check_visits ();
  }
  assert (nr_growths > 5 && table.nr_buckets >= nr_in);
  check_visits ();
  while (nr_in > NR / 2) {
    it = &items[rng_below (&rng, NR)];
    if (it->in)
      take_out (it);
  }
  check_visits ();
}

static void
begin (void)
{
  unsigned i;

  assert (nr_in == 0);
  for (i = 0; i < NR; ++i)
    items[i] = (struct item) { .hash = rng_next (&rng) };
  assert (hashtable_init (&table) == 0);
}

/* The first ones that make the table double, and then so many. */
static void
insert_past_doubling (unsigned more)
{
  unsigned i;

  for (i = 0; table.old == NULL; ++i)
    insert (&items[i]);
  for (; more > 0; --more, ++i)
    insert (&items[i]);
  assert (table.old != NULL && table.nr_moved > 0);
}

static void
forget (void)
{
  unsigned i;

  hashtable_clear (&table);
  for (i = 0; i < NR; ++i)
    items[i].in = false;
  nr_in = 0;
  assert (table.nr_entries == 0 && table.nr_buckets == HASHTABLE_MIN);
}

/* Clear, destroy and empty a table whose links are in both arrays. */
static void
end_while_moving (void)
{
  begin ();
  insert_past_doubling (3);
  forget ();
  check_visits ();
  insert_past_doubling (3);
  hashtable_visit (&table, take_out_visited, NULL);
  assert (nr_in == 0 && table.nr_entries == 0);
  check_visits ();
  insert (&items[0]);
  check_visits ();
  hashtable_destroy (&table);
  assert (table.buckets == NULL);
  nr_in = 0;
}

static void
without_memory (void)
{
  unsigned i;

  begin ();
  no_memory = true;
  for (i = 0; i < 4 * HASHTABLE_MIN; ++i)
    insert (&items[i]);
  assert (table.nr_buckets == HASHTABLE_MIN && table.old == NULL);
  check_visits ();
  no_memory = false;
  change_all ();
  forget ();
  hashtable_destroy (&table);
}

int
main (void)
{
  const char *text = getenv ("SEED");
  const uint64_t seed = text ? strtoull (text, NULL, 0)
                             : (uint64_t) time (NULL);

  printf ("SEED=%" PRIu64 "\n", seed);
  rng = rng_make (seed, 0);
  begin ();
  change_all ();
  forget ();
  change_all ();
  forget ();
  hashtable_destroy (&table);
  end_while_moving ();
  without_memory ();
  return 0;
}

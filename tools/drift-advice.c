/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "drift-advice.h"

#define PAYS_BYTES 65536
#define PAYS_PART 1000
/* Blocks of their own that clones must lose for a rebase that frees little. */
#define PAYS_OWN_PERCENT 10
/* Of the same command for many clones, so many are listed. */
#define CLONES_LISTED 10

json_t *
advice_new (const char *action, uint64_t saves_bytes, char *text)
{
  json_t *advice = check_memory (
    json_pack ("{s:s, s:I, s:s, s:[]}", "action", action, "saves_bytes",
               (json_int_t) saves_bytes, "text", text, "commands"));

  free (text);
  return advice;
}

void
advice_command (json_t *advice, const char *fmt, ...)
{
  va_list ap;
  char *line;

  va_start (ap, fmt);
  line = make_string_va (fmt, ap);
  va_end (ap);
  json_array_append_new (json_object_get (advice, "commands"),
                         check_memory (json_string (line)));
  free (line);
}

bool
advice_pays (const json_t *document, int64_t bytes)
{
  const json_t *fleet = json_object_get (document, "fleet");

  return bytes >= PAYS_BYTES &&
    bytes >= (int64_t) (json_size (fleet, "distinct_stored_bytes") / PAYS_PART);
}

/* "a, b, c and 20 more" */
static char *
list_names (const json_t *names)
{
  const size_t nr = json_array_size (names);
  char *list = copy_string (""), *longer;
  size_t i;

  for (i = 0; i < nr && i < CLONES_LISTED; ++i) {
    longer = make_string ("%s%s%s", list, i > 0 ? ", " : "",
                          json_string_value (json_array_get (names, i)));
    free (list);
    list = longer;
  }
  if (nr > CLONES_LISTED) {
    longer = make_string ("%s and %zu more", list, nr - CLONES_LISTED);
    free (list);
    list = longer;
  }
  return list;
}

/*----------------------------------------------------------------------
 * Bytes to give back
 */

static int64_t
freed_bytes (const json_t *figures, enum give_back_set set)
{
  return json_integer_value (
    json_object_get (json_array_get (json_object_get (figures, "sets"), set),
                     "freed_bytes"));
}

static int64_t
freed_by_clone (const json_t *figures, enum give_back_set set, size_t clone)
{
  return json_integer_value (
    json_array_get (json_object_get (json_array_get (json_object_get (figures,
                                                                      "sets"),
                                                     set),
                                     "clones"),
                    clone));
}

static int
compare_savings (const void *a, const void *b)
{
  json_t *const *x = a, *const *y = b;
  const json_int_t p = json_integer_value (json_object_get (*x, "saves_bytes"));
  const json_int_t q = json_integer_value (json_object_get (*y, "saves_bytes"));

  return p < q ? 1
    : p > q    ? -1
               : strcmp (json_text (*x, "name"), json_text (*y, "name"));
}

/* A new array of the same objects, the most bytes saved first. */
static json_t *
sort_savings (const json_t *list)
{
  const size_t nr = json_array_size (list);
  json_t **p = check_memory (calloc (nr + 1, sizeof *p));
  json_t *sorted = check_memory (json_array ());
  size_t i;

  for (i = 0; i < nr; ++i)
    p[i] = json_array_get (list, i);
  if (nr > 0)
    qsort (p, nr, sizeof *p, compare_savings);
  for (i = 0; i < nr; ++i)
    json_array_append (sorted, p[i]);
  free (p);
  return sorted;
}

/* [{"name", "saves_bytes"}...] of the clones that would free something. */
static json_t *
saving_clones (const json_t *document, const json_t *figures,
               enum give_back_set set)
{
  json_t *list = check_memory (json_array ()), *clone, *sorted;
  int64_t bytes;
  size_t i;

  json_array_foreach (json_object_get (document, "clones"), i, clone) {
    bytes = freed_by_clone (figures, set, i);
    if (set != GIVE_BACK_FREE)
      bytes -= freed_by_clone (figures, GIVE_BACK_FREE, i);
    if (bytes > 0)
      json_array_append_new (list,
                             json_pack ("{s:O, s:I}", "name",
                                        json_object_get (clone, "name"),
                                        "saves_bytes", (json_int_t) bytes));
  }
  sorted = sort_savings (list);
  json_decref (list);
  return sorted;
}

static const char *
plural (const json_t *list)
{
  return json_array_size (list) == 1 ? "" : "s";
}

static void
advise_trim (json_t *all, const json_t *document, const json_t *figures)
{
  const int64_t saves = freed_bytes (figures, GIVE_BACK_FREE);
  json_t *advice, *clones;
  char size[HUMAN_MAX];

  if (!advice_pays (document, saves))
    return;
  clones = saving_clones (document, figures, GIVE_BACK_FREE);
  advice = advice_new (
    "trim", (uint64_t) saves,
    make_string ("Trim the free space of %zu clone%s: %s of deleted "
                 "files are still stored.  The guests need "
                 "discard=unmap.",
                 json_array_size (clones), plural (clones),
                 human_bytes ((uint64_t) saves, size)));
  advice_command (advice, "in the guest: fstrim --all");
  json_object_set_new (advice, "clones", clones);
  json_array_append_new (all, advice);
}

struct move {
  enum give_back_set set;
  const char *what;
  const char *volume;          /* its suffix */
  const char *const *commands; /* in the guest */
};

static const char *const swap_commands[] = {
  "swapoff --all",
  "mkswap /dev/NEW && swapon /dev/NEW, and /dev/NEW instead "
  "of the old one in /etc/fstab",
  "blkdiscard -f /dev/OLD, or, if it was a "
  "file: rm FILE && fstrim --all",
  NULL,
};

static const char *const temporary_commands[] = {
  "mkfs.ext4 -O ^has_journal /dev/NEW, and mount it on /var/cache, /tmp or "
  "/var/tmp in /etc/fstab",
  "before that, with the programs stopped: empty the "
  "old directories, then fstrim --all",
  NULL,
};

static const char *const journal_commands[] = {
  "tune2fs -O ^has_journal /dev/ROOT && e2fsck -f /dev/ROOT && mke2fs -O "
  "journal_dev /dev/NEW && tune2fs -J device=/dev/NEW /dev/ROOT, while it is "
  "not mounted",
  "fstrim --all",
  NULL,
};

static const struct move moves[] = {
  { GIVE_BACK_SWAP, "swap", "swap", swap_commands },
  { GIVE_BACK_TEMPORARY, "temporary files", "scratch", temporary_commands },
  { GIVE_BACK_JOURNAL, "journal", "journal", journal_commands },
};

/* Of a clone, in whole MiB. */
static uint64_t
move_mib (const json_t *document, const struct give_back *g,
          enum give_back_set set, const char *name)
{
  json_t *clone;
  size_t i;

  json_array_foreach (json_object_get (document, "clones"), i, clone)
    if (strcmp (json_text (clone, "name"), name) == 0)
      return (give_back_bytes (g, i, set) + (1 << 20) - 1) >> 20;
  return 0;
}

static void
advise_move (json_t *all, const json_t *document, const json_t *figures,
             const struct give_back *g, const struct move *move)
{
  const int64_t saves = freed_bytes (figures, move->set) -
    freed_bytes (figures, GIVE_BACK_FREE);
  json_t *advice, *clones, *clone;
  const char *name;
  char size[HUMAN_MAX];
  size_t i;

  if (!give_back_has (g, move->set) || !advice_pays (document, saves))
    return;
  clones = saving_clones (document, figures, move->set);
  advice = advice_new (
    "move", (uint64_t) saves,
    make_string ("Move the %s of %zu clone%s to volumes without dedup: "
                 "%s that change all the time, and are never shared "
                 "for long.  What is written there later takes space "
                 "in those volumes.",
                 move->what, json_array_size (clones), plural (clones),
                 human_bytes ((uint64_t) saves, size)));
  json_object_set_new (advice, "what", json_string (move->what));
  json_array_foreach (clones, i, clone) {
    if (i == CLONES_LISTED)
      break;
    name = json_text (clone, "name");
    advice_command (advice, "nbdedup create %s-%s %" PRIu64 "M --dedup off",
                    name, move->volume,
                    move_mib (document, g, move->set, name));
  }
  for (i = 0; move->commands[i] != NULL; ++i)
    advice_command (advice, "in the guest: %s", move->commands[i]);
  json_object_set_new (advice, "clones", clones);
  json_array_append_new (all, advice);
}

/*----------------------------------------------------------------------
 * Another golden image
 */

/* The promoted clone itself still comes from the old golden image: --force
 * lets that go.
 */
static void
add_base_commands (json_t *advice, const json_t *base, const char *snapshot,
                   bool promotes)
{
  const char *text;
  json_t *name;
  size_t i;

  json_array_foreach (json_object_get (base, "rebases"), i, name)
    advice_command (advice, "nbdedup rebase %s %s", json_string_value (name),
                    snapshot);
  json_array_foreach (json_object_get (base, "destroys"), i, name) {
    text = json_string_value (name);
    advice_command (advice, "nbdedup destroy %s%s%s", text,
                    strchr (text, '@') ? "" : " --recursive",
                    promotes ? " --force" : "");
  }
}

static char *
base_text (const json_t *document, const json_t *base, bool promotes,
           const uint64_t own[2])
{
  char *what = promotes
    ? make_string ("Make %s the next golden image: of all clones and their "
                   "snapshots it leaves the others the least of their own",
                   json_text (base, "target"))
    : make_string ("Rebase the clones onto %s", json_text (base, "target"));
  char before[HUMAN_MAX], after[HUMAN_MAX], freed[HUMAN_MAX];
  char *text =
    make_string ("%s: %s instead of %s.  Without %s %s less are stored then.",
                 what, human_bytes (own[1], after),
                 human_bytes (own[0], before), json_text (document, "golden"),
                 human_bytes (json_size (base, "freed_bytes"), freed));

  free (what);
  return text;
}

/* Rebasing is worth it for what it frees, or because the clones drift less
 * from the next one.
 */
static void
advise_base (json_t *all, const json_t *document, const json_t *figures,
             const char *key)
{
  const json_t *base = json_object_get (figures, key);
  const uint64_t block_size = json_size (document, "block_size");
  const uint64_t own[2] = {
    json_size (figures, "own_blocks") * block_size,
    json_size (base, "own_blocks") * block_size,
  };
  const bool promotes = strcmp (key, "promote") == 0;
  const char *snapshot = json_text (base, "snapshot");
  json_t *advice;

  if (!json_is_object (base) || own[1] > own[0] ||
      json_array_size (json_object_get (base, "rebases")) == 0 ||
      !advice_pays (document, (int64_t) (own[0] - own[1])) ||
      (own[0] - own[1] < own[0] / 100 * PAYS_OWN_PERCENT &&
       !advice_pays (document,
                     json_integer_value (
                       json_object_get (base, "freed_bytes")))))
    return;
  advice = advice_new (key, json_size (base, "freed_bytes"),
                       base_text (document, base, promotes, own));
  json_object_set (advice, "target", json_object_get (base, "target"));
  json_object_set_new (advice, "own_bytes_before",
                       json_integer ((json_int_t) own[0]));
  json_object_set_new (advice, "own_bytes_after",
                       json_integer ((json_int_t) own[1]));
  if (!json_is_true (json_object_get (base, "is_snapshot")))
    advice_command (advice, "nbdedup snapshot %s", snapshot);
  add_base_commands (advice, base, snapshot, promotes);
  json_array_append_new (all, advice);
}

/*----------------------------------------------------------------------
 * Storing again
 */

static void
advise_rewrite (json_t *all, const json_t *document, const json_t *figures,
                bool joins)
{
  const json_t *rewrite = json_object_get (figures, "rewrite");
  const json_t *names = json_object_get (rewrite,
                                         joins ? "missed" : "compress"),
               *name;
  const int64_t saves = json_integer_value (
    json_object_get (rewrite, joins ? "missed_bytes" : "compress_bytes"));
  char size[HUMAN_MAX], *list;
  json_t *advice;
  size_t i;

  if (!advice_pays (document, saves))
    return;
  list = list_names (names);
  advice = advice_new (
    "rewrite", (uint64_t) saves,
    make_string (joins ? "Join the duplicates that were missed, of "
                         "%s: they take %s twice."
                       : "Store %s again with the compression that they have "
                         "today: about %s less.",
                 list, human_bytes ((uint64_t) saves, size)));
  free (list);
  json_object_set_new (advice, "what",
                       json_string (joins ? "duplicates" : "compression"));
  json_array_foreach (names, i, name)
    advice_command (advice, "nbdedup rewrite %s%s", json_string_value (name),
                    joins ? " --dedup" : "");
  json_array_append_new (all, advice);
}

json_t *
drift_advice (const json_t *document, const json_t *figures,
              const struct give_back *g, json_t *more)
{
  json_t *all = check_memory (json_array ()), *sorted;
  size_t i;

  advise_trim (all, document, figures);
  for (i = 0; i < sizeof moves / sizeof moves[0]; ++i)
    advise_move (all, document, figures, g, &moves[i]);
  advise_base (all, document, figures, "rebase");
  advise_base (all, document, figures, "promote");
  advise_rewrite (all, document, figures, true);
  advise_rewrite (all, document, figures, false);
  if (more != NULL)
    json_array_extend (all, more);
  sorted = sort_savings (all);
  json_decref (all);
  return sorted;
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* The KEY=VALUE parameters of the plugin: one table, one parser for each
 * kind of value.
 *
 * The parser ignores nothing: an unknown key, an unknown value and a value out
 * of range are errors, in one line that names the key.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "keys.h"

/* The help text repeats the defaults; this checks them.
 * NOLINTBEGIN(misc-redundant-expression): the same is what it wants.
 */
_Static_assert (NBDEDUP_DDT_CACHE_DEFAULT == UINT64_C (384) << 20 &&
                  NBDEDUP_RECORD_CACHE_DEFAULT == UINT64_C (64) << 20 &&
                  NBDEDUP_DIRTY_MAX_DEFAULT == UINT64_C (64) << 20 &&
                  NBDEDUP_COMMIT_INTERVAL_DEFAULT == 5 &&
                  NBDEDUP_DRIFT_INTERVAL_DEFAULT == 3600 &&
                  NBDEDUP_DDT_CACHE_MIN == UINT64_C (8) << 20 &&
                  NBDEDUP_DIRTY_MAX_MIN == UINT64_C (4) << 20,
                "keys_help and the manual page tell other figures");
/* NOLINTEND(misc-redundant-expression) */

/* clang-format off */
const char keys_help[] =
"[pool=]DIR                (required) The pool, as made by 'nbdedup init'.\n"
"volume=NAME[@SNAP]        Volume, or snapshot, of the default export \"\"\n"
"                          (default: the pool's only volume).\n"
"only=on|off               Serve and list nothing but volume=NAME\n"
"                          (default: off).\n"
"ddt-cache=SIZE            Budget for all metadata in memory, at least 8M\n"
"                          (default: 384M).\n"
"record-cache=SIZE         Cache of decompressed records, 0 for none\n"
"                          (default: 64M).\n"
"dirty-max=SIZE            Answered writes held in memory before they are\n"
"                          hashed, at least 4M (default: 64M).\n"
"commit-interval=SECONDS   The longest that an answered write stays volatile\n"
"                          without a FLUSH (default: 5).\n"
"drift-interval=SECONDS    Time between drift samples, 0: only on request\n"
"                          (default: 3600).\n"
"primarycache=all|metadata|none\n"
"                          What is cached in memory (default: all).\n"
"threads=auto|parallel|serialize\n"
"                          Requests of one connection at the same time, or\n"
"                          one by one (default: auto, what this nbdkit\n"
"                          survives).\n"
"read-only=on|off|force    Write to no file of the pool; force: even if\n"
"                          flushed data is missing from what can be read\n"
"                          (default: off).\n"
"attach=shared|exclusive   Whether a volume takes more than one client\n"
"                          (default: shared).";
/* clang-format on */

/* More than any machine has; sums of such sizes do not overflow. */
#define SIZE_KEY_MAX (UINT64_C (1) << 50)

#define COMMIT_INTERVAL_MAX_S UINT64_C (86400)
#define DRIFT_INTERVAL_MAX_S (UINT64_C (10) * 366 * 86400)

static const char *const primarycache_names[] = {
  [NBDEDUP_CACHE_ALL] = "all",
  [NBDEDUP_CACHE_METADATA] = "metadata",
  [NBDEDUP_CACHE_NONE] = "none",
  NULL
};
static const char *const threads_names[] = {
  [KEYS_THREADS_AUTO] = "auto",
  [KEYS_THREADS_PARALLEL] = "parallel",
  [KEYS_THREADS_SERIALIZE] = "serialize",
  NULL
};
static const char *const read_only_names[] = {
  [NBDEDUP_READ_ONLY_OFF] = "off",
  [NBDEDUP_READ_ONLY_ON] = "on",
  [NBDEDUP_READ_ONLY_FORCE] = "force",
  NULL
};
static const char *const attach_names[] = { "shared", "exclusive", NULL };

void
keys_init (struct keys *keys)
{
  memset (keys, 0, sizeof *keys);
  nbdedup_settings_init (&keys->settings);
}

void
keys_destroy (struct keys *keys)
{
  free (keys->pool);
  keys->pool = NULL;
}

/* The index of 'value' in 'names', or -1 after nbdkit_error. */
static int
parse_name (const char *key, const char *value, const char *const *names)
{
  char list[64] = "";
  size_t i;

  for (i = 0; names[i] != NULL; ++i) {
    if (strcmp (value, names[i]) == 0)
      return (int) i;
    if (i > 0)
      strncat (list, ", ", sizeof list - strlen (list) - 1);
    strncat (list, names[i], sizeof list - strlen (list) - 1);
  }
  nbdkit_error ("%s=%s: expected one of: %s", key, value, list);
  return -1;
}

/* The command's sizes, and nbdkit's other units: bytes, sectors, P and E.
 * (nbdkit_parse_size does not name the key in its errors.)
 */
static int
parse_size (const char *key, const char *value, uint64_t min, uint64_t *r)
{
  static const char units[] = "bBsSpPeE";
  static const unsigned shifts[] = { 0, 0, 9, 9, 50, 50, 60, 60 };
  const size_t digits = strspn (value, "0123456789");
  const char *unit = digits > 0 && value[digits] && !value[digits + 1]
    ? strchr (units, value[digits])
    : NULL;
  uint64_t size;

  if (unit) {
    size = strtoull (value, NULL, 10); /* ULLONG_MAX if it is too large */
    size = size > SIZE_KEY_MAX >> shifts[unit - units]
      ? SIZE_KEY_MAX + 1
      : size << shifts[unit - units];
  }
  else if (nbdedup_parse_size (value, &size) == -1) {
    nbdkit_error ("%s=%s: %s", key, value, nbdedup_error ());
    return -1;
  }
  if (size < min) {
    nbdkit_error ("%s=%s: expected at least %" PRIu64 "M", key, value,
                  min >> 20);
    return -1;
  }
  if (size > SIZE_KEY_MAX) {
    nbdkit_error ("%s=%s: expected at most 1P", key, value);
    return -1;
  }
  *r = size;
  return 0;
}

/* As nbdkit_parse_bool, which does not name the key in its errors. */
static int
parse_bool (const char *key, const char *value, const char *expected)
{
  static const char *const words[] = {
    "0", "f", "false", "n", "no", "off", "1", "on", "t", "true", "y", "yes",
  };
  size_t i;

  for (i = 0; i < sizeof words / sizeof words[0]; ++i)
    if (strcasecmp (value, words[i]) == 0)
      return nbdkit_parse_bool (value);
  nbdkit_error ("%s=%s: expected %s", key, value, expected);
  return -1;
}

/* Decimal seconds ("5", "0.25") to milliseconds: neither strtod, which
 * depends on the locale and takes "nan", nor nbdkit_parse_unsigned, which
 * takes "010" for 8.
 */
static int
parse_seconds (const char *key, const char *value, uint64_t min_ms,
               uint64_t max_s, uint64_t *ms)
{
  const char *p = value;
  uint64_t r = 0, scale = 100;

  if (*p < '0' || *p > '9')
    goto invalid;
  for (; *p >= '0' && *p <= '9'; ++p) {
    r = r * 10 + (*p - '0');
    if (r > max_s)
      goto range;
  }
  r *= 1000;
  if (*p == '.') {
    ++p;
    if (*p == '\0')
      goto invalid;
    for (; *p >= '0' && *p <= '9'; ++p) {
      r += (*p - '0') * scale; /* adds 0 beyond milliseconds */
      scale /= 10;
    }
  }
  if (*p != '\0')
    goto invalid;
  if (r < min_ms || r > max_s * 1000)
    goto range;
  *ms = r;
  return 0;

invalid:
  nbdkit_error ("%s=%s: expected a number of seconds", key, value);
  return -1;

range:
  nbdkit_error ("%s=%s: expected %s to %" PRIu64 " seconds", key, value,
                min_ms > 0 ? "0.001" : "0", max_s);
  return -1;
}

/* As for the key itself: letters, digits, '.', '_', '-'; perhaps a
 * snapshot's name after one '@'.
 */
static int
parse_volume (const char *value, const char **r)
{
  static const char allowed[] = "abcdefghijklmnopqrstuvwxyz"
                                "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                "0123456789._-";
  size_t n = strspn (value, allowed);
  const char *snapshot = value[n] == '@' ? value + n + 1 : NULL;

  if (n == 0 || n > 255 || (snapshot == NULL && value[n] != '\0'))
    goto invalid;
  if (snapshot != NULL) {
    n = strspn (snapshot, allowed);
    if (n == 0 || n > 255 || snapshot[n] != '\0')
      goto invalid;
  }
  *r = value;
  return 0;

invalid:
  nbdkit_error ("volume=%.64s: expected the name of a volume (letters, "
                "digits, '.', '_', '-', at most 255), or VOLUME@SNAPSHOT",
                value);
  return -1;
}

static int
parse_pool (const char *value, char **r)
{
  if (*r != NULL) {
    nbdkit_error ("pool=%s: pool=%s was given before, and a server has only "
                  "one pool",
                  value, *r);
    return -1;
  }
  /* The error of nbdkit_realpath would name only the path. */
  if (access (value, F_OK) == -1) {
    nbdkit_error ("pool=%s: %s; 'nbdedup init' makes a pool", value,
                  strerror (errno));
    return -1;
  }
  *r = nbdkit_realpath (value);
  return *r == NULL ? -1 : 0;
}

static int
parse_drift_interval (const char *key, const char *value, uint64_t *seconds)
{
  uint64_t ms;

  if (parse_seconds (key, value, 0, DRIFT_INTERVAL_MAX_S, &ms) == -1)
    return -1;
  if (ms % 1000 != 0) {
    nbdkit_error ("%s=%s: expected whole seconds", key, value);
    return -1;
  }
  *seconds = ms / 1000;
  return 0;
}

/* The keys whose values are amounts.  1: 'key' is none of them. */
static int
parse_amount_key (struct nbdedup_settings *s, const char *key,
                  const char *value)
{
  if (strcmp (key, "ddt-cache") == 0)
    return parse_size (key, value, NBDEDUP_DDT_CACHE_MIN, &s->ddt_cache_bytes);

  if (strcmp (key, "record-cache") == 0)
    return parse_size (key, value, 0, &s->record_cache_bytes);

  if (strcmp (key, "dirty-max") == 0)
    return parse_size (key, value, NBDEDUP_DIRTY_MAX_MIN, &s->dirty_max_bytes);

  if (strcmp (key, "commit-interval") == 0)
    return parse_seconds (key, value, 1, COMMIT_INTERVAL_MAX_S,
                          &s->commit_interval_ms);

  if (strcmp (key, "drift-interval") == 0)
    return parse_drift_interval (key, value, &s->drift_interval_s);

  return 1;
}

/* The keys whose values are words.  1: 'key' is none of them. */
static int
parse_word_key (struct keys *keys, const char *key, const char *value)
{
  int r;

  if (strcmp (key, "only") == 0) {
    r = parse_bool (key, value, "on or off");
    if (r != -1)
      keys->only = r;
  }
  else if (strcmp (key, "primarycache") == 0) {
    r = parse_name (key, value, primarycache_names);
    if (r != -1)
      keys->settings.primarycache = (enum nbdedup_primarycache) r;
  }
  else if (strcmp (key, "threads") == 0) {
    r = parse_name (key, value, threads_names);
    if (r != -1)
      keys->threads = (enum keys_threads) r;
  }
  else if (strcmp (key, "read-only") == 0) {
    r = strcmp (value, "force") == 0
      ? NBDEDUP_READ_ONLY_FORCE
      : parse_bool (key, value, "on, off or force");
    if (r != -1)
      keys->settings.read_only = (enum nbdedup_read_only) r;
  }
  else if (strcmp (key, "attach") == 0) {
    r = parse_name (key, value, attach_names);
    if (r != -1)
      keys->exclusive = r;
  }
  else
    return 1;
  return r == -1 ? -1 : 0;
}

int
keys_parse (struct keys *keys, const char *key, const char *value)
{
  int r;

  if (strcmp (key, "pool") == 0)
    return parse_pool (value, &keys->pool);

  if (strcmp (key, "volume") == 0)
    return parse_volume (value, &keys->volume);

  r = parse_amount_key (&keys->settings, key, value);
  if (r == 1)
    r = parse_word_key (keys, key, value);
  if (r != 1)
    return r;

  nbdkit_error ("unknown parameter %s=%.64s; 'nbdkit dedup --help' lists them",
                key, value);
  return -1;
}

int
keys_check (const struct keys *keys)
{
  if (keys->pool == NULL) {
    nbdkit_error ("you must supply the pool=DIR parameter: a directory made "
                  "by 'nbdedup init'");
    return -1;
  }
  if (keys->only && keys->volume == NULL) {
    nbdkit_error ("only=on needs volume=NAME, the volume to serve");
    return -1;
  }
  return 0;
}

static void
dump_size (const char *key, uint64_t size)
{
  printf ("default_%s=%" PRIu64 "M\n", key, size >> 20);
}

void
keys_dump (void)
{
  struct keys d;

  keys_init (&d);
  printf ("default_only=%s\n", d.only ? "on" : "off");
  dump_size ("ddt-cache", d.settings.ddt_cache_bytes);
  dump_size ("record-cache", d.settings.record_cache_bytes);
  dump_size ("dirty-max", d.settings.dirty_max_bytes);
  printf ("default_commit-interval=%g\n",
          d.settings.commit_interval_ms / 1000.0);
  printf ("default_drift-interval=%" PRIu64 "\n", d.settings.drift_interval_s);
  printf ("default_primarycache=%s\n",
          primarycache_names[d.settings.primarycache]);
  printf ("default_threads=%s\n", threads_names[d.threads]);
  printf ("default_read-only=%s\n", read_only_names[d.settings.read_only]);
  printf ("default_attach=%s\n", attach_names[d.exclusive]);
}

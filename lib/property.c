/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "copier.h"
#include "error.h"
#include "hash.h"
#include "pool.h"
#include "property.h"
#include "scrubber.h"
#include "thin.h"

/* Measured: on real VM images the sum of dedup and compression hardly
 * depends on the block size with 512-byte sectors, metadata and CPU per
 * byte fall with it, read-modify-write of guests' 4 KiB grows with it;
 * 16 KiB is where both are small.  ("make bench" compares.)
 */
#define BLOCK_SIZE_DEFAULT "16384"

/* A terabyte in three hours, and a disk's clients hardly notice. */
#define SCRUB_RATE_DEFAULT "104857600"

#define COPY_PATH_MAX 1000      /* the mark has room for it */

const char *const pool_properties[] = {
  "sector", "hash", "max-size", "full-warn", "ddt-quota", "copies",
  "metadata-copy", "scrub-rate", "scrub-interval", "drift-keep",
  "block-size", "compress", "dedup", NULL,
};

static const struct {
  const char *name, *value;
} defaults[] = {
  { "max-size", "none" },
  { "full-warn", "90" },
  { "ddt-quota", "none" },
  { "copies", "1" },
  { "metadata-copy", "on" },
  { "scrub-rate", SCRUB_RATE_DEFAULT },
  { "scrub-interval", "off" },
  { "drift-keep", THIN_DEFAULT },
  { "block-size", BLOCK_SIZE_DEFAULT },
  { "compress", "lz4" },
  { "dedup", "on" },
};

int
nbdedup_parse_size (const char *s, uint64_t *bytes)
{
  static const char units[] = "KMGT";
  unsigned long long v;
  const char *u;
  char *end;
  unsigned shift = 0;

  errno = 0;
  v = strtoull (s, &end, 10);
  if (!isdigit ((unsigned char) *s))
    return nbdedup_fail (EINVAL, "not a size (a number, and K, M, G or T)");
  if (*end) {
    u = strchr (units, toupper ((unsigned char) *end));
    if (u == NULL || end[1] != '\0')
      return nbdedup_fail (EINVAL, "not a size (a number, and K, M, G or T)");
    shift = 10 * (unsigned) (u - units + 1);
  }
  /* SQLite's and JSON's integers have a sign. */
  if (errno != 0 || v > (unsigned long long) INT64_MAX >> shift)
    return nbdedup_fail (EINVAL, "too large for a size");
  *bytes = (uint64_t) v << shift;
  return 0;
}

/* The same for the value of a property. */
static int
parse_size (const char *name, const char *value, uint64_t *bytes)
{
  if (nbdedup_parse_size (value, bytes) == -1)
    return nbdedup_fail (errno, "%s '%.64s': %s", name, value,
                         nbdedup_error ());
  return 0;
}

static int
parse_percent (const char *name, const char *value, unsigned *percent)
{
  uint64_t n;

  if (nbdedup_parse_size (value, &n) == -1 || n > 100 ||
      strspn (value, "0123456789") != strlen (value))
    return nbdedup_fail (EINVAL, "%s '%.64s': not a number from 0 to 100",
                         name, value);
  *percent = (unsigned) n;
  return 0;
}

int
check_block_size (uint64_t bytes, uint32_t sector_bytes)
{
  if (bytes < BLOCK_SIZE_MIN || bytes > BLOCK_SIZE_MAX ||
      (bytes & (bytes - 1)) != 0)
    return nbdedup_fail (EINVAL, "block-size %" PRIu64 ": must be a power of "
                         "two from 4K to 1M", bytes);
  if (bytes < sector_bytes)
    return nbdedup_fail (EINVAL, "block-size %" PRIu64 ": must not be below "
                         "the pool's sector, %" PRIu32, bytes, sector_bytes);
  return 0;
}

static int
check_copy (const char *value)
{
  if (strcmp (value, "on") == 0 || strcmp (value, "off") == 0)
    return 0;
  /* A server has another working directory than the command. */
  if (value[0] != '/')
    return nbdedup_fail (EINVAL, "metadata-copy '%.64s': must be on, off, or "
                         "the absolute path of a file", value);
  if (strlen (value) > COPY_PATH_MAX)
    return nbdedup_fail (EINVAL, "metadata-copy: a path has at most %d bytes",
                         COPY_PATH_MAX);
  return 0;
}

static int
check_rate (const char *name, const char *value)
{
  uint64_t bytes;

  if (strcmp (value, "none") == 0)
    return 0;
  if (parse_size (name, value, &bytes) == -1)
    return -1;
  if (bytes == 0)
    return nbdedup_fail (EINVAL, "%s '%.64s': at 0 bytes a second it would not "
                         "end; use none for no limit", name, value);
  return 0;
}

int
pool_property_check (const char *name, const char *value)
{
  struct compression c;
  struct thin_policy policy;
  enum dedup_mode mode;
  uint64_t bytes;
  unsigned percent;

  if (strcmp (name, "sector") == 0 || strcmp (name, "hash") == 0)
    return nbdedup_fail (EINVAL, "%s is fixed when the pool is made", name);
  if (strcmp (name, "scrub-rate") == 0)
    return check_rate (name, value);
  if (strcmp (name, "scrub-interval") == 0)
    return scrub_interval_parse (value, &bytes);
  if (strcmp (name, "max-size") == 0 || strcmp (name, "ddt-quota") == 0)
    return strcmp (value, "none") == 0 ? 0 : parse_size (name, value, &bytes);
  if (strcmp (name, "full-warn") == 0)
    return parse_percent (name, value, &percent);
  if (strcmp (name, "copies") == 0)
    return copies_parse (value, &percent, &bytes);
  if (strcmp (name, "metadata-copy") == 0)
    return check_copy (value);
  if (strcmp (name, "drift-keep") == 0)
    return thin_policy_parse (value, &policy);
  if (strcmp (name, "block-size") == 0)
    return parse_size (name, value, &bytes) == -1 ? -1
      : check_block_size (bytes, 0);
  if (strcmp (name, "compress") == 0)
    return compression_parse (value, &c);
  if (strcmp (name, "dedup") == 0)
    return dedup_parse (value, &mode);
  return nbdedup_fail (EINVAL, "the pool has no property '%s'", name);
}

static int
stored_value (struct nbdedup_pool *pool, const char *name, char **value)
{
  struct meta_conn *c = meta_reader_get (pool->meta);
  int r = meta_property_get (c, name, value);
  size_t i;

  meta_reader_put (pool->meta, c);
  if (r != 0)
    return r == 1 ? 0 : -1;
  for (i = 0; i < sizeof defaults / sizeof defaults[0]; ++i)
    if (strcmp (defaults[i].name, name) == 0) {
      *value = strdup (defaults[i].value);
      return *value ? 0 : nbdedup_fail (ENOMEM, "no memory");
    }
  return nbdedup_fail (EINVAL, "the pool has no property '%s'", name);
}

int
pool_property_get (struct nbdedup_pool *pool, const char *name, char **value)
{
  if (strcmp (name, "sector") == 0) {
    if (asprintf (value, "%" PRIu32, pool->sector_bytes) == -1)
      return nbdedup_fail (ENOMEM, "no memory");
    return 0;
  }
  if (strcmp (name, "hash") == 0) {
    *value = strdup (hash_name (pool->hash));
    return *value ? 0 : nbdedup_fail (ENOMEM, "no memory");
  }
  return stored_value (pool, name, value);
}

static int
limit_of (struct nbdedup_pool *pool, const char *name, uint64_t *bytes)
{
  CLEANUP_FREE char *value = NULL;

  *bytes = 0;
  if (stored_value (pool, name, &value) == -1)
    return -1;
  return strcmp (value, "none") == 0 ? 0 : parse_size (name, value, bytes);
}

static int
percent_of (struct nbdedup_pool *pool, const char *name, unsigned *percent)
{
  CLEANUP_FREE char *value = NULL;

  return stored_value (pool, name, &value) == -1 ? -1
    : parse_percent (name, value, percent);
}

static int
load_scrub (struct nbdedup_pool *pool)
{
  CLEANUP_FREE char *interval = NULL;
  uint64_t n;

  if (limit_of (pool, "scrub-rate", &n) == -1)
    return -1;
  pool->scrub_rate = n;
  if (stored_value (pool, "scrub-interval", &interval) == -1 ||
      scrub_interval_parse (interval, &n) == -1)
    return -1;
  pool->scrub_interval_s = n;
  scrubber_wake (pool->scrubber);
  return 0;
}

static int
load_copies (struct nbdedup_pool *pool)
{
  CLEANUP_FREE char *value = NULL;
  uint64_t refs;
  unsigned nr;

  if (stored_value (pool, "copies", &value) == -1 ||
      copies_parse (value, &nr, &refs) == -1)
    return -1;
  if (nr == pool->copies.nr && refs == pool->copies.refs)
    return 0;
  if (nr > 1)
    txg_set_copies (pool->txg);
  copies_set (&pool->copies, nr, refs);
  copier_look_again (pool->copier);
  return 0;
}

int
pool_properties_load (struct nbdedup_pool *pool)
{
  CLEANUP_FREE char *copy = NULL;
  unsigned percent;
  uint64_t bytes;

  if (limit_of (pool, "max-size", &bytes) == -1)
    return -1;
  space_set_max (pool->space, bytes);
  if (limit_of (pool, "ddt-quota", &bytes) == -1)
    return -1;
  pool->ddt_quota_bytes = bytes;
  if (load_scrub (pool) == -1 || load_copies (pool) == -1)
    return -1;
  if (percent_of (pool, "full-warn", &percent) == -1)
    return -1;
  pool->watch.full_warn = percent;
  if (stored_value (pool, "metadata-copy", &copy) == -1)
    return -1;
  return meta_copy_set (pool->meta, copy);
}

struct set {
  const char *name;
  char value[COPY_PATH_MAX + 1];        /* the longest of them all */
};

static int
set_in_transaction (void *arg, struct meta_conn *c, struct meta_state *state)
{
  struct set *s = arg;

  (void) state;
  return meta_property_put (c, s->name, s->value);
}

int
pool_property_set (struct nbdedup_pool *pool, const char *name,
                   const char *value)
{
  struct set s = { .name = name };
  uint64_t bytes = 0;

  assert_held (&pool->admin);
  if (pool_property_check (name, value) == -1)
    return -1;
  snprintf (s.value, sizeof s.value, "%s", value);
  /* Sizes are stored in bytes. */
  if (strcmp (name, "block-size") == 0 || strcmp (name, "max-size") == 0 ||
      strcmp (name, "ddt-quota") == 0 || strcmp (name, "scrub-rate") == 0) {
    if (strcmp (value, "none") != 0) {
      if (parse_size (name, value, &bytes) == -1)
        return -1;
      snprintf (s.value, sizeof s.value, "%" PRIu64, bytes);
    }
  }
  if (strcmp (name, "block-size") == 0 &&
      check_block_size (bytes, pool->sector_bytes) == -1)
    return -1;
  if (strcmp (name, "metadata-copy") == 0 &&
      meta_copy_check_value (pool->meta, value) == -1)
    return -1;
  /* Clients' writes must not have to find it when there is none. */
  if (strcmp (name, "copies") == 0 && value[0] != '1' &&
      txg_check_copies (pool->txg) == -1)
    return nbdedup_fail (ENOSPC, "copies: there is no room in the pool's file "
                         "system for what they need in pool.db: free some");
  if (txg_run (pool->txg, set_in_transaction, NULL, &s) == -1)
    return -1;
  if (pool_properties_load (pool) == -1)
    return -1;
  watch_look (pool, true);
  return 0;
}

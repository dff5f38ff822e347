/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <ctype.h>
#include <inttypes.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "core/alert-property.h"
#include "core/engine.h"
#include "core/pool-property.h"
#include "format/codec.h"
#include "format/copies.h"
#include "format/dedup-mode.h"
#include "format/format.h"
#include "format/hash.h"
#include "format/retention.h"
#include "meta/meta.h"

/* Measured on real VM images, with 512-byte sectors: the combined saving by
 * dedup and compression hardly depends on the block size.  A larger one costs
 * less metadata and CPU per byte, and more read-modify-write of guests' 4 KiB.
 * At 16 KiB both costs are small.  ("make bench" compares.)
 */
#define BLOCK_SIZE_DEFAULT "16384"

/* A terabyte in three hours, with little effect on the disk's clients. */
#define SCRUB_RATE_DEFAULT "104857600"

const char *const pool_properties[] = {
  "sector",        "hash",       "max-size",
  "full-warn",     "ddt-quota",  "copies",
  "metadata-copy", "scrub-rate", "scrub-interval",
  "drift-keep",    ALERT_RATIO,  ALERT_GROWTH,
  ALERT_UNIQUE,    "block-size", "compress",
  "dedup",         NULL,
};

static const struct {
  const char *name, *value;
} defaults[] = {
  { "max-size", "none" },      { "full-warn", "90" },
  { "ddt-quota", "none" },     { "copies", "1" },
  { "metadata-copy", "on" },   { "scrub-rate", SCRUB_RATE_DEFAULT },
  { "scrub-interval", "off" }, { "drift-keep", RETENTION_DEFAULT },
  { ALERT_RATIO, "none" },     { ALERT_GROWTH, "none" },
  { ALERT_UNIQUE, "none" },    { "block-size", BLOCK_SIZE_DEFAULT },
  { "compress", "lz4" },       { "dedup", "on" },
};

/* The same for the value of a property. */
int
pool_property_parse_size (const char *name, const char *value, uint64_t *bytes)
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
    return nbdedup_fail (EINVAL, "%s '%.64s': not a number from 0 to 100", name,
                         value);
  *percent = (unsigned) n;
  return 0;
}

int
check_block_size (uint64_t bytes, uint32_t sector_bytes)
{
  if (bytes < BLOCK_SIZE_MIN || bytes > BLOCK_SIZE_MAX ||
      (bytes & (bytes - 1)) != 0)
    return nbdedup_fail (EINVAL,
                         "block-size %" PRIu64 ": must be a power of "
                         "two from 4K to 1M",
                         bytes);
  if (bytes < sector_bytes)
    return nbdedup_fail (EINVAL,
                         "block-size %" PRIu64 ": must not be below "
                         "the pool's sector, %" PRIu32,
                         bytes, sector_bytes);
  return 0;
}

int
nbdedup_check_block_size (uint64_t bytes)
{
  return check_block_size (bytes, 0);
}

static int
check_copy (const char *value)
{
  if (strcmp (value, "on") == 0 || strcmp (value, "off") == 0)
    return 0;
  /* The server's working directory differs from the command's. */
  if (value[0] != '/')
    return nbdedup_fail (EINVAL,
                         "metadata-copy '%.64s': must be on, off, or "
                         "the absolute path of a file",
                         value);
  if (strlen (value) > PROPERTY_VALUE_MAX)
    return nbdedup_fail (EINVAL, "metadata-copy: a path has at most %d bytes",
                         PROPERTY_VALUE_MAX);
  return 0;
}

/* Of what a pool may take. */
static bool
is_limit (const char *name)
{
  return strcmp (name, "max-size") == 0 || strcmp (name, "ddt-quota") == 0;
}

/* 0 would be no limit for one user, and nothing at all for the next; a scrub at
 * 0 bytes a second would never end.
 */
static int
check_limit (const char *name, const char *value)
{
  uint64_t bytes;

  if (strcmp (value, "none") == 0)
    return 0;
  if (pool_property_parse_size (name, value, &bytes) == -1)
    return -1;
  if (bytes == 0)
    return nbdedup_fail (EINVAL,
                         "%s '%.64s': use none for no limit, or a size above 0",
                         name, value);
  return 0;
}

int
pool_property_parse_interval (const char *value, uint64_t *s)
{
  *s = 0;
  if (strcmp (value, "off") == 0)
    return 0;
  if (nbdedup_parse_age (value, s) == -1 || *s == 0)
    return nbdedup_fail (EINVAL,
                         "scrub-interval '%.64s': must be off, or a "
                         "number with s, m, h, d or w, of at most ten years",
                         value);
  return 0;
}

int
pool_property_check (const char *name, const char *value)
{
  struct compression c;
  struct retention_policy policy;
  enum dedup_mode mode;
  uint64_t bytes;
  unsigned percent;

  if (strcmp (name, "sector") == 0 || strcmp (name, "hash") == 0)
    return nbdedup_fail (EINVAL, "%s is fixed when the pool is made", name);
  if (strcmp (name, "scrub-rate") == 0)
    return check_limit (name, value);
  if (strcmp (name, "scrub-interval") == 0)
    return pool_property_parse_interval (value, &bytes);
  if (is_limit (name))
    return check_limit (name, value);
  if (strcmp (name, "full-warn") == 0)
    return parse_percent (name, value, &percent);
  if (strcmp (name, "copies") == 0)
    return copies_parse (value, &percent, &bytes);
  if (strcmp (name, "metadata-copy") == 0)
    return check_copy (value);
  if (strcmp (name, "drift-keep") == 0)
    return retention_policy_parse (value, &policy);
  if (alert_property_is (name))
    return alert_property_check (name, value);
  if (strcmp (name, "block-size") == 0)
    return pool_property_parse_size (name, value, &bytes) == -1
      ? -1
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
  if (r == -1)
    return -1;
  /* 0.9.0 took 0 for no limit. */
  if (r == 1 && is_limit (name) && strcmp (*value, "0") == 0)
    free (*value);
  else if (r == 1)
    return 0;
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

int
pool_property_limit (struct nbdedup_pool *pool, const char *name,
                     uint64_t *bytes)
{
  CLEANUP_FREE char *value = NULL;

  *bytes = 0;
  if (stored_value (pool, name, &value) == -1)
    return -1;
  return strcmp (value, "none") == 0
    ? 0
    : pool_property_parse_size (name, value, bytes);
}

int
pool_property_percent (struct nbdedup_pool *pool, const char *name,
                       unsigned *percent)
{
  CLEANUP_FREE char *value = NULL;

  return stored_value (pool, name, &value) == -1
    ? -1
    : parse_percent (name, value, percent);
}

/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/log.h"
#include "core/alert-property.h"
#include "core/engine.h"
#include "core/pool-property.h"
#include "core/txg.h"
#include "data/capacity.h"
#include "data/watch.h"
#include "format/copies.h"
#include "meta/meta.h"
#include "report/copier.h"
#include "report/scrub.h"
#include "report/scrubber.h"
#include "service/property-apply.h"
#include "space/space.h"

static int
load_scrub (struct nbdedup_pool *pool)
{
  CLEANUP_FREE char *interval = NULL;
  uint64_t n;

  if (pool_property_limit (pool, "scrub-rate", &n) == -1)
    return -1;
  pool->scrub->rate = n;
  if (pool_property_get (pool, "scrub-interval", &interval) == -1 ||
      pool_property_parse_interval (interval, &n) == -1)
    return -1;
  pool->scrub->interval_s = n;
  scrubber_wake (pool->scrubber);
  return 0;
}

static int
load_copies (struct nbdedup_pool *pool)
{
  CLEANUP_FREE char *value = NULL;
  uint64_t refs;
  unsigned nr;

  if (pool_property_get (pool, "copies", &value) == -1 ||
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

/* A damaged "off" is no path: a file of that name, in the server's working
 * directory, would get the copy.
 */
static int
load_copy (struct nbdedup_pool *pool)
{
  CLEANUP_FREE char *copy = NULL;

  if (pool_property_get (pool, "metadata-copy", &copy) == -1)
    return -1;
  if (pool_property_check ("metadata-copy", copy) == 0)
    return meta_copy_set (pool->meta, copy);
  nbdedup_log (NBDEDUP_LOG_WARNING,
               "%s: %s: set it again; the copy is beside "
               "pool.db until then",
               pool->path, nbdedup_error ());
  return meta_copy_set (pool->meta, "on");
}

int
pool_properties_load (struct nbdedup_pool *pool)
{
  unsigned percent;
  uint64_t bytes;

  if (pool_property_limit (pool, "max-size", &bytes) == -1)
    return -1;
  space_set_max (pool->space, bytes);
  if (pool_property_limit (pool, "ddt-quota", &bytes) == -1)
    return -1;
  pool->ddt_quota_bytes = bytes;
  if (load_scrub (pool) == -1 || load_copies (pool) == -1)
    return -1;
  if (pool_property_percent (pool, "full-warn", &percent) == -1)
    return -1;
  pool->watch->full_warn = percent;
  return load_copy (pool);
}

struct set {
  const char *name;
  char value[PROPERTY_VALUE_MAX + 1]; /* room for the longest value */
};

static int
set_in_transaction (void *arg, struct meta_conn *c, struct meta_state *state)
{
  struct set *s = arg;

  (void) state;
  return meta_property_put (c, s->name, s->value);
}

/* The new value could not be applied: store the old one.  Keeps the error. */
static int
put_back (struct nbdedup_pool *pool, const char *name, const char *value)
{
  struct set s = { .name = name };
  int err = errno;
  char text[512];

  assert_held (&pool->admin);
  snprintf (text, sizeof text, "%s", nbdedup_error ());
  snprintf (s.value, sizeof s.value, "%s", value);
  if (txg_run (pool->txg, set_in_transaction, NULL, &s) == 0)
    (void) pool_properties_load (pool);
  return nbdedup_fail (err, "%s", text);
}

/* Reject a limit below the used space, which would refuse all new data. */
static int
check_max_size (struct nbdedup_pool *pool, uint64_t bytes)
{
  struct capacity cap;

  if (capacity_used (pool, &cap) == -1)
    return -1;
  if (bytes < cap.used_bytes)
    return nbdedup_fail (EBUSY,
                         "max-size %" PRIu64 ": %" PRIu64 " bytes are "
                         "in use already: destroy volumes or trim data first",
                         bytes, cap.used_bytes);
  return 0;
}

int
pool_property_set (struct nbdedup_pool *pool, const char *name,
                   const char *value)
{
  CLEANUP_FREE char *before = NULL;
  struct set s = { .name = name };
  uint64_t bytes = 0;

  assert_held (&pool->admin);
  if (pool_property_check (name, value) == -1)
    return -1;
  snprintf (s.value, sizeof s.value, "%s", value);
  /* Sizes are stored in bytes. */
  if (strcmp (name, "block-size") == 0 || strcmp (name, "max-size") == 0 ||
      strcmp (name, "ddt-quota") == 0 || strcmp (name, "scrub-rate") == 0 ||
      strcmp (name, ALERT_GROWTH) == 0 || strcmp (name, ALERT_UNIQUE) == 0) {
    if (strcmp (value, "none") != 0) {
      if (pool_property_parse_size (name, value, &bytes) == -1)
        return -1;
      snprintf (s.value, sizeof s.value, "%" PRIu64, bytes);
    }
  }
  if (strcmp (name, "block-size") == 0 &&
      check_block_size (bytes, pool->sector_bytes) == -1)
    return -1;
  if (strcmp (name, "max-size") == 0 && bytes > 0 &&
      check_max_size (pool, bytes) == -1)
    return -1;
  if (strcmp (name, "metadata-copy") == 0 &&
      meta_copy_check_value (pool->meta, value) == -1)
    return nbdedup_fail (errno, "metadata-copy: %s", nbdedup_error ());
  /* Check for room now, so that clients' writes do not fail for lack of it. */
  if (strcmp (name, "copies") == 0 && value[0] != '1' &&
      txg_check_copies (pool->txg) == -1)
    return nbdedup_fail (ENOSPC,
                         "copies: the pool's file system has no room "
                         "for their rows in pool.db: free some space on it");
  if (pool_property_get (pool, name, &before) == -1 ||
      txg_run (pool->txg, set_in_transaction, NULL, &s) == -1)
    return -1;
  if (pool_properties_load (pool) == -1)
    return put_back (pool, name, before);
  watch_look (pool, true);
  return 0;
}

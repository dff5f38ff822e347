/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "core/alert-property.h"
#include "core/pool-property.h"
#include "meta/meta.h"

/* More digits tell nothing. */
#define RATIO_TEXT_MAX 15

bool
alert_property_is (const char *name)
{
  return strcmp (name, ALERT_RATIO) == 0 || strcmp (name, ALERT_GROWTH) == 0 ||
    strcmp (name, ALERT_UNIQUE) == 0;
}

int
alert_parse_ratio (const char *value, double *ratio)
{
  const char *point = strchr (value, '.');
  const size_t digits = strspn (value, "0123456789.");

  *ratio = 0;
  if (strcmp (value, "none") == 0)
    return 0;
  if (digits > 0 && digits == strlen (value) && digits <= RATIO_TEXT_MAX &&
      (point == NULL || strchr (point + 1, '.') == NULL))
    *ratio = strtod (value, NULL);
  /* No ratio is below 1. */
  if (*ratio <= 1)
    return nbdedup_fail (EINVAL,
                         "'%.64s': must be none, or a number above 1, "
                         "such as 2 or 1.5",
                         value);
  return 0;
}

static int
check_size (const char *name, const char *value)
{
  uint64_t bytes;

  return strcmp (value, "none") == 0
    ? 0
    : pool_property_parse_size (name, value, &bytes);
}

int
alert_property_check (const char *name, const char *value)
{
  double ratio;

  if (strcmp (name, ALERT_RATIO) != 0)
    return check_size (name, value);
  if (alert_parse_ratio (value, &ratio) == -1)
    return nbdedup_fail (EINVAL, "%s %s", name, nbdedup_error ());
  return 0;
}

int
alert_volume_check (const char *value)
{
  return strcmp (value, ALERT_DEFAULT) == 0 ? 0
                                            : check_size (ALERT_UNIQUE, value);
}

/* No command asks the pool for a property of this name. */
static void
row_name (uint64_t volume, char name[64])
{
  snprintf (name, 64, ALERT_UNIQUE "/%" PRIu64, volume);
}

int
alert_volume_get (struct meta_conn *c, uint64_t volume, char **value)
{
  char name[64];
  int r;

  row_name (volume, name);
  r = meta_property_get (c, name, value);
  if (r != 0)
    return r == 1 ? 0 : -1;
  *value = strdup (ALERT_DEFAULT);
  return *value ? 0 : nbdedup_fail (ENOMEM, "no memory");
}

int
alert_volume_put (struct meta_conn *c, uint64_t volume, const char *value)
{
  char name[64], text[32];
  uint64_t bytes;

  row_name (volume, name);
  if (strcmp (value, ALERT_DEFAULT) == 0)
    return meta_property_delete (c, name);
  if (strcmp (value, "none") == 0)
    return meta_property_put (c, name, value);
  if (pool_property_parse_size (ALERT_UNIQUE, value, &bytes) == -1)
    return -1;
  snprintf (text, sizeof text, "%" PRIu64, bytes);
  return meta_property_put (c, name, text);
}

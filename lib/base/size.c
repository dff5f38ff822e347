/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "nbdedup.h"

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

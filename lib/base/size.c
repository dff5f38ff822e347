/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <ctype.h>
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "nbdedup.h"

/* SQLite's and JSON's integers are signed. */
#define SIZE_MAX_BYTES ((uint64_t) INT64_MAX)
/* Round fractions down to this; a volume's size is a multiple of it. */
#define FRACTION_BYTES 512
/* Ignore further digits of a fraction: with a T they would overflow. */
#define FRACTION_DIGITS 6
/* Ten years. */
#define AGE_MAX_S UINT64_C (315360000)

static int
fail_syntax (void)
{
  return nbdedup_fail (EINVAL,
                       "not a size: give a number and, if needed, K, "
                       "M, G or T (powers of 1024), as in 512M, 1.5G or 10GiB");
}

static int
fail_too_large (void)
{
  return nbdedup_fail (EINVAL, "too large for a size");
}

/* The shift for a unit such as "G", "GiB" or "".  -1: not a unit. */
static int
parse_unit (const char *s, unsigned *shift)
{
  static const char units[] = "KMGT";
  const char *u;

  *shift = 0;
  if (*s == '\0')
    return 0;
  u = strchr (units, toupper ((unsigned char) *s));
  if (u == NULL)
    return fail_syntax ();
  *shift = 10 * (unsigned) (u - units + 1);
  if (strcasecmp (s + 1, "B") == 0)
    return nbdedup_fail (EINVAL,
                         "%s is ambiguous (powers of 1000 or of 1024): "
                         "write %c or %ciB, which mean powers of 1024",
                         s, *u, *u);
  return s[1] == '\0' || strcasecmp (s + 1, "iB") == 0 ? 0 : fail_syntax ();
}

int
nbdedup_parse_size (const char *s, uint64_t *bytes)
{
  uint64_t whole = 0, fraction = 0, divisor = 1;
  bool has_fraction = false;
  unsigned shift, digits = 0;

  if (!isdigit ((unsigned char) *s))
    return fail_syntax ();
  for (; isdigit ((unsigned char) *s); ++s) {
    if (whole > (SIZE_MAX_BYTES - 9) / 10)
      return fail_too_large ();
    whole = whole * 10 + (uint64_t) (*s - '0');
  }
  if (*s == '.') {
    has_fraction = true;
    for (++s; isdigit ((unsigned char) *s); ++s)
      if (++digits <= FRACTION_DIGITS) {
        fraction = fraction * 10 + (uint64_t) (*s - '0');
        divisor *= 10;
      }
    if (digits == 0)
      return fail_syntax ();
  }
  if (parse_unit (s, &shift) == -1)
    return -1;
  if (has_fraction && shift == 0)
    return nbdedup_fail (EINVAL,
                         "not a size: a fraction needs a unit (K, M, G "
                         "or T)");
  if (whole > SIZE_MAX_BYTES >> shift)
    return fail_too_large ();
  *bytes = whole << shift;
  if (has_fraction)
    *bytes += (fraction << shift) / divisor / FRACTION_BYTES * FRACTION_BYTES;
  return *bytes > SIZE_MAX_BYTES ? fail_too_large () : 0;
}

static int
fail_age (void)
{
  return nbdedup_fail (EINVAL,
                       "not an age: give a number with s, m, h, d or "
                       "w, of at most ten years, as in 90d");
}

static uint64_t
seconds_of (char unit)
{
  switch (unit) {
  case 's':
    return 1;
  case 'm':
    return 60;
  case 'h':
    return 3600;
  case 'd':
    return 86400;
  case 'w':
    return 604800;
  default:
    return 0;
  }
}

int
nbdedup_parse_age (const char *s, uint64_t *seconds)
{
  uint64_t n = 0, unit;

  if (!isdigit ((unsigned char) *s))
    return fail_age ();
  for (; isdigit ((unsigned char) *s) && n <= AGE_MAX_S; ++s)
    n = n * 10 + (uint64_t) (*s - '0');
  unit = seconds_of (*s);
  if (unit == 0 || s[1] != '\0' || n > AGE_MAX_S / unit)
    return fail_age ();
  *seconds = n * unit;
  return 0;
}

/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "volume/allow.h"

/* (uid_t) -1 is no user. */
#define UID_NR_MAX (UINT32_MAX - 1)

/* The end of the entry that begins here: a comma, or the end of the list. */
static const char *
end_of_entry (const char *p)
{
  for (; *p && *p != ','; ++p)
    if (*p == '\\' && p[1])
      ++p;
  return p;
}

static bool
is_number (const char *p, const char *end)
{
  return p < end && strspn (p, "0123456789") >= (size_t) (end - p);
}

static int
check_uid (const char *p, const char *end)
{
  uint64_t uid = 0;

  for (; p < end && uid <= UID_NR_MAX; ++p)
    uid = uid * 10 + (uint64_t) (*p - '0');
  if (uid > UID_NR_MAX)
    return nbdedup_fail (EINVAL, "allow: a uid is at most %" PRIu32,
                         UID_NR_MAX);
  return 0;
}

static int
check_entry (const char *p, const char *end)
{
  if (p == end)
    return nbdedup_fail (EINVAL,
                         "allow: an empty entry: write all, or uids "
                         "and TLS identities, separated by commas");
  if (is_number (p, end))
    return check_uid (p, end);
  if (end - p == 3 && memcmp (p, "all", 3) == 0)
    return nbdedup_fail (EINVAL,
                         "allow: 'all' lets every client in, and "
                         "stands alone: write all, or a list without it");
  if (memchr (p, '=', (size_t) (end - p)) == NULL)
    return nbdedup_fail (EINVAL,
                         "allow: '%.*s' can never match: a user is "
                         "given by number (id -u NAME), a certificate by its "
                         "distinguished name (CN=web1\\,O=Example)",
                         (int) (end - p < 64 ? end - p : 64), p);
  return 0;
}

int
allow_check (const char *allow)
{
  const char *p, *end;

  for (p = allow; *p; ++p)
    if (iscntrl ((unsigned char) *p))
      return nbdedup_fail (EINVAL,
                           "allow: control characters are not "
                           "permitted");
  if (strcmp (allow, "all") == 0)
    return 0;
  for (p = allow;; p = end + 1) {
    end = end_of_entry (p);
    if (check_entry (p, end) == -1)
      return -1;
    if (*end == '\0')
      return 0;
  }
}

/* Is the entry, without its backslashes, this text? */
static bool
is_equal (const char *p, const char *end, const char *text)
{
  for (; p < end; ++p, ++text) {
    if (*p == '\\' && p + 1 < end)
      ++p;
    if (*p != *text)
      return false;
  }
  return *text == '\0';
}

bool
allow_has (const char *allow, int64_t uid, const char *tls_dn)
{
  const char *p, *end;
  char number[24];

  if (strcmp (allow, "all") == 0)
    return true;
  snprintf (number, sizeof number, "%" PRId64, uid);
  for (p = allow;; p = end + 1) {
    end = end_of_entry (p);
    if (p < end &&
        ((uid >= 0 && is_equal (p, end, number)) ||
         (tls_dn && is_equal (p, end, tls_dn))))
      return true;
    if (*end == '\0')
      return false;
  }
}

/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
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

static bool
is_one_of (const char *p, size_t len, const char *const *types)
{
  for (; *types; ++types)
    if (strlen (*types) == len && strncasecmp (p, *types, len) == 0)
      return true;
  return false;
}

/* Does GnuTLS, whose text nbdkit passes on, write such a type of attribute?  It
 * has dotted numbers, or names, of which those that people know in other
 * letters are here.
 */
static bool
is_type (const char *p, size_t len)
{
  static const char *const capital[] = { "CN", "OU",  "DC",    "ST",
                                         "C",  "UID", "EMAIL", NULL };
  size_t i;

  if (len > 0 && strspn (p, "0123456789.") >= len)
    return true;
  if (len <= 1)
    return len == 1 && strchr ("CLO", *p) != NULL;
  for (i = 0; i < len; ++i)
    if (!isalnum ((unsigned char) p[i]) ||
        (islower ((unsigned char) p[i]) && is_one_of (p, len, capital)))
      return false;
  return true;
}

/* The entry without the list's backslashes; NULL: no memory. */
static char *
entry_text (const char *p, const char *end)
{
  char *text = calloc ((size_t) (end - p) + 1, 1), *q = text;

  if (text == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  for (; p < end; ++p) {
    if (*p == '\\' && p + 1 < end)
      ++p;
    *q++ = *p;
  }
  return text;
}

/* Check a distinguished name, TYPE=VALUE,TYPE=VALUE...  (RFC 4514).  Returns 1
 * if it is only the rest of one, which names a place, not a client.
 */
static int
check_name (const char *p, const char *end)
{
  static const char *const rest[] = { "O",  "OU",     "L",          "ST", "C",
                                      "DC", "STREET", "postalCode", NULL };
  CLEANUP_FREE char *name = entry_text (p, end);
  const char *part, *next, *equals;
  bool is_rest = true;

  if (name == NULL)
    return -1;
  for (part = name;; part = next + 1) {
    next = end_of_entry (part); /* the same rule of commas and backslashes */
    equals = memchr (part, '=', (size_t) (next - part));
    if (equals == NULL || equals + 1 == next ||
        !is_type (part, (size_t) (equals - part)))
      return nbdedup_fail (EINVAL,
                           "allow: '%.*s' can never match: a user is "
                           "given by number (id -u NAME), a certificate by its "
                           "distinguished name, as GnuTLS writes it "
                           "(CN=web1\\,O=Example\\\\\\, Inc.)",
                           (int) (next - part < 64 ? next - part : 64), part);
    is_rest &= is_one_of (part, (size_t) (equals - part), rest);
    if (*next == '\0')
      return is_rest;
  }
}

/* '*name': was the entry before it a certificate's name?  Is this one? */
static int
check_entry (const char *p, const char *end, bool *name)
{
  const bool after_name = *name;
  int r;

  *name = false;
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
  r = check_name (p, end);
  if (r == 1 && after_name)
    return nbdedup_fail (EINVAL,
                         "allow: '%.*s' belongs to the name before it: put a "
                         "backslash before each comma of a name "
                         "(CN=web1\\,O=Example)",
                         (int) (end - p < 64 ? end - p : 64), p);
  *name = r == 0;
  return r == -1 ? -1 : 0;
}

int
allow_check (const char *allow)
{
  const char *p, *end;
  bool name = false;

  for (p = allow; *p; ++p)
    if (iscntrl ((unsigned char) *p))
      return nbdedup_fail (EINVAL,
                           "allow: control characters are not "
                           "permitted");
  if (strcmp (allow, "all") == 0)
    return 0;
  for (p = allow;; p = end + 1) {
    end = end_of_entry (p);
    if (check_entry (p, end, &name) == -1)
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

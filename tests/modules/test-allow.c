/* SPDX-License-Identifier: BSD-3-Clause */

/* The property "allow": valid lists, lists that can never match, and that only
 * the clients that a list names match it, to the letter.
 */

#include <config.h>

#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "rigs/testutil.h"
#include "volume/allow.h"

static void
test_lists (void)
{
  static const char *const good[] = {
    "all",
    "0",
    "1000",
    "1000,1001",
    "4294967294",
    "CN=web1",
    "CN=web1\\,O=Example\\\\\\, Inc.\\,C=DE",
    "UID=alice\\,DC=example\\,DC=org",
    "1.2.3.4=#0c0141\\,CN=web1",
    "serialNumber=7+CN=web1",
    "CN=web1,CN=web2\\,O=Example,0",
    "O=Example",
    "0,O=Example,O=Other",
    "0,CN=web1\\,O=Example,7",
    "CN=a\\\\b",
    "CN=ends with\\\\",
  };
  static const char *const bad[] = {
    "",
    ",",
    "1000,",
    ",1000",
    "1,,2",
    "root",
    "all,1000",
    "0,all",
    "99999999999",
    "4294967295",
    "18446744073709551616",
    "-1",
    "1000 1001",
    "0x10",
    "CN=web1,example",
    "CN=web1\n",
    "CN=\tx",
  };
  size_t i;

  for (i = 0; i < sizeof good / sizeof good[0]; ++i)
    if (allow_check (good[i]) == -1)
      die ("'%s' is refused: %s", good[i], nbdedup_error ());
  for (i = 0; i < sizeof bad / sizeof bad[0]; ++i)
    if (allow_check (bad[i]) == 0 || errno != EINVAL)
      die ("'%s' is no list", bad[i]);
}

/* A refusal says what is wrong with the list. */
static void
test_reasons (void)
{
  static const struct {
    const char *allow, *reason;
  } cases[] = {
    { "1000,,2", "an empty entry" },
    { "4294967295", "a uid is at most 4294967294" },
    { "0,root", "'root' can never match" },
    { "all,1000", "'all' lets every client in" },
    { "1000,CN=web1,all", "'all' lets every client in" },
    { "allow", "'allow' can never match" },
    { "al,1", "'al' can never match" },
    { "CN=", "'CN=' can never match" },
    { "=web1", "'=web1' can never match" },
    { "X=1", "'X=1' can never match" },
    { "cn=web1", "'cn=web1' can never match" },
    { "CN = web1", "'CN = web1' can never match" },
    { "CN=web1\\, O=Example", "' O=Example' can never match" },
    { "CN=web1\\,O=Example\\, Inc.", "' Inc.' can never match" },
    { "CN=web1\\,", "'' can never match" },
    { "CN=web1,O=Example,C=DE", "'O=Example' belongs to the name before it" },
  };
  size_t i;

  for (i = 0; i < sizeof cases / sizeof cases[0]; ++i)
    if (allow_check (cases[i].allow) == 0 ||
        strstr (nbdedup_error (), cases[i].reason) == NULL)
      die ("'%s' is refused with '%s'", cases[i].allow, nbdedup_error ());
}

static void
test_clients (void)
{
  static const struct {
    const char *allow;
    int64_t uid;
    const char *dn;
    bool expected;
  } cases[] = {
    { "all", -1, NULL, true },
    { "0", 0, NULL, true },
    { "0", -1, NULL, false },
    { "0", 10, NULL, false },
    { "10,1000,7", 1000, NULL, true },
    { "10,1000,7", 7, NULL, true },
    { "10,1000,7", 100, NULL, false },
    { "10,1000,7", 0, NULL, false },
    { "CN=web1", -1, "CN=web1", true },
    { "CN=web1", -1, "CN=web10", false },
    { "CN=web10", -1, "CN=web1", false },
    { "CN=web1", 1, NULL, false },
    { "CN=web1\\,O=Example", -1, "CN=web1,O=Example", true },
    { "CN=web1\\,O=Example", -1, "CN=web1", false },
    { "CN=web1\\,O=Example", -1, "O=Example", false },
    { "5,CN=web1\\,O=Example,6", 6, "CN=other,O=Example", true },
    { "5,CN=web1\\,O=Example,6", 4, "CN=web1,O=Example", true },
    /* The name has a backslash itself, as RFC 4514 writes a comma. */
    { "CN=a\\\\\\,b\\,O=c", -1, "CN=a\\,b,O=c", true },
    { "CN=a\\\\\\,b\\,O=c", -1, "CN=a,b,O=c", false },
    /* Lists of older versions, which did not check them. */
    { "CN=web1,O=Example", -1, "CN=web1,O=Example", false },
    { "root", 0, NULL, false },
    { "1,,2", 2, "", true },
    { "1,,2", 3, "", false },
    { "CN=x\\", -1, "CN=x\\", true },
  };
  size_t i;

  for (i = 0; i < sizeof cases / sizeof cases[0]; ++i)
    if (allow_has (cases[i].allow, cases[i].uid, cases[i].dn) !=
        cases[i].expected)
      die ("case %zu: '%s': %s", i, cases[i].allow,
           cases[i].expected ? "is refused" : "is let in");
}

int
main (void)
{
  test_lists ();
  test_reasons ();
  test_clients ();
  return 0;
}

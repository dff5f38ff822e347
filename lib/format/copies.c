/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "format/copies.h"

#define REFS_MAX ((UINT64_C (1) << 48) - 1) /* a count has 48 bits */

int
copies_parse (const char *value, unsigned *nr, uint64_t *refs)
{
  unsigned long long n;
  char *end;

  *nr = 1;
  *refs = 1;
  if (strcmp (value, "1") == 0)
    return 0;
  if (value[0] >= '1' && value[0] <= '0' + COPIES_MAX && value[1] == ':' &&
      isdigit ((unsigned char) value[2])) {
    errno = 0;
    n = strtoull (value + 2, &end, 10);
    if (errno == 0 && *end == '\0' && n >= 1 && n <= REFS_MAX) {
      *nr = (unsigned) (value[0] - '0');
      *refs = n;
      return 0;
    }
  }
  return nbdedup_fail (EINVAL,
                       "copies '%.64s': must be 1, or N:R: N copies, 1 "
                       "to %d, of records with at least R references",
                       value, COPIES_MAX);
}

void
copies_set (struct copies *copies, unsigned nr, uint64_t refs)
{
  bool look = nr == 1 || nr < copies->nr;

  assert (nr >= 1 && nr <= COPIES_MAX && refs >= 1);
  copies->refs = refs;
  copies->nr = nr;
  if (look)
    copies_look (copies);
}

void
copies_look (struct copies *copies)
{
  copies->wanted++;
}

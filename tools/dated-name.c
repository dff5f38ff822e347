/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dated-name.h"
#include "tools.h"

/* Groups: 2 the year, 4 the month, 5 the day, 7 the hour, 8 the minute, 10 the
 * second.  A digit beside it would make it part of a longer number.
 */
#define YEAR "((19|20)[0-9][0-9])"
#define MONTH "(0[1-9]|1[0-2])"
#define DAY "(0[1-9]|[12][0-9]|3[01])"
#define CLOCK "([01][0-9]|2[0-3])[:.h_-]?([0-5][0-9])([:.m_-]?([0-5][0-9]))?"
#define PATTERN                                                                \
  "(^|[^0-9])" YEAR "[-_.]?" MONTH "[-_.]?" DAY "([T_.-]?" CLOCK               \
  "Z?)?($|[^0-9])"

enum {
  BEFORE = 1,
  YEAR_AT = 2,
  MONTH_AT = 4,
  DAY_AT = 5,
  HOUR_AT = 7,
  MINUTE_AT = 8,
  SECOND_AT = 10,
  AFTER = 11,
  NR_GROUPS,
};

static int
number_at (const char *text, const regmatch_t *m)
{
  regoff_t i;
  int n = 0;

  for (i = m->rm_so; i < m->rm_eo; ++i)
    n = n * 10 + (text[i] - '0');
  return n;
}

/* 'file' without the date, and without the separator before it. */
static char *
cut_name (const char *file, size_t start, size_t end)
{
  char *name;

  if (start > 0 && strchr ("-_.@ ", file[start - 1]) != NULL)
    start--;
  if (asprintf (&name, "%.*s%s", (int) start, file, file + end) == -1)
    check_memory (NULL);
  return name;
}

bool
dated_name (const char *file, char **name, int64_t *time)
{
  const char *slash = strrchr (file, '/'), *last = slash ? slash + 1 : file;
  const size_t before = (size_t) (last - file);
  regmatch_t m[NR_GROUPS];
  regex_t regex;
  struct tm tm;
  int r;

  if (regcomp (&regex, PATTERN, REG_EXTENDED) != 0)
    check_memory (NULL);
  r = regexec (&regex, last, NR_GROUPS, m, 0);
  regfree (&regex);
  if (r != 0)
    return false;
  tm = (struct tm) {
    .tm_year = number_at (last, &m[YEAR_AT]) - 1900,
    .tm_mon = number_at (last, &m[MONTH_AT]) - 1,
    .tm_mday = number_at (last, &m[DAY_AT]),
    .tm_hour = number_at (last, &m[HOUR_AT]),
    .tm_min = number_at (last, &m[MINUTE_AT]),
    .tm_sec = number_at (last, &m[SECOND_AT]),
    .tm_isdst = -1,
  };
  *time = mktime (&tm);
  *name = cut_name (file, before + (size_t) m[BEFORE].rm_eo,
                    before + (size_t) m[AFTER].rm_so);
  return true;
}

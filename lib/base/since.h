/* SPDX-License-Identifier: BSD-3-Clause */

#ifndef NBDEDUP_SINCE_H
#define NBDEDUP_SINCE_H

#include <time.h>

#define SINCE_MAX 40

/* " since DATE TIME" in local time; "": 0, which is not known. */
static inline const char *
since_text (time_t since, char text[SINCE_MAX])
{
  struct tm tm;

  if (since == 0 || localtime_r (&since, &tm) == NULL ||
      strftime (text, SINCE_MAX, " since %Y-%m-%d %H:%M:%S", &tm) == 0)
    text[0] = 0;
  return text;
}

#endif /* NBDEDUP_SINCE_H */

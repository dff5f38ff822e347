/* SPDX-License-Identifier: BSD-3-Clause */

/* Gnuplot's tics of time are in UTC, and its months have 30 days; its powers
 * of 1024 have tics at powers of 1000.  So axes get theirs from here.
 */

#include <config.h>

#include <inttypes.h>
#include <math.h>
#include <time.h>

#include "drift-chart.h"

enum part { HOURS, DAYS, MONTHS, YEARS };

static const struct step {
  unsigned nr;
  enum part part;
  unsigned seconds;             /* about */
  const char *format;
} steps[] = {
  { 1, HOURS, 3600, "%H:%M" },
  { 3, HOURS, 3 * 3600, "%H:%M" },
  { 6, HOURS, 6 * 3600, "%a %H:%M" },
  { 12, HOURS, 12 * 3600, "%a %H:%M" },
  { 1, DAYS, 86400, "%-d %b" },
  { 2, DAYS, 2 * 86400, "%-d %b" },
  { 7, DAYS, 7 * 86400, "%-d %b" },
  { 14, DAYS, 14 * 86400, "%-d %b" },
  { 1, MONTHS, 30 * 86400, "%b %Y" },
  { 2, MONTHS, 61 * 86400, "%b %Y" },
  { 3, MONTHS, 91 * 86400, "%b %Y" },
  { 6, MONTHS, 182 * 86400, "%b %Y" },
  { 1, YEARS, 365 * 86400, "%Y" },
  { 2, YEARS, 2 * 365 * 86400, "%Y" },
  { 5, YEARS, 5 * 365 * 86400, "%Y" },
};

#define NR_STEPS (sizeof steps / sizeof steps[0])

/* The beginning of the part of time that *tm is in; mktime follows. */
static void
round_down (struct tm *tm, const struct step *step)
{
  tm->tm_sec = tm->tm_min = 0;
  switch (step->part) {
  case HOURS:
    tm->tm_hour -= tm->tm_hour % (int) step->nr;
    return;
  case DAYS:
    break;
  case YEARS:
    tm->tm_year -= (tm->tm_year + 1900) % (int) step->nr;
    tm->tm_mon = 0;
    tm->tm_mday = 1;
    break;
  case MONTHS:
    tm->tm_mon -= tm->tm_mon % (int) step->nr;
    tm->tm_mday = 1;
  }
  tm->tm_hour = 0;
}

static void
advance (struct tm *tm, const struct step *step)
{
  const int nr = step->nr;

  switch (step->part) {
  case HOURS:
    tm->tm_hour += nr;
    break;
  case DAYS:
    tm->tm_mday += nr;
    break;
  case MONTHS:
    tm->tm_mon += nr;
    break;
  case YEARS:
    tm->tm_year += nr;
  }
}

static void
write_tic (FILE *script, const char *separator, time_t t, const char *format)
{
  char label[32] = "";
  struct tm tm;

  if (localtime_r (&t, &tm) == NULL)
    return;
  strftime (label, sizeof label, format, &tm);
  fprintf (script, "%s'%s' %" PRId64, separator, label, (int64_t) t);
}

void
axis_time (FILE *script, uint64_t from, uint64_t to, unsigned max)
{
  const struct step *step = steps;
  const time_t start = (time_t) from, end = (time_t) to;
  const char *separator = "";
  struct tm tm, copy;
  time_t t;

  while (step + 1 < steps + NR_STEPS &&
         (double) (to - from) / step->seconds > max)
    step++;
  fprintf (script, "set xrange [%" PRIu64 ":%" PRIu64 "]\nset xtics (",
           from, to);
  if (localtime_r (&start, &tm) != NULL)
    for (round_down (&tm, step);; advance (&tm, step)) {
      copy = tm;
      copy.tm_isdst = -1;
      t = mktime (&copy);
      if (t == (time_t) -1 || t > end)
        break;
      if (t >= start) {
        write_tic (script, separator, t, step->format);
        separator = ", ";
      }
    }
  fprintf (script, ")\n");
}

void
axis_moment (FILE *script, uint64_t from, uint64_t to)
{
  fprintf (script, "set xrange [%" PRIu64 ":%" PRIu64 "]\nset xtics (",
           from, to);
  write_tic (script, "", (time_t) (from + (to - from) / 2),
             "%Y-%m-%d %H:%M");
  fprintf (script, ")\n");
}

/* 1, 2 or 5, times a power of ten, so that there are at most 'max' tics. */
static void
set_range (FILE *script, double greatest, unsigned max)
{
  double step;
  unsigned i;

  if (!(greatest > 0))
    greatest = 1;
  step = pow (10, floor (log10 (greatest / max)));
  for (i = 0; i < 2 && greatest / step > max; ++i)
    step *= i == 0 ? 2 : 2.5;
  if (greatest / step > max)
    step *= 2;
  /* Some room at the top. */
  fprintf (script, "set yrange [0:%.17g]\nset ytics %.17g\n",
           greatest * 1.05, step);
}

double
axis_bytes (FILE *script, uint64_t greatest, unsigned max)
{
  static const char *const units[] = {
    "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB",
  };
  double unit = 1;
  unsigned i = 0;

  while (greatest / unit >= 1000 && i + 1 < sizeof units / sizeof units[0]) {
    unit *= 1024;
    i++;
  }
  fprintf (script, "set format y '%%g %s'\n", units[i]);
  set_range (script, greatest / unit, max);
  return unit;
}

void
axis_ratio (FILE *script, double greatest, unsigned max)
{
  fprintf (script, "set format y '%%g'\n");
  set_range (script, greatest, max);
}

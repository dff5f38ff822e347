/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "progress.h"
#include "tools.h"

#define TERMINAL_INTERVAL_MS 200
#define LINE_INTERVAL_MS 1000
#define BAR_LEN 20

/* The one whose bar is on the terminal, or NULL. */
static struct progress *on_screen;

void
progress_start (struct progress *progress, const char *what,
                enum progress_unit unit, bool force)
{
  memset (progress, 0, sizeof *progress);
  progress->what = what;
  progress->unit = unit;
  progress->terminal = isatty (STDERR_FILENO);
  progress->shown = progress->terminal || force;
  progress->start_ms = progress->last_ms = clock_ms ();
}

static void
format_time (uint64_t s, char *buf, size_t len)
{
  if (s >= 3600)
    snprintf (buf, len, "%" PRIu64 ":%02d:%02d", s / 3600, (int) (s / 60 % 60),
              (int) (s % 60));
  else
    snprintf (buf, len, "%d:%02d", (int) (s / 60), (int) (s % 60));
}

/* "  1.2 GiB of 3.4 GiB  512 MiB/s  0:04 left" */
static void
format_bytes (const struct progress *p, char *buf, size_t len)
{
  const uint64_t ms = clock_ms () - p->start_ms;
  const double rate = ms > 0 ? p->done * 1000.0 / ms : 0;
  char done[HUMAN_MAX], total[HUMAN_MAX], rates[HUMAN_MAX], left[32] = "";

  human_bytes (p->done, done);
  human_bytes (rate, rates);
  if (p->total == 0) {
    snprintf (buf, len, "  %s  %s/s", done, rates);
    return;
  }
  /* A day or more is no estimate. */
  if (rate > 0 && p->done < p->total && (p->total - p->done) / rate < 86400)
    format_time ((p->total - p->done) / rate, left, sizeof left);
  snprintf (buf, len, "  %s of %s  %s/s%s%s%s", done,
            human_bytes (p->total, total), rates, *left ? "  " : "", left,
            *left ? " left" : "");
}

static void
draw (struct progress *p)
{
  char bar[BAR_LEN + 1] = "", percent[16] = "", bytes[128] = "";

  if (p->total > 0) {
    const double part = p->done < p->total ? (double) p->done / p->total : 1;

    memset (bar, '.', BAR_LEN);
    memset (bar, '#', part * BAR_LEN);
    bar[BAR_LEN] = 0;
    snprintf (percent, sizeof percent, " %3d%%", (int) (part * 100));
  }
  if (p->unit == PROGRESS_BYTES)
    format_bytes (p, bytes, sizeof bytes);
  if (p->terminal)
    /* Go to column 0, and erase the rest of the last drawing. */
    fprintf (stderr, "\r%s%s%s%s%s%s\033[K", p->what, *bar ? " [" : "", bar,
             *bar ? "]" : "", percent, bytes);
  else
    fprintf (stderr, "%s%s%s\n", p->what, percent, bytes);
  fflush (stderr);
  p->drawn = true;
  on_screen = p->terminal ? p : NULL;
}

void
progress_hide (void)
{
  if (on_screen != NULL)
    fputs ("\r\033[K", stderr);
  on_screen = NULL;
}

void
progress_part (struct progress *p, uint64_t before, uint64_t whole)
{
  p->is_part = true;
  p->before = before;
  p->whole = whole;
}

void
progress_update (struct progress *p, uint64_t done, uint64_t total)
{
  const uint64_t now = clock_ms ();

  p->done = p->before + done;
  p->total = p->is_part ? p->whole : total;
  if (!p->shown ||
      now - p->last_ms <
        (p->terminal ? TERMINAL_INTERVAL_MS : LINE_INTERVAL_MS))
    return;
  p->last_ms = now;
  draw (p);
}

void
progress_complete (struct progress *p)
{
  if (p->total > 0)
    p->done = p->total;
}

void
progress_end (struct progress *p)
{
  if (!p->shown)
    return;
  /* On a terminal work that ended before the first drawing needs none, and work
   * without any update has nothing to draw.
   */
  if (p->drawn || (!p->terminal && (p->done > 0 || p->total > 0)))
    draw (p);
  if (p->terminal && p->drawn)
    putc ('\n', stderr);
  p->shown = false;
  on_screen = NULL;
}

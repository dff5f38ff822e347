/* SPDX-License-Identifier: BSD-3-Clause */

/* Each report is the difference of two answers of the server, and the next one
 * begins where it ended.
 *
 * On a terminal a report replaces the one before.  It is written at once, turns
 * the wrapping of long lines off for itself, and leaves the cursor below it: so
 * the terminal is in order whenever the command ends.
 */

#include <config.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "interrupt.h"
#include "tools.h"
#include "top-rates.h"
#include "top-text.h"
#include "wait.h"

enum {
  KEY_INTERVAL = 0x2000,
  KEY_ONCE,
};

#define INTERVAL_MIN 0.1
#define INTERVAL_MAX 86400
#define INTERVAL_DEFAULT 2

/* Of a report: the pool's line, the heading, the pool's row, "and N more", and
 * the cursor's line.
 */
#define OTHER_LINES 5

#define CLEAR "\033[H\033[J"
#define WRAP_OFF "\033[?7l"
#define WRAP_ON "\033[?7h"

static const struct argp_option options[] = {
  { "interval", KEY_INTERVAL, "SECONDS", 0,
    "The time that each report covers, 0.1 to 86400; default: 2", 0 },
  { "once", KEY_ONCE, NULL, 0, "Print one report, and end", 0 },
  { 0 }
};

struct top {
  struct options common; /* first: parsers get a pointer to it */
  double interval;
  bool once;
  bool is_terminal;
  bool was_lost; /* the last answer did not come */
};

static double
parse_interval (const struct options *opts, const char *arg)
{
  char *end;
  double value;

  errno = 0;
  value = strtod (arg, &end);
  if (errno != 0 || *arg == '\0' || *end != '\0' ||
      !(value >= INTERVAL_MIN && value <= INTERVAL_MAX))
    usage_error (opts,
                 "--interval: '%s' is not a number of seconds from 0.1 "
                 "to 86400",
                 arg);
  return value;
}

static error_t
parse (int key, char *arg, struct argp_state *state)
{
  struct top *top = state->input;

  switch (key) {
  case KEY_INTERVAL:
    top->interval = parse_interval (&top->common, arg);
    return 0;
  case KEY_ONCE:
    top->once = true;
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

static size_t
rows_of_terminal (void)
{
  struct winsize size;

  if (ioctl (STDOUT_FILENO, TIOCGWINSZ, &size) == -1 ||
      size.ws_row <= OTHER_LINES)
    return 1;
  return size.ws_row - OTHER_LINES;
}

static void
report (const struct top *top, const json_t *before, const json_t *now)
{
  const bool redraws = top->is_terminal && !top->once && !top->common.json;
  struct top_rates rates;
  json_t *json;

  top_rates_init (&rates, before, now);
  if (top->common.json) {
    json = top_rates_json (&rates, top->common.pool);
    print_json (json);
    json_decref (json);
  }
  else if (redraws) {
    fputs (CLEAR WRAP_OFF, stdout);
    top_print (&rates, top->common.pool, rows_of_terminal ());
    fputs (WRAP_ON, stdout);
  }
  else {
    top_print (&rates, top->common.pool, 0);
    if (!top->once)
      putchar ('\n');
  }
  top_rates_destroy (&rates);
}

static json_t *
ask (const struct top *top)
{
  return nbdedup_counters (top->common.pool, "nbdedup top", wait_silently);
}

/* One report, if there is an answer to begin from, which this one replaces.
 * -1: end with a failure.
 */
static int
step (struct top *top, json_t **before, bool *reported)
{
  json_t *now = ask (top);

  if (now == NULL && interrupted ())
    return 0;
  if (now == NULL && (top->once || !top->was_lost))
    note ("top: %s%s", nbdedup_error (), top->once ? "" : "; waiting for it");
  top->was_lost = now == NULL;
  if (now == NULL && top->once)
    return -1;
  *reported = *before != NULL && now != NULL &&
    top_is_same_server (*before, now);
  if (*reported)
    report (top, *before, now);
  json_decref (*before);
  *before = now;
  /* At exit, close_stdout tells why. */
  return fflush (stdout) == EOF ? -1 : 0;
}

static int
run_top (struct top *top)
{
  json_t *before = ask (top);
  bool reported = false;
  int r = 0;

  if (before == NULL)
    return interrupted () ? EXIT_SUCCESS : fail ("top: %s", nbdedup_error ());
  while (r == 0 && !interrupted () && !(top->once && reported)) {
    interrupt_wait ((uint64_t) lround (top->interval * 1000));
    if (!interrupted ())
      r = step (top, &before, &reported);
  }
  json_decref (before);
  if (interrupted () && top->is_terminal)
    putchar ('\n'); /* after the ^C */
  if (r == 0 && top->once && !reported)
    return fail ("top: interrupted");
  return r == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

int
cmd_top (int argc, char **argv, const char *pool)
{
  struct top top = { .common.pool = pool, .interval = INTERVAL_DEFAULT };

  options_parse (&top.common, argc, argv, options, parse, "",
                 "Show what the clients of the pool's server are doing: a line "
                 "for each volume that has clients or has had any, and one for "
                 "the pool. Press Ctrl-C to stop.",
                 OPTIONS_READS | OPTIONS_JSON);
  need_pool (&top.common);
  set_command ("top");
  top.is_terminal = isatty (STDOUT_FILENO);
  interrupt_catch ();
  return run_top (&top);
}

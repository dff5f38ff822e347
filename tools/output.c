/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "progress.h"
#include "tools.h"

static void
vnote (const char *fmt, va_list ap)
{
  char *text = NULL, *line = NULL;

  if (vasprintf (&text, fmt, ap) == -1)
    text = NULL;
  if (text != NULL && asprintf (&line, "nbdedup: %s\n", text) == -1)
    line = NULL;
  flockfile (stderr);
  progress_hide ();
  /* In one piece: several commands may write to one file. */
  fputs (line != NULL ? line : "nbdedup: out of memory\n", stderr);
  funlockfile (stderr);
  free (line);
  free (text);
}

void
note (const char *fmt, ...)
{
  va_list ap;

  va_start (ap, fmt);
  vnote (fmt, ap);
  va_end (ap);
}

int
fail (const char *fmt, ...)
{
  va_list ap;

  va_start (ap, fmt);
  vnote (fmt, ap);
  va_end (ap);
  return EXIT_FAILURE;
}

static int failure_status = EXIT_FAILURE;
static const char *prefix = ""; /* "COMMAND: " */

void
set_command (const char *command)
{
  prefix = make_string ("%s: ", command);
}

void
set_failure_status (int status)
{
  failure_status = status;
}

/* The reader closed the pipe, as "head" does, because it needs no more. */
static bool
is_reader_gone (void)
{
  struct pollfd fd = { .fd = STDOUT_FILENO };

  return poll (&fd, 1, 0) == 1 && (fd.revents & POLLERR);
}

/* A full disk may cause an error only at the last write, or at close.  A
 * stdout that was closed from the start does not matter if nothing is printed.
 */
static void
close_stdout (void)
{
  const bool failed = ferror (stdout) || fflush (stdout) == EOF;
  const int err = errno;

  if (failed && is_reader_gone ()) {
    signal (SIGPIPE, SIG_DFL);
    raise (SIGPIPE);
  }
  if (failed || (close (STDOUT_FILENO) == -1 && errno != EBADF)) {
    note ("%sstandard output: %s", prefix, strerror (failed ? err : errno));
    _exit (failure_status);
  }
}

void
check_stdout_at_exit (void)
{
  if (atexit (close_stdout) != 0)
    abort ();
}

int
write_all (int fd, const char *p, size_t len)
{
  ssize_t n;

  for (; len > 0; p += n, len -= n) {
    n = write (fd, p, len);
    if (n == -1)
      return -1;
  }
  return 0;
}

void
print_json (const json_t *json)
{
  /* If a write failed, close_stdout reports it. */
  if (json_dumpf (json, stdout, JSON_INDENT (2)) == -1 && !ferror (stdout)) {
    note ("%sno memory to print the result", prefix);
    exit (failure_status);
  }
  putchar ('\n');
}

const char *
human_bytes (uint64_t bytes, char buf[HUMAN_MAX])
{
  static const char *const units[] = {
    "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB",
  };
  double value = bytes;
  unsigned i = 0;

  /* 999.5 would be printed with four digits. */
  while (value >= 999.5 && i + 1 < sizeof units / sizeof units[0]) {
    value /= 1024;
    i++;
  }
  if (i == 0)
    snprintf (buf, HUMAN_MAX, "%" PRIu64 " B", bytes);
  else
    snprintf (buf, HUMAN_MAX, "%.*f %s",
              value < 9.995     ? 2
                : value < 99.95 ? 1
                                : 0,
              value, units[i]);
  return buf;
}

const char *
block_size_text (uint64_t bytes, char buf[HUMAN_MAX])
{
  const uint64_t kib = bytes >> 10;

  if (kib >= 1024)
    snprintf (buf, HUMAN_MAX, "%" PRIu64 "M", kib >> 10);
  else
    snprintf (buf, HUMAN_MAX, "%" PRIu64 "K", kib);
  return buf;
}

uint64_t
json_size (const json_t *object, const char *key)
{
  const json_int_t n = json_integer_value (json_object_get (object, key));

  return n < 0 ? 0 : n;
}

const char *
json_text (const json_t *object, const char *key)
{
  const char *text = json_string_value (json_object_get (object, key));

  return text ? text : "-";
}

static int
compare_objects (const void *a, const void *b)
{
  return strverscmp (json_text (*(json_t *const *) a, "name"),
                     json_text (*(json_t *const *) b, "name"));
}

json_t *
json_sorted (const json_t *objects)
{
  const size_t nr = json_array_size (objects);
  json_t **p = check_memory (calloc (nr + 1, sizeof *p));
  json_t *sorted = check_memory (json_array ());
  size_t i;

  for (i = 0; i < nr; ++i)
    p[i] = json_array_get (objects, i);
  qsort (p, nr, sizeof *p, compare_objects);
  for (i = 0; i < nr; ++i)
    json_array_append (sorted, p[i]);
  free (p);
  return sorted;
}

/*----------------------------------------------------------------------
 * Tables
 */

struct table {
  const char *align; /* not owned; its length is the width */
  char **cells;      /* owned, each; row after row */
  size_t nr;
};

struct table *
table_new (const char *align)
{
  struct table *table = check_memory (calloc (1, sizeof *table));

  table->align = align;
  return table;
}

void
table_add (struct table *table, const char *fmt, ...)
{
  char **cell = check_memory (
    array_add (&table->cells, &table->nr, sizeof *cell));
  va_list ap;

  va_start (ap, fmt);
  *cell = make_string_va (fmt, ap);
  va_end (ap);
}

void
table_print (struct table *table)
{
  const size_t columns = strlen (table->align);
  size_t *width = check_memory (calloc (columns, sizeof *width));
  size_t i, len;

  for (i = 0; i < table->nr; ++i) {
    len = strlen (table->cells[i]);
    if (len > width[i % columns])
      width[i % columns] = len;
  }
  for (i = 0; i < table->nr; ++i) {
    const size_t c = i % columns;
    const bool last = c + 1 == columns;

    if (table->align[c] == 'r')
      printf ("%*s", (int) width[c], table->cells[i]);
    else if (last)
      printf ("%s", table->cells[i]);
    else
      printf ("%-*s", (int) width[c], table->cells[i]);
    fputs (last ? "\n" : "  ", stdout);
    free (table->cells[i]);
  }
  free (width);
  free (table->cells);
  free (table);
}

/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "interrupt.h"
#include "tools.h"
#include "wait.h"

/* The exit statuses of plugins of monitoring systems. */
enum {
  STATUS_OK = 0,
  STATUS_WARNING,
  STATUS_CRITICAL,
  STATUS_UNKNOWN,
};

static const char *
describe_time (const json_t *report, const char *key, char buf[64])
{
  const time_t t = (time_t) json_size (report, key);
  struct tm tm;

  if (localtime_r (&t, &tm) == NULL ||
      strftime (buf, 64, "%Y-%m-%d %H:%M:%S", &tm) == 0)
    snprintf (buf, 64, "an unknown time");
  return buf;
}

static void
print_open (const json_t *open)
{
  if (!json_is_object (open))
    printf ("open        no\n");
  else if (json_is_true (json_object_get (open, "read_only")))
    printf ("open        read-only, by a %s\n", json_text (open, "by"));
  else
    printf ("open        by the %s %s (PID %" PRIu64 ")\n",
            json_text (open, "by"), json_text (open, "who"),
            json_size (open, "pid"));
}

static void
print_space (const json_t *space)
{
  const json_t *max = json_object_get (space, "max_size");
  char a[HUMAN_MAX], b[HUMAN_MAX];

  if (!json_is_object (space))
    return;
  printf ("used        %s of records, %s of metadata (%.0f %% of the space)\n",
          human_bytes (json_size (space, "used_bytes"), a),
          human_bytes (json_size (space, "metadata_bytes"), b),
          json_number_value (json_object_get (space, "used_percent")));
  printf ("free        %s for records, %s for metadata\n",
          human_bytes (json_size (space, "free_bytes"), a),
          human_bytes (json_size (space, "metadata_free_bytes"), b));
  if (json_is_integer (max))
    printf ("max-size    %s\n", human_bytes (json_size (space, "max_size"), a));
  printf ("writable    %s at worst, %s likely%s\n",
          human_bytes (json_size (space, "writable_min_bytes"), a),
          human_bytes (json_size (space, "writable_bytes"), b),
          json_is_true (json_object_get (space, "full")) ? "; full" : "");
}

static void
print_copy (const json_t *copy)
{
  if (json_is_object (copy))
    printf ("metadata    second copy: %s\n", json_text (copy, "state"));
}

static void
print_places (const json_t *report, const char *key, const char *what)
{
  const json_t *places = json_object_get (report, key), *place;
  size_t i;

  json_array_foreach (places, i, place) {
    if (i == 5) {
      printf ("            and %zu other places\n",
              json_array_size (places) - i);
      return;
    }
    printf ("            %s: %s: %" PRIu64 " bytes at offset %" PRIu64 "\n",
            what, json_text (place, "name"), json_size (place, "length"),
            json_size (place, "offset"));
  }
}

static void
print_progress (const json_t *progress)
{
  if (json_is_object (progress))
    printf ("            %s: %" PRIu64 " of %" PRIu64 " records, %" PRIu64
            " damaged\n",
            json_is_true (json_object_get (progress, "running"))
              ? "one is running"
              : "one was stopped",
            json_size (progress, "records"), json_size (progress, "total"),
            json_size (progress, "errors"));
}

static void
print_item (bool *first, const char *what, const char *left)
{
  printf ("%-12s%s: %s left\n", *first ? "running" : "", what, left);
  *first = false;
}

static void
print_count (bool *first, const char *what, const json_t *object,
             const char *key)
{
  char left[24];

  snprintf (left, sizeof left, "%" PRIu64, json_size (object, key));
  if (json_size (object, key) > 0)
    print_item (first, what, left);
}

/* What runs in the background, and a scrub, also a user's. */
static void
print_activity (const json_t *status)
{
  const json_t *activity = json_object_get (status, "activity");
  const json_t *scrub = json_object_get (status, "scrub_progress");
  char buf[HUMAN_MAX], left[40];
  bool first = true;

  if (json_size (activity, "freeing_layers") > 0)
    print_item (&first, "freeing destroyed data",
                human_bytes (json_size (activity, "freeing_bytes"), buf));
  if (json_is_true (json_object_get (scrub, "running"))) {
    const uint64_t done = json_size (scrub, "records");
    const uint64_t total = json_size (scrub, "total");

    snprintf (left, sizeof left, "%" PRIu64 " records",
              done < total ? total - done : 0);
    print_item (&first, "scrub", left);
  }
  print_count (&first, "merging layers of destroyed snapshots", activity,
               "merging_layers");
  print_count (&first, "merging entries of the hash index", activity,
               "merge_entries");
  print_count (&first, "copying records", json_object_get (status, "copies"),
               "waiting");
  print_count (&first, "warming the caches", json_object_get (status, "warm"),
               "waiting");
  if (first)
    printf ("running     nothing\n");
}

static void
print_queues (const json_t *queues)
{
  char dirty[HUMAN_MAX], max[HUMAN_MAX], journal[HUMAN_MAX];

  if (!json_is_object (queues))
    return;
  printf ("queues      %" PRIu64 " client%s, %" PRIu64 " request%s; "
          "%s dirty of %s; %s in the journal\n",
          json_size (queues, "clients"),
          json_size (queues, "clients") == 1 ? "" : "s",
          json_size (queues, "requests"),
          json_size (queues, "requests") == 1 ? "" : "s",
          human_bytes (json_size (queues, "dirty_bytes"), dirty),
          human_bytes (json_size (queues, "dirty_max_bytes"), max),
          human_bytes (json_size (queues, "journal_bytes"), journal));
}

static void
print_reports (const json_t *status)
{
  const json_t *damage = json_object_get (status, "damage");
  const json_t *recovery = json_object_get (status, "recovery");
  const json_t *scrub = json_object_get (status, "scrub");
  char buf[64];

  printf ("damage      %" PRIu64 " records, %" PRIu64 " lost blocks, %" PRIu64
          " segments\n",
          json_size (damage, "damaged_records"),
          json_size (damage, "lost_blocks"),
          json_size (damage, "damaged_segments"));
  if (json_is_object (recovery)) {
    printf ("recovery    %s: %" PRIu64 " batches, %" PRIu64 " blocks; %" PRIu64
            " dropped, %" PRIu64 " lost\n",
            describe_time (recovery, "time", buf),
            json_size (recovery, "batches"), json_size (recovery, "blocks"),
            json_size (recovery, "dropped_blocks"),
            json_size (recovery, "lost_blocks"));
    print_places (recovery, "dropped", "dropped");
    print_places (recovery, "lost", "lost");
  }
  else
    printf ("recovery    never\n");
  if (json_is_object (scrub))
    printf ("scrub       %s: %" PRIu64 " records, %" PRIu64 " errors\n",
            describe_time (scrub, "time", buf), json_size (scrub, "records"),
            json_size (scrub, "errors"));
  else
    printf ("scrub       never\n");
  print_progress (json_object_get (status, "scrub_progress"));
}

static const char *
size_or_dash (const json_t *space, const char *key, char buf[HUMAN_MAX])
{
  return json_is_integer (json_object_get (space, key))
    ? human_bytes (json_size (space, key), buf)
    : "-";
}

static void
print_opening (const json_t *opening)
{
  const uint64_t done = json_size (opening, "done");
  const uint64_t total = json_size (opening, "total");

  printf ("            is opening it: %s", json_text (opening, "stage"));
  if (total > 0)
    printf (", %" PRIu64 " of %" PRIu64 " batches", done, total);
  printf ("\n");
}

/* The figures that are known while a command has the pool, or a server is
 * opening it.
 */
static void
print_busy (const json_t *open, const json_t *space)
{
  const json_t *opening = json_object_get (open, "opening");
  char a[HUMAN_MAX], b[HUMAN_MAX];
  char buf[64];

  print_open (open);
  if (opening)
    print_opening (opening);
  if (json_is_integer (json_object_get (open, "since")))
    printf ("            since %s; nothing more is known until it %s\n",
            describe_time (open, "since", buf), opening ? "is open" : "ends");
  printf ("files       %s of records, %s of metadata\n",
          size_or_dash (space, "file_bytes", a),
          size_or_dash (space, "metadata_bytes", b));
  printf ("free        %s for records, %s for metadata\n",
          size_or_dash (space, "free_bytes", a),
          size_or_dash (space, "metadata_free_bytes", b));
}

static void
print_status (const json_t *status)
{
  const json_t *open = json_object_get (status, "open"), *problem;
  size_t i;

  printf ("%s: %s\n", json_text (status, "pool"), json_text (status, "state"));
  json_array_foreach (json_object_get (status, "problems"), i, problem)
    printf ("  %s: %s\n", json_text (problem, "level"),
            json_text (problem, "text"));
  if (json_object_get (open, "since")) {
    print_busy (open, json_object_get (status, "space"));
    return;
  }
  print_open (open);
  print_space (json_object_get (status, "space"));
  print_copy (json_object_get (status, "metadata_copy"));
  if (json_is_object (open))
    print_queues (json_object_get (status, "queues"));
  print_activity (status);
  print_reports (status);
}

static int
exit_status (const json_t *status)
{
  const char *state = json_text (status, "state");

  return strcmp (state, "ok") == 0 || strcmp (state, "busy") == 0 ? STATUS_OK
    : strcmp (state, "warning") == 0  ? STATUS_WARNING
    : strcmp (state, "critical") == 0 ? STATUS_CRITICAL
                                      : STATUS_UNKNOWN;
}

int
cmd_status (int argc, char **argv, const char *pool)
{
  struct options opts = { .pool = pool };
  json_t *status;
  int r;

  argp_err_exit_status = STATUS_UNKNOWN;
  set_failure_status (STATUS_UNKNOWN);
  options_parse (&opts, argc, argv, NULL, NULL, "",
                 "Report the pool's health: which process has it open, its "
                 "space, damage, the last recovery and the last scrub. "
                 "Changes nothing. Exit status: 0 if the pool is well or a "
                 "command is using it, 1 for a warning, 2 if it is critical, "
                 "3 if its state is unknown.",
                 OPTIONS_READS | OPTIONS_JSON);
  need_pool (&opts);
  status = nbdedup_status (opts.pool, opts.read_only == NBDEDUP_READ_ONLY_FORCE,
                           "nbdedup status", wait_silently);
  if (status == NULL) {
    fail ("status: %s", nbdedup_error ());
    return STATUS_UNKNOWN;
  }
  if (opts.json)
    print_json (status);
  else
    print_status (status);
  r = exit_status (status);
  json_decref (status);
  return r;
}

/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/event.h"
#include "base/journald.h"
#include "base/log.h"

/* Every event, with what journald calls its MESSAGE_ID: "journalctl
 * MESSAGE_ID=..." finds the events of one kind.  These never change.
 */
static const struct {
  const char *name, *id;
} events[] = {
  { "opened", "be2f22fcfcb440f2be0124ed5c7a5cf4" },
  { "recovered", "3c33a7ea8c1a41458de61ff701889db7" },
  { "full", "6ab4cb69e4d8479cb6ebc16db6c6ed10" },
  { "room", "bf44fa7287c847ada9d9ef29cf2c556e" },
  { "nearly-full", "b420eeb557004bc785b6a07945bdf81a" },
  { "below-full-warn", "cce680a9230e4db59f5a324ee3491697" },
  { "damage", "5672e463235448aab25be20505e67550" },
  { "scrub-begun", "28a26cf8025242a7bafb6e50a2af215f" },
  { "scrub-ended", "410ab8b5a65f43d5bc31b767b982904c" },
  { "drift-alert", "e54f787dd55b4a48afe26a01d7d31dad" },
  { "drift-alert-over", "f6c852418797459e8b9265a83cb5ee24" },
  { "stopped", "271e35b7036940909c0470322ad5dc25" },
  { "slow-fold", "e05e47317d27423685197581e98c6b58" },
  { "events-dropped", "cce66b9d81234edbb34c56337e9ed4f6" },
  { "init", "240f7ddc81294a7093791e984477e17b" },
  { "create", "7d69d5a396214f189c9c9da42e34d322" },
  { "import", "4069ca8f23c24466bdc37222cdec5735" },
  { "set", "3cc84a0a00df41bbbb007944acebffd6" },
  { "resize", "29f785d2b7304d61a1744b1ad2f952aa" },
  { "rename", "1e666b9c37594bbcbe51003b3e833bbc" },
  { "destroy", "534ec62298794a30aa1ef09cb4e7f857" },
  { "snapshot", "b4de61b657c84ceb93459a28998adfec" },
  { "clone", "1ed659d3e0934009bf43600f5c7fea3c" },
  { "rollback", "e0b8d53f50d044d490d1f71c981e883e" },
  { "rebase", "8d1a1df2f87d40ce8c50fa64e1d3204e" },
  { "rewrite", "1526497f21ba4c43b86618beafd1f949" },
  { "compact", "59a6555d601845068ab629163677273f" },
  { "prune", "827b7620be8242b38410948f8cc665a8" },
  { "check", "555b3060f9054d97baa450a9f8297530" },
  { "recover", "1ffdcc11b88f4b1dad028c9fc4e0ced8" },
};

static _Atomic (nbdedup_event_fn *) event_fn;
static _Thread_local struct event_asker *asker;

void
nbdedup_set_event_log (nbdedup_event_fn *fn)
{
  event_fn = fn;
}

/* NULL: there is no such event. */
static const char *
message_id (const char *name)
{
  size_t i;

  for (i = 0; i < sizeof events / sizeof events[0]; ++i)
    if (name && strcmp (events[i].name, name) == 0)
      return events[i].id;
  return NULL;
}

/*----------------------------------------------------------------------
 * Who asked
 */

void
event_set_asker (struct event_asker *a)
{
  asker = a;
}

static void
find_login (struct event_asker *a)
{
  struct passwd pw, *found = NULL;
  char buf[4096];

  if (getpwuid_r ((uid_t) a->uid, &pw, buf, sizeof buf, &found) == 0 && found)
    snprintf (a->login, sizeof a->login, "%s", found->pw_name);
}

void
event_find_asker (void)
{
  static _Thread_local struct event_asker self;

  if (asker == NULL)
    asker = &self;
  if (asker == &self) { /* again, because it may have forked */
    self.uid = getuid ();
    self.pid = getpid ();
  }
  if (asker->login[0] == '\0')
    find_login (asker);
}

static void
add_asker (json_t *event)
{
  const struct event_asker *a = asker;

  if (a == NULL)
    return;
  if (a->login[0])
    json_object_set_new (event, "by", nbdedup_json_text (a->login));
  json_object_set_new (event, "uid", json_integer (a->uid));
  if (a->pid > 0)
    json_object_set_new (event, "pid", json_integer (a->pid));
}

/*----------------------------------------------------------------------
 * Making events
 */

json_t *
event_new (const char *name, const char *fmt, ...)
{
  CLEANUP_JSON json_t *fields = NULL;
  json_t *event, *value;
  json_error_t err;
  const char *key;
  va_list ap;

  assert (message_id (name) != NULL);
  event = json_pack ("{s:I, s:s}", "time", (json_int_t) clock_wall_s (),
                     "event", name);
  if (event == NULL)
    return NULL;
  if (fmt) {
    va_start (ap, fmt);
    fields = json_vpack_ex (&err, 0, fmt, ap);
    va_end (ap);
    if (fields == NULL) {
      json_decref (event);
      return NULL;
    }
  }
  json_object_foreach (fields, key, value)
    if (!json_is_false (value))
      json_object_set (event, key, value);
  add_asker (event);
  return event;
}

void
event_add_name (json_t *event, const char *name)
{
  const char *at = strchr (name, '@');

  if (event == NULL)
    return;
  json_object_set_new (event, "volume",
                       json_stringn (name,
                                     at ? (size_t) (at - name)
                                        : strlen (name)));
  if (at)
    json_object_set_new (event, "snapshot", nbdedup_json_text (at + 1));
}

/*----------------------------------------------------------------------
 * As a line: logfmt, KEY=VALUE with blanks between them
 */

/* May it stand without quotes? */
static bool
is_plain (const char *text)
{
  const unsigned char *p;

  for (p = (const unsigned char *) text; *p; ++p)
    if (*p <= ' ' || *p == '"' || *p == '=' || *p == '\\' || *p == 0x7f ||
        *p == 0xc2) /* of a control character, perhaps */
      return false;
  return *text != '\0';
}

/* Quoted as in JSON.  Control characters, also U+0080 to U+009F, could break
 * the line or drive a terminal.
 */
static void
put_quoted (FILE *fp, const char *text)
{
  const unsigned char *p;

  putc ('"', fp);
  for (p = (const unsigned char *) text; *p; ++p)
    if (*p == '"' || *p == '\\')
      fprintf (fp, "\\%c", *p);
    else if (*p < 0x20 || *p == 0x7f)
      fprintf (fp, "\\u%04x", *p);
    else if (*p == 0xc2 && p[1] >= 0x80 && p[1] <= 0x9f)
      fprintf (fp, "\\u%04x", *++p);
    else
      putc (*p, fp);
  putc ('"', fp);
}

static void
put_text (FILE *fp, const char *text)
{
  if (is_plain (text))
    fputs (text, fp);
  else
    put_quoted (fp, text);
}

/* A value without quotes; the members of an object stand between colons, the
 * elements of an array between commas: web1:0:4096,web2:8192:4096.
 */
static void
put_value (FILE *fp, const json_t *value)
{
  json_t *v;
  void *i;
  size_t n;

  if (json_is_string (value))
    fputs (json_string_value (value), fp);
  else if (json_is_integer (value))
    fprintf (fp, "%" JSON_INTEGER_FORMAT, json_integer_value (value));
  else if (json_is_real (value))
    fprintf (fp, "%.3f", json_real_value (value));
  else if (json_is_boolean (value))
    fputs (json_is_true (value) ? "true" : "false", fp);
  else if (json_is_array (value))
    json_array_foreach (value, n, v) {
      if (n > 0)
        putc (',', fp);
      put_value (fp, v);
    }
  else if (json_is_object (value))
    for (i = json_object_iter ((json_t *) value), n = 0; i;
         i = json_object_iter_next ((json_t *) value, i), ++n) {
      if (n > 0)
        putc (':', fp);
      put_value (fp, json_object_iter_value (i));
    }
}

/* malloc'd; NULL: no memory. */
static char *
value_text (const json_t *value)
{
  char *text = NULL;
  size_t len;
  FILE *fp = open_memstream (&text, &len);

  if (fp == NULL)
    return NULL;
  put_value (fp, value);
  if (fclose (fp) == 0)
    return text;
  free (text);
  return NULL;
}

static void
put_field (FILE *fp, const char *key, const char *text)
{
  if (ftell (fp) > 0)
    putc (' ', fp);
  fprintf (fp, "%s=", key);
  put_text (fp, text);
}

char *
nbdedup_event_line (const struct nbdedup_event *event)
{
  const char *key;
  char *line = NULL;
  json_t *value;
  size_t len;
  FILE *fp = open_memstream (&line, &len);

  if (fp == NULL)
    return NULL;
  /* The log has its own times. */
  json_object_foreach ((json_t *) event->fields, key, value) {
    CLEANUP_FREE char *text = value_text (value);

    if (text && strcmp (key, "time") != 0)
      put_field (fp, key, text);
    if (event->pool && strcmp (key, "event") == 0)
      put_field (fp, "pool", event->pool);
  }
  if (event->message[0])
    put_field (fp, "message", event->message);
  if (fclose (fp) == 0)
    return line;
  free (line);
  return NULL;
}

/*----------------------------------------------------------------------
 * As an entry of the journal
 */

/* NBDEDUP_ and the key in capitals. */
static void
add_json_field (struct journald_entry *entry, const char *key,
                const json_t *value)
{
  CLEANUP_FREE char *text = value_text (value);
  char name[64] = "NBDEDUP_";
  size_t i, n = strlen (name);

  for (i = 0; key[i] && n < sizeof name - 1; ++i, ++n)
    name[n] = key[i] >= 'a' && key[i] <= 'z' ? key[i] - 'a' + 'A' : key[i];
  if (text)
    journald_add (entry, name, text);
}

static void
add_message (struct journald_entry *entry, const struct nbdedup_event *event)
{
  CLEANUP_FREE char *line = NULL;

  if (event->message[0] == '\0')
    line = nbdedup_event_line (event);
  else if (asprintf (&line, "%s: %s", event->pool, event->message) == -1)
    line = NULL;
  journald_add (entry, "MESSAGE", line ? line : event->message);
}

bool
nbdedup_event_journal (const struct nbdedup_event *event)
{
  static const char *const priorities[] = {
    [NBDEDUP_LOG_INFO] = "6",
    [NBDEDUP_LOG_WARNING] = "4",
    [NBDEDUP_LOG_ERROR] = "3",
  };
  const char *key,
    *name = json_string_value (json_object_get (event->fields, "event"));
  struct journald_entry *entry;
  json_t *value;

  if (!journald_has_stderr () || (entry = journald_begin ()) == NULL)
    return false;
  add_message (entry, event);
  journald_add (entry, "PRIORITY", priorities[event->level]);
  journald_add (entry, "SYSLOG_IDENTIFIER", program_invocation_short_name);
  if (message_id (name))
    journald_add (entry, "MESSAGE_ID", message_id (name));
  journald_add (entry, "NBDEDUP_POOL", event->pool);
  json_object_foreach ((json_t *) event->fields, key, value)
    if (strcmp (key, "time") != 0)
      add_json_field (entry, key, value);
  return journald_send (entry, JOURNALD_SOCKET) == 0;
}

/*----------------------------------------------------------------------*/

void
event_log (enum nbdedup_log_level level, const char *pool, const json_t *event,
           const char *message)
{
  const struct nbdedup_event e = {
    .level = level,
    .pool = pool,
    .message = message ? message : "",
    .fields = event,
  };
  nbdedup_event_fn *fn = event_fn;
  int err = errno;

  if (fn && event)
    fn (&e);
  else if (message)
    nbdedup_log (level, "%s: %s", pool, message);
  errno = err;
}

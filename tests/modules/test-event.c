/* SPDX-License-Identifier: BSD-3-Clause */

/* Events as lines and as entries of the journal: whatever a name has in it, a
 * line stays one line, and a reader gets the same text back.
 */

#include <config.h>

#undef NDEBUG
#include <assert.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "base/bytes.h"
#include "base/event.h"
#include "base/journald.h"
#include "rigs/testutil.h"

/*----------------------------------------------------------------------
 * Lines
 */

static void
expect_line (int line, json_t *event, const char *pool, const char *message,
             const char *expected)
{
  const struct nbdedup_event e = {
    .pool = pool,
    .message = message,
    .fields = event,
  };
  char *text = nbdedup_event_line (&e);

  assert (text && event);
  if (strcmp (text, expected) != 0)
    die ("line %d: the line is\n%s\nexpected\n%s", line, text, expected);
  free (text);
  json_decref (event);
}
#define expect_line(...) expect_line (__LINE__, __VA_ARGS__)

/* The value of a field as it stands in a line. */
static void
expect_value (int line, const char *value, const char *expected)
{
  char text[256];

  snprintf (text, sizeof text, "event=set value=%s", expected);
  (expect_line) (line,
                 event_new ("set", "{s:o}", "value", nbdedup_json_text (value)),
                 NULL, "", text);
}
#define expect_value(...) expect_value (__LINE__, __VA_ARGS__)

static void
test_quotes (void)
{
  expect_value ("web-1.a_b", "web-1.a_b");
  expect_value ("/srv/pool:1,2", "/srv/pool:1,2");
  expect_value ("", "\"\"");
  expect_value ("two words", "\"two words\"");
  expect_value ("a=b", "\"a=b\"");
  expect_value ("say \"no\"", "\"say \\\"no\\\"\"");
  expect_value ("back\\slash", "\"back\\\\slash\"");
  expect_value ("two\nlines", "\"two\\u000alines\"");
  expect_value ("\x1b[31mred\x7f", "\"\\u001b[31mred\\u007f\"");
  /* U+0085 is a newline, too; other letters stay. */
  expect_value ("next\xc2\x85line", "\"next\\u0085line\"");
  expect_value ("stra\xc3\x9f"
                "e",
                "stra\xc3\x9f"
                "e");
  expect_value ("\xc2\xb5", "\"\xc2\xb5\"");
  /* It is not UTF-8. */
  expect_value ("a\xff z", "\"a\xef\xbf\xbd z\"");
}

#define BAD "\xef\xbf\xbd" /* U+FFFD */

static void
expect_text (const char *text, const char *expected)
{
  json_t *string = nbdedup_json_text (text);

  if (strcmp (json_string_value (string), expected) != 0)
    die ("the text is '%s', expected '%s'", json_string_value (string),
         expected);
  json_decref (string);
}

/* What JSON takes stays, each other byte is replaced. */
static void
test_any_text (void)
{
  struct rng rng = rng_make (1, 1);
  char text[9] = "";
  json_t *string;
  unsigned i, j;

  expect_text ("", "");
  expect_text ("gr\xc3\xb6\xe2\x82\xac\xf0\x9f\x98\x80",
               "gr\xc3\xb6\xe2\x82\xac\xf0\x9f\x98\x80");
  expect_text ("gr\xc3\xb6 \xff z", "gr\xc3\xb6 " BAD " z");
  expect_text ("cut\xe2\x82", "cut" BAD BAD);
  expect_text ("\xc3\xc3\xb6\x80", BAD "\xc3\xb6" BAD);
  expect_text ("\xc0\xaf", BAD BAD);                 /* overlong */
  expect_text ("\xed\xa0\x80", BAD BAD BAD);         /* a surrogate */
  expect_text ("\xf4\x90\x80\x80", BAD BAD BAD BAD); /* beyond Unicode */
  expect_text ("\xf5", BAD);
  /* Bytes that begin and continue characters, in any order. */
  for (i = 0; i < 100000; ++i) {
    for (j = 0; j < sizeof text - 1; ++j)
      text[j] = (char) (0x80 | rng_next (&rng));
    string = nbdedup_json_text (text);
    assert (string != NULL);
    json_decref (string);
  }
}

static void
test_fields (void)
{
  expect_line (event_new ("slow-fold", "{s:f, s:I, s:b, s:b}", "seconds", 3.5,
                          "pages", (json_int_t) -7, "yes", 1, "no", 0),
               "/srv/my pool", "it took \"long\"",
               "event=slow-fold pool=\"/srv/my pool\" seconds=3.500 pages=-7 "
               "yes=true message=\"it took \\\"long\\\"\"");
  expect_line (event_new ("destroy", "{s:[s, s], s:[{s:s, s:i}, {s:s, s:i}]}",
                          "names", "a", "b@c", "places", "name", "v", "offset",
                          0, "name", "w", "offset", 4096),
               "/p", "", "event=destroy pool=/p names=a,b@c places=v:0,w:4096");
  /* No field, and no pool. */
  expect_line (event_new ("room", NULL), NULL, "", "event=room");
}

static void
test_names (void)
{
  json_t *volume = json_object (), *snapshot = json_object ();

  event_add_name (volume, "web1");
  event_add_name (snapshot, "web1@v2");
  event_add_name (NULL, "nothing");
  expect_line (event_new ("damage", "o", volume), NULL, "",
               "event=damage volume=web1");
  expect_line (event_new ("snapshot", "o", snapshot), NULL, "",
               "event=snapshot volume=web1 snapshot=v2");
}

static void
test_askers (void)
{
  struct event_asker peer = { .uid = 1234567, .pid = 99 };
  struct event_asker foreign = { .uid = 0 };
  char expected[256];
  json_t *event;

  event_set_asker (&peer);
  event_find_asker (); /* no such user */
  expect_line (event_new ("room", NULL), NULL, "",
               "event=room uid=1234567 pid=99");
  /* A process of another namespace has no number here. */
  event_set_asker (&foreign);
  event_find_asker ();
  expect_line (event_new ("room", NULL), NULL, "", "event=room by=root uid=0");
  event_set_asker (NULL);
  expect_line (event_new ("room", NULL), NULL, "", "event=room");
  event_find_asker ();
  event = event_new ("room", NULL);
  assert (json_integer_value (json_object_get (event, "uid")) == getuid () &&
          json_integer_value (json_object_get (event, "pid")) == getpid ());
  json_decref (event);
  snprintf (peer.login, sizeof peer.login, "a\"b c");
  event_set_asker (&peer);
  snprintf (expected, sizeof expected,
            "event=room by=\"a\\\"b c\" uid=1234567 pid=99");
  expect_line (event_new ("room", NULL), NULL, "", expected);
  event_set_asker (NULL);
}

/*----------------------------------------------------------------------
 * The journal
 */

static int
bind_socket (const char *path)
{
  struct sockaddr_un addr = { .sun_family = AF_UNIX };
  int fd = socket (AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

  strcpy (addr.sun_path, path);
  assert (fd >= 0 && bind (fd, (struct sockaddr *) &addr, sizeof addr) == 0);
  return fd;
}

static void
test_entry (void)
{
  static const char expected[] = "MESSAGE\n\5\0\0\0\0\0\0\0hello\n"
                                 "VALUE\n\11\0\0\0\0\0\0\0two\nlines\n"
                                 "EMPTY\n\0\0\0\0\0\0\0\0\n";
  struct journald_entry *entry = journald_begin ();
  char buf[1000];
  int fd = bind_socket ("socket");
  ssize_t n;

  journald_add (entry, "MESSAGE", "hello");
  journald_add (entry, "VALUE", "two\nlines");
  journald_add (entry, "EMPTY", "");
  assert (journald_send (entry, "socket") == 0);
  n = recv (fd, buf, sizeof buf, 0);
  assert (n == sizeof expected - 1 && memcmp (buf, expected, (size_t) n) == 0);
  close (fd);
  unlink ("socket");
}

/* A journal that takes nothing, or is not there, does not stop the caller. */
static void
test_deaf (void)
{
  char path[300];
  struct journald_entry *entry;
  int fd = bind_socket ("socket");
  unsigned n = 0;

  do {
    entry = journald_begin ();
    journald_add (entry, "MESSAGE", "one more");
    assert (++n < 100000);
  } while (journald_send (entry, "socket") == 0);
  close (fd);
  assert (journald_send (journald_begin (), "socket") == -1);
  unlink ("socket");
  assert (journald_send (journald_begin (), "socket") == -1);
  memset (path, 'x', sizeof path - 1);
  path[sizeof path - 1] = '\0';
  assert (journald_send (journald_begin (), path) == -1);
}

static void
set_stream (unsigned long long device, unsigned long long inode,
            const char *end)
{
  char text[100];

  snprintf (text, sizeof text, "%llu:%llu%s", device, inode, end);
  setenv ("JOURNAL_STREAM", text, 1);
}

static void
test_stream (void)
{
  struct stat st;

  assert (fstat (STDERR_FILENO, &st) == 0);
  set_stream (st.st_dev, st.st_ino, "");
  assert (journald_has_stderr ());
  set_stream (st.st_dev, st.st_ino, " ");
  assert (!journald_has_stderr ());
  set_stream (st.st_dev, st.st_ino + 1, "");
  assert (!journald_has_stderr ());
  set_stream (st.st_dev + 1, st.st_ino, "");
  assert (!journald_has_stderr ());
  setenv ("JOURNAL_STREAM", "yes", 1);
  assert (!journald_has_stderr ());
  unsetenv ("JOURNAL_STREAM");
  assert (!journald_has_stderr ());
}

int
main (void)
{
  char dir[PATH_MAX];

  make_directory (dir, usual_directory (), "test-event");
  assert (chdir (dir) == 0);
  test_quotes ();
  test_any_text ();
  test_fields ();
  test_names ();
  test_askers ();
  test_entry ();
  test_deaf ();
  test_stream ();
  remove_directory (dir);
  return 0;
}

/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "child.h"
#include "confine.h"
#include "files-helper.h"
#include "files/protocol.h"
#include "image.h"
#include "interrupt.h"
#include "tools.h"

/* What a file system of ten million files needs, and what none does. */
#define MEMORY_MAX (UINT64_C (512) << 20)
#define CPU_SECONDS 600
/* It may be silent, and then hold up one clone, for so long. */
#define SILENT_MS 60000
#define LOOK_MS 200
/* Of all package lists, and lines for the user. */
#define LISTS_MAX (UINT64_C (64) << 20)
#define NOTES_MAX 64
/* Of a golden image's map: a million files, which a clone's helper reads within
 * its limit of memory.
 */
#define MAP_MAX (UINT64_C (128) << 20)

struct talk {
  const struct files_question *q;
  struct files_answer *a;
  int fd;
  uint64_t list_bytes;
  int map; /* where the map goes; -1: none is wanted */
  uint64_t map_bytes;
  uint8_t *buf; /* owned; FILES_READ_MAX bytes */
};

void
files_answer_free (struct files_answer *answer)
{
  size_t i;

  for (i = 0; i < answer->nr_packages; ++i) {
    free (answer->packages[i].name);
    free (answer->packages[i].files);
  }
  free (answer->packages);
  json_decref (answer->notes);
}

/* May the program use this file or directory of the build tree?  Not if another
 * user than the program's owner and root could have put it there.
 */
static bool
is_trusted (const char *name, uid_t owner)
{
  const mode_t others = geteuid () == 0 ? S_IWGRP | S_IWOTH : S_IWOTH;
  struct stat st;

  return stat (name, &st) == 0 && (st.st_uid == owner || st.st_uid == 0) &&
    (st.st_mode & others) == 0;
}

/* The helper of the build tree that this program runs from, TREE/tools/nbdedup;
 * NULL: it does not run from one.  Owned by the caller.
 */
static char *
built_helper (void)
{
  char exe[PATH_MAX], *dir, *name, *config;
  const ssize_t len = readlink ("/proc/self/exe", exe, sizeof exe);
  struct stat st;
  bool ok;

  if (len <= 0 || len == sizeof exe)
    return NULL;
  exe[len] = '\0';
  if (stat (exe, &st) == -1)
    return NULL; /* deleted */
  *strrchr (exe, '/') = '\0';
  dir = strrchr (exe, '/');
  if (dir == NULL || strcmp (dir, "/tools") != 0)
    return NULL;
  config = make_string ("%.*s/config.status", (int) (dir - exe), exe);
  dir = make_string ("%s/files", exe);
  name = make_string ("%s/nbdedup-files", dir);
  ok = access (config, F_OK) == 0 && is_trusted (exe, st.st_uid) &&
    is_trusted (dir, st.st_uid) && is_trusted (name, st.st_uid);
  free (config);
  free (dir);
  if (ok)
    return name;
  free (name);
  return NULL;
}

/* owned by the caller */
static char *
helper_name (void)
{
  const char *dir = getenv ("NBDEDUP_LIBEXEC");
  char *built = dir == NULL ? built_helper () : NULL;

  if (built != NULL)
    return built;
  return make_string ("%s/nbdedup-files", dir != NULL ? dir : PKGLIBEXECDIR);
}

int
files_helper_check (const char *option)
{
  char *name = helper_name ();
  int r = 0;

  if (access (name, X_OK) == -1)
    r = image_fail ("--%s needs the program %s, which cannot be run: %s: "
                    "install the Sleuth Kit's library (Debian's libtsk-dev), "
                    "and configure again, or set NBDEDUP_LIBEXEC to the "
                    "program's directory",
                    option, name, strerror (errno));
  free (name);
  return r;
}

/*----------------------------------------------------------------------
 * Bytes.  1: the helper's failure; -1: the command's.
 */

static int
wait_for (struct talk *t, short events)
{
  const uint64_t begun = clock_ms ();
  struct pollfd pfd = { .fd = t->fd, .events = events };

  for (;;) {
    if (interrupted ())
      return image_fail ("interrupted");
    if (poll (&pfd, 1, LOOK_MS) == 1)
      return 0;
    if (clock_ms () - begun > SILENT_MS) {
      image_fail ("nbdedup-files does not answer");
      return 1;
    }
  }
}

static int
fail_ended (void)
{
  image_fail ("nbdedup-files has ended");
  return 1;
}

static int
receive (struct talk *t, void *buf, size_t len)
{
  size_t done = 0;
  ssize_t n;
  int r;

  while (done < len) {
    if ((r = wait_for (t, POLLIN)) != 0)
      return r;
    n = recv (t->fd, (char *) buf + done, len - done, MSG_DONTWAIT);
    if (n == 0 || (n == -1 && errno != EAGAIN && errno != EINTR))
      return fail_ended ();
    done += n > 0 ? n : 0;
  }
  return 0;
}

static int
transmit (struct talk *t, const void *buf, size_t len)
{
  size_t done = 0;
  ssize_t n;
  int r;

  while (done < len) {
    if ((r = wait_for (t, POLLOUT)) != 0)
      return r;
    n = send (t->fd, (const char *) buf + done, len - done,
              MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n == -1 && errno != EAGAIN && errno != EINTR)
      return fail_ended ();
    done += n > 0 ? n : 0;
  }
  return 0;
}

static int
fail_invalid (void)
{
  image_fail ("the answer of nbdedup-files is not valid");
  return 1;
}

/*----------------------------------------------------------------------
 * Messages
 */

static int
take_read (struct talk *t, const struct files_message *m)
{
  struct files_message answer = { .type = FILES_READ, .len = m->b };
  int r;

  if (m->len != 0 || m->b == 0 || m->b > FILES_READ_MAX || m->a >= t->q->size ||
      m->b > t->q->size - m->a)
    return fail_invalid ();
  if (nbdedup_frozen_read (t->q->frozen, t->q->clone, t->buf, m->b, m->a) ==
      -1) {
    /* A block that is lost to damage is no reason to see nothing. */
    if (errno != EIO)
      return image_fail ("%s", nbdedup_error ());
    answer.len = 0;
  }
  r = transmit (t, &answer, sizeof answer);
  return r != 0 ? r : transmit (t, t->buf, answer.len);
}

static struct package_list *
add_package (struct talk *t)
{
  return check_memory (
    array_add (&t->a->packages, &t->a->nr_packages, sizeof *t->a->packages));
}

static int
take_package (struct talk *t, const char *text, size_t len)
{
  struct package_list *list = add_package (t);

  list->name = owner_clean_text (text, len);
  t->list_bytes += len + sizeof *list;
  return t->list_bytes > LISTS_MAX ? fail_invalid () : 0;
}

/* The golden image's package 'number', counted from 1. */
static int
take_same_package (struct talk *t, uint64_t number)
{
  const struct golden_files *golden = t->q->golden;
  const struct package_list *old;
  struct package_list *list;

  if (golden == NULL || number > golden->answer.nr_packages)
    return fail_invalid ();
  old = &golden->answer.packages[number - 1];
  t->list_bytes += old->len + sizeof *list;
  if (t->list_bytes > LISTS_MAX)
    return fail_invalid ();
  list = add_package (t);
  list->name = check_memory (strdup (old->name));
  if (old->files != NULL)
    list->files = check_memory (strdup (old->files));
  list->len = list->cap = old->len;
  return 0;
}

static int
take_files (struct talk *t, const char *text, size_t len)
{
  struct package_list *list;

  t->list_bytes += len;
  if (t->a->nr_packages == 0 || t->list_bytes > LISTS_MAX)
    return fail_invalid ();
  list = &t->a->packages[t->a->nr_packages - 1];
  if (array_reserve (&list->files, &list->cap, list->len + len + 1, 1) == -1)
    check_memory (NULL);
  memcpy (list->files + list->len, text, len);
  list->len += len;
  list->files[list->len] = '\0';
  return 0;
}

static int
take_note (struct talk *t, const char *text, size_t len)
{
  char *clean;

  if (json_array_size (t->a->notes) == NOTES_MAX)
    return 0;
  clean = owner_clean_text (text, len);
  json_array_append_new (t->a->notes, json_string (clean));
  free (clean);
  return 0;
}

/* A map that is too large is left out, and then is of no use. */
static int
take_map (struct talk *t, size_t len)
{
  if (t->map == -1)
    return fail_invalid ();
  t->map_bytes += len;
  if (t->map_bytes <= MAP_MAX &&
      write_all (t->map, (const char *) t->buf, len) == -1)
    return image_fail ("cannot keep the map of the golden image: %s",
                       strerror (errno));
  return 0;
}

static int
take_text (struct talk *t, const struct files_message *m)
{
  const char *text = (const char *) t->buf;
  int r;

  if (m->len > FILES_TEXT_MAX)
    return fail_invalid ();
  if ((r = receive (t, t->buf, m->len)) != 0)
    return r;
  switch (m->type) {
  case FILES_OWNER:
    owner_map_owner (t->a->map, text, m->len);
    return 0;
  case FILES_PACKAGE:
    return m->a > 0 ? take_same_package (t, m->a)
                    : take_package (t, text, m->len);
  case FILES_MAP:
    return take_map (t, m->len);
  case FILES_FILES:
    return take_files (t, text, m->len);
  case FILES_NOTE:
    return take_note (t, text, m->len);
  default:
    return fail_invalid ();
  }
}

static int
take_all (struct talk *t)
{
  struct files_message m;
  int r;

  while ((r = receive (t, &m, sizeof m)) == 0) {
    if (m.type == FILES_DONE)
      return owner_map_end (t->a->map) == -1 ? fail_invalid () : 0;
    if (m.type == FILES_READ)
      r = take_read (t, &m);
    else if (m.type == FILES_EXTENT)
      r = m.len != 0 || owner_map_extent (t->a->map, m.a, m.b) == -1
        ? fail_invalid ()
        : 0;
    else
      r = take_text (t, &m);
    if (r != 0)
      break;
  }
  return r;
}

/*----------------------------------------------------------------------
 * The process
 */

/* The helper's end by itself says more than the end of its connection. */
static int
explain (struct child *child, int r)
{
  struct pollfd pfd = { .fd = child->pidfd, .events = POLLIN };

  if (r != 1 || strstr (image_error (), "has ended") == NULL ||
      child->pidfd == -1 || poll (&pfd, 1, 1000) != 1)
    return r;
  if (child_wait (child) == -1)
    return -1;
  child_fail (child, "this clone");
  return 1;
}

/* 'role': FILES_MAKE_MAP, FILES_USE_MAP or NULL. */
static int
run_helper (struct talk *t, struct confine *confine, const char *role)
{
  char *name = helper_name ();
  char *size = make_string ("%" PRIu64, t->q->size);
  const char *const argv[] = { name, size, role, NULL };
  struct child child;
  int socks[2], r = -1;

  if (socketpair (AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, socks) == -1)
    image_fail ("cannot start %s: %s", name, strerror (errno));
  else {
    r = child_start_confined (&child, argv, confine, socks[1]);
    close (socks[1]);
    t->fd = socks[0];
    if (r == 0) {
      r = explain (&child, take_all (t));
      child_end (&child);
    }
    close (socks[0]);
  }
  free (name);
  free (size);
  return r;
}

/* A file for the helper: 'fd' gets its descriptor, which the caller owns. */
static int
lend_ranges (struct confine *confine, const char *name,
             const struct byte_ranges *ranges, int *fd)
{
  *fd = memfd_create ("ranges", MFD_CLOEXEC);
  if (*fd == -1 ||
      write_all (*fd, (const char *) ranges->p,
                 ranges->nr * sizeof *ranges->p) == -1)
    return image_fail ("cannot start nbdedup-files: %s", strerror (errno));
  confine_file (confine, name, *fd, false);
  return 0;
}

static void
close_fd (int fd)
{
  if (fd != -1)
    close (fd);
}

/* As files_helper_ask.  'map' gets the map; -1: none is wanted. */
static int
ask (const struct files_question *q, struct files_answer *answer, int map)
{
  struct talk t = { .q = q, .a = answer, .map = map };
  struct confine *confine = confine_new ();
  const bool knows = q->golden != NULL && q->golden->map != -1;
  int ranges, changed = -1, r;

  if (answer->notes == NULL)
    answer->notes = check_memory (json_array ());
  t.buf = check_memory (malloc (FILES_READ_MAX));
  confine_limits (confine, MEMORY_MAX, CPU_SECONDS);
  r = lend_ranges (confine, FILES_RANGES, &q->ranges, &ranges);
  if (r == 0 && knows) {
    r = lend_ranges (confine, FILES_CHANGED, &q->changed, &changed);
    confine_file (confine, FILES_GOLDEN, q->golden->map, false);
  }
  if (r == 0)
    r = run_helper (&t, confine,
                    map != -1 ? FILES_MAKE_MAP
                      : knows ? FILES_USE_MAP
                              : NULL);
  if (r == 0 && t.map_bytes > MAP_MAX)
    r = 1;
  confine_free (confine);
  close_fd (ranges);
  close_fd (changed);
  free (t.buf);
  return r;
}

int
files_helper_ask (const struct files_question *question,
                  struct files_answer *answer)
{
  return ask (question, answer, -1);
}

/*----------------------------------------------------------------------
 * Golden images
 */

void
golden_files_free (struct golden_files *golden)
{
  close_fd (golden->map);
  golden->map = -1;
  files_answer_free (&golden->answer);
  golden->answer = (struct files_answer) { .map = NULL };
}

/* Nothing may change it any more: a helper for one clone must not mislead that
 * for another.
 */
static int
seal (int fd)
{
  return fcntl (fd, F_ADD_SEALS,
                F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL);
}

int
files_helper_map (struct nbdedup_frozen *frozen, uint64_t size,
                  struct golden_files *golden)
{
  const struct files_question question = {
    .frozen = frozen,
    .clone = NBDEDUP_FROZEN_GOLDEN,
    .size = size,
  };
  int r;

  *golden = (struct golden_files) {
    .map = memfd_create ("golden", MFD_CLOEXEC | MFD_ALLOW_SEALING),
  };
  if (golden->map == -1)
    return image_fail ("cannot start nbdedup-files: %s", strerror (errno));
  golden->answer.map = owner_map_new (size, PSEUDO_OUTSIDE);
  r = ask (&question, &golden->answer, golden->map);
  owner_map_free (golden->answer.map);
  golden->answer.map = NULL;
  if (r == 0 && seal (golden->map) == -1)
    r = image_fail ("cannot keep the map of the golden image: %s",
                    strerror (errno));
  if (r != 0)
    golden_files_free (golden);
  return r == 1 ? 0 : r;
}

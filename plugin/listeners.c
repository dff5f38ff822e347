/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <dirent.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "listeners.h"

#define NOTED_MAX 64
#define NAMES_MAX 8

static ino_t noted[NOTED_MAX]; /* of sockets */
static unsigned nr_noted;

static struct name {
  struct sockaddr_un addr;
  struct stat st;   /* of the file of that name */
} names[NAMES_MAX]; /* of nbdkit's listeners */
static unsigned nr_names;

int
each_descriptor (void (*fn) (int fd))
{
  DIR *dir = opendir ("/proc/self/fd");
  struct dirent *entry;

  if (dir == NULL)
    return -1;
  while ((entry = readdir (dir)) != NULL) {
    char *end;
    long fd = strtol (entry->d_name, &end, 10);

    if (end != entry->d_name && *end == '\0' && fd >= 0 && fd <= INT_MAX)
      fn ((int) fd);
  }
  closedir (dir);
  return 0;
}

static bool
is_listener (int fd, struct stat *st)
{
  socklen_t len;
  int listens;

  len = sizeof listens;
  return fstat (fd, st) == 0 && S_ISSOCK (st->st_mode) &&
    getsockopt (fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) == 0 && listens;
}

static void
note (int fd)
{
  struct stat st;

  if (!is_listener (fd, &st))
    return;
  if (nr_noted < NOTED_MAX)
    noted[nr_noted] = st.st_ino;
  nr_noted++;
}

void
listeners_note (void)
{
  nr_noted = 0;
  each_descriptor (note);
}

/* Does the socket belong to the process that started nbdkit? */
static bool
is_noted (const struct stat *st)
{
  unsigned i;

  for (i = 0; i < nr_noted && i < NOTED_MAX; ++i)
    if (noted[i] == st->st_ino)
      return true;
  return nr_noted > NOTED_MAX;
}

static void
remember (int fd)
{
  struct name *name = &names[nr_names];
  socklen_t len = sizeof name->addr - 1; /* so that the path ends */
  struct stat st;

  if (nr_names == NAMES_MAX || !is_listener (fd, &st) || is_noted (&st))
    return;
  memset (&name->addr, 0, sizeof name->addr);
  if (getsockname (fd, (struct sockaddr *) &name->addr, &len) == 0 &&
      name->addr.sun_family == AF_UNIX && name->addr.sun_path[0] == '/' &&
      lstat (name->addr.sun_path, &name->st) == 0 &&
      S_ISSOCK (name->st.st_mode))
    nr_names++;
}

void
listeners_remember (void)
{
  nr_names = 0;
  each_descriptor (remember);
}

void
listeners_remove (void)
{
  struct name *name;
  struct stat st;

  /* Another server's socket may have taken its place. */
  for (name = names; name < names + nr_names; ++name)
    if (lstat (name->addr.sun_path, &st) == 0 && st.st_dev == name->st.st_dev &&
        st.st_ino == name->st.st_ino)
      unlink (name->addr.sun_path);
  nr_names = 0;
}

static void
give_up (int fd)
{
  struct stat st;
  int client;

  if (!is_listener (fd, &st) || is_noted (&st))
    return;
  /* Shut down the socket, not only the descriptor: other processes have it,
   * too.  From now on accept does not wait.
   */
  if (shutdown (fd, SHUT_RDWR) == -1)
    return;
  while ((client = accept (fd, NULL, NULL)) != -1)
    close (client);
}

void
listeners_give_up (void)
{
  listeners_remove ();
  each_descriptor (give_up);
}

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

static ino_t noted[NOTED_MAX];  /* of sockets */
static unsigned nr_noted;

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
    getsockopt (fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) == 0 &&
    listens;
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

static void
remove_name (int fd)
{
  struct sockaddr_un addr;
  socklen_t len = sizeof addr - 1;      /* so that the path ends */
  struct stat st;

  memset (&addr, 0, sizeof addr);
  if (getsockname (fd, (struct sockaddr *) &addr, &len) == 0 &&
      addr.sun_family == AF_UNIX && addr.sun_path[0] == '/' &&
      lstat (addr.sun_path, &st) == 0 && S_ISSOCK (st.st_mode))
    unlink (addr.sun_path);
}

static void
give_up (int fd)
{
  struct stat st;
  unsigned i;
  int client;

  if (!is_listener (fd, &st))
    return;
  for (i = 0; i < nr_noted; ++i)
    if (noted[i] == st.st_ino)
      return;
  remove_name (fd);
  /* Of the socket, not of the descriptor: other processes have it, too.
   * From now on accept does not wait.
   */
  if (shutdown (fd, SHUT_RDWR) == -1)
    return;
  while ((client = accept (fd, NULL, NULL)) != -1)
    close (client);
}

void
listeners_give_up (void)
{
  if (nr_noted <= NOTED_MAX)
    each_descriptor (give_up);
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* The files that a confined program gets: see confine.h. */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "confine-int.h"
#include "confine.h"
#include "tools.h"

/* No real image has more pieces. */
#define LEARN_MAX 1000

struct confine *
confine_new (void)
{
  struct confine *c = check_memory (calloc (1, sizeof *c));

  pthread_mutex_init (&c->lock, NULL);
  return c;
}

void
confine_free (struct confine *c)
{
  size_t i;

  if (c == NULL)
    return;
  for (i = 0; i < c->nr_files; ++i) {
    if (c->files[i].owned)
      close (c->files[i].fd);
    free (c->files[i].name);
  }
  for (i = 0; i < c->nr_dirs; ++i) {
    free (c->dirs[i].name);
    free (c->dirs[i].real);
  }
  free (c->files);
  free (c->dirs);
  free (c->refused);
  pthread_mutex_destroy (&c->lock);
  free (c);
}

void
confine_limits (struct confine *c, uint64_t memory_bytes, uint64_t cpu_seconds)
{
  c->memory_bytes = memory_bytes;
  c->cpu_seconds = cpu_seconds;
}

uint64_t
confine_cpu_seconds (const struct confine *c)
{
  return c->cpu_seconds;
}

/* The caller has the lock, or is alone. */
static void
add_file (struct confine *c, const char *name, int fd, bool owned,
          bool writable)
{
  struct confine_file *f = check_memory (
    array_add (&c->files, &c->nr_files, sizeof *f));

  *f = (struct confine_file) {
    .name = copy_string (name),
    .fd = fd,
    .owned = owned,
    .writable = writable,
  };
  c->writes |= writable;
}

void
confine_file (struct confine *c, const char *name, int fd, bool writable)
{
  pthread_mutex_lock (&c->lock);
  add_file (c, name, fd, false, writable);
  pthread_mutex_unlock (&c->lock);
}

void
confine_directory (struct confine *c, const char *dir, const char *real)
{
  struct confine_dir *d;

  pthread_mutex_lock (&c->lock);
  d = check_memory (array_add (&c->dirs, &c->nr_dirs, sizeof *d));
  *d = (struct confine_dir) {
    .name = copy_string (dir),
    .real = copy_string (real),
  };
  pthread_mutex_unlock (&c->lock);
}

void
confine_learn (struct confine *c, bool learn)
{
  pthread_mutex_lock (&c->lock);
  c->learn = learn;
  pthread_mutex_unlock (&c->lock);
}

char *
confine_refused (struct confine *c)
{
  char *refused;

  pthread_mutex_lock (&c->lock);
  refused = c->refused;
  c->refused = NULL;
  pthread_mutex_unlock (&c->lock);
  return refused;
}

/*----------------------------------------------------------------------
 * Opens
 */

static bool
begins (const char *name, const char *prefix)
{
  return strncmp (name, prefix, strlen (prefix)) == 0;
}

/* Files that programs of the distribution read at their start: libraries,
 * their settings, properties of the machine.
 */
static bool
is_system_name (const char *name)
{
  static const char *const prefixes[] = {
    "/usr/",
    "/lib/",
    "/lib32/",
    "/lib64/",
    "/libx32/",
    "/bin/",
    "/sbin/",
    "/opt/",
    "/nix/store/",
    "/gnu/store/",
    "/etc/ld.so.",
    "/etc/ssl/",
    "/etc/pki/",
    "/etc/crypto-policies/",
    "/etc/gnutls/",
    "/etc/localtime",
    "/etc/locale.alias",
    "/sys/devices/system/",
    "/proc/sys/vm/",
    "/proc/sys/kernel/",
    "/dev/random",
    "/dev/urandom",
    "/dev/null",
  };
  static const char *const names[] = {
    "/proc/self/status", "/proc/cpuinfo",     "/proc/meminfo",
    "/proc/stat",        "/proc/filesystems",
  };
  size_t i;

  for (i = 0; i < sizeof names / sizeof names[0]; ++i)
    if (strcmp (name, names[i]) == 0)
      return true;
  if (strstr (name, "/../") != NULL)
    return false;
  for (i = 0; i < sizeof prefixes / sizeof prefixes[0]; ++i)
    if (begins (name, prefixes[i]))
      return true;
  return false;
}

/* Files that they may also load later: modules. */
static bool
is_library_name (const char *name)
{
  const char *base = strrchr (name, '/');

  return (begins (name, "/usr/") || begins (name, "/lib") ||
          begins (name, "/nix/store/") || begins (name, "/gnu/store/") ||
          begins (name, "/opt/")) &&
    base != NULL && strstr (base, ".so") != NULL;
}

static int
open_program (const char *name)
{
  const int fd = open (name, O_RDONLY | O_CLOEXEC);

  return fd == -1 ? -errno : fd;
}

static int
open_system (const char *name, int flags)
{
  const int keep = O_DIRECTORY | O_NOFOLLOW;
  const bool is_null = strcmp (name, "/dev/null") == 0;
  struct stat st;
  int fd;

  if ((flags & O_ACCMODE) != O_RDONLY && !is_null)
    return -EACCES;
  fd = open (name,
             (is_null ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NONBLOCK | O_NOCTTY |
               (flags & keep));
  if (fd == -1)
    return -errno;
  /* Only files that all users may read: this process may be root. */
  if (fstat (fd, &st) == 0 && (st.st_mode & S_IROTH) &&
      (S_ISREG (st.st_mode) || S_ISDIR (st.st_mode) || S_ISCHR (st.st_mode)))
    return fd;
  close (fd);
  return -EACCES;
}

/* Open a new file description, because locks belong to descriptions. */
static int
open_again (const struct confine_file *file, int flags)
{
  const int keep = O_DIRECT | O_SYNC | O_DSYNC | O_NOATIME;
  char name[64];
  int fd;

  if ((flags & O_ACCMODE) != O_RDONLY && !file->writable)
    return -EACCES;
  snprintf (name, sizeof name, "/proc/self/fd/%d", file->fd);
  fd = open (name,
             O_CLOEXEC | O_NOCTTY | (flags & keep) |
               (file->writable ? flags & O_ACCMODE : O_RDONLY));
  return fd == -1 ? -errno : fd;
}

static const struct confine_file *
find_file (const struct confine *c, const char *name)
{
  size_t i;

  for (i = 0; i < c->nr_files; ++i)
    if (strcmp (c->files[i].name, name) == 0)
      return &c->files[i];
  return NULL;
}

/* The file's real name; owned by the caller. */
static char *
real_name (const struct confine *c, const char *name)
{
  size_t i;

  for (i = 0; i < c->nr_dirs; ++i)
    if (begins (name, c->dirs[i].name))
      return make_string ("%s%s", c->dirs[i].real,
                          name + strlen (c->dirs[i].name));
  return copy_string (name);
}

/* Add another file that an image names, if it can be part of an image.  Check
 * its kind before opening it: opening a FIFO or a tape has side effects.
 */
static const struct confine_file *
learn_file (struct confine *c, const char *name, const char *real)
{
  struct stat st;
  int fd;

  if (c->nr_files == LEARN_MAX || *real != '/' || stat (real, &st) == -1 ||
      (!S_ISREG (st.st_mode) && !S_ISBLK (st.st_mode)))
    return NULL;
  fd = open (real, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd == -1)
    return NULL;
  if (fstat (fd, &st) == -1 ||
      (!S_ISREG (st.st_mode) && !S_ISBLK (st.st_mode))) {
    close (fd);
    return NULL;
  }
  add_file (c, name, fd, true, false);
  return &c->files[c->nr_files - 1];
}

/* The caller has the lock. */
static int
open_locked (struct confine *c, const char *argv0, const char *name, int flags,
             bool *reading)
{
  const struct confine_file *file = find_file (c, name);
  char *real;

  if (file == NULL && strcmp (name, "/dev/null") == 0)
    return open_system (name, flags);
  if (file == NULL &&
      (*reading ? is_library_name (name) : is_system_name (name)))
    return open_system (name, flags);
  if (file == NULL && strcmp (name, argv0) == 0)
    return open_program (name); /* a script */
  if (file == NULL && !*reading)
    return -EACCES;
  if (file == NULL) {
    real = real_name (c, name);
    if (c->learn)
      file = learn_file (c, name, real);
    if (file == NULL && c->refused == NULL) {
      c->refused = real;
      real = NULL;
    }
    free (real);
  }
  if (file == NULL)
    return -EACCES;
  *reading = true;
  return open_again (file, flags);
}

int
confine_open (struct confine *c, const char *argv0, const char *name, int flags,
              bool *reading)
{
  int fd;

  pthread_mutex_lock (&c->lock);
  fd = open_locked (c, argv0, name, flags, reading);
  pthread_mutex_unlock (&c->lock);
  return fd;
}

void
confine_refuse (struct confine *c, const char *what)
{
  pthread_mutex_lock (&c->lock);
  if (c->refused == NULL)
    c->refused = copy_string (what);
  pthread_mutex_unlock (&c->lock);
}

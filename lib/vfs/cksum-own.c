/* SPDX-License-Identifier: BSD-3-Clause */

/* See cksum-own.h. */

#ifdef HAVE_CONFIG_H
#include <config.h>
#endif
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <linux/magic.h>

#include "vfs/cksum-own.h"

void
cksum_own_init (struct cksum_own *o, void (*changed) (void *opaque),
                void *opaque)
{
  o->changed = changed;
  o->opaque = opaque;
  lock_init (&o->lock);
  o->fd = -1;
}

void
cksum_own_destroy (struct cksum_own *o)
{
  cksum_own_unwatch (o);
  lock_destroy (&o->lock);
}

/* True if this machine sets the file's time. */
static bool
has_own_clock (int fd)
{
  struct statfs fs;

  if (fstatfs (fd, &fs) == -1)
    return false;
  switch ((uint32_t) fs.f_type) {
  case AFS_SUPER_MAGIC:
  case AFS_FS_MAGIC:
  case CEPH_SUPER_MAGIC:
  case CIFS_SUPER_MAGIC:
  case FUSE_SUPER_MAGIC:
  case NFS_SUPER_MAGIC:
  case SMB_SUPER_MAGIC:
  case SMB2_SUPER_MAGIC:
  case V9FS_MAGIC:
    return false;
  default:
    return true;
  }
}

static void
unwatch_locked (struct cksum_own *o)
{
  assert_held (&o->lock);
  if (o->fd != -1)
    close (o->fd);
  o->fd = -1;
  o->known = false;
  o->nr_written = o->next_written = 0;
}

/* Record the file's size and time; true if they have changed.  After a call
 * that failed there is nothing to compare them with.
 */
static bool
note_locked (struct cksum_own *o)
{
  struct stat st;
  bool differs;

  assert_held (&o->lock);
  if (o->fd == -1)
    return false;
  if (fstat (o->fd, &st) == -1) {
    o->known = false;
    return false;
  }
  differs = o->known &&
    (st.st_size != o->size || st.st_mtim.tv_sec != o->modified.tv_sec ||
     st.st_mtim.tv_nsec != o->modified.tv_nsec);
  o->known = true;
  o->size = st.st_size;
  o->modified = st.st_mtim;
  return differs;
}

/* Use O_PATH: closing any other descriptor of the file would drop SQLite's
 * locks on it.
 */
void
cksum_own_watch (struct cksum_own *o, const char *path)
{
  WITH_LOCK (&o->lock);
  if (o->fd != -1)
    return;
  o->fd = open (path, O_PATH | O_CLOEXEC | O_NOFOLLOW);
  if (o->fd != -1 && !has_own_clock (o->fd))
    unwatch_locked (o);
  note_locked (o);
}

void
cksum_own_unwatch (struct cksum_own *o)
{
  WITH_LOCK (&o->lock);
  unwatch_locked (o);
}

static void
look_locked (struct cksum_own *o)
{
  if (note_locked (o))
    o->changed (o->opaque);
}

void
cksum_own_begin (struct cksum_own *o)
{
  lock_acquire (&o->lock);
  look_locked (o);
}

void
cksum_own_end (struct cksum_own *o)
{
  note_locked (o);
  lock_release (&o->lock);
}

void
cksum_own_cancel (struct cksum_own *o)
{
  lock_release (&o->lock);
}

void
cksum_own_look (struct cksum_own *o)
{
  WITH_LOCK (&o->lock);
  look_locked (o);
}

/*----------------------------------------------------------------------
 * The pages written last
 */

void
cksum_own_wrote_locked (struct cksum_own *o, uint64_t page, uint64_t sum)
{
  unsigned i;

  assert_held (&o->lock);
  for (i = 0; i < o->nr_written; ++i)
    if (o->written[i].page == page)
      break;
  if (i == o->nr_written) {
    i = o->next_written;
    o->next_written = (i + 1) % CKSUM_OWN_WRITTEN;
    if (o->nr_written < CKSUM_OWN_WRITTEN)
      o->nr_written++;
  }
  o->written[i].page = page;
  o->written[i].sum = sum;
}

void
cksum_own_cut_locked (struct cksum_own *o, uint64_t page)
{
  unsigned i;

  assert_held (&o->lock);
  for (i = 0; i < o->nr_written; ++i)
    if (o->written[i].page >= page)
      o->nr_written = o->next_written = 0;
}

bool
cksum_own_is_of_another_moment_locked (struct cksum_own *o,
                                       int (*read) (void *opaque, uint64_t page,
                                                    uint64_t *sum),
                                       void *opaque)
{
  bool is_ours = false;
  uint64_t sum;
  unsigned i;
  int r;

  assert_held (&o->lock);
  for (i = 0; i < o->nr_written; ++i) {
    r = read (opaque, o->written[i].page, &sum);
    if (r == 1 && sum != o->written[i].sum)
      return true;
    if (r != -1)
      is_ours = true;
  }
  return !is_ours;
}

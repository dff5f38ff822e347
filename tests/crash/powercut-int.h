/* SPDX-License-Identifier: BSD-3-Clause */

/* Shared by the files of powercut.so: powercut.c has the log, and the calls
 * that change or sync content; powercut-names.c the calls that change names,
 * and those that no program may make.
 */

#ifndef NBDEDUP_POWERCUT_INT_H
#define NBDEDUP_POWERCUT_INT_H

#include <sys/uio.h>

#include "crash/powercut-undo.h"

#pragma GCC visibility push(hidden)

/* libc's functions, as real_NAME, once find_functions was called. */
/* clang-format off */
#define LIBC_FUNCTIONS(F) \
  F (ssize_t, pwrite, (int, const void *, size_t, off_t)) \
  F (ssize_t, write, (int, const void *, size_t)) \
  F (ssize_t, writev, (int, const struct iovec *, int)) \
  F (ssize_t, pwritev, (int, const struct iovec *, int, off_t)) \
  F (ssize_t, pwritev2, (int, const struct iovec *, int, off_t, int)) \
  F (ssize_t, copy_file_range, \
     (int, off_t *, int, off_t *, size_t, unsigned)) \
  F (ssize_t, sendfile, (int, int, off_t *, size_t)) \
  F (ssize_t, splice, (int, off_t *, int, off_t *, size_t, unsigned)) \
  F (int, ftruncate, (int, off_t)) \
  F (int, truncate, (const char *, off_t)) \
  F (int, fallocate, (int, int, off_t, off_t)) \
  F (int, posix_fallocate, (int, off_t, off_t)) \
  F (int, fdatasync, (int)) \
  F (int, fsync, (int)) \
  F (void *, mmap, (void *, size_t, int, int, int, off_t)) \
  F (int, openat, (int, const char *, int, ...)) \
  F (int, unlinkat, (int, const char *, int)) \
  F (int, renameat2, (int, const char *, int, const char *, unsigned)) \
  F (int, mkdirat, (int, const char *, mode_t)) \
  F (int, linkat, (int, const char *, int, const char *, int)) \
  F (int, symlinkat, (const char *, int, const char *))
/* clang-format on */

#define DECLARE(ret, name, args) extern ret (*real_##name) args;
LIBC_FUNCTIONS (DECLARE)

/* Find libc's functions.  Other libraries may be initialised, and call the
 * functions of this one, before this one is initialised.
 */
extern void find_functions (void);

extern int log_fd; /* -1: nothing is recorded */
extern const char *log_path, *dir;

/* End the program: after a failure here the test would prove nothing. */
extern _Noreturn void give_up (const char *what);

/* Held for an entry and its change together, in all processes, so that entries
 * and changes have the same order.
 */
extern void lock (void);
extern void unlock (void);

/* True if 'fd' is a file below the directory. */
extern bool is_watched (int fd, char path[POWERCUT_PATH_MAX]);

/* True if 'name', which need not exist, is recorded.  'path' is then the name
 * without links.
 */
extern bool
is_watched_name (int dirfd, const char *name, char path[POWERCUT_PATH_MAX]);

/* The caller holds the lock. */
extern struct powercut_entry
make_entry (enum powercut_kind kind, const char *path);
extern void put (const struct powercut_entry *e, const void *data);

#pragma GCC visibility pop

/* Programs built for large files call the function by another name. */
#define SAME(ret, name, as, ...)                                               \
  ret name (__VA_ARGS__) __attribute__ ((alias (#as)));

#endif /* NBDEDUP_POWERCUT_INT_H */

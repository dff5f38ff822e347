/* SPDX-License-Identifier: BSD-3-Clause */

/* Other programs: QEMU's, which read and write the image formats, and gnuplot.
 *
 * They run in process groups of their own, so that Ctrl-C reaches only this
 * program, and get a signal if it is killed.  Their output is kept for
 * messages.
 */

#ifndef NBDEDUP_CHILD_H
#define NBDEDUP_CHILD_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct confine;

struct child {
  const char *program;     /* not owned; argv[0] */
  pid_t pid;               /* 0: waited for; then ... */
  int status;              /* ... its status, as from wait */
  int pidfd;               /* owned; -1: this kernel has none */
  int outfd, errfd;        /* owned; its output */
  struct confine *confine; /* not owned; NULL: it is not confined */
  struct guard *guard;     /* owned */
};

/* Start a program, with 'len' bytes of 'input' on its standard input.  -1:
 * image_error.
 */
extern int child_start_input (struct child *child, const char *const argv[],
                              const char *input, size_t len);

/* Start a program that can reach only the files of 'confine', which must live
 * as long, and 'fd' (-1: nothing), under the number CHILD_FD.
 */
#define CHILD_FD 4
extern int child_start_confined (struct child *child, const char *const argv[],
                                 struct confine *confine, int fd);

/* The same, for an NBD server that takes its socket from its parent.
 * Returns a descriptor (owned by the caller) connected to it, or -1.
 */
extern int child_start_server (struct child *child, const char *const argv[],
                               struct confine *confine, int fd);

/* Wait until it has ended, or this program got a signal (-1, image_error). */
extern int child_wait (struct child *child);

/* Did it end with 'status'?  Call it only after child_wait. */
extern bool child_exited (const struct child *child, int status);

/* Fail because it used up its CPU time. */
extern int child_fail_overrun (const struct child *child, const char *name);

/* Fail because it failed: the text is its first line, or how it ended. */
extern int child_fail (struct child *child, const char *name);

/* Did it use up its CPU time?  Waits briefly for its end, but does not reap it,
 * so any thread may call this.
 */
extern bool child_overran (const struct child *child);

/* All that it printed to standard output (owned by the caller), or NULL. */
extern char *child_output (struct child *child);

/* End it, if it still runs, and free. */
extern void child_end (struct child *child);

#endif /* NBDEDUP_CHILD_H */

/* SPDX-License-Identifier: BSD-3-Clause */

/* The pool's "lock" file: who has the pool open.
 *
 * An open file description lock (F_OFD_SETLK) decides, never a socket; the
 * file's text ("server PID WHO" or "command PID WHO", one line) only tells
 * others who it is.  The lock goes with the process, however it ends.
 */

#ifndef NBDEDUP_LOCKFILE_H
#define NBDEDUP_LOCKFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <time.h>

struct lockfile_holder {
  bool server;                  /* listens on control.sock */
  bool reader;                  /* one at least that only reads; no text */
  bool reader_is_server;        /* ... and serves: it may take long */
  pid_t pid;
  time_t since;                 /* when it took the lock; 0: not known */
  char who[128];
};

/* Take the lock of pool directory 'pool', creating the file if needed.
 * Returns its descriptor (O_CLOEXEC; closing it gives the lock up), or -1:
 * EBUSY if another process has it; 'holder' says who then (pid 0 if the
 * text cannot be read yet).  'who' NULL: only test the lock, take nothing,
 * return 0 if it was free.
 */
extern int lockfile_take (const char *pool, bool server, const char *who,
                          struct lockfile_holder *holder);

/* The same for a process that only reads: any number of these at once, but
 * none together with one that lockfile_take let in.  Nothing is written or
 * made.  '*fd' returns the descriptor; -1 if there is no lock file, or no
 * locks on its file system (a warning goes to the log): other
 * processes are not kept out then.  'fd' NULL: only test.
 */
extern int lockfile_share (const char *pool, bool server, int *fd,
                           struct lockfile_holder *holder);

/* Is it on its way out?  A process that was killed keeps the lock until the
 * last of its threads has ended; until then it is a zombie.
 */
extern bool
lockfile_holder_is_ending (const struct lockfile_holder *holder);

#endif /* NBDEDUP_LOCKFILE_H */

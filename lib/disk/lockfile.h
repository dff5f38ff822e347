/* SPDX-License-Identifier: BSD-3-Clause */

/* The pool's "lock" file: which process has the pool open.
 *
 * An open file description lock (F_OFD_SETLK) decides, never a socket.  The
 * file's text ("server PID WHO" or "command PID WHO", one line) only names
 * the holder to other processes.  The kernel drops the lock when the process
 * ends, however it ends.
 *
 * While the holder opens the pool, the text has a second line: "opening STAGE
 * DONE TOTAL".
 */

#ifndef NBDEDUP_LOCKFILE_H
#define NBDEDUP_LOCKFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

/* How far a process is that opens the pool. */
struct lockfile_opening {
  char stage[16];       /* a word; "": the pool is open */
  uint64_t done, total; /* total 0: not known */
};

struct lockfile_holder {
  bool server;           /* listens on control.sock */
  bool reader;           /* at least one reader; no text */
  bool reader_is_server; /* ... a server, which may run for long */
  pid_t pid;
  time_t since; /* when it took the lock; 0: not known */
  char who[128];
  struct lockfile_opening opening;
};

/* Take the lock of pool directory 'pool', creating the file if needed.
 * Returns its descriptor (O_CLOEXEC; closing it releases the lock), or -1.
 * EBUSY: another process has it, and 'holder' describes that process (pid 0
 * if its text cannot be read yet).  'who' NULL: only test the lock, and return
 * 0 if it is free.
 */
extern int lockfile_take (const char *pool, bool server, const char *who,
                          struct lockfile_holder *holder);

/* Tell other processes how far the caller is, who has 'fd' from lockfile_take;
 * 'stage' NULL: the pool is open.  If that cannot be written, they do not learn
 * it.
 */
extern void
lockfile_tell (int fd, const char *stage, uint64_t done, uint64_t total);

/* As lockfile_take, for a process that only reads.  Any number of readers may
 * hold it at once, but not together with a process that called lockfile_take.
 * The function writes and creates nothing.  '*fd' returns the descriptor; it is
 * -1 if there is no lock file, or its file system has no locks (the log gets a
 * warning): then other processes are not kept out.  'fd' NULL: only test.
 */
extern int lockfile_share (const char *pool, bool server, int *fd,
                           struct lockfile_holder *holder);

/* True if the holder is ending.  A killed process keeps the lock until the
 * last of its threads has ended; until then it is a zombie.
 */
extern bool lockfile_holder_is_ending (const struct lockfile_holder *holder);

#endif /* NBDEDUP_LOCKFILE_H */

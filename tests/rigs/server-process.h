/* SPDX-License-Identifier: BSD-3-Clause */

/* Programs that a C test starts: nbdkit, which it kills, and commands, for
 * which it waits.
 */

#ifndef NBDEDUP_SERVER_PROCESS_H
#define NBDEDUP_SERVER_PROCESS_H

#include <libnbd.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

struct server_process {
  pid_t pid; /* 0: not running */
  char socket[108];
};

/* Start argv[0], and append its output to file 'log'.  'preload' is the value
 * of LD_PRELOAD (may be NULL).  The program dies with this process.
 */
extern pid_t
process_start (const char *const *argv, const char *log, const char *preload);

/* Wait until the process ends.  If it does not within 'seconds', kill it and
 * end the test.  Returns the exit status, or 128 + signal.
 */
extern int process_wait (pid_t pid, unsigned seconds, const char *what);

/* Connect to export 'name', waiting until the server listens.  NULL: the
 * server ended, or does not answer within 'seconds'; the reason is on
 * stderr.
 */
extern struct nbd_handle *server_connect (struct server_process *server,
                                          const char *name, unsigned seconds);

/* kill -9, wait, forget. */
extern void server_kill (struct server_process *server);

/* Wait at most 'ms' until the server ends.  The caller still has to call
 * server_kill.
 */
extern bool server_ends_within (struct server_process *server, unsigned ms);

/* Check whether the server has ended by itself.  If so, say how and forget it.
 */
extern int server_has_ended (struct server_process *server);

/* Run a command to its end, at most 'seconds'.  Returns its output (stdout and
 * stderr, malloc'd).  When '*stop' becomes true ('stop' may be NULL) the
 * function kills the command; '*status' is then 137 unless it had ended.
 */
extern char *command_output (const char *const *argv, unsigned seconds,
                             const char *preload, const atomic_bool *stop,
                             int *status);

#endif /* NBDEDUP_SERVER_PROCESS_H */

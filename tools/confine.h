/* SPDX-License-Identifier: BSD-3-Clause */

/* Confines programs that read untrusted files.
 *
 * QEMU's formats can name other files and servers, and their parsers have
 * had bugs that run code.  So QEMU's programs run
 *
 *  - under a list of system calls (seccomp): no sockets except inherited ones,
 *    no files except by open, no new processes, no changes of names, owners or
 *    modes; all other calls fail with ENOSYS;
 *  - with every open answered by this process (seccomp's user notification):
 *    the program gets a descriptor of a file that this process has opened and
 *    checked, or EACCES.  The guard reads the name from the program's memory
 *    once, and uses it only to choose among these files, so the program gains
 *    nothing by changing it meanwhile;
 *  - without capabilities, without this process's environment and descriptors,
 *    and with limits for memory and CPU time.
 *
 * This needs neither root nor a name space, and works in containers; Linux
 * 5.9 has all of it.  A program that cannot be confined is not run.
 */

#ifndef NBDEDUP_CONFINE_H
#define NBDEDUP_CONFINE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct confine;

/* Without confine_limits memory and CPU time have no limit. */
extern struct confine *confine_new (void);
extern void confine_free (struct confine *c);
extern void
confine_limits (struct confine *c, uint64_t memory_bytes, uint64_t cpu_seconds);

/* The program may open 'fd' under 'name', as often as it likes.  Both stay
 * the caller's; 'fd' stays open as long as 'c'.
 */
extern void
confine_file (struct confine *c, const char *name, int fd, bool writable);

/* Map names in 'dir' that are not those of files to names in 'real'.  Both end
 * with a slash.
 */
extern void
confine_directory (struct confine *c, const char *dir, const char *real);

/* May the program open further local files, for reading?  Such a file is added
 * as by confine_file.
 */
extern void confine_learn (struct confine *c, bool learn);

/* The first access refused since the last call, after the program had begun to
 * read its files: a name, or "the network" (owned by the caller); or NULL.
 */
extern char *confine_refused (struct confine *c);

/* The limit of CPU time, for messages; 0: none. */
extern uint64_t confine_cpu_seconds (const struct confine *c);

/*----------------------------------------------------------------------
 * For child.c
 */

/* In the child, before exec.  Sends the listener to guard_start over 'sock',
 * and closes all descriptors from 'keep' on.  -1: guard_start gets the error;
 * the caller must exit.  Async-signal-safe.
 */
extern int confine_enter (const struct confine *c, int sock, unsigned keep);

/* In the parent, after fork: answer the opens of the program 'argv0' until
 * guard_stop.  NULL: image_error.
 */
struct guard;
extern struct guard *
guard_start (struct confine *c, int sock, const char *argv0);
extern void guard_stop (struct guard *g);

/* For confine-guard.c: answer one open.  Returns a descriptor (owned by the
 * caller), or a negative errno.  'reading': has it opened a file of 'c' yet?
 */
extern int confine_open (struct confine *c, const char *argv0, const char *name,
                         int flags, bool *reading);
extern void confine_refuse (struct confine *c, const char *what);

#endif /* NBDEDUP_CONFINE_H */

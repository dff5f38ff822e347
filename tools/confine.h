/* SPDX-License-Identifier: BSD-3-Clause */

/* What a program may reach that reads files of people whom we do not trust.
 *
 * QEMU's formats can name other files and servers, and their parsers have
 * had bugs that run code.  So QEMU's programs run
 *
 *  - under a list of system calls (seccomp): no sockets but those that they
 *    inherit, no files but by open, no new processes, nothing that changes
 *    names, owners or modes; all else is ENOSYS;
 *  - with every open answered by us (seccomp's user notification): the
 *    program gets a descriptor of a file that we opened and looked at, or
 *    EACCES.  What its memory says is read once, and decides only which of
 *    our files it gets: there is nothing to win by changing it meanwhile;
 *  - without capabilities, without anything of our environment, without our
 *    descriptors, and with limits for memory and CPU time.
 *
 * This needs neither root nor a name space, and works in containers; Linux
 * 5.9 has all of it.  What cannot be confined is not run.
 */

#ifndef NBDEDUP_CONFINE_H
#define NBDEDUP_CONFINE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct confine;

/* Memory and CPU time stand at what confine_limits set, or without limit. */
extern struct confine *confine_new (void);
extern void confine_free (struct confine *c);
extern void confine_limits (struct confine *c, uint64_t memory_bytes,
                            uint64_t cpu_seconds);

/* The program may open 'fd' under 'name', as often as it likes.  Both stay
 * the caller's; 'fd' stays open as long as 'c'.
 */
extern void confine_file (struct confine *c, const char *name, int fd,
                          bool writable);

/* Names in 'dir' that are no file's are names in 'real'.  Both end with a
 * slash.
 */
extern void confine_directory (struct confine *c, const char *dir,
                               const char *real);

/* May it open further local files, for reading?  What it opens is a file of
 * confine_file from then on.
 */
extern void confine_learn (struct confine *c, bool learn);

/* The first thing that was refused since the last call, after the program
 * had begun to read its files: a name, or "the network" (owned by the
 * caller); or NULL.
 */
extern char *confine_refused (struct confine *c);

/* The limit of CPU time, for messages; 0: none. */
extern uint64_t confine_cpu_seconds (const struct confine *c);

/*----------------------------------------------------------------------
 * child.c: how it is put into practice
 */

/* In the child, before exec.  Sends what guard_start waits for to 'sock',
 * and closes all descriptors from 'keep' on.  -1: tell guard_start, and exit.
 * Async-signal-safe.
 */
extern int confine_enter (const struct confine *c, int sock, unsigned keep);

/* In the parent, after fork: answer the opens of the program 'argv0' until
 * guard_stop.  NULL: image_error.
 */
struct guard;
extern struct guard *guard_start (struct confine *c, int sock,
                                  const char *argv0);
extern void guard_stop (struct guard *g);

/* For confine-guard.c: answer one open.  Returns a descriptor (owned by the
 * caller), or a negative errno.  'reading': has it opened one of our files?
 */
extern int confine_open (struct confine *c, const char *argv0,
                         const char *name, int flags, bool *reading);
extern void confine_refuse (struct confine *c, const char *what);

#endif /* NBDEDUP_CONFINE_H */

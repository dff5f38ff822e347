/* SPDX-License-Identifier: BSD-3-Clause */

/* Entries with fields for systemd's journal.
 *
 * This speaks the journal's native protocol, which systemd documents as stable
 * (https://systemd.io/JOURNAL_NATIVE_PROTOCOL/): one datagram for each entry.
 * That is less code than an optional libsystemd would need, because programs
 * without it would have no fields, and every build the same tests.
 *
 * Threads: any; an entry belongs to the thread that began it.
 */

#ifndef NBDEDUP_JOURNALD_H
#define NBDEDUP_JOURNALD_H

#include <stdbool.h>

#define JOURNALD_SOCKET "/run/systemd/journal/socket"

struct journald_entry;

/* Is standard error the journal's?  ($JOURNAL_STREAM, as systemd.exec(5)
 * describes it.)
 */
extern bool journald_has_stderr (void);

/* NULL: no memory. */
extern struct journald_entry *journald_begin (void);

/* The name consists of capitals, digits and underscores, and begins with a
 * capital.
 */
extern void journald_add (struct journald_entry *entry, const char *name,
                          const char *value);

/* Send and free it.  -1 (without a text): no process reads the socket, or it
 * has no room for the entry now; this does not wait.
 */
extern int journald_send (struct journald_entry *entry, const char *path);

#endif /* NBDEDUP_JOURNALD_H */

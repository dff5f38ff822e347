/* SPDX-License-Identifier: BSD-3-Clause */

/* Events: what happened to a pool, for people and for programs.
 *
 * An event is a JSON object.  Its members, in this order:
 *
 *   time            when, in seconds since 1970
 *   event           its name, one of the table in event.c
 *   ...             its own fields; nbdedup-history(1) lists them
 *   by, uid, pid    who asked for it, if a command did: login name, where the
 *                   system knows one, user id and process
 *
 * The log shows it as one line (nbdedup_event_line), or as the fields of a
 * journal entry (nbdedup_event_journal); the pool's history keeps some of them
 * (core/events.h).
 *
 * Threads: any.  An event does not change once it was made.
 */

#ifndef NBDEDUP_EVENT_H
#define NBDEDUP_EVENT_H

#include <jansson.h>

#include "nbdedup.h"

/* For whom this thread works. */
struct event_asker {
  int64_t uid;
  int64_t pid;    /* 0: not known, e.g. of another namespace */
  char login[64]; /* "": not known */
};

/* Events that this thread makes have this asker, until the next call.  NULL,
 * the initial value: none.  It must stay valid.
 */
extern void event_set_asker (struct event_asker *asker);
/* If this thread has no asker, it works for this process.  Look up the asker's
 * login name, which may take long.
 */
extern void event_find_asker (void);

/* A new event.  'fmt' is json_pack's, of an object; NULL: no fields of its own.
 * It has no field that is false.  Returns NULL if there was no memory, or a
 * text is not UTF-8.
 */
extern json_t *event_new (const char *name, const char *fmt, ...);

/* Add the name of a volume or a snapshot: "volume", and "snapshot" if it has
 * one.  'event' may be NULL.
 */
extern void event_add_name (json_t *event, const char *name);

/* Log it, now, in this thread, which may have to wait for the reader of the
 * log: so never while a lock is held that clients' requests take, nor in their
 * threads (events_post does not wait).  'pool' is the pool's path; 'message'
 * is for people, NULL: the fields say it all.  'event' may be NULL.
 */
extern void event_log (enum nbdedup_log_level level, const char *pool,
                       const json_t *event, const char *message);

#endif /* NBDEDUP_EVENT_H */

/* SPDX-License-Identifier: BSD-3-Clause */

/* The events of an open pool: telling them to the log without waiting for it,
 * and keeping some of them in pool.db, as the pool's history ("nbdedup
 * history").
 *
 * Which moment an event in the history belongs to:
 *
 *   create, import, rename, destroy, snapshot, clone, rollback, recovered
 *           the transaction of what it records: pool.db has both or neither
 *           (txg_set_event)
 *   others  a transaction after that.  A command answers when the event is
 *           durable, too; a crash in between costs the event.
 *
 * A fold writes events behind everything else, so that writing them may fail
 * alone.  If the file system has no room for them, or the table is damaged,
 * they wait in memory, at most EVENTS_WAITING_MAX of them, and a crash loses
 * these.  So the history never stops a command, least of all one that frees
 * space.
 *
 * The history keeps the newest META_EVENTS_MAX.
 *
 * Threads: any, if not stated otherwise; a lock of its own, innermost.
 */

#ifndef NBDEDUP_EVENTS_H
#define NBDEDUP_EVENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/event.h"
#include "meta/meta.h"

struct events;
struct txg;

#define EVENTS_WAITING_MAX 128
/* The longest that the history keeps, in bytes. */
#define EVENTS_TEXT_MAX 4000
/* What a fold writes at once, and the pages by which pool.db grows then, at
 * most.
 */
#define EVENTS_PER_FOLD 12
#define EVENTS_PAGES 10

/* 'path' is the pool's, and must stay valid.  NULL: ENOMEM. */
extern struct events *events_new (const char *path);
extern void events_free (struct events *e);

/* The pool is open for writing: from now on events_flush works. */
extern void events_open (struct events *e, struct txg *txg);
/* A server: start the thread that tells events. */
extern int events_start (struct events *e);
/* Does it run? */
extern bool events_has_thread (struct events *e);
/* Log and store the remaining events, and end the thread.  Call it before
 * txg_stop.
 */
extern void events_stop (struct events *e);

/* Log the event in the thread of events_start, or, without it, at once
 * (event_log).  Takes the reference.
 */
extern void events_post (struct events *e, enum nbdedup_log_level level,
                         json_t *event, const char *fmt, ...)
  __attribute__ ((format (printf, 4, 5)));

/* Was this block not named yet, in this session?  Only so many are. */
#define EVENTS_PLACES_MAX 64
extern bool
events_is_new_place (struct events *e, uint64_t volume, uint64_t block);

/* Add an event to the history with one of the next folds, before long in a
 * server.
 */
extern void events_keep (struct events *e, const json_t *event);
/* Its text for the history, malloc'd; NULL: ENOMEM, or 'event' is NULL. */
extern char *events_text_of (const json_t *event);
extern void events_keep_text (struct events *e, const char *text);

/* Wait until all events are in pool.db, as far as it takes them now.  Outside
 * of all locks that a fold takes.
 */
extern void events_flush (struct events *e);

/* The history, oldest first, with those that wait: {"history": [...]}; with
 * "incomplete": true if a part cannot be read.
 */
extern json_t *events_get (struct events *e, struct meta *meta);

/*----------------------------------------------------------------------
 * For the folding thread
 */

/* Do some wait, and was there no failure just now? */
extern bool events_is_due (struct events *e);
/* Write those that wait, or the first of them. */
extern int events_put (struct events *e, struct meta_conn *c);
/* The transaction of the last events_put is durable; or it failed, or there was
 * no room for it: then no event is due for a while.
 */
extern void events_written (struct events *e, bool success);

#endif /* NBDEDUP_EVENTS_H */

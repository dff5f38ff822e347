/* SPDX-License-Identifier: BSD-3-Clause */

/* The events of the service: a server has opened a pool; a command has changed
 * one.  events.h says which commands' events belong to their transaction.
 */

#ifndef NBDEDUP_SERVICE_EVENT_H
#define NBDEDUP_SERVICE_EVENT_H

#include <stdbool.h>

#include "core/txg.h"
#include "nbdedup.h"

/* 'begin_ns': when the opening began, by clock_ns. */
extern void opened_event (struct nbdedup_pool *pool, uint64_t begin_ns);

struct command_event {
  struct nbdedup_pool *pool;     /* not owned */
  const struct event_kind *kind; /* NULL: no event */
  json_t *args;                  /* not owned */
  json_t *event;                 /* owned; of its own transaction, or NULL */
  char *text;                    /* owned; of 'event' */
  struct txg_event kept;
};

/* A command begins in this thread.  Outside of all locks: it may have to ask
 * for a login name.
 */
extern void command_event_begin (struct command_event *ce,
                                 struct nbdedup_pool *pool, const char *command,
                                 json_t *args);

/* It has ended, with the value 'r' and a result, or NULL; keeps errno and the
 * text of an error.  Outside of all locks.  It waits until the event is in the
 * history, if that has room, and logs it.
 */
extern void
command_event_end (struct command_event *ce, int r, const json_t *result);

#endif /* NBDEDUP_SERVICE_EVENT_H */

/* SPDX-License-Identifier: BSD-3-Clause */

/* Shared by control.c (connections and their requests), control-answer.c,
 * control-buffers.c and control-frozen.c.
 */

#ifndef NBDEDUP_CONTROL_INT_H
#define NBDEDUP_CONTROL_INT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>

#include <jansson.h>

#include "base/event.h"
#include "base/lock.h"
#include "format/control-protocol.h"
#include "nbdedup.h"

/* The buffers of connections that have a volume open, of CONTROL_PAYLOAD_MAX
 * bytes and one for a NUL.  There are few.  A connection has one only while it
 * serves a request, which ends soon whatever other clients do: so a client that
 * waits for its pipe, perhaps for another client that waits for a buffer, has
 * none, and all of them come to their turn.  A client that stops in the middle
 * of a request keeps one for CONTROL_TIMEOUT_S at most.
 */
struct control_buffers {
  struct lock lock; /* innermost; protects everything below */
  TAILQ_HEAD (, control_waiter) waiters; /* the first one is next */
  uint8_t **free;                        /* owned; the last one is next */
  unsigned nr_free, nr;                  /* nr: free or in use */
};

struct connection {
  LIST_ENTRY (connection) link; /* used by the accepting thread only */
  struct control *control;      /* not owned; outlives the connection */
  pthread_t thread;
  int fd;                       /* owned; closed after the join */
  uid_t uid;                    /* the peer's */
  struct event_asker asker;     /* the peer; its thread's own */
  atomic_bool done;             /* the thread is about to end */
  atomic_uint_fast64_t idle_ms; /* when its wait for a request began */
  atomic_bool used;             /* a request after HELLO has come */

  /* The thread's own. */
  bool greeted;                  /* HELLO was answered */
  struct nbdedup_volume *volume; /* NULL: none open */
  struct frozen *frozen;         /* owned; NULL: none */
  char *lost_moment;             /* owned; why 'frozen' was closed, or NULL */
  uint8_t *buf;                  /* CONTROL_PAYLOAD_MAX bytes, or NULL */
  bool borrowed;                 /* 'buf' is one of control->buffers */
  uint64_t cookie;               /* of the request being served */
  bool want_progress;            /* of the command being served */
  bool want_awaited, lost;       /* the same */
  char who[CONTROL_WHO_MAX + 1]; /* the client's name; "": not known */
  uint64_t progress_ms;          /* time of the last PROGRESS */
};

struct control {
  struct nbdedup_pool *pool;   /* not owned; outlives the control */
  int dirfd, listenfd, wakefd; /* owned */
  bool bound;                  /* this server made the socket's name */
  pthread_t thread;
  atomic_bool stopping;
  atomic_bool full; /* the accepting thread waits for an idle connection */
  atomic_uint nr_volumes; /* connections that have one open */
  atomic_uint nr_frozen;  /* the same for frozen moments */
  struct control_buffers buffers;

  /* The accepting thread's own. */
  LIST_HEAD (, connection) connections;
  unsigned nr_connections;
};

/*----------------------------------------------------------------------
 * control-answer.c: all return -1 if the connection must end.
 */

extern int control_reply (struct connection *conn, uint64_t offset,
                          uint64_t length, const void *payload,
                          uint32_t payload_len);
extern int
control_reply_error (struct connection *conn, int err, const char *text);
/* The engine's last failure in this thread. */
extern int control_reply_failure (struct connection *conn);
extern int control_reply_result (struct connection *conn, int r);
/* A JSON text of any length, in as many frames as it takes. */
extern int control_reply_json (struct connection *conn, json_t *json);

/* A nbdedup_progress_fn for the request being served; 'opaque' is the
 * connection.  Not 0: the client has gone or cancels, or the server stops.
 */
extern int control_progress (void *opaque, uint64_t done, uint64_t total);

/*----------------------------------------------------------------------
 * control-buffers.c
 */

extern void control_buffers_init (struct control_buffers *b);
extern void control_buffers_destroy (struct control_buffers *b);

/* Wait for one; first come, first served.  NULL: there is no memory. */
extern uint8_t *control_buffer_get (struct control_buffers *b);
extern void control_buffer_put (struct control_buffers *b, uint8_t *buf);

/*----------------------------------------------------------------------
 * control-frozen.c: requests of a frozen moment, as control.c has the others
 */

extern int
control_serve_freeze (struct connection *conn, const struct control_frame *f);
extern int
control_serve_frozen (struct connection *conn, const struct control_frame *f);
extern void control_close_frozen (struct connection *conn);
/* Wait for the next request of a client with a frozen moment, and end that if
 * it must give way, or the client is silent for too long.  True: it has ended.
 */
extern bool control_watch_frozen (struct connection *conn);

/* control.c: wait for a frame to begin; 'ms' -1: forever.  control_stop ends
 * the wait.
 */
extern bool control_wait (struct connection *conn, int ms);

#endif /* NBDEDUP_CONTROL_INT_H */

/* SPDX-License-Identifier: BSD-3-Clause */

/* The client's end of a connection as in control-protocol.h.  It carries one
 * request at a time.
 */

#ifndef NBDEDUP_CHANNEL_H
#define NBDEDUP_CHANNEL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "format/control-protocol.h"

/* What to do while the server is silent.  'look' is called several times a
 * second; -1 (with a text) gives up.  'longest_ms' is the time limit; 0: none.
 */
struct channel_watch {
  int (*look) (void *opaque, uint64_t waited_ms, uint64_t longest_ms);
  void *opaque;
};

struct channel {
  SLIST_ENTRY (channel) link;
  int fd;          /* owned */
  uint64_t cookie; /* of the last request */
  /* For channel_recv.  Not owned; NULL, the initial value: nothing. */
  const struct channel_watch *watch;
};

SLIST_HEAD (channel_list, channel);

/* Connect to the server of pool directory 'path', which must send its greeting
 * within 'timeout_s'; the protocol allows CONTROL_TIMEOUT_S.  ENOENT,
 * ECONNREFUSED (no process listens), EIO (lost while greeting) and EAGAIN (no
 * greeting in time) may be temporary; other errors are not.  'watch' may be
 * NULL.
 */
extern struct channel *channel_new (const char *path, const char *who,
                                    unsigned timeout_s,
                                    const struct channel_watch *watch);
extern void channel_free (struct channel *ch);
extern void channel_list_free (struct channel_list *list);

/* Has the server closed the connection, as it may between two requests? */
extern bool channel_is_closed (const struct channel *ch);

/* Send a request.  The function fills in its cookie. */
extern int
channel_send (struct channel *ch, struct control_frame *f, const void *payload);

/* Receive the header of the next REPLY or PROGRESS; on an ERROR, fail with
 * its errno and text.
 */
extern int channel_recv (struct channel *ch, struct control_frame *f);

/* Send a request whose REPLY has exactly 'len' bytes of payload, and receive
 * that.
 */
extern int channel_request (struct channel *ch, struct control_frame *f,
                            const void *payload, void *answer, uint32_t len);

/* Fails with EIO. */
extern int channel_lost (void);

#endif /* NBDEDUP_CHANNEL_H */

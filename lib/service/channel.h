/* SPDX-License-Identifier: BSD-3-Clause */

/* The client's end of a connection of control-protocol.h, which serves one
 * request at a time.
 */

#ifndef NBDEDUP_CHANNEL_H
#define NBDEDUP_CHANNEL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "format/control-protocol.h"

struct channel {
  SLIST_ENTRY (channel) link;
  int fd;                       /* owned */
  uint64_t cookie;              /* of the last request */
};

SLIST_HEAD (channel_list, channel);

/* Connect to the server of pool directory 'path', which must greet us within
 * 'timeout_s'; CONTROL_TIMEOUT_S is what it may take.  ENOENT, ECONNREFUSED
 * (nothing listens) and EIO (lost while greeting) may pass; others do not.
 */
extern struct channel *channel_new (const char *path, const char *who,
                                    unsigned timeout_s);
extern void channel_free (struct channel *ch);
extern void channel_list_free (struct channel_list *list);

/* Has the server closed it, as it may between two requests? */
extern bool channel_is_closed (const struct channel *ch);

/* Send a request.  Its cookie is filled in. */
extern int channel_send (struct channel *ch, struct control_frame *f,
                         const void *payload);

/* Receive the header of the next REPLY or PROGRESS; an ERROR is taken over
 * as this call's failure.
 */
extern int channel_recv (struct channel *ch, struct control_frame *f);

/* A request whose REPLY has exactly 'len' bytes of payload. */
extern int channel_request (struct channel *ch, struct control_frame *f,
                            const void *payload, void *answer, uint32_t len);

/* Fails with EIO. */
extern int channel_lost (void);

#endif /* NBDEDUP_CHANNEL_H */

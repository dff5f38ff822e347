/* SPDX-License-Identifier: BSD-3-Clause */

/* The clients that write to a volume.
 *
 * Two clients that write to one disk at the same time nearly always corrupt
 * the file system on it.  A client that will write looks like one that only
 * reads until it does.  So a client counts as a writer from its first write
 * until it detaches, and a second writer causes a warning in the log.
 *
 * Connections of the same peer (nbdedup_volume_set_peer) are one client.
 * Connections of unknown peers do not count.
 *
 * Threads: any.
 */

#ifndef NBDEDUP_WRITERS_H
#define NBDEDUP_WRITERS_H

#include <stdatomic.h>
#include <sys/queue.h>

#include "base/lock.h"

struct nbdedup_volume;

struct writers {
  atomic_uint nr;                    /* of different clients */
  struct lock lock;                  /* innermost; protects the list */
  LIST_HEAD (, nbdedup_volume) list; /* connections; by writer_link */
};

extern void writers_init (struct writers *writers);
extern void writers_destroy (struct writers *writers);

/* The client is about to write. */
extern void writers_note (struct nbdedup_volume *h);

/* The client detaches. */
extern void writers_forget (struct nbdedup_volume *h);

#endif /* NBDEDUP_WRITERS_H */

/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <stdbool.h>
#include <string.h>

#include "base/log.h"
#include "core/engine.h"
#include "data/volume-types.h"
#include "data/writers.h"

void
writers_init (struct writers *writers)
{
  lock_init (&writers->lock);
  LIST_INIT (&writers->list);
}

void
writers_destroy (struct writers *writers)
{
  assert (LIST_EMPTY (&writers->list));
  lock_destroy (&writers->lock);
}

/* Another writing connection of the same client, or NULL.  Sets *other to a
 * writing connection of another client, if there is one.
 */
static const struct nbdedup_volume *
find_locked (const struct writers *writers, const struct nbdedup_volume *h,
             const struct nbdedup_volume **other)
{
  const struct nbdedup_volume *w, *same = NULL;

  LIST_FOREACH (w, &writers->list, writer_link)
    if (w == h)
      continue;
    else if (strcmp (w->peer, h->peer) == 0)
      same = w;
    else if (other)
      *other = w;
  return same;
}

/* True if this is a second client: 'names' gets both names. */
static bool
add (struct writers *writers, struct nbdedup_volume *h,
     char names[2][PEER_NAME_MAX + 1])
{
  const struct nbdedup_volume *other = NULL;

  assert (h->peer[0] != '\0'); /* one peer is one client */
  WITH_LOCK (&writers->lock);
  if (h->writes) /* a concurrent request was first */
    return false;
  if (find_locked (writers, h, &other) != NULL)
    other = NULL;
  else
    writers->nr++;
  LIST_INSERT_HEAD (&writers->list, h, writer_link);
  h->writes = true;
  if (other) {
    memcpy (names[0], h->peer, sizeof h->peer);
    memcpy (names[1], other->peer, sizeof other->peer);
  }
  return other != NULL;
}

void
writers_note (struct nbdedup_volume *h)
{
  char names[2][PEER_NAME_MAX + 1], volume[VOLUME_FULL_NAME_MAX];

  if (h->writes || h->peer[0] == '\0' || !add (&h->volume->writers, h, names))
    return;
  {
    WITH_LOCK (&h->volume->pool->volumes->lock); /* against renaming */
    volume_full_name (h->volume, volume);
  }
  nbdedup_log (NBDEDUP_LOG_WARNING,
               "volume %s: both %s and %s write to it, "
               "which corrupts any file system that is not made for sharing: "
               "use attach=exclusive to refuse a second client",
               volume, names[0], names[1]);
}

void
writers_forget (struct nbdedup_volume *h)
{
  struct writers *writers = &h->volume->writers;

  WITH_LOCK (&writers->lock);
  if (!h->writes)
    return;
  assert (writers->nr > 0); /* this client counted */
  LIST_REMOVE (h, writer_link);
  h->writes = false;
  if (find_locked (writers, h, NULL) == NULL)
    writers->nr--;
}

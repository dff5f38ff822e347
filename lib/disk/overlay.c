/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/hashtable.h"
#include "base/mix.h"
#include "disk/overlay.h"

struct piece {
  struct hashtable_link link;
  uint64_t addr;
  size_t len;
  uint8_t bytes[];
};

struct overlay {
  struct hashtable pieces; /* owned */
  size_t bytes;
};

struct overlay *
overlay_new (void)
{
  struct overlay *o = calloc (1, sizeof *o);

  if (o == NULL || hashtable_init (&o->pieces) == -1) {
    free (o);
    return nbdedup_fail_null (ENOMEM, "no memory");
  }
  return o;
}

static void
free_piece (void *opaque, struct hashtable_link *l)
{
  (void) opaque;
  free (hashtable_entry (l, struct piece, link));
}

void
overlay_free (struct overlay *o)
{
  if (o == NULL)
    return;
  hashtable_visit (&o->pieces, free_piece, NULL);
  hashtable_destroy (&o->pieces);
  free (o);
}

static struct piece *
find (const struct overlay *o, uint64_t addr)
{
  struct hashtable_link *l;
  struct piece *p;

  for (l = hashtable_chain (&o->pieces, mix (addr)); l; l = l->next) {
    p = hashtable_entry (l, struct piece, link);
    if (p->addr == addr)
      return p;
  }
  return NULL;
}

int
overlay_put (struct overlay *o, uint64_t addr, const void *buf, size_t len)
{
  struct piece *p = malloc (sizeof *p + len), *old;

  assert (len > 0);
  if (p == NULL)
    return nbdedup_fail (ENOMEM, "no memory for a record of the journal");
  old = find (o, addr);
  if (old) {
    hashtable_remove (&o->pieces, &old->link);
    assert (o->bytes >= sizeof *old + old->len);
    o->bytes -= sizeof *old + old->len;
    free (old);
  }
  p->addr = addr;
  p->len = len;
  memcpy (p->bytes, buf, len);
  hashtable_insert (&o->pieces, &p->link, mix (addr));
  o->bytes += sizeof *p + len;
  return 0;
}

bool
overlay_get (const struct overlay *o, uint64_t addr, void *buf, size_t len)
{
  const struct piece *p = find (o, addr);

  if (p == NULL || p->len < len)
    return false;
  memcpy (buf, p->bytes, len);
  return true;
}

size_t
overlay_bytes (const struct overlay *o)
{
  return o->bytes;
}

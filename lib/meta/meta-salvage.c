/* SPDX-License-Identifier: BSD-3-Clause */

/* Reading of tables with pages that are damaged or unreadable: the rows before
 * the first such page and behind the last one, in the order of their ids,
 * without an index, which may be damaged itself.
 */

#include <config.h>

#include <errno.h>

#include "meta/meta-conn.h"

/* Scan upwards and, after damage, from the other end down to 'last', the id of
 * the last row that the first scan has read.
 */
static int
salvage (struct meta_conn *c, enum meta_stmt up, enum meta_stmt down,
         int (*scan) (struct meta_conn *c, enum meta_stmt which, bool is_down,
                      uint64_t *last, void *arg),
         void *arg)
{
  uint64_t last = 0;

  if (scan (c, up, false, &last, arg) == 0)
    return 0;
  if (errno != EIO)
    return -1;
  return scan (c, down, true, &last, arg) == 0 || errno == EIO ? 1 : -1;
}

struct salvage_layers {
  int (*fn) (void *opaque, const struct meta_layer *l);
  void *opaque;
};

static int
salvage_layers (struct meta_conn *c, enum meta_stmt which, bool is_down,
                uint64_t *last, void *arg)
{
  USING_STMT (st, c, which);
  struct salvage_layers *s = arg;
  struct meta_layer l;

  if (is_down)
    bind_u64 (st, 1, *last);
  return SCAN (c, st, "reading the layers", ({
                 meta_col_layer (st, &l);
                 *last = l.id;
                 s->fn (s->opaque, &l);
               }));
}

int
meta_layer_salvage (struct meta_conn *c,
                    int (*fn) (void *opaque, const struct meta_layer *l),
                    void *opaque)
{
  struct salvage_layers s = { fn, opaque };

  return salvage (c, ST_LAYER_SCAN, ST_LAYER_SCAN_DOWN, salvage_layers, &s);
}

struct salvage_volumes {
  int (*fn) (void *opaque, const struct meta_volume *v);
  void *opaque;
};

static int
salvage_volumes (struct meta_conn *c, enum meta_stmt which, bool is_down,
                 uint64_t *last, void *arg)
{
  USING_STMT (st, c, which);
  struct salvage_volumes *s = arg;
  struct meta_volume v;

  if (is_down)
    bind_u64 (st, 1, *last);
  return SCAN (c, st, "reading the volumes", ({
                 meta_col_volume (st, &v);
                 *last = v.id;
                 s->fn (s->opaque, &v);
               }));
}

int
meta_volume_salvage (struct meta_conn *c,
                     int (*fn) (void *opaque, const struct meta_volume *v),
                     void *opaque)
{
  struct salvage_volumes s = { fn, opaque };

  return salvage (c, ST_VOLUME_SCAN_UP, ST_VOLUME_SCAN_DOWN, salvage_volumes,
                  &s);
}

struct salvage_snapshots {
  int (*fn) (void *opaque, const struct meta_snapshot *s);
  void *opaque;
};

static int
salvage_snapshots (struct meta_conn *c, enum meta_stmt which, bool is_down,
                   uint64_t *last, void *arg)
{
  USING_STMT (st, c, which);
  struct salvage_snapshots *sv = arg;
  struct meta_snapshot s;

  if (is_down)
    bind_u64 (st, 1, *last);
  return SCAN (c, st, "reading the snapshots", ({
                 meta_col_snapshot (st, &s);
                 *last = s.id;
                 sv->fn (sv->opaque, &s);
               }));
}

int
meta_snapshot_salvage (struct meta_conn *c,
                       int (*fn) (void *opaque, const struct meta_snapshot *s),
                       void *opaque)
{
  struct salvage_snapshots s = { fn, opaque };

  return salvage (c, ST_SNAPSHOT_SCAN_UP, ST_SNAPSHOT_SCAN_DOWN,
                  salvage_snapshots, &s);
}

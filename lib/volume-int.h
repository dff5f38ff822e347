/* SPDX-License-Identifier: BSD-3-Clause */

/* Shared by volume.c (the list) and volume-admin.c (the commands). */

#ifndef NBDEDUP_VOLUME_INT_H
#define NBDEDUP_VOLUME_INT_H

#include "volume.h"

/* May a volume (or a domain) have this name? */
extern bool volume_is_name (const char *s);

/* A volume that is not in the list yet; the caller owns it. */
extern struct volume *volume_new (struct nbdedup_pool *pool,
                                  const struct meta_volume *mv,
                                  const char *domain_name,
                                  struct layer *layer);
extern void volume_free (struct volume *v);

/* With volumes->lock held. */
extern void volumes_insert_locked (struct volumes *vs, struct volume *v);
extern int volumes_add_layer_locked (struct volumes *vs,
                                     const struct meta_layer *ml,
                                     struct layer **layer);

#endif /* NBDEDUP_VOLUME_INT_H */

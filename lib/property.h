/* SPDX-License-Identifier: BSD-3-Clause */

/* The pool's properties: names, defaults, which values are allowed.
 * (Volumes' own: volume.h.)
 */

#ifndef NBDEDUP_PROPERTY_H
#define NBDEDUP_PROPERTY_H

#include <stdint.h>

#include "meta.h"

struct nbdedup_pool;

/* Names, NULL-terminated, in the order of "get all". */
extern const char *const pool_properties[];

/* The value, malloc'd; -1 (EINVAL): no such property. */
extern int pool_property_get (struct nbdedup_pool *pool, const char *name,
                              char **value);
/* Checks, stores, applies. */
extern int pool_property_set (struct nbdedup_pool *pool, const char *name,
                              const char *value);

/* Is this a value of the property?  Also for "init". */
extern int pool_property_check (const char *name, const char *value);

/* Apply what pool.db says to the open pool. */
extern int pool_properties_load (struct nbdedup_pool *pool);

/* A block size: a power of two within the format's limits, not below the
 * sector.
 */
extern int check_block_size (uint64_t bytes, uint32_t sector_bytes);

#endif /* NBDEDUP_PROPERTY_H */

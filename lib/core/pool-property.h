/* SPDX-License-Identifier: BSD-3-Clause */

/* The pool's properties: names, defaults, allowed values, and the values in
 * pool.db.  (property-apply.h puts them into effect.  volume.h has the
 * properties of volumes.)
 */

#ifndef NBDEDUP_POOL_PROPERTY_H
#define NBDEDUP_POOL_PROPERTY_H

#include <stdint.h>

struct nbdedup_pool;

/* The longest value: the path of a copy of pool.db, as long as the copy's mark
 * can hold.
 */
#define PROPERTY_VALUE_MAX 1000

/* Names, NULL-terminated, in the order of "get all". */
extern const char *const pool_properties[];

/* The value, malloc'd; -1 (EINVAL): no such property. */
extern int
pool_property_get (struct nbdedup_pool *pool, const char *name, char **value);
/* The same for a size (0 for "none"), and for a percentage. */
extern int pool_property_limit (struct nbdedup_pool *pool, const char *name,
                                uint64_t *bytes);
extern int pool_property_percent (struct nbdedup_pool *pool, const char *name,
                                  unsigned *percent);

/* Is this a value of the property?  Also for "init". */
extern int pool_property_check (const char *name, const char *value);

/* nbdedup_parse_size, with the property's name in the error. */
extern int
pool_property_parse_size (const char *name, const char *value, uint64_t *bytes);
/* "30d": 's' in seconds; "off": 0.  EINVAL. */
extern int pool_property_parse_interval (const char *value, uint64_t *s);

/* A block size: a power of two within the format's limits, not below the
 * sector.
 */
extern int check_block_size (uint64_t bytes, uint32_t sector_bytes);

#endif /* NBDEDUP_POOL_PROPERTY_H */

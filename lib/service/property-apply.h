/* SPDX-License-Identifier: BSD-3-Clause */

/* Puts the pool's properties into effect: when the pool is opened, and when
 * one is set.  Names, defaults and values: pool-property.h.
 */

#ifndef NBDEDUP_PROPERTY_APPLY_H
#define NBDEDUP_PROPERTY_APPLY_H

struct nbdedup_pool;

/* Check, store, apply.  Under pool->admin. */
extern int pool_property_set (struct nbdedup_pool *pool, const char *name,
                              const char *value);

/* Apply the properties in pool.db to the open pool. */
extern int pool_properties_load (struct nbdedup_pool *pool);

#endif /* NBDEDUP_PROPERTY_APPLY_H */

/* SPDX-License-Identifier: BSD-3-Clause */

/* The thresholds of alerts (alert.h) as properties: their values, and the rows
 * of pool.db that hold those of volumes.
 */

#ifndef NBDEDUP_ALERT_PROPERTY_H
#define NBDEDUP_ALERT_PROPERTY_H

#include <stdbool.h>
#include <stdint.h>

struct meta_conn;
struct nbdedup_pool;

#define ALERT_RATIO "drift-alert-ratio"
#define ALERT_GROWTH "drift-alert-growth"
#define ALERT_UNIQUE "drift-alert-unique"

/* The value of a volume that follows the pool's. */
#define ALERT_DEFAULT "default"

/* Is it one of the three? */
extern bool alert_property_is (const char *name);

/* Is this a value of the pool's property, or of a volume's?  EINVAL. */
extern int alert_property_check (const char *name, const char *value);
extern int alert_volume_check (const char *value);

/* "2.5"; 0 for "none".  EINVAL. */
extern int alert_parse_ratio (const char *value, double *ratio);

/* The row of a volume: its drift-alert-unique as "set" takes it, sizes in
 * bytes.  'value' is malloc'd; without a row it is "default".
 */
extern int
alert_volume_get (struct meta_conn *c, uint64_t volume, char **value);
/* "default" deletes the row. */
extern int
alert_volume_put (struct meta_conn *c, uint64_t volume, const char *value);

#endif /* NBDEDUP_ALERT_PROPERTY_H */

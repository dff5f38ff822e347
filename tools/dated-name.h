/* SPDX-License-Identifier: BSD-3-Clause */

/* Dates in file names: "web-2026-10-01.qcow2", "web.20261001T0300.raw". */

#ifndef NBDEDUP_DATED_NAME_H
#define NBDEDUP_DATED_NAME_H

#include <stdbool.h>
#include <stdint.h>

/* Find a date, with or without a time of day, in the last part of path 'file'.
 * True: '*time' is its time in this machine's time zone, in seconds since the
 * epoch, and '*name', which the caller owns, is 'file' without it
 * ("web.qcow2").
 */
extern bool dated_name (const char *file, char **name, int64_t *time);

#endif /* NBDEDUP_DATED_NAME_H */

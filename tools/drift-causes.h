/* SPDX-License-Identifier: BSD-3-Clause */

/* Why a clone has what it does not share with its golden image: a word for each
 * owner of its blocks.
 */

#ifndef NBDEDUP_DRIFT_CAUSES_H
#define NBDEDUP_DRIFT_CAUSES_H

#define CAUSE_PACKAGE "package upgrade"
#define CAUSE_SWAP "swap"
#define CAUSE_TEMPORARY "caches and temporary files"

/* 'package': the one that owns the path, or NULL. */
extern const char *drift_cause (const char *path, const char *package);

#endif /* NBDEDUP_DRIFT_CAUSES_H */

/* SPDX-License-Identifier: BSD-3-Clause */

/* Parts of drift_view (drift-report.h): sections of the page that are only
 * there with "--files" or "--advise".  Texts in the views may come from guests:
 * the template escapes them.  The program ends if there is no memory.
 */

#ifndef NBDEDUP_DRIFT_VIEW_H
#define NBDEDUP_DRIFT_VIEW_H

#include <stdint.h>

#include <jansson.h>

/* json_pack, and human_bytes as a string: new references. */
extern json_t *view_pack (const char *format, ...);
extern json_t *view_bytes (uint64_t bytes);

/* A new string: bytes as a percentage of all, for CSS. */
extern json_t *view_width (uint64_t bytes, uint64_t all);

/* drift-view-why.c: what diverged data belongs to, of all clones ("why") and of
 * the most diverged ones ("reasons", an array); nothing if the document has no
 * files.
 */
extern void drift_view_why (json_t *view, const json_t *document);

/* drift-view-map.c: the block map (drift-map.h) of a clone; 'prefix' makes the
 * page's names unique.
 */
extern json_t *drift_view_map (const json_t *map, const char *prefix);

/* drift-view-advice.c: what to do ("advice"); nothing if the document has no
 * advice.
 */
extern void drift_view_advice (json_t *view, const json_t *document);

#endif /* NBDEDUP_DRIFT_VIEW_H */

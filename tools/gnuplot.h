/* SPDX-License-Identifier: BSD-3-Clause */

/* Charts, drawn by gnuplot as SVG.
 *
 * One run draws any number of charts, a document each.  The function cuts off
 * each document up to its </defs>: a title, and markers with ids that all
 * charts have in common.  So charts must not use points, which refer to the
 * markers.  The rest has neither scripts nor references.
 */

#ifndef NBDEDUP_GNUPLOT_H
#define NBDEDUP_GNUPLOT_H

#include <stddef.h>

#include <jansson.h>

/* Run 'script'.  Returns an array of charts (a new reference), each the
 * elements that belong into <svg><g> and </svg>; NULL: image_error, with
 * 'file', for which they are, in it.
 */
extern json_t *gnuplot_run (const char *script, size_t len, const char *file);

#endif /* NBDEDUP_GNUPLOT_H */

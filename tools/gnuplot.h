/* SPDX-License-Identifier: BSD-3-Clause */

/* Charts, drawn by gnuplot as SVG.
 *
 * One run draws any number of charts: a script sets its terminal anew for
 * each.  What gnuplot writes is cut at its </defs>: before that stand a title
 * of its own, and markers with ids that all charts have in common; so charts
 * must use no points (nothing refers to the markers then), and what is left
 * has neither scripts nor references.
 */

#ifndef NBDEDUP_GNUPLOT_H
#define NBDEDUP_GNUPLOT_H

#include <stddef.h>
#include <stdio.h>

/* Start a chart of that many pixels in 'script'.  'name' is the first part
 * of its elements' ids.
 */
extern void gnuplot_chart (FILE *script, const char *name, unsigned width,
                           unsigned height);

/* Write 'text' as a string: quoted, on one line, as it is. */
extern void gnuplot_string (FILE *script, const char *text);

/* Run 'script'.  Returns the charts (owned by the caller); NULL: image_error,
 * with 'file', for which they are, in it.
 */
extern char *gnuplot_run (const char *script, size_t len, const char *file);

/* Write the elements of the next chart in *charts, and go behind it.  The
 * caller has written <svg><g>, and writes </svg>.  -1: image_error.
 */
extern int gnuplot_copy (FILE *fp, char **charts);

#endif /* NBDEDUP_GNUPLOT_H */

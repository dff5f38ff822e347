/* SPDX-License-Identifier: BSD-3-Clause */

/* The parts of the page. */

#ifndef NBDEDUP_DRIFT_HTML_H
#define NBDEDUP_DRIFT_HTML_H

#include <stdint.h>
#include <stdio.h>

#include <jansson.h>

#include "drift-report.h"

/* A clone of the newest document of a history. */
struct page_clone {
  const json_t *clone;
  struct drift_clone now;
  uint64_t greatest;            /* bytes that it ever had; the caller's */
};

/* The clones of 'document', the most diverged first: an array of *nr, owned
 * by the caller.
 */
extern struct page_clone *page_clones (const json_t *document, size_t *nr);

/* drift-page.c: the head and the foot; text with all that means something in
 * HTML escaped; legends.
 */
extern void page_begin (FILE *fp, const json_t *histories);
extern void page_end (FILE *fp);
extern void page_text (FILE *fp, const char *text);

/* Of the lines from 'first' on, and of the classes, as they are stacked. */
extern void page_line_legend (FILE *fp, unsigned first);
extern void page_class_legend (FILE *fp);

/* drift-page-table.c: what the golden image and its clones are now.  The
 * table's columns from PAGE_FIGURES on are figures.
 */
#define PAGE_COLUMNS 9
#define PAGE_FIGURES 2

extern const char *const page_columns[PAGE_COLUMNS];
extern void page_summary (FILE *fp, const json_t *document);
extern void page_table (FILE *fp, const json_t *document);

#endif /* NBDEDUP_DRIFT_HTML_H */

/* SPDX-License-Identifier: BSD-3-Clause */

/* The output of "nbdedup drift", in each of its forms.
 *
 * A *document* is the engine's report on one golden image at one time (see
 * JSON OUTPUT in nbdedup-drift.pod); its counts are blocks.  Texts, tables and
 * charts show bytes, so all of them use the figures below.
 *
 * A *history* is an array of documents of one golden image, at least one, in
 * recorded order: the last has the present figures, even if a clock was set
 * back.  Invalid values in a document count as zero.  The program ends if
 * there is no memory.
 */

#ifndef NBDEDUP_DRIFT_REPORT_H
#define NBDEDUP_DRIFT_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <jansson.h>

/*----------------------------------------------------------------------
 * drift-figures.c
 */

/* The classes of a clone's blocks that are not zero, in the order of display:
 * from no cost to the highest.  The charts' words and colours for them are in
 * drift-style.json, in the same order.
 */
enum {
  CLASS_GOLDEN_SAME,
  CLASS_GOLDEN_MOVED,
  CLASS_SIBLING,
  CLASS_UNIQUE,
  NR_CLASSES,
};

struct drift_class {
  const char *key;    /* in the document */
  const char *head;   /* of a column */
  const char *phrase; /* after a figure, in a sentence */
};

extern const struct drift_class drift_classes[NR_CLASSES];

/* Bytes, of a clone, or summed over all clones of a document. */
struct drift_clone {
  uint64_t logical;
  uint64_t zero;
  uint64_t class[NR_CLASSES];
  uint64_t only_here; /* stored; of sums: 0, they do not add up */
};

/* Bytes, of the golden image and its clones together. */
struct drift_fleet {
  size_t nr_clones;
  uint64_t golden;
  uint64_t logical, distinct, stored;
  double ratio;              /* NaN: the divisor is 0 */
  struct drift_clone clones; /* the sums */
};

extern void drift_clone_read (const json_t *document, const json_t *clone,
                              struct drift_clone *figures);
extern void
drift_fleet_read (const json_t *document, struct drift_fleet *figures);

/* The bytes that have diverged from the golden image. */
extern uint64_t drift_diverged (const struct drift_clone *figures);

/* Are both of one golden image?  By its id, which outlives its name; by its
 * name if a document has no id, such as one of "estimate".
 */
extern bool drift_same_golden (const json_t *a, const json_t *b);

/* The clone of that name, or NULL. */
extern const json_t *
drift_find_clone (const json_t *document, const char *name);

/* The same clones, the most diverged first: a new array. */
extern json_t *drift_by_divergence (const json_t *document);

/* "16 %", "<1 %", or "-" if the whole is 0; returns 'buf'.  Only the whole is
 * 100 %, and only zero is 0 %.
 */
#define PERCENT_MAX 16
extern const char *
drift_percent (uint64_t part, uint64_t whole, char buf[PERCENT_MAX]);

/* "1.90G": human_bytes for narrow columns. */
extern const char *drift_bytes (uint64_t bytes, char *buf, size_t len);

/* 'format' is strftime's; in this machine's time zone. */
extern const char *
drift_time (const json_t *document, const char *format, char *buf, size_t len);

/* The document with the present figures, and the newest name. */
extern json_t *drift_newest (const json_t *history);

/* The histories of 'samples' (documents of any golden images), by their newest
 * names: a new array.
 */
extern json_t *drift_histories (const json_t *samples);

/* The same documents by their times: a new array. */
extern json_t *drift_by_time (const json_t *history);

/* The documents of an engine's answer: one, or those in "goldens".  A new
 * reference to an array.
 */
extern json_t *drift_documents (json_t *answer);

/*----------------------------------------------------------------------
 * Forms: on standard output
 */

/* drift-text.c: for people. */
extern void drift_print (const json_t *documents);

/* 'freed': {"names", "freed_bytes"}, 'asked': the names that were given. */
extern void drift_print_freed (const json_t *freed, const json_t *asked);

/* drift-forecast.c: where that leads, in short (a document without a forecast
 * prints nothing), and in full.
 */
extern void drift_write_outlook (FILE *fp, const json_t *document);
extern void drift_print_forecasts (const json_t *documents);

/* drift-alert.c */
extern void drift_print_alerts (const json_t *alerts);

/* drift-history.c: the same.  The locale tells what the terminal shows. */
extern void drift_print_history (const json_t *histories);

/* drift-csv.c: RFC 4180. */
extern void drift_print_csv (const json_t *documents);

/*----------------------------------------------------------------------
 * drift-view.c: the data for the templates of the page, of the picture and of
 * their charts (a new reference).  The clones of a golden image are in
 * "clones", and those that have a chart in "drawn", the most diverged first.
 */
extern json_t *drift_view (const json_t *histories);

/*----------------------------------------------------------------------
 * Forms in a file.  'file' is its name, for messages.  -1: image_error.
 */

/* drift-draw.c: with charts by gnuplot. */
extern int
drift_write_svg (FILE *fp, const json_t *histories, const char *file);
extern int
drift_write_html (FILE *fp, const json_t *histories, const char *file);

#endif /* NBDEDUP_DRIFT_REPORT_H */

/* SPDX-License-Identifier: BSD-3-Clause */

/* Mustache templates (mustache(5)), the part that nbdedup uses:
 *
 *   {{key}}             a string or a number, as text of HTML
 *   {{'key}}            the same, between single quotes of gnuplot
 *   {{{key}}}           the same, as it is
 *   {{#key}}...{{/key}} for each element of an array; once for anything else
 *                       but 0 and false.  Keys are looked up in that first
 *   {{^key}}...{{/key}} if {{#key}} would write nothing
 *   {{! comment}}
 *
 * A section's tag that has a line for itself leaves no empty line.
 */

#ifndef NBDEDUP_TEMPLATE_H
#define NBDEDUP_TEMPLATE_H

#include <stdio.h>

#include <jansson.h>

/* 'text' is part of the program: a tag without an end is a bug. */
extern void template_write (FILE *fp, const char *text, const json_t *view);

#endif /* NBDEDUP_TEMPLATE_H */

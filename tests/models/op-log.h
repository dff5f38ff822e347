/* SPDX-License-Identifier: BSD-3-Clause */

/* The last operations of a history, to print when a test fails. */

#ifndef NBDEDUP_OP_LOG_H
#define NBDEDUP_OP_LOG_H

#define OP_LOG_TEXT 160

/* A buffer of OP_LOG_TEXT bytes for the text of the next operation.  Later
 * operations overwrite it.
 */
extern char *op_log_next (void);

extern void op_log_note (const char *text);
extern void op_log_print (void); /* to stderr */

/* The number of operations since the last clear. */
extern unsigned op_log_nr (void);
extern void op_log_clear (void);

#endif /* NBDEDUP_OP_LOG_H */

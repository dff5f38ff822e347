/* SPDX-License-Identifier: BSD-3-Clause */

/* The last operations of a history, to be told when something is wrong. */

#ifndef NBDEDUP_OP_LOG_H
#define NBDEDUP_OP_LOG_H

#define OP_LOG_TEXT 160

/* Room for what the next one is, OP_LOG_TEXT bytes, for a while. */
extern char *op_log_next (void);

extern void op_log_note (const char *text);
extern void op_log_print (void);        /* to stderr */

/* How many there were since the last clear. */
extern unsigned op_log_nr (void);
extern void op_log_clear (void);

#endif /* NBDEDUP_OP_LOG_H */

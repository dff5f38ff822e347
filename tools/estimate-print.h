/* SPDX-License-Identifier: BSD-3-Clause */

/* The document of "estimate", as text. */

#ifndef NBDEDUP_ESTIMATE_PRINT_H
#define NBDEDUP_ESTIMATE_PRINT_H

#include <jansson.h>

extern void estimate_print (const json_t *result);

#endif /* NBDEDUP_ESTIMATE_PRINT_H */

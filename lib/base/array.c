/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"

void *
array_add (void *array, size_t *nr, size_t size)
{
  void *p;

  memcpy (&p, array, sizeof p);
  if ((*nr & (*nr - 1)) == 0) {
    p = realloc (p, (*nr ? 2 * *nr : 1) * size);
    if (p == NULL)
      return nbdedup_fail_null (ENOMEM, "no memory");
    memcpy (array, &p, sizeof p);
  }
  p = (char *) p + (*nr)++ * size;
  memset (p, 0, size);
  return p;
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* drift-days POOL CLONE START DAYS BYTES: a drift history without waiting for
 * it.  At START (seconds since 1970) and on each following day, write BYTES of
 * new data to CLONE, and record a sample of all golden images.
 */

#include <config.h>

#include <stdlib.h>
#include <time.h>

#include <jansson.h>

#include "nbdedup.h"
#include "rigs/testutil.h"

static time_t now;

/* Replaces the C library's function in the engine. */
time_t
time (time_t *p)
{
  if (p)
    *p = now;
  return now;
}

static void
must (int r)
{
  if (r == -1)
    die ("%s", nbdedup_error ());
}

static void
live_a_day (struct nbdedup_pool *pool, struct nbdedup_volume *v, uint32_t bytes,
            uint64_t day)
{
  json_t *args = json_pack ("{s:b}", "record", 1), *result;
  uint8_t *buf = xmalloc (bytes);

  fill_random (buf, bytes, (uint64_t) now);
  must (nbdedup_volume_write (v, buf, bytes, day * bytes));
  must (nbdedup_volume_flush (v));
  free (buf);
  result = nbdedup_call (pool, "drift", args);
  if (result == NULL)
    die ("drift: %s", nbdedup_error ());
  json_decref (result);
  json_decref (args);
}

int
main (int argc, char **argv)
{
  struct nbdedup_pool *pool;
  struct nbdedup_volume *v;
  uint64_t day, days;

  if (argc != 6) {
    fprintf (stderr, "usage: drift-days POOL CLONE START DAYS BYTES\n");
    return 2;
  }
  now = atoll (argv[3]);
  days = (uint64_t) atoll (argv[4]);
  pool = nbdedup_pool_open (argv[1], NULL, "drift-days", 0);
  if (pool == NULL)
    die ("%s", nbdedup_error ());
  v = nbdedup_volume_open (pool, argv[2], 0, -1, NULL);
  if (v == NULL)
    die ("%s", nbdedup_error ());
  for (day = 0; day < days; ++day, now += 86400)
    live_a_day (pool, v, (uint32_t) atol (argv[5]), day);
  nbdedup_volume_close (v);
  must (nbdedup_pool_close (pool));
  return 0;
}

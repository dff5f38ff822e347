/* SPDX-License-Identifier: BSD-3-Clause */

/* engine-call POOL COMMAND [ARGS]: run one of the engine's commands (command.h)
 * with arguments in JSON, in this process or through the server that has the
 * pool open, and print the result.  If the command fails, print the reason and
 * exit with status 1.
 *
 *   CLOCK        the time for an engine in this process, in seconds since 1970
 */

#include <config.h>

#include <stdlib.h>
#include <time.h>

#include <jansson.h>

#include "nbdedup.h"
#include "rigs/testutil.h"

/* Replaces the C library's function in the engine. */
time_t
time (time_t *p)
{
  const char *clock_s = getenv ("CLOCK");
  struct timespec ts = { 0, 0 };

  if (clock_s)
    ts.tv_sec = atoll (clock_s);
  else
    clock_gettime (CLOCK_REALTIME, &ts);
  if (p)
    *p = ts.tv_sec;
  return ts.tv_sec;
}

int
main (int argc, char **argv)
{
  struct nbdedup_client *client;
  json_t *args, *result;
  json_error_t error;

  if (argc < 3 || argc > 4) {
    fprintf (stderr, "usage: engine-call POOL COMMAND [ARGS]\n");
    return 2;
  }
  args = argc > 3 ? json_loads (argv[3], 0, &error) : json_object ();
  if (args == NULL)
    die ("%s: %s", argv[3], error.text);
  client = nbdedup_client_open (argv[1], NULL, "engine-call", NULL);
  if (client == NULL)
    die ("%s", nbdedup_error ());
  result = nbdedup_client_call (client, argv[2], args, NULL, NULL);
  if (result == NULL)
    die ("%s: %s", argv[2], nbdedup_error ());
  json_dumpf (result, stdout, JSON_COMPACT);
  putchar ('\n');
  json_decref (result);
  json_decref (args);
  if (nbdedup_client_close (client) == -1)
    die ("%s", nbdedup_error ());
  return 0;
}

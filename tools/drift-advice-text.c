/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <stdio.h>

#include "drift-advice.h"

#define CLONES_SHOWN 5
#define COMMANDS_SHOWN 8

static void
print_clones (const json_t *clones)
{
  const size_t nr = json_array_size (clones);
  char size[HUMAN_MAX];
  json_t *clone;
  size_t i;

  if (nr == 0)
    return;
  printf ("     ");
  json_array_foreach (clones, i, clone) {
    if (i == CLONES_SHOWN)
      break;
    printf ("%s%s %s", i > 0 ? ", " : "", json_text (clone, "name"),
            human_bytes (json_size (clone, "saves_bytes"), size));
  }
  if (nr > CLONES_SHOWN)
    printf (", and %zu more", nr - CLONES_SHOWN);
  putchar ('\n');
}

static void
print_one (size_t number, const json_t *advice)
{
  const json_t *commands = json_object_get (advice, "commands");
  const size_t nr = json_array_size (commands);
  char size[HUMAN_MAX];
  json_t *line;
  size_t i;

  printf ("  %zu. %s  %s\n", number,
          human_bytes (json_size (advice, "saves_bytes"), size),
          json_text (advice, "text"));
  print_clones (json_object_get (advice, "clones"));
  json_array_foreach (commands, i, line) {
    /* The last one may be another kind of command. */
    if (nr > COMMANDS_SHOWN && i >= COMMANDS_SHOWN - 1 && i + 1 < nr) {
      if (i == COMMANDS_SHOWN - 1)
        printf ("       ... (%zu more: --json shows all)\n",
                nr - COMMANDS_SHOWN);
      continue;
    }
    printf ("       %s\n", json_string_value (line));
  }
}

void
drift_advice_print (const json_t *documents)
{
  json_t *document, *advice;
  size_t i, j;

  json_array_foreach (documents, i, document) {
    const json_t *list = json_object_get (document, "advice");

    printf ("\n%s, advice%s\n", json_text (document, "golden"),
            json_array_size (list) > 0 ? ", with what each would save:"
                                       : ": nothing that would save much");
    json_array_foreach (list, j, advice)
      print_one (j + 1, advice);
  }
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* Text of any bytes in JSON, which takes UTF-8 only: a path, a message with a
 * path in it, a text that snprintf has cut off within a character.
 */

#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "nbdedup.h"

static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */
#define REPLACEMENT_LEN (sizeof replacement - 1)
#define CHARACTER_MAX 4 /* bytes */

/* The length of the character that a text begins with; 0: it is none. */
static size_t
character_len (const char *text)
{
  json_t *character;
  size_t n;

  for (n = 1; n <= CHARACTER_MAX && text[n - 1] != '\0'; ++n) {
    character = json_stringn (text, n);
    if (character) {
      json_decref (character);
      return n;
    }
  }
  return 0;
}

json_t *
nbdedup_json_text (const char *text)
{
  json_t *string = json_string (text);
  CLEANUP_FREE char *valid = NULL;
  char *p;
  size_t n;

  if (string != NULL)
    return string;
  valid = malloc (strlen (text) * REPLACEMENT_LEN + 1);
  if (valid == NULL)
    return NULL;
  for (p = valid; *text; text += n > 0 ? n : 1) {
    n = character_len (text);
    memcpy (p, n > 0 ? text : replacement, n > 0 ? n : REPLACEMENT_LEN);
    p += n > 0 ? n : REPLACEMENT_LEN;
  }
  *p = '\0';
  return json_string (valid);
}

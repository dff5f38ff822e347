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

/* The length of the character that a text begins with; 0: it is none. */
static size_t
character_len (const char *text)
{
  const unsigned char *s = (const unsigned char *) text;
  const size_t len = *s < 0x80 ? 1
    : *s >= 0xc2 && *s < 0xe0  ? 2
    : *s >= 0xe0 && *s < 0xf0  ? 3
    : *s >= 0xf0 && *s < 0xf5  ? 4
                               : 0;
  size_t i;

  for (i = 1; i < len; ++i)
    if ((s[i] & 0xc0) != 0x80)
      return 0;
  /* Overlong ones, surrogates, beyond Unicode */
  if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
      (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))
    return 0;
  return len;
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

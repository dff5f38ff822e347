/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <string.h>

#include "template.h"

#define KEY_MAX 32

/* The scopes for lookups of keys: the innermost section first. */
struct scope {
  const json_t *value;
  const struct scope *outer;
};

struct tag {
  char kind; /* '#', '^', '/', '!'; of values '{', '\'', 0 */
  char key[KEY_MAX];
};

static const json_t *
look_up (const struct scope *scope, const char *key)
{
  const json_t *value = NULL;

  for (; scope != NULL && value == NULL; scope = scope->outer)
    value = json_object_get (scope->value, key);
  return value;
}

/* Each of 'special' as its entity; on one line. */
static void
write_escaped (FILE *fp, const char *text, const char *special,
               const char *const *entities)
{
  for (; *text != '\0'; ++text) {
    const char *found = strchr (special, *text);

    if (found != NULL)
      fputs (entities[found - special], fp);
    else
      putc ((unsigned char) *text < ' ' ? ' ' : *text, fp);
  }
}

static void
write_value (FILE *fp, const json_t *value, char kind)
{
  static const char *const html[] = {
    "&amp;", "&lt;", "&gt;", "&quot;", "&#39;",
  };
  static const char *const doubled[] = { "''" };

  if (json_is_integer (value))
    fprintf (fp, "%" JSON_INTEGER_FORMAT, json_integer_value (value));
  else if (json_is_real (value))
    fprintf (fp, "%.17g", json_real_value (value));
  else if (json_is_string (value) && kind == '{')
    fputs (json_string_value (value), fp);
  else if (json_is_string (value) && kind == '\'')
    write_escaped (fp, json_string_value (value), "'", doubled);
  else if (json_is_string (value))
    write_escaped (fp, json_string_value (value), "&<>\"'", html);
}

/* Write the text up to the next tag, and read that.  Returns what follows it;
 * NULL: there is none.  'fp' NULL: write nothing.
 */
static const char *
next_tag (FILE *fp, const char *text, struct tag *tag)
{
  const char *open = strstr (text, "{{"), *key, *end;

  if (fp != NULL)
    fwrite (text, 1, (open == NULL ? strchr (text, '\0') : open) - text, fp);
  if (open == NULL)
    return NULL;
  key = open + 2;
  tag->kind = strchr ("#^/!{'", *key) == NULL ? '\0' : *key++;
  end = strstr (key, tag->kind == '{' ? "}}}" : "}}");
  assert (end != NULL);
  snprintf (tag->key, sizeof tag->key, "%.*s", (int) (end - key), key);
  end += tag->kind == '{' ? 3 : 2;
  if (memchr ("#^/!", tag->kind, 4) != NULL && *end == '\n' && open[-1] == '\n')
    end++;
  return end;
}

/* The number of times to write a section. */
static size_t
times (const json_t *value)
{
  if (json_is_array (value))
    return json_array_size (value);
  if (json_is_integer (value))
    return json_integer_value (value) != 0;
  return value != NULL && !json_is_false (value);
}

/* Write up to the end of the section that 'text' is in.  Returns the rest. */
static const char *
write_section (FILE *fp, const char *text, const struct scope *scope)
{
  const json_t *value;
  const char *end;
  struct tag tag;
  size_t nr, i;

  while ((text = next_tag (fp, text, &tag)) != NULL && tag.kind != '/') {
    if (tag.kind == '!')
      continue;
    value = look_up (scope, tag.key);
    nr = times (value);
    if (tag.kind == '#' || tag.kind == '^') {
      end = write_section (tag.kind == '^' && nr == 0 ? fp : NULL, text, scope);
      for (i = 0; fp != NULL && tag.kind == '#' && i < nr; ++i)
        write_section (fp, text,
                       &(struct scope) { json_is_array (value)
                                           ? json_array_get (value, i)
                                           : value,
                                         scope });
      text = end;
    }
    else if (fp != NULL)
      write_value (fp, value, tag.kind);
  }
  return text;
}

void
template_write (FILE *fp, const char *text, const json_t *view)
{
  assert (*text != '{'); /* next_tag reads the text before a tag */
  write_section (fp, text, &(struct scope) { view, NULL });
}

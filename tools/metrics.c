/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/array.h"
#include "metrics.h"
#include "tools.h"

#define NR(array) (sizeof (array) / sizeof (array)[0])

static char *common; /* owned; labels of all samples; NULL: none */

/* The labels in 'common', as the user wrote them. */
static const char **given; /* owned, but not the texts */
static size_t nr_given;

/* The command's own labels.  A second one of the same name would make the
 * output invalid.
 */
static const char *const own_labels[] = {
  "class", "clone", "file",     "golden", "kind",   "le",
  "name",  "op",    "refcount", "state",  "volume",
};

static const char *
check_name (const char *label, size_t len)
{
  size_t i;

  for (i = 0; i < len; ++i)
    if (!isascii (label[i]) ||
        !(isalpha (label[i]) || label[i] == '_' ||
          (i > 0 && isdigit (label[i]))))
      len = 0;
  if (len == 0)
    return "its name must have letters, digits and _, and not begin with a "
           "digit";
  for (i = 0; i < NR (own_labels); ++i)
    if (strlen (own_labels[i]) == len &&
        strncmp (own_labels[i], label, len) == 0)
      return "the command's own metrics have a label of this name";
  return NULL;
}

static bool
has_label (const char *label, size_t len)
{
  size_t i;

  for (i = 0; i < nr_given; ++i)
    if (strncmp (given[i], label, len + 1) == 0) /* with the = */
      return true;
  return false;
}

static char *
escape (const char *value)
{
  char *escaped = check_memory (malloc (2 * strlen (value) + 1)), *out;

  for (out = escaped; *value; ++value) {
    if (strchr ("\\\"\n", *value))
      *out++ = '\\';
    *out++ = *value == '\n' ? 'n' : *value;
  }
  *out = '\0';
  return escaped;
}

const char *
metrics_add_label (const char *label)
{
  const size_t len = strcspn (label, "=");
  const char *why;
  char *value, *all;

  if (label[len] == '\0')
    return "it must be NAME=VALUE";
  why = check_name (label, len);
  if (why != NULL)
    return why;
  if (has_label (label, len))
    return "it was given twice";
  value = escape (label + len + 1);
  all = make_string ("%s%s%.*s=\"%s\"", common ? common : "", common ? "," : "",
                     (int) len, label, value);
  free (value);
  free (common);
  common = all;
  *(const char **) check_memory (
    array_add (&given, &nr_given, sizeof *given)) = label;
  return NULL;
}

void
metric_head (const char *name, const char *type, const char *help)
{
  printf ("# HELP nbdedup_%s %s.\n# TYPE nbdedup_%s %s\n", name, help, name,
          type);
}

static void
print_name (const char *name, const char *labels)
{
  printf ("nbdedup_%s", name);
  if (common != NULL || labels != NULL)
    printf ("{%s%s%s}", common ? common : "", common && labels ? "," : "",
            labels ? labels : "");
}

void
metric_integer (const char *name, const char *labels, uint64_t value)
{
  print_name (name, labels);
  printf (" %" PRIu64 "\n", value);
}

void
metric_real (const char *name, const char *labels, double value)
{
  print_name (name, labels);
  if (isnan (value))
    printf (" NaN\n");
  else
    printf (" %.17g\n", value);
}

void
metric_json (const char *name, const char *labels, const json_t *value)
{
  if (json_is_integer (value) && json_integer_value (value) >= 0)
    metric_integer (name, labels, (uint64_t) json_integer_value (value));
  else
    metric_real (name, labels,
                 json_is_number (value) ? json_number_value (value) : NAN);
}

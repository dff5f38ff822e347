/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include "drift-ask.h"

static void
set_memory (json_t *args, uint64_t memory)
{
  if (memory > 0)
    json_object_set_new (args, "memory", json_integer (memory));
}

json_t *
drift_ask_present (const struct options *opts, const char *golden, bool record,
                   double ratio, uint64_t memory)
{
  json_t *args = pack_args (opts, "{s:s*, s:b, s:b, s:o*}", "name", golden,
                            "record", record, "forecast", 1, "ratio",
                            ratio > 0 ? json_real (ratio) : NULL);

  set_memory (args, memory);
  return run (opts, args);
}

json_t *
drift_ask_alerts (const struct options *opts, const char *golden)
{
  json_t *result = run_other (opts, "drift-alerts",
                              pack_args (opts, "{s:s*}", "name", golden));
  json_t *alerts;

  if (result == NULL)
    return NULL;
  alerts = json_incref (json_object_get (result, "alerts"));
  json_decref (result);
  return alerts;
}

json_t *
drift_ask_freed (const struct options *opts, json_t *names, uint64_t memory)
{
  json_t *args = pack_args (opts, "{s:O}", "names", names);

  set_memory (args, memory);
  return run_other (opts, "drift-freed", args);
}

/* A long history comes in parts.  'id': "golden_id" of a document, instead of a
 * name; or NULL.
 */
static json_t *
ask_samples (const struct options *opts, const char *golden, json_t *id,
             bool newest)
{
  json_t *samples = check_memory (json_array ());
  json_t *after = NULL, *part;

  do {
    part = run_other (opts, "drift-history",
                      pack_args (opts, "{s:s*, s:O*, s:o*, s:o*}", "name",
                                 golden, "id", id, "after", after, "newest",
                                 newest ? json_true () : NULL));
    if (part == NULL) {
      json_decref (samples);
      return NULL;
    }
    json_array_extend (samples, json_object_get (part, "samples"));
    after = json_incref (json_object_get (part, "next"));
    json_decref (part);
  } while (after != NULL);
  return samples;
}

json_t *
drift_ask_history (const struct options *opts, const char *golden)
{
  json_t *samples = ask_samples (opts, golden, NULL, false);

  return samples == NULL
    ? NULL
    : check_memory (json_pack ("{s:o}", "samples", samples));
}

json_t *
drift_ask_newest (const struct options *opts)
{
  return ask_samples (opts, NULL, NULL, true);
}

/* With --record the last sample has the present figures, without a forecast. */
static json_t *
add_present (json_t *samples, json_t *document)
{
  const size_t nr = json_array_size (samples);
  json_t *figures = check_memory (json_copy (document));

  json_object_del (figures, "forecast");
  if (nr > 0 && json_equal (json_array_get (samples, nr - 1), figures))
    json_array_remove (samples, nr - 1);
  json_array_append (samples, document);
  json_decref (figures);
  return samples;
}

/* Several images may have had one name.  A server of an earlier version tells
 * no ids.
 */
static json_t *
ask_samples_of (const struct options *opts, const json_t *document)
{
  json_t *id = json_object_get (document, "golden_id");

  return ask_samples (opts, id ? NULL : json_text (document, "golden"), id,
                      false);
}

json_t *
drift_ask_histories (const struct options *opts, const json_t *documents)
{
  json_t *histories = check_memory (json_array ());
  json_t *document, *samples;
  size_t i;

  json_array_foreach (documents, i, document) {
    samples = ask_samples_of (opts, document);
    if (samples == NULL) {
      json_decref (histories);
      return NULL;
    }
    json_array_append_new (histories, add_present (samples, document));
  }
  return histories;
}

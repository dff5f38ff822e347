/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <inttypes.h>

#include "base/cleanup.h"
#include "core/damage.h"

struct damage_place
damage_place_of (const json_t *place)
{
  const char *name = json_string_value (json_object_get (place, "name"));

  return (struct damage_place) {
    .name = name ? name : "?",
    .offset = (uint64_t) json_integer_value (json_object_get (place, "offset")),
    .length = (uint64_t) json_integer_value (json_object_get (place, "length")),
  };
}

void
damage_tell (struct events *e, const struct damage_place *p, const char *found,
             const char *what, unsigned where)
{
  CLEANUP_JSON json_t *fields = json_pack ("{s:s, s:I, s:I}", "found", found,
                                           "offset", (json_int_t) p->offset,
                                           "length", (json_int_t) p->length);
  json_t *event;

  event_add_name (fields, p->name);
  event = fields ? event_new ("damage", "O", fields) : NULL;
  if (where & DAMAGE_KEEP)
    events_keep (e, event);
  if (where & DAMAGE_LOG)
    events_post (e, NBDEDUP_LOG_ERROR, event,
                 "%s: %" PRIu64 " bytes at offset "
                 "%" PRIu64 " %s",
                 p->name, p->length, p->offset, what);
  else
    json_decref (event);
}

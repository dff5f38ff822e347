/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include "drift-report.h"
#include "drift-view.h"
#include "tools.h"

#define CLONES_NAMED 8

/* More are folded. */
#define COMMANDS_SHOWN 12

static json_t *
commands_view (const json_t *commands)
{
  json_t *views = view_pack ("[]"), *command;
  size_t i;

  json_array_foreach (commands, i, command)
    json_array_append_new (views,
                           view_pack ("{s:s}", "line",
                                      json_string_value (command)));
  return views;
}

static json_t *
clones_view (const json_t *clones)
{
  json_t *views = view_pack ("[]"), *clone;
  size_t i;

  json_array_foreach (clones, i, clone)
    if (i < CLONES_NAMED)
      json_array_append_new (views,
                             view_pack ("{s:s, s:o, s:b}", "clone",
                                        json_text (clone, "name"), "saves",
                                        view_bytes (
                                          json_size (clone, "saves_bytes")),
                                        "first", i == 0));
  return views;
}

static json_t *
action_view (const json_t *action)
{
  const json_t *clones = json_object_get (action, "clones");
  const json_t *commands = json_object_get (action, "commands");
  const size_t nr = json_array_size (clones);
  const size_t nr_commands = json_array_size (commands);

  return view_pack ("{s:o, s:s, s:o, s:b, s:I, s:o, s:b, s:I}", "saves_total",
                    view_bytes (json_size (action, "saves_bytes")), "text",
                    json_text (action, "text"), "commands",
                    commands_view (commands), "has_commands", nr_commands > 0,
                    "many_commands",
                    (json_int_t) (nr_commands > COMMANDS_SHOWN ? nr_commands
                                                               : 0),
                    "saving", clones_view (clones), "has_saving", nr > 0,
                    "saving_left",
                    (json_int_t) (nr > CLONES_NAMED ? nr - CLONES_NAMED : 0));
}

void
drift_view_advice (json_t *view, const json_t *document)
{
  const json_t *advice = json_object_get (document, "advice");
  json_t *views, *action;
  size_t i;

  if (advice == NULL)
    return;
  views = view_pack ("[]");
  json_array_foreach (advice, i, action)
    json_array_append_new (views, action_view (action));
  json_object_update_new (view,
                          view_pack ("{s:b, s:o}", "has_advice", 1, "advice",
                                     views));
}

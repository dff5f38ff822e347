/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <stdio.h>
#include <string.h>

#include "data/volume-types.h"

void
volume_full_name (const struct volume *v, char name[VOLUME_FULL_NAME_MAX])
{
  if (v->label)
    snprintf (name, VOLUME_FULL_NAME_MAX, "%s", v->label);
  else if (v->of)
    snprintf (name, VOLUME_FULL_NAME_MAX, "%s@%s", v->of->name, v->name);
  else
    snprintf (name, VOLUME_FULL_NAME_MAX, "%s", v->name);
}

void
volume_label (const struct volume *v, char label[VOLUME_LABEL_MAX])
{
  volume_full_name (v, label);
  if (v->label)
    strcat (label, VOLUME_DESTROYED);
}

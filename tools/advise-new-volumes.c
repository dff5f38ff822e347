/* SPDX-License-Identifier: BSD-3-Clause */

/* The commands that move a golden image and its clones into new volumes: a
 * volume's block size cannot change.
 *
 * The image goes through a file: without a server only one command at a time
 * has the pool open.  Each volume keeps its name and its properties.  The
 * clones are rebased, so that they inherit from the new golden image as they
 * did from the old one.
 *
 * A golden image that was destroyed cannot be exported.  The first clone takes
 * its place, with a snapshot.
 */

#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "advise-block-size.h"
#include "image.h"
#include "tools.h"

/* The clones whose commands are printed if there are more than MANY. */
#define MANY 10
#define FIRST 1

/* Of the new name, what is left of the old one. */
#define NAME_MAX_KEPT 200

struct move {
  struct nbdedup_client *client; /* not owned, both */
  const json_t *document;
  json_t *volumes; /* owned, all; an object by name */
  json_t *pool;    /* properties */
  json_t *commands;
  char *block_size; /* "64K" */
  char *onto;       /* the new golden image; NULL: none yet */
  bool dedup_is_off, is_gone;
  size_t nr_with_snapshots;
};

char *
advise_volume_of (const char *golden)
{
  return make_string ("%.*s", (int) strcspn (golden, "@"), golden);
}

bool
advise_is_destroyed (const char *golden)
{
  return strchr (golden, ' ') != NULL;
}

json_t *
advise_properties (struct nbdedup_client *client, const char *name)
{
  json_t *args = check_memory (
    json_pack ("{s:s, s:s*}", "property", "all", "name", name));
  json_t *result = nbdedup_client_call (client, "get", args, NULL, NULL);
  json_t *properties;

  json_decref (args);
  if (result == NULL)
    return NULL;
  properties = json_incref (json_object_get (result, "properties"));
  json_decref (result);
  return properties;
}

static int
read_volumes (struct move *m)
{
  json_t *list = nbdedup_client_call (m->client, "list", NULL, NULL, NULL);
  json_t *volume;
  size_t i;

  m->pool = advise_properties (m->client, NULL);
  if (list == NULL || m->pool == NULL) {
    json_decref (list);
    return image_fail ("%s", nbdedup_error ());
  }
  m->volumes = check_memory (json_object ());
  json_array_foreach (json_object_get (list, "volumes"), i, volume)
    json_object_set (m->volumes, json_text (volume, "name"), volume);
  json_decref (list);
  return 0;
}

/*----------------------------------------------------------------------
 * Commands
 */

static void
command (struct move *m, char *line)
{
  json_array_append_new (m->commands, check_memory (json_string (line)));
  free (line);
}

/* "web1-64K", or the first like it that is not taken. */
static char *
new_name (struct move *m, const char *name)
{
  char *base = make_string ("%.*s-%s", NAME_MAX_KEPT, name, m->block_size);
  char *result = copy_string (base);
  unsigned i;

  for (i = 2; json_object_get (m->volumes, result) != NULL; ++i) {
    free (result);
    result = make_string ("%s-%u", base, i);
  }
  free (base);
  json_object_set_new (m->volumes, result, json_object ());
  return result;
}

/* 'value' in quotes for a shell. */
static char *
quoted (const char *value)
{
  char *text = copy_string ("'"), *longer;
  size_t n;

  for (; *value; value += n) {
    n = strcspn (value, "'");
    longer = n > 0 ? make_string ("%s%.*s", text, (int) n, value)
                   : make_string ("%s'\\''", text);
    n = n > 0 ? n : 1;
    free (text);
    text = longer;
  }
  longer = make_string ("%s'", text);
  free (text);
  return longer;
}

/* Does the volume have another value than a new one gets? */
static bool
differs (const json_t *properties, const char *property, const char *usual)
{
  return strcmp (json_text (properties, property), usual) != 0;
}

static void
import (struct move *m, const char *source, const char *new,
        const json_t *properties)
{
  static const char *const options[] = { "compress", "dedup" };
  char *more = copy_string (""), *longer;
  size_t i;

  command (m, make_string ("nbdedup export %s /var/tmp/%s.raw", source, new));
  for (i = 0; i < sizeof options / sizeof options[0]; ++i)
    if (differs (properties, options[i], json_text (m->pool, options[i]))) {
      longer = make_string ("%s --%s %s", more, options[i],
                            json_text (properties, options[i]));
      free (more);
      more = longer;
    }
  command (m,
           make_string ("nbdedup import %s /var/tmp/%s.raw --block-size %s"
                        "%s%s%s",
                        new, new, m->block_size, more,
                        differs (properties, "domain", "none") ? " --domain "
                                                               : "",
                        differs (properties, "domain", "none")
                          ? json_text (properties, "domain")
                          : ""));
  free (more);
  command (m, make_string ("rm /var/tmp/%s.raw", new));
}

/* The properties that import has no options for. */
static void
set_others (struct move *m, const char *new, const json_t *properties)
{
  char *value;

  if (differs (properties, "allow", "all")) {
    value = quoted (json_text (properties, "allow"));
    command (m, make_string ("nbdedup set allow=%s %s", value, new));
    free (value);
  }
  if (differs (properties, "drift-alert-unique", "default"))
    command (m,
             make_string ("nbdedup set drift-alert-unique=%s %s",
                          json_text (properties, "drift-alert-unique"), new));
}

static json_t *
check_properties (struct move *m, const char *name)
{
  json_t *properties = advise_properties (m->client, name);

  if (properties == NULL) {
    m->is_gone = errno == ENOENT;
    return image_fail ("%s", nbdedup_error ()), NULL;
  }
  m->dedup_is_off |= strcmp (json_text (properties, "dedup"), "off") == 0;
  return properties;
}

static bool
has_snapshots (const struct move *m, const char *name)
{
  const json_t *volume = json_object_get (m->volumes, name);

  return json_array_size (json_object_get (volume, "snapshots")) > 0;
}

/* Move a clone, or what the golden image's volume has become.  'prints': with
 * its commands.
 */
static int
move_clone (struct move *m, const char *name, bool prints)
{
  json_t *properties = check_properties (m, name);
  char *new;

  if (properties == NULL)
    return -1;
  m->nr_with_snapshots += has_snapshots (m, name);
  if (prints) {
    new = new_name (m, name);
    import (m, name, new, properties);
    if (m->onto != NULL)
      command (m, make_string ("nbdedup rebase %s %s", new, m->onto));
    set_others (m, new, properties);
    command (m, make_string ("nbdedup destroy %s", name));
    command (m, make_string ("nbdedup rename %s %s", new, name));
    if (m->onto == NULL) {
      m->onto = make_string ("%s@%s", name, m->block_size);
      command (m, make_string ("nbdedup snapshot %s", m->onto));
    }
    free (new);
  }
  json_decref (properties);
  return 0;
}

static int
move_clones (struct move *m)
{
  const json_t *clones = json_object_get (m->document, "clones");
  const size_t nr = json_array_size (clones);
  /* The first of a destroyed golden image's has commands of its own. */
  const size_t printed = nr <= MANY ? nr : FIRST + (m->onto == NULL);
  const json_t *clone;
  size_t i;

  json_array_foreach (clones, i, clone)
    if (move_clone (m, json_text (clone, "name"), i < printed) == -1)
      return -1;
  if (nr > printed)
    command (m,
             make_string ("# the same for the other %zu clones", nr - printed));
  return 0;
}

/*----------------------------------------------------------------------
 * The golden image
 */

/* Does the volume have only this snapshot, and nothing that was written since?
 * Then it holds nothing else.
 */
static bool
is_only_golden (const struct move *m, const char *volume)
{
  const json_t *v = json_object_get (m->volumes, volume);
  const json_t *snapshots = json_object_get (v, "snapshots");
  const json_t *snapshot = json_array_get (snapshots, 0);

  return json_array_size (snapshots) == 1 && json_size (v, "own_bytes") == 0 &&
    json_size (v, "size") == json_size (snapshot, "size") &&
    json_size (v, "logical_bytes") == json_size (snapshot, "logical_bytes");
}

/* Destroy the old golden image, at last: with its volume, which holds its
 * blocks, too.  *notes: why that is not so.
 */
static int
move_volume (struct move *m, const char *volume, const char *new,
             const char *golden, char **notes)
{
  const json_t *v = json_object_get (m->volumes, volume);

  if (json_array_size (json_object_get (v, "snapshots")) > 1) {
    command (m, make_string ("nbdedup destroy %s", golden));
    free (*notes);
    *notes = make_string ("; the other snapshots of %s keep the old blocks "
                          "until you move or destroy them, too",
                          volume);
    return 0;
  }
  if (is_only_golden (m, volume)) {
    command (m, make_string ("nbdedup destroy %s %s", golden, volume));
    command (m, make_string ("nbdedup rename %s %s", new, volume));
    return 0;
  }
  command (m, make_string ("nbdedup destroy %s", golden));
  return move_clone (m, volume, true);
}

static int
move_golden (struct move *m, char **notes)
{
  const char *golden = json_text (m->document, "golden");
  char *volume = advise_volume_of (golden);
  char *new = new_name (m, volume);
  json_t *properties = check_properties (m, volume);
  int r = -1;

  if (properties != NULL) {
    import (m, golden, new, properties);
    set_others (m, new, properties);
    m->onto = make_string ("%s%s", new, strchr (golden, '@'));
    command (m, make_string ("nbdedup snapshot %s", m->onto));
    r = move_clones (m);
    if (r == 0)
      r = move_volume (m, volume, new, golden, notes);
  }
  json_decref (properties);
  free (new);
  free (volume);
  return r;
}

static void
add_snapshot_note (const struct move *m, char **notes)
{
  char *longer;

  if (m->nr_with_snapshots == 0)
    return;
  longer = make_string ("%s; the snapshots of %zu of the volumes are not "
                        "moved, and keep the old blocks until you destroy "
                        "them",
                        *notes, m->nr_with_snapshots);
  free (*notes);
  *notes = longer;
}

static int
move (struct move *m, char **notes)
{
  const bool is_destroyed = advise_is_destroyed (
    json_text (m->document, "golden"));

  if (read_volumes (m) == -1)
    return -1;
  if ((is_destroyed ? move_clones (m) : move_golden (m, notes)) == -1)
    return m->is_gone ? 0 : -1;
  command (m, copy_string ("nbdedup compact"));
  add_snapshot_note (m, notes);
  return !m->dedup_is_off;
}

int
advise_new_volumes (struct nbdedup_client *client, const json_t *document,
                    uint32_t block_size, json_t **commands, char **notes)
{
  char buf[HUMAN_MAX];
  struct move m = {
    .client = client,
    .document = document,
    .commands = check_memory (json_array ()),
    .block_size = copy_string (block_size_text (block_size, buf)),
  };
  int r;

  *notes = copy_string ("");
  r = move (&m, notes);
  json_decref (m.volumes);
  json_decref (m.pool);
  free (m.block_size);
  free (m.onto);
  *commands = m.commands;
  if (r != 1) {
    json_decref (*commands);
    free (*notes);
  }
  return r;
}

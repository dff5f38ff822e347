/* SPDX-License-Identifier: BSD-3-Clause */

/* The nbdedup command.  This thread makes or imports a fourth volume, fills,
 * renames, changes and destroys it, and checks the command's output for the
 * others.  Some commands move the records of all volumes.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>

#include "crash/crash-model.h"

#define MAX_SECTORS 16384 /* of the fourth volume */
#define MODEL_BLOCK 4096

atomic_bool stop_administration;

int
run_command (char **output, const char *const *args)
{
  const char *argv[16] = { nbdedup, "-p", pool };
  unsigned i;
  int status;

  for (i = 0; args[i]; ++i)
    argv[3 + i] = args[i];
  *output = command_output (argv, 120, powercut ? libraries : NULL,
                            powercut ? &killing : NULL, &status);
  return status;
}

static _Noreturn void
command_failed (const char *const *args, int status, const char *output)
{
  fprintf (stderr, "nbdedup");
  for (; *args; ++args)
    fprintf (stderr, " %s", *args);
  fprintf (stderr, ": status %d: %s\n", status, output);
  give_up ();
}

void
must_run (const char *const *args)
{
  char *output;
  int status = run_command (&output, args);

  if (status != 0)
    command_failed (args, status, output);
  free (output);
}

/*----------------------------------------------------------------------
 * The fourth volume
 */

static const char *const names[] = { "scratch", "other" };
static const char *const codecs[] = { "lz4", "zstd", "none" };
#define ANY_CODEC (-1U) /* the pool's codec, for an imported volume */

struct scratch {
  bool exists;
  unsigned name, codec; /* of those above */
  uint64_t size;
  bool imported; /* its content is that of the image */
};

/* The volume after the last command that exited 0.  If a command was
 * interrupted ('unsure'), 'next' is the volume after its success.
 */
static struct scratch now, next;
static bool unsure;
static struct block_model *model; /* of its content, if it exists */
static uint8_t *content;          /* with all writes */
static uint8_t image[MAX_SECTORS * 512 + MODEL_BLOCK]; /* the last one */
static unsigned op_number;

static void
set_model (bool exists, uint64_t size)
{
  if (!exists) {
    if (model)
      block_model_free (model);
    free (content);
    model = NULL;
    content = NULL;
  }
  else if (model == NULL) {
    model = block_model_new ("scratch", MODEL_BLOCK, size);
    content = xcalloc (1, MAX_SECTORS * 512 + MODEL_BLOCK);
  }
  else if (model->size != size) {
    if (size < model->size)
      memset (content + size, 0, model->size - size);
    block_model_resize (model, size);
  }
}

void
forget_scratch (void)
{
  set_model (false, 0);
  unsure = false;
  memset (&now, 0, sizeof now);
}

const struct block_model *
scratch_model (void)
{
  return model;
}

/* The content that an import wrote is durable. */
static void
adopt_image (void)
{
  uint64_t i;

  memcpy (content, image, model->size);
  for (i = 0; i < model->nr_blocks; ++i)
    block_model_adopt (model, i, content + i * MODEL_BLOCK);
}

/* Make an image of 'size' bytes, partly zeroes, beside the pool. */
static void
make_image (struct rng *rng, const char *path, uint64_t size)
{
  size_t len = 65536;
  unsigned i;
  FILE *f;

  memset (image, 0, sizeof image);
  for (i = 0; i < size / len; ++i)
    fill_content (image +
                    rng_below (rng, size - len) / MODEL_BLOCK * MODEL_BLOCK,
                  len, MODEL_BLOCK, NR_DUPS, rng);
  f = fopen (path, "w");
  if (f == NULL || fwrite (image, 1, size, f) != size || fclose (f) != 0)
    die ("%s: %s", path, strerror (errno));
}

/* Write something.  With 'flush' each block has one state afterwards. */
static void
fill_scratch (struct rng *rng, bool flush)
{
  struct nbd_handle *nbd = nbd_create ();
  size_t len = 65536;
  uint64_t i, stamp;

  if (nbd == NULL)
    die ("nbd_create: %s", nbd_get_error ());
  nbd_set_export_name (nbd, names[now.name]);
  if (nbd_connect_unix (nbd, server.socket) == -1)
    goto failed;
  for (i = 0; i < 20; ++i) {
    struct model_op op = { .kind = 'W', .number = op_number++, .len = len };

    op.offset = rng_below (rng, now.size - len) / MODEL_BLOCK * MODEL_BLOCK;
    fill_content (content + op.offset, len, MODEL_BLOCK, NR_DUPS, rng);
    block_model_begin (model, &op, content + op.offset);
    if (nbd_pwrite (nbd, content + op.offset, len, op.offset, 0) == -1)
      goto failed;
    block_model_answered (model, &op);
  }
  stamp = block_model_stamp ();
  if (flush) {
    if (nbd_flush (nbd, 0) == -1)
      goto failed;
    block_model_flushed (model, stamp);
    for (i = 0; i < model->nr_blocks; ++i)
      block_model_adopt (model, i, content + i * MODEL_BLOCK);
  }
  nbd_shutdown (nbd, 0);
  nbd_close (nbd);
  return;

failed:
  if (!is_dying ()) {
    fprintf (stderr, "writing to %s: %s\n", names[now.name], nbd_get_error ());
    give_up ();
  }
  nbd_close (nbd);
}

/* Run a command, and repeat it while the volume is in use: nbdkit tells the
 * plugin of a closed connection a moment later.
 */
static int
run_when_free (char **output, const char *const *args)
{
  unsigned tries;
  int status;

  for (tries = 0;; ++tries) {
    status = run_command (output, args);
    if (status == 0 || tries == 100 || is_dying () ||
        strstr (*output, "in use by") == NULL)
      return status;
    free (*output);
    poll (NULL, 0, 50);
  }
}

/* Run one command on the fourth volume.  False: it was interrupted. */
static bool
change_scratch (struct rng *rng)
{
  const char *args[8] = { NULL };
  char size[32], path[PATH_MAX], *output; /* 'size': or another argument */
  unsigned n = rng_below (rng, 100), i = 0;
  int status;

  next = now;
  next.size = rng_between (rng, 256, MAX_SECTORS) * 512;
  snprintf (size, sizeof size, "%" PRIu64, next.size);
  if (!now.exists) {
    next = (struct scratch) {
      true,
      0,
      rng_below (rng, sizeof codecs / sizeof codecs[0]),
      next.size,
      rng_percent (rng, 50),
    };
    args[i++] = next.imported ? "import" : "create";
    args[i++] = names[0];
    args[i++] = next.imported ? path : size;
    if (next.imported) {
      next.codec = ANY_CODEC;
      snprintf (path, sizeof path, "%s/image.raw", dir);
      make_image (rng, path, next.size);
    }
    else {
      args[i++] = "--compress";
      args[i++] = codecs[next.codec];
    }
  }
  else if (n < 30) {
    next = (struct scratch) { .exists = false };
    args[i++] = "destroy";
    args[i++] = names[now.name];
    if (rng_percent (rng, 30))
      args[i++] = "--wait";
  }
  else if (n < 60) {
    fill_scratch (rng, true);
    args[i++] = "resize";
    args[i++] = names[now.name];
    args[i++] = size;
    args[i++] = "--shrink";
  }
  else {
    next.size = now.size;
    fill_scratch (rng, n & 1);
    if (n < 80) {
      next.name = !now.name;
      args[i++] = "rename";
      args[i++] = names[now.name];
      args[i++] = names[next.name];
    }
    else {
      next.codec = rng_below (rng, sizeof codecs / sizeof codecs[0]);
      snprintf (size, sizeof size, "compress=%s", codecs[next.codec]);
      args[i++] = "set";
      args[i++] = size;
      args[i++] = names[now.name];
    }
  }
  if (is_dying ())
    return false;
  unsure = true;
  status = run_when_free (&output, args);
  if (status != 0 && !is_dying ())
    command_failed (args, status, output);
  free (output);
  if (status != 0)
    return false;
  now = next;
  unsure = false;
  set_model (now.exists, now.size);
  if (now.imported)
    adopt_image ();
  now.imported = false;
  return true;
}

static void
run_one (const char *const *args)
{
  char *output;
  int status = run_command (&output, args);

  if (status != 0 && !is_dying ())
    command_failed (args, status, output);
  free (output);
}

/* Store one of the first three volumes in another form. */
static void
rewrite_volume (struct rng *rng)
{
  const char *const name = models[rng_below (rng, NR_VOLUMES)]->name;
  char property[32];
  const char *const set[] = { "set", property, name, NULL };
  const char *const rewrite[] = { "rewrite", name,
                                  rng_percent (rng, 60) ? "--dedup" : NULL,
                                  NULL };

  snprintf (property, sizeof property, "compress=%s",
            codecs[rng_below (rng, sizeof codecs / sizeof codecs[0])]);
  run_one (set);
  if (!is_dying ())
    run_one (rewrite);
}

void *
administrate (void *arg)
{
  /* Figures need a fold; a compaction moves records of all volumes. */
  static const char *const stat[] = { "stat", NULL };
  static const char *const compact[] = { "compact", NULL };
  static const char *const prune[] = { "prune", "--percent", "40", NULL };
  struct rng *rng = arg;

  while (!atomic_load (&killing) && !atomic_load (&stop_administration)) {
    if (rng_percent (rng, 65)) {
      if (!change_scratch (rng))
        break;
      continue;
    }
    /* All of them need folds. */
    if (rng_percent (rng, 40))
      rewrite_volume (rng);
    else
      run_one (rng_percent (rng, 33)     ? compact
                 : rng_percent (rng, 50) ? prune
                                         : stat);
  }
  return NULL;
}

json_t *
command_json (const char *const *args)
{
  json_error_t error;
  json_t *json;
  char *output;
  int status = run_command (&output, args);

  if (status != 0)
    command_failed (args, status, output);
  json = json_loads (output, 0, &error);
  if (json == NULL) {
    fprintf (stderr, "nbdedup %s: no JSON: %s\n", args[0], output);
    give_up ();
  }
  free (output);
  return json;
}
static json_t *
find_volume (json_t *document, const char *name)
{
  json_t *v;
  size_t i;

  json_array_foreach (json_object_get (document, "volumes"), i, v)
    if (strcmp (json_string_value (json_object_get (v, "name")), name) == 0)
      return v;
  return NULL;
}

static unsigned
find_codec (const char *name)
{
  json_t *json = COMMAND_JSON ("get", "compress", name);
  const char *value = json_string_value (
    json_object_get (json_object_get (json, "properties"), "compress"));
  unsigned i;

  for (i = 0; i < sizeof codecs / sizeof codecs[0]; ++i)
    if (value && strcmp (codecs[i], value) == 0)
      break;
  json_decref (json);
  return i;
}

static bool
same (const struct scratch *a, const struct scratch *b)
{
  return a->exists == b->exists &&
    (!a->exists ||
     (a->name == b->name && a->size == b->size &&
      (a->codec == b->codec || a->codec == ANY_CODEC ||
       b->codec == ANY_CODEC)));
}

static void
print_scratch (const char *what, const struct scratch *s)
{
  if (s->exists)
    fprintf (stderr, "  %s: %s, size %" PRIu64 ", compress %s\n", what,
             names[s->name], s->size,
             s->codec < sizeof codecs / sizeof codecs[0] ? codecs[s->codec]
                                                         : "(unknown)");
  else
    fprintf (stderr, "  %s: does not exist\n", what);
}

void
check_scratch (void)
{
  struct scratch found = { .exists = false };
  json_t *list = COMMAND_JSON ("list"), *v;
  bool imported;
  unsigned i;

  for (i = 0; i < 2; ++i) {
    v = find_volume (list, names[i]);
    if (v && found.exists) {
      fprintf (stderr, "a renamed volume has two names\n");
      give_up ();
    }
    if (v)
      found = (struct scratch) {
        true,
        i,
        find_codec (names[i]),
        json_integer_value (json_object_get (v, "size")),
        false,
      };
  }
  json_decref (list);
  if (!same (&found, &now) && (!unsure || !same (&found, &next))) {
    fprintf (stderr, "the fourth volume is not what commands made of it\n");
    print_scratch ("found", &found);
    print_scratch ("expected", &now);
    if (unsure)
      print_scratch ("or", &next);
    give_up ();
  }
  imported = unsure && next.imported && same (&found, &next);
  now = found;
  unsure = false;
  set_model (now.exists, now.size);
  if (!now.exists)
    return;
  if (imported)
    adopt_image ();
  snprintf (model->name, sizeof model->name, "%s", names[now.name]);
  verify_volume (model);
  for (i = 0; i < model->nr_blocks; ++i)
    if (model->blocks[i].states[0].data)
      memcpy (content + (size_t) i * MODEL_BLOCK,
              model->blocks[i].states[0].data, MODEL_BLOCK);
    else
      memset (content + (size_t) i * MODEL_BLOCK, 0, MODEL_BLOCK);
}

void
check_stat (void)
{
  json_t *stat = COMMAND_JSON ("stat"), *v;
  uint64_t i, expected, found;
  unsigned n;

  for (n = 0; n < NR_VOLUMES; ++n) {
    struct block_model *m = models[n];

    expected = 0;
    for (i = 0; i < m->nr_blocks; ++i)
      expected += m->blocks[i].states[0].data ? m->block_size : 0;
    v = find_volume (stat, m->name);
    found = json_integer_value (json_object_get (v, "logical_bytes"));
    if (v == NULL || found != expected) {
      fprintf (stderr,
               "volume %s: stat says logical_bytes %" PRIu64
               ", but it has %" PRIu64 " in blocks that are not zero\n",
               m->name, found, expected);
      give_up ();
    }
  }
  json_decref (stat);
}

void
resize_volume (struct block_model *m, struct rng *rng)
{
  uint64_t size = rng_between (rng, 4096, 40960) * 512;
  const char *args[] = { "resize", m->name, NULL, "--shrink", NULL };
  char text[32], *output;
  int status;

  snprintf (text, sizeof text, "%" PRIu64, size);
  args[2] = text;
  status = run_when_free (&output, args);
  if (status != 0)
    command_failed (args, status, output);
  free (output);
  block_model_resize (m, size);
}

void
destroy_imports (void)
{
  json_t *list = COMMAND_JSON ("list"), *v;
  size_t i;

  json_array_foreach (json_object_get (list, "volumes"), i, v)
    if (json_is_true (json_object_get (v, "importing")))
      MUST_RUN ("destroy", json_string_value (json_object_get (v, "name")));
  json_decref (list);
}

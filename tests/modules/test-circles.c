/* SPDX-License-Identifier: BSD-3-Clause */

/* Rows of pool.db that make a layer its own ancestor, or a snapshot its own
 * origin: an error, and no loop.  See engine-rig.h.
 */

#include <config.h>

#include "meta/meta-conn.h"
#include "rigs/plants.h"

/* v, its snapshot v@a, c cloned from it, c@b, and d cloned from that. */
static void
start_line (void)
{
  start (1);
  write_block (3, 7);
  run ("snapshot", json_pack ("{s:s}", "name", "v@a"));
  run ("clone", json_pack ("{s:s,s:s}", "snapshot", "v@a", "name", "c"));
  run ("snapshot", json_pack ("{s:s}", "name", "c@b"));
  run ("clone", json_pack ("{s:s,s:s}", "snapshot", "c@b", "name", "d"));
}

static void
expect_refused (const char *why)
{
  expect (nbdedup_pool_open (directory, NULL, "test-circles", 0) == NULL &&
          errno == EIO);
  if (strstr (nbdedup_error (), why) == NULL)
    die ("\"%s\" does not say \"%s\"", nbdedup_error (), why);
}

static void
open_by_force (void)
{
  struct nbdedup_settings settings;

  nbdedup_settings_init (&settings);
  settings.read_only = NBDEDUP_READ_ONLY_FORCE;
  pool = nbdedup_pool_open (directory, &settings, "test-circles", 0);
  if (pool == NULL)
    die ("%s", nbdedup_error ());
}

static void
expect_readable (const char *name)
{
  uint8_t buf[BLOCK], wanted[BLOCK];
  struct nbdedup_volume *v = nbdedup_volume_open (pool, name,
                                                  NBDEDUP_VOLUME_READONLY, -1,
                                                  NULL);

  expect (v != NULL);
  fill (wanted, 7);
  must (nbdedup_volume_read (v, buf, BLOCK, 3 * BLOCK));
  expect (memcmp (buf, wanted, BLOCK) == 0);
  nbdedup_volume_close (v);
}

static void
make_origin_circle (struct meta_conn *c, struct meta_state *state)
{
  (void) state;
  must (meta_exec (c,
                   "UPDATE snapshot SET origin = "
                   "(SELECT id FROM snapshot WHERE name = 'b') "
                   "WHERE name = 'a'",
                   "a circle"));
}

/* By force, all content is there, and who came from whom ends somewhere. */
static void
test_origins (void)
{
  start_line ();
  plant (make_origin_circle);
  close_pool ();
  expect_refused ("is its own origin");
  open_by_force ();
  expect_readable ("v@a");
  expect_readable ("c");
  expect_readable ("d");
  json_decref (call ("list", NULL));
  json_decref (call ("stat", NULL));
  must (nbdedup_pool_close (pool));
  remove_directory (directory);
}

static void
make_layer_circle (struct meta_conn *c, struct meta_state *state)
{
  (void) state;
  must (meta_exec (c,
                   "UPDATE layer SET parent = "
                   "(SELECT layer FROM snapshot WHERE name = 'b') "
                   "WHERE id = (SELECT layer FROM snapshot WHERE name = 'a')",
                   "a circle"));
}

static void
test_layers (void)
{
  start_line ();
  plant (make_layer_circle);
  close_pool ();
  expect_refused ("is its own ancestor");
  open_by_force ();
  json_decref (call ("list", NULL));
  must (nbdedup_pool_close (pool));
  remove_directory (directory);
}

static const struct engine_case cases[] = {
  CASE (origins),
  CASE (layers),
  { NULL, NULL },
};

/* test-circles [NAME...] */
int
main (int argc, char *argv[])
{
  return run_cases (argc, argv, cases);
}

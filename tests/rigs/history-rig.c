/* SPDX-License-Identifier: BSD-3-Clause */

/* See history-rig.h. */

#include <config.h>

#include <errno.h>
#include <sqlite3.h>

#include "rigs/history-rig.h"
#include "vfs/cksum-vfs.h"

char directory[PATH_MAX];
struct nbdedup_pool *pool;

void
open_pool (void)
{
  pool = nbdedup_pool_open (directory, NULL, "history-rig", 0);
  if (pool == NULL)
    fatal ("open: %s", nbdedup_error ());
}

json_t *
try (const char *command, json_t *args, int error)
{
  json_t *result = nbdedup_call (pool, command, args);

  if (error == 0 && result == NULL)
    fatal ("%s: %s", command, nbdedup_error ());
  if (error != 0 && (result != NULL || errno != error))
    fatal ("%s: expected error %d, found %s", command, error,
           result ? "none" : nbdedup_error ());
  json_decref (args);
  return result;
}

json_t *
record (const char *golden)
{
  return try ("drift", json_pack ("{s:s*, s:b}", "name", golden, "record", 1),
              0);
}

json_t *
samples_of (const char *name)
{
  json_t *result = try ("drift-history", json_pack ("{s:s*}", "name", name), 0);
  json_t *samples = json_incref (json_object_get (result, "samples"));

  if (!json_is_array (samples) || json_object_get (result, "next"))
    fatal ("drift-history: not an array of samples, all of them");
  json_decref (result);
  return samples;
}

json_int_t
check_errors (void)
{
  json_t *result = try ("check", NULL, 0);
  json_int_t errors = json_integer_value (json_object_get (result, "errors"));

  json_decref (result);
  return errors;
}

int64_t
sql (const char *text)
{
  char path[PATH_MAX + 20];
  sqlite3_stmt *st;
  sqlite3 *db;
  int64_t n = 0;
  int rc;

  snprintf (path, sizeof path, "%s/pool.db", directory);
  must (cksum_vfs_register ());
  if (sqlite3_open_v2 (path, &db, SQLITE_OPEN_READWRITE, CKSUM_VFS_NAME) !=
        SQLITE_OK ||
      sqlite3_exec (db, "PRAGMA locking_mode = EXCLUSIVE", NULL, NULL, NULL) !=
        SQLITE_OK ||
      sqlite3_prepare_v2 (db, text, -1, &st, NULL) != SQLITE_OK)
    fatal ("%s: %s", text, sqlite3_errmsg (db));
  rc = sqlite3_step (st);
  if (rc == SQLITE_ROW)
    n = sqlite3_column_int64 (st, 0);
  else if (rc != SQLITE_DONE)
    fatal ("%s: %s", text, sqlite3_errmsg (db));
  sqlite3_finalize (st);
  sqlite3_close (db);
  return n;
}

void
make_golden (const char *name, uint64_t fill)
{
  const uint32_t size = 1 << 20;
  uint8_t *buf = xmalloc (size);
  struct nbdedup_volume *v;

  run ("create", json_pack ("{s:s, s:i}", "name", name, "size", (int) size));
  v = nbdedup_volume_open (pool, name, 0, -1, NULL);
  if (v == NULL)
    fatal ("%s", nbdedup_error ());
  fill_random (buf, size, fill);
  must (nbdedup_volume_write (v, buf, size, 0));
  nbdedup_volume_close (v);
  free (buf);
}

void
history_begin (void)
{
  make_directory (directory, fast_directory (), "test-history");
  must (nbdedup_pool_create (directory, NULL));
  open_pool ();
}

void
history_end (void)
{

  check_pool ();
  must (nbdedup_pool_close (pool));
  remove_directory (directory);
}

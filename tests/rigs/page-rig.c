/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <fcntl.h>
#include <sqlite3.h>

#include "base/fullio.h"
#include "rigs/page-rig.h"

#define PAGE 8192

static char sample[PATH_MAX];
static const char *const copies[2] = { "pool.db", "pool.db.copy" };

static void
copy_directory (const char *from, const char *to)
{
  char command[2 * PATH_MAX + 40];

  snprintf (command, sizeof command, "rm -rf '%s' && cp -a '%s' '%s'", to, from,
            to);
  if (system (command) != 0)
    die ("%s", command);
}

void
start_sample (void (*make) (void))
{
  start (1);
  snprintf (sample, sizeof sample, "%.*s.sample", PATH_MAX - 16, directory);
  make ();
  close_pool ();
  copy_directory (directory, sample);
}

void
begin (void)
{
  copy_directory (sample, directory);
}

void
end_sample (void)
{
  remove_directory (sample);
  remove_directory (directory);
}

static void
flip_page (const char *file, uint32_t page)
{
  char path[PATH_MAX + 32];
  uint64_t offset = (uint64_t) (page - 1) * PAGE + 4001;
  uint8_t byte;
  int fd;

  snprintf (path, sizeof path, "%s/%s", directory, file);
  fd = open (path, O_RDWR | O_CLOEXEC);
  expect (fd != -1 && full_pread (fd, &byte, 1, offset) == 1);
  byte ^= 0x20;
  expect (full_pwrite (fd, &byte, 1, offset) == 0 && close (fd) == 0);
}

void
damage_page (uint32_t page)
{
  flip_page (copies[0], page);
  flip_page (copies[1], page);
}

static enum page_kind
kind_of (const char *type)
{
  return strcmp (type, "leaf") == 0  ? PAGE_BOTTOM
    : strcmp (type, "internal") == 0 ? PAGE_INTERIOR
                                     : PAGE_OVERFLOW;
}

size_t
list_pages (const char *table, struct page **pages)
{
  static const char sql[] =
    "SELECT pageno, pagetype, length (path) - length (replace (path, '/', "
    "'')) - 1 + (path <> '/') FROM dbstat WHERE name = ? ORDER BY pageno";
  char uri[PATH_MAX + 64];
  size_t nr = 0;
  sqlite3_stmt *st;
  sqlite3 *db;

  *pages = NULL;
  snprintf (uri, sizeof uri, "file:%s/pool.db?immutable=1", sample);
  if (sqlite3_open_v2 (uri, &db, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI,
                       NULL) != SQLITE_OK ||
      sqlite3_prepare_v2 (db, sql, -1, &st, NULL) != SQLITE_OK) {
    fprintf (stderr, "SQLite has no dbstat: %s\n", sqlite3_errmsg (db));
    sqlite3_close (db);
    return 0;
  }
  sqlite3_bind_text (st, 1, table, -1, SQLITE_STATIC);
  while (sqlite3_step (st) == SQLITE_ROW) {
    *pages = realloc (*pages, (nr + 1) * sizeof **pages);
    expect (*pages != NULL);
    (*pages)[nr++] = (struct page) {
      (uint32_t) sqlite3_column_int64 (st, 0),
      (unsigned) sqlite3_column_int (st, 2),
      kind_of ((const char *) sqlite3_column_text (st, 1)),
    };
  }
  sqlite3_finalize (st);
  sqlite3_close (db);
  return nr;
}

static uint32_t
find_page (const char *table, enum page_kind kind, bool root)
{
  struct page *pages;
  size_t nr = list_pages (table, &pages), i;
  uint32_t number = 0;

  for (i = 0; i < nr; ++i)
    if (root ? pages[i].depth == 0
             : pages[i].kind == kind && pages[i].depth > 0)
      number = pages[i].number;
  free (pages);
  return number;
}

uint32_t
some_page (const char *table, enum page_kind kind)
{
  return find_page (table, kind, false);
}

uint32_t
root_page (const char *table)
{
  return find_page (table, PAGE_BOTTOM, true);
}

void
each_page (const char *table, unsigned step,
           void (*fn) (const struct page *page))
{
  static const char *const kinds[] = {
    [PAGE_BOTTOM] = "at the bottom",
    [PAGE_INTERIOR] = "above it",
    [PAGE_OVERFLOW] = "of a row",
  };
  unsigned sweep = sweep_step ();
  struct page *pages;
  size_t nr = list_pages (table, &pages), i;

  for (i = 0; i < nr; ++i)
    if (i % (step * sweep) == 0 || pages[i].depth == 0 ||
        pages[i].kind == PAGE_INTERIOR) {
      printf ("%s, page %u, depth %u, %s\n", table, pages[i].number,
              pages[i].depth, kinds[pages[i].kind]);
      fflush (stdout);
      begin ();
      damage_page (pages[i].number);
      fn (&pages[i]);
    }
  free (pages);
}

void
create_volume (const char *name, unsigned blocks)
{
  run ("create",
       json_pack ("{s:s,s:I,s:i}", "name", name, "size",
                  (json_int_t) blocks * BLOCK, "block-size", BLOCK));
}

void
put_block (struct nbdedup_volume *v, unsigned block, uint64_t content)
{
  uint8_t buf[BLOCK];

  fill (buf, content);
  must (nbdedup_volume_write (v, buf, BLOCK, (uint64_t) block * BLOCK));
}

json_t *
repair_pool (void)
{
  json_t *result = call ("check", json_pack ("{s:b}", "repair", 1)), *p;
  size_t i;

  json_array_foreach (json_object_get (result, "problems"), i, p)
    fprintf (stderr, "check: %s\n", json_string_value (p));
  expect (number (result, "errors") == 0);
  check_pool ();
  return result;
}

unsigned
kill_at_each_sync (uint32_t page, unsigned step, void (*repair) (void),
                   void (*after) (bool killed))
{
  unsigned nth;
  bool killed = true;

  expect (page != 0);
  for (nth = sweep_start (step); killed; nth += step) {
    begin ();
    damage_page (page);
    killed = crashes_at_sync (nth, open_to_repair, repair);
    if (killed && nth % 2) /* crash a second time */
      (void) crashes_at_sync (nth / 2 + 1, open_to_repair, repair);
    open_to_repair ();
    after (killed);
  }
  return nth;
}

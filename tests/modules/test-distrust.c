/* SPDX-License-Identifier: BSD-3-Clause */

/* Another program writes to pool.db, to its copy, or to both while a pool is
 * open.  It copies an older pool.db, or another pool's, over the file, and all
 * of its pages have right checksums; or it damages single pages.
 */

#include <config.h>

#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/stat.h>

#include "base/fullio.h"
#include "core/engine.h"
#include "core/pool-property.h"
#include "core/txg.h"
#include "meta/meta.h"
#include "rigs/metadata-rig.h"
#include "service/property-apply.h"

static atomic_uint nr_warnings, nr_begun, nr_compared, nr_trusted;
static bool crash_before_comparing, touch_at_sync;
static atomic_bool touch_when_begun, something_is_lost;
static atomic_bool hold_comparison; /* until it is set to false */
static int steps_left = -1;         /* until the process crashes; -1: never */
static uint64_t sweep;              /* SWEEP_STEP=N: only each Nth page */

static void
touch (void)
{
  expect (utimensat (AT_FDCWD, in ("work", "pool.db"), NULL, 0) == 0);
}

/* A step before or after a rename, at which the process may crash. */
static void
step (void)
{
  if (steps_left == 0)
    crash ();
  if (steps_left > 0)
    steps_left--;
}

int
rename (const char *from, const char *to)
{
  static int (*real) (const char *, const char *);
  int r;

  if (real == NULL)
    real = (int (*) (const char *, const char *)) dlsym (RTLD_NEXT, "rename");
  step ();
  r = real (from, to);
  step ();
  return r;
}

/* Touches pool.db while the copy is being made. */
int
fdatasync (int fd)
{
  static int (*real) (int);

  if (real == NULL)
    real = (int (*) (int)) dlsym (RTLD_NEXT, "fdatasync");
  if (touch_at_sync && ends_with (name_of_fd (fd), ".copy")) {
    touch_at_sync = false;
    touch ();
  }
  return real (fd);
}

static void
note_line (enum nbdedup_log_level level, const char *line)
{
  if (level != NBDEDUP_LOG_INFO)
    nr_warnings++;
  if (strstr (line, "compares its pages with the copy")) {
    nr_begun++;
    if (crash_before_comparing)
      crash ();
    if (touch_when_begun)
      touch ();
    touch_when_begun = false;
    while (hold_comparison)
      usleep (1000);
  }
  if (strstr (line, "is lost") || strstr (line, "are lost"))
    something_is_lost = true;
  if (strstr (line, ": 0 pages were not as this server had written"))
    nr_compared++;
  if (strstr (line, "pages were not as this server had written"))
    nr_trusted++;
}

/* Make a pool with a newer version of every block than in "closed". */
static void
make_newer (void)
{
  snprintf (doing, sizeof doing, "newer");
  copy_pool ("closed", "newer");
  must (try_open ("newer"));
  write_some (true, 0, 5);
  must (nbdedup_pool_close (pool));
}

static unsigned
read_all (void)
{
  struct nbdedup_volume *v = nbdedup_volume_open (pool, "v", 0, 0, NULL);
  unsigned b, right = 0;

  if (v == NULL)
    return 0;
  for (b = 0; b < NR_BLOCKS; ++b)
    right += get (v, b, content_of (b, true)) == 1;
  nbdedup_volume_close (v);
  return right;
}

/* Write the same content, so that the checkpoint writes only the pages above
 * it.
 */
static void
write_and_copy (void)
{
  struct nbdedup_volume *v = open_volume ("v");

  put (v, 3, content_of (3, true));
  must (nbdedup_volume_flush (v));
  nbdedup_volume_close (v);
  fold ();
  must (meta_checkpoint (pool->meta));
}

enum { READ = 1, WRITE = 2, CRASH = 4, TWICE = 8 };

static void
use (const char *source, unsigned what)
{
  must (try_open ("work"));
  copy_file (in (source, "pool.db"), in ("work", "pool.db"));
  if (what & WRITE)
    write_and_copy ();
  if (what & READ)
    expect (read_all () == NR_BLOCKS);
  if (what & TWICE) {
    copy_file (in (source, "pool.db"), in ("work", "pool.db"));
    write_and_copy ();
  }
  if (what & CRASH)
    crash ();
  must (nbdedup_pool_close (pool));
}

static void
test_pool_db (const char *source)
{
  unsigned what;
  pid_t pid;

  for (what = 0; what < 16; ++what) {
    begin_case ("newer", "%s's pool.db, %u", source, what);
    if (what & CRASH) {
      pid = fork ();
      if (pid == 0)
        use (source, what);
      expect_crash (pid);
    }
    else
      use (source, what);
    expect_readable ("work", true);
    expect_whole ("work", true, true);
  }
}

static _Noreturn void
use_until_compared (const char *source)
{
  crash_before_comparing = true;
  must (try_open ("work"));
  copy_file (in (source, "pool.db"), in ("work", "pool.db"));
  write_and_copy ();
  sleep (60);
  die ("nothing is compared");
}

/* A checkpoint made pool.db look new, and the server is killed before it has
 * compared all pages.  The copy then replaces pool.db, and a kill in the middle
 * of that does no harm.
 */
static void
test_killed (const char *source)
{
  unsigned i;
  pid_t pid;

  copy_pool ("newer", "work");
  pid = fork ();
  if (pid == 0)
    use_until_compared (source);
  expect_crash (pid);
  copy_pool ("work", "distrusted");
  for (i = 0; i < 5; ++i) {
    begin_case ("distrusted", "%s's, killed at step %u", source, i);
    pid = fork ();
    if (pid == 0) {
      steps_left = (int) i;
      must (try_open ("work"));
      crash ();
    }
    expect_crash (pid);
    expect_readable ("work", true);
    expect_whole ("work", true, true);
  }

  copy_pool ("distrusted", "work");
  spoil ("work", "pool.db.copy", MISSING);
  expect (try_open ("work") == -1);
  expect (strstr (nbdedup_error (), "another program wrote to it") != NULL);
}

/* The copy is overwritten: it is given up, and made again from pool.db. */
static void
test_copy (bool reads)
{
  struct meta_copy_status status;

  open_case ("newer", "copy");
  copy_file (in ("closed", "pool.db"), in ("work", "pool.db.copy"));
  if (reads)
    expect (read_all () == NR_BLOCKS);
  write_and_copy ();
  meta_copy_get_status (pool->meta, &status);
  expect (status.state != META_COPY_CURRENT);
  expect (strstr (status.why, "another program") != NULL);
  expect (read_all () == NR_BLOCKS);
  must (nbdedup_pool_close (pool));
  expect_whole ("work", true, true);
}

/* Both are overwritten: reads fail and never return an old block, and nothing
 * makes the server trust the files again.
 */
static void
test_both (void)
{
  static const uint8_t block[4096];
  json_t *args = json_pack ("{s:b}", "repair", 1);
  struct nbdedup_volume *v;
  unsigned b;

  open_case ("newer", "both");
  copy_file (in ("closed", "pool.db"), in ("work", "pool.db"));
  copy_file (in ("closed", "pool.db"), in ("work", "pool.db.copy"));
  expect (read_all () < NR_BLOCKS);
  /* Blocks that may only be old are not recorded as lost. */
  v = nbdedup_volume_open (pool, "v", 0, 0, NULL);
  for (b = 0; v && b < NR_BLOCKS; b += 7)
    nbdedup_volume_write (v, block, sizeof block, b * sizeof block);
  if (v) {
    nbdedup_volume_flush (v);
    nbdedup_volume_close (v);
  }
  json_decref (nbdedup_call (pool, "check", args));
  json_decref (args);
  nbdedup_pool_close (pool);
  expect (!something_is_lost);
  expect (size_of ("work", "pool.db") > 0 &&
          size_of ("work", "pool.db.copy") > 0);
  expect (try_open ("work") == -1);
  expect (strstr (nbdedup_error (), "another program wrote to it") != NULL);
  expect (try_open_readonly ("work") == -1);
  expect (strstr (nbdedup_error (), "another program wrote to it") != NULL);
  must (force_open_readonly ("work"));
  must (nbdedup_pool_close (pool));
}

static void
wait_for (atomic_uint *count, unsigned wanted)
{
  unsigned i;

  for (i = 0; *count < wanted && i < 2000; ++i)
    usleep (10000);
  expect (*count >= wanted);
}

static uint64_t
nr_folds (void)
{
  struct meta_state state;

  txg_get_state (pool->txg, &state);
  return state.fold;
}

static uint64_t
nr_pages (const char *dir)
{
  return size_of (dir, "pool.db") / PAGE;
}

/* A page of each file is damaged, but not the same one: every page is still in
 * one of the files.  Whichever damage the server notices first, nothing is
 * lost, and both files are whole in the end.
 */
static void
test_page_of_each (unsigned what)
{
  const uint64_t nr = nr_pages ("newer");
  uint64_t page, other;
  unsigned trusted;
  pid_t pid;

  for (page = 0; page < nr; page += sweep) {
    other = (page + 1 + page % 3) % nr;
    begin_case ("newer", "page %u, of the copy %u, %u", (unsigned) page + 1,
                (unsigned) other + 1, what);
    trusted = nr_trusted;
    pid = what & CRASH ? fork () : 0;
    if (pid == 0) {
      must (try_open ("work"));
      flip ("work", "pool.db", page * PAGE + 100);
      flip ("work", "pool.db.copy", other * PAGE + 100);
      if (what & WRITE)
        write_and_copy ();
      expect (read_all () == NR_BLOCKS);
      if (what & TWICE)
        write_and_copy ();
      if (what & CRASH)
        crash ();
      wait_for (&nr_trusted, trusted + 1);
      must (nbdedup_pool_close (pool));
    }
    else
      expect_crash (pid);
    expect_readable ("work", true);
    expect_whole ("work", true, true);
  }
}

/* The same page of both is damaged: at most its content is an error. */
static void
test_page_of_both (void)
{
  const uint64_t nr = nr_pages ("newer");
  uint64_t page;
  unsigned served = 0;

  for (page = 0; page < nr; page += sweep) {
    open_case ("newer", "page %u of both", (unsigned) page + 1);
    flip ("work", "pool.db", page * PAGE + 100);
    flip ("work", "pool.db.copy", page * PAGE + 100);
    served += read_all () == NR_BLOCKS;
    nbdedup_pool_close (pool);
    if (force_open_readonly ("work") == 0) {
      read_all ();
      must (nbdedup_pool_close (pool));
    }
  }
  /* Only a few pages belong to maps that were not read yet. */
  expect (served > nr / sweep / 2);
}

/* One file is of another moment, and a page of the other file is damaged.  That
 * page's content is an error, or in memory; all other content is right.
 */
static void
test_old_and_damaged (const char *source, const char *old, const char *damaged)
{
  const uint64_t nr = nr_pages ("newer");
  uint64_t page;
  unsigned served = 0;

  for (page = 0; page < nr; page += sweep) {
    open_case ("newer", "%s of %s, page %u of %s", old, source,
               (unsigned) page + 1, damaged);
    copy_file (in (source, "pool.db"), in ("work", old));
    flip ("work", damaged, page * PAGE + 100);
    served += read_all () == NR_BLOCKS;
    nbdedup_pool_close (pool);
  }
  expect (served > nr / sweep / 2);
}

/* Write an older version of a page, which has a right checksum. */
static bool
plant (const char *file, uint64_t page)
{
  uint8_t old[PAGE], new[PAGE];
  int from = open (in ("closed", "pool.db"), O_RDONLY);
  int to = open (in ("work", file), O_RDWR);
  bool planted = full_pread (from, old, PAGE, page * PAGE) == PAGE &&
    full_pread (to, new, PAGE, page * PAGE) == PAGE &&
    memcmp (old, new, PAGE) != 0;

  if (planted)
    expect (full_pwrite (to, old, PAGE, page * PAGE) == 0);
  close (from);
  close (to);
  return planted;
}

/* One page of a file is old.  The other file has the right page. */
static void
test_planted (const char *file)
{
  const uint64_t nr = nr_pages ("newer");
  uint64_t page;
  unsigned planted = 0;

  for (page = 0; page < nr; page += sweep) {
    open_case ("newer", "an older page %u of %s", (unsigned) page + 1, file);
    planted += plant (file, page);
    expect (read_all () == NR_BLOCKS);
    must (nbdedup_pool_close (pool));
    expect_whole ("work", true, true);
  }
  expect (planted > (sweep == 1 ? 3 : 0));
}

/* The server knows every page already, so only its next write can notice. */
static void
test_all_known (void)
{
  open_case ("newer", "all pages known");
  run ("scrub", NULL);
  expect (read_all () == NR_BLOCKS);
  copy_file (in ("closed", "pool.db"), in ("work", "pool.db"));
  write_and_copy ();
  must (nbdedup_pool_close (pool));
  expect_readable ("work", true);
  expect_whole ("work", true, true);
}

/* Without a copy nothing can replace the pages, but old pages are not used, and
 * the server's own writes do not make pool.db look new.
 */
static void
test_without_copy (const char *source)
{
  struct nbdedup_volume *v;

  open_case ("newer", "%s's pool.db, without a copy", source);
  set_copy ("off");
  must (nbdedup_pool_close (pool));
  must (try_open ("work"));
  v = open_volume ("v");
  put (v, 3, content_of (3, true));
  must (nbdedup_volume_flush (v));
  nbdedup_volume_close (v);
  fold ();
  copy_file (in (source, "pool.db"), in ("work", "pool.db"));
  expect (meta_checkpoint (pool->meta) == -1);
  read_all ();
  nbdedup_pool_close (pool);
  if (try_open ("work") == 0) {
    expect (read_all () == NR_BLOCKS);
    must (nbdedup_pool_close (pool));
  }
}

/* pool.db, without a copy, gets a new time only: the pool stays in use. */
static void
test_touched_without_copy (void)
{
  open_case ("newer", "touched, without a copy");
  set_copy ("off");
  must (nbdedup_pool_close (pool));
  must (try_open ("work"));
  touch ();
  expect (read_all () == NR_BLOCKS);
  write_and_copy ();
  must (nbdedup_pool_close (pool));
  expect_whole ("work", true, false);
}

/* pool.db changes while the copy is made: the copy may have old and new pages,
 * and is made once more.
 */
static void
test_building (void)
{
  struct meta_copy_status status;

  open_case ("newer", "building");
  set_copy ("off");
  touch_at_sync = true;
  set_copy ("on");
  expect (!touch_at_sync);
  meta_copy_get_status (pool->meta, &status);
  expect (status.state != META_COPY_CURRENT);
  expect (strstr (status.why, "another program") != NULL);
  set_copy ("off");
  set_copy ("on");
  must (nbdedup_pool_close (pool));
  expect_whole ("work", true, true);
}

/* The copy is not beside pool.db. */
static void
test_elsewhere (void)
{
  unsigned i;
  pid_t pid;

  for (i = 0; i < 5; ++i) {
    open_case ("newer", "copy elsewhere, %u", i);
    set_copy (in (".", "elsewhere"));
    must (nbdedup_pool_close (pool));
    pid = fork ();
    if (pid == 0)
      use_until_compared ("closed");
    expect_crash (pid);
    pid = fork ();
    if (pid == 0) {
      steps_left = (int) i;
      must (try_open ("work"));
      crash ();
    }
    expect_crash (pid);
    expect_readable ("work", true);
    /* The mark no longer concerns either file. */
    must (try_open ("work"));
    must (nbdedup_pool_close (pool));
    expect (unlink (in (".", "elsewhere")) == 0);
    expect_whole ("work", true, false);
  }
}

/* Only the time of pool.db changes, and again while its pages are compared. */
static void
test_touch (bool twice)
{
  const unsigned begun = nr_begun, compared = nr_compared;
  unsigned i;

  open_case ("newer", "touch");
  touch_when_begun = twice;
  touch ();
  expect (read_all () == NR_BLOCKS);
  for (i = 0; nr_compared == compared && i < 2000; ++i)
    usleep (10000);
  expect (nr_compared == compared + 1 && nr_begun == begun + 1 + twice);
  /* The copy cannot be turned off before this. */
  set_copy ("off");
  set_copy ("on");
  must (nbdedup_pool_close (pool));
  expect_whole ("work", true, true);
}

/* A command that is refused changes nothing, not even after the next open. */
static void
test_turn_off_while_compared (void)
{
  const unsigned begun = nr_begun, compared = nr_compared;
  struct meta_copy_status status;
  json_t *args = json_pack ("{s:s,s:s}", "property", "metadata-copy", "value",
                            "off");
  uint64_t folds;
  char *value;

  open_case ("newer", "turned off while compared");
  hold_comparison = true;
  touch ();
  expect (read_all () == NR_BLOCKS);
  wait_for (&nr_begun, begun + 1);
  folds = nr_folds ();
  expect (nbdedup_call (pool, "set", args) == NULL && errno == EBUSY);
  expect (nr_folds () == folds);
  hold_comparison = false;
  json_decref (args);
  must (pool_property_get (pool, "metadata-copy", &value));
  expect (strcmp (value, "on") == 0);
  free (value);
  wait_for (&nr_compared, compared + 1);
  must (nbdedup_pool_close (pool));
  must (try_open ("work"));
  meta_copy_get_status (pool->meta, &status);
  expect (status.state == META_COPY_CURRENT);
  must (nbdedup_pool_close (pool));
}

/* The server's own changes cause no distrust: folds, checkpoints, room that is
 * allocated and given back.
 */
static void
test_own (void)
{
  unsigned before = nr_warnings, i;

  begin_case ("closed", "own changes");
  for (i = 0; i < 5; ++i) {
    must (try_open ("work"));
    write_some (true, i, 5);
    run ("create",
         json_pack ("{s:s,s:I}", "name", "large", "size",
                    (json_int_t) 1 << 30));
    if (i % 2)
      must (meta_checkpoint (pool->meta));
    meta_give_back (pool->meta, 0, 16, META_EXPEL);
    run ("destroy",
         json_pack ("{s:s,s:b,s:b}", "name", "large", "force", 1, "wait", 1));
    must (nbdedup_pool_close (pool));
  }
  expect (nr_warnings == before);
  expect_whole ("work", true, true);
}

int
main (void)
{
  sweep = sweep_step ();
  start_samples ();
  make_newer ();
  nbdedup_set_log (note_line);
  test_own ();
  test_pool_db ("closed");
  test_pool_db ("foreign");
  test_killed ("closed");
  test_killed ("foreign");
  test_copy (false);
  test_copy (true);
  test_building ();
  test_elsewhere ();
  test_both ();
  test_page_of_each (0);
  test_page_of_each (WRITE);
  test_page_of_each (TWICE | CRASH);
  test_page_of_both ();
  test_old_and_damaged ("closed", "pool.db", "pool.db.copy");
  test_old_and_damaged ("closed", "pool.db.copy", "pool.db");
  test_old_and_damaged ("foreign", "pool.db", "pool.db.copy");
  test_planted ("pool.db");
  test_planted ("pool.db.copy");
  test_all_known ();
  test_without_copy ("closed");
  test_without_copy ("foreign");
  test_touched_without_copy ();
  test_touch (false);
  test_touch (true);
  test_turn_off_while_compared ();
  end_samples ();
  return 0;
}

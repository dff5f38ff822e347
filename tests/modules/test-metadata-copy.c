/* SPDX-License-Identifier: BSD-3-Clause */

/* The second copy of pool.db: when it is current, when it replaces pool.db, and
 * which files are not a copy.
 */

#include <config.h>

#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "core/engine.h"
#include "core/pool-property.h"
#include "core/txg.h"
#include "disk/journal.h"
#include "meta/meta-mark.h"
#include "meta/meta.h"
#include "rigs/metadata-rig.h"
#include "service/property-apply.h"

/*----------------------------------------------------------------------
 * The disk of the copy
 */

static atomic_uint copy_syncs, copy_wal_syncs;
static atomic_bool copy_fails, copy_is_full, mark_fails;
static atomic_bool journal_cannot_grow;
static atomic_uint directory_syncs, syncs_of_elsewhere;
static atomic_int mark_syncs_left = -1; /* until one fails; -1: none */

static bool
is_mark (int fd)
{
  return is_file (fd, "metadata-copy");
}

static bool
is_end_of_journal (int fd, off_t offset)
{
  struct stat st;

  return is_file (fd, "journal") && fstat (fd, &st) == 0 &&
    offset >= st.st_size;
}

/* True if the file belongs to the copy.  Counts these calls. */
static bool
is_copy (int fd)
{
  const char *name = name_of_fd (fd);

  if (ends_with (name, ".copy"))
    copy_syncs++;
  else if (ends_with (name, ".copy-wal"))
    copy_wal_syncs++;
  else
    return false;
  return true;
}

int
fdatasync (int fd)
{
  static int (*real) (int);

  if (real == NULL)
    real = (int (*) (int)) dlsym (RTLD_NEXT, "fdatasync");
  if ((is_copy (fd) && copy_fails) ||
      (mark_syncs_left >= 0 && is_mark (fd) && mark_syncs_left-- == 0)) {
    errno = EIO;
    return -1;
  }
  return real (fd);
}

ssize_t
pwrite (int fd, const void *buf, size_t len, off_t offset)
{
  if ((mark_fails && is_mark (fd)) || (copy_is_full && is_copy (fd)) ||
      (journal_cannot_grow && is_end_of_journal (fd, offset))) {
    errno = ENOSPC;
    return -1;
  }
  return syscall (SYS_pwrite64, fd, buf, len, offset);
}

int
fsync (int fd)
{
  struct stat st;

  if (fstat (fd, &st) == 0 && S_ISDIR (st.st_mode)) {
    directory_syncs++;
    syncs_of_elsewhere += is_file (fd, "closed");
  }
  return (int) syscall (SYS_fsync, fd);
}

/* On a disk that fails a file cannot be removed. */
int
unlink (const char *path)
{
  static int (*real) (const char *);

  if (real == NULL)
    real = (int (*) (const char *)) dlsym (RTLD_NEXT, "unlink");
  if (copy_fails && strstr (path, "pool.db.copy")) {
    errno = EIO;
    return -1;
  }
  return real (path);
}

static const char *unopened; /* a file */
static unsigned opens_left;  /* until one of it fails; 0: none */
static int open_error;

static int
maybe_open (const char *path, int flags, mode_t mode)
{
  if (opens_left > 0 && ends_with (path, unopened) && --opens_left == 0) {
    errno = open_error;
    return -1;
  }
  return (int) syscall (SYS_openat, AT_FDCWD, path, flags, mode);
}

#define DEFINE_OPEN(name)                                                      \
  int name (const char *path, int flags, ...);                                 \
  int name (const char *path, int flags, ...)                                  \
  {                                                                            \
    va_list args;                                                              \
    mode_t mode;                                                               \
                                                                               \
    va_start (args, flags);                                                    \
    mode = va_arg (args, mode_t);                                              \
    va_end (args);                                                             \
    return maybe_open (path, flags, mode);                                     \
  }

/* Its name where a macro makes off_t 64 bits wide is the second one. */
DEFINE_OPEN (open)
DEFINE_OPEN (open64)

static bool unwritten;     /* only memory has the last commit */
static unsigned forgotten; /* WALs that have lost it */

/* The kernel forgets pages that it could not write. */
int
posix_fadvise (int fd, off_t offset, off_t len, int advice)
{
  const char *path = path_of_fd (fd);

  if (unwritten && advice == POSIX_FADV_DONTNEED && ends_with (path, "-wal")) {
    copy_file (in ("disk", strrchr (path, '/') + 1), path);
    forgotten++;
  }
  return (int) syscall (SYS_fadvise64, fd, offset, len, advice);
}

/*----------------------------------------------------------------------
 * Cases
 */

/* The mark says "current", but the copy is of an older session. */
static void
test_stale_copy (void)
{
  open_case ("closed", "stale copy");
  write_some (true, 0, 5);
  must (nbdedup_pool_close (pool));
  copy_pool ("work", "newer");
  copy_file (in ("closed", "pool.db.copy"), in ("work", "pool.db.copy"));
  expect_whole ("work", true, true);

  /* An error is better than old data. */
  copy_pool ("newer", "work");
  copy_file (in ("closed", "pool.db.copy"), in ("work", "pool.db.copy"));
  spoil ("work", "pool.db", MISSING);
  expect (try_open ("work") == -1);
}

/* A copy that missed a commit is never used again, although it looks right and
 * was not removed.
 */
static void
test_lost (void)
{
  struct meta_copy_status status;
  pid_t pid = fork ();

  snprintf (doing, sizeof doing, "lost copy");
  if (pid == 0) {
    copy_pool ("closed", "work");
    must (try_open ("work"));
    write_some (true, 0, 20);
    copy_fails = true;
    run ("create", json_pack ("{s:s,s:i}", "name", "new", "size", 1 << 20));
    meta_copy_get_status (pool->meta, &status);
    expect (status.state == META_COPY_LOST && status.why[0] != '\0');
    crash ();
  }
  expect_crash (pid);
  copy_pool ("work", "lost");
  expect (size_of ("lost", "pool.db.copy") > 0);
  spoil ("work", "pool.db", MISSING);
  spoil ("work", "pool.db-wal", MISSING);
  expect (try_open ("work") == -1);
  copy_file (in ("closed", "pool.db"), in ("work", "pool.db"));
  expect (try_open ("work") == -1);

  copy_pool ("lost", "work");
  must (try_open ("work"));
  nbdedup_volume_close (open_volume ("new"));
  meta_copy_get_status (pool->meta, &status);
  expect (status.state == META_COPY_CURRENT);
  must (nbdedup_pool_close (pool));
  expect (are_equal ("work", "pool.db", "pool.db.copy"));
}

/* A sync of pool.db or its WAL also syncs the copy's. */
static void
test_syncs (void)
{
  unsigned syncs, wal_syncs;

  open_case ("closed", "syncs");
  write_some (true, 0, 20);
  syncs = copy_syncs;
  wal_syncs = copy_wal_syncs;
  write_some (true, 5, 20);
  expect (copy_wal_syncs > wal_syncs && copy_syncs == syncs);
  must (meta_checkpoint (pool->meta));
  expect (copy_syncs > syncs);
  must (nbdedup_pool_close (pool));
}

/* The sync of a commit failed, in both files, and the process ended.  The next
 * process finds the commit in memory, but it is not on the disk.
 */
static void
test_commit_that_failed_to_be_synced (void)
{
  struct nbdedup_volume *v;
  pid_t pid = fork ();

  snprintf (doing, sizeof doing, "commit not synced");
  if (pid == 0) {
    copy_pool ("closed", "work");
    must (try_open ("work"));
    write_some (true, 0, 20);
    copy_pool ("work", "disk");
    v = open_volume ("v");
    put (v, 5, content_of (5, true));
    must (nbdedup_volume_flush (v));
    nbdedup_volume_close (v);
    fold ();
    crash ();
  }
  expect_crash (pid);
  expect (size_of ("disk", "pool.db-wal") > 0 &&
          size_of ("disk", "pool.db-wal") < size_of ("work", "pool.db-wal"));
  unwritten = true;
  must (try_open ("work"));
  unwritten = false;
  expect (forgotten == 2);
  v = open_volume ("v");
  expect (get (v, 5, content_of (5, true)) == 1);
  nbdedup_volume_close (v);
  check_pool ();
  must (nbdedup_pool_close (pool));
}

/* No mark says that the copy is current. */
static void
test_no_mark (void)
{
  begin_case ("killed", "no mark");
  spoil ("work", "metadata-copy", MISSING);
  expect_whole ("work", true, true);
  copy_pool ("closed", "work");
  spoil ("work", "metadata-copy", MISSING);
  spoil ("work", "pool.db", MISSING);
  expect (try_open ("work") == -1);
  json_decref (nbdedup_pool_recover (in ("work", "."), false));
  expect_whole ("work", false, true);
}

/* The process lacks a descriptor or memory when it opens the copy or its mark.
 * The pool does not open, because the copy would not count as current, and be
 * overwritten, although only it has all pages.
 */
static void
test_no_resources (void)
{
  static const struct {
    const char *file;
    unsigned nr_opens; /* before the copy is in use */
  } cases[] = {
    { "/metadata-copy", 1 },
    { "/pool.db.copy", 2 },
    { "/pool.db.copy-wal", 1 },
  };
  static const int errors[] = { EMFILE, ENFILE, ENOMEM };
  const uint64_t page = size_of ("closed", "pool.db") / PAGE;
  unsigned i, e, nth;

  for (i = 0; i < sizeof cases / sizeof cases[0]; ++i)
    for (nth = 1; nth <= cases[i].nr_opens; ++nth)
      for (e = 0; e < sizeof errors / sizeof errors[0]; ++e) {
        begin_case ("closed", "open %u of %s: %s", nth, cases[i].file,
                    strerror (errors[e]));
        flip ("work", "pool.db", (page - 1) * PAGE + 4000);
        unopened = cases[i].file;
        open_error = errors[e];
        opens_left = nth;
        expect (try_open ("work") == -1 && errno == errors[e]);
        expect (opens_left == 0);
        expect_whole ("work", false, true);
      }
}

/* Pages are damaged while the pool is in use. */
static void
test_in_use (void)
{
  uint64_t i, n = size_of ("closed", "pool.db") / PAGE;
  struct meta_copy_status status;
  struct nbdedup_volume *v;
  unsigned b;

  open_case ("closed", "in use");
  v = open_volume ("v");
  for (i = 0; i < n; ++i) {
    flip ("work", "pool.db", i * PAGE + 4000);
    for (b = 0; b < NR_BLOCKS; ++b)
      expect (get (v, b, content_of (b, false)) == 1);
    put (v, 3, content_of (3, false));
    must (nbdedup_volume_flush (v));
    fold ();
  }
  check_pool ();
  meta_copy_get_status (pool->meta, &status);
  expect (status.taken > 0 && status.repaired == status.taken);
  run ("scrub", NULL);

  /* And frames of its WAL, before a checkpoint has copied them. */
  for (b = 0; b < 50; ++b)
    put (v, b, content_of (b, true));
  must (nbdedup_volume_flush (v));
  fold ();
  n = size_of ("work", "pool.db-wal") / FRAME;
  expect (n > 3);
  for (i = 0; i < n; ++i)
    flip ("work", "pool.db-wal", WAL_HEADER + i * FRAME + 5000);
  for (b = 50; b < NR_BLOCKS; ++b)
    put (v, b, content_of (b, true));
  must (nbdedup_volume_flush (v));
  nbdedup_volume_close (v);
  fold ();
  check_pool ();
  must (nbdedup_pool_close (pool));
  expect_whole ("work", true, true);
}

/* 'value' is another pool's file, a file that is no copy, or not possible. */
static void
refuse_copy (const char *value)
{
  json_t *args = json_pack ("{s:s,s:s}", "property", "metadata-copy", "value",
                            value);

  expect (nbdedup_call (pool, "set", args) == NULL);
  json_decref (args);
}

static void
test_property (void)
{
  struct meta_copy_status status;

  open_case ("closed", "property");
  refuse_copy (in ("work", "pool.db"));
  refuse_copy (in ("work", "records"));
  refuse_copy (in ("foreign", "pool.db"));
  refuse_copy (in ("nowhere", "copy"));
  refuse_copy (in ("work", "."));
  refuse_copy ("pool.db.copy2");
  set_copy ("off");
  expect (size_of ("work", "pool.db.copy") == 0 &&
          size_of ("work", "metadata-copy") == 0);
  write_some (true, 0, 20);
  set_copy (in ("closed", "elsewhere"));
  meta_copy_get_status (pool->meta, &status);
  expect (status.state == META_COPY_CURRENT);
  write_some (true, 5, 20);
  must (nbdedup_pool_close (pool));
  expect (size_of ("work", "pool.db.copy") == 0);

  spoil ("work", "pool.db", MISSING);
  must (try_open ("work"));
  write_some (true, 10, 20);
  write_some (true, 15, 20);
  set_copy ("on");
  expect (access (in ("closed", "elsewhere"), F_OK) == -1);
  must (nbdedup_pool_close (pool));
  expect_whole ("work", true, true);
}

static int
spoil_property (void *arg, struct meta_conn *c, struct meta_state *state)
{
  (void) arg;
  (void) state;
  return meta_property_put (c, "metadata-copy", "0ff");
}

/* What is neither "on", "off" nor an absolute path is no name of a file. */
static void
test_damaged_property (void)
{
  open_case ("closed", "damaged property");
  (void) unlink ("0ff"); /* of a run that failed */
  set_copy ("off");
  must (txg_run (pool->txg, spoil_property, NULL, NULL));
  must (nbdedup_pool_close (pool));
  must (try_open ("work"));
  write_some (true, 0, 5);
  must (nbdedup_pool_close (pool));
  expect (access ("0ff", F_OK) == -1);
  expect_whole ("work", true, true);
}

static int
put_zero_limit (void *arg, struct meta_conn *c, struct meta_state *state)
{
  (void) arg;
  (void) state;
  return meta_property_put (c, "max-size", "0");
}

/* An earlier nbdedup stored this for no limit. */
static void
test_zero_limit (void)
{
  char *value;

  open_case ("closed", "zero limit");
  must (txg_run (pool->txg, put_zero_limit, NULL, NULL));
  must (pool_property_get (pool, "max-size", &value));
  expect (strcmp (value, "none") == 0);
  free (value);
  must (nbdedup_pool_close (pool));
  must (try_open ("work"));
  write_some (true, 0, 5);
  must (nbdedup_pool_close (pool));
}

/* Before the mark says "current" the names of the copy's files are durable. */
static void
test_new_names (void)
{
  char path[3 * PATH_MAX];
  FILE *f;

  open_case ("closed", "new names");
  set_copy ("off");
  /* A WAL that was left over is not new. */
  f = fopen (in ("closed", "elsewhere-wal"), "w");
  expect (f != NULL && fclose (f) == 0);
  snprintf (path, sizeof path, "%s", in ("closed", "elsewhere"));
  syncs_of_elsewhere = 0;
  set_copy (path);
  expect (syncs_of_elsewhere > 0);
  set_copy ("off");
  must (nbdedup_pool_close (pool));
}

/* While the mark says that the copy is current the copy gets all commits. */
static void
test_not_turned_off (void)
{
  pid_t pid = fork ();
  json_t *args;
  char *value;

  snprintf (doing, sizeof doing, "not turned off");
  if (pid == 0) {
    copy_pool ("closed", "work");
    must (try_open ("work"));
    args = json_pack ("{s:s,s:s}", "property", "metadata-copy", "value", "off");
    mark_fails = true;
    expect (nbdedup_call (pool, "set", args) == NULL);
    mark_fails = false;
    json_decref (args);
    must (pool_property_get (pool, "metadata-copy", &value));
    expect (strcmp (value, "on") == 0);
    free (value);
    run ("create", json_pack ("{s:s,s:i}", "name", "new", "size", 1 << 20));
    crash ();
  }
  expect_crash (pid);
  spoil ("work", "pool.db", MISSING);
  spoil ("work", "pool.db-wal", MISSING);
  must (try_open ("work"));
  nbdedup_volume_close (open_volume ("new"));
  must (nbdedup_pool_close (pool));
}

/* The copy misses a commit, and the mark cannot be written.  The server removes
 * the files of the copy and syncs the directory before it answers.
 */
static void
test_lost_without_mark (void)
{
  struct meta_copy_status status;

  open_case ("closed", "lost without mark");
  mark_fails = copy_is_full = true;
  directory_syncs = 0;
  run ("create", json_pack ("{s:s,s:i}", "name", "new", "size", 1 << 20));
  meta_copy_get_status (pool->meta, &status);
  expect (status.state == META_COPY_LOST);
  expect (access (in ("work", "pool.db.copy"), F_OK) == -1);
  expect (directory_syncs > 0);
  mark_fails = copy_is_full = false;
  must (nbdedup_pool_close (pool));
}

/* The sync of the mark that says "current" fails.  The mark was written in
 * spite of that.
 */
static void
test_mark_that_failed_to_be_synced (void)
{
  struct meta_copy_status status;
  uint8_t states[2];
  FILE *f;

  open_case ("closed", "mark not synced");
  set_copy ("off");
  mark_syncs_left = 3; /* the first two say that the copy begins */
  set_copy ("on");
  expect (mark_syncs_left == -1);
  meta_copy_get_status (pool->meta, &status);
  expect (status.state == META_COPY_LOST);
  f = fopen (in ("work", "metadata-copy"), "r");
  expect (f != NULL);
  expect (fseek (f, 12, SEEK_SET) == 0 && fread (&states[0], 1, 1, f) == 1);
  expect (fseek (f, 4096 + 12, SEEK_SET) == 0 &&
          fread (&states[1], 1, 1, f) == 1);
  expect (fclose (f) == 0);
  expect (states[0] == 2 && states[1] == 2);
  must (nbdedup_pool_close (pool));
}

/* A process may read a mark that the process before failed to sync, while the
 * mark on the disk still says "current".  It writes the mark again before it
 * writes to the copy.
 */
static void
test_mark_that_may_not_be_on_the_disk (void)
{
  struct meta_mark mark;

  begin_case ("closed", "mark in memory alone");
  expect (meta_mark_read (in ("work", "metadata-copy"), &mark) == 1);
  mark.current = false;
  must (meta_mark_write (in ("work", "metadata-copy"), &mark));
  mark_syncs_left = 3; /* two before, two when it is current */
  must (try_open ("work"));
  expect (mark_syncs_left == -1);
  must (nbdedup_pool_close (pool));
  expect_whole ("work", false, true);
}

/* Make a pool as if "newer" had been closed while its copy was being made of
 * the pool.db in 'from'.
 */
static void
make_half_copied (const char *from)
{
  struct meta_mark mark;
  uint64_t nr;

  copy_pool ("newer", "work");
  copy_file (in (from, "pool.db"), in ("work", "pool.db.copy"));
  nr = size_of ("work", "pool.db.copy") / PAGE;
  expect (truncate (in ("work", "pool.db.copy"), (off_t) (nr / 2 * PAGE)) == 0);
  expect (meta_mark_read (in ("work", "metadata-copy"), &mark) == 1);
  mark.current = false;
  mark.copied = nr / 2;
  must (meta_mark_write (in ("work", "metadata-copy"), &mark));
}

/* The server completes a copy if pool.db is still the one it is made of. */
static void
test_half_copied (void)
{
  snprintf (doing, sizeof doing, "half copied");
  make_half_copied ("newer");
  expect_whole ("work", true, true);
  make_half_copied ("newer");
  flip ("work", "pool.db.copy", 3 * PAGE + 100);
  must (try_open ("work"));
  must (nbdedup_pool_close (pool));
  expect (!are_equal ("work", "pool.db", "pool.db.copy"));

  snprintf (doing, sizeof doing, "half copied from another moment");
  make_half_copied ("closed");
  must (try_open ("work"));
  must (nbdedup_pool_close (pool));
  expect (are_equal ("work", "pool.db", "pool.db.copy"));
  expect_whole ("work", true, true);
}

/* "recover" reads only some pages of a pool.db with damaged pages.  Only the
 * copy has the others, so recover must mark the copy as current again.
 */
static void
test_no_mark_and_damaged_pages (void)
{
  uint64_t offset;
  json_t *result;

  begin_case ("closed", "no mark, and damaged pages");
  for (offset = 3 * PAGE; offset < size_of ("work", "pool.db"); offset += PAGE)
    flip ("work", "pool.db", offset + 100);
  spoil ("work", "metadata-copy", MISSING);
  result = nbdedup_pool_recover (in ("work", "."), false);
  expect (result && json_is_true (json_object_get (result, "recovered")));
  json_decref (result);
  expect_whole ("work", false, true);
}

/* A copy that is made while the WAL has commits gets these, too. */
static void
test_made_late (void)
{
  pid_t pid = fork ();

  snprintf (doing, sizeof doing, "made late");
  if (pid == 0) {
    copy_pool ("closed", "work");
    must (try_open ("work"));
    /* Do not use commands: they end with a checkpoint. */
    must (meta_copy_set (pool->meta, "off"));
    /* The second batch knows that the first is in pool.db. */
    write_some (true, 0, 10);
    write_some (true, 5, 10);
    must (meta_copy_set (pool->meta, "on"));
    crash ();
  }
  expect_crash (pid);
  spoil ("work", "pool.db", MISSING);
  spoil ("work", "pool.db-wal", MISSING);
  expect_whole ("work", true, true);
}

/* Append empty batches until the journal has no room. */
static void
fill_journal (void)
{
  uint64_t seq;
  int r;

  journal_cannot_grow = true;
  do
    r = journal_append (pool->journal, NULL, 0, &(struct iovec) { NULL, 0 },
                        JOURNAL_ITSELF, &seq);
  while (r == 0);
  expect (r == 1);
}

/* A flush for which the journal has no room makes a fold.  No batch has these
 * writes, so the fold copies the WAL before the flush returns: losing the WAL
 * loses nothing.
 */
static void
test_full_journal (void)
{
  struct nbdedup_volume *v;
  uint64_t before, seq, position;
  unsigned i;
  pid_t pid = fork ();

  snprintf (doing, sizeof doing, "full journal");
  if (pid == 0) {
    copy_pool ("closed", "work");
    must (try_open ("work"));
    fill_journal ();
    journal_get_end (pool->journal, &before, &position);
    v = open_volume ("v");
    for (i = 0; i < NR_BLOCKS; i += 5)
      put (v, i, content_of (i, true));
    must (nbdedup_volume_flush (v));
    journal_get_end (pool->journal, &seq, &position);
    expect (seq == before);
    crash ();
  }
  expect_crash (pid);
  spoil ("work", "pool.db-wal", MISSING);
  spoil ("work", "pool.db.copy-wal", MISSING);
  expect_whole ("work", true, true);
}

/* Two pools must not share one copy, and a file of another pool is kept. */
static void
test_foreign (void)
{
  struct meta_copy_status status;

  begin_case ("closed", "foreign");
  copy_file (in ("foreign", "pool.db"), in ("work", "pool.db.copy"));
  must (try_open ("work"));
  meta_copy_get_status (pool->meta, &status);
  expect (status.state == META_COPY_LOST);
  must (nbdedup_pool_close (pool));
  copy_file (in ("foreign", "pool.db"), in ("work", "theirs"));
  expect (are_equal ("work", "pool.db.copy", "theirs"));

  /* The files beside it say which of the two is the foreign one. */
  begin_case ("killed", "foreign pool.db");
  copy_file (in ("foreign", "pool.db"), in ("work", "pool.db"));
  expect_readable ("work", true);
  expect_whole ("work", true, true);
  copy_file (in ("foreign", "pool.db"), in ("work", "theirs"));
  expect (are_equal ("work", "pool.db.damaged", "theirs"));

  copy_pool ("closed", "work");
  copy_file (in ("foreign", "pool.db"), in ("work", "pool.db"));
  spoil ("work", "journal", MISSING);
  expect (try_open ("work") == -1);
  expect (try_open_readonly ("work") == -1);
}

/* A WAL without the pool.db that it continues, and without the copy. */
static void
test_wal_alone (void)
{
  static const char *const others[] = { "foreign", "closed" };
  unsigned i;

  for (i = 0; i < 2; ++i) {
    begin_case ("killed", "WAL with %s pool.db", others[i]);
    spoil ("work", "pool.db.copy", MISSING);
    spoil ("work", "pool.db.copy-wal", MISSING);
    copy_file (in (others[i], "pool.db"), in ("work", "pool.db"));
    expect (try_open_readonly ("work") == -1);
    expect (strstr (nbdedup_error (), "from another time") != NULL);
    expect (try_open ("work") == -1);
  }
}

/* A loss of power during a checkpoint tears pages of both databases, including
 * the first ones; the WAL has them.  In addition one file is damaged.
 */
static void
test_torn (void)
{
  static const struct {
    const char *file;
    enum damage damage;
  } others[] = {
    { NULL, 0 },
    { "pool.db", MISSING },
    { "pool.db", ZEROES },
    { "pool.db", NOISE },
    { "pool.db-wal", MISSING },
    { "pool.db-wal", HALF },
    { "pool.db-wal", NOISE },
    { "pool.db-wal", EARLIER },
    { "pool.db.copy", MISSING },
    { "pool.db.copy", NOISE },
    { "pool.db.copy-wal", MISSING },
    { "pool.db.copy-wal", HALF },
  };
  unsigned i, pages;

  for (pages = 1; pages <= 3; ++pages)
    for (i = 0; i < sizeof others / sizeof others[0]; ++i) {
      begin_case ("killed", "pages %u torn, and %s %s", pages,
                  others[i].file ? others[i].file : "nothing",
                  others[i].file ? damages[others[i].damage] : "");
      if (pages & 1) {
        flip ("work", "pool.db", 5000);
        flip ("work", "pool.db.copy", 6000);
      }
      if (pages & 2) {
        flip ("work", "pool.db", PAGE + 5000);
        flip ("work", "pool.db.copy", PAGE + 6000);
      }
      if (others[i].file)
        spoil ("work", others[i].file, others[i].damage);
      expect_readable ("work", true);
      expect_whole ("work", true, true);
    }
}

/* With force reads may return old data, but from one moment of pool.db alone,
 * without pages of a WAL that belongs to another pool.db.
 */
static void
test_forced (void)
{
  struct nbdedup_volume *v;
  unsigned i;

  begin_case ("killed", "forced");
  spoil ("work", "pool.db.copy", MISSING);
  spoil ("work", "pool.db.copy-wal", MISSING);
  copy_file (in ("closed", "pool.db"), in ("work", "pool.db"));
  must (force_open_readonly ("work"));
  v = open_volume ("v");
  for (i = 0; i < NR_BLOCKS; ++i)
    expect (get (v, i, content_of (i, false)) == 1 ||
            content_of (i, true) != content_of (i, false));
  nbdedup_volume_close (v);
  must (nbdedup_pool_close (pool));
}

int
main (void)
{
  start_samples ();
  test_syncs ();
  test_lost ();
  test_commit_that_failed_to_be_synced ();
  test_lost_without_mark ();
  test_property ();
  test_damaged_property ();
  test_zero_limit ();
  test_new_names ();
  test_not_turned_off ();
  test_mark_that_failed_to_be_synced ();
  test_mark_that_may_not_be_on_the_disk ();
  test_stale_copy ();
  test_no_mark ();
  test_no_resources ();
  test_no_mark_and_damaged_pages ();
  test_made_late ();
  test_full_journal ();
  test_foreign ();
  test_wal_alone ();
  test_torn ();
  test_forced ();
  test_half_copied ();
  test_in_use ();
  end_samples ();
  return 0;
}

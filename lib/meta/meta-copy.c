/* SPDX-License-Identifier: BSD-3-Clause */

/* See meta-copy.h. */

#include <config.h>

#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/background.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fullio.h"
#include "base/lock.h"
#include "base/log.h"
#include "format/format.h"
#include "meta/meta-copy.h"
#include "meta/meta-pair.h"
#include "vfs/cksum-mirror.h"

#define PIECE_PAGES 64
/* Up to this size meta_copy_configure makes the copy itself, which takes some
 * ten milliseconds.
 */
#define AT_ONCE_PAGES 1024
#define RETRY_MS 60000
/* A comparison gives up after so many passes: the disk does not return what
 * was written to it.
 */
#define PASSES_MAX 8
/* What a new copy must leave free on its file system. */
#define SPARE_BYTES (UINT64_C (4) << 20)

struct meta_copy {
  char *db, *mark_path;        /* owned */
  struct cksum_mirror *mirror; /* owned */
  struct meta_conn conn;       /* the thread's; before it runs, the opener's */
  bool has_conn;
  bool attached; /* the choice is made, and the mark tells it */
  struct background thread;

  struct lock building; /* held while using 'conn' */

  /* Innermost but for the mirror's events: "lost" acquires it during a write.
   */
  struct lock lock;      /* protects everything below */
  struct meta_mark mark; /* as on disk, if 'has_mark' */
  bool has_mark;
  bool is_doubtful;                  /* the disk may have another mark: the last
                                 * write failed */
  bool wanted;                       /* the property is not off */
  char path[META_MARK_PATH_MAX + 1]; /* of the copy; "": the default */
  bool begin;                        /* build the copy now */
  bool untold;                       /* the loss is not in the log yet */
  bool poked;                        /* there may be an event */
  uint64_t retry_ms;                 /* when to try again, as of clock_ms */
  uint64_t resume;                   /* pages that the copy already has */
  uint64_t built, total;
  uint64_t compared; /* foreign changes before the last comparison */
  uint64_t since;
  char why[160];                 /* it is lost */
  char told[160];                /* ... as the log says; "": nothing */
  char unmarked[PATH_MAX + 100]; /* an error to log; "": none */
};

/*----------------------------------------------------------------------
 * The mark
 */

static bool
is_same_mark (const struct meta_mark *a, const struct meta_mark *b)
{
  return a->current == b->current && a->distrusted == b->distrusted &&
    a->copied == b->copied && memcmp (a->uuid, b->uuid, sizeof a->uuid) == 0 &&
    strcmp (a->path, b->path) == 0;
}

static int
put_mark_locked (struct meta_copy *c, bool current, uint64_t copied)
{
  struct meta_mark mark = c->mark;

  assert_held (&c->lock);
  mark.current = current;
  mark.distrusted = c->mirror && cksum_mirror_is_distrusted (c->mirror);
  mark.copied = copied;
  snprintf (mark.path, sizeof mark.path, "%s", c->path);
  if (c->has_mark && !c->is_doubtful && is_same_mark (&mark, &c->mark))
    return 0;
  c->is_doubtful = true;
  if (meta_mark_write (c->mark_path, &mark) == -1)
    return -1;
  c->is_doubtful = false;
  c->mark = mark;
  c->has_mark = true;
  return 0;
}

static void
note_loss_locked (struct meta_copy *c, const char *why)
{
  assert_held (&c->lock);
  snprintf (c->why, sizeof c->why, "%s", why);
  c->since = clock_wall_s ();
  c->untold = true;
}

static void
lost (void *opaque, const char *why)
{
  struct meta_copy *c = opaque;

  WITH_LOCK (&c->lock);
  note_loss_locked (c, why);
  /* If this fails too, the mirror removes the copy's names next; and the
   * copy's state shows that it misses a commit.
   */
  put_mark_locked (c, false, 0);
}

static void
distrusted (void *opaque)
{
  struct meta_copy *c = opaque;

  WITH_LOCK (&c->lock);
  /* A failure matters only if a crash comes before the comparison ends. */
  if (put_mark_locked (c, c->mark.current, 0) == -1)
    snprintf (c->unmarked, sizeof c->unmarked, "%s", nbdedup_error ());
}

static void
wake (void *opaque)
{
  struct meta_copy *c = opaque;

  WITH_LOCK (&c->lock);
  c->poked = true;
  cond_signal (&c->thread.wake);
}

/*----------------------------------------------------------------------
 * The log
 */

static void
tell_event (const struct meta_copy *c, const struct cksum_mirror_event *e)
{
  nbdedup_log (NBDEDUP_LOG_WARNING,
               "%s%s: %s %" PRIu64 " is damaged: nbdedup "
               "took it from the copy%s",
               c->db, e->wal ? "-wal" : "", e->wal ? "frame" : "page",
               e->number, e->repaired ? " and wrote it again" : "");
}

static void
tell (struct meta_copy *c)
{
  struct cksum_mirror_event e;
  char why[sizeof c->why], unmarked[sizeof c->unmarked];
  bool untold;

  while (cksum_mirror_next_event (c->mirror, &e) == 1)
    tell_event (c, &e);
  {
    WITH_LOCK (&c->lock);
    /* Not again for each retry on a full disk. */
    untold = c->untold && strcmp (c->why, c->told) != 0;
    c->untold = false;
    memcpy (why, c->why, sizeof why);
    memcpy (c->told, c->why, sizeof c->told);
    memcpy (unmarked, c->unmarked, sizeof unmarked);
    c->unmarked[0] = '\0';
  }
  if (unmarked[0] != '\0')
    nbdedup_log (NBDEDUP_LOG_ERROR, "%s", unmarked);
  if (untold)
    nbdedup_log (NBDEDUP_LOG_WARNING,
                 "%s: has no second copy now (%s): "
                 "nbdedup makes one as soon as it can",
                 c->db, why);
}

/*----------------------------------------------------------------------
 * Building
 */

static void
tell_damaged (void *opaque, const struct cksum_page_report *r)
{
  const struct meta_copy *c = opaque;

  nbdedup_log (NBDEDUP_LOG_ERROR,
               "%s: page %" PRIu64 " is damaged and has no "
               "second copy yet",
               c->db, r->number);
}

static int
check_room (const char *path, uint64_t pages)
{
  CLEANUP_FREE char *dir = strdup (path);
  uint64_t need = pages * META_PAGE_BYTES * 9 / 8 + SPARE_BYTES;
  struct statvfs fs;
  struct stat st;
  char *slash = dir ? strrchr (dir, '/') : NULL;

  if (slash)
    *slash = '\0';
  if (slash == NULL || statvfs (dir[0] ? dir : "/", &fs) == -1)
    return nbdedup_fail (errno, "%s: %s", path, strerror (errno));
  /* The copy overwrites an existing file. */
  if (stat (path, &st) == 0)
    need -= need < (uint64_t) st.st_blocks * 512
      ? need
      : (uint64_t) st.st_blocks * 512;
  if ((uint64_t) fs.f_bavail * fs.f_frsize < need)
    return nbdedup_fail (ENOSPC, "%s: not enough free space", path);
  return 0;
}

/* Start the copy: from now on it gets every write. */
static int
begin (struct meta_copy *c, uint64_t *first)
{
  CLEANUP_FREE char *path = NULL;
  uint64_t pages, resume;

  assert_held (&c->building);
  if (cksum_mirror_is_distrusted (c->mirror))
    return nbdedup_fail (EIO,
                         "another program wrote to pool.db while it was "
                         "open, and it has no good copy: restore the pool "
                         "from a backup");

  {
    WITH_LOCK (&c->lock);
    c->begin = false;
    c->compared = 0;
    resume = c->resume;
    c->resume = 0;
    *first = resume + 1;
    if (resume > 0)
      return 0; /* 'attach' has started it */
    c->since = clock_wall_s ();
    if (put_mark_locked (c, false, 0) == -1)
      return -1;
    path = meta_pair_copy_path (c->db, &c->mark);
  }
  if (path == NULL || cksum_mirror_pages (c->mirror, c->conn.db, &pages) == -1)
    return -1;
  if (meta_pair_may_write (c->db, path, c->mark.uuid,
                           c->mark.path[0] == '\0') == -1)
    return -1;
  if (check_room (path, pages) == -1)
    return -1;
  return cksum_mirror_start (c->mirror, path, false, false);
}

static int
copy_pages (struct meta_copy *c, uint64_t first)
{
  uint64_t pages;

  assert_held (&c->building);
  assert (first > 0); /* SQLite counts from 1 */
  for (;; first += PIECE_PAGES) {
    if (cksum_mirror_pages (c->mirror, c->conn.db, &pages) == -1)
      return -1;
    {
      WITH_LOCK (&c->lock);
      c->built = first - 1 < pages ? first - 1 : pages;
      c->total = pages;
    }
    if (first > pages)
      return 0;
    if (c->thread.stop)
      return 1;
    if (cksum_mirror_copy (c->mirror, c->conn.db, first,
                           pages - first + 1 < PIECE_PAGES
                             ? (unsigned) (pages - first + 1)
                             : PIECE_PAGES,
                           tell_damaged, c) == -1)
      return -1;
  }
}

static int
finish (struct meta_copy *c)
{
  assert_held (&c->building);
  if (cksum_mirror_copy_wal (c->mirror, c->conn.db) == -1)
    return -1;
  /* The copy may contain what the other program wrote. */
  if (cksum_mirror_foreign_changes (c->mirror) > 0)
    return nbdedup_fail (EIO, "another program wrote to pool.db meanwhile");
  /* If the copy is lost now, "lost" waits for the lock and writes the mark
   * last.
   */
  WITH_LOCK (&c->lock);
  if (cksum_mirror_state (c->mirror) != CKSUM_MIRROR_BUILDING ||
      put_mark_locked (c, true, 0) == -1)
    return -1;
  if (!cksum_mirror_trust (c->mirror))
    return -1;
  c->since = clock_wall_s ();
  c->why[0] = c->told[0] = '\0';
  c->untold = false;
  return 0;
}

/* 0: done; 1: stopped in the middle; -1: not possible now. */
static int
build_locked (struct meta_copy *c)
{
  uint64_t first;
  int r;

  assert_held (&c->building);
  r = begin (c, &first);
  if (r == 0)
    r = copy_pages (c, first);
  if (r == 0)
    r = finish (c);
  if (r == -1) {
    WITH_LOCK (&c->lock);
    if (!c->untold)
      note_loss_locked (c, nbdedup_error ());
  }
  if (r == -1)
    cksum_mirror_lose (c->mirror, nbdedup_error ());
  return r;
}

/*----------------------------------------------------------------------
 * Comparing
 */

struct comparing {
  const struct meta_copy *c;
  void (*fn) (void *opaque, bool repaired, const char *text);
  void *opaque;
};

static void
tell_difference (void *opaque, const struct cksum_page_report *r)
{
  static const char *const states[] = {
    [CKSUM_PAGE_GOOD] = "good",
    [CKSUM_PAGE_UNUSED] = "zeroes",
    [CKSUM_PAGE_BAD] = "damaged",
    [CKSUM_PAGE_UNREADABLE] = "unreadable",
  };
  const struct comparing *cmp = opaque;
  char text[PATH_MAX + 160];

  if (r->differ)
    snprintf (text, sizeof text,
              "%s: page %" PRIu64 " differs from its copy, "
              "though both verify",
              cmp->c->db, r->number);
  else
    snprintf (text, sizeof text, "%s%s: %s %" PRIu64 " is %s, its copy %s%s",
              cmp->c->db, r->wal ? "-wal" : "", r->wal ? "frame" : "page",
              r->number, states[r->first], states[r->second],
              r->repaired ? ": repaired" : "");
  cmp->fn (cmp->opaque, r->repaired, text);
}

/* Compare some pages from 'first' on, and the WAL after the last one.  Returns
 * how many; 0: all are done, or (*lost) there is no current copy any more.
 */
static int64_t
compare_piece (struct meta_copy *c, uint64_t first, struct comparing *cmp,
               bool *lost)
{
  uint64_t pages;
  unsigned n;

  assert (first > 0);
  WITH_LOCK (&c->building);
  *lost = cksum_mirror_state (c->mirror) != CKSUM_MIRROR_SYNCED;
  if (*lost)
    return 0;
  if (cksum_mirror_pages (c->mirror, c->conn.db, &pages) == -1)
    return -1;
  if (first > pages)
    return cksum_mirror_check_wal (c->mirror, c->conn.db, tell_difference, cmp);
  n = pages - first + 1 < PIECE_PAGES ? (unsigned) (pages - first + 1)
                                      : PIECE_PAGES;
  if (cksum_mirror_check (c->mirror, c->conn.db, first, n, tell_difference,
                          cmp) == -1)
    return -1;
  return n;
}

struct putting_right {
  uint64_t repaired, damaged;
};

static void
note_difference (void *opaque, bool repaired, const char *text)
{
  struct putting_right *p = opaque;

  if (repaired)
    p->repaired++;
  else if (p->damaged++ == 0)
    nbdedup_log (NBDEDUP_LOG_ERROR, "%s", text);
}

/* Without a copy no page can be repaired. */
static void
tell_touched (struct meta_copy *c, bool distrusted)
{
  nbdedup_log (distrusted ? NBDEDUP_LOG_ERROR : NBDEDUP_LOG_WARNING,
               "%s: another program wrote to it while it is in use, and it has "
               "no second copy: %s",
               c->db,
               distrusted
                 ? "nbdedup can read only what is in memory: stop the server, "
                   "and restore a backup"
                 : "nbdedup cannot repair pages that this has damaged");
}

/* Another program wrote to pool.db, or to its copy: compare and repair.  If
 * that is interrupted, or a page is right in neither, the judgement of the
 * files stays as it is.  A further write wakes the thread again.
 */
static void
put_right (struct meta_copy *c)
{
  const uint64_t changes = cksum_mirror_foreign_changes (c->mirror);
  struct putting_right p = { 0, 0 };
  struct comparing cmp = { c, note_difference, &p };
  uint64_t first, repaired;
  unsigned passes = 0;
  bool distrusted, lost = false;
  int64_t n;
  int r;

  {
    WITH_LOCK (&c->lock);
    if (changes == c->compared)
      return;
    c->compared = changes;
  }
  {
    WITH_LOCK (&c->building);
    distrusted = cksum_mirror_look (c->mirror, c->conn.db);
  }
  if (cksum_mirror_state (c->mirror) != CKSUM_MIRROR_SYNCED) {
    if (cksum_mirror_is_touched (c->mirror))
      tell_touched (c, distrusted);
    return;
  }
  nbdedup_log (NBDEDUP_LOG_WARNING,
               "%s: another program wrote to it or to its "
               "copy while they are in use: nbdedup compares its pages with "
               "the copy",
               c->db);
  /* Writes of other programs are hard to notice while we write (cksum-own.h).
   * After the first pass every page's checksum is known.  So another pass,
   * which writes nothing, shows whether there was such a write meanwhile.
   */
  do {
    repaired = p.repaired;
    for (first = 1; (n = compare_piece (c, first, &cmp, &lost)) > 0;) {
      first += (uint64_t) n;
      if (c->thread.stop)
        return;
    }
  } while (n == 0 && !lost && p.damaged == 0 && p.repaired > repaired &&
           ++passes < PASSES_MAX);
  if (n == -1 || lost || p.damaged > 0 || p.repaired > repaired) {
    nbdedup_log (NBDEDUP_LOG_ERROR,
                 "%s: nbdedup could not compare all of its "
                 "pages with the copy%s%s",
                 c->db, n == -1 ? ": " : "", n == -1 ? nbdedup_error () : "");
    return;
  }
  {
    WITH_LOCK (&c->building);
    r = cksum_mirror_trust_both (c->mirror, c->conn.db, changes);
  }
  if (r == -1)
    nbdedup_log (NBDEDUP_LOG_ERROR, "%s", nbdedup_error ());
  else if (r == 1)
    nbdedup_log (NBDEDUP_LOG_WARNING,
                 "%s: %" PRIu64 " pages were not as this "
                 "server had written them: nbdedup wrote them again from the "
                 "other copy",
                 c->db, p.repaired);
}

/*----------------------------------------------------------------------
 * The thread
 */

static bool
is_missing (struct meta_copy *c)
{
  enum cksum_mirror_state state = cksum_mirror_state (c->mirror);

  return state == CKSUM_MIRROR_OFF || state == CKSUM_MIRROR_LOST;
}

/* Wait for work; false: stop.  *retry: it is time to try again. */
static bool
wait_for_work (struct meta_copy *c, bool *retry)
{
  uint64_t now = clock_ms ();

  WITH_LOCK (&c->lock);
  if (!c->thread.stop && !c->begin && !c->untold && !c->poked &&
      now < c->retry_ms)
    lock_wait_ms (&c->lock, &c->thread.wake, c->retry_ms - now);
  c->poked = false;
  now = clock_ms ();
  *retry = now >= c->retry_ms;
  if (*retry)
    c->retry_ms = now + RETRY_MS;
  return !c->thread.stop;
}

static void *
copy_thread (void *arg)
{
  struct meta_copy *c = arg;
  bool retry, wants;

  while (wait_for_work (c, &retry)) {
    tell (c);
    if (cksum_mirror_is_touched (c->mirror))
      put_right (c);
    {
      WITH_LOCK (&c->lock);
      wants = c->wanted && (c->begin || (retry && is_missing (c)));
    }
    if (wants) {
      WITH_LOCK (&c->building);
      build_locked (c);
    }
  }
  tell (c);
  return NULL;
}

int
meta_copy_start (struct meta_copy *c, const struct meta_conn *conn)
{
  assert (!c->has_conn && c->attached);
  c->conn = *conn;
  c->has_conn = true;
  c->retry_ms = clock_ms () + RETRY_MS;
  return background_start (&c->thread, copy_thread, c);
}

void
meta_copy_retry (struct meta_copy *c)
{
  if (c == NULL)
    return;
  WITH_LOCK (&c->lock);
  c->retry_ms = 0;
  cond_signal (&c->thread.wake);
}

void
meta_copy_stop (struct meta_copy *c)
{
  if (c == NULL)
    return;
  background_stop (&c->thread);
  if (c->has_conn)
    meta_conn_close (&c->conn);
  c->has_conn = false;
}

/*----------------------------------------------------------------------
 * Beginning and end
 */

/* Start the mirror with the copy that was chosen, and update the mark. */
static int
attach (struct meta_copy *c, enum meta_pair_has has)
{
  CLEANUP_FREE char *path = meta_pair_copy_path (c->db, &c->mark);
  const bool current = has == META_PAIR_ALL;
  uint64_t copied = c->mark.copied;

  if (path == NULL)
    return -1;
  c->has_mark = access (c->mark_path, F_OK) == 0;
  /* The mark may be one that an earlier process failed to sync: the disk may
   * still say "current".
   */
  c->is_doubtful = !current;
  snprintf (c->path, sizeof c->path, "%s", c->mark.path);
  if (current && cksum_mirror_start (c->mirror, path, true, true) == 0) {
    /* "recover" uses a copy without a mark.  If there were still no mark, the
     * next opening would make the copy again, from pages that only the copy
     * has undamaged.
     */
    WITH_LOCK (&c->lock);
    return put_mark_locked (c, true, 0);
  }
  /* The copy may have undamaged pages that pool.db has not: do not overwrite it
   * for such a reason.
   */
  if (current && meta_is_of_process (errno))
    return -1;
  {
    WITH_LOCK (&c->lock);
    /* 'current' and 'copied' become wrong when this session writes. */
    if (c->has_mark && put_mark_locked (c, false, 0) == -1 &&
        (c->mark.current || copied > 0))
      return -1;
  }
  if (has == META_PAIR_PART &&
      cksum_mirror_start (c->mirror, path, false, true) == 0)
    c->resume = copied; /* the thread does not run yet */
  return 0;
}

struct meta_copy *
meta_copy_new (const char *db, const struct meta_session *session, bool force)
{
  struct meta_copy *c = calloc (1, sizeof *c);
  struct cksum_mirror_ops ops = { lost, distrusted, wake, c };
  enum meta_pair_has has;
  int r = -1;

  if (c == NULL)
    return nbdedup_fail_null (ENOMEM, "no memory");
  lock_init (&c->building);
  lock_init (&c->lock);
  background_init (&c->thread, &c->lock);
  c->db = strdup (db);
  c->mark_path = meta_pair_mark_path (db);
  if (c->db == NULL)
    nbdedup_fail (ENOMEM, "no memory");
  else if (c->mark_path != NULL)
    r = meta_pair_open (db, session, force, &c->mark, &has);
  if (r == -1)
    goto err;
  c->mirror = cksum_mirror_new (db, &ops);
  if (c->mirror == NULL || (r == 0 && attach (c, has) == -1))
    goto err;
  c->attached = r == 0;
  return c;

err:
  meta_copy_free (c, false);
  return NULL;
}

int
meta_copy_opened (struct meta_copy *c)
{
  cksum_mirror_watch (c->mirror);
  if (c->attached)
    return 0;
  c->attached = true;
  return attach (c, META_PAIR_NOTHING);
}

/* The next session continues an unfinished copy from here. */
static void
save_progress (struct meta_copy *c)
{
  if (cksum_mirror_sync_copy (c->mirror) == -1)
    return;
  WITH_LOCK (&c->lock);
  if (cksum_mirror_state (c->mirror) == CKSUM_MIRROR_BUILDING && c->built > 0)
    put_mark_locked (c, false, c->built);
}

void
meta_copy_free (struct meta_copy *c, bool clean)
{
  int err = errno;

  if (c == NULL)
    return;
  assert (!c->thread.runs && !c->has_conn);
  if (clean && c->mirror &&
      cksum_mirror_state (c->mirror) == CKSUM_MIRROR_BUILDING)
    save_progress (c);
  cksum_mirror_free (c->mirror);
  background_destroy (&c->thread);
  lock_destroy (&c->lock);
  lock_destroy (&c->building);
  free (c->db);
  free (c->mark_path);
  free (c);
  errno = err;
}

/*----------------------------------------------------------------------
 * The property
 */

static void
remove_copy (const char *path)
{
  CLEANUP_FREE char *wal = NULL;

  if (path == NULL || asprintf (&wal, "%s-wal", path) == -1) {
    wal = NULL;
    return;
  }
  unlink (path);
  unlink (wal);
}

/* Write the mark first: until then the copy's files get every write, and after
 * that they are no copy.  Remove only files that the mark names.
 */
static int
turn_off (struct meta_copy *c)
{
  CLEANUP_FREE char *path = NULL;

  assert_held (&c->building);
  {
    WITH_LOCK (&c->lock);
    if (c->has_mark) {
      path = meta_pair_copy_path (c->db, &c->mark);
      snprintf (c->path, sizeof c->path, "%s", c->mark.path);
      if (put_mark_locked (c, false, 0) == -1)
        return -1;
    }
    c->wanted = c->begin = false;
  }
  /* Without the lock: a failing write acquires it inside of the mirror's. */
  cksum_mirror_stop (c->mirror);
  WITH_LOCK (&c->lock);
  if (!c->has_mark)
    return 0;
  remove_copy (path);
  if (unlink (c->mark_path) == -1 || sync_directory_of (c->mark_path) == -1)
    return nbdedup_fail (errno, "%s: %s", c->mark_path, strerror (errno));
  c->has_mark = false;
  return 0;
}

/* *moves: the value names another place.  -1 with EBUSY: it would end a copy
 * that is still needed for a comparison.
 */
static int
ends_copy (struct meta_copy *c, const char *value, bool *moves)
{
  {
    WITH_LOCK (&c->lock);
    *moves = strcmp (c->path, strcmp (value, "on") == 0 ? "" : value) != 0;
  }
  if ((*moves || strcmp (value, "off") == 0) &&
      cksum_mirror_state (c->mirror) == CKSUM_MIRROR_SYNCED &&
      cksum_mirror_is_touched (c->mirror))
    return nbdedup_fail (EBUSY,
                         "%s: another program wrote to it, and nbdedup "
                         "is comparing its pages with the copy: try again "
                         "later",
                         c->db);
  return 0;
}

int
meta_copy_try (struct meta_copy *c, const char *value)
{
  bool moves;

  if (ends_copy (c, value, &moves) == -1)
    return -1;
  return value[0] != '/' || !moves
    ? 0
    : meta_pair_may_write (c->db, value, c->mark.uuid, false);
}

int
meta_copy_configure (struct meta_copy *c, const char *value)
{
  const char *path = strcmp (value, "on") == 0 ? "" : value;
  uint64_t pages;
  bool moves;

  WITH_LOCK (&c->building);
  if (ends_copy (c, value, &moves) == -1)
    return -1;
  if (strcmp (value, "off") == 0)
    return turn_off (c);
  if (moves && turn_off (c) == -1)
    return -1;
  {
    WITH_LOCK (&c->lock);
    snprintf (c->path, sizeof c->path, "%s", path);
    c->wanted = true;
  }
  if (cksum_mirror_state (c->mirror) == CKSUM_MIRROR_SYNCED)
    return 0;
  if (cksum_mirror_pages (c->mirror, c->conn.db, &pages) == 0 &&
      pages <= AT_ONCE_PAGES) {
    build_locked (c);
    wake (c);
    return 0;
  }
  WITH_LOCK (&c->lock);
  c->begin = true;
  cond_signal (&c->thread.wake);
  return 0;
}

/*----------------------------------------------------------------------
 * Status and comparison
 */

void
meta_copy_status (struct meta_copy *c, struct meta_copy_status *s)
{
  enum cksum_mirror_state state = cksum_mirror_state (c->mirror);

  memset (s, 0, sizeof *s);
  cksum_mirror_get_counts (c->mirror, &s->taken, &s->repaired);
  WITH_LOCK (&c->lock);
  s->state = !c->wanted                          ? META_COPY_OFF
    : state == CKSUM_MIRROR_SYNCED               ? META_COPY_CURRENT
    : state == CKSUM_MIRROR_BUILDING || c->begin ? META_COPY_BUILDING
                                                 : META_COPY_LOST;
  snprintf (s->path, sizeof s->path, "%s%s", c->path[0] ? c->path : c->db,
            c->path[0] ? "" : ".copy");
  s->built_pages = c->built;
  s->total_pages = c->total;
  s->since = c->since;
  snprintf (s->why, sizeof s->why, "%s", c->why);
}

int
meta_copy_blank (struct meta_copy *c)
{
  WITH_LOCK (&c->building);
  return cksum_mirror_blank (c->mirror, c->conn.db);
}

int
meta_copy_compare (struct meta_copy *c,
                   void (*fn) (void *opaque, bool repaired, const char *text),
                   int (*step) (void *opaque, uint64_t bytes), void *opaque)
{
  struct comparing cmp = { c, fn, opaque };
  uint64_t first = 1;
  bool lost;
  int64_t n;

  while ((n = compare_piece (c, first, &cmp, &lost)) > 0) {
    first += (uint64_t) n;
    if (step (opaque, 2 * (uint64_t) n * META_PAGE_BYTES) == -1)
      return -1;
  }
  return n == -1 ? -1 : lost;
}

void
meta_copy_change_begin (struct meta_copy *c)
{
  cksum_mirror_change_begin (c->mirror);
}

void
meta_copy_change_end (struct meta_copy *c)
{
  cksum_mirror_change_end (c->mirror);
}

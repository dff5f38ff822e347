/* SPDX-License-Identifier: BSD-3-Clause */

/* See meta-pair.h. */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/fullio.h"
#include "base/log.h"
#include "base/owner.h"
#include "format/format.h"
#include "meta/meta-pair-int.h"
#include "meta/meta.h"

/* SQLite's file format, big-endian. */
#define DB_PAGES_OFFSET 28
#define DB_USER_VERSION_OFFSET 60
#define DB_APPLICATION_OFFSET 68
#define COPY_PIECE (1 << 20)

/*----------------------------------------------------------------------
 * Inspecting
 */

char *
meta_pair_mark_path (const char *db)
{
  const char *slash = strrchr (db, '/');
  int len = slash ? (int) (slash - db) + 1 : 0;
  char *s;

  if (asprintf (&s, "%.*smetadata-copy", len, db) == -1)
    return nbdedup_fail_null (ENOMEM, "no memory");
  return s;
}

char *
meta_pair_copy_path (const char *db, const struct meta_mark *m)
{
  char *s;

  if (asprintf (&s, "%s%s", m->path[0] ? m->path : db,
                m->path[0] ? "" : ".copy") == -1)
    return nbdedup_fail_null (ENOMEM, "no memory");
  return s;
}

static int
open_file (const char *path)
{
  struct stat st;
  const int flags = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
  int fd = open (path, O_RDWR | flags), err;

  /* Reading is enough to choose. */
  if (fd == -1 && (errno == EROFS || errno == EACCES || errno == EPERM))
    fd = open (path, O_RDONLY | flags);
  if (fd == -1)
    return -1;
  if (fstat (fd, &st) == -1)
    err = errno;
  else if (!S_ISREG (st.st_mode))
    err = EINVAL;
  else
    return fd;
  close (fd);
  errno = err;
  return -1;
}

static uint32_t
get_be (const uint8_t *p)
{
  return (uint32_t) p[0] << 24 | p[1] << 16 | p[2] << 8 | p[3];
}

static bool
begins_like_database (int fd)
{
  char magic[sizeof CKSUM_DB_MAGIC];

  return fd != -1 && full_pread (fd, magic, sizeof magic, 0) == sizeof magic &&
    memcmp (magic, CKSUM_DB_MAGIC, sizeof magic) == 0;
}

static int
look_at (struct side *s)
{
  uint8_t page[META_PAGE_BYTES];
  struct stat st;

  s->db_fd = open_file (s->db);
  if (s->db_fd == -1 && meta_is_of_process (errno))
    return nbdedup_fail (errno, "%s: %s", s->db, strerror (errno));
  s->missing = s->db_fd == -1 && errno == ENOENT;
  s->wal_fd = open_file (s->wal);
  if (s->wal_fd == -1 && meta_is_of_process (errno))
    return nbdedup_fail (errno, "%s: %s", s->wal, strerror (errno));
  s->size = 0;
  if (s->db_fd != -1 && fstat (s->db_fd, &st) == 0)
    s->size = (uint64_t) st.st_size;
  s->begins = begins_like_database (s->db_fd);
  s->header = cksum_chain_db_page (s->db_fd, META_PAGE_BYTES, 1, page) &&
    cksum_chain_db_page_size (page) == META_PAGE_BYTES;
  s->pages = s->header ? get_be (page + DB_PAGES_OFFSET) : 0;
  s->newer = s->header &&
    (get_be (page + DB_USER_VERSION_OFFSET) > FORMAT_VERSION ||
     get_be (page + DB_APPLICATION_OFFSET) != FORMAT_APPLICATION_ID);
  s->state = cksum_chain_db_page (s->db_fd, META_PAGE_BYTES, META_STAMP_PAGE,
                                  page) &&
    meta_stamp_parse (page, META_PAGE_BYTES, &s->stamp);
  return 0;
}

static int
side_init (struct side *s, const char *db)
{
  s->db = strdup (db);
  if (s->db == NULL || asprintf (&s->wal, "%s-wal", db) == -1) {
    s->wal = NULL;
    return nbdedup_fail (ENOMEM, "no memory");
  }
  return look_at (s);
}

static void
close_side (struct side *s)
{
  if (s->db_fd != -1)
    close (s->db_fd);
  if (s->wal_fd != -1)
    close (s->wal_fd);
  s->db_fd = s->wal_fd = -1;
}

static void
note_page (void *opaque, uint32_t number, const uint8_t *page,
           uint32_t page_size, bool commit)
{
  struct log *log = opaque;

  log->pending_header |= number == 1;
  if (number == META_STAMP_PAGE)
    log->pending_valid = meta_stamp_parse (page, page_size, &log->pending);
  if (!commit)
    return;
  log->header |= log->pending_header;
  if (log->pending_valid) {
    if (!log->stamped)
      log->first = log->pending;
    log->last = log->pending;
    log->stamped = true;
  }
  log->pending_header = log->pending_valid = false;
}

static int
read_logs (struct pair *p)
{
  unsigned i;
  int r;

  p->fds[0] = p->sides[0].wal_fd;
  p->fds[1] = p->has_copy ? p->sides[1].wal_fd : -1;
  for (i = 0; i < 2; ++i) {
    struct log *log = &p->logs[i];

    memset (log, 0, sizeof *log);
    r = cksum_chain_read (p->fds, i, &log->chain, note_page, log);
    if (r == -1)
      return -1;
    log->there = r == 1 && log->chain.nr_frames > 0;
  }
  /* If both copies have the same log, count it once. */
  if (p->logs[0].there &&
      memcmp (p->logs[0].chain.header, p->logs[1].chain.header,
              WAL_HEADER_BYTES) == 0)
    p->logs[1].there = false;
  return 0;
}

/*----------------------------------------------------------------------
 * Deciding
 */

static bool
same_pool (const struct meta_stamp *a, const struct meta_stamp *b)
{
  return memcmp (a->uuid, b->uuid, UUID_LEN) == 0;
}

/* True if page 1 or page 2 is damaged, and the other copy has it.  The rest of
 * such a database is accepted as it is.
 */
static bool
lacks_one_page (const struct pair *p, int i)
{
  const struct side *s = &p->sides[i], *other = &p->sides[!i];

  return p->has_copy && s->header != s->state && other->header &&
    other->state && s->size >= 2 * META_PAGE_BYTES;
}

static bool
is_usable (const struct pair *p, int i)
{
  const struct side *s = &p->sides[i];

  return (i == FIRST || p->has_copy) &&
    ((s->header && s->state) || lacks_one_page (p, i));
}

/* A loss of power during a checkpoint can tear pages of both databases, also
 * pages 1 and 2.  The WAL has these pages then.
 */
static bool
is_torn (const struct pair *p, int i, int k)
{
  const struct side *s = &p->sides[i];
  const struct log *log = &p->logs[k];

  return (i == FIRST || p->has_copy) && s->begins &&
    s->size >= 2 * META_PAGE_BYTES && (s->header || log->header) &&
    (s->state || log->stamped);
}

static bool
is_of_this_pool (const struct pair *p, int i, const struct meta_stamp *stamp)
{
  const struct side *other = &p->sides[!i];

  return p->has_copy && other->state
    ? same_pool (stamp, &other->stamp)
    : memcmp (stamp->uuid, p->session->uuid, UUID_LEN) == 0;
}

static bool
fits_log (const struct pair *p, int i, const struct log *log)
{
  const struct side *s = &p->sides[i];
  const struct meta_stamp *stamp = s->state ? &s->stamp : &p->sides[!i].stamp;

  /* The database's moment is unknown.  Accept it: to be of another moment than
   * the WAL, it would have suffered two faults.
   */
  if (!s->state && !lacks_one_page (p, i))
    return is_of_this_pool (p, i, &log->last);
  return same_pool (stamp, &log->last) && log->first.fold <= stamp->fold + 1 &&
    stamp->fold <= log->last.fold;
}

/* True if the database of side i and log k (-1: none) belong together; c->end
 * is the commit that they end with.
 */
static bool
belong_together (const struct pair *p, int i, int k, struct choice *c)
{
  const struct side *s = &p->sides[i];
  const struct log *log;

  *c = (struct choice) { .side = i, .log = k };
  c->end = s->state ? s->stamp : p->sides[!i].stamp;
  if (k == -1)
    return is_usable (p, i) &&
      (!s->header || s->size / META_PAGE_BYTES >= s->pages);
  log = &p->logs[k];
  if (!log->there || !(is_usable (p, i) || is_torn (p, i, k)))
    return false;
  if (!is_usable (p, i))
    c->nr_torn = !s->header + !s->state;
  if (!log->stamped) /* another program's commit */
    return true;
  c->end = log->last;
  return fits_log (p, i, log);
}

static bool
is_of_session (const struct meta_stamp *s, uint64_t epoch)
{
  return s->epoch == epoch || (s->opening && s->epoch == epoch + 1);
}

static bool
is_better (const struct choice *a, const struct choice *b, uint64_t epoch)
{
  bool fits_a = is_of_session (&a->end, epoch);
  bool fits_b = is_of_session (&b->end, epoch);

  if (b->side == -1)
    return true;
  if (epoch != 0 && fits_a != fits_b)
    return fits_a;
  if (a->end.fold != b->end.fold)
    return a->end.fold > b->end.fold;
  /* The log has the pages of a checkpoint that may not have finished. */
  if ((a->log != -1) != (b->log != -1))
    return a->log != -1;
  return a->nr_torn < b->nr_torn;
}

static struct choice
choose (const struct pair *p)
{
  struct choice best = { .side = -1, .log = -1 }, c;
  int i, k;

  for (i = 0; i < 2; ++i)
    for (k = 1; k >= -1; --k)
      if (belong_together (p, i, k, &c) &&
          is_better (&c, &best, p->session->epoch))
        best = c;
  return best;
}

bool
pair_is_of_same_moment (const struct pair *p, int i, const struct choice *c)
{
  struct choice other;

  return belong_together (p, i, c->log, &other) &&
    other.end.fold == c->end.fold && other.end.epoch == c->end.epoch &&
    same_pool (&other.end, &c->end);
}

/*----------------------------------------------------------------------
 * Repairing
 */

static int
fail_file (const char *path)
{
  return nbdedup_fail (errno == ENOSPC ? ENOSPC : EIO, "%s: %s", path,
                       strerror (errno));
}

/* Rename the file instead of removing it: the administrator may need it. */
static int
set_aside (const char *path)
{
  CLEANUP_FREE char *aside = NULL;

  if (asprintf (&aside, "%s.damaged", path) == -1) {
    aside = NULL;
    return nbdedup_fail (ENOMEM, "no memory");
  }
  if (rename (path, aside) == -1 && errno != ENOENT)
    return fail_file (path);
  return 0;
}

static int
create_wal (struct side *s)
{
  s->wal_fd = open_owned (s->wal, O_RDWR | O_EXCL | O_CLOEXEC, 0600);
  if (s->wal_fd == -1 || sync_directory_of (s->wal) == -1)
    return fail_file (s->wal);
  return 0;
}

/* Give side i all frames of log k. */
static int
write_wal (struct pair *p, int i, int k)
{
  const struct cksum_chain *chain = &p->logs[k].chain;
  struct side *s = &p->sides[i];

  if (chain->bad[i] == 0)
    return 0;
  if (s->wal_fd == -1 && create_wal (s) == -1)
    return -1;
  p->fds[i] = s->wal_fd;
  if (cksum_chain_repair (p->fds, (unsigned) i, chain) == 0)
    goto done;
  /* The disk may be unable to write to these blocks: use a new file. */
  if (errno != EIO || set_aside (s->wal) == -1)
    return fail_file (s->wal);
  close (s->wal_fd);
  if (create_wal (s) == -1)
    return -1;
  p->fds[i] = s->wal_fd;
  if (cksum_chain_repair (p->fds, (unsigned) i, chain) == -1)
    return fail_file (s->wal);
done:
  /* It is normal that a crash leaves the last commit in one WAL only. */
  nbdedup_log (i == FIRST ? NBDEDUP_LOG_WARNING : NBDEDUP_LOG_INFO,
               "%s: %" PRIu64 " of %" PRIu64 " pages were damaged or missing: "
               "nbdedup took them from the other copy",
               s->wal, chain->bad[i], chain->nr_frames);
  return 0;
}

/* Rename the WAL, so that SQLite does not replay it. */
static int
drop_wal (struct side *s)
{
  if (s->wal_fd == -1)
    return 0;
  nbdedup_log (NBDEDUP_LOG_WARNING,
               "%s: from another time than pool.db: "
               "nbdedup does not use it, and renames it %s.damaged",
               s->wal, s->wal);
  return set_aside (s->wal);
}

/* Write page 1 or 2 if the database lacks it.  Pages that the log has need no
 * repair: SQLite reads them there, and the next checkpoint writes them.
 */
static int
write_first_pages (const struct pair *p, int i)
{
  const struct side *s = &p->sides[i], *other = &p->sides[!i];
  uint64_t number = s->header ? META_STAMP_PAGE : 1;
  uint8_t page[META_PAGE_BYTES];

  if (!lacks_one_page (p, i))
    return 0;
  if (!cksum_chain_db_page (other->db_fd, META_PAGE_BYTES, number, page) ||
      full_pwrite (s->db_fd, page, META_PAGE_BYTES,
                   (number - 1) * META_PAGE_BYTES) == -1 ||
      full_datasync (s->db_fd) == -1)
    return fail_file (s->db);
  nbdedup_log (NBDEDUP_LOG_WARNING,
               "%s: page %" PRIu64 " was damaged: nbdedup "
               "wrote it again from the other copy",
               s->db, number);
  return 0;
}

int
pair_copy_bytes (int from, int to)
{
  CLEANUP_FREE uint8_t *buf = malloc (COPY_PIECE);
  uint64_t offset = 0;
  int64_t n;

  if (buf == NULL)
    return -1;
  while ((n = full_pread (from, buf, COPY_PIECE, offset)) > 0) {
    if (full_pwrite (to, buf, (size_t) n, offset) == -1)
      return -1;
    offset += (uint64_t) n;
  }
  return n == -1 ? -1 : full_datasync (to);
}

/* Copy the bytes of a copy that stays at its own path. */
static int
copy_over (const struct side *copy, const char *name)
{
  CLEANUP_CLOSE int fd =
    open_owned (name, O_WRONLY | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);

  if (fd == -1 || pair_copy_bytes (copy->db_fd, fd) == -1)
    return fail_file (name);
  return 0;
}

/* Clear the mark's "distrusted" after pool.db was renamed, and before the copy
 * takes its name: after that the mark would distrust the copy.
 */
static int
trust_again (const char *db, struct meta_mark *mark)
{
  CLEANUP_FREE char *path = meta_pair_mark_path (db);

  mark->distrusted = false;
  if (sync_directory_of (db) == -1)
    return fail_file (db);
  return path == NULL ? -1 : meta_mark_write (path, mark);
}

/* The copy becomes pool.db.  After a crash at any point pool.db is missing or
 * unchanged, and the next opening repeats this; or pool.db is the copy.
 * *stays: there still is a copy.
 */
static int
promote (struct pair *p, struct meta_mark *mark, bool *stays)
{
  struct side *first = &p->sides[FIRST], *second = &p->sides[SECOND];
  CLEANUP_FREE char *name = NULL;

  *stays = mark->path[0] != '\0';
  if (asprintf (&name, "%s%s", *stays ? first->db : second->db,
                *stays ? ".new" : "") == -1) {
    name = NULL;
    return nbdedup_fail (ENOMEM, "no memory");
  }
  if (*stays && copy_over (second, name) == -1)
    return -1;
  if (set_aside (first->db) == -1 ||
      (mark->distrusted && trust_again (first->db, mark) == -1))
    return -1;
  if (rename (name, first->db) == -1 || sync_directory_of (first->db) == -1)
    return fail_file (first->db);
  nbdedup_log (NBDEDUP_LOG_WARNING, "%s: %s: nbdedup put its copy %s there",
               first->db,
               first->missing ? "it was missing"
                 : first->db_fd == -1
                 ? "it could not be opened, and is now "
                   "pool.db.damaged"
                 : "it was damaged, or older than its copy, and is now "
                   "pool.db.damaged",
               second->db);
  return 0;
}

static int
put_first_right (struct pair *p, const struct choice *c, struct meta_mark *mark,
                 bool *has_copy)
{
  bool stays = true;

  if (c->log != -1) {
    if (write_wal (p, FIRST, c->log) == -1)
      return -1;
  }
  else if (p->logs[0].there && drop_wal (&p->sides[FIRST]) == -1)
    return -1;
  if (c->side == FIRST) {
    if (write_first_pages (p, FIRST) == -1)
      return -1;
  }
  else if (promote (p, mark, &stays) == -1)
    return -1;
  *has_copy = stays;
  return 0;
}

/* Returns true if the copy now equals pool.db, with the same WAL. */
static bool
put_second_right (struct pair *p, const struct choice *c)
{
  struct side *s = &p->sides[SECOND];

  if (!pair_is_of_same_moment (p, SECOND, c))
    return false;
  if (c->log != -1) {
    if (write_wal (p, SECOND, c->log) == -1)
      return false;
  }
  else if (s->wal_fd != -1 && unlink (s->wal) == -1)
    return false;
  return write_first_pages (p, SECOND) == 0;
}

/*----------------------------------------------------------------------*/

/* Neither use nor overwrite files of another pool. */
static void
leave_foreign (struct pair *p)
{
  struct side *first = &p->sides[FIRST], *second = &p->sides[SECOND];

  if (!p->has_copy || !first->state || !second->state ||
      same_pool (&first->stamp, &second->stamp))
    return;
  /* The pool's other files decide which one belongs to this pool. */
  if (memcmp (second->stamp.uuid, p->session->uuid, UUID_LEN) == 0) {
    nbdedup_log (NBDEDUP_LOG_WARNING,
                 "%s: belongs to another pool than the "
                 "files beside it: nbdedup does not use it",
                 first->db);
    first->header = first->state = first->newer = false;
    first->size = 0;
    return;
  }
  nbdedup_log (NBDEDUP_LOG_WARNING,
               "%s: belongs to another pool than pool.db: "
               "nbdedup does not use it",
               second->db);
  p->has_copy = false;
}

static void
leave_distrusted (struct pair *p, const struct meta_mark *mark)
{
  struct side *first = &p->sides[FIRST];

  if (!mark->distrusted)
    return;
  first->begins = first->header = first->state = first->newer = false;
  first->size = 0;
}

int
pair_fail_distrusted (int err, const char *db)
{
  return nbdedup_fail (err,
                       "%s: another program wrote to it while it was in "
                       "use, and its copy cannot be used: restore all files of "
                       "the pool from the same backup",
                       db);
}

int
pair_fail_other_time (int err, const char *wal)
{
  return nbdedup_fail (err,
                       "%s: from another time than pool.db: restore all "
                       "files of the pool from the same backup",
                       wal);
}

bool
pair_may_do_without_wal (const struct pair *p, const struct choice *c)
{
  return c->side != -1 && pair_is_of_same_moment (p, SECOND, c);
}

int
pair_choose (struct pair *p, const struct meta_mark *mark, struct choice *c)
{
  leave_distrusted (p, mark);
  if (p->sides[FIRST].newer || p->sides[SECOND].newer)
    return 1;
  leave_foreign (p);
  if (read_logs (p) == -1)
    return -1;
  *c = choose (p);
  return 0;
}

/* True if the copy has the mark's 'copied' pages, because a clean close
 * interrupted copying.  Until then it got every write, so both files are of the
 * same moment, and there is no WAL.  If not, another program has replaced
 * pool.db since.
 */
static bool
has_part (const struct pair *p, const struct meta_mark *mark)
{
  const struct side *first = &p->sides[FIRST], *second = &p->sides[SECOND];

  return !mark->current && mark->copied >= META_STAMP_PAGE && first->header &&
    first->state && second->header && second->state && !p->logs[FIRST].there &&
    same_pool (&first->stamp, &second->stamp) &&
    first->stamp.epoch == second->stamp.epoch &&
    first->stamp.opening == second->stamp.opening &&
    first->stamp.folded == second->stamp.folded &&
    first->stamp.fold == second->stamp.fold;
}

static int
decide (struct pair *p, struct meta_mark *mark, enum meta_pair_has *has)
{
  struct choice c;
  bool has_copy, current;
  int r = pair_choose (p, mark, &c);

  if (r != 0)
    return r;
  if (c.side == -1 && mark->distrusted)
    return pair_fail_distrusted (EIO, p->sides[FIRST].db);
  if (c.side == -1) {
    /* Opening pool.db reports any other error than this one. */
    if (p->sides[FIRST].header && p->sides[FIRST].state && p->logs[0].there)
      return pair_fail_other_time (EIO, p->sides[FIRST].wal);
    return 1;
  }
  if (c.log == -1 && p->logs[0].there && !pair_may_do_without_wal (p, &c))
    return pair_fail_other_time (EIO, p->sides[FIRST].wal);
  memcpy (mark->uuid, c.end.uuid, UUID_LEN);
  if (!p->has_copy) {
    if (has_part (p, mark))
      *has = META_PAIR_PART;
    return 0;
  }
  if (put_first_right (p, &c, mark, &has_copy) == -1)
    return -1;
  current = has_copy && put_second_right (p, &c);
  if (current)
    *has = META_PAIR_ALL;
  /* Without a mark ('force') there need not be a copy. */
  if (!current && has_copy && (mark->current || p->sides[SECOND].db_fd != -1))
    nbdedup_log (NBDEDUP_LOG_WARNING,
                 "%s: the copy of pool.db is missing, "
                 "damaged, or from another time: nbdedup makes it again",
                 p->sides[SECOND].db);
  return 0;
}

static bool
may_use_copy (const struct meta_mark *mark, bool has_mark, bool force)
{
  return has_mark ? mark->current : force;
}

int
pair_open (struct pair *p, const char *db, const struct meta_session *session,
           bool force, struct meta_mark *mark)
{
  CLEANUP_FREE char *mark_path = meta_pair_mark_path (db);
  CLEANUP_FREE char *copy = NULL;
  unsigned i;
  int has_mark;

  *p = (struct pair) { .session = session };
  for (i = 0; i < 2; ++i)
    p->sides[i].db_fd = p->sides[i].wal_fd = -1;
  memset (mark, 0, sizeof *mark);
  if (mark_path == NULL)
    return -1;
  has_mark = meta_mark_read (mark_path, mark);
  if (has_mark == -1)
    return -1;
  p->has_copy = may_use_copy (mark, has_mark == 1, force);
  copy = meta_pair_copy_path (db, mark);
  if (copy == NULL || side_init (&p->sides[FIRST], db) == -1 ||
      side_init (&p->sides[SECOND], copy) == -1)
    return -1;
  if (p->sides[FIRST].state)
    memcpy (mark->uuid, p->sides[FIRST].stamp.uuid, UUID_LEN);
  return 0;
}

void
pair_close (struct pair *p)
{
  unsigned i;

  for (i = 0; i < 2; ++i) {
    close_side (&p->sides[i]);
    free (p->sides[i].db);
    free (p->sides[i].wal);
  }
}

/* Make reads return what the disk has.  A file that cannot be written has no
 * other content in the kernel's cache.
 */
static int
drop_cached (int fd)
{
  if (fd == -1)
    return 0;
  if ((fcntl (fd, F_GETFL) & O_ACCMODE) != O_RDONLY && full_datasync (fd) == -1)
    return -1;
  posix_fadvise (fd, 0, 0, POSIX_FADV_DONTNEED);
  return 0;
}

/* After a failed sync the kernel keeps pages that look written but are not,
 * until it needs their memory.  So the pool would trust a commit that was never
 * durable, and give up its batches in the journal.  The databases may stay in
 * the cache: what a checkpoint failed to sync is still in the WAL.
 */
static int
drop_cached_wals (struct pair *p)
{
  if (drop_cached (p->sides[FIRST].wal_fd) == -1)
    return fail_file (p->sides[FIRST].wal);
  if (p->has_copy && drop_cached (p->sides[SECOND].wal_fd) == -1) {
    nbdedup_log (NBDEDUP_LOG_WARNING,
                 "%s: cannot be synced: %s: nbdedup does "
                 "not use the copy of pool.db",
                 p->sides[SECOND].wal, strerror (errno));
    p->has_copy = false;
  }
  return 0;
}

int
meta_pair_open (const char *db, const struct meta_session *session, bool force,
                struct meta_mark *mark, enum meta_pair_has *has)
{
  struct pair p;
  int r = pair_open (&p, db, session, force, mark);

  *has = META_PAIR_NOTHING;
  if (r == 0)
    r = drop_cached_wals (&p);
  if (r == 0)
    r = decide (&p, mark, has);
  pair_close (&p);
  return r;
}

int
meta_pair_may_write (const char *db, const char *copy,
                     const uint8_t uuid[UUID_LEN], bool usual)
{
  CLEANUP_CLOSE int fd = open_owned (copy,
                                     O_RDWR | O_CLOEXEC | O_NOFOLLOW |
                                       O_NONBLOCK | O_NOCTTY,
                                     0600);
  uint8_t page[META_PAGE_BYTES];
  struct meta_stamp stamp;
  struct stat st, own;
  bool known;

  if (fd == -1 || fstat (fd, &st) == -1)
    return nbdedup_fail (errno, "%s: %s", copy, strerror (errno));
  if (!S_ISREG (st.st_mode))
    return nbdedup_fail (EEXIST, "%s: not a regular file", copy);
  if (stat (db, &own) == 0 && own.st_dev == st.st_dev &&
      own.st_ino == st.st_ino)
    return nbdedup_fail (EINVAL, "%s: this is pool.db itself", copy);
  if (st.st_size == 0)
    return 0;
  known = cksum_chain_db_page (fd, META_PAGE_BYTES, META_STAMP_PAGE, page) &&
    meta_stamp_parse (page, META_PAGE_BYTES, &stamp);
  if (known ? memcmp (stamp.uuid, uuid, UUID_LEN) != 0 : !usual)
    return nbdedup_fail (EEXIST,
                         "%s: exists, and is no copy of this pool's "
                         "pool.db: remove it first if it is not needed",
                         copy);
  return 0;
}

bool
meta_copy_can_help (const char *db)
{
  CLEANUP_FREE char *mark_path = meta_pair_mark_path (db);
  CLEANUP_FREE char *copy = NULL;
  uint8_t page[META_PAGE_BYTES];
  struct meta_mark mark;
  int fd;
  bool r;

  if (mark_path == NULL || meta_mark_read (mark_path, &mark) != 1 ||
      !mark.current)
    return false;
  copy = meta_pair_copy_path (db, &mark);
  if (copy == NULL)
    return false;
  fd = open_file (copy);
  /* Both of its first pages may be torn: then the WAL has them. */
  r = begins_like_database (fd) ||
    cksum_chain_db_page (fd, META_PAGE_BYTES, META_STAMP_PAGE, page);
  if (fd != -1)
    close (fd);
  return r;
}

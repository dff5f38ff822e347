/* SPDX-License-Identifier: BSD-3-Clause */

/* pool.db: all SQL of the project is in meta*.c.
 *
 * One connection writes (the fold's; one thread at a time), several read, and
 * one checkpoints in a separate thread.  All use the checksum VFS, so reading a
 * page that differs from what was written fails.
 *
 * One thread at a time uses a connection: take a reader with meta_reader_get,
 * and return it with meta_reader_put.  Each statement is its own snapshot; no
 * transaction stays open between two calls.
 *
 * Functions return 0 (or 1 = found, 0 = not found, if documented), -1 on
 * error: ENOSPC (the file system is full), ENOMEM, EIO (damaged, or the
 * disk failed).
 */

#ifndef NBDEDUP_META_H
#define NBDEDUP_META_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/geometry.h"
#include "format/copies.h"
#include "format/hash.h"

struct record;
struct meta;
struct meta_conn;

/* A growable buffer: starts as {0}; free with blob_free. */
struct blob {
  uint8_t *p;
  size_t len, cap;
};
extern void blob_free (struct blob *b);
/* Make room for 'len' bytes in all; contents up to b->len stay. */
extern int blob_reserve (struct blob *b, size_t len);
/* As patient_realloc (backoff.h): a momentary lack of memory is no failure. */
extern int blob_reserve_patient (struct blob *b, size_t len);
#define CLEANUP_BLOB __attribute__ ((cleanup (blob_free)))

/* The row of table "state". */
struct meta_state {
  uint8_t uuid[UUID_LEN];
  uint64_t epoch;
  bool opening;
  uint64_t features_incompat, features_compat, features_autoclear;
  uint32_t sector_bytes;
  int hash;
  uint64_t folded, journal_position, fold, next_id;
  uint64_t records, record_bytes, stored_sectors, index_entries;
  uint64_t copy_sectors; /* of stored_sectors; stored in table "copy" */
};

#define META_NAME_MAX 255

struct meta_layer {
  uint64_t id, branch, seq;
  uint64_t parent; /* 0: none */
  uint64_t overlap;
  uint32_t block_size;
  bool dying;
  uint64_t pointers, blocks;
};

struct meta_snapshot {
  uint64_t id;
  uint64_t volume;  /* 0: destroyed, but has clones */
  const char *name; /* not owned; destroyed: VOLUME@NAME */
  uint64_t layer;   /* destroyed: the layer that still has its
                                 * content; 0: none (tombstone.c) */
  uint64_t size;
  uint64_t time;   /* seconds since the epoch */
  uint64_t origin; /* its volume's at that time; 0: none */
};

struct meta_volume {
  uint64_t id;
  char name[META_NAME_MAX + 1];
  uint64_t layer, size;
  bool tail_dirty; /* blocks past the end to be dropped */
  bool importing;  /* by an import that has not ended */
  char compress[16];
  char dedup[8];
  uint64_t domain;
  const char *allow; /* not owned */
  uint64_t origin;   /* the snapshot it was cloned from; 0: none */
};

/* Make the file, with its first state row and the key of a keyed hash (NULL or
 * not known: it has none), and sync it.
 */
extern int meta_create (const char *path, const struct meta_state *state,
                        const struct hash_key *key);

/* Check what can be checked without opening: magic, application id, format
 * version.  EINVAL: newer; EIO: not a pool's database.
 */
extern int meta_probe (const char *path);

/* True if the second copy could replace a file that meta_probe refuses. */
extern bool meta_copy_can_help (const char *path);

/* The session of the pool's other files.  If the two copies of pool.db
 * disagree, the one of the same session counts.  All zero: unknown.
 */
struct meta_session {
  uint64_t epoch;
  uint8_t uuid[UUID_LEN];
};

/* Open pool.db: recover the WAL, and repair damage from the second copy.
 * 'budget_bytes' bounds SQLite's page caches; 0 keeps nothing beyond a
 * statement's need.  'force': use a second copy even if no mark says that it
 * is current.
 */
extern struct meta *meta_open (const char *path, uint64_t budget_bytes,
                               const struct meta_session *session, bool force);
/* The same without writing to any file: pages in the WAL are read from the WAL,
 * and a page that is damaged in one copy from the other.  The caller must keep
 * other processes from writing meanwhile.  NULL with ESTALE: the readable state
 * is of an older moment; with 'force' read it.
 */
extern struct meta *meta_open_readonly (const char *path, uint64_t budget_bytes,
                                        const struct meta_session *session,
                                        bool force);
/* The caller accepts the pool: from now on checkpoints may copy and remove the
 * WAL.
 */
extern void meta_opened (struct meta *m);
/* Checkpoint everything, then close.  -1 if the checkpoint failed; the function
 * closes in that case too.
 */
extern int meta_close (struct meta *m);

/* Configure the second copy: 'value' is the property "metadata-copy": on, off,
 * or a path.  A copy that cannot be made now is made later; only ending the
 * present copy can fail.  Check a new value first: the check fails if no copy
 * is possible there, or the present one may not end (EBUSY).
 */
extern int meta_copy_check_value (struct meta *m, const char *value);
extern int meta_copy_set (struct meta *m, const char *value);

/* There is room again: rebuild a copy that was lost for lack of room. */
extern void meta_copy_room (struct meta *m);

enum meta_copy_state {
  META_COPY_OFF,
  META_COPY_BUILDING,
  META_COPY_CURRENT,
  META_COPY_LOST
};
struct meta_copy_status {
  enum meta_copy_state state;
  char path[1100];
  uint64_t built_pages, total_pages; /* META_COPY_BUILDING */
  uint64_t since;                    /* seconds since the epoch */
  char why[160];                     /* META_COPY_LOST */
  uint64_t taken, repaired; /* pages read from the copy, and rewritten */
};
extern void
meta_copy_get_status (struct meta *m, struct meta_copy_status *status);

/* Read every page of both copies of pool.db and of its WAL, and write the good
 * one over the bad one; report each bad one to 'fn'.  The function calls 'step'
 * after every few pages, with the bytes read, outside of all locks; if 'step'
 * returns -1 the function fails.  0; 1: there is no current copy to compare
 * with; -1.
 */
extern int
meta_copy_check (struct meta *m,
                 void (*fn) (void *opaque, bool repaired, const char *text),
                 int (*step) (void *opaque, uint64_t bytes), void *opaque);

extern struct meta_conn *meta_writer (struct meta *m);
/* Readers for threads that read ahead of a fold. */
#define META_READERS_AHEAD 6
extern struct meta_conn *meta_reader_get (struct meta *m);
/* The same, but NULL if the caller would have to wait. */
extern struct meta_conn *meta_reader_try (struct meta *m);
extern void meta_reader_put (struct meta *m, struct meta_conn *c);

/* Transactions, on the writer.  The transaction is durable when meta_commit
 * returns 0, and rolled back when it fails.
 */
extern int meta_begin (struct meta_conn *c);
extern int meta_commit (struct meta_conn *c);
extern void meta_rollback (struct meta_conn *c);
/* True if the last failed call on this connection read a damaged page.  (Else
 * writing failed.)
 */
extern bool meta_is_damaged (struct meta_conn *c);
/* True if a call since meta_begin failed to write to the disk, or a checkpoint
 * to sync.  SQLite may have rolled back then, and the content of the file is
 * not known.
 */
extern bool meta_has_write_failed (struct meta_conn *c);
/* True if any connection has read a damaged page, even of one copy only. */
extern bool meta_saw_damage (struct meta *m);
/* Write zeroes over each page that is damaged in all copies.  No table may use
 * such a page any more.
 */
extern int meta_blank_damage (struct meta *m);
/* Savepoints in a transaction, so that one operation can fail alone.  After
 * some errors (no memory, a damaged page, no space) SQLite has rolled back the
 * whole transaction, including the savepoint: then meta_release fails.
 */
extern int meta_savepoint (struct meta_conn *c);
extern int meta_release (struct meta_conn *c, bool keep);

/* One snapshot for several calls on a reader, until meta_unfreeze. */
extern int meta_freeze (struct meta_conn *c);
extern void meta_unfreeze (struct meta_conn *c);

/* A separate reader, frozen at this moment, for a caller that reads too long
 * to occupy a shared one.  Checkpoints save for it each page that they
 * overwrite (vfs/cksum-snapshot.h).  NULL: EBUSY if other readers keep the WAL
 * from being copied.  The caller must not hold a lock that clients' requests
 * take: a checkpoint comes first.
 */
extern struct meta_conn *meta_frozen_open (struct meta *m);
/* Copy what the WAL has, so that meta_frozen_open has less to copy.  It may
 * fail to: then that will say so.
 */
extern void meta_copy_ahead (struct meta *m);
extern void meta_frozen_close (struct meta *m, struct meta_conn *c);
/* EBUSY if the file system was so full that the reader had to give way.  Then
 * all that the caller reads fails with EBUSY.
 */
extern int meta_frozen_check (struct meta_conn *c);
/* Is there a frozen reader? */
extern bool meta_is_frozen (struct meta *m);

/* SQLite's own check of pages and trees; 'fn' gets each problem.  If 'look',
 * which is called before each page is read, returns -1, the check fails with
 * its error.
 */
extern int meta_quick_check (struct meta_conn *c,
                             void (*fn) (void *opaque, const char *text),
                             int (*look) (void *opaque), void *opaque);

/* Copy the WAL into the database, up to the last commit, and sync. */
extern int meta_checkpoint (struct meta *m);
/* Has the WAL reached its limit, or would a fold that may write 'need' pages
 * exceed it?  Then the caller restarts it before the fold.
 */
extern bool meta_wal_is_full (struct meta *m, uint64_t need);
/* Checkpoint as much of the WAL as readers allow, and sync. */
extern void meta_copy_wal (struct meta *m);
/* Checkpoint the WAL and restart it, if no reader stays in it for long.  With
 * META_TRUNCATE the WAL loses its header as well; META_EXPEL does the same, and
 * frozen readers give way, so that their saved pages free space.  False:
 * readers are still in it.
 */
enum meta_restart { META_RESTART, META_TRUNCATE, META_EXPEL };
extern bool meta_restart_wal (struct meta *m, enum meta_restart how);

/* Pages: pool.db's in use as of the last commit, and its free ones; the frames
 * of the WAL since it last began; and the pages allocated for both
 * (meta-files.h).
 */
struct meta_pages {
  uint64_t used, unused, allocated;
  uint64_t wal_used, wal_allocated;
};
extern void meta_get_pages (struct meta *m, struct meta_pages *pages);

/* The bytes written to pool.db, to its WAL, and to the second copy of both,
 * since it was opened.  -1: ENOMEM.
 */
struct meta_traffic {
  uint64_t db_bytes, wal_bytes, copy_bytes;
};
extern int meta_get_traffic (struct meta *m, struct meta_traffic *traffic);
/* Count them: after a commit, by the writer. */
extern void meta_committed (struct meta *m);
/* Allocate at least so many pages.  -1: ENOSPC, EIO. */
extern int
meta_allocate (struct meta *m, uint64_t db_pages, uint64_t wal_pages);
/* Pages for which pool.db's file system has room; many if that is not known. */
extern uint64_t meta_free_pages (struct meta *m);
/* Free the pages beyond these, if the WAL can restart with 'how', which is not
 * META_RESTART.  By the writer.
 */
extern void meta_give_back (struct meta *m, uint64_t db_pages,
                            uint64_t wal_pages, enum meta_restart how);
/* Write pool.db again without its free pages, which meta_give_back then frees:
 * 1; 0 while a reader is frozen, for which all pages would be saved; -1.  All
 * that is in use goes to the WAL once.  By the writer, outside of a
 * transaction.
 */
extern int meta_vacuum (struct meta *m);
/* Set the pages that stay allocated while the pool is closed. */
extern void
meta_set_kept (struct meta *m, uint64_t db_pages, uint64_t wal_pages);

/* Counts of pool.db: all its pages, and the free ones among them. */
extern int
meta_page_counts (struct meta_conn *c, uint64_t *all, uint64_t *unused);

extern int meta_state_get (struct meta_conn *c, struct meta_state *s);
extern int meta_state_put (struct meta_conn *c, const struct meta_state *s);

/* 1 found, 0 not, -1. 'value' is malloc'd. */
extern int
meta_property_get (struct meta_conn *c, const char *name, char **value);
/* The key of the pool's hash: 1; 0: there is none, or it is malformed; -1. */
extern int meta_hash_key_get (struct meta_conn *c, struct hash_key *key);
extern int meta_hash_key_put (struct meta_conn *c, const struct hash_key *key);
extern int
meta_property_put (struct meta_conn *c, const char *name, const char *value);

/* There need not be one. */
extern int meta_property_delete (struct meta_conn *c, const char *name);

/* The last report of a kind, as meta_property_get.  The caller may have to make
 * the table first (meta_history_make).
 */
extern int
meta_report_get (struct meta_conn *c, const char *name, char **value);
extern int
meta_report_put (struct meta_conn *c, const char *name, const char *value);

/* The id of a domain, added if it is new ("" is 0); and its name (malloc'd). */
extern int meta_domain_id (struct meta_conn *c, const char *name, uint64_t *id);
extern int meta_domain_name (struct meta_conn *c, uint64_t id, char **name);

extern int meta_layer_put (struct meta_conn *c, const struct meta_layer *l);
/* 1 found, 0 not. */
extern int
meta_layer_get (struct meta_conn *c, uint64_t id, struct meta_layer *l);
/* The row must be there: EIO if it is not. */
extern int
meta_layer_need (struct meta_conn *c, uint64_t id, struct meta_layer *l);
extern int meta_layer_delete (struct meta_conn *c, uint64_t id);
/* The children of layer 'old' become those of 'new'. */
extern int
meta_layer_reparent (struct meta_conn *c, uint64_t old, uint64_t new);
extern int meta_layer_set_dying (struct meta_conn *c, uint64_t id);
extern int
meta_layer_scan (struct meta_conn *c,
                 int (*fn) (void *opaque, const struct meta_layer *l),
                 void *opaque);
/* The same for all readable rows: skip damaged pages.  1: there are damaged
 * pages, so rows may be missing; 0: none; -1.
 */
extern int
meta_layer_salvage (struct meta_conn *c,
                    int (*fn) (void *opaque, const struct meta_layer *l),
                    void *opaque);
extern int meta_volume_put (struct meta_conn *c, const struct meta_volume *v);
extern int meta_volume_delete (struct meta_conn *c, uint64_t id);
/* The volume is valid only during the call of 'fn'. */
extern int
meta_volume_scan (struct meta_conn *c,
                  int (*fn) (void *opaque, const struct meta_volume *v),
                  void *opaque);
/* As meta_layer_salvage, in no order. */
extern int
meta_volume_salvage (struct meta_conn *c,
                     int (*fn) (void *opaque, const struct meta_volume *v),
                     void *opaque);

extern int
meta_snapshot_put (struct meta_conn *c, const struct meta_snapshot *s);
extern int meta_snapshot_delete (struct meta_conn *c, uint64_t id);
/* The snapshot is valid only during the call of 'fn'.  Those of one volume come
 * by name.
 */
extern int
meta_snapshot_scan (struct meta_conn *c,
                    int (*fn) (void *opaque, const struct meta_snapshot *s),
                    void *opaque);
/* As meta_layer_salvage, in no order. */
extern int
meta_snapshot_salvage (struct meta_conn *c,
                       int (*fn) (void *opaque, const struct meta_snapshot *s),
                       void *opaque);

/* Leaves, with their deltas (leaf-delta.h).  A leaf whose deltas are not valid
 * is a byte long.  put and delete also drop the leaf's deltas.
 * get: 1 found, 0 not; 'buf' has LEAF_LEN_MAX bytes.
 */
extern int meta_leaf_get (struct meta_conn *c, uint64_t branch, uint64_t leaf,
                          uint64_t seq, uint8_t *buf, size_t *len);
extern int meta_leaf_put (struct meta_conn *c, uint64_t branch, uint64_t leaf,
                          uint64_t seq, const uint8_t *buf, size_t len);
/* put, without reading the deltas, which stay. */
extern int meta_leaf_put_alone (struct meta_conn *c, uint64_t branch,
                                uint64_t leaf, uint64_t seq, const uint8_t *buf,
                                size_t len);
extern int meta_leaf_delete (struct meta_conn *c, uint64_t branch,
                             uint64_t leaf, uint64_t seq);
/* Leaves of a branch from 'first' on, ascending.  'fn' returns 0 to continue, 1
 * to stop, -1 to fail, and must not write the table.
 */
extern int meta_leaf_scan (struct meta_conn *c, uint64_t branch, uint64_t first,
                           int (*fn) (void *opaque, uint64_t leaf, uint64_t seq,
                                      const uint8_t *buf, size_t len),
                           void *opaque);

/* One leaf's rows of a branch, from seq 'last' down to 'first'. */
extern int meta_leaf_resolve (struct meta_conn *c, uint64_t branch,
                              uint64_t leaf, uint64_t first, uint64_t last,
                              int (*fn) (void *opaque, uint64_t seq,
                                         const uint8_t *buf, size_t len),
                              void *opaque);
/* The branch's first leaf from 'first' on that has a row.  1, 0, -1. */
extern int meta_leaf_next (struct meta_conn *c, uint64_t branch, uint64_t first,
                           uint64_t *leaf);

/* Leaves of the branch's layers from seq 'first' to 'last', ascending by
 * leaf and seq; several cursors may be open at once.  next: 1, 0: no more,
 * -1; 'buf' is borrowed until the next call.
 */
struct meta_cursor;
struct meta_leaf_row {
  uint64_t leaf, seq;
  const uint8_t *buf;
  size_t len;
};
extern struct meta_cursor *meta_leaf_cursor (struct meta_conn *c,
                                             uint64_t branch, uint64_t first,
                                             uint64_t last);
extern int
meta_cursor_next (struct meta_cursor *cursor, struct meta_leaf_row *row);
extern void meta_cursor_free (struct meta_cursor *cursor);

/* All leaves of all layers. */
extern int
meta_leaf_scan_all (struct meta_conn *c,
                    int (*fn) (void *opaque, uint64_t branch, uint64_t leaf,
                               uint64_t seq, const uint8_t *buf, size_t len),
                    void *opaque);

/* The same, from one row on. */
struct meta_leaf_key {
  uint64_t branch, leaf, seq;
};
extern int
meta_leaf_scan_from (struct meta_conn *c, const struct meta_leaf_key *first,
                     int (*fn) (void *opaque, const struct meta_leaf_key *key,
                                const uint8_t *buf, size_t len),
                     void *opaque);

/* Must reads of leaves look for deltas?  An older pool that is open read-only
 * has no table "delta", nor has another before it is fully open: 1; 0; -1.
 */
extern int meta_has_deltas (struct meta_conn *c);

/* Deltas.  An area is that of leaf / DELTA_LEAVES; in these keys 'leaf' is the
 * area.
 *
 * get: 1 found, 0 not; 'row' has DELTA_LEN_MAX bytes, and may not be valid.
 * put: a valid row; no bytes: delete it.  The caller sets the feature
 * FEATURE_INCOMPAT_DELTAS.  merge: put an area's deltas into their leaves, if
 * all of these are valid.  lose: delete a row that is not valid, and lose all
 * pointers of its leaves, because it is not known which are old.  It calls
 * 'lost', which may be NULL, with the key of each such leaf.  lose_invalid: the
 * same if the row is not valid: 1; else 0; -1.
 */
extern int meta_deltas_get (struct meta_conn *c, uint64_t branch, uint64_t area,
                            uint64_t seq, uint8_t *row, size_t *len);
extern int meta_deltas_put (struct meta_conn *c, uint64_t branch, uint64_t area,
                            uint64_t seq, const uint8_t *row, size_t len);
extern int meta_deltas_merge (struct meta_conn *c, uint64_t branch,
                              uint64_t area, uint64_t seq);
extern int
meta_deltas_lose (struct meta_conn *c, const struct meta_leaf_key *key,
                  int (*lost) (void *opaque, const struct meta_leaf_key *key,
                               unsigned blocks),
                  void *opaque);
extern int
meta_deltas_lose_invalid (struct meta_conn *c, const struct meta_leaf_key *key);
extern int
meta_deltas_scan (struct meta_conn *c,
                  int (*fn) (void *opaque, const struct meta_leaf_key *key,
                             const uint8_t *row, size_t len),
                  void *opaque);

/* Records, by group, with their present reference counts (counts.h): 1 found,
 * 0 not.  A group whose counts are damaged ends after a byte.
 */
extern int
meta_record_get (struct meta_conn *c, uint64_t group, struct blob *b);
/* The record at 'addr': 1; 0: there is none; -1.  'row' is a buffer for its
 * row.
 */
extern int meta_record_find (struct meta_conn *c, uint64_t addr,
                             struct blob *row, struct record *r);
/* The row of table "record" and that of table "count", if there is one. */
extern int meta_record_get_parts (struct meta_conn *c, uint64_t group,
                                  struct blob *b, struct blob *counts);
/* The row has all counts: the functions delete that of table "count". */
extern int meta_record_put (struct meta_conn *c, uint64_t group,
                            const uint8_t *buf, size_t len);
extern int meta_record_delete (struct meta_conn *c, uint64_t group);
/* The same for many groups, but rows of table "count" stay. */
extern int
meta_record_delete_range (struct meta_conn *c, uint64_t first, uint64_t last);
/* The row of table "count" alone: 1 found, 0 not. */
extern int
meta_count_get (struct meta_conn *c, uint64_t group, struct blob *counts);
/* Change only the row of table "count".  A pool with such a row has the
 * feature FEATURE_INCOMPAT_COUNTS.
 */
extern int meta_count_put (struct meta_conn *c, uint64_t group,
                           const uint8_t *buf, size_t len);
extern int meta_record_scan (struct meta_conn *c, uint64_t first_group,
                             int (*fn) (void *opaque, uint64_t group,
                                        const uint8_t *buf, size_t len),
                             void *opaque);
/* Groups with counts and without records. */
extern int meta_count_scan_strays (struct meta_conn *c,
                                   int (*fn) (void *opaque, uint64_t group),
                                   void *opaque);
extern int meta_count_delete_strays (struct meta_conn *c);

/* Segments' space maps. */
extern int
meta_segment_get (struct meta_conn *c, uint64_t segment, struct blob *b);
extern int meta_segment_put (struct meta_conn *c, uint64_t segment,
                             uint32_t nr_free, uint32_t largest_run,
                             const uint8_t *buf, size_t len);
extern int meta_segment_delete (struct meta_conn *c, uint64_t segment);
extern int
meta_segment_scan (struct meta_conn *c,
                   int (*fn) (void *opaque, uint64_t segment, uint32_t nr_free,
                              uint32_t largest_run),
                   void *opaque);

extern int meta_limbo_put (struct meta_conn *c, uint64_t addr);
extern int meta_limbo_delete (struct meta_conn *c, uint64_t addr);
extern int meta_limbo_scan (struct meta_conn *c,
                            int (*fn) (void *opaque, uint64_t addr),
                            void *opaque);

/* The copies of the record at 'addr' (copies.h); meta-copies.c.  1; 0: there
 * is no row; -1.  A row of another length names none: *nr is 0.
 */
extern int meta_copies_get (struct meta_conn *c, uint64_t addr,
                            uint64_t copies[COPIES_BESIDE], unsigned *nr);
/* If there are none, delete the row. */
extern int meta_copies_put (struct meta_conn *c, uint64_t addr,
                            const uint64_t copies[COPIES_BESIDE], unsigned nr);
/* The copies of records from 'first' on, by address. */
extern int meta_copies_scan (struct meta_conn *c, uint64_t first,
                             int (*fn) (void *opaque, uint64_t addr,
                                        const uint64_t *copies, unsigned nr),
                             void *opaque);
/* Sectors of all copies, which meta_state_get leaves out. */
extern int meta_copies_get_sectors (struct meta_conn *c, uint64_t *sectors);
extern int meta_copies_put_sectors (struct meta_conn *c, uint64_t sectors);

/* Samples of drift (history.h); meta-history.c. */
struct meta_sample {
  uint64_t id;         /* ascending as recorded */
  uint64_t golden;     /* a snapshot, perhaps destroyed since */
  uint64_t time;       /* seconds since the epoch */
  uint64_t length;     /* of the document */
  bool asked;          /* requested by a user: retention.h */
  uint64_t codec;      /* as stored: any number */
  const uint8_t *data; /* its stored form; not owned */
  size_t len;
};

/* Make the table, in a transaction, unless it exists. */
extern int meta_history_make (struct meta_conn *c);
extern int meta_sample_put (struct meta_conn *c, const struct meta_sample *s);
extern int meta_sample_delete (struct meta_conn *c, uint64_t id);
/* The samples of one golden image, by id. */
extern int meta_sample_times (struct meta_conn *c, uint64_t golden,
                              int (*fn) (void *opaque, uint64_t id,
                                         uint64_t time, bool asked),
                              void *opaque);
/* Call 'fn' for each sample of 'golden' (0: of any) whose id is above 'after',
 * by id.  The sample is valid only during the call.  'fn' returns 0 to
 * continue, 1 to stop, -1 to fail.
 */
extern int
meta_sample_scan (struct meta_conn *c, uint64_t golden, uint64_t after,
                  int (*fn) (void *opaque, const struct meta_sample *s),
                  void *opaque);
/* The same for the last sample of a golden image, if it has any. */
extern int
meta_sample_newest (struct meta_conn *c, uint64_t golden,
                    int (*fn) (void *opaque, const struct meta_sample *s),
                    void *opaque);

/* The pool's history (events.h); meta-events.c. */
#define META_EVENTS_MAX 10000

/* Add an event, a JSON text, in a transaction, and drop the oldest if there are
 * more than META_EVENTS_MAX.  The table must exist (meta_history_make).
 */
extern int
meta_event_put (struct meta_conn *c, uint64_t time, const char *text);
/* The events, oldest first; none in a pool from before there were any.  'text'
 * is valid only during the call of 'fn', which returns 0 to continue, -1 to
 * fail.  1: some cannot be read, because pages are damaged; the newest come in
 * the reverse order then; 0; -1.
 */
extern int
meta_event_scan (struct meta_conn *c,
                 int (*fn) (void *opaque, uint64_t id, const char *text),
                 void *opaque);

#endif /* NBDEDUP_META_H */

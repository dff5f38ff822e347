/* SPDX-License-Identifier: BSD-3-Clause */

/* nbdedup.h: the engine's only public header.
 *
 * A pool is a directory that holds deduplicated, compressed volumes (see
 * nbdedup-format(5)).  This header has two halves:
 *
 *  - the engine: nbdedup_pool_*, nbdedup_volume_*: opens a pool in this
 *    process.  The nbdkit plugin uses it.
 *
 *  - the client: nbdedup_client_*: runs administrative commands on a pool,
 *    in this process if no other has the pool open, else through the
 *    server that has it.  The command line tool uses it.
 *
 * Errors: a function that returns int returns 0 (or a count, if documented)
 * on success.  On failure it returns -1 (or NULL), sets errno to a value that
 * an NBD client understands, and leaves one line of text in nbdedup_error ().
 * EINVAL means that no pool would accept the argument.  No function exits or
 * prints; background threads report events to the program's log function
 * (nbdedup_set_log).
 *
 * Units: offsets, lengths and sizes are bytes unless the name says
 * otherwise.
 *
 * Threads: any number of threads may use a pool, a volume or a client at
 * once.  Closing it must be the last call on it.  nbdedup_error is per thread.
 *
 * Fork: open a pool in the process that uses it, because neither SQLite nor
 * the pool's threads survive a fork.  Only nbdedup_pool_probe may be called
 * before the fork.
 */

#ifndef NBDEDUP_H
#define NBDEDUP_H

#include <stdbool.h>
#include <stdint.h>
#include <stddef.h>
#include <stdio.h>

#include <jansson.h>

/* The reason for the last failure in this thread: one line without a newline
 * or a leading "nbdedup:".  Never NULL.  Valid until the next call that fails.
 */
extern const char *nbdedup_error (void);

/*----------------------------------------------------------------------
 * The log: events that no return value reports, for example what recovery
 * found, damage, or a file system that is nearly full.
 */

enum nbdedup_log_level {
  NBDEDUP_LOG_INFO,    /* normal operation */
  NBDEDUP_LOG_WARNING, /* the administrator should act soon */
  NBDEDUP_LOG_ERROR,   /* data or service was lost */
};

/* 'line' has no newline, and is valid during the call only.  The library may
 * call the function from several threads at once.  The function must not call
 * the library.
 */
typedef void nbdedup_log_fn (enum nbdedup_log_level level, const char *line);

/* Call it before opening the first pool.  With NULL, the initial value, the
 * library drops events.
 */
extern void nbdedup_set_log (nbdedup_log_fn *fn);

/* Some lines of the log are events: what happened to a pool, with fields that
 * programs can read (nbdedup-history(1) lists them).  The structure and what it
 * points to are valid during the call only.
 */
struct nbdedup_event {
  enum nbdedup_log_level level;
  const char *pool;     /* its path; NULL: left out of the line */
  const char *message;  /* one line for people; "": none */
  const json_t *fields; /* an object; "event" is the name */
};

/* With such a function, the log function does not get events.  The same rules
 * hold for it.  Without it, the log function gets the messages of events.
 */
typedef void nbdedup_event_fn (const struct nbdedup_event *event);
extern void nbdedup_set_event_log (nbdedup_event_fn *fn);

/* The event as one line without a newline: "event=snapshot pool=/srv/pool
 * volume=web1 ...".  Values are quoted where necessary.  malloc'd; NULL: no
 * memory.
 */
extern char *nbdedup_event_line (const struct nbdedup_event *event);

/* If standard error is systemd's journal, send it the event with its fields,
 * without waiting.  False: the caller must print it.
 */
extern bool nbdedup_event_journal (const struct nbdedup_event *event);

/*----------------------------------------------------------------------
 * Settings of an open pool: the keys of the plugin.
 */

enum nbdedup_primarycache {
  NBDEDUP_CACHE_ALL = 0,  /* cache metadata and decompressed records */
  NBDEDUP_CACHE_METADATA, /* no record cache, no page cache */
  NBDEDUP_CACHE_NONE,     /* also no metadata beyond the running txg */
};

/* A pool opened read-only is not written to at all, so it may be on a
 * read-only medium.  Opening it replays the journal in memory.  All volumes
 * are read-only, and commands that change something fail with EROFS.  Several
 * processes may have the pool open read-only at once, but none of them while
 * another has it open for writing.  Damage makes unreadable only what it hit;
 * the log says what that is.
 */
enum nbdedup_read_only {
  NBDEDUP_READ_ONLY_OFF = 0,
  /* Fail with EIO if flushed data is missing, or may be. */
  NBDEDUP_READ_ONLY_ON,
  /* Open it in spite of that, in an earlier state: reads may return old data.
   */
  NBDEDUP_READ_ONLY_FORCE,
};

struct nbdedup_settings {
  uint64_t ddt_cache_bytes;    /* budget for all metadata in memory */
  uint64_t record_cache_bytes; /* decompressed records */
  uint64_t dirty_max_bytes;    /* answered writes not yet hashed */
  uint64_t commit_interval_ms; /* longest time that a write stays volatile */
  uint64_t drift_interval_s;   /* between samples; 0: only on request */
  enum nbdedup_primarycache primarycache;
  unsigned nr_workers; /* hashing threads; 0: by the number of CPUs */
  enum nbdedup_read_only read_only;
  /* The caller could do its work with 'read_only', too, by --read-only: a
   * failure may say so.
   */
  bool only_reads;
  /* The caller is about to run "check" with "repair".  Opening then accepts
   * impossible pointers and counts that the repair corrects.
   */
  bool repair;
};

#define NBDEDUP_DDT_CACHE_DEFAULT (UINT64_C (384) << 20)
#define NBDEDUP_RECORD_CACHE_DEFAULT (UINT64_C (64) << 20)
#define NBDEDUP_DIRTY_MAX_DEFAULT (UINT64_C (64) << 20)
#define NBDEDUP_COMMIT_INTERVAL_DEFAULT 5   /* seconds */
#define NBDEDUP_DRIFT_INTERVAL_DEFAULT 3600 /* seconds */

/* The minimum: nbdedup_pool_open fails with EINVAL below these. */
#define NBDEDUP_DDT_CACHE_MIN (UINT64_C (8) << 20)
#define NBDEDUP_DIRTY_MAX_MIN (UINT64_C (4) << 20)

/* Fill in the defaults. */
extern void nbdedup_settings_init (struct nbdedup_settings *settings)
  __attribute__ ((nonnull (1)));

/*----------------------------------------------------------------------
 * Pools
 */

struct nbdedup_pool;

/* Make a pool in directory 'path', and the directory if it does not exist.
 * An existing directory must be empty, except for "records", which may be a
 * symbolic link to a file or a block device on another disk.
 *
 * 'options' is a JSON object, all members optional: "sector" (integer,
 * bytes), "hash" (string; "auto": as nbdedup_hash_auto),
 * "block-size" (integer), "compress" and "dedup" (strings): see the table of
 * properties in nbdedup(1).
 */
extern int nbdedup_pool_create (const char *path, json_t *options)
  __attribute__ ((nonnull (1)));

/* Check whether this library could open 'path' as a pool.  It reads a few
 * headers, takes no lock and starts no thread, so the caller may fork
 * afterwards.  Fails with ENOENT (no pool), EBUSY (in use by another process),
 * EINVAL (newer format) or EIO (damaged).
 */
extern int
nbdedup_pool_probe (const char *path, enum nbdedup_read_only read_only)
  __attribute__ ((nonnull (1)));

/* Run the background threads, and listen on control.sock unless the pool is
 * opened read-only.
 */
#define NBDEDUP_OPEN_SERVER 1
/* Do as nbdedup_pool_recover does, ... */
#define NBDEDUP_OPEN_RECOVER 2
/* ... with 'without_journal'. */
#define NBDEDUP_OPEN_WITHOUT_JOURNAL 4

/* Open the pool in directory 'path': take its lock, recover from a crash, and
 * start the engine's threads.  If 'settings' is NULL the defaults apply.
 * 'who' is the name of this process, such as "nbdkit" or "nbdedup create",
 * for the messages of processes that find the pool in use.
 *
 * The caller owns the result.  EBUSY: another process has the pool open.
 */
extern struct nbdedup_pool *
nbdedup_pool_open (const char *path, const struct nbdedup_settings *settings,
                   const char *who, unsigned flags)
  __attribute__ ((nonnull (1, 3), warn_unused_result));

/* Recover a pool whose pool.db is lost, from its second copy and the journal,
 * and log each step.  If that fails and 'without_journal' is set, rename the
 * journal to journal.damaged and give up what only the journal had.
 *
 * The caller owns the result: {"recovered": true, "volumes"} or, if the pool
 * cannot be recovered, {"recovered": false, "missing": the reason, "records",
 * "record_bytes", "stored_bytes": what the file "records" holds}.  NULL: the
 * function could determine neither.
 */
extern json_t *nbdedup_pool_recover (const char *path, bool without_journal)
  __attribute__ ((nonnull (1), warn_unused_result));

/* Flush everything, close and free the pool.  The caller must have closed
 * every volume (nbdedup_volume_close).  Returns -1 if not everything could be
 * made durable; it frees the pool in that case too.
 */
extern int nbdedup_pool_close (struct nbdedup_pool *pool);

/* Call 'fn' with the name of each volume and snapshot ("vol@snap"), in order,
 * without volumes of unfinished imports.
 * If 'fn' returns non-zero, stop and return its value.  'fn' must not call
 * back into the pool.
 */
extern int nbdedup_pool_list (struct nbdedup_pool *pool,
                              int (*fn) (void *opaque, const char *name,
                                         uint64_t size, bool readonly),
                              void *opaque) __attribute__ ((nonnull (1, 2)));

/* Fail with EINVAL if no volume can have this name. */
extern int nbdedup_volume_check_name (const char *name)
  __attribute__ ((nonnull (1)));

/* Is it a block size, as long as the pool's sector is not larger?  EINVAL if
 * not.
 */
extern int nbdedup_check_block_size (uint64_t bytes);

/* Could a volume's property be set to this value, whatever the pool holds?
 * EINVAL if not.
 */
extern int
nbdedup_volume_check_property (const char *property, const char *value)
  __attribute__ ((nonnull (1, 2)));

/*----------------------------------------------------------------------
 * Volumes: data
 */

struct nbdedup_volume;

#define NBDEDUP_VOLUME_READONLY 1
/* Fail with EBUSY if another client has it. */
#define NBDEDUP_VOLUME_EXCLUSIVE 2
/* The caller is the pool's owner: do not check "allow". */
#define NBDEDUP_VOLUME_ADMIN 4
/* Open it also if its map is lost: each request then fails with EIO. */
#define NBDEDUP_VOLUME_LOST 8

/* Attach to a volume, or to a snapshot "vol@snap" (always read-only).  The
 * caller counts as a client of it until nbdedup_volume_close.
 *
 * 'uid' is the peer's user id, or -1 if it is not known; 'tls_identity' is its
 * TLS identity or NULL.  EACCES: the volume's property "allow" has neither.
 */
extern struct nbdedup_volume *
nbdedup_volume_open (struct nbdedup_pool *pool, const char *name,
                     unsigned flags, int64_t uid, const char *tls_identity)
  __attribute__ ((nonnull (1, 2), warn_unused_result));
extern void nbdedup_volume_close (struct nbdedup_volume *volume);

/* Name the client, before its first request.  All connections of one client
 * have the same name; "" means that the name is not known.  The library logs a
 * warning when two clients of different names write to one volume.
 */
extern void
nbdedup_volume_set_peer (struct nbdedup_volume *volume, const char *peer)
  __attribute__ ((nonnull (1, 2)));

/* These are as they were when the volume was opened. */
extern uint64_t nbdedup_volume_size (struct nbdedup_volume *volume);
extern uint32_t nbdedup_volume_block_size (struct nbdedup_volume *volume);
extern bool nbdedup_volume_is_readonly (struct nbdedup_volume *volume);

/* All of these accept any offset and length inside the volume.  They fail with
 * EINVAL outside of it, EROFS on a read-only volume, ESHUTDOWN after a forced
 * destroy or rollback, EIO for damaged data or after a failed write has
 * stopped the pool, and ENOSPC when the pool is full.
 *
 * write: returns before the data is hashed; volatile until a flush.
 * zero:  the range reads as zeroes afterwards and takes no record.
 * trim:  the same: exactly these bytes read as zeroes.
 * flush: makes durable all writes that have returned, over any handle of this
 *        volume.
 * flush_range: the same for the blocks of a range only (FUA).
 * cache: loads the range's records into the record cache; a hint.
 */
extern int nbdedup_volume_read (struct nbdedup_volume *volume, void *buf,
                                uint32_t len, uint64_t offset);
extern int nbdedup_volume_write (struct nbdedup_volume *volume, const void *buf,
                                 uint32_t len, uint64_t offset);
extern int nbdedup_volume_zero (struct nbdedup_volume *volume, uint64_t len,
                                uint64_t offset);
extern int nbdedup_volume_trim (struct nbdedup_volume *volume, uint64_t len,
                                uint64_t offset);
extern int nbdedup_volume_flush (struct nbdedup_volume *volume);
extern int nbdedup_volume_flush_range (struct nbdedup_volume *volume,
                                       uint64_t len, uint64_t offset);
extern int nbdedup_volume_cache (struct nbdedup_volume *volume, uint64_t len,
                                 uint64_t offset);

/* Call 'fn' with the extents of the range, in order and without gaps.
 * Neighbouring extents are of different kinds, and the first and the last are
 * cut to the range.  A 'hole' reads as zeroes and takes no space.  If 'fn'
 * returns 1 the function may stop early; if it returns -1 the function fails
 * with the errno of 'fn'.
 */
extern int nbdedup_volume_extents (struct nbdedup_volume *volume, uint64_t len,
                                   uint64_t offset,
                                   int (*fn) (void *opaque, uint64_t offset,
                                              uint64_t len, bool hole),
                                   void *opaque);

/*----------------------------------------------------------------------
 * Administration: one function for everything that has a JSON form.
 *
 * lib/service/command.h describes 'command' and 'args'.  The result is a new
 * reference to an object, or NULL on failure.  nbdedup_call works on a pool
 * that this process has open.
 */
extern json_t *
nbdedup_call (struct nbdedup_pool *pool, const char *command, json_t *args)
  __attribute__ ((nonnull (1, 2), warn_unused_result));

/*----------------------------------------------------------------------
 * The client
 */

struct nbdedup_client;

/* A client that waits. */
enum nbdedup_wait_kind {
  NBDEDUP_WAIT_POOL,   /* for another process to close the pool */
  NBDEDUP_WAIT_ANSWER, /* for the server's answer */
  NBDEDUP_WAIT_TURN,   /* in the server, for another command */
};

struct nbdedup_wait {
  enum nbdedup_wait_kind kind;
  const char *why;                /* one line */
  const char *who;                /* the other's 'who'; "": not known */
  long pid;                       /* the other's; 0: not known */
  uint64_t waited_ms, longest_ms; /* longest_ms 0: no limit */
};

/* The client calls this several times a second while it waits, also in later
 * calls of nbdedup_client_*.  It returns 0 to continue, EINTR to give up, or,
 * for NBDEDUP_WAIT_POOL, EDEADLK to give up because the other process waits for
 * this one.  A wait without a limit goes on: only a command's progress callback
 * ends it.
 */
typedef int nbdedup_wait_fn (const struct nbdedup_wait *wait);

/* Open the pool in directory 'path' in this process or, if a server has it,
 * connect to the server.  If another command has the pool, wait up to 30 s for
 * it, then fail with EBUSY and a text that names it.  'who' and 'settings' are
 * those of nbdedup_pool_open.  'on_wait' may be NULL.
 *
 * With settings->read_only the client changes nothing, through a server
 * neither: commands that would fail with EROFS, and volumes are read-only.
 */
extern struct nbdedup_client *
nbdedup_client_open (const char *path, const struct nbdedup_settings *settings,
                     const char *who, nbdedup_wait_fn *on_wait)
  __attribute__ ((nonnull (1, 3), warn_unused_result));

/* Would nbdedup_client_call change the pool?  It then fails with EROFS if
 * settings->read_only was set.
 */
extern bool nbdedup_command_changes (const char *command, json_t *args);

/* This may fail: closing a pool of this process makes everything durable. */
extern int nbdedup_client_close (struct nbdedup_client *client);

/* True if a server has the pool, and does the work. */
extern bool nbdedup_client_is_served (struct nbdedup_client *client);

/* Progress of a long command: 'done' of 'total' units (total 0: not known).
 * If the callback returns non-zero the command stops with EINTR.
 */
typedef int nbdedup_progress_fn (void *opaque, uint64_t done, uint64_t total);

/* The same as nbdedup_call, in this process or in the server.  'progress' may
 * be NULL.  ESHUTDOWN: the server ended before it ran the command; the caller
 * may open another client and try again.  EIO: the server ended, and may have
 * run the command.
 */
extern json_t *
nbdedup_client_call (struct nbdedup_client *client, const char *command,
                     json_t *args, nbdedup_progress_fn *progress, void *opaque)
  __attribute__ ((nonnull (1, 2), warn_unused_result));

/* Offer 'content' for the record at 'address', which "scrub" found damaged
 * (command.h).  Returns 1 if it is the record's content: the record is then
 * rewritten, durably.  Returns 0 if it is not, and -1 on failure.
 */
extern int
nbdedup_client_repair (struct nbdedup_client *client, uint64_t address,
                       const void *content, uint32_t len)
  __attribute__ ((nonnull (1, 3)));

/* The state of the pool in directory 'path'.  This changes nothing: it asks
 * the server or, if none has the pool, opens the pool read-only ('force': with
 * NBDEDUP_READ_ONLY_FORCE).  The document is that of status.h.  Its "open" is
 * null, or an object with "by" ("server" or "command"), "who" and "pid" (null:
 * not known) and "read_only".
 *
 * If a command has the pool for longer than a moment the function does not
 * wait.  "state" is then "busy", or "warning" if the command has had the pool
 * for a day; "open" also has "since" (seconds since 1970; null: not known);
 * "space" has only the sizes of the files and the free space; all else is
 * null.
 */
extern json_t *nbdedup_status (const char *path, bool force, const char *who,
                               nbdedup_wait_fn *on_wait)
  __attribute__ ((nonnull (1, 3), warn_unused_result));

/* What the server that has the pool in directory 'path' has done for its
 * clients, and what waits in it: the document of counters.h, a new reference.
 * Two of them and their difference give rates; if "pid" differs, or "uptime_ns"
 * is less, another server came in between.  It waits for no command.
 *
 * ENOTCONN: no server has the pool open (or one that does not listen).
 */
extern json_t *
nbdedup_counters (const char *path, const char *who, nbdedup_wait_fn *on_wait)
  __attribute__ ((nonnull (1, 2), warn_unused_result));

/* The minimum of "memory" of the command "drift". */
#define NBDEDUP_DRIFT_MEMORY_MIN (UINT64_C (1) << 20)

/* The data of one volume through a client: the same calls as above. */
struct nbdedup_handle;

extern struct nbdedup_handle *
nbdedup_client_volume_open (struct nbdedup_client *client, const char *name,
                            unsigned flags)
  __attribute__ ((nonnull (1, 2), warn_unused_result));
extern void nbdedup_handle_close (struct nbdedup_handle *handle);
extern uint64_t nbdedup_handle_size (struct nbdedup_handle *handle);
extern uint32_t nbdedup_handle_block_size (struct nbdedup_handle *handle);
extern int nbdedup_handle_read (struct nbdedup_handle *handle, void *buf,
                                uint32_t len, uint64_t offset);
extern int nbdedup_handle_write (struct nbdedup_handle *handle, const void *buf,
                                 uint32_t len, uint64_t offset);
extern int nbdedup_handle_flush (struct nbdedup_handle *handle);
extern int nbdedup_handle_extents (struct nbdedup_handle *handle, uint64_t len,
                                   uint64_t offset,
                                   int (*fn) (void *opaque, uint64_t offset,
                                              uint64_t len, bool hole),
                                   void *opaque);

/*----------------------------------------------------------------------
 * Drift with the blocks behind its figures: golden images and their clones at
 * one moment, with all writes answered before nbdedup_client_freeze.  The pool
 * keeps serving clients.  EBUSY: clients needed the space of blocks that they
 * have overwritten since, so the moment is lost, and every call except
 * nbdedup_frozen_close fails.
 *
 * One thread at a time.  Close it before the client.
 */

struct nbdedup_frozen;

/* 'name' and 'memory' are the arguments of "drift" (command.h); NULL and 0: all
 * golden images, the default.
 */
extern struct nbdedup_frozen *
nbdedup_client_freeze (struct nbdedup_client *client, const char *name,
                       uint64_t memory)
  __attribute__ ((nonnull (1), warn_unused_result));
extern void nbdedup_frozen_close (struct nbdedup_frozen *frozen);

/* The document of the next golden image, the same as that of "drift" (a new
 * reference); an empty object: there are no more.  The other calls refer to its
 * clones; the first is number 0.
 */
extern json_t *nbdedup_frozen_next (struct nbdedup_frozen *frozen,
                                    nbdedup_progress_fn *progress, void *opaque)
  __attribute__ ((nonnull (1), warn_unused_result));

enum nbdedup_class {
  NBDEDUP_GOLDEN_SAME = 0,
  NBDEDUP_GOLDEN_MOVED = 1,
  NBDEDUP_SIBLING = 2,
  NBDEDUP_UNIQUE = 3,
  NBDEDUP_ZERO = 4, /* a hole that the clone does not inherit */
};

/* In place of a clone's number: the golden image, or what stands for it if it
 * was destroyed.
 */
#define NBDEDUP_FROZEN_GOLDEN UINT64_MAX

/* Store the clone's size in bytes, and call 'fn' with each run of blocks of one
 * class that the clone has, ascending.  A block in no run is the golden image's
 * at the same place (zero behind its end), or is lost: reading it fails.
 *
 * Of the golden image itself the runs are its blocks that are not zero, of
 * class NBDEDUP_GOLDEN_SAME.
 *
 * Ask for the clones in order, once each, and for the golden image, if at all,
 * before them.  If 'fn' returns -1 the function fails with its errno.
 */
extern int
nbdedup_frozen_runs (struct nbdedup_frozen *frozen, uint64_t clone,
                     uint64_t *size,
                     int (*fn) (void *opaque, uint64_t block, uint64_t nr,
                                enum nbdedup_class class),
                     void *opaque) __attribute__ ((nonnull (1, 3, 4)));

/* Read from a clone, or from the golden image. */
extern int nbdedup_frozen_read (struct nbdedup_frozen *frozen, uint64_t clone,
                                void *buf, uint32_t len, uint64_t offset)
  __attribute__ ((nonnull (1, 3)));

/* What following advice would free, for "drift --advise".
 *
 * zero: these bytes of clone 'clone' would read as zeroes, as part of set 'set'
 * (a number below NBDEDUP_FROZEN_SETS).  Those of one set come in ascending
 * order of clones and bytes; EINVAL.
 *
 * advise: after all sets, once for a document.  An object (a new reference):
 *
 *   "sets"        an object for each set: "freed_bytes" if all of its bytes
 *                 are zeroed; "clones": the same for each clone alone.  They
 *                 are negative if more shared blocks must be copied.
 *   "own_blocks"  that clones have above the golden image, of all of them
 *   "rebase"      the best other snapshot to rebase all clones onto, or null
 *   "promote"     the best clone, or snapshot of one, for that, or null
 *   "rewrite"     what "rewrite" would save: "missed_bytes" by joining equal
 *                 records (--dedup), "compress_bytes" by today's compression;
 *                 "missed" and "compress": the volumes to rewrite for that
 *
 * "rebase" and "promote" have "target", its name; "is_snapshot"; "snapshot",
 * the target, or a free name for a snapshot of it; "own_blocks" of all clones
 * then; "rebases", the names of the volumes to rebase;
 * "destroys", the snapshot or volume that is of no use any more, if there is
 * one; and "freed_bytes", what all of that would free.
 */
#define NBDEDUP_FROZEN_SETS 8

struct nbdedup_range {
  uint64_t offset, len;
};

extern int nbdedup_frozen_zero (struct nbdedup_frozen *frozen, unsigned set,
                                uint64_t clone,
                                const struct nbdedup_range *ranges, size_t nr)
  __attribute__ ((nonnull (1)));
extern json_t *
nbdedup_frozen_advise (struct nbdedup_frozen *frozen,
                       nbdedup_progress_fn *progress, void *opaque)
  __attribute__ ((nonnull (1), warn_unused_result));

/* Parse a size in bytes, such as "4096", "16K", "1.5g" or "10GiB"; K, M, G and
 * T are powers of 1024.  EINVAL: not a size, or too large.
 */
extern int nbdedup_parse_size (const char *s, uint64_t *bytes)
  __attribute__ ((nonnull (1, 2)));

/* Parse a time in seconds: a whole number with s, m, h, d or w, such as "90d".
 * EINVAL: not one, or more than ten years.
 */
extern int nbdedup_parse_age (const char *s, uint64_t *seconds)
  __attribute__ ((nonnull (1, 2)));

/* A JSON string for any text, such as a path, or a message that contains one:
 * U+FFFD replaces each byte that belongs to no character of UTF-8.  NULL: no
 * memory.
 */
extern json_t *nbdedup_json_text (const char *text)
  __attribute__ ((nonnull (1), warn_unused_result));

/*----------------------------------------------------------------------
 * Estimates: the space that data would take in a pool
 */

struct nbdedup_estimate;

struct nbdedup_estimate_settings {
  const uint32_t *block_sizes; /* in any order */
  size_t nr_block_sizes;
  uint32_t sector_bytes;
  const char *compress;  /* a value of the property */
  uint64_t memory_bytes; /* for the sets of distinct contents */
  bool exact;            /* compress everything, never sample */
  /* The size of the sample: the error falls as its square root grows.  0: 1300,
   * an error of less than 2 %.
   */
  uint64_t sample;
  /* A directory for a temporary file, if classes are wanted; or NULL.  Not
   * owned.
   */
  const char *compare_directory;
};

#define NBDEDUP_ESTIMATE_MEMORY_DEFAULT (UINT64_C (1) << 30)
#define NBDEDUP_ESTIMATE_MEMORY_MIN (UINT64_C (256) << 10)

/* EINVAL: a setting that no pool could have, or too little memory. */
extern struct nbdedup_estimate *
nbdedup_estimate_new (const struct nbdedup_estimate_settings *settings)
  __attribute__ ((nonnull (1), warn_unused_result));
extern void nbdedup_estimate_free (struct nbdedup_estimate *estimate);

/* For classes: begin an image.  The first one is the golden image.  'time' is
 * that of the sample that the image belongs to, in seconds since the epoch.
 */
extern int nbdedup_estimate_begin (struct nbdedup_estimate *estimate,
                                   const char *name, int64_t time)
  __attribute__ ((nonnull (1, 2)));

/* Add data of an image, from 'offset' in it on: a multiple of the largest block
 * size.  The data ends at such a multiple, too, or at the image's end.  Any
 * number of threads may add data of one image at once.  Fails with ENOMEM, with
 * ENOSPC if 'exact' is set and the contents do not fit into the memory, or
 * because of the temporary file.
 */
extern int nbdedup_estimate_add (struct nbdedup_estimate *estimate,
                                 const void *buf, size_t len, uint64_t offset)
  __attribute__ ((nonnull (1)));

/* The same for a clone: 'below' is what the golden image, whose data was all
 * added, has there (zeroes behind its end).  A block that is equal takes
 * nothing, in no block size: the clone inherits it.
 */
extern int
nbdedup_estimate_add_clone (struct nbdedup_estimate *estimate, const void *buf,
                            const void *below, size_t len, uint64_t offset)
  __attribute__ ((nonnull (1)));

/* An image of this size is complete.  Blocks that the caller has not added
 * count as zeroes.
 */
extern int nbdedup_estimate_image (struct nbdedup_estimate *estimate,
                                   uint64_t size) __attribute__ ((nonnull (1)));

/* The document of "estimate --json" (see nbdedup-estimate(1)), after all data
 * was added.  NULL: ENOMEM.
 */
extern json_t *nbdedup_estimate_result (struct nbdedup_estimate *estimate)
  __attribute__ ((nonnull (1), warn_unused_result));

/* Add to each object of that document the classes of the images, as "samples":
 * documents of "drift --json", one for each time, the oldest first.  Their
 * stored bytes are estimates.  At least two images were added.  Call it last.
 * The function calls 'look' now and then, and fails if that returns -1.
 */
extern int
nbdedup_estimate_compare (struct nbdedup_estimate *estimate, json_t *result,
                          int (*look) (void *opaque), void *opaque)
  __attribute__ ((nonnull (1, 2)));

/*----------------------------------------------------------------------
 * Finding the content of damaged records in an image
 */

struct nbdedup_finder;

/* 'wanted' is that of the result of "scrub" (command.h). */
extern struct nbdedup_finder *nbdedup_finder_new (const json_t *wanted)
  __attribute__ ((warn_unused_result));
extern void nbdedup_finder_free (struct nbdedup_finder *finder);

/* The size of the largest block to find; 0: there is nothing to find. */
extern uint32_t nbdedup_finder_block_size (struct nbdedup_finder *finder)
  __attribute__ ((nonnull (1)));

/* Search data of an image.  It must begin at a multiple of that size in its
 * image, and end at one or at the image's end.  Calls 'fn' once for each wanted
 * record, when its content is found.  If 'fn' returns -1 the function fails.
 */
extern int
nbdedup_finder_look (struct nbdedup_finder *finder, const void *buf, size_t len,
                     int (*fn) (void *opaque, uint64_t address,
                                const void *content, uint32_t len),
                     void *opaque) __attribute__ ((nonnull (1, 2, 4)));

/*----------------------------------------------------------------------
 * Hashes and codecs, for "bench" and for help texts
 */

/* Names, NULL-terminated, in the order to list them. */
extern const char *const *nbdedup_hash_names (void);
extern const char *const *nbdedup_codec_names (void);

/* The hash that "auto" means for blocks of this size (0: the default) on this
 * CPU, and the reason, for a message.  It takes some milliseconds.  NULL: no
 * memory, or no hash works.
 */
extern const char *nbdedup_hash_auto (uint32_t block_size, char *why,
                                      size_t len) __attribute__ ((nonnull (2)));

/* Time a hash ("sha256") or a codec ("lz4") on 'len' bytes.  Of each 4 KiB of
 * them the first 'random_percent' (0 to 100) are random, the others are zeroes.
 * The results are nanoseconds per call, the median of several runs, for
 * compression or hashing, and for decompression (0 for a hash).
 */
extern int
nbdedup_bench (const char *name, uint32_t len, unsigned random_percent,
               double *ns, double *ns_decompress)
  __attribute__ ((nonnull (1, 4, 5)));

#endif /* NBDEDUP_H */

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
 * Errors: functions that return int return 0 (or a count, where said) on
 * success.  On failure they return -1 (or NULL), set errno to a value an
 * NBD client understands, and leave one line of text in nbdedup_error ().
 * No function exits or prints; what happens in the background goes to the
 * program's log function (nbdedup_set_log).
 *
 * Units: offsets, lengths and sizes are bytes unless the name says
 * otherwise.
 *
 * Threads: a pool, a volume and a client may be used from any number of
 * threads at once; only their own close must be the last call on them.
 * nbdedup_error is per thread.
 *
 * Fork: a pool must be opened in the process that uses it: neither SQLite
 * nor the pool's threads survive a fork.  nbdedup_pool_probe may be called
 * before one.
 */

#ifndef NBDEDUP_H
#define NBDEDUP_H

#include <stdbool.h>
#include <stdint.h>
#include <stddef.h>
#include <stdio.h>

#include <jansson.h>

/* The reason of the last failure in this thread: one line, no newline, no
 * "nbdedup:" in front.  Never NULL.  Valid until the next call that fails.
 */
extern const char *nbdedup_error (void);

/*----------------------------------------------------------------------
 * The log: events that no call of the program reports, e.g. what recovery
 * found, damage, a file system that is nearly full.
 */

enum nbdedup_log_level {
  NBDEDUP_LOG_INFO,             /* an event of normal life */
  NBDEDUP_LOG_WARNING,          /* the administrator should act soon */
  NBDEDUP_LOG_ERROR,            /* data or service is lost */
};

/* 'line' has no newline; it is lent for the call.  The function may run in
 * any thread, several at once, and must not call the library.
 */
typedef void nbdedup_log_fn (enum nbdedup_log_level level, const char *line);

/* NULL (as at the start of the process): events are dropped.  Before the
 * first pool is opened.
 */
extern void nbdedup_set_log (nbdedup_log_fn *fn);

/*----------------------------------------------------------------------
 * Settings of an open pool: the keys of the plugin.
 */

enum nbdedup_primarycache {
  NBDEDUP_CACHE_ALL = 0,        /* cache metadata and decompressed records */
  NBDEDUP_CACHE_METADATA,       /* no record cache, no page cache */
  NBDEDUP_CACHE_NONE,           /* also no metadata beyond the running txg */
};

/* A pool can be opened without a write to any file of it, whatever it lies
 * on.  What the journal holds beyond pool.db is in memory then, and all
 * volumes are read-only: commands that change something fail with EROFS.
 * Several processes may do so at once, but not while one writes.  Damage
 * costs what it hit and nothing else; the log says what that is.
 */
enum nbdedup_read_only {
  NBDEDUP_READ_ONLY_OFF = 0,
  /* Refused (EIO) if data that was flushed is, or may be, missing from it. */
  NBDEDUP_READ_ONLY_ON,
  /* Then it is as it was before: what is read may be old. */
  NBDEDUP_READ_ONLY_FORCE,
};

struct nbdedup_settings {
  uint64_t ddt_cache_bytes;     /* budget of all metadata in memory */
  uint64_t record_cache_bytes;  /* decompressed records */
  uint64_t dirty_max_bytes;     /* answered writes not yet hashed */
  uint64_t commit_interval_ms;  /* longest time a write stays volatile */
  uint64_t drift_interval_s;    /* 0: only when asked */
  enum nbdedup_primarycache primarycache;
  unsigned nr_workers;          /* hashing threads; 0: one per CPU, max 16 */
  enum nbdedup_read_only read_only;
  /* "check" with "repair" is about to be called: pointers and counts that
   * cannot be, and that it repairs, do not keep the pool closed.
   */
  bool repair;
};

#define NBDEDUP_DDT_CACHE_DEFAULT       (UINT64_C (256) << 20)
#define NBDEDUP_RECORD_CACHE_DEFAULT    (UINT64_C (64) << 20)
#define NBDEDUP_DIRTY_MAX_DEFAULT       (UINT64_C (64) << 20)
#define NBDEDUP_COMMIT_INTERVAL_DEFAULT 5       /* seconds */
#define NBDEDUP_DRIFT_INTERVAL_DEFAULT  3600    /* seconds */

/* The least that works: below these nbdedup_pool_open returns EINVAL. */
#define NBDEDUP_DDT_CACHE_MIN           (UINT64_C (8) << 20)
#define NBDEDUP_DIRTY_MAX_MIN           (UINT64_C (4) << 20)

/* Fill in the defaults. */
extern void nbdedup_settings_init (struct nbdedup_settings *settings)
  __attribute__ ((nonnull (1)));

/*----------------------------------------------------------------------
 * Pools
 */

struct nbdedup_pool;

/* Make a pool in directory 'path', which is created if needed; it must be
 * empty otherwise ("records" alone may exist already, as a symbolic link
 * to a file or a block device on another disk: it is used).
 *
 * 'options' is a JSON object, all members optional: "sector" (integer,
 * bytes), "hash" (string; "auto" takes the fastest on this CPU),
 * "block-size" (integer), "compress", "dedup" (strings): see the table of
 * properties in nbdedup(1).
 */
extern int nbdedup_pool_create (const char *path, json_t *options)
  __attribute__ ((nonnull (1)));

/* Is 'path' a pool that this library could open like that?  Reads a few
 * headers and takes no lock; starts nothing, so it may be called before a
 * fork.  Fails with ENOENT (no pool), EBUSY (in use by another process),
 * EINVAL (newer format) or EIO (damaged).
 */
extern int nbdedup_pool_probe (const char *path,
                               enum nbdedup_read_only read_only)
  __attribute__ ((nonnull (1)));

#define NBDEDUP_OPEN_SERVER 1   /* listen on control.sock (unless it is
                                 * read-only); run in background */
#define NBDEDUP_OPEN_RECOVER 2  /* try what is not certain: see below */
#define NBDEDUP_OPEN_WITHOUT_JOURNAL 4  /* begin a new one: see below */

/* Open the pool in directory 'path': take its lock, recover what a crash
 * left, start the engine's threads.  The last two flags are those of
 * nbdedup_pool_recover.  'settings' may be NULL for defaults.
 * 'who' names this process for others who find the pool in use, e.g.
 * "nbdkit" or "nbdedup create".
 *
 * The caller owns the result.  EBUSY: another process has it open.
 */
extern struct nbdedup_pool *
nbdedup_pool_open (const char *path, const struct nbdedup_settings *settings,
                   const char *who, unsigned flags)
  __attribute__ ((nonnull (1, 3), warn_unused_result));

/* Bring back a pool whose pool.db is lost, from its second copy and the
 * journal; what is done is told to the log.  'without_journal': if that fails,
 * give up what only the journal has, which is renamed journal.damaged.  The
 * caller owns the result:
 * {"recovered": true, "volumes"}; or, if that was not possible, {"recovered":
 * false, "missing": why, "records", "record_bytes", "stored_bytes": what the
 * file "records" names}.  NULL: neither could be found out.
 */
extern json_t *nbdedup_pool_recover (const char *path, bool without_journal)
  __attribute__ ((nonnull (1), warn_unused_result));

/* Flush everything, close and free.  Every volume must have been closed
 * (nbdedup_volume_close).  Returns -1 if not everything could be made
 * durable; the pool is freed all the same.
 */
extern int nbdedup_pool_close (struct nbdedup_pool *pool);

/* Call 'fn' for the name of each volume and snapshot ("vol@snap"), sorted.
 * Stops early when it returns non-zero, and returns that.  fn must not
 * call back into the pool.
 */
extern int nbdedup_pool_list (struct nbdedup_pool *pool,
                              int (*fn) (void *opaque, const char *name,
                                         uint64_t size, bool readonly),
                              void *opaque)
  __attribute__ ((nonnull (1, 2)));

/* Could a volume have this name?  EINVAL if not. */
extern int nbdedup_volume_check_name (const char *name)
  __attribute__ ((nonnull (1)));

/*----------------------------------------------------------------------
 * Volumes: data
 */

struct nbdedup_volume;

#define NBDEDUP_VOLUME_READONLY  1
#define NBDEDUP_VOLUME_EXCLUSIVE 2      /* EBUSY if another client has it */
#define NBDEDUP_VOLUME_ADMIN     4      /* for the pool's owner: "allow" is
                                         * for NBD clients */
#define NBDEDUP_VOLUME_LOST      8      /* also if its map is lost: EIO comes
                                         * with each request instead */

/* Attach to a volume, or to a snapshot "vol@snap" (always read-only).
 * Counts as a client of it until nbdedup_volume_close.
 *
 * 'uid' is the peer's user id or -1 if not known, 'tls_identity' its TLS
 * identity or NULL: the volume's "allow" property is checked against
 * them (EACCES).
 */
extern struct nbdedup_volume *
nbdedup_volume_open (struct nbdedup_pool *pool, const char *name,
                     unsigned flags, int64_t uid, const char *tls_identity)
  __attribute__ ((nonnull (1, 2), warn_unused_result));
extern void nbdedup_volume_close (struct nbdedup_volume *volume);

/* Before its first request: a name for the client, which all its connections
 * have and no other has, or "".  The log hears of a volume to which two
 * clients write at the same time.
 */
extern void nbdedup_volume_set_peer (struct nbdedup_volume *volume,
                                     const char *peer)
  __attribute__ ((nonnull (1, 2)));

/* As they were when the volume was opened. */
extern uint64_t nbdedup_volume_size (struct nbdedup_volume *volume);
extern uint32_t nbdedup_volume_block_size (struct nbdedup_volume *volume);
extern bool nbdedup_volume_is_readonly (struct nbdedup_volume *volume);

/* All of these take any offset and length inside the volume, and return
 * EINVAL outside of it, EROFS on a read-only volume, ESHUTDOWN after a
 * forced destroy or rollback, EIO for damaged data or a pool that stopped
 * after a failed write, ENOSPC when the pool is full.
 *
 * write: answered before it is hashed; volatile until nbdedup_volume_flush.
 * zero:  the range reads as zeroes afterwards and takes no record.
 * trim:  the same: trimmed bytes read as zeroes, exactly the bytes named.
 * flush: all that was answered on this volume, over any handle, is durable.
 * flush_range: the same for the blocks of a range only (FUA).
 * cache: bring the range's records into the record cache; a hint.
 */
extern int nbdedup_volume_read (struct nbdedup_volume *volume,
                                void *buf, uint32_t len, uint64_t offset);
extern int nbdedup_volume_write (struct nbdedup_volume *volume,
                                 const void *buf, uint32_t len,
                                 uint64_t offset);
extern int nbdedup_volume_zero (struct nbdedup_volume *volume,
                                uint64_t len, uint64_t offset);
extern int nbdedup_volume_trim (struct nbdedup_volume *volume,
                                uint64_t len, uint64_t offset);
extern int nbdedup_volume_flush (struct nbdedup_volume *volume);
extern int nbdedup_volume_flush_range (struct nbdedup_volume *volume,
                                       uint64_t len, uint64_t offset);
extern int nbdedup_volume_cache (struct nbdedup_volume *volume,
                                 uint64_t len, uint64_t offset);

/* Call 'fn' with the extents of the range, in order, without gaps,
 * neighbours of one kind joined; 'hole' extents read as zeroes and take
 * no space.  May stop early once 'fn' returns 1 (enough); -1 is an error
 * (errno kept).  The first and last extent are cut to the range.
 */
extern int nbdedup_volume_extents (struct nbdedup_volume *volume,
                                   uint64_t len, uint64_t offset,
                                   int (*fn) (void *opaque, uint64_t offset,
                                              uint64_t len, bool hole),
                                   void *opaque);

/*----------------------------------------------------------------------
 * Administration: one function for everything that has a JSON form.
 *
 * 'command' and 'args' are described in lib/service/command.h; the result is a
 * new reference (an object, at least {}), NULL on failure.  nbdedup_call
 * works on a pool that this process has open.
 */
extern json_t *nbdedup_call (struct nbdedup_pool *pool,
                             const char *command, json_t *args)
  __attribute__ ((nonnull (1, 2), warn_unused_result));

/*----------------------------------------------------------------------
 * The client
 */

struct nbdedup_client;

/* A client waits: why (one line), and for which process. */
struct nbdedup_wait {
  const char *why;
  const char *who;              /* its name, as it told it; "": not known */
  long pid;                     /* 0: not known */
  uint64_t waited_ms, longest_ms;
};

/* Asked several times a second while a client waits: 0 to go on.  EINTR: do
 * not.  EDEADLK: there is no use in it, as that process waits for this one.
 */
typedef int nbdedup_wait_fn (const struct nbdedup_wait *wait);

/* Get at the pool in directory 'path': open it here, or, when a server has
 * it, connect to the server; wait up to 30 s for another *command* to
 * finish, then fail with EBUSY and say which.  'who' as in
 * nbdedup_pool_open, and 'settings' for a pool opened here (or NULL).
 * 'on_wait' may be NULL.
 *
 * With settings->read_only the client changes nothing, in a server neither:
 * nbdedup_client_call of a command that would is EROFS, and volumes are
 * opened read-only.
 */
extern struct nbdedup_client *
nbdedup_client_open (const char *path, const struct nbdedup_settings *settings,
                     const char *who, nbdedup_wait_fn *on_wait)
  __attribute__ ((nonnull (1, 3), warn_unused_result));

/* Closing a pool opened here makes everything durable, hence may fail. */
extern int nbdedup_client_close (struct nbdedup_client *client);

/* Does a server do the work? */
extern bool nbdedup_client_is_served (struct nbdedup_client *client);

/* Progress of a long command: 'done' of 'total' units (total 0: unknown).
 * A callback that returns non-zero asks the command to stop (EINTR).
 */
typedef int nbdedup_progress_fn (void *opaque, uint64_t done, uint64_t total);

/* As nbdedup_call, here or in the server.  'progress' may be NULL.
 * ESHUTDOWN: the server went away before it began, so that another client
 * may be opened and the call repeated; EIO if it may have done it.
 */
extern json_t *nbdedup_client_call (struct nbdedup_client *client,
                                    const char *command, json_t *args,
                                    nbdedup_progress_fn *progress,
                                    void *opaque)
  __attribute__ ((nonnull (1, 2), warn_unused_result));

/* The record at 'address', which "scrub" found damaged, may have this content
 * (command.h).  1: it has, and is written again, durably; 0: not so; -1.
 */
extern int nbdedup_client_repair (struct nbdedup_client *client,
                                  uint64_t address, const void *content,
                                  uint32_t len)
  __attribute__ ((nonnull (1, 3)));

/* How is the pool in directory 'path'?  Changes nothing, whether a server has
 * it or not: if not, it is opened read-only.  The document is status.h's,
 * with "open": null, or an object with "by" ("server", "command"), "who" and
 * "pid" (null: not known) and "read_only".  'force': as
 * NBDEDUP_READ_ONLY_FORCE.
 *
 * A command that has the pool for longer than a moment is not waited for:
 * "state" is "busy" then, or "warning" if it has had the pool for a day;
 * "open" has "since", too (seconds since 1970, null: not known), "space" only
 * the sizes of files and what is free, and what else is not known is null.
 */
extern json_t *nbdedup_status (const char *path, bool force, const char *who,
                               nbdedup_wait_fn *on_wait)
  __attribute__ ((nonnull (1, 3), warn_unused_result));

/* The least "memory" that the engine's drift works with. */
#define NBDEDUP_DRIFT_MEMORY_MIN        (UINT64_C (1) << 20)

/* Data of one volume through a client: the same calls as above. */
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
extern int nbdedup_handle_write (struct nbdedup_handle *handle,
                                 const void *buf, uint32_t len,
                                 uint64_t offset);
extern int nbdedup_handle_zero (struct nbdedup_handle *handle, uint64_t len,
                                uint64_t offset);
extern int nbdedup_handle_flush (struct nbdedup_handle *handle);
extern int nbdedup_handle_extents (struct nbdedup_handle *handle,
                                   uint64_t len, uint64_t offset,
                                   int (*fn) (void *opaque, uint64_t offset,
                                              uint64_t len, bool hole),
                                   void *opaque);

/* "4096", "16K", "1g": bytes; K, M, G and T are powers of 1024.  EINVAL:
 * not a size, or too large.
 */
extern int nbdedup_parse_size (const char *s, uint64_t *bytes)
  __attribute__ ((nonnull (1, 2)));

/*----------------------------------------------------------------------
 * Estimates: what a pool would make of data that is not in one
 */

struct nbdedup_estimate;

struct nbdedup_estimate_settings {
  const uint32_t *block_sizes;  /* in any order */
  size_t nr_block_sizes;
  uint32_t sector_bytes;
  const char *compress;         /* as the property */
  uint64_t memory_bytes;        /* for the sets of contents */
  bool exact;                   /* compress everything, never sample */
};

#define NBDEDUP_ESTIMATE_MEMORY_DEFAULT (UINT64_C (1) << 30)
#define NBDEDUP_ESTIMATE_MEMORY_MIN     (UINT64_C (256) << 10)

/* EINVAL: a setting that no pool could have, or too little memory. */
extern struct nbdedup_estimate *
nbdedup_estimate_new (const struct nbdedup_estimate_settings *settings)
  __attribute__ ((nonnull (1), warn_unused_result));
extern void nbdedup_estimate_free (struct nbdedup_estimate *estimate);

/* There is an image of this size: its blocks count, those that are never
 * added as zeroes.
 */
extern void nbdedup_estimate_image (struct nbdedup_estimate *estimate,
                                    uint64_t size)
  __attribute__ ((nonnull (1)));

/* Data of an image.  It begins at a multiple of the largest block size in
 * its image, and ends at one or at the image's end.  Fails with ENOMEM, or
 * with ENOSPC: 'exact', and not all contents fit into the memory.
 */
extern int nbdedup_estimate_add (struct nbdedup_estimate *estimate,
                                 const void *buf, size_t len)
  __attribute__ ((nonnull (1)));

/* After everything was added: the document of "estimate --json" (see
 * nbdedup-estimate(1)).  NULL: ENOMEM.
 */
extern json_t *nbdedup_estimate_result (struct nbdedup_estimate *estimate)
  __attribute__ ((nonnull (1), warn_unused_result));

/*----------------------------------------------------------------------
 * Finding the content of damaged records in an image
 */

struct nbdedup_finder;

/* 'wanted' as "scrub" tells it (command.h). */
extern struct nbdedup_finder *nbdedup_finder_new (const json_t *wanted)
  __attribute__ ((warn_unused_result));
extern void nbdedup_finder_free (struct nbdedup_finder *finder);

/* The largest block that is looked for; 0: nothing is. */
extern uint32_t nbdedup_finder_block_size (struct nbdedup_finder *finder)
  __attribute__ ((nonnull (1)));

/* Data of an image: it begins at a multiple of that size in its image, and
 * ends at one or at the image's end.  Calls 'fn' for each wanted record whose
 * content is there, the first time; it returns 0, or -1 to fail.
 */
extern int nbdedup_finder_look (struct nbdedup_finder *finder,
                                const void *buf, size_t len,
                                int (*fn) (void *opaque, uint64_t address,
                                           const void *content,
                                           uint32_t len),
                                void *opaque)
  __attribute__ ((nonnull (1, 2, 4)));

/*----------------------------------------------------------------------
 * Hashes and codecs, for "bench" and for help texts
 */

/* Names, NULL-terminated, in the order to list them. */
extern const char *const *nbdedup_hash_names (void);
extern const char *const *nbdedup_codec_names (void);

/* Time one hash ("sha256") or codec ("lz4") on 'len' bytes of zero or
 * random data: nanoseconds per call, median of several runs, for
 * compression (or hashing) and decompression (0 for a hash).
 */
extern int nbdedup_bench (const char *name, uint32_t len, bool random_data,
                          double *ns, double *ns_decompress)
  __attribute__ ((nonnull (1, 4, 5)));

#endif /* NBDEDUP_H */

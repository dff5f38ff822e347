/* SPDX-License-Identifier: BSD-3-Clause */

/* Loss of power, made from kill -9.
 *
 * powercut.so, preloaded into all programs that work on a pool, writes to
 * the file $POWERCUT_LOG what each change to a file below $POWERCUT_DIR is
 * about to overwrite, which names it makes, moves or removes there, and
 * what was synced.  A file whose name goes keeps a link in the directory
 * $POWERCUT_LOG.d until the power is cut.  After all of them were killed,
 * powercut_undo takes back what no sync covered, as a disk without a
 * battery may do:
 *
 *   content  for each sector all of the writes, or none, or those after a
 *            random moment; of a truncation all or nothing; for some files
 *            also their growth.  fsync and fdatasync of the file cover it,
 *            with its size.
 *
 *   names    of what was made, renamed and removed in a directory all, or
 *            what came after a random moment, or each by itself.  A sync
 *            of that directory covers it, and nothing else does: not the
 *            sync of a file that is new there, as POSIX has it.
 *
 * One log goes on through all processes until the power is cut, so what a
 * command that ended well has not synced is lost, too.
 *
 * Not recorded: modes and owners of files, and sockets.
 */

#ifndef NBDEDUP_POWERCUT_UNDO_H
#define NBDEDUP_POWERCUT_UNDO_H

#include <stdint.h>

#include "rigs/testutil.h"

#define POWERCUT_MAGIC UINT32_C (0x54554357)
#define POWERCUT_PATH_MAX 200

/* The log begins with this; a process maps it, and takes a lock on the file
 * for each change.  What stands behind 'end' was cut off.
 */
struct powercut_header {
  uint64_t end;
  uint64_t seq;                 /* of the last entry */
  uint64_t cut_at;              /* a process that makes this one, or a later
                                 * one, is killed; 0: none is */
  uint64_t names_left;          /* the same, counting names and the syncs of
                                 * directories; 0: not that */
};

enum powercut_kind {
  POWERCUT_WRITE = 1,           /* 'len' old bytes follow */
  POWERCUT_TRUNCATE = 2,        /* the file was longer: old bytes follow */
  POWERCUT_SYNC = 3,            /* entries up to 'offset' are durable */
  POWERCUT_SYNC_DIR = 4,        /* names in directory 'path', up to 'offset' */
  POWERCUT_CREATE = 5,          /* 'path', a file or the directory itself */
  POWERCUT_UNLINK = 6,
  POWERCUT_RENAME = 7,          /* to the path that follows, 'len' bytes */
};

struct powercut_entry {
  uint32_t magic;
  uint32_t kind;
  uint64_t seq;
  uint64_t ino;                 /* of the file that it is about */
  uint64_t replaced;            /* RENAME: the file that had the new name */
  uint64_t offset, len;
  uint64_t size;                /* of the file, before; SYNC: when it began */
  char path[POWERCUT_PATH_MAX];
};

/* For a program that powercut.c is linked with: record from now on what this
 * process does; no longer.  Both strings are borrowed until then; 'dir' is as
 * realpath has it.  A child of fork begins by itself.
 */
extern void powercut_begin (const char *log, const char *dir);
extern void powercut_end (void);

/* Kill whoever makes the 'nr'th entry from now on, or a later one.
 * 'names_only' counts names and the syncs of directories: they are few among
 * the others.  Holds until the power is cut.
 */
extern void powercut_after (const char *log, uint64_t nr, bool names_only);

/* How many entries were made since the power was cut. */
extern uint64_t powercut_changes (const char *log);

/* Take back what was not synced.  'dir' is $POWERCUT_DIR.  The log is empty
 * then.
 */
extern void powercut_undo (const char *log, const char *dir, struct rng *rng);

/* Take back everything, synced or not, down to the state at the beginning of
 * the log: if that is not what the caller has a copy of, the recorder has
 * missed a call.
 */
extern void powercut_undo_all (const char *log, const char *dir);

#endif /* NBDEDUP_POWERCUT_UNDO_H */

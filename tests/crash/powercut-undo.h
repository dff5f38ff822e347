/* SPDX-License-Identifier: BSD-3-Clause */

/* Loss of power, made from kill -9.
 *
 * powercut.so, preloaded into all programs that work on a pool, writes to
 * the file $POWERCUT_LOG what each change to a file below $POWERCUT_DIR is
 * about to overwrite, which names it makes, moves or removes there, and
 * what was synced.  A file whose name is removed keeps a link in the directory
 * $POWERCUT_LOG.d until the power is cut.  When all programs are killed,
 * powercut_undo takes back what no sync covered, as a disk without a
 * battery may do:
 *
 *   content  for each sector all of the writes, or none, or those after a
 *            random moment; of a truncation all or nothing; for some files
 *            also their growth.  fsync and fdatasync of the file cover its
 *            content and its size.
 *
 *   names    of the names made, renamed and removed in a directory all, or
 *            those after a random moment, or each by itself.  Only a sync of
 *            the directory covers them: as POSIX says, the sync of a new file
 *            does not cover its name.
 *
 * All processes share one log until the power is cut, so what a successful
 * command has not synced is lost, too.
 *
 * Not recorded: modes and owners of files, and sockets.
 */

#ifndef NBDEDUP_POWERCUT_UNDO_H
#define NBDEDUP_POWERCUT_UNDO_H

#include <stdint.h>

#include "rigs/testutil.h"

#define POWERCUT_MAGIC UINT32_C (0x54554357)
#define POWERCUT_PATH_MAX 200

/* The log begins with this.  A process maps it, and locks the file for each
 * change.  Bytes after 'end' are an incomplete entry.
 */
struct powercut_header {
  uint64_t end;
  uint64_t seq;        /* of the last entry */
  uint64_t cut_at;     /* a process that makes this entry, or a later
                                 * one, is killed; 0: none */
  uint64_t names_left; /* the same, but counts down names and syncs of
                                 * directories; 0: does not */
};

enum powercut_kind {
  POWERCUT_WRITE = 1,    /* 'len' old bytes follow */
  POWERCUT_TRUNCATE = 2, /* the file was longer: old bytes follow */
  POWERCUT_SYNC = 3,     /* entries up to 'offset' are durable */
  POWERCUT_SYNC_DIR = 4, /* names in directory 'path', up to 'offset' */
  POWERCUT_CREATE = 5,   /* 'path', a file or the directory itself */
  POWERCUT_UNLINK = 6,
  POWERCUT_RENAME = 7, /* to the path that follows, 'len' bytes */
};

struct powercut_entry {
  uint32_t magic;
  uint32_t kind;
  uint64_t seq;
  uint64_t ino;      /* of the file that changes */
  uint64_t replaced; /* RENAME: the file that had the new name */
  uint64_t offset, len;
  uint64_t size; /* of the file, before; SYNC: at its begin */
  char path[POWERCUT_PATH_MAX];
};

/* For a program linked with powercut.c: begin and stop recording the calls of
 * this process.  Both strings must stay valid until powercut_end; 'dir' is a
 * path from realpath.  A child of fork must call powercut_begin itself.
 */
extern void powercut_begin (const char *log, const char *dir);
extern void powercut_end (void);

/* Kill the process that makes the 'nr'th entry from now on, or a later one.
 * With 'names_only' count only names and syncs of directories, which are rare.
 * This lasts until the power is cut.
 */
extern void powercut_after (const char *log, uint64_t nr, bool names_only);

/* The number of entries since the power was cut. */
extern uint64_t powercut_changes (const char *log);

/* Take back what was not synced, and empty the log.  'dir' is $POWERCUT_DIR. */
extern void powercut_undo (const char *log, const char *dir, struct rng *rng);

/* Take back everything, synced or not, to the state at the beginning of the
 * log.  If this differs from the caller's copy, the recorder has missed a call.
 */
extern void powercut_undo_all (const char *log, const char *dir);

#endif /* NBDEDUP_POWERCUT_UNDO_H */

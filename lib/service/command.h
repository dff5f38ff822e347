/* SPDX-License-Identifier: BSD-3-Clause */

/* Administrative commands: JSON in, JSON out; the same for nbdedup_call in
 * this process and for a request over control.sock.
 *
 * All members of 'args' are optional unless marked (!).  "name" is a volume
 * ("web1") or, where it makes sense, a snapshot ("web1@mon").  Unknown
 * members cause EINVAL.  Sizes are integers in bytes.  The effect of a
 * command that returned is durable.
 *
 *   COMMAND   ARGS                                      RESULT
 *   create    name(!) size(!) block-size compress       {}
 *             dedup domain allow
 *   list                                                see nbdedup-list(1)
 *   get       property(!) ("all" or one)  name          {"properties":
 *                                                         {PROPERTY: VALUE}}
 *             (values are strings as "set" takes them; sizes in bytes as
 *             decimal strings; without name: the pool's properties)
 *   set       property(!) value(!) (a string)  name     {}
 *   resize    name(!) size(!) shrink (bool)             {}
 *   rename    old(!) new(!)  imported (the size of an   {}
 *             image: this is the end of its import)
 *   destroy   name, or names (array; all or none)       {"destroyed":[names],
 *             recursive force wait dry-run (bools)       with dry-run also
 *                                                       "freed_bytes": N,
 *                                                       "needs": [{"option",
 *                                                         "why"}]}
 *   snapshot  name, or names (array; of one moment, all {}
 *             or none)
 *   clone     snapshot(!) name(!) count start           {"clones":[names]}
 *             (with count: NAME<start> and following, start defaults to 1;
 *             all or none)
 *   rollback  name(!) (a snapshot's) force              {}
 *   rebase    name(!) snapshot(!) dry-run (bool)        {"logical_bytes",
 *                                                       "shared_bytes",
 *                                                       "own_bytes_before",
 *                                                       "own_bytes_after",
 *                                                       "given_back_bytes"}
 *   diff      from(!) to(!) (snapshots)                 {"extents": see
 *                                                         nbdedup-diff(1)}
 *   drift     name (a snapshot's)  memory (bytes)       see nbdedup-drift(1):
 *             record (bool: also keep it in the history) one document, or,
 *             forecast (bool: each document gets        without a name,
 *             "forecast")  ratio (a number, for that)   {"goldens": [...]}
 *   drift-alerts  name (a golden image's)               {"alerts": alert.h's}
 *   drift-history  name (a snapshot's)  after           {"samples": [such
 *             (oldest first; in parts: "next" is        documents], "next": N}
 *             'after' of the next call, and missing in the last part)
 *             id (without name: "golden_id" of a document)
 *             newest (bool: the last one of each golden image, under the
 *             name that it has now; without name and id)
 *   drift-freed  names(!) (an array)  memory            {"names": [all],
 *             (volumes go with their snapshots)          "freed_bytes": N}
 *   stat      name  ddt (bool)                          see nbdedup-stat(1)
 *             (a snapshot's: of its clones; with ddt also pool.ddt.histogram
 *             and, with a name, "ddt": {"name", "histogram"})
 *   check     repair (bool)                             {"errors": N,
 *             "problems": [text], "stale_index_entries": N,
 *             "missing_index_entries": N, "checked": {"layers": N,
 *             "references": N, "records": N, "index_entries": N};
 *             with repair also "found": N,
 *             "lost_blocks": N, "repairs": [{"problem", "repaired"}]}
 *   scrub     again (bool: only what the last one   {"records": N,
 *             of this session found damaged)            "bytes": N,
 *             wanted, restart (bools)                    "errors": N,
 *             rate (bytes a second; 0: no limit; else the property's)
 *             "repaired_records": N, "summary_errors": N, "lost_blocks": N,
 *             "hidden_blocks": N, "affected": [names],
 *             "damaged": [{"name", "offset", "length", "heirs": N,
 *             "inherited_by": [the first of them]}],
 *             "metadata_errors": N, "metadata": [text]; with wanted also
 *             "wanted": {"hash", "key" (of a keyed hash: a secret),
 *             "records": [{"address", "length", "domain", "digest"}]}, what
 *             CONTROL_REPAIR may bring}
 *   compact                                             {"moved_records": N,
 *                                                       "moved_bytes": N,
 *                                                       "file_bytes": N}
 *   prune     age (seconds) or percent  dry-run (bool)  {"entries_before": N,
 *             (exactly one of the two)                   "entries_after": N,
 *                                                        "pruned_entries": N}
 *   rewrite   name(!) (also a snapshot's)  dedup (bool) see nbdedup-rewrite(1)
 *   recovery                                            {"recovery":
 *             recovery.h's, or null}
 *   status    (does not wait for other commands)        status.h's
 *   counters  (does not wait for other commands)        counters.h's
 *   history   (does not wait for other commands)        {"history": [events,
 *                                                       as in event.h], and if
 *             a part cannot be read "incomplete": true}
 *   info                                                {"who", "pid",
 *             "uuid", "format", "sampler": sampler.h's}
 *
 * If a command fails, nbdedup_call fails with its errno and text.  ECANCELED:
 * its progress callback ended its wait for another command, and it did nothing.
 */

#ifndef NBDEDUP_COMMAND_H
#define NBDEDUP_COMMAND_H

#include "nbdedup.h"

/* nbdedup_call with a progress callback (may be NULL).  Commands that take
 * long (check, scrub, compact, prune, rewrite, drift, destroy with "wait") call
 * it several times a second, in this thread.
 */
extern json_t *command_run (struct nbdedup_pool *pool, const char *command,
                            json_t *args, nbdedup_progress_fn *progress,
                            void *opaque);

/* Does the command change the pool?  Then it fails with EROFS in a pool that
 * is open read-only.
 */
extern bool command_changes (const char *command, json_t *args);

/* Does the command compute for long, without a lock that others wait for?
 * Then it should run at a low priority, behind the pool's clients.
 */
extern bool command_is_background (const char *command, json_t *args);

#endif /* NBDEDUP_COMMAND_H */

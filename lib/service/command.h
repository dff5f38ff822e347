/* SPDX-License-Identifier: BSD-3-Clause */

/* Administrative commands: JSON in, JSON out; the same for nbdedup_call in
 * this process and for a request over control.sock.
 *
 * All members of 'args' are optional unless marked (!).  "name" is a volume
 * ("web1") or, where it makes sense, a snapshot ("web1@mon").  Unknown
 * members are EINVAL.  Sizes are integers in bytes.  A command that
 * returned has happened and is durable.
 *
 *   COMMAND   ARGS                                      RESULT
 *   create    name(!) size(!) block-size compress       {}
 *             dedup domain allow
 *   list                                                see nbdedup-list(1)
 *   get       property(!) ("all" or one)  name          {"properties":
 *                                                         {PROPERTY: VALUE}}
 *             (values are strings as "set" takes them; sizes in bytes as
 *             decimal strings; no name: the pool's)
 *   set       property(!) value(!) (a string)  name     {}
 *   resize    name(!) size(!) shrink (bool)             {}
 *   rename    old(!) new(!)                             {}
 *   destroy   name, or names (array; all or none)       {"destroyed":[names],
 *             recursive force wait dry-run (bools)       with dry-run also
 *                                                       "freed_bytes": N,
 *                                                       "needs": [{"option",
 *                                                         "why"}]}
 *   snapshot  name(!) (a snapshot's)                    {}
 *   clone     snapshot(!) name(!) count start           {"clones":[names]}
 *             (with count: NAME<start> and following, start is 1 if not
 *             given; all or none)
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
 *                                                       without a name,
 *                                                       {"goldens": [...]}
 *   drift-history  name (a snapshot's)  after           {"samples": [such
 *             (oldest first; in parts: "next" is        documents], "next": N}
 *             'after' of the next call, and missing in the last part)
 *             newest (bool: the last one of each golden image, under the
 *             name that it has now; without name)
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
 *   scrub     again (bool: what the last one of     {"records": N,
 *             this session found damaged, only)         "bytes": N,
 *             wanted, restart (bools)                    "errors": N,
 *             rate (bytes a second; 0: no limit; else the property's)
 *             "repaired_records": N, "summary_errors": N, "lost_blocks": N,
 *             "damaged": [{"name", "offset", "length"}],
 *             "metadata_errors": N, "metadata": [text]; with wanted also
 *             "wanted": {"hash", "records": [{"address", "length", "domain",
 *             "digest"}]}, what CONTROL_REPAIR may bring}
 *   recovery                                            {"recovery":
 *             recovery.h's, or null}
 *   status    (waits for no other command)              status.h's
 *   info                                                {"who", "pid",
 *             "uuid", "format", "sampler": sampler.h's}
 *
 * Failures of nbdedup_call: -1 with errno and text, as everywhere.
 */

#ifndef NBDEDUP_COMMAND_H
#define NBDEDUP_COMMAND_H

#include "nbdedup.h"

/* nbdedup_call with a progress callback, called from this thread (may be
 * NULL): commands that take long (check, scrub, drift, destroy with "wait")
 * call it several times a second.
 */
extern json_t *command_run (struct nbdedup_pool *pool, const char *command,
                            json_t *args, nbdedup_progress_fn *progress,
                            void *opaque);

/* Does it change the pool?  Then it is EROFS in one that is open read-only. */
extern bool command_changes (const char *command, json_t *args);

/* Does it compute for long, holding nothing that others wait for?  Then it
 * should leave the CPUs to the pool's clients.
 */
extern bool command_is_background (const char *command, json_t *args);

#endif /* NBDEDUP_COMMAND_H */

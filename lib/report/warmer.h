/* SPDX-License-Identifier: BSD-3-Clause */

/* Warm caches after an open: a server saves which records and leaves its caches
 * hold (warm-file.h), when it ends and every few minutes, and the next one
 * reads them in the background.  A clean close saves the filter of the hash
 * index, too.
 *
 * The lists name records by address and leaves by layer.  The thread takes
 * everything else from pool.db and "records", as a read does: an old list makes
 * it read what no client needs, or nothing.  It reads what was used last first,
 * puts it into a cache only as long as that has room, and rests as long as it
 * has worked, so that clients' requests come first.
 */

#ifndef NBDEDUP_WARMER_H
#define NBDEDUP_WARMER_H

#include <jansson.h>

struct meta_state;
struct nbdedup_pool;
struct warmer;

/* At an open for writing, before the first record is added: use the filter in
 * the file if it is of this state.
 */
extern void
warm_offer (struct nbdedup_pool *pool, const struct meta_state *state);
/* At a clean close, after the last fold: save what the next session can use. */
extern void warm_save (struct nbdedup_pool *pool);
/* A repair may have added entries to the hash index of the pool at 'path'. */
extern void warm_forget (const char *path);

/* For a server.  NULL: the caches fill as clients read. */
extern struct warmer *warmer_start (struct nbdedup_pool *pool);
/* These functions, and warmer_status, accept NULL.  warmer_cancel makes the
 * thread end soon.
 */
extern void warmer_cancel (struct warmer *w);
extern void warmer_stop (struct warmer *w);
extern void warmer_free (struct warmer *w);
/* What the thread does every few minutes: save the lists, without the filter,
 * since no file has the filter for the state after a crash.
 */
extern void warmer_save_lists (struct warmer *w);
/* A new reference, or NULL. */
extern json_t *warmer_status (struct warmer *w);

#endif /* NBDEDUP_WARMER_H */

/* SPDX-License-Identifier: BSD-3-Clause */

/* The classes of "drift" (nbdedup-drift(1)) for images that are in no pool:
 * how far each has diverged from a golden image.
 *
 * While the images are read, the hashes of their pieces go to a temporary file,
 * at the pieces' places: 16 bytes for each, 0 for zeroes.  Then, for each block
 * size, a table of the distinct contents tells which images have each.  If all
 * contents do not fit into the memory, they are divided by bits of their hash
 * into parts, and the file is read once more for each part: the classes are
 * exact with any memory (but for equal hashes of different contents:
 * estimate-set.h has the odds).
 *
 * Threads: any number may call compare_put at once, for pieces that do not
 * overlap; all else is for one.
 */

#ifndef NBDEDUP_COMPARE_H
#define NBDEDUP_COMPARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>
#include <xxhash.h>

struct compare;

/* The file goes to directory 'dir' (not owned).  Pieces are blocks of the
 * smallest size.
 */
extern struct compare *compare_new (const char *dir, uint32_t piece_bytes);
extern void compare_free (struct compare *compare);

/* Begin an image; the first is the golden one.  'time' is that of the sample
 * that it belongs to, in seconds since the epoch.
 */
extern int
compare_begin (struct compare *compare, const char *name, int64_t time);

/* Hashes of 'nr' pieces of the present image, from piece 'first' on. */
extern int compare_put (struct compare *compare, uint64_t first,
                        const XXH128_hash_t *hashes, unsigned nr);

/* The present image is complete. */
extern int compare_end (struct compare *compare, uint64_t bytes);

struct compare_settings {
  uint32_t block_size;
  double distinct;            /* contents of all images, about */
  uint64_t memory_bytes;      /* for the table */
  double stored_bytes;        /* what a block takes, on average */
  int (*look) (void *opaque); /* now and then; -1: stop.  NULL: none */
  void *opaque;
};

/* Documents of "drift --json", one for each time at which there are images,
 * the oldest first.  NULL: failed.
 */
extern json_t *compare_result (struct compare *compare,
                               const struct compare_settings *settings);

/* The hash that stands for zeroes. */
static inline bool
is_zero_hash (const XXH128_hash_t *hash)
{
  return hash->low64 == 0 && hash->high64 == 0;
}

/* The hash of a block from those of its pieces. */
static inline XXH128_hash_t
hash_of_pieces (const XXH128_hash_t *pieces, unsigned nr)
{
  return nr == 1 ? pieces[0] : XXH3_128bits (pieces, nr * sizeof pieces[0]);
}

#endif /* NBDEDUP_COMPARE_H */

/* SPDX-License-Identifier: BSD-3-Clause */

/* xxHash's XXH3 with the instructions of the processor that runs the program,
 * for data (for a header of some hundred bytes, the plain functions do).
 *
 * On x86 the plain functions of libxxhash use what the library was compiled
 * for: in a distribution's package SSE2.  The package also has functions for
 * AVX2 and AVX-512, which take a third of the time, and functions that choose
 * among them.  If configure found those, they are used here.  The hashes are
 * the same everywhere.
 *
 * Units: bytes.  Threads: any, except for xxh3_64_update, whose caller owns the
 * state.  Nothing fails.
 *
 * Source: https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md.
 */

#ifndef NBDEDUP_XXH3_H
#define NBDEDUP_XXH3_H

#include <stddef.h>
#include <stdint.h>

#include <xxhash.h>

/* XXH3_64bits, and XXH3_64bits_withSeed. */
extern uint64_t xxh3_64 (const void *buf, size_t len);
extern uint64_t xxh3_64_seeded (const void *buf, size_t len, uint64_t seed);

/* XXH3_64bits_update: 'state' (not owned) is from XXH3_createState. */
extern void xxh3_64_update (XXH3_state_t *state, const void *buf, size_t len);

/* XXH3_128bits. */
extern XXH128_hash_t xxh3_128 (const void *buf, size_t len);

#endif /* NBDEDUP_XXH3_H */

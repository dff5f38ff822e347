/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <stddef.h>
#include <stdint.h>

#include "base/xxh3.h"

#ifdef HAVE_XXH3_DISPATCH

/* The functions are the library's even if the compiler may use AVX itself. */
#define XXH_X86DISPATCH_ALLOW_AVX
#include <immintrin.h>
#include <xxh_x86dispatch.h>

/* libxxhash leaves the upper halves of the vector registers in use.  Then each
 * SSE instruction that follows has to keep them: on a processor of AMD, OpenSSL
 * took 12.2 us for the SHA-256 of 16 KiB instead of 9.2, which is more than the
 * faster checksum saves.  A switch of threads saves and loads them, too.
 */
__attribute__ ((target ("avx"))) static void
clear_upper_halves (void)
{
  _mm256_zeroupper ();
}

static inline void
leave_avx (void)
{
  if (__builtin_cpu_supports ("avx"))
    clear_upper_halves ();
}

#else

static inline void
leave_avx (void)
{
}

#endif

uint64_t
xxh3_64 (const void *buf, size_t len)
{
  const uint64_t h = XXH3_64bits (buf, len);

  leave_avx ();
  return h;
}

uint64_t
xxh3_64_seeded (const void *buf, size_t len, uint64_t seed)
{
  const uint64_t h = XXH3_64bits_withSeed (buf, len, seed);

  leave_avx ();
  return h;
}

void
xxh3_64_update (XXH3_state_t *state, const void *buf, size_t len)
{
  XXH3_64bits_update (state, buf, len);
  leave_avx ();
}

XXH128_hash_t
xxh3_128 (const void *buf, size_t len)
{
  const XXH128_hash_t h = XXH3_128bits (buf, len);

  leave_avx ();
  return h;
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* XXH3 with the processor's own instructions: the same hashes as the plain
 * functions, which the formats name, at each length up to several stripes and
 * at any alignment; and the upper halves of the vector registers, which slow
 * down every SSE instruction that follows, are not left in use.
 */

#ifdef HAVE_CONFIG_H
#include <config.h>
#endif
#undef NDEBUG

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#if defined __x86_64__ && defined HAVE_XXH3_DISPATCH
#define CHECK_UPPER_HALVES
#include <cpuid.h>
#endif

#include <xxhash.h>

#include "base/xxh3.h"
#include "rigs/testutil.h"

#define LEN_MAX (1 << 20)
#define LEN_USUAL (1 << 15)
#define ALIGN_MAX 64

static uint8_t data[LEN_MAX + ALIGN_MAX];
static struct rng rng = { 1 };

static void
check_hashes (const uint8_t *p, size_t len)
{
  const uint64_t seed = rng_next (&rng);

  assert (xxh3_64 (p, len) == XXH3_64bits (p, len));
  assert (xxh3_64_seeded (p, len, seed) == XXH3_64bits_withSeed (p, len, seed));
  assert (XXH128_isEqual (xxh3_128 (p, len), XXH3_128bits (p, len)));
}

static void
check_pieces (XXH3_state_t *state, const uint8_t *p, size_t len)
{
  size_t done = 0, n;

  XXH3_64bits_reset (state);
  while (done < len) {
    n = 1 + rng_below (&rng, (uint32_t) (len - done));
    xxh3_64_update (state, p + done, n);
    done += n;
  }
  assert (XXH3_64bits_digest (state) == XXH3_64bits (p, len));
}

static void
test_same_hashes (void)
{
  XXH3_state_t *state = XXH3_createState ();
  size_t len;
  int i;

  assert (state != NULL);
  for (len = 0; len <= 4097; ++len)
    check_hashes (data + len % ALIGN_MAX, len);
  /* Few are long: valgrind takes a second for ten MiB. */
  for (i = 0; i < 500; ++i) {
    len = rng_below (&rng, (i % 25 == 0 ? LEN_MAX : LEN_USUAL) + 1);
    check_hashes (data + rng_below (&rng, ALIGN_MAX), len);
    check_pieces (state, data + rng_below (&rng, ALIGN_MAX), len);
  }
  XXH3_freeState (state);
}

#ifdef CHECK_UPPER_HALVES

/* The parts of the registers that are in use: Intel's manual, volume 1, 13.6,
 * "XINUSE", which XGETBV returns for ECX = 1.  Bit 2 stands for the upper
 * halves of YMM0 to 15, bit 6 for those of ZMM0 to 15.
 */
#define UPPER_HALVES (1U << 2 | 1U << 6)

static bool
can_tell (void)
{
  unsigned a, b, c, d;

  return __get_cpuid (1, &a, &b, &c, &d) && (c & bit_OSXSAVE) &&
    (c & bit_AVX) && __get_cpuid_count (0xd, 1, &a, &b, &c, &d) &&
    (a & 1U << 2);
}

static unsigned
in_use (void)
{
  unsigned a, d;

  __asm__ volatile ("xgetbv" : "=a"(a), "=d"(d) : "c"(1));
  return a;
}

static void
dirty_upper_halves (void)
{
  __asm__ volatile ("vpcmpeqd %%xmm0, %%xmm0, %%xmm0\n\t"
                    "vinsertf128 $1, %%xmm0, %%ymm0, %%ymm0"
                    :
                    :
                    : "xmm0");
}

/* Each function, alone. */
static unsigned
in_use_after (int function, XXH3_state_t *state)
{
  dirty_upper_halves ();
  assert (in_use () & UPPER_HALVES);
  switch (function) {
  case 0:
    xxh3_64 (data, 16384);
    break;
  case 1:
    xxh3_64_seeded (data, 16384, 1);
    break;
  case 2:
    xxh3_64_update (state, data, 16384);
    break;
  default:
    xxh3_128 (data, 16384);
  }
  return in_use () & UPPER_HALVES;
}

static void
test_no_upper_halves_in_use (void)
{
  XXH3_state_t *state = XXH3_createState ();
  int i;

  assert (state != NULL);
  XXH3_64bits_reset (state);
  for (i = 0; i < 4 && can_tell (); ++i)
    assert (in_use_after (i, state) == 0);
  XXH3_freeState (state);
}

#endif

int
main (void)
{
  fill_random (data, sizeof data, 7);
  test_same_hashes ();
#ifdef CHECK_UPPER_HALVES
  test_no_upper_halves_in_use ();
#endif
  return 0;
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* Mixing functions for hash tables and for sums of states.  They are neither
 * secure against an attacker nor meant for the disk: see format/hash.h.
 */

#ifndef NBDEDUP_MIX_H
#define NBDEDUP_MIX_H

#include <stdint.h>

/* Odd, and 2^64 divided by the golden ratio: its multiples spread evenly. */
#define MIX_STEP UINT64_C (0x9e3779b97f4a7c15)

/* Spread the bits (the finalizer of SplitMix64,
 * https://prng.di.unimi.it/splitmix64.c).
 */
static inline uint64_t
mix (uint64_t x)
{
  x = (x ^ x >> 30) * UINT64_C (0xbf58476d1ce4e5b9);
  x = (x ^ x >> 27) * UINT64_C (0x94d049bb133111eb);
  return x ^ x >> 31;
}

static inline uint64_t
mix_two (uint64_t a, uint64_t b)
{
  return mix (a * MIX_STEP + b);
}

#endif /* NBDEDUP_MIX_H */

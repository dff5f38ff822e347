/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <math.h>

#include "estimate/sizing.h"
#include "nbdedup.h"

double
sizing_ddt_cache_bytes (double records)
{
  const double filter = records * SIZING_FILTER_BITS / 8;

  return fmax ((double) NBDEDUP_DDT_CACHE_MIN,
               ceil (filter * 64 / SIZING_FILTER_SHARE));
}

uint64_t
sizing_wanted_ddt_cache (uint64_t entries, uint64_t bytes)
{
  const double best = sizing_ddt_cache_bytes ((double) entries);

  return (double) bytes < best * SIZING_FILTER_BITS_MIN / SIZING_FILTER_BITS
    ? (uint64_t) best
    : 0;
}

/* SPDX-License-Identifier: BSD-3-Clause */

/* The table of properties in the help of "get" and "set".  The completion of
 * shells reads it (completion/complete), and its words in lower case are the
 * values that they offer; a line that ends in "|" continues.
 */

#ifndef NBDEDUP_PROPERTIES_H
#define NBDEDUP_PROPERTIES_H

#define PROPERTIES_DOC                                                         \
  "\vProperties of the pool (P) and of volumes (V), and which of them\n"       \
  "'set' changes:\n"                                                           \
  "  PROPERTY            OF  SET  VALUES\n"                                    \
  "  sector              P   -    512|1K|2K|4K|8K\n"                           \
  "  hash                P   -    sha256|sha512-256|blake2b512|blake2s256|\n"  \
  "                               blake3|gmac|auto\n"                          \
  "  max-size            P   P    none|SIZE\n"                                 \
  "  full-warn           P   P    PERCENT\n"                                   \
  "  ddt-quota           P   P    none|SIZE\n"                                 \
  "  copies              P   P    1|COPIES:REFERENCES\n"                       \
  "  metadata-copy       P   P    on|off|PATH\n"                               \
  "  scrub-rate          P   P    none|SIZE\n"                                 \
  "  scrub-interval      P   P    off|AGE\n"                                   \
  "  drift-keep          P   P    GRAIN:AGE,...\n"                             \
  "  drift-alert-ratio   P   P    none|RATIO\n"                                \
  "  drift-alert-growth  P   P    none|SIZE\n"                                 \
  "  drift-alert-unique  P   P    none|SIZE\n"                                 \
  "  drift-alert-unique  V   V    default|none|SIZE\n"                         \
  "  block-size          PV  P    4K|8K|16K|32K|64K|128K|256K|512K|1M\n"       \
  "  compress            PV  PV   none|lz4|zstd|zstd-N\n"                      \
  "  dedup               PV  PV   on|off|verify\n"                             \
  "  domain              V   V    none|NAME\n"                                 \
  "  allow               V   V    all|UID,...\n"                               \
  "\nnbdedup(1) describes them."

#endif

/* SPDX-License-Identifier: BSD-3-Clause */

/* What a pool needs, by its records: the model of "estimate", of the advice of
 * "stat" on ddt-cache, and of the table "Sizing" in docs/benchmarks.md.
 * tests/bench/bench_sizing.py reads the constants from this file, each a number
 * after its name, so that page and command say the same; bench.bats compares
 * them with what was measured.
 *
 * pool.db.  The constants were measured on pools right after one import (ext4,
 * 12 imports of 4 MiB to 1 GiB of random data, repeated random data, and a
 * Debian image; 4 KiB to 128 KiB; 'nbdedup stat' and the files' sizes):
 *
 *   SIZING_DB_EMPTY_BYTES     pool.db of an empty pool: 188416 in each.
 *   SIZING_OTHER_FILES_BYTES  lock, metadata-copy, the unused parts of pages.
 *   SIZING_DB_POINTER_BYTES   the same 64 MiB four times compared with once,
 *                             4 KiB blocks: each mapped block adds 18.5 (its
 *                             pointer has 16; the rest is the pages' slack).
 *   SIZING_DB_SEGMENT_BYTES   a map of 1 KiB for each 4 MiB of "records".
 *   SIZING_DB_RECORD_BYTES    the remainder, of random data: 262144 records of
 *                             4 KiB (pool.db: 21250048), 131072 of 8 KiB
 *                             (12345344), 65536 of 16 KiB (6602752) and 16384
 *                             of 4 KiB (1753088): 61, 72, 75 and 77 for each.
 *                             The packed entries in the tables of records and
 *                             of hashes have 52; how full their rows and pages
 *                             are varies.
 *
 * For these pools the model's error is at most 13 % of pool.db, which is 0.1 %
 * of the data; of a small one, with 4096 records, 22 %.  bench-ddt, with each
 * block mapped once, found 161, 144 and 140 bytes of pool.db and its copy for
 * each of 1, 10 and 120 million records; the model says 163.
 *
 * Journal.  It takes SIZING_JOURNAL_RECORD_BYTES for each record and
 * SIZING_JOURNAL_POINTER_BYTES for each mapped block until the next fold, and
 * grows by doubling.  A fold starts after 5 seconds, or when the changes that
 * wait for it take half of their memory, which by default kept the journal at
 * SIZING_JOURNAL_FOLD_BYTES.
 *
 * Summaries.  A slot of 64 bytes for each record, and one in 64 for the chunk
 * (segment.h).  They lie in "records": "stored" does not count them.
 * bench-ddt found 66 bytes with 50 million records.
 *
 * ddt-cache.  The filter should have FILTER_BITS bits (filter.h) for each
 * record.  It has SIZING_FILTER_SHARE of 64 parts of ddt-cache (pool-modules.c
 * and ddt.c), and doubles while it is filled.  With fewer than
 * SIZING_FILTER_BITS_MIN about 3 % of the new blocks search the hash index.  In
 * 1 GiB (new blocks in image order, engine only, several runs of 400,000 in
 * turn), the pool stored 65 to 225 thousand blocks a second at 120 to 230
 * million records with ddt-cache=256M, and 1.6 to 2 times as many with 384M in
 * the runs beside them; at 250 million, with 256M and so 5 bits for each, 30
 * thousand.
 */

#ifndef NBDEDUP_SIZING_H
#define NBDEDUP_SIZING_H

#include <stdint.h>

#define SIZING_DB_EMPTY_BYTES 188416.0
#define SIZING_DB_RECORD_BYTES 62.0
#define SIZING_DB_POINTER_BYTES 18.5
#define SIZING_DB_SEGMENT_BYTES 1100.0
#define SIZING_OTHER_FILES_BYTES 20480.0

#define SIZING_JOURNAL_RECORD_BYTES 80.0
#define SIZING_JOURNAL_POINTER_BYTES 16.0
#define SIZING_JOURNAL_FOLD_BYTES 16777216.0

#define SIZING_SUMMARY_RECORD_BYTES 65.0

#define SIZING_FILTER_BITS 10
#define SIZING_FILTER_BITS_MIN 8
#define SIZING_FILTER_SHARE 35

/* The ddt-cache with which the filter has SIZING_FILTER_BITS for each record.
 * With less, lookups of new blocks read the index more often.
 */
extern double sizing_ddt_cache_bytes (double records);

/* What a server's ddt-cache of 'bytes' should be with so many entries of the
 * hash index.  0: it is large enough.
 */
extern uint64_t sizing_wanted_ddt_cache (uint64_t entries, uint64_t bytes);

#endif /* NBDEDUP_SIZING_H */

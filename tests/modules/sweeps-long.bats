#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# The module tests that "make check" shortens, in full: each page, request and
# damage has its turn (SWEEP_STEP=1), and random histories go on for longer.

load ../rigs/helpers

# whole TEST [VARIABLE=VALUE...]
whole ()
{
    local test=$1

    shift
    env SWEEP_STEP=1 SAMPLE_STEP=1 "$@" "$test_programs/modules/$test" \
        3>&- 4>&-
}

@test "each page of the maps is lost once" { whole test-mend; }
@test "each page of the other tables is lost once" { whole test-mend-tables; }
@test "each damage to pool.db, its WAL and their copies" {
    whole test-metadata-damage
}
@test "a repair is killed at each of its syncs" { whole test-repair; }
@test "a fold has no memory from many moments on" { whole test-fold-nomem; }
@test "each page of pool.db is distrusted once" { whole test-distrust; }
@test "each request for memory that has callers of its own fails once" {
    whole test-nomem
}
@test "150 histories: drift is exact" { whole test-drift ROUNDS=150; }
@test "snapshots and clones at random for 30 seconds" {
    whole test-lineage LINEAGE_SECONDS=30
}
@test "all at once in one engine for 30 seconds" {
    whole test-concurrent CONCURRENT_SECONDS=30
}

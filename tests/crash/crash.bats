#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# What survives a crash.  DESCRIPTION and STRATEGY: crash-model.c,
# crash-power.c, crash-repair.c, block-model.h, powercut-undo.h,
# lineage-crash.c.  Any number of rounds: "make check-crash ROUNDS=N SEED=S",
# "make check-power ROUNDS=N SEED=S", "make check-lineage ROUNDS=N SEED=S".

load ../rigs/helpers
load crash

# rounds N: print N, or with sanitizers, which look at the same code in each round,
# half of it.
rounds ()
{
    echo $(($1 / (${sanitizer_preload:+1}0 ? 2 : 1)))
}

@test "what was flushed survives kill -9 at any moment" {
    ROUNDS="${ROUNDS:-$(rounds 12)}" run_model
}

@test "what was flushed survives a loss of power" {
    ROUNDS="${ROUNDS:-$(rounds 8)}" run_model \
        --powercut "$test_programs/crash/.libs/powercut.so"
}

@test "a snapshot, clone, rollback, rebase or destroy cut off by kill -9 has happened or has not" {
    ROUNDS="${LINEAGE_ROUNDS:-$(rounds 20)}" run_lineage
}

@test "the same, cut off by a loss of power" {
    ROUNDS="${LINEAGE_ROUNDS:-$(rounds 20)}" run_lineage --power
}

@test "snapshots of several volumes, cut off at each change, are all there or none" {
    run_lineage --together
}

@test "a shrink that is cut off at each change brings nothing back, and the pool opens" {
    local dir

    dir=$(model_directory --power)
    run "$test_programs/crash/shrink-crash" "$dir" 3>&- 4>&-
    rm -rf "$dir"
    echo "$output"
    [ "$status" = 0 ]
}

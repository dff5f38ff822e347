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

# lie NAME: test a server that breaks its promises, which must be noticed.
lie ()
{
    local dir="$BATS_TEST_TMPDIR/$1"

    mkdir "$dir"
    cat >"$dir/serve" <<SCRIPT
#!/bin/sh
exec nbdkit -f -U "\$1" "$test_programs/crash/.libs/lossy-plugin.so" dir="\$2" lie=$1
SCRIPT
    chmod +x "$dir/serve"
    ROUNDS="${2:-200}" "$test_programs/crash/crash-model" --server "$dir/serve" \
        "$dir" 2>&1
}

# rounds N: print N, or with sanitizers, which look at the same code in each round,
# half of it.
rounds ()
{
    echo $(($1 / (${sanitizer_preload:+1}0 ? 2 : 1)))
}

# These two test the test, which has no code of ours for sanitizers to check.
@test "an honest server passes the crash test" {
    [ -z "$sanitizer_preload" ] || skip "tests the test"
    run -0 lie none 15
}

@test "the crash test notices a server that breaks its promises" {
    local kind

    [ -z "$sanitizer_preload" ] || skip "tests the test"
    for kind in fua flush connection torn zero swap extent; do
        run -1 lie "$kind"
        [[ $output == *"FAILED in round"* ]] ||
            fail "$kind: failed for another reason:" "$output"
        rm -rf "${BATS_TEST_TMPDIR:?}/$kind"
    done
}

@test "what was flushed survives kill -9 at any moment" {
    ROUNDS="${ROUNDS:-$(rounds 20)}" run_model
}

@test "what was flushed survives a loss of power" {
    ROUNDS="${ROUNDS:-$(rounds 15)}" run_model \
        --powercut "$test_programs/crash/.libs/powercut.so"
}

@test "a snapshot, clone, rollback, rebase or destroy cut off by kill -9 has happened or has not" {
    ROUNDS="${LINEAGE_ROUNDS:-$(rounds 25)}" run_lineage
}

@test "the same, cut off by a loss of power" {
    ROUNDS="${LINEAGE_ROUNDS:-$(rounds 30)}" run_lineage --power
}

#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# Random operations of every kind through a server, from many connections and
# commands at once, against a model in memory: test-soak.c.  For a longer run:
# "make check-soak SECONDS=N SEED=S".

load ../rigs/helpers

soak ()
{
    "$test_programs/soak/test-soak" --plugin "$plugin" \
        --nbdedup "$top_builddir/tools/nbdedup" \
        ${sanitizer_preload:+--preload "$sanitizer_preload"} \
        "$BATS_TEST_TMPDIR" 3>&- 4>&-
}

@test "random requests and commands at once: every byte is what it must be" {
    soak || fail "$(tail -n 5 "$BATS_TEST_TMPDIR"/soak-*/server.log)"
}

@test "the long run notices what grows" {
    # A pool of that age is still filling up.
    SOAK_OPERATIONS=5000 run -1 "$test_programs/soak/test-soak" "$BATS_TEST_TMPDIR"
    [[ $output == *"HAS GROWN"* ]] || fail "$output"
    [[ $output == *"no difference, but something has grown"* ]] ||
        fail "$output"
}

#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# Tests the test: crash-model notices a server that breaks its promises.

load ../rigs/helpers

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

@test "an honest server passes the crash test" {
    run -0 lie none 15
}

@test "the crash test notices a server that breaks its promises" {
    local kind

    for kind in fua flush connection torn zero swap extent; do
        run -1 lie "$kind"
        [[ $output == *"FAILED in round"* ]] ||
            fail "$kind: failed for another reason:" "$output"
        rm -rf "${BATS_TEST_TMPDIR:?}/$kind"
    done
}

#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# The README's tour, as printed, in a directory that looks like a clone after
# vm-images/quickstart.

load ../rigs/helpers

# tour: the indented lines between "## A tour" and the next section.
tour ()
{
    sed -n '/^## A tour$/,/^## When/s/^    //p' "$top_srcdir/README.md"
}

# like_a_clone: its _build has the built files, and an image.
like_a_clone ()
{
    mkdir -p clone/_build/images
    cd clone || return
    ln -s "$top_builddir/tools" "$top_builddir/plugin" _build/
    { random_data 3M 1; text_data 2M 2; random_data 1M 3; } \
        >_build/images/debian.raw
    truncate -s 16M _build/images/debian.raw
}

# nbdkit_for_sanitizers: an nbdkit that can load a plugin built with them.
nbdkit_for_sanitizers ()
{
    [ -n "$sanitizer_preload" ] || return 0
    mkdir "$BATS_TEST_TMPDIR/bin"
    printf '#!/bin/sh\nLD_PRELOAD=%q exec %q "$@"\n' "$sanitizer_preload" \
           "$(type -P nbdkit)" >"$BATS_TEST_TMPDIR/bin/nbdkit"
    chmod +x "$BATS_TEST_TMPDIR/bin/nbdkit"
    PATH="$BATS_TEST_TMPDIR/bin:$PATH"
}

teardown ()
{
    local pid

    # The tour leaves its server running.
    for pid in $(pgrep -f -- "-U $BATS_TEST_TMPDIR/clone/_build/tour.sock"); do
        kill "$pid"
    done
    check_pools
}

@test "each line of the README's tour does what it says, in that order" {
    need gnuplot --version
    need nbdinfo --version
    cd "$BATS_TEST_TMPDIR"
    like_a_clone
    nbdkit_for_sanitizers
    tour >../tour.bash
    # The tour sets what it needs.
    unset NBDEDUP_LIBEXEC
    assert_num "$(wc -l <../tour.bash)" -ge 25
    # A line that fails ends the tour; each line is printed before it runs.
    # shellcheck disable=SC2016
    run -0 bash -euo pipefail -c '
        while IFS= read -r line <&5; do
            echo "\$ $line"
            eval "$line"
        done' 3>&- 4>&- 5<../tour.bash </dev/null
    # The output must be what the comments say.
    [[ $output =~ "dedup ratio"\ +2\.00 ]] || fail "$output"
    [[ $output == *"    desk100 "* ]]
    [ -s _build/drift.html ]
    cmp _build/images/debian.raw _build/back.raw
    run -0 env NBDEDUP_POOL="$PWD/_build/tour" nbdedup list --json
    assert_eq "$(jq -c '[.volumes[].name | select(. == "golden" or
                  . == "golden-old" or . == "desk2" or . == "desk7")]' \
                  <<<"$output")" '["desk2","golden"]'
}

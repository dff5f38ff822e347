#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# Random tests of other files, with more rounds than they have in "make check".

load ../rigs/helpers

# again FILE NR REGEX VARIABLE=VALUE...: the NR tests of the file whose names
# match, with these variables, pass.
again ()
{
    local file=$1 nr=$2 regex=$3

    shift 3
    # The other bats must see nothing of this one, not even its PATH's first folder.
    run -0 env -i HOME="$HOME" PATH="$PATH" LC_ALL=C.UTF-8 \
        NBDEDUP_ENV="$NBDEDUP_ENV" TMPDIR="${TMPDIR:-/tmp}" "$@" \
        "$BATS_ROOT/bin/bats" --formatter tap -f "$regex" \
        "$BATS_TEST_DIRNAME/$file" 3>&- 4>&-
    assert_eq "$(grep -cE '^ok [0-9]+ ([^#]|#[^ ])*$' <<<"$output")" "$nr" "$output"
}

@test "60 flipped bits in a closed pool, and 60 in a killed one" {
    again spoilt-files.bats 2 '^single flipped bits' FLIPS=60
}

@test "60 zeroed sectors of a killed pool" {
    again spoilt-files.bats 1 '^a zeroed sector anywhere' ROUNDS=60
}

@test "each file of a pool is cut at five places, and spoilt in all ways" {
    again spoilt-files.bats 2 '^truncated, zeroed and garbled' SPOIL=all
}

@test "25 spoilt images of each format" {
    again untrusted.bats 1 '^spoilt images' FUZZ=25
}

#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# The effects of damage to the files of a pool.  DESCRIPTION: damage-model.  Any
# number of rounds: "make check-damage ROUNDS=N SEED=S".

load ../rigs/helpers

bats_require_minimum_version 1.5.0

@test "each kind of damage to each file: right data, or an error" {
    local dir status=0 rounds=(--fixed)

    # The short form, of check-platform: all seeds have the same pools.
    [ -z "${DAMAGE_ROUNDS-}" ] || rounds=(--rounds "$DAMAGE_ROUNDS" --seed 1)
    # The directory has sockets, so its name is short.
    dir=$(mktemp -d "${TMPDIR:-/tmp}/nbdedup-damage.XXXXXX")
    python3 "$top_srcdir/tests/faults/damage-model" --plugin "$plugin" \
        --nbdedup "$top_builddir/tools/nbdedup" --dir "$dir" \
        ${sanitizer_preload:+--preload "$sanitizer_preload"} "${rounds[@]}" \
        3>&- 4>&- || status=$?
    rm -rf "$dir"
    return "$status"
}

#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# The long form of damage.bats.  Any number of rounds: "make check-damage ROUNDS=N
# SEED=S".

load ../rigs/helpers

@test "200 rounds of damage at random" {
    local dir status=0

    # The directory has sockets, so its name is short.
    dir=$(mktemp -d "${TMPDIR:-/tmp}/nbdedup-damage.XXXXXX")
    ROUNDS="${ROUNDS:-200}" python3 "$top_srcdir/tests/faults/damage-model" \
        --plugin "$plugin" --nbdedup "$top_builddir/tools/nbdedup" \
        --dir "$dir" 3>&- 4>&- || status=$?
    rm -rf "$dir"
    return "$status"
}

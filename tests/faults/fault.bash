# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# Shared by fault.bats and sweep.bats.

# fault FILE CALL NTH [COUNT]: see fault-model.c.
fault ()
{
    local dir="$BATS_TEST_TMPDIR/$1-$2-$3"

    mkdir "$dir"
    "$test_programs/faults/fault-model" --plugin "$plugin" \
        --nbdedup "$top_builddir/tools/nbdedup" \
        --faults "$test_programs/rigs/.libs/faults.so" \
        ${sanitizer_preload:+--preload "$sanitizer_preload"} \
        "$dir" "$@" ||
        fail "$* $(tail -n 5 "$dir/server.log")"
    rm -rf "$dir"
}

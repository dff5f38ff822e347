#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# Rules of the source itself: who may know whom, and what is visible.

load helpers

# offenders PATTERN FILE...: lines outside of comments that match, or nothing.
offenders ()
{
    local pattern=$1

    shift
    grep -nE "$pattern" "$@" | grep -vE '^[^:]*:[0-9]+: *(/?\*|#)' || :
}

@test "every source file names its licence" {
    cd "$top_srcdir"
    run find lib plugin tools tests vm-images -type f \
        \( -name '*.[ch]' -o -name '*.bats' -o -name '*.bash' -o -name '*.py' \
           -o -name '*.sql' -o -name '*.syms' -o -name 'Makefile.am' \) \
        ! -exec grep -q 'SPDX-License-Identifier: BSD-3-Clause' {} \; -print
    assert_eq "$output" ""
}

@test "the engine does not know nbdkit" {
    cd "$top_srcdir"
    assert_eq "$(offenders 'nbdkit[-_]' lib/*.[ch])" ""
}

@test "plugin and tools see only the engine's public header" {
    local header

    cd "$top_srcdir"
    while IFS= read -r header; do
        case $header in
            nbdedup.h|cleanup.h) ;;
            *) [ ! -e "lib/$header" ] || fail "lib/$header is private" ;;
        esac
    done < <(sed -nE 's/^#include "(.*)"/\1/p' plugin/*.[ch] tools/*.[ch])
}

@test "SQL stands in one place" {
    local file

    cd "$top_srcdir"
    for file in lib/*.c plugin/*.c tools/*.c; do
        case $file in
            lib/meta*.c) ;;
            *) assert_eq "$(offenders '"[^"]*(SELECT .* FROM|INSERT INTO|UPDATE .* SET|DELETE FROM) ' "$file")" "" "$file" ;;
        esac
    done
}

@test "the plugin exports what nbdkit looks up, and nothing else" {
    run -0 nm -D --defined-only "$plugin"
    assert_eq "$(awk '{ print $3 }' <<<"$output" |
                     grep -vE '^(plugin_init|dedup_debug_.*)$')" ""
    [[ $output == *plugin_init* ]]
}

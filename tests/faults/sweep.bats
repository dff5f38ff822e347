#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# One failing call after the other: cases that "make check-faults" once found; and
# the full disks and the moments of failing ones that fault.bats has no time for.

load ../rigs/helpers
load fault

# sweep ARG...: see "fault-sweep --help".
sweep ()
{
    local dir status=0

    # The directory has sockets, so its name is short.
    dir=$(mktemp -d "${TMPDIR:-/tmp}/nbdedup-faults.XXXXXX")
    python3 "$top_srcdir/tests/faults/fault-sweep" --plugin "$plugin" \
        --nbdedup "$top_builddir/tools/nbdedup" --dir "$dir" \
        --faults "$test_programs/rigs/.libs/faults.so" \
        ${sanitizer_preload:+--preload "$sanitizer_preload"} "$@" \
        3>&- 4>&- || status=$?
    rm -rf "$dir"
    return "$status"
}

@test "one call after the other fails, everywhere: nothing is lost" {
    sweep --fixed
}

@test "each place that has to do with a file fails, and is found again" {
    run -0 sweep --places --jobs 2 --scenarios list --files lock
    [[ $output == *"list:lock:lock:ENOLCK@"*" failed | "* ]]
    [[ $output != *not-reached* ]]
    # It also opens the pool's directory, for a file without a name.
    sweep --places --jobs 2 --scenarios check --files lock
}

@test "clients do not notice that the second copy of pool.db fails, at other moments" {
    fault pool.db.copy sync 1
    fault pool.db.copy-wal write 1
    fault pool.db.copy-wal sync 3
}

@test "failing metadata loses nothing that was flushed, at other moments" {
    fault pool.db-wal write 1
    fault pool.db sync 1 100000
}

@test "many records go from a full file system, by trims and with their volume" {
    on_small_disk 200M many_records
}

@test "a client that fills the pool in a second, with blocks of 1 MiB" {
    on_small_disk 90M fast_fill 1M random 120M ''
}

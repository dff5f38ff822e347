#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# Full and failing disks.

load ../rigs/helpers
load fault

@test "a full file system refuses new data and recovers" {
    on_small_disk 64M fill_and_recover
}

@test "a client that fills the pool in a second does not take it away" {
    on_small_disk 90M fast_fill 4K random 120M flush
}

@test "the same with data that compresses" {
    on_small_disk 48M fast_fill 4K compressible 400M ''
}

@test "a full XFS, which wants room even for a socket's name" {
    need_root
    need mkfs.xfs -V
    need losetup -f
    FULL_FS=xfs on_small_disk 300M fast_fill 64K random 400M ''
}

@test "a file system that is always full, with kills and neighbours" {
    SEED=1 on_small_disk 96M full_model 5
}

@test "a file system that another process fills" {
    on_small_disk 64M neighbour
}

@test "no room for a new pool" {
    on_small_disk 8M init_without_room
}

@test "a history that has no room stops no command" {
    need jq --version
    on_small_disk 64M history_when_full
    on_small_disk 64M old_pool_when_full
}

@test "what can be written at worst can be; status of a full pool" {
    need jq --version
    on_small_disk 90M status_when_full 64K
    on_small_disk 90M status_when_full 4K
}

@test "a warning does not end with the second copy that gave way" {
    need jq --version
    on_small_disk 90M copy_gives_way
}

@test "a full file system whose records are sparse has room again" {
    on_small_disk 330M sparse_when_full 16K 6M
}

@test "drift samples take nothing of a full pool's reserve" {
    need jq --version
    on_small_disk 64M samples_when_full
}

@test "after a failed sync of the journal everything that writes gets EIO" {
    fault journal sync 1
    fault journal sync 3
}

@test "after a failed sync of the records everything that writes gets EIO" {
    fault records sync 1
}

@test "a failed write to the journal loses nothing that was flushed" {
    fault journal write 1
    fault journal write 4 100000
}

@test "a failed write to the records loses nothing that was flushed" {
    fault records write 1
    fault records write 5 100000
}

@test "clients do not notice that the second copy of pool.db fails" {
    fault pool.db.copy write 1 100000
    fault pool.db.copy-wal write 7 100000
    fault pool.db.copy-wal sync 1
}

@test "failing metadata loses nothing that was flushed" {
    fault pool.db-wal write 7 100000
    fault pool.db-wal sync 1
    fault pool.db write 1 100000
}

@test "failing reads of records are EIO, and nothing is lost" {
    fault records read 1 100000
}

@test "a bad sector of the journal keeps no closed pool closed" {
    local n nbdedup="$top_builddir/tools/nbdedup" pool="$BATS_TEST_TMPDIR/pool"
    local preload="${sanitizer_preload:+$sanitizer_preload:}$test_programs/rigs/.libs/faults.so"

    "$nbdedup" -p "$pool" init
    "$nbdedup" -p "$pool" create v 1M
    export FAULT_FILE=journal FAULT_CALL=read
    # The header's copies, then the ring.
    for n in {1..10}; do
        FAULT_NTH=$n LD_PRELOAD=$preload run -0 "$nbdedup" -p "$pool" list
        [[ $output == *v*"1.00 MiB"* ]] || fail "$n: $output"
    done
    # If nothing can be read, there may be a flushed batch.
    cksum "$pool"/{journal,pool.db,records} >before
    FAULT_NTH=5 FAULT_COUNT=100000 LD_PRELOAD=$preload \
        run -1 "$nbdedup" -p "$pool" list
    [[ $output == *"journal: 253952 bytes cannot be read, and batch 1, "*"try again"* ]] ||
        fail "$output"
    cksum "$pool"/{journal,pool.db,records} | diff before -
    run -0 "$nbdedup" -p "$pool" list
}

@test "a file system that refuses fallocate does not lose data" {
    fault records fallocate 1 100000
}

@test "a command that lacks memory for an argument is no other command" {
    local n file nbdedup="$top_builddir/tools/nbdedup" pool="$BATS_TEST_TMPDIR/pool"
    local preload="${sanitizer_preload:+$sanitizer_preload:}$test_programs/rigs/.libs/faults.so"

    "$nbdedup" -p "$pool" init
    "$nbdedup" -p "$pool" create v 1M
    # Our allocator for jansson, and jansson itself.
    for n in {1..20}; do
        for file in nbdedup 'libjansson*'; do
            FAULT_CALL=memory FAULT_FILE=$file FAULT_NTH=$n FAULT_ERRNO=12 \
                LD_PRELOAD=$preload "$nbdedup" -p "$pool" set dedup=off v || :
        done
    done
    run -0 "$nbdedup" -p "$pool" get dedup
    [[ $output != *off* ]]
}

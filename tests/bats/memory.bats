#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154,SC2030,SC2031,SC2034
#
# Memory is bounded: VmHWM of the server stays below the sum of the configured
# limits, 64 MiB, and nbdkit's request buffers.  "make check-memory" tests it
# with 10 million blocks (about 7 GB below $TMPDIR, several minutes);
# MEMORY_BLOCKS sets another number.  With MEMORY_DIR the pool is kept there,
# and an interrupted run continues where it stopped.

load ../rigs/helpers

load_and_measure ()             # DDT_CACHE RECORD_CACHE DIRTY_MAX, in MiB, BLOCKS
{
    local blocks="${MEMORY_BLOCKS:-$4}" each limit peak

    [ -z "$sanitizer_preload" ] || skip "sanitizers need memory of their own"
    if [ -n "${MEMORY_DIR:-}" ]; then
        mkdir -p "$MEMORY_DIR"
        pool="$MEMORY_DIR/pool-$1"
    else
        pool="$BATS_TEST_TMPDIR/pool"
    fi
    export NBDEDUP_POOL="$pool"
    if [ ! -e "$pool/pool.db" ]; then
        nbdedup init "$pool"
        each=$(((blocks / 4 + 64) * 4096))
        for v in a b c d; do
            nbdedup create $v $each --block-size 4K
        done
    fi

    nbdkit_args=(-t 4)
    # glibc's checks would use memory, too.
    GLIBC_TUNABLES='' serve "$pool" ddt-cache="$1M" record-cache="$2M" \
          dirty-max="$3M"
    "$test_programs/bats/memory-load" "$sock" "$(dirname "$pool")/progress-$1" \
        "$blocks" a b c d
    nbdedup stat
    nbdedup check
    # Drift may take a part of ddt-cache: the sorts spill to the disk.
    nbdedup snapshot a@golden
    nbdedup clone a@golden clone --count 2
    nbdedup drift a@golden
    nbdedup stat --ddt a@golden
    nbdedup drift --if-destroyed a b c d
    nbdedup destroy a@golden --force
    nbdedup destroy clone1
    nbdedup destroy clone2
    peak=$(server_peak_kib "$server_pid")

    # nbdkit: 4 connections, 4 threads each, requests of 64 KiB.
    limit=$((($1 + $2 + $3 + 64) * 1024 + 4 * 4 * 64))
    echo "VmHWM $peak KiB, limit $limit KiB"
    [ "$peak" -le "$limit" ] ||
        fail "VmHWM is $peak KiB, the limit $limit KiB"
    assert_num "$(pool_stat ddt.cache_bytes) <= $1 * 1048576"
}

@test "memory stays within small limits under many blocks" {
    load_and_measure 16 4 8 300000
}

@test "memory stays within the default limits under many blocks" {
    # Fewer do not fill ddt-cache, but the two others several times.
    load_and_measure 384 64 64 120000
}

#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# The file "warm": a server begins with what the caches of the last one held.
# test-warm.c is about what may be wrong with the file.

load ../rigs/helpers
load ../rigs/clients

setup ()
{
    make_pool
    nbdedup create v 64M
    random_data 4M >"$BATS_TEST_TMPDIR/data"
    nbdkit_args=()
}

# warm KEY: a figure of the server's.
warm () { nbdedup status --json | jq ".warm.$1"; }

has_loaded ()
{
    [ "$(warm waiting)" = 0 ] && [ "$(warm loaded)" -ge "$1" ]
}

# fill: write 4 MiB to the volume, and read the second MiB with a new server.
fill ()
{
    serve "$pool"
    nbdcopy "$BATS_TEST_TMPDIR/data" "$(uri_of v)"
    stop
    serve "$pool"
    io "$(uri_of v)" 'read 1M 1M'
}

# only_hot_blocks_are_there: every record in the file is overwritten; the server
# has those of the second MiB in memory.
only_hot_blocks_are_there ()
{
    local size

    damaged
    size="$(stat -c %s "$pool/records")"
    dd if=/dev/zero of="$pool/records" bs=64K seek=1 \
       count=$((size / 65536 - 1)) conv=notrunc status=none
    io "$(uri_of v)" 'read 1M 1M'
    run ! io "$(uri_of v)" 'read 2M 64K'
}

@test "after a restart hot blocks are read without the file" {
    fill
    stop
    assert_eq "$(stat -c %a "$pool/warm")" 600
    serve "$pool"
    wait_for 20 has_loaded 65          # 64 blocks of 16K, and their leaf
    only_hot_blocks_are_there
}

@test "a command between two servers keeps what the first one has left" {
    fill
    stop
    nbdedup create w 1M
    nbdedup stat
    serve "$pool"
    wait_for 20 has_loaded 65
    only_hot_blocks_are_there
}

@test "a read-only server writes nothing" {
    local before

    fill
    stop
    before="$(stat -c '%i %Y %s' "$pool/warm")"
    nbdkit -U - "$plugin" pool="$pool" read-only=on \
        --run "qemu-io -r -f raw -c 'read 3M 64K' \$uri" 3>&- 4>&-
    assert_eq "$(stat -c '%i %Y %s' "$pool/warm")" "$before"
}

@test "kill -9 keeps the lists of the session before" {
    fill
    stop
    serve "$pool"
    io "$(uri_of v)" 'write -P 5 3M 64K'
    crash
    serve "$pool"
    wait_for 20 has_loaded 65
    nbdedup check
    only_hot_blocks_are_there
}

@test "a pool without the file, or with another pool's, is whole" {
    local other="$BATS_TEST_TMPDIR/other"

    fill
    stop
    nbdedup init "$other"
    rm "$pool/warm"
    nbdedup check
    fill
    stop
    cp "$pool/warm" "$other/warm"
    nbdedup -p "$other" create v 1M
    serve "$other"
    io "$(uri_of v)" 'write -P 7 0 1M' 'read -P 7 0 1M'
    stop
    nbdedup -p "$other" check
}

@test "no caches, no file" {
    serve "$pool" primarycache=none
    io "$(uri_of v)" 'write -P 7 0 1M' 'read -P 7 0 1M'
    stop
    [ ! -e "$pool/warm" ]
}

@test "a file that cannot be written costs only its content" {
    fill
    rm -f "$pool/warm"
    mkdir "$pool/warm.new" "$pool/warm"
    stop
    serve "$pool"
    io "$(uri_of v)" 'read 1M 1M'
    stop
    rmdir "$pool/warm.new" "$pool/warm"
}

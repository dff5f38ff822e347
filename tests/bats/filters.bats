#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2016,SC2030,SC2031,SC2034,SC2154
#
# Volumes under nbdkit's own filters.

load ../rigs/helpers
load ../rigs/clients

setup ()
{
    need qemu-io --version
    need nbdcopy --version
    need jq --version
    make_pool
    nbdedup create v 4M --block-size 16K
    data="$BATS_TEST_TMPDIR/data"
    back="$BATS_TEST_TMPDIR/back"
    text_data 3M 2 >"$data"
    random_data 1M 2 >>"$data"
}

# filter NAME...: let the next server have these filters, the first one next to
# the client.
filter ()
{
    local name

    nbdkit_args=()
    for name; do
        need nbdkit --filter="$name" null --version
        nbdkit_args+=("--filter=$name")
    done
}

# round_trip [ARG...]: data written through the filters reads back through them,
# and without them after a restart.
round_trip ()
{
    serve "$pool" "$@"
    nbdcopy --flush "$data" "$(uri_of v)"
    nbdcopy "$(uri_of v)" "$back"
    cmp "$data" "$back"
    stop
    nbdkit_args=()
    serve "$pool"
    nbdcopy "$(uri_of v)" "$back"
    cmp "$data" "$back"
    stop
}

@test "data passes unchanged through filters that only watch or slow down" {
    for f in log stats; do
        filter $f
        round_trip "${f}file=$BATS_TEST_TMPDIR/$f"
        [ -s "$BATS_TEST_TMPDIR/$f" ]
    done
    filter rate
    round_trip rate=400M
    filter delay
    round_trip rdelay=1ms wdelay=1ms
    filter retry
    round_trip
    filter multi-conn
    round_trip multi-conn-mode=emulate
    filter checkwrite
    serve "$pool"
    nbdcopy "$data" "$(uri_of v)"
}

@test "data passes unchanged through filters that change requests" {
    filter blocksize
    round_trip minblock=4096 maxdata=64K
    filter fua
    round_trip fuamode=force
    filter fua
    round_trip fuamode=emulate
    filter nozero
    round_trip zeromode=none
    filter nozero
    round_trip zeromode=emulate
    filter noextents
    round_trip
    filter cacheextents
    round_trip
    filter nocache
    round_trip cachemode=none
    filter noparallel
    round_trip serialize=all-requests
    filter noparallel
    round_trip serialize=connections
}

@test "the readahead filter reads ahead through the cache request" {
    local log="$BATS_TEST_TMPDIR/requests"

    serve "$pool"
    nbdcopy --flush "$data" "$(uri_of v)"
    stop
    filter readahead log
    serve "$pool" "logfile=$log" threads=parallel
    nbdcopy --synchronous "$(uri_of v)" "$back"
    cmp "$data" "$back"
    stop
    grep -q ' Cache ' "$log"
}

@test "the cow filter writes nothing to the volume" {
    nbdkit_args=()
    serve "$pool"
    nbdcopy --flush "$data" "$(uri_of v)"
    stop
    filter cow
    serve "$pool"
    io "$(uri_of v)" 'write -P 1 0 2M' 'discard 2M 1M' 'flush' \
       'read -P 1 0 2M'
    stop
    nbdkit_args=()
    serve "$pool"
    nbdcopy "$(uri_of v)" "$back"
    cmp "$data" "$back"
}

@test "the cache filter writes back what was flushed" {
    for mode in writeback writethrough; do
        filter cache
        serve "$pool" cache=$mode
        nbdcopy --flush "$data" "$(uri_of v)"
        crash
        stop
        nbdkit_args=()
        serve "$pool"
        nbdcopy "$(uri_of v)" "$back"
        cmp "$data" "$back"
        io "$(uri_of v)" 'discard 0 4M'
        stop
    done
}

@test "the cache filter reads through" {
    filter cache
    round_trip cache-on-read=true
}

@test "the partition filter serves a partition of a volume" {
    need nbdkit partitioning --version
    nbdedup create disk 8M
    random_data 1M 21 >"$BATS_TEST_TMPDIR/p1"
    random_data 2M 22 >"$BATS_TEST_TMPDIR/p2"
    serve "$pool"
    command nbdkit -U - partitioning "$BATS_TEST_TMPDIR/p1" \
        "$BATS_TEST_TMPDIR/p2" partition-type=mbr \
        --run "nbdcopy --flush \"\$uri\" '$(uri_of disk)'"
    stop
    filter partition
    serve "$pool" partition=2
    nbdcopy "$(uri_of disk)" "$back"
    cmp "$BATS_TEST_TMPDIR/p2" "$back"
    io "$(uri_of disk)" 'write -P 3 0 2M' 'flush'
    stop
    nbdkit_args=(--filter=partition)
    serve "$pool" partition=1
    nbdcopy "$(uri_of disk)" "$back"
    cmp "$BATS_TEST_TMPDIR/p1" "$back"
}

@test "the offset and truncate filters serve a part of a volume" {
    filter offset
    serve "$pool" offset=12345 range=1M
    io "$(uri_of v)" 'write -P 8 0 1M'
    stop
    filter truncate
    serve "$pool" truncate=6M
    io "$(uri_of v)" 'read -P 0 0 12345' 'read -P 8 12345 1M' \
       'read -P 0 1060921 3133383' 'read -P 0 4M 2M'
}

@test "the luks filter encrypts: nothing of the plain text is stored" {
    need qemu-img --version
    # It measures the machine's speed, and gives up on a busy machine.
    wait_for 60 qemu-img create -q -f luks --object secret,data=open,id=s \
             -o key-secret=s,iter-time=200 "$BATS_TEST_TMPDIR/luks" 4M
    nbdedup create crypt "$(stat -c %s "$BATS_TEST_TMPDIR/luks")"
    serve "$pool"
    nbdcopy --flush "$BATS_TEST_TMPDIR/luks" "$(uri_of crypt)"
    stop

    filter luks
    echo -n open >"$BATS_TEST_TMPDIR/key"
    serve "$pool" "passphrase=+$BATS_TEST_TMPDIR/key"
    assert_eq "$(nbdinfo --size "$(uri_of crypt)")" 4194304
    nbdcopy --flush "$data" "$(uri_of crypt)"
    nbdcopy "$(uri_of crypt)" "$back"
    cmp "$data" "$back"
    stop

    nbdkit_args=()
    serve "$pool"
    nbdcopy "$(uri_of crypt)" "$back"
    run ! grep -qa "some text that compresses" "$back"
    run ! cmp -s <(head -c 4096 "$data") <(tail -c 4194304 "$back" |
                                               head -c 4096)
}

@test "the exportname filter chooses and renames exports" {
    nbdedup create w 2M
    filter exportname
    serve "$pool" exportname=w exportname-list=explicit default-export=w
    assert_eq "$(nbdinfo --list --json "$uri" |
                 jq -r '.exports[]."export-name"')" w
    assert_eq "$(nbdinfo --size "$uri")" 2097152
}

@test "several filters on top of each other" {
    filter log cache cow stats
    serve "$pool" "logfile=$BATS_TEST_TMPDIR/log" \
          "statsfile=$BATS_TEST_TMPDIR/stats"
    nbdcopy --flush "$data" "$(uri_of v)"
    nbdcopy "$(uri_of v)" "$back"
    cmp "$data" "$back"
}

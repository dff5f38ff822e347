#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# Random requests over several connections against a model in memory.

load ../rigs/helpers

# volumes SIZE NAME:BLOCK...: make volumes whose sizes differ a little, and are
# multiples of 512 bytes only.
volumes ()
{
    local size="$1" v

    shift
    for v; do
        nbdedup create "${v%%:*}" "$size" --block-size "${v##*:}"
        size=$((size + 512 * 7))
    done
}

# compare_after_restart NAME...: compare them with random-io's model.
compare_after_restart ()
{
    local name

    for name; do
        "$test_programs/rigs/read-compare" "$sock" "$name" \
            "$BATS_TEST_TMPDIR/expected/$name" 131072
    done
}

random_io ()
{
    mkdir "$BATS_TEST_TMPDIR/expected"
    RANDOM_IO_OUT="$BATS_TEST_TMPDIR/expected" \
        "$test_programs/bats/random-io" "$sock" "$@"
}

@test "random requests of any alignment, requests in parallel" {
    make_pool
    volumes 9876992 a:4096 b:16384 c:131072 d:1048576
    serve "$pool" threads=parallel dirty-max=8M
    random_io a b c d
    nbdedup check
    nbdedup scrub
    stop
    serve "$pool"
    compare_after_restart a b c d
}

@test "random requests of any alignment, one at a time" {
    make_pool --sector 4096
    volumes 7777280 a:4096 b:8192 c:65536
    serve "$pool" threads=serialize
    random_io a b c
    nbdedup check
    stop
    serve "$pool"
    compare_after_restart a b c
}

@test "random requests with the smallest limits and no caches" {
    make_pool --sector 1024
    volumes 12345344 a:4096 b:32768 c:262144 d:524288
    serve "$pool" threads=parallel dirty-max=4M ddt-cache=8M \
          record-cache=0 primarycache=none commit-interval=0.1
    random_io a b c d
    nbdedup check
    crash
    serve "$pool"
    compare_after_restart a b c d
}

@test "requests past the end are refused, and the server lives on" {
    make_pool
    nbdedup create v 1000448 --block-size 16K
    serve "$pool"
    for request in 'read 1000448 512' 'read 1000000 512' 'write 1000448 512' \
                   'write -z 999936 1024' 'discard 1000448 4096'; do
        run qemu-io -f raw -c "$request" "$uri"
        [[ $output != *"ops;"* ]] || fail "$request was not refused"
    done
    qemu-io -f raw -c 'write -P 7 999936 512' -c 'read -P 7 999936 512' "$uri"
}

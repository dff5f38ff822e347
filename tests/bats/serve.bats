#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2016,SC2030,SC2031,SC2034,SC2154
#
# A server as clients see it: sizes, flags, data, holes, and what survives a
# crash.  teardown runs "nbdedup check" on the pool after every test.

load ../rigs/helpers
load ../rigs/clients

setup ()
{
    need qemu-io --version
    need nbdinfo --version
    need nbdcopy --version
}

# map URI: "OFFSET LENGTH TYPE" of each extent; TYPE 0 data, 3 hole and zero.
map ()
{
    nbdinfo --map --json "$1" | jq -r '.[] | "\(.offset) \(.length) \(.type)"'
}

pool_with ()
{
    make_pool
    while [ $# -gt 0 ]; do
        nbdedup create "$1" "$2" --block-size 16K
        shift 2
    done
}

#----------------------------------------------------------------------
# Sizes and flags

@test "any multiple of 512 bytes is served as the size that it is" {
    make_pool
    nbdedup create a 512
    nbdedup create b $((10 * 1024 * 1024 + 1536))
    nbdedup create c 8T
    serve "$pool"
    assert_eq "$(nbdinfo --size "$(uri_of a)")" 512
    assert_eq "$(nbdinfo --size "$(uri_of b)")" 10487296
    assert_eq "$(nbdinfo --size "$(uri_of c)")" 8796093022208
}

@test "a client is told all that the server can do" {
    local json

    pool_with v 1M
    serve "$pool"
    json=$(nbdinfo --json "$(uri_of v)")
    for flag in can_cache can_fast_zero can_flush can_fua can_multi_conn \
                can_trim can_zero; do
        assert_eq "$(jq ".exports[0].$flag" <<<"$json")" true "$flag"
    done
    assert_eq "$(jq '.exports[0].is_read_only' <<<"$json")" false
    assert_eq "$(jq '.exports[0].is_rotational' <<<"$json")" false
    assert_eq "$(jq -r '.exports[0].contexts[]' <<<"$json")" base:allocation
}

@test "the preferred block size is the volume's, the least is one byte" {
    local json

    make_pool
    for size in 4K 64K 1M; do
        nbdedup create "v$size" 4M --block-size "$size"
    done
    serve "$pool"
    for pair in 4K:4096 64K:65536 1M:1048576; do
        json=$(nbdinfo --json "$(uri_of "v${pair%:*}")")
        assert_eq "$(jq '.exports[0].block_size_preferred' <<<"$json")" \
                  "${pair#*:}"
        assert_eq "$(jq '.exports[0].block_size_minimum' <<<"$json")" 1
        assert_num "$(jq '.exports[0].block_size_maximum' <<<"$json") >= 1048576"
    done
}

@test "nbdkit -r serves read-only" {
    pool_with v 1M
    nbdkit_args=(-r)
    serve "$pool"
    assert_eq "$(nbdinfo --json "$(uri_of v)" |
                 jq '.exports[0].is_read_only')" true
    run ! qemu-io -f raw "$(uri_of v)" -c 'write 0 4k'
    nbdcopy "$(uri_of v)" - | cmp -n 1048576 - /dev/zero
}

#----------------------------------------------------------------------
# Reading and writing

@test "a new volume reads as zeroes and is one hole" {
    pool_with v 64M
    serve "$pool"
    io "$(uri_of v)" 'read -P 0 0 64M'
    assert_eq "$(map "$(uri_of v)")" "0 67108864 3"
}

@test "what was written is read back, across block boundaries and unaligned" {
    pool_with v 10M
    serve "$pool"
    io "$(uri_of v)" \
       'write -P 0x61 4095 300' \
       'write -P 0x62 16383 2' \
       'write -P 0x63 100000 70001' \
       'write -P 0x64 120000 1' \
       'read -P 0 0 4095' \
       'read -P 0x61 4095 300' \
       'read -P 0 4395 11988' \
       'read -P 0x62 16383 2' \
       'read -P 0 16385 83615' \
       'read -P 0x63 100000 20000' \
       'read -P 0x64 120000 1' \
       'read -P 0x63 120001 50000' \
       'read -P 0 170001 100000'
    stop
    serve "$pool"
    io "$(uri_of v)" \
       'read -P 0x61 4095 300' 'read -P 0x62 16383 2' \
       'read -P 0x63 100000 20000' 'read -P 0x64 120000 1' \
       'read -P 0x63 120001 50000' 'read -P 0 170001 100000'
}

@test "the last block of a volume that ends inside a block can be used" {
    make_pool
    nbdedup create v $((1024 * 1024 + 512)) --block-size 64K
    serve "$pool"
    io "$(uri_of v)" 'write -P 7 1048576 512' 'read -P 7 1048576 512' \
       'read -P 0 983040 65536' 'write -z 1048577 100' \
       'read -P 7 1048576 1' 'read -P 0 1048577 100' 'read -P 7 1048677 411'
    assert_eq "$(map "$(uri_of v)" | tail -1)" "1048576 512 0"
    run ! qemu-io -f raw "$(uri_of v)" -c 'write 1048576 513'
}

@test "random data comes back byte for byte over several connections" {
    pool_with v 32M
    serve "$pool"
    random_data 32M 7 >"$BATS_TEST_TMPDIR/data"
    nbdcopy --connections=4 --flush "$BATS_TEST_TMPDIR/data" "$(uri_of v)"
    nbdcopy --connections=4 "$(uri_of v)" "$BATS_TEST_TMPDIR/back"
    cmp "$BATS_TEST_TMPDIR/data" "$BATS_TEST_TMPDIR/back"
}

@test "data is right with threads=parallel and with threads=serialize" {
    pool_with v 16M
    for threads in parallel serialize; do
        serve "$pool" threads=$threads
        text_data 16M 3 >"$BATS_TEST_TMPDIR/data"
        nbdcopy --connections=3 --requests=32 "$BATS_TEST_TMPDIR/data" \
                "$(uri_of v)"
        nbdcopy --connections=3 "$(uri_of v)" "$BATS_TEST_TMPDIR/back"
        cmp "$BATS_TEST_TMPDIR/data" "$BATS_TEST_TMPDIR/back"
        stop
    done
}

@test "several volumes are written at once through one server" {
    local pids=()

    pool_with a 12M b 12M c 12M d 12M
    serve "$pool"
    for v in a b c d; do
        text_data 12M "$(printf %d "'$v")" >"$BATS_TEST_TMPDIR/$v"
        nbdcopy "$BATS_TEST_TMPDIR/$v" "$(uri_of $v)" 3>&- 4>&- &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid"; done
    for v in a b c d; do
        nbdcopy "$(uri_of $v)" "$BATS_TEST_TMPDIR/back"
        cmp "$BATS_TEST_TMPDIR/$v" "$BATS_TEST_TMPDIR/back"
    done
}

@test "the same data in two volumes is stored once" {
    local before

    pool_with a 8M b 8M
    serve "$pool"
    random_data 8M 5 >"$BATS_TEST_TMPDIR/data"
    nbdcopy --flush "$BATS_TEST_TMPDIR/data" "$(uri_of a)"
    before=$(pool_stat records)
    assert_eq "$before" 512
    nbdcopy --flush "$BATS_TEST_TMPDIR/data" "$(uri_of b)"
    assert_eq "$(pool_stat records)" 512
    assert_eq "$(pool_stat logical_bytes)" $((16 * 1024 * 1024))
}

#----------------------------------------------------------------------
# Zeroes, holes, trim

@test "data and holes are reported as they are" {
    pool_with v 1M
    serve "$pool"
    io "$(uri_of v)" 'write -P 1 64k 32k' 'write -P 2 512k 1' 'flush'
    assert_eq "$(map "$(uri_of v)")" \
"0 65536 3
65536 32768 0
98304 425984 3
524288 16384 0
540672 507904 3"
}

@test "zeroes written as data become holes" {
    pool_with v 1M
    serve "$pool"
    io "$(uri_of v)" 'write -P 1 0 256k' 'flush' 'write -P 0 32k 64k' 'flush' \
       'read -P 1 0 32k' 'read -P 0 32k 64k' 'read -P 1 96k 160k'
    assert_eq "$(map "$(uri_of v)")" \
"0 32768 0
32768 65536 3
98304 163840 0
262144 786432 3"
    assert_eq "$(volume_stat v logical_bytes)" $((192 * 1024))
}

@test "writing zeroes clears exactly the bytes named" {
    pool_with v 1M
    serve "$pool"
    io "$(uri_of v)" 'write -P 9 0 512k' 'write -z 1001 200003' \
       'read -P 9 0 1001' 'read -P 0 1001 200003' 'read -P 9 201004 323284' \
       'flush' \
       'read -P 9 0 1001' 'read -P 0 1001 200003' 'read -P 9 201004 323284'
}

@test "trim clears exactly the bytes named" {
    pool_with v 1M
    serve "$pool"
    io "$(uri_of v)" 'write -P 9 0 512k' 'flush' 'discard 512 100k' \
       'read -P 9 0 512' 'read -P 0 512 100k' 'read -P 9 102912 421376'
    io "$(uri_of v)" 'discard 0 512k' 'flush' 'read -P 0 0 512k'
    assert_eq "$(map "$(uri_of v)")" "0 1048576 3"
    assert_eq "$(volume_stat v logical_bytes)" 0
    assert_eq "$(pool_stat records)" 0
}

@test "a fast zero always works" {
    pool_with v 64M
    serve "$pool"
    io "$(uri_of v)" 'write -P 9 0 1M' 'write -z -n 1 1000000' \
       'write -z -n 2M 32M' 'write -z -u 0 1M' 'read -P 0 0 64M'
}

@test "a volume is overwritten with the same and with other data" {
    pool_with v 4M
    serve "$pool"
    io "$(uri_of v)" 'write -P 1 0 4M' 'flush' 'write -P 1 0 4M' 'flush' \
       'write -P 2 1M 1M' 'flush' 'write -P 3 1M 1M' 'write -P 1 1M 1M' \
       'flush' 'read -P 1 0 4M'
    assert_eq "$(pool_stat records)" 1
}

#----------------------------------------------------------------------
# What survives a crash

@test "flushed data survives kill -9 of the server" {
    pool_with v 24M
    serve "$pool" commit-interval=3600
    random_data 20M 11 >"$BATS_TEST_TMPDIR/data"
    truncate -s 24M "$BATS_TEST_TMPDIR/data"
    nbdcopy --flush "$BATS_TEST_TMPDIR/data" "$(uri_of v)"
    crash
    serve "$pool"
    nbdcopy "$(uri_of v)" "$BATS_TEST_TMPDIR/back"
    cmp "$BATS_TEST_TMPDIR/data" "$BATS_TEST_TMPDIR/back"
}

@test "a write with FUA survives kill -9 of the server, without a flush" {
    pool_with v 1M
    serve "$pool" commit-interval=3600
    hold "$(uri_of v)" 'write -f -P 0x71 5000 30000' 'write -f -P 0x72 6000 10'
    crash
    let_go
    serve "$pool"
    io "$(uri_of v)" 'read -P 0x71 5000 1000' 'read -P 0x72 6000 10' \
       'read -P 0x71 6010 28990' 'read -P 0 0 5000'
}

@test "zeroes with FUA survive kill -9 of the server" {
    pool_with v 1M
    serve "$pool" commit-interval=3600
    io "$(uri_of v)" 'write -P 1 0 256k' 'flush'
    hold "$(uri_of v)" 'write -z -f 100 100000' 'write -z -u -f 128k 32k'
    crash
    let_go
    serve "$pool"
    io "$(uri_of v)" 'read -P 1 0 100' 'read -P 0 100 100000' \
       'read -P 1 100100 30972' 'read -P 0 128k 32k' 'read -P 1 160k 96k'
}

@test "a flush on one connection covers what another one wrote" {
    pool_with v 1M
    serve "$pool" commit-interval=3600
    hold "$(uri_of v)" 'write -P 0x33 1 99999'
    io "$(uri_of v)" 'flush'
    crash
    let_go
    serve "$pool"
    io "$(uri_of v)" 'read -P 0x33 1 99999'
}

@test "flushed data that another volume wrote first survives kill -9" {
    pool_with a 1M b 1M
    serve "$pool" commit-interval=3600
    hold "$(uri_of a)" 'write -P 0x44 0 512k'
    io "$(uri_of b)" 'write -P 0x44 0 512k' 'flush'
    crash
    let_go
    serve "$pool"
    io "$(uri_of b)" 'read -P 0x44 0 512k'
}

@test "commit-interval bounds how long a write stays volatile" {
    pool_with v 1M
    serve "$pool" commit-interval=0.2
    hold "$(uri_of v)" 'write -P 0x55 12345 54321'
    # The commit cannot be seen from outside; this is 20 times the interval.
    sleep 4
    crash
    let_go
    serve "$pool"
    io "$(uri_of v)" 'read -P 0x55 12345 54321'
}

@test "what was answered is durable when the server ends, flushed or not" {
    pool_with v 1M
    serve "$pool" commit-interval=3600
    hold "$(uri_of v)" 'write -P 0x66 1 600000'
    kill "$server_pid"
    let_go
    wait_for 30 server_is_gone "$server_pid"
    stop
    serve "$pool"
    io "$(uri_of v)" 'read -P 0x66 1 600000'
}

@test "a client that hangs up in the middle of its requests harms nobody" {
    need perl -MIO::Socket::UNIX -e 1
    pool_with v 8M w 1M
    serve "$pool"
    hold "$(uri_of w)" 'write -P 0x77 0 1M'
    perl "$top_srcdir/tests/bats/nbd-hangup.pl" "$sock" v 150
    kill -0 "$server_pid"
    kill -0 "$holder"
    let_go
    io "$(uri_of w)" 'read -P 0x77 0 1M'
    io "$(uri_of v)" 'write -P 1 0 8M' 'read -P 1 0 8M'
}

@test "a client sees a new size at its next connection" {
    pool_with v 1M
    serve "$pool"
    io "$(uri_of v)" 'write -P 1 0 1M'
    nbdedup resize v 3M
    assert_eq "$(nbdinfo --size "$(uri_of v)")" 3145728
    io "$(uri_of v)" 'read -P 1 0 1M' 'read -P 0 1M 2M' 'write -P 2 2M 1M' \
       'read -P 2 2M 1M'
}

@test "a volume made while the server runs can be attached at once" {
    make_pool
    serve "$pool"
    nbdedup create later 1M
    io "$(uri_of later)" 'write -P 1 0 1M' 'read -P 1 0 1M'
}

@test "every primarycache mode and the smallest caches give the same data" {
    pool_with v 24M
    text_data 24M 9 >"$BATS_TEST_TMPDIR/data"
    for mode in all metadata none; do
        serve "$pool" primarycache=$mode ddt-cache=8M record-cache=0 \
              dirty-max=4M
        nbdcopy --flush "$BATS_TEST_TMPDIR/data" "$(uri_of v)"
        nbdcopy "$(uri_of v)" "$BATS_TEST_TMPDIR/back"
        cmp "$BATS_TEST_TMPDIR/data" "$BATS_TEST_TMPDIR/back"
        stop
    done
}

# A killed server that holds the lock until its last thread ends.
hold_lock_as_zombie ()
{
    python3 -c '
import fcntl, os, struct, sys, time
pool, seconds, alive = sys.argv[1], float(sys.argv[2]), sys.argv[3] == "alive"
child = os.fork()
if child == 0:
    if alive:
        time.sleep(60)
    os._exit(0)
fd = os.open(pool + "/lock", os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 0)
os.write(fd, b"server %d nbdkit\n" % child)
for byte in 0, 1:
    fcntl.fcntl(fd, 37, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, byte, 1, 0))
open(pool + "/../held", "w").close()
end = time.monotonic() + seconds
while time.monotonic() < end and not os.path.exists(pool + "/../release"):
    time.sleep(0.05)
os.kill(child, 9)
os.waitpid(child, 0)' "$@" 3>&- 4>&- &
    holder=$!
    wait_for 10 test -e "$1/../held"
}

@test "a server waits for one that was killed and is not quite gone" {
    need python3 --version
    make_pool
    nbdedup create v 1M
    hold_lock_as_zombie "$pool" 1 dead
    serve "$pool"
    wait "$holder"
    stop
    rm "$pool/../held"
    hold_lock_as_zombie "$pool" 30 alive
    run ! timeout 60 \
        env ${sanitizer_preload:+LD_PRELOAD="$sanitizer_preload"} \
        nbdkit -f -U "$BATS_TEST_TMPDIR/s" "$plugin" "pool=$pool"
    touch "$pool/../release"
    [[ $output == *"in use by nbdkit"* ]] || fail "$output"
    wait "$holder"
}

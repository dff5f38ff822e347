#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# Dedup, compression, holes and space, compared with figures worked out by hand.

load ../rigs/helpers

setup ()
{
    need qemu-io --version
    need jq --version
    data="$BATS_TEST_TMPDIR/data"
}

# put NAME OFFSET FILE: write a file's bytes to a volume, and flush.
put ()
{
    local output

    output=$(qemu-io -f raw -c "write -s $3 $2 $(stat -c %s "$3")" \
                     -c flush "$(uri_of "$1")") || fail "$output"
    [[ $output != *"failed"* ]] || fail "$output"
}

# get NAME OFFSET FILE: the volume must have the file's bytes there.
get ()
{
    nbdedup_read "$1" "$2" "$(stat -c %s "$3")" | cmp - "$3"
}

nbdedup_read ()
{
    nbdcopy "$(uri_of "$1")" - | tail -c +$(($2 + 1)) | head -c "$3"
}

# io [-t] NAME CMD...: qemu-io commands that must succeed.  -t: without the
# flush that qemu-io otherwise sends after each write.
io ()
{
    local args=() name c output

    [ "$1" != -t ] || { args=(-t writeback); shift; }
    name="$1"
    shift
    for c; do
        args+=(-c "$c")
    done
    output=$(qemu-io -f raw "${args[@]}" "$(uri_of "$name")") ||
        fail "$output"
    [[ $output != *"failed"* ]] || fail "$output"
}

assert_stat ()
{
    assert_eq "$(pool_stat "$1")" "$2" "$1"
}

@test "equal blocks are stored once, over volumes, requests and time" {
    make_pool
    nbdedup create a 8M --block-size 4K
    nbdedup create b 8M --block-size 4K
    serve "$pool"
    random_data 256K 1 >"$data"
    put a 0 "$data"
    put b 40960 "$data"
    put a 4M "$data"
    get a 4194304 "$data"
    get b 40960 "$data"

    assert_stat records 64
    assert_stat record_bytes 262144
    assert_stat stored_bytes 262144
    assert_stat logical_bytes 786432
    assert_stat dedup_ratio 3
    assert_stat compress_ratio 1
    assert_eq "$(volume_stat a logical_bytes)" 524288
    assert_eq "$(volume_stat b own_bytes)" 262144
    # Use one document, because the size of the metadata changes.
    nbdedup stat --json >"$BATS_TEST_TMPDIR/stat"
    assert_num "$(jq '.pool.reduction * (.pool.stored_bytes +
        .pool.metadata_bytes) / .pool.logical_bytes - 1 | fabs' \
        "$BATS_TEST_TMPDIR/stat") < 0.000001"

    # After a restart the index still knows the contents.
    stop
    serve "$pool"
    put b 4M "$data"
    assert_stat records 64
    assert_stat dedup_ratio 4
}

@test "blocks of zeroes are holes, however they are written" {
    make_pool
    nbdedup create v 1M --block-size 16K
    serve "$pool"
    random_data 64K 1 >"$data"
    put v 0 "$data"
    put v 512K "$data"
    assert_eq "$(volume_stat v logical_bytes)" 131072

    # Zero two of four blocks by plain writes, one in pieces, and one by zero.
    head -c 32K /dev/zero >"$data.zero"
    put v 0 "$data.zero"
    io v 'write -P 0 32768 8192' 'write -P 0 40960 8191' 'write -P 0 49151 1' \
       'write -z 49152 16384'
    assert_eq "$(volume_stat v logical_bytes)" 65536
    assert_stat records 4

    assert_eq "$(nbdinfo --map --json "$uri" |
        jq -c '[.[] | select (.type == 0) | [.offset, .length]]')" \
        '[[524288,65536]]'
    assert_eq "$(nbdinfo --map --json "$uri" |
        jq -c '[.[] | select (.type == 3) | [.offset, .length]]')" \
        '[[0,524288],[589824,458752]]'
}

@test "a pool without data has no ratios" {
    make_pool
    nbdedup create v 1G
    assert_stat records 0
    assert_stat dedup_ratio null
    assert_stat compress_ratio null
    serve "$pool"
    io v 'write -P 0 0 1M' 'write -z 1M 1M' 'discard 2M 1M'
    assert_stat logical_bytes 0
    assert_stat dedup_ratio null
    assert_stat stored_bytes 0
}

@test "over ddt-quota new data is stored without dedup, and counted" {
    local data="$BATS_TEST_TMPDIR/data"

    make_pool
    nbdedup create v 4M --block-size 4K
    nbdedup create w 4M --block-size 4K
    random_data 1M 1 >"$data-1"
    random_data 400K 2 >"$data-2"
    random_data 200K 3 >"$data-3"
    serve "$pool"
    io v "write -s $data-1 0 1M"
    assert_stat records 256
    assert_stat ddt.over_quota null
    nbdedup set ddt-quota=4K
    assert_stat ddt.over_quota 0

    # They are not in the table, so not found again; those in the table are.
    io v "write -s $data-2 1M 400K"
    assert_stat records 356
    assert_stat ddt.over_quota 100
    io w "write -s $data-2 0 400K" "write -s $data-1 1M 1M"
    assert_stat records 456
    assert_stat ddt.entries 256
    assert_stat ddt.over_quota 200
    nbdedup stat | grep -E '^over ddt-quota +200$'
    nbdedup stat --prometheus | grep -x 'nbdedup_ddt_over_quota_total 200'

    nbdedup set ddt-quota=none
    io v "write -s $data-3 2M 200K"
    io w "write -s $data-3 2M 200K"
    assert_stat records 506
    assert_stat ddt.over_quota 200
    assert_stat ddt.over_quota_bytes 819200
    nbdedup stat --prometheus |
        grep -x 'nbdedup_ddt_over_quota_bytes_total 819200'

    # The pool keeps the figures.
    crash
    assert_stat ddt.over_quota 200
    assert_eq "$(nbdedup --read-only stat --json |
                     jq .pool.ddt.over_quota_bytes)" 819200
    nbdedup set ddt-quota=4K
    serve "$pool"
    io v "write -P 7 3M 4K"
    assert_stat ddt.over_quota 201
    nbdedup set ddt-quota=none
    assert_stat ddt.over_quota_bytes 823296
    nbdcopy "$(uri_of w)" "$data"
    cmp -n 400K "$data" "$data-2"
    cmp -n 1M -i 1M:0 "$data" "$data-1"
}

@test "several small writes to one block become one record" {
    local i commands=() before

    make_pool
    nbdedup create v 1M --block-size 64K
    serve "$pool" commit-interval=100
    before=$(( $(pool_stat ddt.cache_hits) + $(pool_stat ddt.cache_misses) ))
    for i in $(seq 0 127); do
        commands+=("write -P $((i + 1)) $((i * 512)) 512")
    done
    io -t v "${commands[@]}"
    assert_stat records 1
    assert_stat record_bytes 65536

    # Each version of a block that was hashed has used the index once.
    assert_num "$(pool_stat ddt.cache_hits) + $(pool_stat ddt.cache_misses) \
        - $before <= 4"
    for i in 0 77 127; do
        io v "read -P $((i + 1)) $((i * 512)) 512"
    done
}

@test "the last block counts whole, and equals a padded one" {
    make_pool
    nbdedup create v 41472 --block-size 4K      # 10 blocks and 512 bytes
    serve "$pool"
    random_data 512 1 >"$data"
    put v 40960 "$data"
    assert_stat logical_bytes 4096
    put v 8192 "$data"
    assert_stat logical_bytes 8192
    assert_stat records 1
    assert_stat dedup_ratio 2
}

@test "dedup=off stores every block, dedup=verify shares as on does" {
    make_pool
    nbdedup create on 4M --block-size 4K
    nbdedup create off 4M --block-size 4K --dedup off
    nbdedup create verify 4M --block-size 4K --dedup verify
    serve "$pool"
    random_data 64K 1 >"$data"
    put on 0 "$data"
    put verify 0 "$data"
    put verify 1M "$data"
    assert_stat records 16
    put off 0 "$data"
    put off 1M "$data"
    assert_stat records 48
    assert_stat logical_bytes $((5 * 65536))

    # A change of the property affects only new writes.
    nbdedup set dedup=on off
    put off 2M "$data"
    assert_stat records 48
    nbdedup set dedup=off on
    put on 1M "$data"
    assert_stat records 64
    get off 1048576 "$data"
    get verify 1048576 "$data"
}

@test "volumes of different domains never share" {
    make_pool
    for v in a b c d; do
        nbdedup create $v 1M --block-size 4K
    done
    nbdedup set domain=red a
    nbdedup set domain=red b
    nbdedup set domain=blue c
    serve "$pool"
    random_data 64K 1 >"$data"
    for v in a b c d; do
        put $v 0 "$data"
        put $v 512K "$data"
    done
    assert_stat records 48
    for v in a b c d; do
        get $v 524288 "$data"
    done
}

@test "every block size from 4K to 1M" {
    local bs n=0

    make_pool
    text_data 3000000 1 >"$data"
    for bs in 4K 8K 16K 32K 64K 128K 256K 512K 1M; do
        nbdedup create "x$bs" 8M --block-size $bs
        nbdedup create "y$bs" 8M --block-size $bs
    done
    serve "$pool"
    for bs in 4K 8K 16K 32K 64K 128K 256K 512K 1M; do
        local bytes=$((${bs%[KM]} * 1024))
        [ $bs != 1M ] || bytes=1048576

        put "x$bs" 0 "$data"
        put "y$bs" 4M "$data"
        n=$((n + (3000000 + bytes - 1) / bytes))
        assert_stat records $n
        get "x$bs" 0 "$data"
        get "y$bs" 4194304 "$data"
        io "x$bs" 'write -P 9 2999999 3' 'read -P 9 2999999 3'
        put "x$bs" 0 "$data"
        io "x$bs" 'write -P 0 3000000 2'
        assert_stat records $n
    done
    assert_stat dedup_ratio 2
}

@test "block sizes other than those of nbdedup-create(1) are refused" {
    make_pool
    for bs in 0 512 2K 4095 5K 2M 1G 4294967296 -4096 x; do
        run -2 nbdedup create v 1M --block-size $bs
    done
    make_pool_8k="$BATS_TEST_TMPDIR/pool8k"
    nbdedup init "$make_pool_8k" --sector 8192
    run -2 nbdedup -p "$make_pool_8k" create v 1M --block-size 4K
}

@test "a record is compressed only if that saves a sector" {
    make_pool
    nbdedup create v 4M --block-size 4K --compress lz4
    nbdedup create w 4M --block-size 4K --compress zstd
    serve "$pool"

    # 3800 bytes of noise: LZ4 or zstd save less than a sector.
    { random_data 3800 1; head -c 296 /dev/zero; } >"$data"
    put v 0 "$data"
    assert_stat stored_bytes 4096
    { random_data 3800 2; head -c 296 /dev/zero; } >"$data.2"
    put w 0 "$data.2"
    assert_stat stored_bytes 8192
    io v 'write -P 0 0 4096'
    io w 'write -P 0 0 4096'
    assert_stat stored_bytes 0

    # One letter takes one sector; half noise takes 2048 bytes and a few.
    io v 'write -P 65 0 4096'
    assert_stat stored_bytes 512
    io w 'write -P 66 0 4096'
    assert_stat stored_bytes 1024
    { random_data 2048 3; head -c 2048 /dev/zero; } >"$data.3"
    put v 4096 "$data.3"
    assert_stat stored_bytes $((1024 + 2560))
    get v 4096 "$data.3"
}

@test "with 4 KiB sectors, 4 KiB blocks are not compressed, larger ones are" {
    make_pool --sector 4K
    nbdedup create v 4M --block-size 4K
    nbdedup create w 4M --block-size 16K
    serve "$pool"
    io v 'write -P 65 0 8192'
    assert_stat records 1
    assert_stat stored_bytes 4096
    io w 'write -P 65 0 32768'
    assert_stat records 2
    assert_stat stored_bytes 8192
    assert_stat record_bytes 20480
    assert_stat compress_ratio 2.5
}

@test "codecs mix in one volume" {
    local codec i=0 total=0

    make_pool
    nbdedup create v 64M --block-size 64K
    serve "$pool"
    for codec in none lz4 zstd zstd-1 zstd-19 none; do
        nbdedup set "compress=$codec" v
        assert_eq "$(nbdedup get compress v --json |
            jq -r '.properties.compress')" "$codec"
        text_data 1M $((i + 1)) >"$data.$i"
        put v $((i * 2097152)) "$data.$i"
        before=$total
        total=$(pool_stat stored_bytes)
        if [ $codec = none ]; then
            assert_eq $((total - before)) 1048576
        else
            assert_num "$((total - before)) < 524288"
        fi
        i=$((i + 1))
    done
    for i in 0 1 2 3 4 5; do
        get v $((i * 2097152)) "$data.$i"
    done
    stop
    serve "$pool"
    for i in 0 1 2 3 4 5; do
        get v $((i * 2097152)) "$data.$i"
    done
    nbdedup scrub
}

@test "incompressible data is stored as it is with every codec" {
    local codec

    make_pool
    random_data 1M 1 >"$data"
    for codec in lz4 zstd zstd-19; do
        nbdedup create "$codec" 4M --block-size 16K --compress "$codec"
        serve "$pool"
        put "$codec" 0 "$data"
        assert_stat stored_bytes 1048576
        stop
        nbdedup destroy "$codec" --wait
        assert_stat stored_bytes 0
    done
}

@test "space of trimmed, zeroed and overwritten blocks is used again" {
    local i peak=0 now

    make_pool
    nbdedup create v 32M --block-size 16K
    serve "$pool" commit-interval=0.2
    for i in $(seq 1 12); do
        random_data 8M "$i" >"$data"
        put v 0 "$data"
        case $((i % 3)) in
            0) io v 'discard 0 8M' flush ;;
            1) io v 'write -z 0 8M' flush ;;
        esac
        sleep 0.3
        now=$(pool_stat file_bytes)
        [ "$i" -gt 4 ] || peak=$((now > peak ? now : peak))
    done
    # Old and new state at the same time, and the spare segments.
    assert_num "$now <= $peak"
    assert_num "$now <= 48 * 1048576"
    io v 'discard 0 32M' flush
    assert_stat records 0
    assert_stat stored_bytes 0
    assert_stat logical_bytes 0
}

@test "a destroyed volume's space is given back, what others share is not" {
    make_pool
    nbdedup create a 16M --block-size 4K
    nbdedup create b 16M --block-size 4K
    serve "$pool"
    random_data 4M 1 >"$data"
    put a 0 "$data"
    random_data 8M 1 >"$data.2"     # its first 4 MiB are the same
    put b 0 "$data.2"
    assert_stat records 2048
    nbdedup destroy a --wait
    assert_stat records 2048
    get b 0 "$data.2"
    nbdedup create a 16M --block-size 4K
    put a 0 "$data"
    assert_stat records 2048
    nbdedup destroy b --wait
    assert_stat records 1024
    assert_stat stored_bytes 4194304
    assert_stat freeing_bytes 0
    get a 0 "$data"
}

@test "figures include writes that were answered but not flushed" {
    make_pool
    nbdedup create v 16M --block-size 4K
    serve "$pool" commit-interval=1000
    random_data 1M 1 >"$data"
    cat "$data" "$data" >"$data.2"
    # The connection stays open, and sends no flush, while stat looks.
    { printf 'write -s %s 0 2M\n' "$data.2"
      wait_for 60 test -e "$BATS_TEST_TMPDIR/seen"
      printf 'quit\n'; } |
        qemu-io -f raw -t writeback "$uri" >"$BATS_TEST_TMPDIR/io" 2>&1 3>&- &
    local io_pid=$!
    wait_for 20 has_logical_bytes 2097152
    assert_stat records 256
    touch "$BATS_TEST_TMPDIR/seen"
    wait $io_pid
}

has_logical_bytes ()
{
    [ "$(pool_stat logical_bytes)" = "$1" ]
}

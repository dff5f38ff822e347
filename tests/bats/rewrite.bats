#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# rewrite: the same data in another form, and duplicates that were missed.

load ../rigs/helpers
load ../rigs/clients

setup ()
{
    need jq --version
}

# rewrite NAME [OPTION] JQ: rewrite, and print what jq makes of the result.
rewrite ()
{
    nbdedup rewrite "${@:1:$#-1}" --json >result
    jq -r "${*: -1}" result
}

# saved: print what the last rewrite says that it has saved.
saved ()
{
    jq '.before_bytes - .after_bytes' result
}

# drift_counts: print what drift says of sharing, without stored bytes.
drift_counts ()
{
    nbdedup drift golden@1 --json |
        jq -c 'del(.time, .fleet.distinct_stored_bytes,
                   .clones[].only_here_bytes)'
}

same_data ()
{
    nbdedup export golden - | cmp - a
    nbdedup export golden@1 - | cmp - a
    nbdedup export one - | cmp - b
    nbdedup export two - | cmp - a
    nbdedup check >/dev/null
}

# A golden image, whose head has gone on, and two clones, of which one has other
# blocks.
golden ()
{
    make_pool --compress none --block-size 8K
    { text_data 3M; random_data 1M; } >a
    { text_data 1M 7; tail -c 3M a; } >b
    nbdedup import golden a
    nbdedup snapshot golden@1
    nbdedup clone golden@1 one
    nbdedup clone golden@1 two
    nbdedup import b b
}

rewrites ()
{
    local drift stored records

    golden
    [ -z "$1" ] || serve "$pool"
    nbdcopy_to one b
    drift=$(drift_counts)
    records=$(pool_stat records)
    stored=$(pool_stat stored_bytes)
    nbdedup set compress=zstd-5 golden
    # 128 blocks are random, and stay.
    assert_eq "$(rewrite golden .rewritten_records)" 384
    assert_eq "$(jq -c '[.records, .joined_records]' result)" "[512,0]"
    assert_num "$(saved) > 2000000"
    assert_eq "$(pool_stat stored_bytes)" $(( stored - $(saved) ))
    assert_eq "$(pool_stat records)" "$records"
    assert_eq "$(drift_counts)" "$drift"
    assert_eq "$(volume_stat golden own_bytes)" 0
    same_data

    # The clone's own blocks are not the golden image's.
    nbdedup set compress=lz4 one
    stored=$(pool_stat stored_bytes)
    assert_num "$(rewrite one .rewritten_records) >= 128"
    assert_eq "$(pool_stat stored_bytes)" $(( stored - $(saved) ))
    assert_eq "$(rewrite one .rewritten_records)" 0
    assert_eq "$(saved)" 0
    assert_eq "$(drift_counts)" "$drift"
    same_data

    # And back to what it was, for all that the two refer to.
    nbdedup set compress=none golden
    nbdedup set compress=none one
    rewrite golden@1 .rewritten_records
    assert_num "$(saved) < -1000000"
    rewrite one .rewritten_records
    assert_eq "$(pool_stat compress_ratio)" 1
    assert_eq "$(drift_counts)" "$drift"
    same_data
    nbdedup scrub >/dev/null
}

nbdcopy_to ()
{
    if [ ${#servers[@]} != 0 ]; then
        nbdcopy --flush "$2" "$(uri_of "$1")"
    else
        serve "$pool"
        nbdcopy --flush "$2" "$(uri_of "$1")"
        stop
    fi
}

@test "rewrite gives a volume today's compression, and sharing stays" {
    rewrites ""
}

@test "rewrite does the same through a server" {
    rewrites served
}

@test "rewrite says what it has done" {
    make_pool --compress none
    text_data 1M >a
    nbdedup import v a
    nbdedup set compress=lz4 v
    run -0 nbdedup rewrite v
    [[ $output =~ ^"rewrote 64 of 64 records: they took 1.00 MiB, and take "[1-5][0-9.]+" KiB now"$ ]]
    run -0 nbdedup rewrite v --dedup
    assert_eq "$output" "rewrote 0 of 64 records, gave up 0 duplicates: they took 0 B, and take 0 B now"
}

@test "rewrite --dedup joins what dedup=off and prune have left apart" {
    make_pool --block-size 4K
    random_data 2M >a
    nbdedup import a a
    nbdedup prune --percent 100
    nbdedup import b a
    nbdedup import c a --dedup off
    assert_eq "$(pool_stat records)" 1536
    assert_eq "$(rewrite c .joined_records)" 0
    assert_eq "$(rewrite c --dedup .joined_records)" 512
    assert_eq "$(saved)" $(( 2 << 20 ))
    assert_eq "$(pool_stat records)" 1024
    assert_eq "$(rewrite a --dedup .joined_records)" 512
    assert_eq "$(pool_stat records)" 512
    assert_eq "$(pool_stat stored_bytes)" $(( 2 << 20 ))
    for v in a b c; do
        nbdedup export "$v" - | cmp - a
    done
    nbdedup check

    # Alone, the entries come back.
    nbdedup destroy a b c --wait
    nbdedup import d a
    nbdedup prune --percent 100
    assert_eq "$(rewrite d --dedup .indexed_records)" 512
    nbdedup import e a
    assert_eq "$(pool_stat records)" 512
}

@test "rewrite --dedup lets no domains share" {
    make_pool --block-size 4K
    random_data 1M >a
    nbdedup import a a --domain one
    nbdedup import b a --domain two
    nbdedup import c a
    for v in a b c; do
        assert_eq "$(rewrite "$v" --dedup .joined_records)" 0
    done
    assert_eq "$(pool_stat records)" 768
}

# Every batch has up to 16384 records, and there are three.
many ()
{
    make_pool --compress none --block-size 4K
    text_data 180M >a
    nbdedup import v a
    nbdedup set compress=zstd-3 v
    stored=$(pool_stat stored_bytes)
}

some_is_done ()
{
    (( $(pool_stat stored_bytes) < stored ))
}

@test "rewrite is interrupted, and the next one continues" {
    local stored between

    many
    serve "$pool"
    # A shell makes background processes ignore SIGINT.
    env --default-signal=INT nbdedup rewrite v >out 2>err 3>&- 4>&- &
    pid=$!
    wait_for 60 some_is_done
    kill -INT "$pid"
    expect_failure "$pid"
    [[ $(cat out err) == "nbdedup: rewrite: interrupted"* ]]
    assert_eq "$(cat out err | wc -l)" 1
    between=$(pool_stat stored_bytes)
    nbdedup check
    nbdedup export v - | cmp - a
    nbdedup rewrite v
    assert_num "$(pool_stat stored_bytes) < $between"
    stored=$(pool_stat stored_bytes)
    assert_eq "$(rewrite v .rewritten_records)" 0
    nbdedup export v - | cmp - a
}

@test "a write for which a rewrite finds no room costs nothing" {
    local nth codec=none

    make_pool --compress none
    text_data 12M >a
    nbdedup import v a
    for nth in 1 2 3 4 5 6; do
        case $codec in
            lz4) codec=none ;;
            *) codec=lz4 ;;
        esac
        nbdedup set compress=$codec v
        FAULT_FILE=records FAULT_CALL=write FAULT_ERRNO=28 FAULT_NTH=$nth \
            LD_PRELOAD="${sanitizer_preload:+$sanitizer_preload:}$test_programs/rigs/.libs/faults.so" \
            command nbdedup rewrite v >out 2>&1 || cat out
        nbdedup export v - | cmp - a || fail "write $nth"
        nbdedup check
    done
    nbdedup scrub
}

@test "kill -9 amid a rewrite costs nothing" {
    local stored pid

    many
    serve "$pool"
    nbdedup rewrite v >out 2>&1 3>&- 4>&- &
    pid=$!
    wait_for 60 some_is_done
    crash
    wait "$pid" || :
    nbdedup check
    nbdedup export v - | cmp - a
    nbdedup rewrite v
    nbdedup check
    assert_num "$(pool_stat stored_bytes) < $stored / 2"
    nbdedup export v - | cmp - a
    nbdedup scrub
}

@test "rewrite goes on beside clients that write" {
    local i offset pid

    make_pool --compress none
    text_data 64M >a
    nbdedup import v a
    nbdedup snapshot v@1
    nbdedup set compress=zstd-9 v
    cp a now
    serve "$pool"
    nbdedup rewrite v --dedup >out 2>&1 3>&- 4>&- &
    pid=$!
    for i in $(seq 1 60); do
        offset=$(( i * 997 % 4000 * 16384 ))
        printf 'write -q -P %d %d 20k\n' "$i" "$offset"
        printf 'flush\n'
    done >commands
    qemu-io -f raw "$(uri_of v)" <commands >/dev/null
    qemu-io -f raw now <commands >/dev/null
    wait "$pid"
    nbdedup export v - | cmp - now
    nbdedup export v@1 - | cmp - a
    nbdedup check
    nbdedup scrub
    crash
    nbdedup export v - | cmp - now
}

@test "rewrite refuses what it cannot do in one line" {
    make_pool
    nbdedup create v 1M
    refused "there is no volume 'x'" rewrite x
    refused "has no snapshot 'x'" rewrite v@x
    run -2 --separate-stderr nbdedup --read-only rewrite v
    [[ $stderr == "nbdedup: rewrite: this command changes the pool"* ]]
    assert_eq "$(rewrite v .records)" 0
}

# in_use: print the least that max-size may be now.
in_use ()
{
    nbdedup set max-size=1M 2>&1 | sed -n 's/.*: \([0-9]*\) bytes are in use.*/\1/p'
}

@test "a full pool is not rewritten, and a nearly full one in small steps" {
    make_pool --compress none
    text_data 16M >a
    nbdedup import v a
    nbdedup set compress=lz4 v
    serve "$pool"
    nbdedup set max-size="$(in_use)"
    refused "the pool has reached its max-size" rewrite v
    nbdedup export v - | cmp - a
    nbdedup check
    nbdedup set max-size=$(( $(in_use) + (512 << 10) ))
    assert_eq "$(rewrite v .rewritten_records)" 1024
    assert_eq "$(pool_stat stored_bytes)" $(( (16 << 20) - $(saved) ))
    # Raw, it would not fit.
    nbdedup set compress=none v
    nbdedup set max-size="$(in_use)"
    refused "the pool has reached its max-size" rewrite v
    nbdedup export v - | cmp - a
    nbdedup check
}

#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2016,SC2030,SC2031,SC2034,SC2154
#
# Golden images as seen by NBD clients: snapshots as read-only exports, exports
# that appear and disappear, and the errors of clients whose volume is destroyed
# or rolled back.  teardown runs "nbdedup check" after every test.

load ../rigs/helpers
load ../rigs/clients

setup ()
{
    need qemu-io --version
    need qemu-img --version
    need nbdinfo --version
    need nbdcopy --version
    holders=()
}

teardown ()
{
    local pid

    exec 5>&- 6>&-
    for pid in "${holders[@]}"; do
        kill "$pid" 2>/dev/null || :
        wait "$pid" 2>/dev/null || :
    done
    stop
    check_pools
}

# golden_v1: the volume golden, 6 MiB of 16 KiB blocks, with data, text and a
# hole of 1 MiB, and its snapshot v1.
golden_v1 ()
{
    make_pool
    image=$BATS_TEST_TMPDIR/image
    { random_data 3M 1; head -c 1M /dev/zero; text_data 2M 2; } >"$image"
    nbdedup import golden "$image" --block-size 16K
    nbdedup snapshot golden@v1
}

exports ()
{
    nbdinfo --list --json "$uri" | jq -r '[.exports[]."export-name"] | join (" ")'
}

# attribute EXPORT KEY: what nbdinfo prints for it.
attribute ()
{
    nbdinfo --json "$(uri_of "$1")" | jq -r ".exports[0].$2"
}

clients_of ()
{
    nbdedup list --json |
        jq --arg n "$1" '.volumes[] | select (.name == $n) | .clients'
}

has_clients () { [ "$(clients_of "$1")" = "$2" ]; }

# attach FD EXPORT: start a client that runs the commands written to FD.
attach ()
{
    local fifo=$BATS_TEST_TMPDIR/fifo$1

    mkfifo "$fifo"
    stdbuf -oL qemu-io -f raw "$(uri_of "$2")" <"$fifo" \
           >>"$BATS_TEST_TMPDIR/client$1" 2>&1 3>&- 4>&- 5>&- 6>&- &
    holders+=($!)
    eval "exec $1>\$fifo"
    ask "$1" 'read 0 512'
    wait_for 20 said "$1" 'bytes at offset 0'
}

# ask FD COMMAND: send a command, and clear the client's earlier output.
ask ()
{
    : >"$BATS_TEST_TMPDIR/client$1"
    echo "$2" >&"$1"
}

said ()
{
    grep -q "$2" "$BATS_TEST_TMPDIR/client$1"
}

# gets_shutdown FD COMMAND: the client must get ESHUTDOWN.
gets_shutdown ()
{
    ask "$1" "$2"
    wait_for 20 said "$1" 'transport endpoint shutdown' ||
        fail "$2:" "$(cat "$BATS_TEST_TMPDIR/client$1")"
}

#----------------------------------------------------------------------
# Exports

@test "a snapshot is a read-only export with its own size" {
    golden_v1
    nbdedup resize golden 9M
    serve "$pool"
    assert_eq "$(exports)" "golden golden@v1"
    assert_eq "$(attribute golden '"export-size"')" 9437184
    assert_eq "$(attribute golden@v1 '"export-size"')" 6291456
    assert_eq "$(attribute golden is_read_only)" false
    assert_eq "$(attribute golden@v1 is_read_only)" true
    assert_eq "$(attribute golden@v1 block_size_preferred)" 16384
    assert_eq "$(attribute golden@v1 can_multi_conn)" true
    assert_eq "$(attribute golden@v1 can_trim)" false
    assert_eq "$(attribute golden@v1 can_zero)" false
    assert_eq "$(attribute golden@v1 description)" "snapshot, read-only"
    assert_eq "$(attribute golden description)" volume
    assert_eq "$(nbdinfo --list --json "$uri" |
                     jq -c '[.exports[].description]')" \
              '["volume","snapshot, read-only"]'
    run ! qemu-io -f raw "$(uri_of golden@v1)" -c 'write 0 4k'
    qemu-io -r -f raw "$(uri_of golden@v1)" -c 'read 0 6M'
    nbdcopy "$(uri_of golden@v1)" - | cmp - "$image"
}

@test "the default export is the only volume, whatever snapshots it has" {
    golden_v1
    nbdedup snapshot golden@v2
    serve "$pool"
    nbdcopy "$uri" - | cmp - "$image"
    assert_eq "$(attribute '' is_read_only)" false
    nbdedup clone golden@v1 web1
    run ! nbdinfo "$uri"
    nbdedup destroy web1
    nbdinfo --size "$uri"
    nbdedup destroy golden -r
    run ! nbdinfo "$uri"
}

@test "an empty export name with several volumes: the client sees the reason" {
    local reason="name a volume in the client"

    need qemu-img --version
    make_pool
    nbdedup create one 1M
    nbdedup create two 1M
    serve "$pool"
    run ! qemu-img info "$uri"
    grep -q "$reason" "$server_log"
    # nbdkit 1.32 sends no text with an error.
    if [[ $(nbdkit --version) =~ ^nbdkit\ 1\.([0-9]+) ]] &&
            [ "${BASH_REMATCH[1]}" -ge 42 ]; then
        [[ $output == *"server reported: "*"$reason"* ]] || fail "$output"
    fi
}

@test "volume=NAME@SNAP is the default export; with only=on nothing else is served" {
    golden_v1
    serve "$pool" volume=golden@v1
    assert_eq "$(attribute '' is_read_only)" true
    nbdcopy "$uri" - | cmp - "$image"
    assert_eq "$(attribute golden is_read_only)" false
    stop

    serve "$pool" volume=golden@v1 only=on
    assert_eq "$(exports)" golden@v1
    nbdcopy "$uri" - | cmp - "$image"
    nbdcopy "$(uri_of golden@v1)" - | cmp - "$image"
    run ! nbdinfo "$(uri_of golden)"
    stop

    serve "$pool" volume=golden only=on
    assert_eq "$(exports)" golden
    run ! nbdinfo "$(uri_of golden@v1)"
}

@test "exports appear and vanish while the server runs" {
    golden_v1
    serve "$pool"
    attach 5 golden
    assert_eq "$(exports)" "golden golden@v1"
    nbdedup snapshot golden@v2
    nbdedup clone golden@v2 web --count 2
    assert_eq "$(exports)" "golden web1 web2 golden@v1 golden@v2"
    nbdcopy "$(uri_of web2)" - | cmp - "$image"
    nbdedup rename golden@v2 golden@gold
    assert_eq "$(exports)" "golden web1 web2 golden@gold golden@v1"
    run ! nbdinfo "$(uri_of golden@v2)"
    nbdedup destroy golden@gold --force
    nbdedup destroy web1
    assert_eq "$(exports)" "golden web2 golden@v1"
    run ! nbdinfo "$(uri_of golden@gold)"
    run ! nbdinfo "$(uri_of web1)"

    # No other client was disturbed.
    ask 5 'read -P 0 3M 1M'
    wait_for 10 said 5 'ops'
    nbdcopy "$(uri_of web2)" - | cmp - "$image"
}

@test "who may not attach a volume may not attach its snapshots" {
    golden_v1
    nbdedup set allow=$(($(id -u) + 1)) golden
    nbdedup clone golden@v1 web1
    serve "$pool"
    for name in golden golden@v1 web1; do
        run ! nbdinfo "$(uri_of $name)"
    done
    nbdedup set allow=all web1
    nbdinfo --size "$(uri_of web1)"
}

#----------------------------------------------------------------------
# Other programs

@test "qemu-img compares, converts and describes snapshots and clones" {
    local out=$BATS_TEST_TMPDIR/out

    golden_v1
    nbdedup clone golden@v1 web1
    serve "$pool"
    qemu-img compare -f raw -F raw "$(uri_of golden@v1)" "$(uri_of web1)"
    qemu-img compare -f raw -F raw "$image" "$(uri_of golden@v1)"
    io "$(uri_of web1)" 'write -P 7 5M 1k'
    run -1 qemu-img compare -f raw -F raw "$(uri_of golden@v1)" "$(uri_of web1)"
    [[ $output == *"mismatch at offset 5242880"* ]]

    qemu-img convert -f raw -O qcow2 "$(uri_of golden@v1)" "$out.qcow2"
    qemu-img compare -f qcow2 -F raw "$out.qcow2" "$image"
    assert_eq "$(qemu-img info --output=json -f raw "$(uri_of golden@v1)" |
                     jq '."virtual-size"')" 6291456

    # Into a clone: it overwrites what it inherits.
    qemu-img convert -n -f raw -O raw "$image" "$(uri_of web1)"
    qemu-img compare -f raw -F raw "$image" "$(uri_of web1)"

    # An overlay whose backing file is a snapshot.
    qemu-img create -q -f qcow2 -F raw -b "$(uri_of golden@v1)" "$out.overlay"
    qemu-img compare -f qcow2 -F raw "$out.overlay" "$image"
}

@test "nbdcopy copies a snapshot while its volume is written to" {
    golden_v1
    serve "$pool"
    { for i in {1..20}; do
          qemu-io -f raw "$(uri_of golden)" -c "write -P $i 0 6M" -c flush
      done; } >/dev/null 3>&- 4>&- &
    holders+=($!)
    for _ in 1 2 3 4 5; do
        nbdcopy --connections=4 "$(uri_of golden@v1)" "$BATS_TEST_TMPDIR/out"
        cmp "$image" "$BATS_TEST_TMPDIR/out"
    done
    wait "${holders[0]}"
}

# map EXPORT: "OFFSET LENGTH TYPE" of each extent; 0 data, 3 hole and zero.
map ()
{
    nbdinfo --map --json "$(uri_of "$1")" |
        jq -r '.[] | "\(.offset) \(.length) \(.type)"'
}

@test "nbdinfo --map shows what a clone inherits, and its own holes" {
    golden_v1
    nbdedup clone golden@v1 web1
    nbdedup resize web1 8M
    serve "$pool"
    assert_eq "$(map golden@v1)" \
$'0 3145728 0\n3145728 1048576 3\n4194304 2097152 0'
    assert_eq "$(map web1)" \
$'0 3145728 0\n3145728 1048576 3\n4194304 2097152 0\n6291456 2097152 3'
    io "$(uri_of web1)" 'discard 1M 1M' 'write -P 1 3M 16k' 'write -P 1 7M 1k'
    assert_eq "$(map web1)" \
$'0 1048576 0\n1048576 1048576 3\n2097152 1064960 0\n3162112 1032192 3\n4194304 2097152 0\n6291456 1048576 3\n7340032 16384 0\n7356416 1032192 3'
    io "$(uri_of web1)" 'read -P 0 1M 1M' 'read -P 1 3M 16k'
    assert_eq "$(map golden@v1)" \
$'0 3145728 0\n3145728 1048576 3\n4194304 2097152 0'
    nbdcopy "$(uri_of golden@v1)" - | cmp - "$image"
}

@test "partial blocks are filled up from the golden image" {
    golden_v1
    nbdedup clone golden@v1 web1
    serve "$pool"
    for offset in 0 511 16383 100000 3145720 4194300 6291455; do
        printf X | dd of="$image" bs=1 seek=$offset conv=notrunc 2>/dev/null
        io "$(uri_of web1)" "write -P 0x58 $offset 1"
    done
    printf '\0\0\0' | dd of="$image" bs=1 seek=5000000 conv=notrunc 2>/dev/null
    io "$(uri_of web1)" 'discard 5000000 3'
    nbdcopy "$(uri_of web1)" - | cmp - "$image"
    stop
    nbdedup export web1 - | cmp - "$image"
}

#----------------------------------------------------------------------
# In use

@test "a snapshot is one moment over all connections, and stays so" {
    make_pool
    nbdedup create v 1M --block-size 4K
    serve "$pool" threads=parallel
    "$top_builddir/tests/bats/snapshot-moment" "$sock" v 12 "nbdedup snapshot" \
        3>&- 4>&-
    stop
    nbdedup destroy v -r --wait
    assert_eq "$(pool_stat records)" 0
}

@test "a clone of a snapshot just taken has all that was answered, unflushed" {
    golden_v1
    serve "$pool" commit-interval=3600
    attach 5 golden
    ask 5 'write -P 0x77 1M 2M'
    wait_for 20 said 5 'wrote'
    nbdedup snapshot golden@v2
    ask 5 'write -P 0x78 0 6M'
    wait_for 20 said 5 'wrote'
    nbdedup clone golden@v2 web1
    io "$(uri_of web1)" 'read -P 0x77 1M 2M' 'read -P 0 3M 1M'
    crash
    # The effects of the commands are durable.
    serve "$pool"
    io "$(uri_of web1)" 'read -P 0x77 1M 2M' 'read -P 0 3M 1M'
    qemu-img compare -f raw -F raw "$(uri_of web1)" "$(uri_of golden@v2)"
}

@test "destroy and rollback refuse a volume in use and say so; --force cuts its clients off" {
    golden_v1
    nbdedup clone golden@v1 web --count 2
    serve "$pool"
    attach 5 golden
    attach 6 web1
    refused golden rollback golden@v1
    [[ $stderr == *"1 client"*"--force"* ]]
    refused golden destroy golden -r
    refused web1 destroy web1
    [[ $stderr == *"1 client"*"--force"* ]]
    ask 5 'write -P 1 0 64k'
    wait_for 10 said 5 wrote

    nbdedup rollback golden@v1 --force
    gets_shutdown 5 'read 0 512'
    gets_shutdown 5 'write 0 512'
    gets_shutdown 5 'write -z 0 512'
    gets_shutdown 5 'discard 0 512'
    # No other client is.  A client that attaches again reads the old content.
    ask 6 'write -P 2 0 64k'
    wait_for 10 said 6 wrote
    nbdcopy "$(uri_of golden)" - | cmp - "$image"
    io "$(uri_of golden)" 'write -P 3 0 64k' flush

    nbdedup destroy web1 --force
    gets_shutdown 6 'read 0 512'
    gets_shutdown 6 'write 0 512'
    run ! nbdinfo "$(uri_of web1)"
    # The name can be used at once for another volume.
    nbdedup clone golden@v1 web1
    nbdcopy "$(uri_of web1)" - | cmp - "$image"
    gets_shutdown 6 'read 0 512'
    nbdcopy "$(uri_of web2)" - | cmp - "$image"
}

@test "a snapshot in use is not destroyed, unless by force" {
    golden_v1
    nbdedup snapshot golden@v2
    serve "$pool"
    mkfifo "$BATS_TEST_TMPDIR/fifo5"
    stdbuf -oL qemu-io -r -f raw "$(uri_of golden@v2)" \
           <"$BATS_TEST_TMPDIR/fifo5" >>"$BATS_TEST_TMPDIR/client5" 2>&1 \
           3>&- 4>&- &
    holders+=($!)
    exec 5>"$BATS_TEST_TMPDIR/fifo5"
    ask 5 'read 0 512'
    wait_for 20 said 5 ops
    refused golden@v2 destroy golden@v2
    # A reader of a snapshot is not a client of the volume.
    assert_eq "$(clients_of golden)" 0
    nbdedup rollback golden@v2
    nbdedup rollback golden@v1
    ask 5 'read 1M 512'
    wait_for 10 said 5 ops
    nbdedup destroy golden@v2 --force
    gets_shutdown 5 'read 0 512'
    assert_eq "$(exports)" "golden golden@v1"
}

@test "a rebase goes on under clients that read and write" {
    golden_v1
    nbdedup clone golden@v1 web1
    text_data 2M 9 >"$BATS_TEST_TMPDIR/upgrade"
    serve "$pool"
    io "$(uri_of golden)" "write -s $BATS_TEST_TMPDIR/upgrade 0 2M" flush
    io "$(uri_of web1)" "write -s $BATS_TEST_TMPDIR/upgrade 0 2M" flush
    nbdedup snapshot golden@v2
    attach 5 web1
    { for i in {1..30}; do
          qemu-io -f raw "$(uri_of web1)" -c "write -P $i 2M 1M" \
                  -c "write -P $i 5M 500k" -c "read -P 0 3M 1M"
      done; } >"$BATS_TEST_TMPDIR/io" 2>&1 3>&- 4>&- 5>&- &
    holders+=($!)
    for _ in 1 2 3 4; do
        nbdedup rebase web1 golden@v2 >/dev/null
        nbdedup rebase web1 golden@v1 >/dev/null
    done
    nbdedup rebase web1 golden@v2 >/dev/null
    wait "${holders[1]}"
    run ! grep -iE 'failed|error' "$BATS_TEST_TMPDIR/io"
    ask 5 'read -P 30 2M 1M'
    wait_for 10 said 5 ops
    run ! said 5 failed
    nbdcopy "$(uri_of web1)" "$BATS_TEST_TMPDIR/out"
    cmp -n 2097152 "$BATS_TEST_TMPDIR/upgrade" "$BATS_TEST_TMPDIR/out"
    io "$(uri_of web1)" 'read -P 30 2M 1M' 'read -P 0 3M 1M' 'read -P 30 5M 500k'
    cmp -n 500000 -i 4194304 "$image" "$BATS_TEST_TMPDIR/out"
}

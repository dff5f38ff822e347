# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# import and export of QEMU's formats and of NBD servers: byte for byte, sparse
# in both directions, and undone after a failure.  tools.bats tests what all
# images have in common.

load ../rigs/helpers

formats="qcow2 vmdk vdi vhdx vpc"

# disk_image FILE: make 24 MiB with data, zeroes and holes of many lengths.
disk_image ()
{
    truncate -s 24M "$1"
    random_data 3M 1 | dd of="$1" bs=64K seek=16 conv=notrunc status=none
    text_data 1M 2 | dd of="$1" bs=64K seek=160 conv=notrunc status=none
    dd if=/dev/zero of="$1" bs=64K seek=200 count=20 conv=notrunc status=none
    random_data 4096 3 | dd of="$1" bs=4K seek=4101 conv=notrunc status=none
    random_data 512 4 | dd of="$1" bs=512 seek=49151 conv=notrunc status=none
}

setup ()
{
    mkdir tmp
    export TMPDIR="$PWD/tmp"    # for temporary sockets
    disk_image disk.raw
}

volumes ()
{
    nbdedup list --json | jq -c '[.volumes[].name]'
}

# nothing_left: no trace of the imports and exports is left.
nothing_left ()
{
    assert_eq "$(volumes)" "${1:-[]}"
    assert_eq "$(find . -name '*.exporting-*')" ""
    assert_eq "$(find tmp -name 'nbdedup.*')" ""
}

# nbd_server ARG...: start another nbdkit, with URI $other.
nbd_server ()
{
    rm -f other.sock other.pid
    other="nbd+unix:///?socket=$PWD/other.sock"
    command nbdkit -f -U other.sock -P other.pid "$@" 3>&- 4>&- &
    other_pid=$!
    wait_for 30 test -s other.pid
}

teardown ()
{
    stop_nbd_server
    stop
    check_pools
}

# both_ways: import and export all formats.
both_ways ()
{
    local f options

    for f in $formats; do
        options=()
        # Without this option vpc's size is rounded up.
        [ "$f" != vpc ] || options=(-o force_size=on)
        qemu-img convert -f raw -O "$f" "${options[@]}" disk.raw "in.$f"
        run -0 nbdedup import "v-$f" "in.$f"
        assert_eq "$output" "nbdedup: import: in.$f: is read as $f;\
 --format raw reads its bytes as they are"
        run -0 nbdedup import "w-$f" "in.$f" --format "$f"
        assert_eq "$output" ""
        nbdedup export "v-$f" - | cmp - disk.raw
        nbdedup export "w-$f" - | cmp - disk.raw
        # Holes and zeroes take no space, whatever they were in the file.
        assert_num "$(volume_stat "v-$f" logical_bytes) < 5 * 1048576"

        run -0 nbdedup export "v-$f" "out.$f" --format "$f"
        assert_eq "$output" ""
        assert_eq "$(qemu-img info --output=json "out.$f" | jq -r .format)" "$f"
        assert_eq "$(qemu-img info -f "$f" --output=json "out.$f" |
                         jq '."virtual-size"')" 25165824
        qemu-img compare -f raw -F "$f" disk.raw "out.$f"
        assert_num "$(stat -c %b "out.$f") * 512 < 12 * 1048576"
    done
    # vhd is another name of vpc.
    nbdedup import vhd in.vpc --format vhd
    nbdedup export vhd out.vhd --format vhd
    qemu-img compare -f raw -F vpc disk.raw out.vhd
}

@test "all formats go in and out, byte for byte and sparse" {
    make_pool
    both_ways
    assert_eq "$(find . -name '*.exporting-*')" ""
}

@test "all formats go in and out through a running server" {
    make_pool
    serve "$pool"
    both_ways
    assert_eq "$(nbdedup list --json | jq '[.volumes[].clients] | add')" 0
}

@test "an image comes with its backing files, and with compressed clusters" {
    make_pool
    qemu-img convert -f raw -O qcow2 -c disk.raw base.qcow2
    qemu-img create -q -f qcow2 -b base.qcow2 -F qcow2 middle.qcow2
    qemu-io -f qcow2 -c "write -P 7 3M 128k" -c "write -z 17M 64k" \
            middle.qcow2 >/dev/null
    mkdir sub
    qemu-img create -q -f qcow2 -b ../middle.qcow2 -F qcow2 sub/top.qcow2 32M
    qemu-io -f qcow2 -c "write -P 9 30M 4k" sub/top.qcow2 >/dev/null
    qemu-img convert -O raw sub/top.qcow2 want.raw

    nbdedup import v sub/top.qcow2 --allow-backing
    nbdedup export v - | cmp - want.raw
    (cd sub && nbdedup import w top.qcow2 --allow-backing)
    nbdedup export w - | cmp - want.raw
    nbdedup import base base.qcow2
    nbdedup export base - | cmp - disk.raw

    # Damage anywhere in the chain is an error.
    truncate -s 1M base.qcow2
    refused "base.qcow2: is damaged" \
            import x sub/top.qcow2 --allow-backing
    rm base.qcow2
    refused "base.qcow2" import x sub/top.qcow2 --allow-backing
    assert_eq "$(volumes)" '["base","v","w"]'
}

@test "names that mean something to QEMU are files' names" {
    make_pool
    qemu-img convert -f raw -O qcow2 disk.raw in.qcow2
    cp in.qcow2 "nbd:x,y=z.qcow2"
    nbdedup import v "nbd:x,y=z.qcow2"
    nbdedup export v - | cmp - disk.raw
    nbdedup export v "json:{} a,b.qcow2" --format qcow2
    cp "json:{} a,b.qcow2" copy.qcow2
    qemu-img compare -f raw -F qcow2 disk.raw copy.qcow2
}

@test "holes are not read, and are written as holes" {
    make_pool
    # Without skipping holes a terabyte would take for ever, in both directions.
    truncate -s 1T huge.raw
    random_data 64K | dd of=huge.raw bs=64K seek=9999999 conv=notrunc \
                         status=none
    qemu-img convert -f raw -O qcow2 huge.raw huge.qcow2
    for f in raw qcow2; do
        nbdedup import $f huge.$f --format $f
        assert_eq "$(volume_stat $f size)" 1099511627776
        assert_eq "$(volume_stat $f logical_bytes)" 65536
    done
    # An extent ends inside a block, and a block inside a piece.
    nbdedup import large disk.raw --block-size 1M
    nbdedup export large - | cmp - disk.raw
    nbdedup export large large.raw
    cmp large.raw disk.raw
    assert_num "$(stat -c %b large.raw) * 512 < 5 * 1048576"

    nbdedup export qcow2 out.qcow2 --format qcow2
    assert_num "$(stat -c %s out.qcow2) < 4 * 1048576"
    nbdedup export raw out.raw
    assert_num "$(stat -c %b out.raw) * 512 < 1048576"
    cmp <(tail -c +655359934465 out.raw | head -c 131072) \
        <(tail -c +655359934465 huge.raw | head -c 131072)
    rm huge.raw out.raw
}

@test "an NBD URI is a source and a target" {
    make_pool
    serve "$pool"
    server=$sock
    nbdedup import web1 disk.raw
    # From the pool's own server, which makes a copy.
    nbdedup import web2 "nbd+unix:///web1?socket=$server"
    nbdedup export web2 - | cmp - disk.raw
    assert_num "$(volume_stat web2 logical_bytes) < 5 * 1048576"

    # To a server whose disk is full of other data.
    random_data 25M 9 >target.raw
    cp target.raw tail.raw
    nbd_server file target.raw
    run -0 nbdedup export web1 "$other"
    assert_eq "$output" ""
    cmp -n 25165824 target.raw disk.raw
    cmp <(tail -c 1M target.raw) <(tail -c 1M tail.raw)
    # And back, from a server that is larger, also with QEMU's client.
    nbdedup import web3 "$other"
    assert_eq "$(volume_stat web3 size)" 26214400
    nbdedup create large 26M
    refused "has 26214400 bytes, the volume 27262976" \
            export large "$other"
    misused "is written as raw, not qcow2" \
            export web1 "$other" --format qcow2
    stop_nbd_server
    refused "No such file or directory" import web4 "nbd+unix:///?socket=$PWD/no"
    refused "nosuch" import web4 "nbd+unix:///nosuch?socket=$server"
}

@test "servers with one connection, and without zeroes or extents, will do" {
    make_pool
    nbdedup import web1 disk.raw
    random_data 24M 8 >target.raw
    nbd_server --filter=nozero --filter=noextents --filter=multi-conn \
               --filter=delay file target.raw multi-conn-mode=disable wdelay=1ms
    nbdedup export web1 "$other"
    cmp target.raw disk.raw
    nbdedup import web2 "$other"
    nbdedup export web2 - | cmp - disk.raw
    assert_num "$(volume_stat web2 logical_bytes) < 5 * 1048576"
    stop_nbd_server
}

@test "a QEMU format can be read from an NBD server" {
    make_pool
    qemu-img convert -f raw -O qcow2 disk.raw in.qcow2
    nbd_server -r file in.qcow2
    nbdedup import web1 "$other" --format qcow2
    nbdedup export web1 - | cmp - disk.raw
    refused "read-only" export web1 "$other"
    stop_nbd_server
}

@test "bad images are refused in one line, and nothing is left" {
    make_pool
    nbdedup create here 24M
    for f in $formats; do
        qemu-img convert -f raw -O "$f" disk.raw "in.$f"
        truncate -s $(( $(stat -c %s "in.$f") / 2 )) "in.$f"
        run nbdedup import web1 "in.$f"
        assert_eq "$status" 1 "$f"
        assert_eq "$(grep -c . <<<"$output")" 1 "$output"
        [[ $output == "nbdedup: import: in.$f: "* ]]
        refused "in.$f: " import web1 "in.$f" --format "$f"
        refused "disk.raw: " import web1 disk.raw --format "$f"
    done
    printf 'QFI\xfb\0\0\0\3' >bad.qcow2
    truncate -s 64K bad.qcow2
    refused "with --format raw its bytes are imported as they are" \
            import web1 bad.qcow2
    misused "nonesuch" import web1 disk.raw --format nonesuch
    misused "nonesuch" export here out --format nonesuch
    refused "No such file" import web1 no.qcow2 --format qcow2
    refused "No such file" export here no/out.qcow2 --format qcow2
    [ ! -e out ]
    nothing_left '["here"]'
}

@test "without QEMU's programs raw images still work" {
    make_pool
    qemu-img convert -f raw -O qcow2 disk.raw in.qcow2
    nbdedup=$(command -v nbdedup)
    mkdir empty
    run -1 env PATH="$PWD/empty" "$nbdedup" import web1 in.qcow2
    [[ $output == "nbdedup: import: in.qcow2: needs qemu-img, which is not\
 installed: install qemu-utils"* ]]
    assert_eq "${#lines[@]}" 1
    env PATH="$PWD/empty" "$nbdedup" import web1 disk.raw
    env PATH="$PWD/empty" "$nbdedup" export web1 out.raw
    cmp disk.raw out.raw
    run -1 env PATH="$PWD/empty" "$nbdedup" export web1 out --format vhdx
    [[ $output == *"install qemu-utils"* ]]
    [ ! -e out ]
    nothing_left '["web1"]'
}

#----------------------------------------------------------------------
# Undone imports and exports

# slow_server: serve a disk of 24 MiB that takes a second per request.  It has
# one thread per connection, because nbdkit 1.32 with more can abort when its
# client goes away ("raw_send_socket: Assertion `sock >= 0' failed").
slow_server ()
{
    nbd_server -t 1 --filter=delay file disk.raw delay-read=1 delay-write=1 \
               delay-extents=0
}

# has_volume JQ-EXPRESSION: true of the volumes of the served pool.
has_volume ()
{
    nbdedup list --json | jq -e ".volumes | $1" >/dev/null
}

importing='any (.name | startswith ("web1.importing-"))'

# start_import [OPTION...]: begin to import $other as web1, with the process
# $pid, which prints to err.  Returns when there is a volume.
start_import ()
{
    nbdedup import web1 "$other" "$@" 2>err 3>&- 4>&- &
    pid=$!
    wait_for 50 has_volume "$importing"
}

# fails_saying TEXT: the process $pid fails, and prints this.
fails_saying ()
{
    expect_failure "$pid"
    assert_eq "$(cat err)" "$1"
}

@test "an interrupted import from NBD is undone at once" {
    make_pool
    serve "$pool"
    slow_server
    start_import
    has_volume 'all (.name != "web1")'
    kill -TERM $pid
    fails_saying "nbdedup: import: interrupted"
    nothing_left

    # Kill the server of the image.
    start_import
    kill -9 "$other_pid"
    fails_saying "nbdedup: import: $other: the NBD server went away"
    nothing_left
}

# terminate_often: send SIGTERM to the process $pid for some milliseconds.
# timeout sends two, and a terminal that closes two times SIGHUP, microseconds
# apart.
terminate_often ()
{
    local i

    for ((i = 0; i < 1000; ++i)); do
        kill -TERM "$pid" 2>/dev/null || break
    done
}

# exports: an export has made its directory, or is gone.
exports ()
{
    [ -n "$(compgen -G '*.exporting-*')" ] || ! kill -0 "$pid" 2>/dev/null
}

@test "an import or export that gets its signal twice is undone, too" {
    make_pool
    serve "$pool"
    slow_server
    start_import
    terminate_often
    fails_saying "nbdedup: import: interrupted"
    nothing_left

    random_data 128M >large.raw
    nbdedup import large large.raw
    nbdedup export large out.raw 2>err 3>&- 4>&- &
    pid=$!
    until exports; do :; done
    terminate_often
    fails_saying "nbdedup: export: interrupted"
    [ ! -e out.raw ]
    nothing_left '["large"]'
}

# terminated: SIGTERM has ended the process $pid.
terminated ()
{
    kill -TERM "$pid" 2>/dev/null || return 0
    server_is_gone "$pid"
}

@test "a later signal ends an import that hangs" {
    local status=0

    make_pool
    serve "$pool"
    slow_server
    start_import
    kill -STOP "$server_pid"
    wait_for 20 terminated
    kill -CONT "$server_pid"
    wait "$pid" || status=$?
    assert_eq "$status" 143
    stop_nbd_server
    wait_for 10 has_volume 'all (.clients == 0)'
    has_volume "length == 1 and $importing"
}

@test "what a killed import leaves is no volume of that name, and goes away" {
    local left

    make_pool
    serve "$pool"
    slow_server
    start_import
    kill -9 $pid
    wait $pid || :
    stop_nbd_server
    wait_for 10 has_volume 'all (.clients == 0)'
    has_volume "length == 1 and $importing"
    left=$(nbdedup list --json | jq -r '.volumes[0].name')
    run -0 nbdedup list
    [[ ${lines[1]} == "$left "*" - (unfinished import: remove it with nbdedup destroy)" ]]
    # It is no export.
    assert_eq "$(nbdinfo --list --json "$uri" | jq '.exports | length')" 0
    run ! nbdinfo "$(uri_of "$left")"
    grep "$left is being imported, or its import was killed" "$server_log"
    # Another volume's leftovers, and a volume in use, are kept.
    nbdedup create web1.importing-mine 1M
    nbdedup create web1.importing-12345678 1M
    nbdedup create web10.importing-01234567 1M
    nbdedup import web disk.raw
    has_volume "$importing"
    run -0 nbdedup import web1 disk.raw
    [[ $output == "nbdedup: import: destroyed web1.importing-"* ]]
    nbdedup export web1 - | cmp - disk.raw
    # The history names the volume, not the one that it was until then.
    assert_eq "$(nbdedup history --json | jq -c '.history[] |
                     select (.volume == "web1") | [.event, .bytes] +
                     [.from | sub ("[0-9a-f]{8}$"; "")]')" \
              "[\"import\",$(stat -c %s disk.raw),\"web1.importing-\"]"
    assert_eq "$(volumes)" \
        '["web","web1","web1.importing-12345678","web1.importing-mine","web10.importing-01234567"]'
}

@test "two imports of one name: one wins, the other says so" {
    make_pool
    serve "$pool"
    mkfifo fifo
    nbdedup import web1 - <fifo 2>err 3>&- 4>&- &
    pid=$!
    exec 5>fifo
    random_data 5M >&5
    wait_for 30 has_volume "$importing"
    nbdedup import web1 disk.raw
    exec 5>&-
    fails_saying "nbdedup: import: there is a volume 'web1' already"
    nbdedup export web1 - | cmp - disk.raw
    nothing_left '["web1"]'
}

@test "an interrupted export leaves what was there, or says what it spoilt" {
    make_pool
    serve "$pool"
    nbdedup import web1 disk.raw
    slow_server
    nbdedup export web1 "$other" 2>err 3>&- 4>&- &
    pid=$!
    wait_for 30 has_volume 'any (.clients > 0)'
    sleep 0.5
    kill -TERM $pid
    fails_saying "nbdedup: export: interrupted; $other now holds only\
 a part of the volume"
    stop_nbd_server

    # A full disk; the target file exists.
    echo old >out.qcow2
    run -1 bash -c 'ulimit -f 1000; nbdedup export web1 out.qcow2 \
                                        --format qcow2'
    assert_eq "${#lines[@]}" 1 "$output"
    assert_eq "$(cat out.qcow2)" old
    echo old >out.img
    run -1 bash -c 'ulimit -f 1000; nbdedup export web1 out.img'
    assert_eq "$output" "nbdedup: export: out.img: File too large"
    assert_eq "$(cat out.img)" old
    nothing_left '["web1"]'
}

@test "an export to a FIFO waits for a reader, and ends at the first signal" {
    make_pool
    random_data 3M >img
    nbdedup import web1 img
    mkfifo fifo
    nbdedup export web1 fifo 2>err 3>&- 4>&- &
    wait_for 10 grep -q 'export: waiting: no process reads the FIFO fifo$' err
    kill "$!"
    expect_failure "$!"
    [[ $(tail -n 1 err) == "nbdedup: export: interrupted" ]]

    # The reader comes, takes a byte, and no more.
    nbdedup export web1 fifo 2>err 3>&- 4>&- &
    exec 5<fifo
    head -c 1 <&5 >first
    [ -s first ]
    kill "$!"
    expect_failure "$!"
    exec 5<&-
    nbdedup export web1 fifo 3>&- 4>&- &
    cmp fifo img
    wait "$!"
}

@test "qemu-nbd killed under an export is one line, and nothing is left" {
    make_pool
    random_data 4M >img
    nbdedup import web1 img
    mkdir bin
    cat >bin/qemu-nbd <<'EOF'
#!/bin/bash
kill -9 $$
EOF
    chmod +x bin/qemu-nbd
    run -1 env PATH="$PWD/bin:$PATH" nbdedup export web1 out.qcow2 \
        --format qcow2
    assert_eq "$output" "nbdedup: export: out.qcow2: qemu-nbd was killed by\
 signal 9"
    qemu-img convert -f raw -O qcow2 img in.qcow2
    run -1 env PATH="$PWD/bin:$PATH" nbdedup import web2 in.qcow2 \
        --format qcow2
    assert_eq "$output" "nbdedup: import: in.qcow2: qemu-nbd was killed by\
 signal 9"
    [ ! -e out.qcow2 ]
    nothing_left '["web1"]'
}

@test "qemu-nbd killed amid an import is one line, and nothing is left" {
    make_pool
    serve "$pool"
    # 24 MiB at 8 Mbit/s: the import takes 20 s and more.
    random_data 24M 5 >full.raw
    qemu-img convert -f raw -O qcow2 full.raw in.qcow2
    nbd_server -r --filter=rate file in.qcow2 rate=8M
    start_import --format qcow2
    pkill -9 -P $pid qemu-nbd
    fails_saying "nbdedup: import: $other: qemu-nbd went away"
    nothing_left
}

@test "an image that a guest has open is refused, and it says so" {
    local command

    make_pool
    qemu-img convert -f raw -O qcow2 disk.raw in.qcow2
    mkfifo hold
    qemu-io -f qcow2 in.qcow2 <hold >out 2>&1 3>&- 4>&- &
    pid=$!
    exec 5>hold
    # Wait for its answer: a command that tries the lock could take it from it.
    echo length >&5
    wait_for 20 grep -q MiB out
    for command in "import web1" estimate; do
        # shellcheck disable=SC2086
        run -1 nbdedup $command in.qcow2 --format qcow2
        assert_eq "$output" "nbdedup: ${command% *}: in.qcow2: is in use by\
 another process: shut down the guest, or stop the process that has it open"
    done
    exec 5>&-
    wait $pid
    nothing_left
}

@test "an export replaces a file and keeps its mode and links to it" {
    make_pool
    nbdedup import web1 disk.raw
    echo old >real.raw
    chmod 640 real.raw
    ln -s real.raw link.raw
    nbdedup export web1 link.raw
    [ -L link.raw ]
    cmp real.raw disk.raw
    assert_eq "$(stat -c %a real.raw)" 640
    umask 027
    nbdedup export web1 new.qcow2 --format qcow2
    assert_eq "$(stat -c %a new.qcow2)" 640
    ln -s nowhere dangling
    nbdedup export web1 dangling
    cmp dangling disk.raw
    nothing_left '["web1"]'
}

@test "an export as root keeps the owner and the group of a file" {
    local f

    need_root
    make_pool
    nbdedup import web1 disk.raw
    for f in raw qcow2; do
        echo old >"out.$f"
        chmod 600 "out.$f"
        chown 12345:12346 "out.$f"
        nbdedup export web1 "out.$f" --format "$f"
        assert_eq "$(stat -c %u:%g:%a "out.$f")" 12345:12346:600
    done
    cmp out.raw disk.raw
}

@test "progress has a rate, for every format" {
    make_pool
    qemu-img convert -f raw -O qcow2 disk.raw in.qcow2
    run -0 --separate-stderr nbdedup import web1 in.qcow2 --format qcow2 \
        --progress
    [[ $stderr == *"import 100%  24.0 MiB of 24.0 MiB "*"/s" ]]
    run -0 --separate-stderr nbdedup export web1 out.vdi --format vdi \
        --progress
    [[ $stderr == *"export 100%  24.0 MiB of 24.0 MiB "*"/s" ]]
}

@test "import makes the volume with the properties that are given" {
    make_pool
    head -c 1M /dev/urandom >image
    nbdedup import a image --compress zstd-5 --dedup verify --domain guests \
            --block-size 8K
    nbdedup create b 1.5M --domain guests
    assert_eq "$(nbdedup get compress a) $(nbdedup get dedup a)" "zstd-5 verify"
    assert_eq "$(nbdedup get domain a) $(nbdedup get domain b)" "guests guests"
    assert_eq "$(nbdedup get block-size a)" 8192
    assert_eq "$(nbdedup list --json |
                     jq '.volumes[] | select(.name == "b") | .size')" 1572864
    nbdedup export a out.raw
    cmp image out.raw
    run ! nbdedup import c image --compress gzip
    assert_eq "$(nbdedup list --json | jq '.volumes | length')" 2
}

@test "export: the suffix decides which format a file has, as for import" {
    local name

    make_pool
    nbdedup import v disk.raw
    for name in a.qcow2 b.VMDK c.vhd d.img e f.qcow2.bak g.qcow \
                h.parallels; do
        nbdedup export v "$name"
    done
    for name in qcow2:a.qcow2 vmdk:b.VMDK vpc:c.vhd raw:d.img raw:e \
                raw:f.qcow2.bak qcow:g.qcow parallels:h.parallels; do
        qemu-img compare -f "${name%%:*}" -F raw "${name#*:}" disk.raw
    done
    cmp d.img disk.raw
    # An option has precedence.
    nbdedup export v raw.qcow2 --format raw
    cmp raw.qcow2 disk.raw
    # QEMU reads these, but does not write them.
    for name in i.dmg i.cloop; do
        misused "'${name#i.}' is not an image format that can be written" \
                export v "$name"
        [ ! -e "$name" ]
        cp disk.raw "$name"
        refused "its name says ${name#i.}, its content looks like raw" \
                import w "$name"
    done
}

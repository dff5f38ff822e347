# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# import and estimate of untrusted images: they read only the file that they
# were given, they end, and the programs that parse foreign formats can do no
# harm.

load ../rigs/helpers

setup ()
{
    mkdir tmp
    export TMPDIR="$PWD/tmp"
    make_pool
    # No image may bring this into a volume.
    printf 'the secret of this machine\n' >secret
    truncate -s 1M secret
    random_data 2M 1 >disk.raw
    truncate -s 4M disk.raw
}

teardown ()
{
    stop_nbd_server
    stop
    check_pools
}

# nothing_left: there is no volume, no socket, and no unfinished file.
nothing_left ()
{
    assert_eq "$(nbdedup list --json | jq -c '[.volumes[].name]')" "${1:-[]}"
    assert_eq "$(find tmp -name 'nbdedup.*')" ""
}

# both_refuse TEXT FILE OPTION...: import and estimate refuse it at once, in one
# line; both_misuse: as wrong usage.
both_refuse () { both_fail_with 1 "$@"; }
both_misuse () { both_fail_with 2 "$@"; }

both_fail_with ()
{
    local expected=$1 text=$2

    shift 2
    run "-$expected" --separate-stderr timeout 30 nbdedup import v "$@"
    [[ $stderr == "nbdedup: import: "*"$text"* ]] || fail "import $*: $stderr"
    assert_eq "$(wc -l <<<"$stderr")" 1 "import $*: lines: $stderr"
    run "-$expected" --separate-stderr timeout 30 nbdedup estimate "$@"
    [[ $stderr == "nbdedup: estimate: "*"$text"* ]] ||
        fail "estimate $*: $stderr"
    assert_eq "$(wc -l <<<"$stderr")" 1 "estimate $*: lines: $stderr"
    nothing_left
}

# overlay FILE NAME FORMAT: make a qcow2 image with the backing file NAME.
overlay ()
{
    qemu-img create -q -f qcow2 -u -b "$2" -F "$3" "$1" 1M
}

# with_data_file FILE NAME: make a qcow2 image whose data is in another file,
# and put the secret into that file.
with_data_file ()
{
    qemu-img create -q -f qcow2 -o "data_file=$2,data_file_raw=on" "$1" 1M
    cat secret >"$2"
}

@test "an image that refers to other files is refused unless they may be read" {
    overlay backing.qcow2 "$PWD/secret" raw
    both_refuse "backing.qcow2: refers to another file, '$PWD/secret': give\
 --allow-backing to read that, too" backing.qcow2
    overlay relative.qcow2 secret raw
    both_refuse "refers to another file, 'secret'" relative.qcow2
    both_refuse "refers to another file" relative.qcow2 --format qcow2
    with_data_file data.qcow2 data
    both_refuse "refers to another file, 'data'" data.qcow2
    qemu-img create -q -f qed -b "$PWD/secret" -F raw b.qed 1M
    both_refuse "refers to another file, '$PWD/secret'" b.qed
    qemu-img create -q -f qcow -b "$PWD/secret" -F raw b.qcow 1M
    both_refuse "refers to another file, '$PWD/secret'" b.qcow
    qemu-img create -q -f vmdk base.vmdk 1M
    qemu-img create -q -f vmdk -b base.vmdk -F vmdk b.vmdk
    both_refuse "refers to another file, 'base.vmdk'" b.vmdk
    # The same, one level deeper.
    overlay top.qcow2 data.qcow2 qcow2
    both_refuse "refers to another file, 'data.qcow2'" top.qcow2

    nbdedup import a backing.qcow2 --allow-backing
    nbdedup export a - | cmp - secret
    nbdedup import b data.qcow2 --allow-backing
    nbdedup export b - | cmp - secret
    nbdedup import c top.qcow2 --allow-backing
    nbdedup export c - | cmp - secret
    nbdedup import d b.qed --allow-backing
    nbdedup export d - | cmp - secret
    nbdedup estimate b.qcow --allow-backing
}

@test "a vmdk image of several files is refused unless they may be read" {
    local type

    for type in monolithicFlat twoGbMaxExtentSparse; do
        mkdir $type
        qemu-img convert -f raw -O vmdk -o subformat=$type disk.raw \
                 $type/a.vmdk
        both_refuse "refers to another file, '$PWD/$type/a-" $type/a.vmdk
        nbdedup import v $type/a.vmdk --allow-backing
        nbdedup export v - | cmp - disk.raw
        nbdedup destroy v
    done
    cat >evil.vmdk <<EOF
# Disk DescriptorFile
version=1
CID=11223344
parentCID=ffffffff
createType="monolithicFlat"
RW 2048 FLAT "$PWD/secret" 0
ddb.adapterType = "ide"
EOF
    both_refuse "refers to another file, '$PWD/secret'" evil.vmdk
    sed "s,$PWD/secret,tmp/../secret," evil.vmdk >dots.vmdk
    both_refuse "refers to another file" dots.vmdk
    # These must not be read, whatever the options.
    mkfifo fifo
    for type in /dev/zero "$PWD/fifo" fifo /proc/self/environ-not; do
        sed "s,$PWD/secret,$type," evil.vmdk >x.vmdk
        both_refuse "${type##*/}', which is not a readable disk image" \
                    x.vmdk --allow-backing
    done
    sed "s,$PWD/secret,nbd+unix:///?socket=$PWD/sock," evil.vmdk >x.vmdk
    both_refuse "refers to" x.vmdk --allow-backing
}

@test "names of servers, and what is no file, are never followed" {
    local name

    : >log
    cp secret served
    other="nbd+unix:///?socket=$PWD/other.sock"
    command nbdkit -f -U other.sock -P other.pid --filter=log \
            file served logfile=log 3>&- 4>&- &
    other_pid=$!
    wait_for 30 test -s other.pid
    overlay x.qcow2 "$other" raw
    both_refuse "refers to another file, '$other'" x.qcow2
    both_refuse "refers to '$other', which is not a file on this machine" \
                x.qcow2 --allow-backing
    for name in "json:{\"driver\":\"nbd\",\"path\":\"$PWD/other.sock\"}" \
                    nbd:unix:other.sock http://127.0.0.1:1/x ssh://h/x; do
        overlay x.qcow2 "$name" raw
        both_refuse "which is not a file on this machine" x.qcow2 --allow-backing
    done
    # Not an image format: QEMU has drivers for everything that can be reached.
    both_misuse "'nbd' is not an image format" "$PWD/other.sock" --format nbd
    both_misuse "'vvfat' is not an image format" "$PWD" --format vvfat
    overlay x.qcow2 "$PWD/secret" vvfat
    both_refuse "'vvfat' is not an image format" x.qcow2 --allow-backing
    grep -q Ready log
    assert_eq "$(grep -c Connect log)" 0
    # A connection would have been noticed.
    overlay x.qcow2 "$other" raw
    qemu-img convert -f qcow2 -O raw x.qcow2 out
    cmp out secret
    grep -q Connect log
}

@test "the name decides: raw is never looked into" {
    local f

    overlay evil.qcow2 "$PWD/secret" raw
    truncate -s 256K evil.qcow2
    for f in disk-of-a-guest.raw upper.RAW x.dd; do
        cp evil.qcow2 "$f"
        run -0 nbdedup import v "$f"
        assert_eq "$output" ""
        nbdedup export v - | cmp - "$f"
        nbdedup destroy v
        nbdedup estimate "$f"
    done
    # The format is uncertain, so the user has to say it.
    cp evil.qcow2 evil.img
    both_refuse "evil.img: its name says raw, its content looks like qcow2: say\
 which it is: --format raw, or --format qcow2" evil.img
    both_refuse "refers to another file" evil.img --format qcow2
    nbdedup import v evil.img --format raw
    nbdedup export v - | cmp - evil.img
    nbdedup destroy v
    cp disk.raw plain.img
    nbdedup import v plain.img
    nbdedup export v - | cmp - disk.raw
    nbdedup destroy v

    # Another format than the name's, or none.
    cp disk.raw x.qcow2
    both_refuse "its name says qcow2, its content looks like raw" x.qcow2
    cp evil.qcow2 x.vmdk
    both_refuse "its name says vmdk, its content looks like qcow2" x.vmdk
    qemu-img convert -f raw -O vpc -o subformat=fixed,force_size=on \
             disk.raw fixed.vhd
    nbdedup import v fixed.vhd
    nbdedup export v - | cmp - disk.raw
    nbdedup destroy v
    # If the name has no format, only the first bytes count.
    cp evil.qcow2 noname
    both_refuse "refers to another file" noname
}

@test "the backing file of an old image is not looked into, either" {
    # A qcow image does not have the format of its backing file.
    overlay base.raw "$PWD/secret" raw
    qemu-img create -q -f qcow -b "$PWD/base.raw" -F raw top.qcow 1M
    truncate -s 1M base.raw
    nbdedup import v top.qcow --allow-backing
    nbdedup export v - | cmp - base.raw
    nbdedup destroy v
    overlay base.img "$PWD/secret" raw
    qemu-img create -q -f qcow -b "$PWD/base.img" -F raw top.qcow 1M
    both_refuse "base.img: its name says raw" top.qcow --allow-backing
}

@test "what is no file and no device is refused at once" {
    mkfifo fifo
    overlay x.qcow2 "$PWD/fifo" raw
    both_refuse "fifo: is a FIFO, not a disk image: give a file, a block device,\
 or '-' and redirect standard input" fifo
    both_refuse "is a FIFO" fifo --format qcow2
    both_refuse "fifo: is a FIFO" x.qcow2 --allow-backing
    both_refuse "is a character device" /dev/zero
    both_refuse "is a character device" /dev/zero --format raw
    both_refuse "Is a directory" . --format vmdk
    overlay x.qcow2 /dev/zero raw
    both_refuse "/dev/zero: is a character device" x.qcow2 --allow-backing
    overlay x.qcow2 nonesuch raw
    both_refuse "nonesuch: No such file" x.qcow2 --allow-backing
    # A FIFO as standard input is accepted.
    cat disk.raw >fifo 3>&- 4>&- &
    nbdedup import v - <fifo
    wait $!
    nbdedup export v - | cmp - disk.raw
}

@test "a loop, an endless disk and an encrypted one are refused" {
    overlay a.qcow2 b.qcow2 qcow2
    overlay b.qcow2 a.qcow2 qcow2
    both_refuse "its files form a loop" a.qcow2 --allow-backing
    overlay a.qcow2 "$PWD/a.qcow2" qcow2
    both_refuse "its files form a loop" a.qcow2 --allow-backing
    qemu-img create -q -f qcow2 -o cluster_size=2M huge.qcow2 2000T
    both_refuse "huge.qcow2: says that its disk has 2199023255552000 bytes" \
                huge.qcow2
    qemu-img create -q -f qcow huge 3T
    both_refuse "which is too much for qcow" huge
    # Its header says so; QEMU would take a second of an idle machine.
    qemu-img create -q -f qcow2 aes.qcow2 1M
    printf '\0\0\0\1' | dd of=aes.qcow2 bs=1 seek=32 conv=notrunc status=none
    both_refuse "aes.qcow2: is encrypted: decrypt it first" aes.qcow2
    # Names in an image cannot control a terminal, and stay in one line.
    overlay x.qcow2 $'a\nb\e[31m' raw
    both_refuse "refers to another file, 'a?b?[31m'" x.qcow2
}

# break_out: replace qemu-img and qemu-nbd by a program that tries to break out.
break_out ()
{
    mkdir bin
    cp "$test_programs/bats/break-out" bin/qemu-img
    cp bin/qemu-img bin/qemu-nbd
    cp secret bin/
    ln -s $$ bin/parent
    command nbdkit -f -U bin/sock -P other.pid null 3>&- 4>&- &
    other_pid=$!
    wait_for 30 test -s other.pid
}

@test "a program that an image has taken over reaches nothing" {
    break_out
    qemu-img convert -f raw -O qcow2 disk.raw bin/in.qcow2
    cp secret bin/before
    run -1 env PATH="$PWD/bin:$PATH" nbdedup import v bin/in.qcow2 9<secret
    assert_eq "$output" "nbdedup: import: bin/in.qcow2: refers to another file,\
 'reached: nothing': give --allow-backing to read that, too"
    nbdedup import v disk.raw
    run -1 env PATH="$PWD/bin:$PATH" nbdedup export v out.qcow2 \
        --format qcow2 9<secret
    assert_eq "$output" "nbdedup: export: out.qcow2: reached: time output"
    cmp bin/secret bin/before
    nothing_left '["v"]'

    # Without confinement it can do what it tries.
    run -1 bin/qemu-img
    [[ $output == "reached: "*unix*tcp*fork*kill*secret*passwd*memory* ]]
}

@test "qemu-nbd reads only what the image consists of, and has no network" {
    # qemu-nbd, which reads the data; the check uses the real qemu-img.
    break_out
    qemu-img convert -f raw -O qcow2 disk.raw bin/in.qcow2
    mkdir first
    cp bin/qemu-nbd first/
    cp bin/secret first/
    ln -s $$ first/parent
    ln -s ../bin/sock first/sock
    run -1 env PATH="$PWD/first:$PATH" timeout 30 \
        nbdedup import v bin/in.qcow2
    assert_eq "$output" "nbdedup: import: bin/in.qcow2: refers to another file,\
 '/usr/bin/env': give --allow-backing to read that, too"
    nothing_left
}

@test "what cannot be confined is not run, and raw images do without" {
    qemu-img convert -f raw -O qcow2 disk.raw in.qcow2
    nbdedup import v disk.raw
    for command in "import w in.qcow2" "estimate in.qcow2" \
                       "export v out.qcow2 --format qcow2"; do
        # shellcheck disable=SC2086
        run -1 "$test_programs/bats/break-out" --without-seccomp nbdedup $command
        [[ $output == "nbdedup: ${command%% *}: "*.qcow2": cannot confine\
 qemu-img (seccomp: Operation not permitted), so nbdedup does not run it: "* ]] ||
            fail "$output"
        assert_eq "${#lines[@]}" 1
    done
    nothing_left '["v"]'
    "$test_programs/bats/break-out" --without-seccomp nbdedup export v - |
        cmp - disk.raw
}

# left_over: list processes with $PWD/mark in their environment.
left_over ()
{
    grep -l --null-data "^PATH=$PWD/mark:" /proc/[0-9]*/environ 2>/dev/null
}

no_left_over ()
{
    [ -z "$(left_over)" ]
}

# FUZZ=N SEED=S: another number of images of each format, and other ones.  Use
# some hundreds for a change to how images are read.
@test "spoilt images of all formats end soon, in one line or in a volume" {
    local f i file status path="$PWD/mark:$PATH" good=0 bad=0

    for f in qcow2 qcow qed vmdk vdi vhdx vpc parallels; do
        qemu-img create -q -f $f good.$f 4M
        qemu-io -f $f -c "write -P 3 1M 64k" -c "write -P 5 3M 8k" good.$f \
                >/dev/null
        for (( i = 0; i < ${FUZZ:-5}; i++ )); do
            file="$f-$(( ${SEED:-1} + i ))"
            "$top_srcdir/tests/bats/mutate-image.py" good.$f "$file" \
                                               $(( ${SEED:-1} + i ))
            status=0
            # The limit for CPU time ends the worst ones.
            PATH="$path" timeout -s KILL 400 nbdedup import v "$file" \
                --format $f >out 2>&1 || status=$?
            if [ $status = 0 ]; then
                assert_eq "$(grep -cv 'rounded up' out)" 0 "$file: $(cat out)"
                nbdedup destroy v
                good=$(( good + 1 ))
            else
                assert_eq $status 1 "$file: $(cat out)"
                assert_eq "$(wc -l <out)" 1 "$file: $(cat out)"
                [[ $(cat out) == "nbdedup: import: $file: "?* ]] ||
                    fail "$file: $(cat out)"
                bad=$(( bad + 1 ))
            fi
            rm "$file"
        done
    done
    assert_num "$good > 0 && $bad > 0"
    nothing_left
    wait_for 10 no_left_over
}

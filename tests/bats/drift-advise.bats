# SPDX-License-Identifier: BSD-3-Clause
#
# "nbdedup drift --advise": each kind of advice is followed, with the tools that
# guests and administrators have, and saves what was promised.

# helpers.bash and "run" set what seems to be unset
# shellcheck disable=SC2154,SC2030,SC2031

load ../rigs/helpers

setup ()
{
    [ -x "$NBDEDUP_LIBEXEC/nbdedup-files" ] ||
        skip "this build has no libtsk"
    loops=() fuses=()
    mkdir mnt fuse
}

teardown ()
{
    unmount_all || :
    stop
    check_pools
}

# make_golden [OPTION...]: golden@v1, a file system with some files, in a new
# pool that is served.
make_golden ()
{
    mkdir -p root/etc root/usr/lib root/var/cache root/var/log root/tmp
    echo /dev/vda1 >root/etc/fstab
    random_data 6M 1 >root/usr/lib/one
    random_data 3M 2 >root/usr/lib/two
    truncate -s 96M img
    mke2fs -q -b 4096 -t ext4 -d root img
    make_pool "$@"
    nbdedup import golden img
    nbdedup snapshot golden@v1
    serve "$pool"
}

# attach NAME [OPTION...]: a loop device for the volume, in $loop.
attach ()
{
    need losetup -f
    need test -c /dev/fuse
    mkdir -p "fuse/$1"
    nbdfuse "fuse/$1/disk" "$(uri_of "$1")" 3>&- 4>&- &
    fuses+=("$!")
    wait_for 20 test -s "fuse/$1/disk"
    loop=$(losetup -f --show "${@:2}" "fuse/$1/disk") || skip "no loop device"
    loops+=("$loop")
}

# mount_volume NAME [OPTION...]: at mnt/NAME.
mount_volume ()
{
    attach "$@"
    mkdir -p "mnt/$1"
    mount "$loop" "mnt/$1"
}

# Let go of all volumes.  nbdfuse ends with its mount.
unmount_all ()
{
    local i failed=

    for i in mnt/*; do
        ! mountpoint -q "$i" || umount "$i"
    done
    for i in "${loops[@]}"; do
        losetup -d "$i"
    done
    for i in fuse/*; do
        ! mountpoint -q "$i" || wait_for 20 fusermount3 -u "$i" ||
            fusermount3 -u -z "$i"
    done
    for i in "${fuses[@]}"; do
        if ! wait_for 20 server_is_gone "$i"; then
            kill -9 "$i"
            failed=yes
        fi
        wait "$i" || :
    done
    loops=() fuses=()
    [ -z "$failed" ]
}

freeing_is_done ()
{
    [ "$(nbdedup stat --json | jq .pool.freeing_bytes)" = 0 ]
}

# stored: what the records take, when nothing is being freed.
stored ()
{
    wait_for 30 freeing_is_done
    nbdedup stat --json | jq .pool.stored_bytes
}

# advise [FILTER]: into "json"; print the promise of the piece of advice that the
# filter selects.
advise ()
{
    nbdedup drift golden@v1 --advise --json >json
    jq "[.advice[] | select ($1)] | if length == 1 then .[0].saves_bytes
        else error (\"\(length) pieces of advice\") end" json
}

is_within ()
{
    local saved off

    saved=$(( $2 - $(stored) ))
    off=$(( $1 > saved ? $1 - saved : saved - $1 ))
    echo "promised $1, saved $saved" >saved
    [ "$1" -gt 0 ] && [ $(( off * 50 )) -le "$1" ]
}

# within PROMISED BEFORE: has so much been saved since the records took BEFORE,
# within 2 %?  Layers merge in the background.
within ()
{
    wait_for 20 is_within "$1" "$2" || fail "$(cat saved)"
}

@test "trim: free space, with parts of blocks, and what clones have in common" {
    make_golden --block-size 16K
    for i in a b c; do
        nbdedup clone golden@v1 $i
        mount_volume $i
        random_data 5M 3 >mnt/$i/usr/lib/common
        random_data 3M "1$i" >mnt/$i/var/log/gone
        random_data 1M "2$i" >mnt/$i/var/log/stays
        for j in {1..40}; do
            head -c $(( j * 1000 )) mnt/$i/var/log/gone >"mnt/$i/tmp/$j"
        done
        sync -f mnt/$i
        rm mnt/$i/var/log/gone mnt/$i/usr/lib/two mnt/$i/tmp/*[13579]
        [ $i = c ] || rm mnt/$i/usr/lib/common
        sync -f mnt/$i
    done
    unmount_all
    promised=$(advise '.action == "trim"')
    [ "$promised" -gt 8000000 ]
    assert_eq "$(jq -r '[.advice[] | select (.action == "trim").clones[].name] |
                 sort | join (" ")' json)" "a b c"
    before=$(stored)
    for i in a b c; do
        mount_volume $i
        fstrim mnt/$i
    done
    unmount_all
    within "$promised" "$before"
    # All of it has been done.
    nbdedup drift golden@v1 --advise --json >json
    assert_eq "$(jq '[.advice[] | select (.action == "trim")] | length' json)" 0
}

@test "move: swap, temporary files and the journal" {
    truncate -s 120M disk
    mkdir -p root/etc root/usr/lib root/var/cache/apt root/tmp
    echo /dev/vda1 >root/etc/fstab
    random_data 4M 1 >root/usr/lib/one
    sfdisk -q disk <<'END'
label: gpt
start=2048, size=196608
start=198656, size=32768
END
    truncate -s 96M fs
    mke2fs -q -b 4096 -t ext4 -J size=8 -d root fs
    dd if=fs of=disk bs=1M seek=1 conv=notrunc,sparse status=none
    truncate -s 16M swap
    mkswap -q swap >/dev/null
    dd if=swap of=disk bs=1M seek=97 conv=notrunc,sparse status=none
    make_pool --block-size 4K
    nbdedup import golden disk
    nbdedup snapshot golden@v1
    serve "$pool"
    for i in a b; do
        nbdedup clone golden@v1 $i
        mount_volume $i -o 1M --sizelimit 96M
        random_data 6M "1$i" >noise
        dd if=noise of=fuse/$i/disk bs=1M seek=98 conv=notrunc status=none
        random_data 5M "2$i" >mnt/$i/var/cache/apt/pkgcache.bin
        for j in {1..300}; do
            echo $j >"mnt/$i/tmp/$j"
            sync -f mnt/$i
        done
    done
    unmount_all
    advise '.action == "move" and .what == "swap"' >swap.promise
    advise '.action == "move" and .what == "temporary files"' >tmp.promise
    advise '.action == "move" and .what == "journal"' >journal.promise
    jq -r '.advice[] | select (.what == "swap").commands[]' json |
        grep '^nbdedup create ' >commands
    assert_eq "$(wc -l <commands)" 2

    before=$(stored)
    while read -r line; do
        bash -c "$line"
    done <commands
    assert_eq "$(nbdedup get dedup a-swap)" off
    for i in a b; do
        attach $i
        blkdiscard -f -o 97M -l 16M "$loop"
    done
    unmount_all
    within "$(cat swap.promise)" "$before"

    before=$(stored)
    for i in a b; do
        attach $i -o 1M --sizelimit 96M
        tune2fs -O ^has_journal "$loop" >/dev/null
        e2fsck -fy "$loop" >/dev/null
        mount "$loop" mnt/$i
        fstrim mnt/$i
    done
    unmount_all
    # There was free space, too, but no advice to trim that little.
    within "$(cat journal.promise)" "$before"

    before=$(stored)
    for i in a b; do
        mount_volume $i -o 1M --sizelimit 96M
        rm -r mnt/$i/var/cache/apt mnt/$i/tmp/*
        sync -f mnt/$i
        fstrim mnt/$i
    done
    unmount_all
    within "$(cat tmp.promise)" "$before"
}

# follow FILTER: run the commands of the piece of advice, as they are.
follow ()
{
    jq -r ".advice[] | select ($1).commands[]" json >commands
    [ -s commands ]
    while read -r line; do
        [[ $line == "nbdedup "* ]]
        bash -ec "$line" >/dev/null || fail "'$line' failed"
    done <commands
}

# own NAME...: the bytes that the volumes have of their own.
own ()
{
    nbdedup list --json | jq '[.volumes[] |
        select (.name | IN ($ARGS.positional[])).own_bytes] | add' \
        --args -- "$@"
}

# upgrade VOLUME SEED: the same new files, and some of its own.  What they
# replace goes, which only the golden image has then.
upgrade ()
{
    mount_volume "$1"
    rm "mnt/$1/usr/lib/one"
    sync -f "mnt/$1"
    fstrim "mnt/$1"
    random_data 6M 7 >"mnt/$1/usr/lib/one"
    random_data 4M 8 >"mnt/$1/usr/lib/new"
    random_data 1M "$2" >"mnt/$1/var/log/own"
    unmount_all
}

@test "rebase: a newer golden image takes over" {
    make_golden --block-size 4K
    for i in a b c; do
        nbdedup clone golden@v1 $i
        upgrade $i "1$i"
    done
    upgrade golden 9
    nbdedup snapshot golden@v2
    promised=$(advise '.action == "rebase"')
    [ "$promised" -gt 4000000 ]
    assert_eq "$(jq -r '.advice[] | select (.action == "rebase").target' json)" \
              golden@v2
    assert_eq "$(own a b c)" "$(jq '.advice[] |
                 select (.action == "rebase").own_bytes_before' json)"
    before=$(stored)
    follow '.action == "rebase"'
    assert_eq "$(tail -n 1 commands)" "nbdedup destroy golden@v1"
    within "$promised" "$before"
    assert_eq "$(own a b c)" "$(jq '.advice[] |
                 select (.action == "rebase").own_bytes_after' json)"
    cmp <(nbdedup export a -) <(qemu-img convert -O raw "$(uri_of a)" a.raw &&
        cat a.raw)
    # Nothing better is left: the next golden image is there.
    nbdedup drift golden@v2 --advise --json |
        jq -e '[.advice[] | select (.action == "rebase")] == []'
}

# own_on NAME: what all others would have of their own, were NAME the golden
# image.
own_on ()
{
    local i sum=0

    nbdedup snapshot "$1@try"
    for i in a b c d; do
        [ $i = "$1" ] ||
            sum=$(( sum + $(nbdedup rebase $i "$1@try" --dry-run --json |
                            jq .own_bytes_after) ))
    done
    nbdedup destroy "$1@try"
    echo $sum
}

@test "promote: the clone that leaves the others the least" {
    make_golden --block-size 4K
    for i in a b c d; do
        nbdedup clone golden@v1 $i
    done
    for i in a b c; do
        upgrade $i "1$i"
    done
    mount_volume b
    random_data 8M 77 >mnt/b/var/log/own
    unmount_all
    promised=$(advise '.action == "promote"')
    least=$(for i in a b c d; do own_on $i; done | sort -n | head -n 1)
    target=$(jq -r '.advice[] | select (.action == "promote").target' json)
    assert_eq "$(own_on "$target")" "$least"
    assert_eq "$(jq '.advice[] | select (.action == "promote").own_bytes_after' \
                 json)" "$least"

    # Without the clone that is as the old image was, that can go.
    nbdedup destroy d
    nbdedup snapshot "$target@golden"
    promised=$(advise '.action == "promote"')
    target=$(jq -r '.advice[] | select (.action == "promote").target' json)
    [ "$promised" -gt 4000000 ]
    for i in a b c; do
        nbdedup export $i $i.raw
    done
    before=$(stored)
    follow '.action == "promote"'
    assert_eq "$(tail -n 1 commands)" "nbdedup destroy golden --recursive --force"
    within "$promised" "$before"
    assert_eq "$(own a b c)" "$(jq '.advice[] |
                 select (.action == "promote").own_bytes_after' json)"
    for i in a b c; do
        nbdedup export $i - | cmp - $i.raw
    done
    nbdedup drift "$target@golden2" --json | jq -e '.clones | length == 2'
}

@test "rewrite: compression, and duplicates that were missed" {
    make_golden --block-size 16K --compress none
    text_data 8M 1 >text
    random_data 4M 2 >random
    for i in a b; do
        nbdedup clone golden@v1 $i
        nbdedup set dedup=off $i
        nbdcopy --flush text "$(uri_of $i)"
        qemu-io -f raw -c "write -q -s random 16M 4M" "$(uri_of $i)"
        nbdedup set dedup=on $i
    done
    promised=$(advise '.action == "rewrite"')
    assert_eq "$(jq -r '.advice[] | select (.action == "rewrite").what' json)" \
              duplicates
    before=$(stored)
    follow '.action == "rewrite"'
    within "$promised" "$before"

    for i in a b golden; do
        nbdedup set compress=lz4 $i
    done
    promised=$(advise '.what == "compression"')
    before=$(stored)
    follow '.what == "compression"'
    within "$promised" "$before"
}

@test "for people and for programs, with a server and without, and wrong usage" {
    make_golden --block-size 4K
    nbdedup clone golden@v1 a
    nbdedup clone golden@v1 b
    run -0 --separate-stderr nbdedup drift golden@v1 --advise
    [[ $output == *"golden@v1, advice: nothing that would save much"* ]]
    mount_volume a
    random_data 2M 3 >mnt/a/usr/lib/gone
    sync -f mnt/a
    rm mnt/a/usr/lib/gone
    unmount_all
    run -0 --separate-stderr nbdedup drift --advise
    [[ $output == *"golden@v1, advice, with what each would save:"* ]]
    [[ $output == *"1. "*" MiB  Trim the free space of 1 clone:"*"a "*"fstrim --all"* ]]
    nbdedup drift golden@v1 --advise --json | jq 'del (.time)' >json
    nbdedup drift golden@v1 --files --json | jq 'del (.time)' |
        diff <(jq 'del (.advice)' json) -
    nbdedup drift --advise --json | jq '.goldens[0] | del (.time)' | diff json -
    stop
    nbdedup drift golden@v1 --advise --json | jq 'del (.time)' | diff json -
    nbdedup drift golden@v1 --advise --json --read-only |
        jq 'del (.time)' | diff json -
    for i in --history --record --csv --forecast --alert "--svg x" \
             "--if-destroyed a"; do
        # shellcheck disable=SC2086
        run -2 nbdedup drift golden@v1 --advise $i
    done
    run -1 nbdedup drift golden@nothing --advise
    [[ $output == "nbdedup: drift: "*"golden@nothing"* ]]
}

@test "of clones without a file system, of no clone, and of a destroyed image" {
    make_pool --block-size 4K
    nbdedup create golden 16M
    nbdedup snapshot golden@v1
    serve "$pool"
    nbdedup clone golden@v1 a
    nbdedup drift --advise --json | jq -e '.goldens[0].advice == []'
    nbdedup clone golden@v1 b
    random_data 3M 1 >noise
    nbdcopy --flush noise "$(uri_of a)"
    nbdcopy --flush noise "$(uri_of b)"
    nbdedup destroy golden --recursive --force
    nbdedup drift --advise --json >all
    jq -e '.goldens[0].advice | map (.action) == ["promote"]' all
    before=$(own a b)
    jq '.goldens[0]' all >json
    follow '.action == "promote"'
    assert_eq "$(own a b)" 0
    [ "$before" -eq 6291456 ]
    # One clone needs no other golden image, whatever it has written.
    nbdedup create alone 16M
    nbdedup snapshot alone@v1
    nbdedup clone alone@v1 c
    random_data 3M 2 >noise
    nbdcopy --flush noise "$(uri_of c)"
    nbdedup snapshot c@s
    nbdedup drift alone@v1 --advise --json | jq -e '.advice == []'
    nbdedup destroy c --recursive
    nbdedup destroy alone --recursive
    nbdedup destroy a --recursive --force
    nbdedup destroy b
    run -0 nbdedup drift --advise
    nbdedup drift --advise --json | jq -e '.goldens == []'
}

@test "trim: NTFS" {
    need ntfs-3g --version
    truncate -s 40M img
    mkntfs -q -F -c 4096 img >/dev/null 2>&1
    make_pool --block-size 16K
    nbdedup import golden img
    nbdedup snapshot golden@v1
    nbdedup clone golden@v1 a
    serve "$pool"
    attach a
    mkdir mnt/a
    ntfs-3g "$loop" mnt/a
    random_data 4M 1 >mnt/a/gone
    random_data 2M 2 >mnt/a/stays
    sync -f mnt/a
    rm mnt/a/gone
    unmount_all
    promised=$(advise '.action == "trim"')
    [ "$promised" -gt 3500000 ]
    before=$(stored)
    attach a
    ntfs-3g "$loop" mnt/a
    fstrim mnt/a || skip "ntfs-3g cannot trim here"
    unmount_all
    within "$promised" "$before"
}

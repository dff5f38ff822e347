#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# A volume as a file of this machine: libnbd's nbdfuse, with a file system in
# the file.

load ../rigs/helpers

mounted=()
nbdfuse_pid=

setup ()
{
    PATH=$PATH:/sbin:/usr/sbin
    need nbdfuse --version
    need mke2fs -V
    need test -w /dev/fuse
    make_pool
    nbdedup create disk 300M
    serve "$pool"
    fuse=$BATS_TEST_TMPDIR/fuse
    mkdir "$fuse"
    attach
}

teardown ()
{
    local nr

    # The last mount is removed first.
    for ((nr = ${#mounted[@]} - 1; nr >= 0; nr--)); do
        umount "${mounted[nr]}" || umount -l "${mounted[nr]}" || :
    done
    detach || :
    stop
    check_pools
}

# attach, detach: mount the volume as $fuse/nbd.
attach ()
{
    nbdfuse "$fuse" "$(uri_of disk)" >"$BATS_TEST_TMPDIR/nbdfuse.log" 2>&1 \
        3>&- 4>&- &
    nbdfuse_pid=$!
    wait_for 30 test -e "$fuse/nbd" ||
        fail "$(cat "$BATS_TEST_TMPDIR/nbdfuse.log")"
}

detach ()
{
    local status=0 pid=$nbdfuse_pid

    [ -n "$pid" ] || return 0
    nbdfuse_pid=
    fusermount3 -u "$fuse" || fusermount3 -u -z "$fuse" || :
    if ! wait_for 60 server_is_gone "$pid"; then
        kill -9 "$pid"
        return 1
    fi
    wait "$pid" || status=$?
    assert_eq "$status" 0 nbdfuse
}

# Put random data, the same again, text, and many small files into $tree.
make_tree ()
{
    local i

    tree=$BATS_TEST_TMPDIR/tree
    mkdir -p "$tree/small"
    random_data 20M 3 >"$tree/random"
    cp "$tree/random" "$tree/copy"
    text_data 5M 4 >"$tree/text"
    for i in {1..300}; do seq "$i" 800 >"$tree/small/$i"; done
}

# The tree on the exported disk must be $tree.
compare_tree ()
{
    nbdedup export disk "$BATS_TEST_TMPDIR/disk.raw"
    run e2fsck -fn "$BATS_TEST_TMPDIR/disk.raw"
    [ "$status" = 0 ] || fail "e2fsck:" "$output"
    mkdir "$BATS_TEST_TMPDIR/out"
    debugfs -R "rdump $1 $BATS_TEST_TMPDIR/out" "$BATS_TEST_TMPDIR/disk.raw" \
        >/dev/null 2>&1
    rm -rf "$BATS_TEST_TMPDIR/out/lost+found"
    diff -r "$tree" "$2"
}

@test "mke2fs and debugfs work on a volume that nbdfuse shows as a file" {
    need fusermount3 --version
    make_tree
    mke2fs -q -t ext4 -F -b 4096 -m 0 -d "$tree" "$fuse/nbd"
    text_data 3M 9 >"$tree/later"
    debugfs -w -R "write $tree/later later" "$fuse/nbd" 2>/dev/null
    e2fsck -fn "$fuse/nbd"
    sync "$fuse/nbd"
    detach

    # A new client reads the same.
    attach
    e2fsck -fn "$fuse/nbd"
    assert_eq "$(debugfs -R 'cat /random' "$fuse/nbd" 2>/dev/null | sha256sum)" \
              "$(sha256sum <"$tree/random")"
    detach
    compare_tree / "$BATS_TEST_TMPDIR/out"
}

@test "a volume is mounted by nbdfuse and a loop device, and trimmed" {
    local mnt=$BATS_TEST_TMPDIR/mnt full

    need_root
    need fusermount3 --version
    need losetup --find
    make_tree
    mke2fs -q -t ext4 -F -b 4096 -m 0 "$fuse/nbd"
    mkdir "$mnt"
    mount -o loop "$fuse/nbd" "$mnt"
    mounted+=("$mnt")
    cp -r "$tree" "$mnt/tree"
    random_data 30M 8 >"$mnt/garbage"
    sync -f "$mnt"
    full=$(volume_stat disk logical_bytes)
    umount "$mnt"
    mounted=()
    detach

    attach
    mount -o loop "$fuse/nbd" "$mnt"
    mounted+=("$mnt")
    diff -r "$tree" "$mnt/tree"
    random_data 30M 8 | cmp - "$mnt/garbage"
    rm "$mnt/garbage"
    sync -f "$mnt"
    fstrim "$mnt"
    umount "$mnt"
    mounted=()
    detach
    assert_num "$full - $(volume_stat disk logical_bytes) > 28 * 1048576"
    compare_tree /tree "$BATS_TEST_TMPDIR/out/tree"
    nbdedup scrub
}

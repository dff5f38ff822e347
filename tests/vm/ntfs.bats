#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# NTFS on a volume, as nbdedup-recipes(7) has it: a guest deletes and trims, and
# the pool gets space back; a golden image with NTFS is cloned.  The guest is
# Linux: there is no Windows here.

load ../rigs/helpers
load guest

setup_file ()
{
    PATH=$PATH:/sbin:/usr/sbin
    need cpio --version
    need busybox true
    need mkntfs --version
    need ntfs-3g --version
    build_image
}

# make_image FILE: a disk with NTFS and the file "system", of this machine.
make_image ()
{
    truncate -s 128M "$1"
    mkntfs -q -F -Q -c 4096 "$1" 2>/dev/null
    random_data 6M 1 >"$BATS_TEST_TMPDIR/system"
    ntfscp -q -f "$1" "$BATS_TEST_TMPDIR/system" system
}

# page_disk: QEMU's options for the volume desk1, as printed in the page, but
# that the socket is that of this test.
page_disk ()
{
    local lines disk

    lines=$(sed -n '/^=head2 A guest with NTFS/,/^=head2/s/^ //p' \
                "$top_srcdir/lib/nbdedup-recipes.pod" | grep '^disk=')
    [[ $lines == *discard=unmap* ]] || fail "the page has no disk: $lines"
    eval "$lines"
    echo "${disk/\/run\/nbdedup.sock/$sock}"
}

# Start a guest that has only this disk.  It reads lines from descriptor 5.
start_ntfs_guest ()
{
    local initrd=$BATS_TEST_TMPDIR/initrd.gz

    console=$BATS_TEST_TMPDIR/console
    : >"$console"
    "$top_srcdir/vm-images/initramfs-nbd" --run "$BATS_TEST_TMPDIR/run/run" \
        --module virtio_blk --module fuse --module ntfs3 \
        --program ntfs-3g --program fstrim "$image" "$initrd"
    mkfifo "$BATS_TEST_TMPDIR/keyboard"
    exec 5<>"$BATS_TEST_TMPDIR/keyboard"
    timeout -k 10 600 qemu-system-x86_64 -accel "${QEMU_ACCEL:-tcg}" -m 320M \
        -no-user-config -nodefaults -display none -no-reboot \
        -kernel "${image%.raw}.vmlinuz" -initrd "$initrd" \
        -append 'console=ttyS0 panic=-1 quiet no_timer_check' -serial stdio \
        -blockdev "$(page_disk)" -device virtio-blk-pci,drive=disk0 \
        -device virtio-rng-pci <&5 >"$console" 2>&1 3>&- 4>&- &
    guest=ntfs
    guests[ntfs]=$!
}

console_has_or_gone ()
{
    grep -q -- "^$1" "$console" || ! kill -0 "${guests[$guest]}" 2>/dev/null
}

# wait_for_console TEXT: until a line of the guest begins with TEXT.
wait_for_console ()
{
    wait_for 300 console_has_or_gone "$1"
    grep -q -- "^$1" "$console" ||
        fail "the guest ended before '$1':" "$(tail -n 60 "$console")"
}

# same_file NAME FILE: the volume's NTFS has FILE with the content of the
# golden image's.
same_file ()
{
    nbdedup export "$1" "$BATS_TEST_TMPDIR/$1.raw"
    ntfscat -f "$BATS_TEST_TMPDIR/$1.raw" "$2" | cmp - "$BATS_TEST_TMPDIR/system"
}

@test "a guest's NTFS gives back what it deletes and trims; clones share the golden image" {
    local golden written

    make_pool
    make_image "$BATS_TEST_TMPDIR/golden.raw"
    nbdedup import golden "$BATS_TEST_TMPDIR/golden.raw" --block-size 4K
    nbdedup snapshot golden@v1
    nbdedup clone golden@v1 desk --count 2
    serve "$pool"

    # Each driver that there is: Debian 12 has no ntfs3.
    guest_script <<'SCRIPT'
set -ex
use ()
{
    case $1 in
        fuse) /usr/local/bin/ntfs-3g /dev/vda /mnt ;;
        ntfs3) mount -t ntfs3 -o discard /dev/vda /mnt ;;
    esac
}
drivers=fuse
! grep -w ntfs3 /proc/filesystems || drivers="fuse ntfs3"
for driver in $drivers; do
    use $driver
    for i in 1 2 3; do head -c 4194304 /dev/urandom >/mnt/$driver$i; done
    cp /mnt/system /mnt/$driver-copy
    umount /mnt
done
echo "written by: $drivers"
read -r line
for driver in $drivers; do
    use $driver
    rm /mnt/${driver}[123]
    umount /mnt
done
echo deleted
read -r line
for driver in $drivers; do
    use $driver
    /usr/local/bin/fstrim -v /mnt
    umount /mnt
done
SCRIPT
    golden=$(pool_stat stored_bytes)
    start_ntfs_guest
    wait_for_console "written by: "
    written=$(volume_stat desk1 own_bytes)
    assert_num "$written > 18 * 1048576"
    assert_num "$(pool_stat stored_bytes) - $golden > 12 * 1048576"
    echo >&5

    # Without TRIM the pool keeps what ntfs-3g has deleted.
    wait_for_console deleted
    assert_num "$(pool_stat stored_bytes) - $golden > 12 * 1048576"
    echo >&5

    finish_nbd_guest
    assert_num "$written - $(volume_stat desk1 own_bytes) > 11 * 1048576"
    # What is left of it is a copy of a file of the golden image, and a little.
    assert_num "$(pool_stat stored_bytes) - $golden < 1048576"
    nbdedup drift golden@v1 --json >"$BATS_TEST_TMPDIR/drift"
    assert_eq "$(jq -c '.clones[] | select (.name == "desk2") |
                        [.golden_moved, .sibling, .unique, .only_here_bytes]' \
                    "$BATS_TEST_TMPDIR/drift")" '[0,0,0,0]'
    assert_num "$(jq '.clones[] | select (.name == "desk1").golden_moved' \
                      "$BATS_TEST_TMPDIR/drift") >= 6 * 256"

    stop
    same_file golden system
    same_file desk1 system
    same_file desk1 fuse-copy
    same_file desk2 system
}

#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# The NBD client of Debian's kernel, in a guest of its own, so that neither root
# nor a kernel with nbd is needed here.

load ../rigs/helpers
load guest

setup_file ()
{
    need cpio --version
    need busybox true
    need sh -c 'command -v nc'
    build_image
    need nbd-client -V
}

@test "a guest's kernel makes a file system on a volume, and finds it after disconnecting" {
    make_pool
    nbdedup create disk 300000256
    serve "$pool"
    guest_script <<'SCRIPT'
set -ex
connect ()
{
    # With blocks larger than -b 512 the end of the volume would be missing.
    /usr/local/bin/nbd-client 10.0.2.100 10809 /dev/nbd0 -N disk -b 512
    # nbd-client may end before the kernel has taken over the connection.
    for i in $(seq 100); do
        [ "$(blockdev --getsize64 /dev/nbd0)" = 0 ] || break
        sleep 0.1
    done
}
disconnect () { /usr/local/bin/nbd-client -d /dev/nbd0; }
small_files () ( set +x; for i in $(seq 100); do seq 1000 >small$i; done )
fsync ()
(
    set +x
    for file; do dd if=/dev/null of="$file" conv=notrunc,fsync 2>/dev/null; done
)

connect
[ "$(blockdev --getsize64 /dev/nbd0)" = 300000256 ]
[ "$(cat /sys/block/nbd0/queue/write_cache)" = "write back" ]
[ "$(cat /sys/block/nbd0/queue/discard_max_bytes)" -gt 0 ]

# Bypass the page cache, not aligned to a block of the volume.
dd if=/bin/busybox of=/dev/nbd0 bs=512 seek=99999 count=1000 oflag=direct
dd if=/dev/nbd0 of=/tmp/back bs=512 skip=99999 count=1000 iflag=direct
head -c 512000 /bin/busybox | cmp - /tmp/back

# Without -b small disks get 1 KiB blocks.
/usr/local/bin/mke2fs -q -t ext4 -b 4096 -m 0 /dev/nbd0
mount /dev/nbd0 /mnt
mkdir /mnt/files
cd /mnt/files
head -c 20000000 /dev/urandom >random
cp random copy
head -c 20000000 /dev/urandom >/mnt/garbage
small_files
sha256sum random copy small* >/tmp/sums
cp /tmp/sums /mnt/sums
fsync random copy /mnt/garbage /mnt/sums small*
cd /
umount /mnt
disconnect

connect
e2fsck -fn /dev/nbd0
mount /dev/nbd0 /mnt
cmp /tmp/sums /mnt/sums
cd /mnt/files
sha256sum -c ../sums >/tmp/checked
rm /mnt/garbage
sync
fstrim -v /mnt
cd /
umount /mnt
disconnect
sed 's/^/SUM /' /tmp/sums
SCRIPT
    nbd_guest

    sed -n 's/\r$//; s/^SUM //p' "$console" >"$BATS_TEST_TMPDIR/sums"
    assert_eq "$(wc -l <"$BATS_TEST_TMPDIR/sums")" 102
    check_disk disk
    check_files /files "$BATS_TEST_TMPDIR/sums"

    # 20 MB twice, one of them deduplicated; the third 20 MB were trimmed.
    assert_num "$(volume_stat disk logical_bytes) < 44 * 1000000"
    assert_num "$(pool_stat stored_bytes) < 24 * 1000000"
    nbdedup scrub
    nbdedup check
}

#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2030,SC2031,SC2034,SC2154
#
# Clones of a real Debian image in use by guests, while they are snapshotted and
# rolled back; other file systems; and a kernel's NBD client that outlives its
# server.

load ../rigs/helpers
load guest

setup_file ()
{
    need cpio --version
    need busybox true
    need sh -c 'command -v nc'
    need nbd-client -V
    build_image
    quick_image
}

# replayed SNAPSHOT: put its file system, as after a loss of power, into $disk;
# it must be clean after a replay of its journal.
replayed ()
{
    disk=$BATS_TEST_TMPDIR/disk.raw
    rm -f "$disk"
    nbdedup export "$1" "$disk"
    run e2fsck -fp "$disk"
    [ "$status" -le 1 ] || fail "e2fsck -p:" "$output"
    run -0 e2fsck -fn "$disk"
}

own_bytes ()
{
    volume_stat "$1" own_bytes
}

@test "two clones run at the same time, are snapshotted, and one is rolled back" {
    local golden before

    make_pool
    nbdedup import golden "$image"
    nbdedup snapshot golden@v1
    golden=$(nbdedup export golden - | sha256sum)
    serve "$pool"
    nbdedup clone golden@v1 web --count 2

    # Each writes data of its own; the garbage comes after the snapshot, so that
    # its space is really freed.
    guest_script <<'SCRIPT'
#!/bin/bash
set -e
say () { echo "$@" >/dev/virtio-ports/report; }
mkdir /srv/files
cd /srv/files
for ((i = 1; i <= 40; i++)); do
    head -c 128K /dev/urandom >"file$i"
    sync "file$i" .
    say "sum $(sha256sum "file$i")"
    sleep 0.1
done
head -c 24M /dev/urandom >/srv/garbage
sync
say "garbage"
sleep 4
rm /srv/garbage
sync
fstrim /
say "done"
SCRIPT
    start_guest web1
    start_guest web2
    use_guest web1
    wait_for_guest 600 '.* file10$'
    cp "$report" "$BATS_TEST_TMPDIR/first"
    nbdedup snapshot web1@running
    use_guest web2
    wait_for_guest 600 '.* file10$'
    nbdedup snapshot web2@running
    wait_for_guest 600 garbage
    before=$(own_bytes web2)
    finish_guest
    assert_num "$before - $(own_bytes web2) > 20 * 1048576"
    use_guest web1
    finish_guest

    # Each has its own changes, and a clean file system.
    for name in web1 web2; do
        sed -n 's/^sum //p' "$BATS_TEST_TMPDIR/report-$name" \
            >"$BATS_TEST_TMPDIR/sums-$name"
        assert_eq "$(wc -l <"$BATS_TEST_TMPDIR/sums-$name")" 40
        check_disk $name
        check_files /srv/files "$BATS_TEST_TMPDIR/sums-$name"
    done
    run ! cmp -s "$BATS_TEST_TMPDIR/sums-web1" "$BATS_TEST_TMPDIR/sums-web2"

    # The snapshot has all data that was synced before it, and the golden image
    # has not changed.
    replayed web1@running
    sed -n 's/^sum //p' "$BATS_TEST_TMPDIR/first" >"$BATS_TEST_TMPDIR/synced"
    while read -r sum file; do
        assert_eq "$(debugfs -R "cat /srv/files/$file" "$disk" 2>/dev/null |
                         sha256sum)" "$sum  -" "$file"
    done <"$BATS_TEST_TMPDIR/synced"
    [ "$(wc -l <"$BATS_TEST_TMPDIR/synced")" -ge 10 ]
    run debugfs -R 'stat /srv/garbage' "$disk"
    [[ $output == *"File not found"* ]]
    assert_eq "$(nbdedup export golden - | sha256sum)" "$golden"

    # After the rollback it boots from there; the other one is not affected.
    nbdedup rollback web1@running
    cp "$BATS_TEST_TMPDIR/synced" "$BATS_TEST_TMPDIR/run/sums"
    guest_script <<'SCRIPT'
#!/bin/sh
set -ex
cd /srv/files
sha256sum --strict --quiet -c /mnt/sums
test ! -e file40
test ! -e /srv/garbage
SCRIPT
    start_guest web1
    finish_guest
    check_disk web1
    check_disk web2
    check_files /srv/files "$BATS_TEST_TMPDIR/sums-web2"
    nbdedup scrub
    nbdedup check
}

#----------------------------------------------------------------------
# The kernel's NBD client over restarts of the server

# persist_script NBD-CLIENT-ARGUMENT...: a file system, in use before and after
# each restart of its server, and not mounted meanwhile.  The kernel (6.1) fails
# requests while there is no connection, and reports a lost connection so that
# nbd-client (3.24) takes it for a request to end, even with -persist.  So the
# script starts a client if none is running.
persist_script ()
{
    guest_script <<SCRIPT
set -e
start_client ()
{
    /usr/local/bin/nbd-client -nonetlink -nofork -persist \
        10.0.2.100 10809 /dev/nbd0 -N disk $* &
    client=\$!
}
SCRIPT
    cat >>"$BATS_TEST_TMPDIR/run/run" <<'SCRIPT'
connected ()
{
    kill -0 $client 2>/dev/null || start_client
    [ "$(dd if=/dev/nbd0 bs=4096 count=1 iflag=direct 2>/dev/null |
             wc -c)" = 4096 ]
}

# wait_until COMMAND...: wait for 60 s at most.
wait_until ()
{
    left=200
    until "$@"; do
        left=$((left - 1))
        [ $left -gt 0 ]
        sleep 0.3
    done
}
lost () { ! kill -0 $client 2>/dev/null || ! connected; }

start_client
wait_until connected
[ "$(blockdev --getsize64 /dev/nbd0)" = 314572800 ]
/usr/local/bin/mke2fs -q -t ext4 -b 4096 -m 0 /dev/nbd0
for round in 1 2 3; do
    mount /dev/nbd0 /mnt
    mkdir -p /mnt/files
    for i in 1 2 3 4 5 6 7 8; do
        head -c 300000 /dev/urandom >/mnt/files/file$round.$i
    done
    umount /mnt
    [ $round != 3 ] || break
    echo "READY $round"
    wait_until lost
    wait_until connected
    e2fsck -fn /dev/nbd0
done
echo 3 >/proc/sys/vm/drop_caches
mount -r /dev/nbd0 /mnt
cd /mnt/files
sha256sum file* | sed 's/^/SUM /'
cd /
umount /mnt
e2fsck -fn /dev/nbd0
/usr/local/bin/nbd-client -nonetlink -d /dev/nbd0
SCRIPT
}

console_said ()
{
    grep -q "^$1" "$console" || ! kill -0 "${guests[nbd]}" 2>/dev/null
}

# persist: run the guest of persist_script, and restart its server twice.
persist ()
{
    start_nbd_guest "$@"
    wait_for 300 console_said 'READY 1'
    restart_server TERM 2
    wait_for 300 console_said 'READY 2'
    restart_server KILL 2
    finish_nbd_guest
    sed -n 's/\r$//; s/^SUM //p' "$console" >"$BATS_TEST_TMPDIR/sums"
    assert_eq "$(wc -l <"$BATS_TEST_TMPDIR/sums")" 24
    check_disk disk
    check_files /files "$BATS_TEST_TMPDIR/sums"
}

@test "a kernel's client goes on after restarts of the server" {
    make_pool
    nbdedup create empty 300M
    nbdedup snapshot empty@v1
    nbdedup clone empty@v1 disk
    serve "$pool"
    persist_script
    persist
}

@test "a kernel's client goes on after restarts of the server, over TLS" {
    local pki=$BATS_TEST_TMPDIR/pki

    need openssl version
    mkdir "$pki"
    (
        cd "$pki"
        openssl req -x509 -newkey rsa:2048 -nodes -days 2 \
                -subj /CN=ca -keyout ca-key.pem -out ca-cert.pem
        openssl req -newkey rsa:2048 -nodes -subj /CN=server \
                -keyout server-key.pem -out server.csr
        printf 'subjectAltName=DNS:server,IP:10.0.2.2\n' >ext
        openssl x509 -req -in server.csr -CA ca-cert.pem -CAkey ca-key.pem \
                -CAcreateserial -days 2 -extfile ext -out server-cert.pem
    ) 2>"$BATS_TEST_TMPDIR/openssl" || fail "$(cat "$BATS_TEST_TMPDIR/openssl")"
    make_pool
    nbdedup create disk 300M
    nbdkit_args=(--tls=require "--tls-certificates=$pki")
    serve "$pool"
    run ! nbdinfo "$(uri_of disk)"
    persist_script -enable-tls -cacertfile /ca-cert.pem -tlshostname server
    persist --file "$pki/ca-cert.pem"
}

#----------------------------------------------------------------------
# Other file systems

# fs_script PREPARE MOUNT CHECK: the guest prepares the golden image, makes files
# on it, and says so; then it waits for the clone web1, checks the files there and
# changes them.
fs_script ()
{
    guest_script <<SCRIPT
set -ex
prepare () { $1; }
mount_it () { $2; }
check () { $3; }
SCRIPT
    cat >>"$BATS_TEST_TMPDIR/run/run" <<'SCRIPT'
# use VOLUME
use ()
{
    set +x
    until /usr/local/bin/nbd-client 10.0.2.100 10809 /dev/nbd0 -N "$1" -b 512
    do
        sleep 0.5
    done
    # nbd-client may end before the kernel has taken over the connection.
    until [ "$(blockdev --getsize64 /dev/nbd0)" != 0 ]; do sleep 0.1; done
    set -x
    [ "$1" != golden ] || prepare
    mount_it
    cd /mnt
    if [ ! -e sums ]; then
        head -c 8000000 /dev/urandom >random
        cp random copy
        for i in $(seq 60); do seq $i 3000 >small$i; done
        head -c 20000000 /dev/urandom >garbage
    else
        sha256sum -c sums >/tmp/checked
        head -c 3000000 /dev/urandom >random
        seq 77 >small7
        rm copy garbage
    fi
    sha256sum * | grep -v sums >/tmp/sums
    cp /tmp/sums sums
    sync
    # FUSE may not support it.
    fstrim /mnt || true
    cd /
    umount /mnt
    mount_it
    cd /mnt
    sha256sum -c sums >/tmp/checked
    cd /
    umount /mnt
    check
    /usr/local/bin/nbd-client -d /dev/nbd0
}
use golden
echo GOLDEN-DONE
use web1
SCRIPT
}

# file_system PREPARE MOUNT CHECK OPTION...: make it on a golden image, change
# it on a clone, and roll back.  The options are those of vm-images/initramfs-nbd.
file_system ()
{
    local golden

    make_pool
    nbdedup create golden 400M
    serve "$pool"
    fs_script "$1" "$2" "$3"
    start_nbd_guest "${@:4}"
    wait_for 500 console_said GOLDEN-DONE
    golden=$(nbdedup export golden - | sha256sum)
    nbdedup snapshot golden@v1
    # The guest does not see it before it has its name.
    nbdedup clone golden@v1 new
    nbdedup snapshot new@fresh
    nbdedup rename new web1
    finish_nbd_guest

    assert_num "$(own_bytes web1) > 3000000"
    assert_eq "$(nbdedup export golden@v1 - | sha256sum)" "$golden"
    nbdedup rollback web1@fresh
    assert_eq "$(nbdedup export web1 - | sha256sum)" "$golden"
    nbdedup scrub
}

@test "XFS on a golden image and its clone" {
    need mkfs.xfs -V
    file_system 'mkfs.xfs -q -K -f /dev/nbd0' 'mount -t xfs /dev/nbd0 /mnt' \
        'xfs_repair -n /dev/nbd0' \
        --module xfs --program mkfs.xfs --program xfs_repair
}

@test "NTFS on a golden image and its clone" {
    need sh -c 'command -v mkntfs'
    need ntfs-3g --version
    file_system 'mkntfs -q -f /dev/nbd0' 'ntfs-3g /dev/nbd0 /mnt' \
        'ntfsfix -n /dev/nbd0' \
        --module fuse --program mkntfs --program ntfs-3g --program ntfsfix
}

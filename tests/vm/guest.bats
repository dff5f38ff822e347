#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# A real machine on a volume: Debian, in QEMU, with QEMU's NBD client.

load ../rigs/helpers
load guest

setup_file ()
{
    build_image
    quick_image
}

# Serve the golden volume.
setup ()
{
    make_pool
    nbdedup import golden "$image"
    serve "$pool"
}

# A package with a program, and a script that runs at installation.
make_package ()
{
    local dir=$BATS_TEST_TMPDIR/package

    mkdir -p "$dir/DEBIAN" "$dir/usr/bin"
    cat >"$dir/DEBIAN/control" <<'CONTROL'
Package: nbdedup-greeting
Version: 1.0
Architecture: all
Maintainer: nobody <nobody@example.org>
Description: a package for a test
CONTROL
    printf '#!/bin/sh\necho configured >/srv/files/configured\n' \
        >"$dir/DEBIAN/postinst"
    printf '#!/bin/sh\necho hello\n' >"$dir/usr/bin/nbdedup-greeting"
    chmod 755 "$dir/DEBIAN/postinst" "$dir/usr/bin/nbdedup-greeting"
    dpkg-deb --root-owner-group --build "$dir" "$1" >/dev/null
}

@test "a guest writes files, installs a package, trims, and boots again with all of it" {
    local full_logical full_stored

    need dpkg-deb --version
    guest_script <<'SCRIPT'
#!/bin/sh
set -ex
mkdir /srv/files
cd /srv/files
head -c 24M /dev/urandom >/srv/garbage
head -c 6M /dev/urandom >random
cp random copy
cat /usr/bin/[a-d]* | head -c 6M >programs
for i in $(seq 200); do seq "$i" 2000 >"small$i"; done
dpkg -i /mnt/greeting.deb
nbdedup-greeting >greeting
sync
fstrim -v /
sha256sum * >/dev/virtio-ports/report
SCRIPT
    make_package "$BATS_TEST_TMPDIR/run/greeting.deb"
    start_guest golden
    finish_guest
    cp "$report" "$BATS_TEST_TMPDIR/run/sums"
    assert_eq "$(wc -l <"$report")" 205

    check_disk golden
    check_files /srv/files "$report"
    debugfs -R 'cat /var/lib/dpkg/status' "$disk" 2>/dev/null |
        grep -A1 '^Package: nbdedup-greeting' |
        grep -q '^Status: install ok installed'
    full_logical=$(volume_stat golden logical_bytes)
    full_stored=$(pool_stat stored_bytes)

    # Boot Debian, all of it, from the disk that the first guest left; delete and
    # trim.
    guest_script <<'SCRIPT'
#!/bin/sh
set -ex
cd /srv/files
sha256sum --strict --quiet -c /mnt/sums
dpkg --verify nbdedup-greeting
nbdedup-greeting | cmp - greeting
rm /srv/garbage
sync
fstrim -v /
sha256sum * >/dev/virtio-ports/report
SCRIPT
    quick='' start_guest golden
    finish_guest
    cmp "$report" "$BATS_TEST_TMPDIR/run/sums"
    check_disk golden
    check_files /srv/files "$report"

    # The second boot writes a little: logs, times, the journal.
    assert_num "$full_logical - $(volume_stat golden logical_bytes) > 22 * 1048576"
    assert_num "$full_stored - $(pool_stat stored_bytes) > 22 * 1048576"
    nbdedup scrub
    nbdedup check
}

@test "a guest goes on over kills and restarts of the server, and loses nothing" {
    local kill after signal seconds

    # Files with fsync, one by one, and files without, which the kernel writes
    # when it chooses to, and that is soon.
    guest_script <<'SCRIPT'
#!/bin/bash
set -e
say () { echo "$@" >/dev/virtio-ports/report; }
echo 30 >/proc/sys/vm/dirty_expire_centisecs
echo 10 >/proc/sys/vm/dirty_writeback_centisecs
mkdir /srv/files
cd /srv/files

make_file ()
{
    head -c 256K /dev/urandom | tee "$1" | sha256sum | sed "s/-/$1/" >>"$2"
}

for ((i = 1; i <= 24; i++)); do
    make_file "unsynced$i" /run/sums-unsynced
    sleep 0.2
done &
for ((i = 1; i <= 48; i++)); do
    make_file "synced$i" /run/sums-synced
    sync "synced$i"
    say "synced $i"
    sleep 0.1
done
wait
sync
echo 3 >/proc/sys/vm/drop_caches
cat /run/sums-* >/run/sums
sha256sum --strict --quiet -c /run/sums
say "done"
while read -r line; do say "sum $line"; done </run/sums
SCRIPT
    start_guest golden --reconnect 120

    # The server is back soon, late, and at once.
    for kill in '6 KILL 1' '15 TERM 1' '24 KILL 6' '33 KILL 0'; do
        read -r after signal seconds <<<"$kill"
        wait_for_guest 300 "synced $after\$"
        restart_server "$signal" "$seconds"
        guest_said "synced 48" && fail "the guest was too fast for this test"
    done
    finish_guest
    guest_said "done"

    sed -n 's/^sum //p' "$report" >"$BATS_TEST_TMPDIR/sums"
    assert_eq "$(wc -l <"$BATS_TEST_TMPDIR/sums")" 72
    check_disk golden
    check_files /srv/files "$BATS_TEST_TMPDIR/sums"
    nbdedup scrub
    nbdedup check
}

@test "a snapshot boots, read-only: what the guest writes is gone with it" {
    local before

    nbdedup snapshot golden@v1
    before=$(nbdedup stat --json golden | jq -c '.pool.stored_bytes')
    guest_script <<'SCRIPT'
#!/bin/sh
set -ex
seq 100000 >/srv/numbers
sync
sha256sum /srv/numbers >/dev/virtio-ports/report
SCRIPT
    TMPDIR=$BATS_TEST_TMPDIR start_guest golden@v1
    finish_guest
    assert_eq "$(cut -c1-64 "$report")" "$(seq 100000 | sha256sum | cut -c1-64)"
    # The overlay of the second one, too.
    assert_eq "$(find "$BATS_TEST_TMPDIR" -name 'nbdedup-boot.*')" ""
    nbdcopy "$(uri_of golden@v1)" - | cmp - "$image"
    nbdcopy "$(uri_of golden)" - | cmp - "$image"
    assert_eq "$(nbdedup stat --json golden | jq -c '.pool.stored_bytes')" "$before"

    run -1 "$top_srcdir/vm-images/boot" --accel tcg --image "$image" \
        --poweroff "$(uri_of golden@v2)"
    [[ $output == *"boot: "*"golden@v2"*"is there such a snapshot"* ]]
}

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

#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# vm-images/provision: a golden image is made, and made again, by a guest, and
# what its head promises is true of the disk.  bats/provision.bats has what needs
# no guest.

load ../rigs/helpers
load guest

setup_file ()
{
    need dpkg-deb --version
    build_image
}

setup ()
{
    make_pool
    serve "$pool" attach=exclusive
}

# provision SCRIPT [OPTION...]: run it on the volume golden; its output is in
# the file "out".
provision ()
{
    local script=$1

    shift
    NBDEDUP_BUILD=$top_builddir "$top_srcdir/vm-images/provision" \
        --image "$image" --accel "${QEMU_ACCEL:-tcg}" --timeout 1600 \
        --socket "$sock" "$@" golden "$script" >out 2>&1 3>&- 4>&-
}

# package VERSION: make files/greeting.deb, with a program of this version.
package ()
{
    mkdir -p tree/DEBIAN tree/usr/bin files
    printf '%s\n' 'Package: nbdedup-greeting' "Version: $1" 'Architecture: all' \
           'Maintainer: a test <test@example.org>' \
           'Description: a package for a test' >tree/DEBIAN/control
    printf '#!/bin/sh\necho hello %s\n' "$1" >tree/usr/bin/nbdedup-greeting
    chmod 755 tree/usr/bin/nbdedup-greeting
    dpkg-deb --root-owner-group --build tree files/greeting.deb >/dev/null
}

# cat_disk PATH: print a file of $disk.
cat_disk ()
{
    debugfs -R "cat $1" "$disk" 2>/dev/null
}

# not_on_disk PATH: $disk has no such file, or it is empty.
not_on_disk ()
{
    assert_eq "$(cat_disk "$1")" ""
}

sum_of ()
{
    nbdcopy "$(uri_of "$1")" - | sha256sum
}

@test "a golden image is made, clean, and its next version; a clone moves there" {
    local first web1

    package 1
    cat >script <<'SCRIPT'
#!/bin/sh
set -e
dpkg -i greeting.deb
seq 1000 >/var/log/numbers
seq 1000 >/var/log/numbers.1
seq 1000 >/var/tmp/numbers
mkdir -p /etc/ssh
seq 1000 >/etc/ssh/ssh_host_rsa_key
# This is where a machine that has sshd is not like one without.
[ -e /usr/sbin/sshd ] || ln -s /bin/true /usr/sbin/sshd
[ -s /etc/machine-id ]
SCRIPT
    provision script --files files --snapshot a || fail "$(cat out)"
    check_disk golden@a
    cat_disk /usr/bin/nbdedup-greeting | grep -q 'hello 1'
    cat_disk /etc/systemd/system/ssh-host-keys.service | grep -q ssh-keygen
    for file in /etc/machine-id /etc/ssh/ssh_host_rsa_key /var/tmp/numbers \
                /var/log/numbers /var/log/numbers.1 \
                /var/lib/systemd/random-seed; do
        not_on_disk $file
    done
    first=$(sum_of golden@a)
    nbdedup clone golden@a web1
    web1=$(sum_of web1)

    package 2
    provision script --files files --snapshot b || fail "$(cat out)"
    check_disk golden@b
    cat_disk /usr/bin/nbdedup-greeting | grep -q 'hello 2'

    # The old version and its clone are what they were; the clone can move.
    assert_eq "$(sum_of golden@a)" "$first"
    assert_eq "$(sum_of web1)" "$web1"
    nbdedup rebase web1 golden@b
    assert_eq "$(sum_of web1)" "$web1"
    # An upgrade in place leaves most blocks where they are.
    assert_num "$(volume_stat web1 own_bytes) < \
        $(volume_stat web1 logical_bytes) / 4"

    stop
    nbdedup scrub
}

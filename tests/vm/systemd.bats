#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# A machine whose pools are services of systemd: the EXAMPLES of
# nbdedup-systemd(7), as printed, servers that are restarted and killed under
# load, and another boot.

load ../rigs/helpers

setup_file ()
{
    need qemu-system-x86_64 --version
    need mmdebstrap --version
    PATH=$PATH:/sbin:/usr/sbin
    need mke2fs -V
    export PATH
    [ -e "$top_builddir/systemd/nbdedup@.service" ] ||
        skip "built without libsystemd"
    # bats waits for every process that holds its descriptors 3 and 4.
    image=$(bash "$top_srcdir/tests/vm/image" "$top_builddir" units 3>&- 4>&-)
    export image
}

setup ()
{
    mkdir run
}

# guest_script: the guest's next boot runs the program on stdin, with what
# "make install" installs in /mnt/tree.
guest_script ()
{
    { echo '#!/bin/bash'; echo 'set -ex'; cat; } >run/run
    chmod 755 run/run
}

# boot: run the guest until it has powered off, with success.
boot ()
{
    local status=0

    "$top_srcdir/vm-images/boot" --accel "${QEMU_ACCEL:-tcg}" \
        --image "$image" --run run --timeout 800 disk.raw \
        >console 2>&1 3>&- 4>&- || status=$?
    [ "$status" = 0 ] || fail "the guest failed ($status):" \
                              "$(sed 's/\r$//' console | tail -n 80)"
}

# quiet_disk: until it was detached, the volume had no error.
quiet_disk ()
{
    sed '/nbd0: Disconnected due to user request/q' console >until
    grep -q 'nbd0: Disconnected due to user request' until
    run ! grep -E 'I/O error|EXT4-fs error' until
}

@test "a volume is mounted at boot, and its server restarted, upgraded and killed under load" {
    make -C "$top_builddir" install DESTDIR="$PWD/run/tree" >/dev/null 2>&1
    cp --sparse=always "$image" disk.raw
    {
        cat <<'SCRIPT'
copy () { tar -C /mnt/tree -c . | tar -C / -x --keep-directory-symlink --no-same-owner; }
copy
systemd-sysusers
systemd-tmpfiles --create
systemctl daemon-reload

SCRIPT
        sed -n '/^=head1 EXAMPLES/,/^=head1 SETTINGS/s/^ //p' \
            "$top_srcdir/systemd/nbdedup-systemd.pod"
        cat <<'SCRIPT'

findmnt /srv/web1
load () ( set +x; for i in $(seq "$1" "$2"); do head -c 300000 /dev/urandom >"/srv/web1/f$i"; sync "/srv/web1/f$i"; done )
load 1 60 &
pid=$!
until [ -e /srv/web1/f5 ]; do sleep 0.1; done
systemctl restart nbdedup@vms.service
until [ -e /srv/web1/f15 ]; do sleep 0.1; done
copy
systemctl restart nbdedup@vms.service
kill -0 $pid
wait $pid
sync
sha256sum /srv/web1/f* >/root/sums

# A server that was killed; the guest has flushed all.
systemctl kill -s KILL nbdedup@vms.service
load 61 65
sha256sum /srv/web1/f* >/root/sums
sync
echo 3 >/proc/sys/vm/drop_caches
sha256sum --quiet -c /root/sums

# The socket of a server that was not systemd's.
systemctl stop nbdedup@lab.service nbdedup@lab.socket
[ ! -e /run/nbdedup/lab.sock ]
nbdkit -P /root/pid -U /run/nbdedup/lab.sock null
kill -9 $(cat /root/pid)
[ -S /run/nbdedup/lab.sock ]
systemctl start nbdedup@lab.service
nbdedup -p /srv/pool create disk 1G
[ "$(nbdinfo --size 'nbd+unix:///disk?socket=/run/nbdedup/lab.sock')" = 1073741824 ]
runuser -u nbdedup -- nbdinfo --size 'nbd+unix:///disk?socket=/run/nbdedup/lab.sock'
! runuser -u daemon -- nbdinfo --size 'nbd+unix:///disk?socket=/run/nbdedup/lab.sock'

# What the timers start, with a server and without.
for job in scrub drift prune; do systemctl start nbdedup-$job@vms.service; done
systemctl stop nbdedup@lab.service
for job in scrub drift prune; do systemctl start nbdedup-$job@lab.service; done
systemctl enable --now nbdedup-scrub@vms.timer
[ -z "$(systemctl --failed --no-legend)" ]
SCRIPT
    } | guest_script
    boot
    quiet_disk

    rm -r run/tree
    guest_script <<'SCRIPT'
[ "$(findmnt -n -o SOURCE /srv/web1)" = /dev/nbd0 ]
sha256sum --quiet -c /root/sums
systemctl is-active nbdedup@vms.service nbdedup@lab.service nbdedup-scrub@vms.timer
[ -z "$(systemctl --failed --no-legend)" ]
! journalctl -b | grep -i 'ordering cycle'

# The last shutdown: the file system first, the server last.
journalctl -b -1 -o cat >/root/journal
grep -n 'Unmounted srv-web1.mount\|Stopped nbdedup-nbd@nbd0.service\|Stopped nbdedup@vms.service' /root/journal | tail -n 3 >/root/stops
sed -n 1p /root/stops | grep 'Unmounted'
sed -n 2p /root/stops | grep 'nbdedup-nbd@nbd0'
sed -n 3p /root/stops | grep 'nbdedup@vms'
nbdedup -p /var/lib/nbdedup/vms status
SCRIPT
    boot
    quiet_disk
}

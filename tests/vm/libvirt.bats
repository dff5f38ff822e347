#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# libvirt: a domain on a volume, defined, started and stopped by libvirtd.
#
# The daemon has a mount namespace of its own, so it sees no other domain of
# this machine, and leaves nothing behind.

load ../rigs/helpers
load guest

setup_file ()
{
    need libvirtd --version
    need virsh --version
    need virt-xml-validate --version
    build_image
}

setup ()
{
    state=$BATS_TEST_TMPDIR/libvirt
    xml=$top_srcdir/vm-images/libvirt-domain.xml
    make_pool
    nbdedup import golden "$image"
    nbdedup snapshot golden@v1
    nbdedup clone golden@v1 web1
    serve "$pool"
}

teardown ()
{
    if [ -n "${libvirtd_pid-}" ]; then
        in_libvirt destroy web1 >/dev/null 2>&1 || :
        kill "$libvirtd_pid" || :
        wait "$libvirtd_pid" || :
    fi
    stop
    check_pools
}

# in_libvirt COMMAND...: virsh, for the daemon of the test.
in_libvirt ()
{
    nsenter -t "$libvirtd_pid" -m virsh -c qemu:///system "$@"
}

start_libvirtd ()
{
    mkdir -p "$state"/{run,lib,log,cache,etc}
    # libvirtd looks for this user before it reads its configuration.  Only
    # Debian's libvirt-daemon-system adds it, which also starts a service.
    { cat /etc/passwd
      getent passwd libvirt-qemu >&2 ||
          echo 'libvirt-qemu:x:64055:64055::/nonexistent:/usr/sbin/nologin'
    } >"$state/passwd" 2>/dev/null
    { cat /etc/group
      getent group libvirt-qemu >&2 || echo 'libvirt-qemu:x:64055:'
    } >"$state/group" 2>/dev/null
    # As root, so that QEMU may use the socket in the test's folder; without
    # what a container may lack.
    cat >"$state/etc/qemu.conf" <<'END'
user = "root"
group = "root"
security_driver = "none"
cgroup_controllers = [ ]
namespaces = [ ]
stdio_handler = "file"
remember_owner = 0
END
    cat >"$state/start" <<'END'
set -e
cd "$1"
for pair in run:/run/libvirt lib:/var/lib/libvirt log:/var/log/libvirt \
            cache:/var/cache/libvirt etc:/etc/libvirt; do
    mkdir -p "${pair#*:}"
    mount --bind "${pair%%:*}" "${pair#*:}"
done
mount --bind passwd /etc/passwd
mount --bind group /etc/group
exec libvirtd
END
    unshare --mount --propagation private bash "$state/start" "$state" \
            >"$state/out" 2>&1 3>&- 4>&- &
    libvirtd_pid=$!
    wait_for 60 test -S "$state/run/libvirt-sock"
}

# make_domain: the domain of the example, for this machine: emulated, with the
# kernel beside the image, and a console that the test can read.
make_domain ()
{
    sed -e "s,/run/nbdedup/pool.sock,$sock," \
        -e "s,type='kvm',type='qemu'," \
        -e "s,>1024<,>384<," \
        -e "/<boot order/d" \
        -e "s,<serial type='pty'/>,<serial type='file'><source path='$state/console'/></serial>," \
        -e "/<console type='pty'/d" \
        -e "s|</type>|</type><kernel>${image%.raw}.vmlinuz</kernel><initrd>${image%.raw}.initrd</initrd><cmdline>root=/dev/disk/by-id/virtio-disk console=ttyS0 edd=off no_timer_check panic=-1 nbdedup.cmd=$1</cmdline>|" \
        "$xml" >"$state/web1.xml"
}

console_has ()
{
    grep -q -- "$1" "$state/console" 2>/dev/null
}

domain_is ()
{
    [ "$(in_libvirt domstate web1)" = "$1" ]
}

# It may be paused, again, until QEMU has connected to the new server.
shutdown_begins ()
{
    ! domain_is paused || in_libvirt resume web1 >/dev/null
    in_libvirt shutdown web1 >/dev/null 2>&1
}

resumed_until_off ()
{
    domain_is "shut off" || {
        ! domain_is paused || in_libvirt resume web1 >/dev/null
        false
    }
}

clients_are ()
{
    [ "$(nbdedup list --json |
         jq '.volumes[] | select (.name == "web1").clients')" = "$1" ]
}

@test "the example is a valid domain" {
    virt-xml-validate "$xml" domain
}

@test "libvirtd defines, starts and stops it; its server is restarted meanwhile" {
    need unshare --mount --propagation private true
    start_libvirtd
    make_domain "set,-e;fstrim,-v,/;dd,if=/dev/urandom,of=/srv/new,bs=1M,count=8;sync"
    virt-xml-validate "$state/web1.xml" domain
    in_libvirt define "$state/web1.xml"
    in_libvirt start web1
    wait_for 300 console_has NBDEDUP-BOOT-OK
    console_has NBDEDUP-CMD-OK
    clients_are 1
    in_libvirt domblkinfo web1 vda | grep -q "^Capacity: *$(stat -c %s "$image")\$"

    for signal in KILL TERM; do
        restart_server $signal 1
        # It is paused if it wrote meanwhile.
        ! domain_is paused || in_libvirt resume web1
    done
    wait_for 60 shutdown_begins
    wait_for 300 resumed_until_off
    wait_for 10 clients_are 0
    check_disk web1
    assert_num "$(volume_stat web1 own_bytes) > 8 * 1048576"

    # Defined, it starts again.
    in_libvirt start web1
    wait_for 10 clients_are 1
    in_libvirt destroy web1
    in_libvirt undefine web1
    stop
    nbdedup check
}

#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# examples.bash SCENARIO: run a scenario that examples.py made of a section of a
# manual page, on a machine of machine.bash.  Its lines call the functions
# below.
#
# The first command that fails ends it.

set -euo pipefail

# Commands that cannot run here, with the reason.
declare -A cannot=(
    ['nbd-client -N web1 -b 4096 -C 4 -unix /run/nbdedup.sock /dev/nbd0']="
        needs the kernel's nbd module, and a device of its own in /dev:
        vm/guest-nbd.bats and vm/kernel-nbd.bats attach one"
    ['mkfs.ext4 /dev/nbd0']="needs that device"
    ['nbd-client -d /dev/nbd0']="needs that device"
    ['modprobe nbd']="needs root of the real machine"
    ['vm-images/provision --files packages golden web-server']="
        needs an image that boots: vm/provision.bats boots it"
    ['virt-sysprep --format raw -a "$disk" --hostname web1']="
        needs a guest's disk, and a kernel: vm/libguestfs.bats has them"
    ['guestfish --ro --format=raw -a "$disk" -i cat /etc/hostname']="
        needs them, too"
    ['virt-resize --format raw --output-format raw --expand /dev/sda1 $golden $large']="
        needs them, too"
)

tests=$(dirname "$(readlink -f "$0")")

#----------------------------------------------------------------------
# Preparations that the pages assume

# file NAME [SIZE] [SEED]: make a file of compressible data.
file ()
{
    mkdir -p "$(dirname "$1")"
    seq -f "line %.0f of seed ${3:-1}" 1000000 | head -c "${2:-1M}" >"$1" || :
    truncate -s 4M "$1"
}

# image NAME FORMAT [SEED]
image ()
{
    file "$1.raw" 1M "${3:-1}"
    qemu-img convert -q -f raw -O "$2" "$1.raw" "$1"
    rm "$1.raw"
}

# pool [NAME...]: make a pool with these volumes and snapshots, in NBDEDUP_POOL.
pool ()
{
    local name

    export NBDEDUP_POOL=/srv/pool
    [ -e /srv/pool ] || nbdedup init
    for name; do
        case $name in
            *@*) nbdedup snapshot "$name" ;;
            *) file volume.raw
               nbdedup import "$name" volume.raw
               rm volume.raw ;;
        esac
    done
}

# fleet: clones of golden@v1, and some history.
fleet ()
{
    pool golden golden@v1
    nbdedup clone golden@v1 web --count 4
    nbdedup drift --record >/dev/null
}

server ()
{
    nbdkit -U /run/nbdedup.sock dedup /srv/pool
}

server_has_gone ()
{
    ! nbdinfo --list "nbd+unix:///?socket=/run/nbdedup.sock" >/dev/null 2>&1 &&
        nbdedup list >/dev/null
}

# writers NAME: keep two writers attached until the end.
writers ()
{
    local i

    server
    for i in 1 2; do
        { echo "write ${i}M 64k"; tail -f /dev/null --pid=$$; } |
            qemu-io -f raw "nbd+unix:///$1?socket=/run/nbdedup.sock" &
    done
    until nbdedup list --json |
            jq -e '.volumes[] | select (.writers > 1)'; do
        sleep 0.1
    done
}

# is_root: true without a user namespace, which has no setgroups.
is_root ()
{
    grep -qE '^ +0 +0 +4294967295$' /proc/self/uid_map
}

# libvirt: start libvirtd, as it can run on this machine.
libvirt ()
{
    is_root || return 0
    mkdir -p /etc/libvirt /run/libvirt
    # libvirtd looks for this user whatever its configuration says.  In this
    # /etc the files are links to the real ones: replace them.
    if ! getent passwd libvirt-qemu; then
        { cat /etc/passwd
          echo 'libvirt-qemu:x:64055:64055::/nonexistent:/usr/sbin/nologin'
        } >/etc/passwd.new
        { cat /etc/group; echo 'libvirt-qemu:x:64055:'; } >/etc/group.new
        mv /etc/passwd.new /etc/passwd
        mv /etc/group.new /etc/group
    fi
    printf '%s\n' 'user = "root"' 'group = "root"' 'remember_owner = 0' \
           'security_driver = "none"' 'cgroup_controllers = []' \
           'namespaces = []' 'stdio_handler = "file"' >/etc/libvirt/qemu.conf
    export LIBVIRT_DEFAULT_URI=qemu:///system
    # It finds QEMU itself, not the one that replaces it.
    PATH=/usr/sbin:/usr/bin libvirtd -p /run/libvirtd.pid >libvirtd.log 2>&1 &
    until virsh list; do
        kill -0 $! || { cat libvirtd.log; exit 1; }
        sleep 0.1
    done
}

# certificates: make certificates of an authority, and of this server.
certificates ()
{
    mkdir -p /etc/pki/nbdkit
    cd /etc/pki/nbdkit
    certtool --generate-privkey --key-type ecdsa --outfile ca-key.pem
    printf '%s\n' 'cn = CA' ca cert_signing_key >template
    certtool --generate-self-signed --load-privkey ca-key.pem \
             --template template --outfile ca-cert.pem
    certtool --generate-privkey --key-type ecdsa --outfile server-key.pem
    printf '%s\n' 'cn = server' 'dns_name = server' tls_www_server >template
    certtool --generate-certificate --load-ca-certificate ca-cert.pem \
             --load-ca-privkey ca-key.pem --load-privkey server-key.pem \
             --template template --outfile server-cert.pem
    cd - >/dev/null
}

# given SCENARIO: prepare for the first command of a page.
given ()
{
    case $1 in
        nbdedup) mkdir /srv/pool && file debian.raw ;;
        nbdedup-check | nbdedup-create) pool ;;
        nbdedup-clone) pool golden golden@v1 ;;
        nbdedup-destroy)
            fleet
            nbdedup snapshot web1@monday
            nbdedup clone golden@v1 desk --count 9 ;;
        nbdedup-diff)
            pool web1 web1@mon
            # shellcheck disable=SC2016
            nbdkit -U - dedup /srv/pool --run 'qemu-io -c "w 1M 64k" "$uri"'
            pool web1@tue ;;
        nbdedup-drift) fleet && mkdir -p /srv/www ;;
        nbdedup-estimate)
            for i in 1 2; do
                image "/var/lib/libvirt/images/web$i.qcow2" qcow2
                file /dev/vg/web$i
            done
            mkdir backups
            for i in golden web1 web2 backups/web1-2026-10-0{1,8}; do
                image "$i.qcow2" qcow2
            done
            file disk.raw ;;
        nbdedup-export)
            pool web1 golden golden@v1
            mkdir /srv-of-other
            NBDEDUP_POOL='' nbdedup init /srv-of-other/pool
            nbdkit memory 4M ;;
        nbdedup-get | nbdedup-history | nbdedup-resize | nbdedup-set | nbdedup-status)
            pool web1 ;;
        nbdedup-import)
            pool
            file debian.raw 1M 1
            file fedora.raw 1M 2
            zstd -q --rm fedora.raw
            file old.raw 1M 3
            image web1.vmdk vmdk 4
            image base.qcow2 qcow2 5
            qemu-img create -q -f qcow2 -b base.qcow2 -F qcow2 overlay.qcow2
            nbdkit pattern 4M
            server ;;
        nbdedup-compact | nbdedup-rewrite) pool web1 ;;
        nbdedup-list | nbdedup-rollback)
            fleet
            pool desktop1 web1@before-upgrade ;;
        nbdedup-prune) fleet ;;
        nbdedup-rebase) fleet && pool golden@v2 ;;
        nbdedup-recover) pool web1 && rm /srv/pool/pool.db ;;
        nbdedup-rename) pool debian && file debian.raw 1M 2 ;;
        nbdedup-scrub)
            pool web1
            image /backup/web1.qcow2 qcow2
            image /backup/web2.qcow2 qcow2 2 ;;
        nbdedup-init) : >/dev/disk/by-id/ata-EXAMPLE ;;
        nbdedup-snapshot) pool golden db-data db-log && server ;;
        nbdedup-stat) fleet ;;
        nbdedup-concepts)
            image /var/lib/libvirt/images/web1.qcow2 qcow2 ;;
        "nbdedup-security: Over a network") pool web1 && certificates ;;
        nbdedup-security*) pool web1 ;;
        *": A server for the guests of this machine")
            export NBDEDUP_POOL=/srv/pool ;;
        *": A guest of libvirt") pool web1 && server && libvirt ;;
        *": A guest of QEMU" | *": A file system of this machine")
            pool web1 && server ;;
        *": A guest with NTFS") pool && image windows.vhdx vhdx ;;
        *": A golden image, made by a script")
            pool golden golden@2026-12-01 golden@2027-01-04 ;;
        *": libguestfs on a volume")
            pool golden golden@v1
            nbdedup clone golden@v1 web1 ;;
        *": Clones with cloud-init, each with its own seed")
            pool golden golden@v1
            nbdedup clone golden@v1 web --count 3 ;;
        *": Next month's golden image") fleet && file debian-next.raw 1M 2 ;;
        *": Backups"* | *": Try an upgrade, and go back") pool web1 ;;
        *": Monitoring") fleet ;;
        nbdedup-top)
            pool web1 && server
            qemu-io -f raw -c 'write 0 64k' -c flush \
                    "nbd+unix:///web1?socket=/run/nbdedup.sock" ;;
        *": After a crash of the server")
            pool web1 && server
            pkill -9 --ns $$ --nslist net -x nbdkit
            until server_has_gone; do sleep 0.1; done ;;
        *": Copy an image in and out")
            pool web1 && server && image disk.qcow2 qcow2 2 ;;
        *": A golden image, and machines made from it")
            pool && file debian.raw ;;
        *": A pool on a read-only medium")
            pool web1
            mkdir /mnt/backup
            mv /srv/pool /mnt/backup/
            mount --bind -o ro /mnt/backup /mnt/backup ;;
        *": Over TLS, with certificates") pool web1 && certificates ;;
        *": A disk of a virtual machine" | \
            *": One volume only, to one client" | \
            *": Without a server that stays" | *": With filters" | \
            *": Over TLS, with pre-shared keys") pool web1 ;;
    esac
}

#----------------------------------------------------------------------
# Functions that a scenario calls

# step LEAD: the page's text above the next commands.
step ()
{
    lead=$1
    echo "# $1"
    case $1 in
        # Preparations in the middle of a page.
        "The volumes to which two clients write:") writers web1 ;;
        "The next day:")
            # shellcheck disable=SC2016
            nbdkit -U - dedup /srv/pool volume=web1 \
                   --run 'qemu-io -f raw -c "w 1M 64k" "$uri"' ;;
        "After the loss of the journal's disk:") rm /srv/pool/journal ;;
        "Get a volume out of a pool that is damaged"*)
            nbdedup create web1 1M
            stop_servers
            printf damage | dd of=/srv/pool/pool.db seek=40960 bs=1 \
                               conv=notrunc status=none ;;
    esac
}

failed ()
{
    echo "FAILED: $*"
    exit 1
}

command ()
{
    local output=$HOME/.output

    echo "\$ $1"
    if [ -n "${cannot["$1"]-}" ]; then
        echo "(not run: ${cannot["$1"]})"
        return
    elif [[ $1 == "virsh "* ]] && ! is_root; then
        echo "(not run: libvirtd calls setgroups, so it needs root)"
        return
    fi
    # Not in a subshell, so that "export" has its effect.
    eval "$1" >"$output" </dev/null || failed "status $?"
    cat "$output"
    # A key that is missing in the JSON gives null.
    [[ $1 != *"| jq"* ]] || grep -qvx null "$output" || failed "prints nothing"
}

# metrics TEXT: the metrics that it names must exist.
metrics ()
{
    local name

    nbdedup stat --prometheus >metrics
    while read -r name; do
        grep -q "^$name" metrics || failed "nbdedup has no metric $name"
    done < <(grep -o 'nbdedup_[a-z_]*' <<<"$1")
}

# xml TEXT
xml ()
{
    echo "$1" >"$(sed -n 's/.*F<\([^>]*\)>:$/\1/p' <<<"$lead")"
}

# stop_servers: stop the servers of this machine.
stop_servers ()
{
    local pid here

    here=$(readlink /proc/self/ns/net)
    for pid in $(pgrep -x nbdkit); do
        [ "$(readlink "/proc/$pid/ns/net")" = "$here" ] || continue
        kill "$pid"
        tail -f /dev/null --pid="$pid"
    done
    [ ! -e /run/libvirtd.pid ] || stop_libvirt
}

# stop_libvirt: stop the guests, which run without libvirtd, and libvirtd.
stop_libvirt ()
{
    local pid

    virsh list --name | xargs -r -n 1 virsh destroy
    pid=$(cat /run/libvirtd.pid)
    kill "$pid"
    tail -f /dev/null --pid="$pid"
    rm -f /run/libvirtd.pid
}

#----------------------------------------------------------------------

scenario=$1
trap stop_servers EXIT
cd
given "$(basename "$scenario")"
# shellcheck source=/dev/null
source "$scenario"
stop_servers
for pool in /srv/*/pool.db /backup/*/pool.db; do
    [ ! -e "$pool" ] || nbdedup -p "$(dirname "$pool")" check
done

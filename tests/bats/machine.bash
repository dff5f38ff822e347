#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# machine.bash ROOT PLUGIN COMMAND...: run COMMAND on a machine of its own.
#
# It must be started by "unshare -rmn".  ROOT is an empty directory that becomes
# "/".  It has this system's files, but nothing in /srv, /run, /mnt, /backup and
# /home; an /etc, /dev and /var to which files can be added; PLUGIN among
# nbdkit's plugins; and a network without other machines, whose names lead here.

set -euo pipefail

root=$1 plugin=$2
shift 2

# links DIR: link to the entries of the real DIR that ROOT does not have.
links ()
{
    local entry

    mkdir -p "$root$1"
    for entry in "$1"/*; do
        [ -e "$root$entry" ] || ln -s "/.host$entry" "$root$entry"
    done
}

# The whole tree, once.  No file below ROOT is ROOT's own after this.
mkdir "$root/.host" "$root/.plugins" "$root/plugins" "$root/proc"
mount --rbind / "$root/.host"
mount --rbind /proc "$root/proc"

mkdir -p "$root"/{srv,run,mnt,backup,etc,home/alice}
echo '127.0.0.1 localhost server other other-server old-server' \
     >"$root/etc/hosts"
mkdir "$root/etc/libvirt"
links /etc
# No /dev/kvm: a machine that has it may still not run QEMU with it.
mkdir -p "$root"/dev/{kvm,disk/by-id,vg}
links /dev
# libvirtd as root changes only these.
mkdir -p "$root"/var/{lib/libvirt/images,cache/libvirt,log/libvirt}
links /var/cache
links /var/lib
links /var/log
links /var
links ""

# nbdkit finds the plugin by its name.
plugins=$(nbdkit --dump-config | sed -n 's/^plugindir=//p')
mount --bind "$plugins" "$root/.plugins"
for file in "$plugins"/*; do
    ln -s "/.plugins/${file##*/}" "$root/plugins/"
done
ln -sf "$plugin" "$root/plugins/nbdkit-dedup-plugin.so"
mount --bind "$root/plugins" "$root/.host$plugins"

ip link set lo up
exec chroot "$root" env HOME=/home/alice "$@"

# SPDX-License-Identifier: BSD-3-Clause
#
# The kernel's NBD client on a volume: needs root, and a kernel with nbd.

load ../rigs/helpers

# Find a free device of the kernel's, or skip.
setup ()
{
    local size

    need_root
    PATH=$PATH:/sbin:/usr/sbin
    need nbd-client -V
    [ -e /sys/block/nbd0 ] || modprobe nbd 2>/dev/null || :
    for size in /sys/block/nbd*/size; do
        [ -e "$size" ] || skip "this kernel has no nbd"
        [ "$(cat "$size")" = 0 ] || continue
        [ ! -e "${size%/size}/pid" ] || continue
        device=/dev/$(basename "$(dirname "$size")")
        [ -b "$device" ] && return
    done
    skip "every nbd device is in use"
}

teardown ()
{
    if [ -n "${attached-}" ]; then
        nbd-client -d "$device"
    fi
    stop
    check_pools
}

@test "the kernel's client keeps a file system on a volume" {
    make_pool
    nbdedup create disk 512M
    serve "$pool"
    nbd-client -unix "$sock" -N disk -C 2 "$device" 3>&- 4>&-
    attached=yes
    mkfs.ext4 -q "$device"
    random_data 64M 5 | dd of="$device" bs=1M seek=256 oflag=direct \
        iflag=fullblock status=none
    assert_eq "$(dd if="$device" bs=1M skip=256 count=64 iflag=direct status=none | sha256sum)" \
              "$(random_data 64M 5 | sha256sum)"
    blkdiscard -o 256M -l 64M "$device"
    nbd-client -d "$device"
    attached=
    stop

    # 64 MiB were freed.
    assert_num "$(volume_stat disk logical_bytes) < 67108864"
}

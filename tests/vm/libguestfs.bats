#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# libguestfs on volumes: the commands of nbdedup-recipes(7), as printed.
#
# It runs a small guest of its own, the appliance, and takes a kernel for that
# from this machine, which may have none: so it gets that of the image.

load ../rigs/helpers
load guest

setup_file ()
{
    need guestfish --version
    need virt-sysprep --version
    need virt-resize --version
    need unshare -rm true
    PATH=$PATH:/sbin:/usr/sbin
    need sfdisk --version
    build_image
    get_kernel "$BATS_FILE_TMPDIR"
}

# get_kernel DIR: let the appliance have the kernel of the image.
get_kernel ()
{
    local version

    debugfs -R "rdump /usr/lib/modules $1" "$image" 2>/dev/null
    version=$(ls "$1/modules")
    export SUPERMIN_KERNEL=${image%.raw}.vmlinuz
    export SUPERMIN_MODULES=$1/modules/$version
    export SUPERMIN_KERNEL_VERSION=$version
    export LIBGUESTFS_CACHEDIR=$1
    # Not every machine that has /dev/kvm can use it.
    export LIBGUESTFS_BACKEND_SETTINGS=force_tcg
    # Root of a namespace cannot give files to others.
    export TAR_OPTIONS=--no-same-owner
}

# on_machine COMMAND...: run it where there is a /lib/modules, which supermin
# looks for even if it needs nothing there.
on_machine ()
{
    local over=$BATS_TEST_TMPDIR/over

    mkdir -p "$over/new" "$over/work"
    # shellcheck disable=SC2016
    timeout -k 10 1500 unshare -rm sh -ec '
        [ -e /lib/modules ] || {
            mount -t overlay -o "lowerdir=/usr/lib,upperdir=$0/new,workdir=$0/work" \
                  overlay /usr/lib
            mkdir /usr/lib/modules
        }
        exec "$@"' "$over" "$@" 3>&- 4>&-
}

# recipe: the commands of the page, as printed, but for the socket; the server
# is there already.
recipe ()
{
    sed -n '/^=head2 libguestfs on a volume/,/^=head/s/^ //p' \
        "$top_srcdir/lib/nbdedup-recipes.pod" |
        sed -e '/^nbdkit /d' -e "s|/run/nbdedup.sock|$sock|"
}

# A disk with a partition, as of most machines.
make_disk ()
{
    local size

    size=$(stat -c %s "$image")
    truncate -s "$((size + 2097152))" disk.raw
    echo 'start=2048, type=83' | sfdisk -q disk.raw
    dd if="$image" of=disk.raw bs=1M seek=1 conv=notrunc,sparse status=none
}

# partition_of NAME: let $disk be a copy of the volume's partition.
partition_of ()
{
    disk=$BATS_TEST_TMPDIR/partition.raw
    nbdcopy "$(uri_of "$1")" - | tail -c +1048577 |
        dd of="$disk" bs=1M iflag=fullblock conv=sparse status=none
}

# cat_disk PATH: print a file of $disk.
cat_disk ()
{
    debugfs -R "cat $1" "$disk" 2>/dev/null
}

@test "virt-sysprep changes a clone, guestfish reads it, virt-resize copies into a larger volume" {
    local stored program

    cd "$BATS_TEST_TMPDIR"
    make_pool
    make_disk
    nbdedup import golden disk.raw
    nbdedup snapshot golden@v1
    nbdedup clone golden@v1 web --count 2
    serve "$pool" attach=exclusive
    stored=$(pool_stat stored_bytes)
    recipe >commands
    grep -q '^virt-sysprep ' commands
    grep -q '^virt-resize ' commands
    grep -q '^nbdedup rebase large ' commands
    on_machine bash -euxc '. ./commands' >out 2>&1 || fail "$(cat out)"

    # The clone has another name, and no other volume has.
    grep -qx web1 out
    partition_of golden@v1
    assert_eq "$(cat_disk /etc/hostname)" nbdedup-guest
    program=$(cat_disk /usr/bin/dpkg | sha256sum)
    partition_of web1
    e2fsck -fn "$disk"
    assert_eq "$(cat_disk /etc/hostname)" web1
    assert_eq "$(cat_disk /usr/bin/dpkg | sha256sum)" "$program"
    assert_eq "$(volume_stat web2 own_bytes)" 0

    # The copy is larger, has what the golden image has, and shares it.
    partition_of large
    e2fsck -fn "$disk"
    assert_num "$(dumpe2fs -h "$disk" 2>/dev/null |
                      awk '/^Block count:/ { print $3 }') * 4096 > 1600 * 1048576"
    assert_eq "$(cat_disk /usr/bin/dpkg | sha256sum)" "$program"
    assert_eq "$(volume_stat large origin)" golden@v1
    for name in web1 large; do
        assert_num "$(volume_stat $name own_bytes) < \
            $(volume_stat $name logical_bytes) / 50"
    done
    nbdedup drift golden@v1 --json >drift
    assert_num "$(jq '.clones[] | select (.name == "large") |
                      .golden_same / .logical' drift) > 0.95"
    # The copy itself cost next to nothing, too.
    assert_num "$(pool_stat stored_bytes) - $stored < \
        $(volume_stat golden logical_bytes) / 50"
}

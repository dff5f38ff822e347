#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# QEMU boots a Debian image from the pool by its command line alone.  guest.bats
# boots one with vm-images/boot.

load ../rigs/helpers
load guest

setup_file ()
{
    build_image
}

@test "a Debian image boots from the pool, and writes to it" {
    local boot=$BATS_TEST_TMPDIR/boot.log

    need qemu-system-x86_64 --version
    make_pool
    nbdedup import golden "$image"
    serve "$pool"

    # Use TCG: not every machine that has /dev/kvm can use it.
    timeout 300 qemu-system-x86_64 -accel "${QEMU_ACCEL:-tcg}" -m 512 \
        -nographic -no-reboot \
        -drive "file=$(uri_of golden),format=raw,if=virtio,discard=unmap" \
        -kernel "${image%.raw}.vmlinuz" -initrd "${image%.raw}.initrd" \
        -append 'root=/dev/vda console=ttyS0 edd=off nbdedup.poweroff nbdedup.cmd=cp,/bin/bash,/root/copy&&sync&&cmp,/bin/bash,/root/copy' \
        </dev/null >"$boot" 2>&1 3>&- 4>&- ||
        fail "QEMU:" "$(tail -n 50 "$boot")"
    grep -q NBDEDUP-CMD-OK "$boot" || fail "$(tail -n 50 "$boot")"
    grep -q NBDEDUP-BOOT-OK "$boot"
    stop

    # The guest left a clean file system.
    nbdedup export golden "$BATS_TEST_TMPDIR/after.raw"
    run ! cmp -s "$image" "$BATS_TEST_TMPDIR/after.raw"
    PATH=$PATH:/sbin:/usr/sbin e2fsck -fn "$BATS_TEST_TMPDIR/after.raw"
}

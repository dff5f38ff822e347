#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# Clones with cloud-init, each with its own seed, as nbdedup-recipes(7) makes
# them.

load ../rigs/helpers

setup_file ()
{
    need qemu-system-x86_64 --version
    need mmdebstrap --version
    need mcopy -V
    PATH=$PATH:/sbin:/usr/sbin
    need mke2fs -V
    export PATH
    # bats waits for every process that holds its descriptors 3 and 4.
    image=$(bash "$top_srcdir/tests/vm/image" "$top_builddir" cloud 3>&- 4>&-)
    export image
}

# recipe: the loop of the page that makes the seeds, as printed.
recipe ()
{
    sed -n '/^=head2 Clones with cloud-init/,/^=head2/s/^ //p' \
        "$top_srcdir/lib/nbdedup-recipes.pod" | sed -n '/^for/,/^done/p'
}

# boot NAME [SEED]: the guest says what it is called, and powers off.
boot ()
{
    local drives=() name

    for name; do
        drives+=(-drive
                 "file=nbd+unix:///$name?socket=$sock,format=raw,if=virtio")
    done
    # cloud-init has set the name before the system is up.
    timeout -k 10 800 qemu-system-x86_64 -accel "${QEMU_ACCEL:-tcg}" -m 512M \
        -nodefaults -display none -no-reboot \
        -kernel "${image%.raw}.vmlinuz" -initrd "${image%.raw}.initrd" \
        -append "root=LABEL=root console=ttyS0 nbdedup.poweroff \
nbdedup.cmd=echo,$1,is,\$(hostname),\$(cat,/var/lib/cloud/data/instance-id)" \
        -serial "file:$BATS_TEST_TMPDIR/console-$1" \
        "${drives[@]}" </dev/null 3>&- 4>&-
}

# identity NAME: what the guest said.
identity ()
{
    tr -d '\r' <"$BATS_TEST_TMPDIR/console-$1" | sed -n "s/^$1 is //p"
}

@test "each clone takes the name and the identity of its own seed" {
    local loop web1

    loop=$(recipe)
    [[ $loop == *"mkfs.vfat -n CIDATA"* ]]
    cd "$BATS_TEST_TMPDIR"
    make_pool
    nbdedup import golden "$image"
    nbdedup snapshot golden@v1
    nbdedup clone golden@v1 web --count 3
    serve "$pool" attach=exclusive
    eval "$loop"
    boot web1 web1-seed &
    web1=$!
    boot web2 web2-seed
    wait "$web1"
    assert_eq "$(identity web1)" "web1 web1"
    assert_eq "$(identity web2)" "web2 web2"
    stop
    # The clones wrote little of their own; the third nothing.
    assert_eq "$(volume_stat web3 own_bytes)" 0
    assert_num "$(volume_stat web1 own_bytes) > 0"
    assert_num "$(volume_stat web1 own_bytes) < \
        $(volume_stat web1 logical_bytes) / 2"
}

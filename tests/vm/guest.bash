# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154,SC2034,SC2016
#
# Guests for the .bats files of this folder.  "load guest" after
# "load ../helpers".

declare -gA guests=()           # process ids, by name: the volume's
guest=                          # the one that is meant

# Set $image to the folder of the image.  Call it in setup_file.
build_image ()
{
    need qemu-system-x86_64 --version
    need mmdebstrap --version
    PATH=$PATH:/sbin:/usr/sbin
    need mke2fs -V
    export PATH
    # bats waits for every process that holds its descriptors 3 and 4.
    image=$(bash "$top_srcdir/tests/vm/image" "$top_builddir" 3>&- 4>&-)
    export image
}

# quick_image: set $quick to the image with an initramfs of ours, for guests that
# are here to write: see quick-boot.  Call it in setup_file.
quick_image ()
{
    need cpio --version
    need busybox true
    need nbd-client -V
    quick=$BATS_FILE_TMPDIR/quick.raw
    ln -s "$image" "$quick"
    ln -s "${image%.raw}.vmlinuz" "${quick%.raw}.vmlinuz"
    bash "$top_srcdir/vm-images/initramfs-nbd" \
        --run "$top_srcdir/tests/vm/quick-boot" --module virtio_blk \
        --module virtio_console "$image" "${quick%.raw}.initrd"
    export quick
}

# guest_script: the next guest runs the program on stdin.
guest_script ()
{
    mkdir -p "$BATS_TEST_TMPDIR/run"
    cat >"$BATS_TEST_TMPDIR/run/run"
    chmod 755 "$BATS_TEST_TMPDIR/run/run"
}

# start_guest VOLUME [OPTION...]: boot the volume in the background, with the
# program of guest_script; the guest's output comes to $report.  Several guests
# may run: use_guest selects one.  With $quick Debian's own boot is left out.
start_guest ()
{
    local volume=$1

    shift
    report=$BATS_TEST_TMPDIR/report-$volume
    console=$BATS_TEST_TMPDIR/console-$volume
    rm -f "$report" "$console"
    # Use TCG: not every machine that has /dev/kvm can use it.
    "$top_srcdir/vm-images/boot" --accel "${QEMU_ACCEL:-tcg}" \
        --image "${quick:-$image}" --run "$BATS_TEST_TMPDIR/run" \
        --report "$report" \
        --timeout 800 "$@" "$(uri_of "$volume")" \
        >"$console" 2>&1 3>&- 4>&- &
    guest=$volume
    guests[$guest]=$!
}

# use_guest VOLUME: the functions below use the guest on this volume.
use_guest ()
{
    report=$BATS_TEST_TMPDIR/report-$1
    console=$BATS_TEST_TMPDIR/console-$1
    guest=$1
}

# finish_guest: wait until the guest ends, which must be with success.
finish_guest ()
{
    local status=0 pid=${guests[$guest]}

    unset "guests[$guest]"
    wait "$pid" || status=$?
    [ "$status" = 0 ] ||
        fail "the guest failed ($status):" "$(tail -n 60 "$console")"
}

# start_nbd_guest [OPTION...]: boot the kernel of the image in the background,
# with the program of guest_script.  For the guest, the server is 10.0.2.100,
# port 10809.  The options are those of vm-images/initramfs-nbd.
start_nbd_guest ()
{
    local initrd=$BATS_TEST_TMPDIR/initrd.gz

    console=$BATS_TEST_TMPDIR/console
    "$top_srcdir/vm-images/initramfs-nbd" \
        --run "$BATS_TEST_TMPDIR/run/run" "$@" "$image" "$initrd"
    timeout -k 10 600 qemu-system-x86_64 -accel "${QEMU_ACCEL:-tcg}" -m 256M \
        -no-user-config -nodefaults -display none -no-reboot \
        -kernel "${image%.raw}.vmlinuz" -initrd "$initrd" \
        -append 'console=ttyS0 panic=-1 quiet no_timer_check' -serial stdio \
        -netdev "user,id=net,guestfwd=tcp:10.0.2.100:10809-cmd:nc -N -U $sock" \
        -device virtio-net-pci,netdev=net,romfile= -device virtio-rng-pci \
        </dev/null >"$console" 2>&1 3>&- 4>&- &
    guest=nbd
    guests[nbd]=$!
}

finish_nbd_guest ()
{
    finish_guest
    grep -q NBDEDUP-RUN-OK "$console" ||
        fail "the guest failed:" "$(tail -n 60 "$console")"
}

nbd_guest ()
{
    start_nbd_guest "$@"
    finish_nbd_guest
}

# restart_server SIGNAL SECONDS: end the server, and start it again after
# SECONDS, on its socket.
restart_server ()
{
    kill "-$1" "$server_pid"
    wait_for 60 server_is_gone "$server_pid"
    # A zombie's other threads may hold the lock for a moment.
    wait "${servers[${#servers[@]} - 1]}" 2>/dev/null || :
    sleep "$2"
    # The next server gets the name of the one that is gone.
    rm -f "$BATS_TEST_TMPDIR/pid0"
    servers=()
    serve "$pool"
}

# guest_said TEXT: a line of the report begins with TEXT.
guest_said ()
{
    grep -q -- "^$1" "$report" 2>/dev/null
}

# wait_for_guest SECONDS TEXT: wait until it has said TEXT, or has ended.
wait_for_guest ()
{
    wait_for "$1" guest_said_or_gone "$2"
    guest_said "$2" ||
        fail "the guest ended before '$2':" "$(tail -n 60 "$console")"
}

guest_said_or_gone ()
{
    guest_said "$1" || ! kill -0 "${guests[$guest]}" 2>/dev/null
}

# check_disk VOLUME: its file system must be clean; it is left in $disk.
check_disk ()
{
    disk=$BATS_TEST_TMPDIR/disk.raw
    rm -f "$disk"
    nbdedup export "$1" "$disk"
    run e2fsck -fn "$disk"
    [ "$status" = 0 ] || fail "e2fsck:" "$output"
}

# check_files DIR SUMS: the folder on $disk has the files with the checksums in
# the file SUMS, and no others.
check_files ()
{
    local out=$BATS_TEST_TMPDIR/files

    rm -rf "$out"
    mkdir "$out"
    # It complains if it may not set the owner of the files.
    debugfs -R "rdump $1 $out" "$disk" >/dev/null 2>&1
    run sh -c 'cd "$1" && sha256sum --strict --quiet -c "$2"' \
        sh "$out/$(basename "$1")" "$2"
    [ "$status" = 0 ] || fail "files on the disk:" "$output"
    assert_eq "$(find "$out" -type f | wc -l)" "$(wc -l <"$2")"
}

stop_guests ()
{
    local pid

    for pid in "${guests[@]}"; do
        kill "$pid" 2>/dev/null || :
        wait "$pid" 2>/dev/null || :
    done
}

teardown ()
{
    stop_guests
    stop
    check_pools
}

# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154,SC2034,SC2016
#
# Guests for the .bats files of this folder.  "load guest" after
# "load ../helpers".

guest_pid=

# The image and what is beside it, in $image; built once, under a lock,
# because tests may run at the same time.  Call it in setup_file.
build_image ()
{
    local images=${NBDEDUP_IMAGES:-$top_builddir/images}

    need qemu-system-x86_64 --version
    need mmdebstrap --version
    PATH=$PATH:/sbin:/usr/sbin
    need mke2fs -V
    export image="$images/debian-small.raw" PATH
    mkdir -p "$images"
    # bats waits for everybody who holds its descriptors 3 and 4.
    flock "$images/lock" sh -c \
        'test -e "$1" || bash "$2/vm-images/debian-image" --small "$1"' \
        sh "$image" "$top_srcdir" 3>&- 4>&-
}

# guest_script: the program on stdin is what the next guest runs.
guest_script ()
{
    mkdir -p "$BATS_TEST_TMPDIR/run"
    cat >"$BATS_TEST_TMPDIR/run/run"
    chmod 755 "$BATS_TEST_TMPDIR/run/run"
}

# start_guest VOLUME [OPTION...]: boot the volume, in the background, with
# what guest_script left; the guest's words come to $report.
start_guest ()
{
    local volume=$1

    shift
    report=$BATS_TEST_TMPDIR/report
    console=$BATS_TEST_TMPDIR/console
    rm -f "$report" "$console"
    # TCG: not every machine that has /dev/kvm can use it.
    "$top_srcdir/vm-images/boot" --accel "${QEMU_ACCEL:-tcg}" \
        --image "$image" --run "$BATS_TEST_TMPDIR/run" --report "$report" \
        --timeout 400 "$@" "$(uri_of "$volume")" \
        >"$console" 2>&1 3>&- 4>&- &
    guest_pid=$!
}

# finish_guest: wait until it is done, and has done well.
finish_guest ()
{
    local status=0

    wait "$guest_pid" || status=$?
    guest_pid=
    [ "$status" = 0 ] ||
        fail "the guest failed ($status):" "$(tail -n 60 "$console")"
}

# guest_said TEXT: a line of the report begins so.
guest_said ()
{
    grep -q -- "^$1" "$report" 2>/dev/null
}

# wait_for_guest SECONDS TEXT: until it said so; at once when it has gone.
wait_for_guest ()
{
    wait_for "$1" guest_said_or_gone "$2"
    guest_said "$2" ||
        fail "the guest ended before '$2':" "$(tail -n 60 "$console")"
}

guest_said_or_gone ()
{
    guest_said "$1" || ! kill -0 "$guest_pid" 2>/dev/null
}

# check_disk VOLUME: its file system must be clean; leaves it in $disk.
check_disk ()
{
    disk=$BATS_TEST_TMPDIR/disk.raw
    rm -f "$disk"
    nbdedup export "$1" "$disk"
    run e2fsck -fn "$disk"
    [ "$status" = 0 ] || fail "e2fsck:" "$output"
}

# check_files DIR SUMS: a folder on $disk has the files, and only those,
# whose checksums stand in the file SUMS.
check_files ()
{
    local out=$BATS_TEST_TMPDIR/files

    rm -rf "$out"
    mkdir "$out"
    # It complains when it may not give the files their owner.
    debugfs -R "rdump $1 $out" "$disk" >/dev/null 2>&1
    run sh -c 'cd "$1" && sha256sum --strict --quiet -c "$2"' \
        sh "$out/$(basename "$1")" "$2"
    [ "$status" = 0 ] || fail "files on the disk:" "$output"
    assert_eq "$(find "$out" -type f | wc -l)" "$(wc -l <"$2")"
}

stop_guest ()
{
    [ -n "$guest_pid" ] || return 0
    kill "$guest_pid" 2>/dev/null || :
    wait "$guest_pid" 2>/dev/null || :
    guest_pid=
}

teardown ()
{
    stop_guest
    stop
    check_pools
}

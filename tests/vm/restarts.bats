#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# A machine on a volume whose server is killed and restarted, and one on a
# snapshot, which is read-only.

load ../rigs/helpers
load guest

setup_file ()
{
    build_image
    quick_image
}

# Serve the golden volume.
setup ()
{
    make_pool
    nbdedup import golden "$image"
    serve "$pool"
}

@test "a guest goes on over kills and restarts of the server, and loses nothing" {
    local kill after signal seconds

    # Files with fsync, one by one, and files without, which the kernel writes
    # when it chooses to, and that is soon.
    guest_script <<'SCRIPT'
#!/bin/bash
set -e
say () { echo "$@" >/dev/virtio-ports/report; }
echo 30 >/proc/sys/vm/dirty_expire_centisecs
echo 10 >/proc/sys/vm/dirty_writeback_centisecs
mkdir /srv/files
cd /srv/files

make_file ()
{
    head -c 256K /dev/urandom | tee "$1" | sha256sum | sed "s/-/$1/" >>"$2"
}

for ((i = 1; i <= 24; i++)); do
    make_file "unsynced$i" /run/sums-unsynced
    sleep 0.2
done &
for ((i = 1; i <= 48; i++)); do
    make_file "synced$i" /run/sums-synced
    sync "synced$i"
    say "synced $i"
    sleep 0.1
done
wait
sync
echo 3 >/proc/sys/vm/drop_caches
cat /run/sums-* >/run/sums
sha256sum --strict --quiet -c /run/sums
say "done"
while read -r line; do say "sum $line"; done </run/sums
SCRIPT
    start_guest golden --reconnect 120

    # The server is back soon, late, and at once.
    for kill in '6 KILL 1' '15 TERM 1' '24 KILL 6' '33 KILL 0'; do
        read -r after signal seconds <<<"$kill"
        wait_for_guest 300 "synced $after\$"
        restart_server "$signal" "$seconds"
        guest_said "synced 48" && fail "the guest was too fast for this test"
    done
    finish_guest
    guest_said "done"

    sed -n 's/^sum //p' "$report" >"$BATS_TEST_TMPDIR/sums"
    assert_eq "$(wc -l <"$BATS_TEST_TMPDIR/sums")" 72
    check_disk golden
    check_files /srv/files "$BATS_TEST_TMPDIR/sums"
    nbdedup scrub
    nbdedup check
}

@test "a snapshot boots, read-only: what the guest writes is gone with it" {
    local before

    nbdedup snapshot golden@v1
    before=$(nbdedup stat --json golden | jq -c '.pool.stored_bytes')
    guest_script <<'SCRIPT'
#!/bin/sh
set -ex
seq 100000 >/srv/numbers
sync
sha256sum /srv/numbers >/dev/virtio-ports/report
SCRIPT
    TMPDIR=$BATS_TEST_TMPDIR start_guest golden@v1
    finish_guest
    assert_eq "$(cut -c1-64 "$report")" "$(seq 100000 | sha256sum | cut -c1-64)"
    # The overlay of the second one, too.
    assert_eq "$(find "$BATS_TEST_TMPDIR" -name 'nbdedup-boot.*')" ""
    nbdcopy "$(uri_of golden@v1)" - | cmp - "$image"
    nbdcopy "$(uri_of golden)" - | cmp - "$image"
    assert_eq "$(nbdedup stat --json golden | jq -c '.pool.stored_bytes')" "$before"

    run -1 "$top_srcdir/vm-images/boot" --accel tcg --image "$image" \
        --poweroff "$(uri_of golden@v2)"
    [[ $output == *"boot: "*"golden@v2"*"is there such a snapshot"* ]]
}

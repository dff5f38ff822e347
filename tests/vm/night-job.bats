#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# vm-images/night-job on a real Debian image, against a running server: the
# promises in its head must be true afterwards.

load ../rigs/helpers
load guest

setup_file ()
{
    PATH=$PATH:/sbin:/usr/sbin
    need nbdfuse --version
    need fusermount3 --version
    need test -w /dev/fuse
    need sqlite3 --version
    build_image
}

volumes ()
{
    nbdedup list --json | jq -r "[.volumes[] | select ($1) | .name] | length"
}

@test "50 clones, 10 rolled back, 10 destroyed, 10 new, and a new golden image" {
    make_pool
    serve "$pool"
    NBDEDUP_BUILD=$top_builddir NBDEDUP_IMAGES=$(dirname "$image") \
        "$top_srcdir/vm-images/night-job" --image "$image" --diverge 5 \
        --verify 4 --dir "$BATS_TEST_TMPDIR/night" --socket "$sock" \
        3>&- 4>&-

    assert_eq "$(volumes true)" 51
    assert_eq "$(volumes '.origin == "golden@v2"')" 50
    assert_eq "$(volumes '.snapshots[].name == "fresh"')" 40
    assert_eq "$(volumes '.name == ("desk11", "desk20", "golden-old")')" 0
    assert_eq "$(pool_stat freeing_bytes)" 0

    # The golden image is release 2 now, and the changes of a day are still
    # there.
    assert_eq "$(nbdedup list --json | jq -c \
        '.volumes[] | select (.name == "golden") | [.origin, .own_bytes]')" \
        '[null,0]'
    for name in desk21 desk41; do
        check_disk $name
        debugfs -R 'dump /srv/app/app.db '"$BATS_TEST_TMPDIR/db" "$disk"
        assert_eq "$(sqlite3 "$BATS_TEST_TMPDIR/db" \
                             'PRAGMA integrity_check; SELECT count(*) FROM event')" \
                  $'ok\n12000'
    done
    # A machine that was rolled back has none.
    check_disk desk1
    run debugfs -R 'stat /srv/app/app.db' "$disk"
    [[ $output == *"File not found"* ]]

    stop
    nbdedup scrub
    nbdedup check
}

@test "diverge and golden-image make the same of the same" {
    local a=$BATS_TEST_TMPDIR/a.raw b=$BATS_TEST_TMPDIR/b.raw out

    for out in "$a" "$b"; do
        "$top_srcdir/vm-images/golden-image" --base "$image" --release 2 "$out"
        "$top_srcdir/vm-images/diverge" --seed web1 \
            --cache "$(dirname "$image")" "$out"
    done
    cmp "$a" "$b"
    "$top_srcdir/vm-images/diverge" --seed web2 \
        --cache "$(dirname "$image")" --steps logs "$b"
    run ! cmp -s "$a" "$b"
    run -2 "$top_srcdir/vm-images/diverge" "$b"
    run -2 "$top_srcdir/vm-images/diverge" --seed x --steps dance "$b"
    run -1 "$top_srcdir/vm-images/diverge" --seed x "$BATS_TEST_TMPDIR/none"
}

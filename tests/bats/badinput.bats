#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154,SC2030,SC2031,SC2034
#
# Files that are not a pool, and pools that something has damaged: DESCRIPTION
# and STRATEGY are in badinput.bash.  Damage of all kinds to each file is in
# spoilt-files.bats.

load ../rigs/helpers
load badinput

@test "what is no pool is refused in one line" {
    local d="$BATS_TEST_TMPDIR"

    mkdir "$d/empty" "$d/other"
    echo hello >"$d/file"
    echo hello >"$d/other/file"
    ln -s nowhere "$d/dangling"

    for path in empty other file missing dangling file/below; do
        refused_by_server "$d/$path"
        refused_by_command "$d/$path"
    done
    refused_by_server /
    refused_by_command /dev/null
    assert_eq "$(ls -A "$d/empty")" ""
    assert_eq "$(ls -A "$d/other")" "file"
}

@test "init refuses what is there already" {
    local d="$BATS_TEST_TMPDIR"

    nbdedup init "$d/pool"
    before=$(fingerprint "$d/pool")
    run -1 nbdedup init "$d/pool"
    assert_eq "${#lines[@]}" 1
    assert_eq "$(fingerprint "$d/pool")" "$before"
    mkdir "$d/other"
    echo hello >"$d/other/file"
    run -1 nbdedup init "$d/other"
    assert_eq "$(ls -A "$d/other")" "file"
    echo hello >"$d/file"
    run -1 nbdedup init "$d/file"
    run -1 nbdedup init "$d/missing/pool"
    for bad in "--sector 500" "--sector 256" "--sector 16K" "--hash md5" \
               "--block-size 2K" "--block-size 3M" "--compress gzip" \
               "--sector 99999999999999999999" "--compress zstd-99"; do
        # shellcheck disable=SC2086
        run nbdedup init "$d/new" $bad
        [ "$status" = 1 ] || [ "$status" = 2 ] || fail "$bad: $status"
        [ ! -e "$d/new/pool.db" ] || fail "$bad: made a pool"
        rm -rf "$d/new"
    done
}

@test "sizes that overflow are refused" {
    make_pool
    for size in -1 1 511 513 99999999999999999999 16777216T 9223372036854775808 \
                18446744073709551615 0x1000 1.5 1.5GB "" " " 4Q; do
        run nbdedup create v "$size"
        [ "$status" = 1 ] || [ "$status" = 2 ] ||
            fail "size '$size': status $status"
    done
    assert_eq "$(nbdedup list --json | jq '.volumes | length')" 0
    for name in "" . .. a/b a@b "a b" $'a\nb' "$(printf 'x%.0s' {1..256})"; do
        run nbdedup create "$name" 1M
        [ "$status" = 1 ] || [ "$status" = 2 ] ||
            fail "name '$name': status $status"
    done
}

@test "a pool of a newer format is refused, with a word that says so" {
    damaged
    make_sample "$BATS_TEST_TMPDIR/sample"

    copy        # PRAGMA user_version
    printf '\0\0\0\2' | dd of="$copy/pool.db" bs=1 seek=60 conv=notrunc \
                           status=none
    must_refuse "$copy" newer

    for file in "records 8192" "journal 4096"; do
        # shellcheck disable=SC2086
        set -- $file
        copy    # an unknown incompatible feature
        "$test_programs/bats/patch-header" "$copy/$1" "$2" 16 4096
        must_refuse "$copy" newer
        copy    # the version; the sector size or zeroes follow it
        local after=0
        [ "$1" = journal ] || after=512
        "$test_programs/bats/patch-header" "$copy/$1" "$2" 8 $((2 + (after << 32)))
        must_refuse "$copy" newer
        copy    # a compatible feature is ignored
        "$test_programs/bats/patch-header" "$copy/$1" "$2" 24 4096
        try_pool "$copy"
        assert_eq "$outcome" served
    done
}

@test "a pool in use is refused by a second server, not by commands" {
    make_pool
    nbdedup create v 1M
    serve "$pool"
    refused_by_server "$pool"
    grep -q "in use" "$BATS_TEST_TMPDIR/log" ||
        fail "not clear:" "$(cat "$BATS_TEST_TMPDIR/log")"
    grep -q "$server_pid" "$BATS_TEST_TMPDIR/log" ||
        fail "does not say by whom:" "$(cat "$BATS_TEST_TMPDIR/log")"
    nbdedup create w 1M
    qemu-io -f raw -c 'write -P 1 0 1M' "$(uri_of w)"
}

@test "a server that forks into the background tells its errors, too" {
    mkdir "$BATS_TEST_TMPDIR/empty"
    run -1 nbdkit -U "$BATS_TEST_TMPDIR/s" -P "$BATS_TEST_TMPDIR/p" "$plugin" \
        "pool=$BATS_TEST_TMPDIR/empty"
    [ -n "$output" ]
    damaged
    make_sample "$BATS_TEST_TMPDIR/sample"
    copy
    truncate -s 100 "$copy/journal"
    run -1 nbdkit -U "$BATS_TEST_TMPDIR/s" -P "$BATS_TEST_TMPDIR/p" "$plugin" \
        "pool=$copy"
    [[ $output == *journal* ]] || fail "$output"
}

@test "a missing, empty, unreadable or foreign file is refused" {
    local file

    damaged
    make_sample "$BATS_TEST_TMPDIR/other"
    make_sample "$BATS_TEST_TMPDIR/sample"
    for file in pool.db journal records; do
        copy
        rm "$copy/$file"
        must_refuse "$copy" "$file"
        [ ! -e "$copy/$file" ] || fail "$file was made anew"
        copy
        truncate -s 0 "$copy/$file"
        must_refuse "$copy" "$file"
        copy
        rm "$copy/$file"
        mkdir "$copy/$file"
        must_refuse "$copy" "$file"
        copy
        rm "$copy/$file"
        ln -s nowhere "$copy/$file"
        must_refuse "$copy" "$file"
        [ ! -e "$copy/nowhere" ] || fail "$file was made anew"
        copy
        rm "$copy/$file"
        mkfifo "$copy/$file"
        must_refuse "$copy" "$file"
        copy
        cp "$BATS_TEST_TMPDIR/other/pool/$file" "$copy/$file"
        must_refuse "$copy"
    done
}

@test "only records may be a symbolic link" {
    local file

    damaged
    make_sample "$BATS_TEST_TMPDIR/sample" crash
    for file in pool.db pool.db-wal journal; do
        copy
        [ -s "$copy/$file" ] || fail "the sample has no $file"
        mv "$copy/$file" "$BATS_TEST_TMPDIR/elsewhere"
        cp "$BATS_TEST_TMPDIR/elsewhere" "$BATS_TEST_TMPDIR/before"
        ln -s "$BATS_TEST_TMPDIR/elsewhere" "$copy/$file"
        must_refuse "$copy" pool.db\\\|journal
        cmp "$BATS_TEST_TMPDIR/elsewhere" "$BATS_TEST_TMPDIR/before"
    done
    copy
    echo mine >"$BATS_TEST_TMPDIR/elsewhere"
    ln -sf "$BATS_TEST_TMPDIR/elsewhere" "$copy/control.sock"
    refused_by_server "$copy"
    assert_eq "$(cat "$BATS_TEST_TMPDIR/elsewhere")" mine
    copy
    mv "$copy/records" "$BATS_TEST_TMPDIR/elsewhere"
    mkdir "$BATS_TEST_TMPDIR/real"
    ln -s real "$BATS_TEST_TMPDIR/parent"
    nbdedup init "$BATS_TEST_TMPDIR/parent/pool"
    nbdedup -p "$BATS_TEST_TMPDIR/parent/pool" list
    ln -s "$BATS_TEST_TMPDIR/elsewhere" "$copy/records"
    nbdedup -p "$copy" list
}

# begin_session: make a sample and a copy of it, "old", and write to the sample.
begin_session ()
{
    damaged
    make_sample "$BATS_TEST_TMPDIR/sample"
    cp -a "$sample/pool" "$BATS_TEST_TMPDIR/old"
    serve "$sample/pool"
    random_data 100K 7 >"$BATS_TEST_TMPDIR/new"
    qemu-io -f raw -c "write -s $BATS_TEST_TMPDIR/new 0 100K" -c flush \
            "$(uri_of v)" >/dev/null
}

@test "an older copy of one file is refused" {
    local file

    begin_session
    stop
    for file in pool.db journal records; do
        copy
        cp "$BATS_TEST_TMPDIR/old/$file" "$copy/$file"
        must_refuse "$copy"
    done
}

@test "an older copy of one file of a killed pool is refused" {
    local file

    begin_session
    crash
    for file in pool.db journal records; do
        copy
        [ $file != pool.db ] || rm -f "$copy/pool.db-wal"
        cp "$BATS_TEST_TMPDIR/old/$file" "$copy/$file"
        must_refuse "$copy"
    done
}

# A volume's blocks of 16 KiB are those of "data", which does not compress, so
# the first bytes of block 5 show where it is in "records".
damage_block_5 ()
{
    local where

    where=$(LC_ALL=C grep -obUaP "$(tail -c +$((5 * 16384 + 1)) \
        "$BATS_TEST_TMPDIR/data" | head -c 12 | od -An -tx1 |
        tr -d '\n' | sed 's/ /\\x/g')" "$pool/records" | cut -d: -f1 | head -1)
    [ -n "$where" ] || fail "block 5 not found in records"
    printf '\x55\xaa\x55' | dd of="$pool/records" bs=1 seek=$((where + 9000)) \
                               conv=notrunc status=none
}

@test "a bit that flips after kill -9 in what was flushed is EIO, not zeroes" {
    damaged
    make_pool
    nbdedup create v 2M --block-size 16K --compress none
    serve "$pool" commit-interval=1000
    random_data 512K 1 >"$BATS_TEST_TMPDIR/data"
    nbdcopy --flush "$BATS_TEST_TMPDIR/data" "$uri"
    crash
    { cat "$BATS_TEST_TMPDIR/data"; head -c 1536K /dev/zero; } \
        >"$BATS_TEST_TMPDIR/img"
    damage_block_5
    serve "$pool"
    # A busy machine may write them in several batches.
    grep -E "recovered after a crash: [0-9]+ batches, 32 records, 32 blocks" \
         "$server_log"
    run -0 "$test_programs/rigs/read-compare" "$sock" v "$BATS_TEST_TMPDIR/img" 16384
    assert_eq "$output" "127 right, 1 EIO"
    run -1 --separate-stderr nbdedup scrub --json
    assert_eq "$(jq -c '.damaged' <<<"$output")" \
              '[{"name":"v","offset":81920,"length":16384}]'
}

@test "a flipped bit in a record is EIO there, and scrub says where" {
    damaged
    make_pool
    nbdedup create v 2M --block-size 16K
    serve "$pool"
    random_data 1M 1 >"$BATS_TEST_TMPDIR/data"
    qemu-io -f raw -c "write -s $BATS_TEST_TMPDIR/data 0 1M" -c flush "$uri"
    nbdedup scrub
    nbdedup check
    stop
    { cat "$BATS_TEST_TMPDIR/data"; head -c 1M /dev/zero; } \
        >"$BATS_TEST_TMPDIR/img"

    damage_block_5

    serve "$pool"
    run -0 "$test_programs/rigs/read-compare" "$sock" v "$BATS_TEST_TMPDIR/img" 16384
    assert_eq "$output" "127 right, 1 EIO"
    run -1 --separate-stderr nbdedup scrub --json
    assert_eq "$(jq -c '.damaged' <<<"$output")" \
              '[{"name":"v","offset":81920,"length":16384}]'

    # Other content heals the block.  The same content heals it only if dedup
    # compares bytes.
    nbdedup set dedup=verify v
    qemu-io -f raw -c "write -s $BATS_TEST_TMPDIR/data 0 1M" -c flush "$uri"
    run -0 "$test_programs/rigs/read-compare" "$sock" v "$BATS_TEST_TMPDIR/img" 16384
    assert_eq "$output" "128 right, 0 EIO"
    stop
    nbdedup check
}

@test "unknown keys, values and exports are refused in one line" {
    make_pool
    nbdedup create v 1M
    nbdedup create w 1M
    for key in nonsense=1 dirty-max=1 dirty-max=99999999999999999999 \
               dirty-max=-1 dirty-max=x ddt-cache=1M commit-interval=x \
               commit-interval=-1 commit-interval= primarycache=some \
               threads=many attach=maybe only=perhaps volume=a/b \
               only=on; do
        run nbdkit -f -U "$BATS_TEST_TMPDIR/s" "$plugin" "pool=$pool" "$key" \
            --run true
        assert_eq "$status" 1 "$key"
        assert_eq "${#lines[@]}" 1 "$key: lines"
    done
    serve "$pool"
    run nbdinfo "$uri"                  # two volumes, no default
    [ "$status" -ne 0 ]
    run nbdinfo "$(uri_of missing)"
    [ "$status" -ne 0 ]
    nbdinfo "$(uri_of v)" >/dev/null
}

#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154,SC2030,SC2031
#
# DESCRIPTION
# "nbdedup check --repair", as a user sees it.  test-repair.c tests each kind of
# damage, and a repair that is killed.

load ../rigs/helpers

# damaged_pool: $image has volume v's content before the damage; block 3 has
# lost its content, and some counts, space maps and totals are wrong.
damaged_pool ()
{
    make_pool
    image="$BATS_TEST_TMPDIR/image"
    random_data 1M 7 >"$image"
    nbdedup import v "$image" --block-size 4K
    "$test_programs/modules/test-repair" plant "$pool"
}

# expect_repaired TEXT: it names the damage, and all of it was repaired.
expect_repaired ()
{
    grep -q 'where there is no record: repaired$' <<<"$1"
    grep -q ' references counted, 1 found: repaired$' <<<"$1"
    grep -q '^record bytes: .*: repaired$' <<<"$1"
    grep -q '^The content of 1 block is lost: ' <<<"$1"
    run ! grep -v -e ': repaired$' -e '^The content of 1 block' <<<"$1"
}

# expect_whole: all but block 3 is as before, and block 3 can be written.
expect_whole ()
{
    nbdedup check
    run -1 --separate-stderr nbdedup scrub
    [[ ${lines[0]} == "v: 4096 bytes at offset 12288 are damaged" ]]
    [[ $stderr == "nbdedup: scrub: $pool: 1 block is lost, "*" backup" ]]
    serve "$pool"
    run qemu-io -f raw -c 'read 12k 4k' "$(uri_of v)"
    [[ $output == *"Input/output error"* ]]
    dd if="$image" of="$BATS_TEST_TMPDIR/block" bs=4K skip=3 count=1 status=none
    qemu-io -f raw -c "write -s $BATS_TEST_TMPDIR/block 12k 4k" -c flush \
            "$(uri_of v)"
    stop
    nbdedup export v - | cmp - "$image"
    nbdedup check
    nbdedup scrub
}

@test "check --repair puts a pool right that nothing serves" {
    damaged_pool
    run -1 nbdedup check
    # Without --repair it repairs nothing.
    run -1 nbdedup check
    run -0 --separate-stderr nbdedup check --repair
    expect_repaired "$output"
    expect_whole
    run -0 --separate-stderr nbdedup check --repair
    [[ $output == "No errors: "* ]]
}

@test "check --repair puts a pool right while it is served" {
    damaged_pool
    serve "$pool"
    run -0 --separate-stderr nbdedup check --repair
    expect_repaired "$output"
    stop
    expect_whole
}

@test "check --repair tells in JSON what it repaired" {
    damaged_pool
    nbdedup check --repair --json >"$BATS_TEST_TMPDIR/json"
    jq -e '.errors == 0 and .problems == [] and .lost_blocks == 1 and
           .found == (.repairs | length) and .found > 4 and
           all (.repairs[]; .repaired)' "$BATS_TEST_TMPDIR/json"
    nbdedup check --repair --json >"$BATS_TEST_TMPDIR/json"
    jq -e '.errors == 0 and .found == 0 and .repairs == [] and
           .lost_blocks == 0' "$BATS_TEST_TMPDIR/json"
}

@test "check --repair is refused where nothing may be written" {
    damaged_pool
    run -2 nbdedup --read-only check --repair
    assert_eq "$output" "nbdedup: check: --repair changes the pool: it cannot be \
used with --read-only (see 'nbdedup check --help')"
    run -1 nbdedup --read-only check
    nbdedup check --repair
}

# lost_page: damage one page of the maps of volume v, whose content is $image,
# in both copies.
lost_page ()
{
    local page file

    need sqlite3 -version
    make_pool
    image="$BATS_TEST_TMPDIR/image"
    random_data 8M 7 >"$image"
    nbdedup import v "$image" --block-size 4K
    page=$(sqlite3 "file:$pool/pool.db?immutable=1" \
               "SELECT max (pageno) FROM dbstat
                WHERE name = 'leaf' AND pagetype = 'leaf'")
    for file in pool.db pool.db.copy; do
        printf '\x5a' | dd of="$pool/$file" bs=1 conv=notrunc status=none \
            seek=$(( (page - 1) * 8192 + 4000 ))
    done
}

# expect_lost OUTPUT: it names one range of v, and only this cannot be read.
expect_lost ()
{
    local line offset length

    grep -q ': repaired$' <<<"$1"
    run ! grep -q 'not repaired' <<<"$1"
    line=$(grep '^v: .* are lost$' <<<"$1")
    read -r _ length _ _ _ offset _ <<<"$line"
    (( length > 0 && length < 4 << 20 ))
    nbdedup check
    serve "$pool"
    run qemu-io -f raw -c "read $offset 4k" "$(uri_of v)"
    [[ $output == *"Input/output error"* ]]
    run qemu-io -f raw -c "read $(( offset + length - 4096 )) 4k" \
        "$(uri_of v)"
    [[ $output == *"Input/output error"* ]]
    # Heal it by writing its former content.
    dd if="$image" of="$BATS_TEST_TMPDIR/part" bs=4K status=none \
       skip=$(( offset / 4096 )) count=$(( length / 4096 ))
    qemu-io -f raw -c "write -s $BATS_TEST_TMPDIR/part $offset $length" \
            -c flush "$(uri_of v)"
    stop
    nbdedup export v - | cmp - "$image"
    nbdedup check
    nbdedup scrub
}

@test "a page of the maps that is lost in both copies costs its range" {
    lost_page
    run -1 nbdedup check
    run -0 --separate-stderr nbdedup check --repair
    expect_lost "$output"
}

@test "a lost page of the maps is repaired while the pool is served" {
    lost_page
    serve "$pool"
    run -0 --separate-stderr nbdedup check --repair
    stop
    expect_lost "$output"
}

@test "a damaged page of the hash index costs no entry twice" {
    need sqlite3 -version
    need jq --version
    local page

    make_pool
    nbdedup set metadata-copy=off
    random_data 8M 7 >"$BATS_TEST_TMPDIR/image"
    nbdedup import v "$BATS_TEST_TMPDIR/image" --block-size 4K
    page=$(sqlite3 "file:$pool/pool.db?immutable=1" \
               "SELECT max (pageno) FROM dbstat
                WHERE name = 'ddt' AND pagetype = 'leaf'")
    printf '\x5a' | dd of="$pool/pool.db" bs=1 conv=notrunc status=none \
        seek=$(( (page - 1) * 8192 + 4000 ))
    run -1 nbdedup check
    run -0 --separate-stderr nbdedup recover
    [[ $stderr == *"table ddt was damaged"* && $stderr != *pool.db.copy* ]] ||
        fail "$stderr"
    nbdedup check --repair
    nbdedup check
    nbdedup stat --json | jq -e '.pool | .ddt.entries == .records'
    nbdedup export v - | cmp - "$BATS_TEST_TMPDIR/image"
}

# without_journal SPOIL...: make a pool whose server was killed, and spoil its
# journal with 'SPOIL journal'.  All data is there except the last writes, which
# were not folded.
without_journal ()
{
    make_pool
    image="$BATS_TEST_TMPDIR/image"
    random_data 1M 7 >"$image"
    nbdedup import v "$image"
    serve "$pool" commit-interval=3600
    qemu-io -f raw -c 'write -P 9 0 64k' -c flush "$(uri_of v)"
    crash
    "$@" "$pool/journal"
    run -1 nbdedup list
    [[ $output == *"/journal: "*"nbdedup recover --without-journal"* ]]
    run -1 nbdedup recover
    run -0 nbdedup recover --without-journal
    [[ $output == *"the writes flushed after the last fold are lost"* ]]
    nbdedup check
    nbdedup export v - | cmp - "$image"
    # It works as any other pool, and nothing is given up a second time.
    serve "$pool"
    qemu-io -f raw -c 'write -P 9 0 64k' -c flush "$(uri_of v)"
    crash
    run -0 nbdedup recover --without-journal
    [[ $output != *"are lost"* ]]
    serve "$pool"
    qemu-io -f raw -c 'read -P 9 0 64k' "$(uri_of v)"
    stop
    nbdedup check
}

@test "a pool whose journal is missing goes on without it" {
    without_journal rm
    [ ! -e "$pool/journal.damaged" ]
}

@test "a pool whose journal cannot be used goes on without it" {
    without_journal truncate -s 100
    assert_eq "$(stat -c %s "$pool/journal.damaged")" 100
}

@test "without any pool.db recover counts the records that summaries name" {
    need jq --version

    # More than one chunk of summaries has slots for, at the largest sector.
    random_data 1600K 8 >"$BATS_TEST_TMPDIR/image"
    for sector in 512 8K; do
        pool=$BATS_TEST_TMPDIR/pool-$sector
        nbdedup -p "$pool" init --sector $sector
        nbdedup -p "$pool" import --block-size 8K v "$BATS_TEST_TMPDIR/image"
        rm "$pool"/pool.db*
        run -1 --separate-stderr nbdedup -p "$pool" recover --json
        assert_eq "$(jq -c '[.records, .record_bytes, .stored_bytes]' \
                        <<<"$output")" "[200,1638400,1638400]"
    done
}

another_journal ()
{
    nbdedup -p "$BATS_TEST_TMPDIR/other" init
    cp "$BATS_TEST_TMPDIR/other/journal" "$1"
}

@test "a pool whose journal is another pool's goes on without it" {
    without_journal another_journal
}

@test "recover --without-journal can be interrupted" {
    make_pool
    random_data 1M 7 >"$BATS_TEST_TMPDIR/image"
    nbdedup import v "$BATS_TEST_TMPDIR/image"
    # The old journal is still there and is put aside.  The new one is there,
    # and pool.db still has a position that does not exist in it.
    cp "$pool/journal" "$BATS_TEST_TMPDIR/journal"
    truncate -s 100 "$pool/journal" "$pool/journal.new"
    nbdedup recover --without-journal
    rm "$pool/journal"
    cp "$BATS_TEST_TMPDIR/journal" "$pool/journal.new"
    nbdedup recover --without-journal
    truncate -s 200 "$pool/journal"
    nbdedup recover --without-journal
    assert_eq "$(stat -c %s "$pool/journal.damaged.2")" 200
    nbdedup export v - | cmp - "$BATS_TEST_TMPDIR/image"
    nbdedup check
}

#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# copies=N:R: more than one copy of records that have many references.

load ../rigs/helpers

setup ()
{
    need jq --version
    python=/usr/bin/python3     # not an interpreter of one user
    [ -x "$python" ] || python=python3
}

# are_copied: the server's copier has nothing left to do.
are_copied ()
{
    nbdedup -p "$pool" status --json |
        jq -e '.copies | .waiting == 0 and (.looking | not)' >/dev/null
}

# is_figure KEY VALUE: the pool has this figure.
is_figure ()
{
    [ "$(pool_stat "$1")" = "$2" ]
}

# two_volumes: a and b share a MiB, and b has half a MiB of its own.
two_volumes ()
{
    random_data 1048576 1 >"$BATS_TEST_TMPDIR/a.img"
    { cat "$BATS_TEST_TMPDIR/a.img"; random_data 524288 2
    } >"$BATS_TEST_TMPDIR/b.img"
    nbdedup import a "$BATS_TEST_TMPDIR/a.img" --block-size 16K
    nbdedup import b "$BATS_TEST_TMPDIR/b.img" --block-size 16K
}

# copy_all: let a server make the copies, and stop it.
copy_all ()
{
    serve "$pool" record-cache=0
    wait_for 60 are_copied
    stop
}

# flip FILE WHICH: change a byte in the middle of each place in records that
# has a block of FILE: the first place (0), the second (1), or all (all).
# Prints the number of places changed.
flip ()
{
    python3 -c 'import sys
block = 16384
image = open(sys.argv[2], "rb").read()
with open(sys.argv[1], "r+b") as f:
    data, nr = f.read(), 0
    for i in range(0, len(image), block):
        places, at = [], data.find(image[i:i + block])
        while at != -1:
            places.append(at)
            at = data.find(image[i:i + block], at + 1)
        chosen = places if sys.argv[3] == "all" else \
            places[int(sys.argv[3]):][:1]
        for at in chosen:
            f.seek(at + 8000)
            f.write(bytes([data[at + 8000] ^ 0x10]))
            nr += 1
print(nr)' "$pool/records" "$1" "$2"
}

@test "records with enough references are copied, by a server, once" {
    make_pool
    nbdedup set copies=2:2
    two_volumes
    assert_eq "$(pool_stat copy_bytes)" 0
    assert_eq "$(pool_stat stored_bytes)" 1572864
    copy_all
    assert_eq "$(pool_stat copy_bytes)" 1048576
    assert_eq "$(pool_stat stored_bytes)" 2621440
    # Copies are not new data, and change a ratio only by their space.
    assert_eq "$(pool_stat records)" 96
    assert_eq "$(pool_stat record_bytes)" 1572864
    assert_eq "$(nbdedup stat --ddt --json |
                 jq -c '[.pool.ddt.histogram[] | [.refcount, .records]]')" \
              '[[1,32],[2,64]]'
    nbdedup check
    # The format is as its page says.
    "$python" "$top_srcdir/tests/models/format-reader.py" "$pool" \
              a "$BATS_TEST_TMPDIR/reader.a"
    cmp "$BATS_TEST_TMPDIR/reader.a" "$BATS_TEST_TMPDIR/a.img"
    copy_all
    assert_eq "$(pool_stat copy_bytes)" 1048576
    nbdedup export a - | cmp - "$BATS_TEST_TMPDIR/a.img"
}

@test "a server copies what reaches R references while it runs" {
    make_pool
    nbdedup set copies=3:2
    serve "$pool"
    two_volumes
    wait_for 60 is_figure copy_bytes 2097152
    nbdedup check
    # Each copy is in a segment of its own.
    assert_eq "$(flip "$BATS_TEST_TMPDIR/a.img" all)" 192
    damaged
}

@test "a damaged record is read from its copy, and scrub repairs it" {
    make_pool
    nbdedup set copies=2:2
    two_volumes
    copy_all
    assert_eq "$(flip "$BATS_TEST_TMPDIR/a.img" 0)" 64
    # Read them offline, read-only, and as clients of a server.
    nbdedup export a - | cmp - "$BATS_TEST_TMPDIR/a.img"
    nbdedup --read-only export b - | cmp - "$BATS_TEST_TMPDIR/b.img"
    serve "$pool" record-cache=0
    nbdcopy "$(uri_of a)" - | cmp - "$BATS_TEST_TMPDIR/a.img"
    run -1 --separate-stderr nbdedup status --json
    assert_eq "$(jq '.copies.reads' <<<"$output")" 64
    assert_eq "$(jq -r .state <<<"$output")" warning
    wait_for 20 grep -q 'its copy answered the read' "$server_log"
    assert_eq "$(grep -c 'its copy answered the read' "$server_log")" 1
    run -0 --separate-stderr nbdedup scrub --json
    assert_eq "$(jq -c '[.errors, .repaired_records]' <<<"$output")" '[0,64]'
    stop
    run -0 --separate-stderr nbdedup scrub --json
    assert_eq "$(jq -c '[.errors, .repaired_records]' <<<"$output")" '[0,0]'
}

@test "a damaged copy is repaired from its record" {
    make_pool
    nbdedup set compress=zstd-19
    nbdedup set copies=2:2
    text_data 1048576 >"$BATS_TEST_TMPDIR/a.img"
    nbdedup import a "$BATS_TEST_TMPDIR/a.img" --block-size 64K
    nbdedup import b "$BATS_TEST_TMPDIR/a.img" --block-size 64K
    copy_all
    # The copies are in another segment than the originals, which come first.
    python3 -c 'import sys
with open(sys.argv[1], "r+b") as f:
    data = f.read()
    for at in range(len(data) // 2, len(data)):
        if data[at]:
            break
    f.seek(at + 8192)
    f.write(bytes([data[at + 8192] ^ 1]))' "$pool/records"
    run -0 --separate-stderr nbdedup scrub --json
    assert_eq "$(jq '.errors - .summary_errors' <<<"$output")" 0
    assert_num "$(jq '.repaired_records + .summary_errors' <<<"$output") > 0"
    run -0 --separate-stderr nbdedup scrub --json
    assert_eq "$(jq -c '[.errors, .repaired_records]' <<<"$output")" '[0,0]'
}

@test "a record that is damaged in all copies is an I/O error" {
    make_pool
    damaged
    nbdedup set copies=2:2
    two_volumes
    copy_all
    assert_eq "$(flip "$BATS_TEST_TMPDIR/a.img" all)" 128
    run -1 nbdedup export a "$BATS_TEST_TMPDIR/out"
    run -1 --separate-stderr nbdedup scrub --json
    assert_eq "$(jq '.errors' <<<"$output")" 128
    # b's own half MiB is intact.
    serve "$pool" record-cache=0
    run -0 qemu-io -r -f raw -c "read 1M 512K" "$(uri_of b)"
    run -1 qemu-io -r -f raw -c "read 0 512K" "$(uri_of b)"
}

@test "copies go with their records" {
    make_pool
    nbdedup set copies=3:2
    two_volumes
    copy_all
    assert_eq "$(pool_stat copy_bytes)" 2097152
    nbdedup destroy a
    # One reference of each record is left, and it keeps its copies.
    assert_eq "$(pool_stat copy_bytes)" 2097152
    nbdedup check
    nbdedup destroy b
    wait_for 30 is_figure stored_bytes 0
    assert_eq "$(pool_stat copy_bytes)" 0
    nbdedup check
    # All space can be used again.
    serve "$pool"
    two_volumes
    wait_for 60 is_figure copy_bytes 2097152
}

@test "set copies=1 removes all copies, copies=2:R those beyond, with a server and without" {
    make_pool
    nbdedup set copies=3:2
    two_volumes
    serve "$pool"
    wait_for 60 is_figure copy_bytes 2097152
    nbdedup set copies=2:2
    wait_for 60 is_figure copy_bytes 1048576
    nbdedup set copies=3:1
    wait_for 60 is_figure copy_bytes 3145728
    nbdedup set copies=1
    wait_for 60 is_figure copy_bytes 0
    nbdedup set copies=2:1
    wait_for 60 is_figure copy_bytes 1572864
    stop
    nbdedup set copies=1
    wait_for 30 is_figure copy_bytes 0
    assert_eq "$(pool_stat stored_bytes)" 1572864
    nbdedup check
}

@test "copies is 1, or N:R" {
    make_pool
    assert_eq "$(nbdedup get copies)" 1
    for value in 1 1:1 2:1 3:281474976710655; do
        nbdedup set "copies=$value"
        assert_eq "$(nbdedup get copies)" "$value"
    done
    for value in 0 2 4:1 0:1 2:0 2: :2 2:x 2:-1 2:1x '2: 1' 2:281474976710656 \
                 '' on 22:1; do
        misused "copies" set "copies=$value"
    done
    assert_eq "$(nbdedup get copies)" 3:281474976710655
}

@test "no copies are made while space is short" {
    make_pool
    nbdedup set max-size=4M
    random_data 3145728 1 >"$BATS_TEST_TMPDIR/a.img"
    random_data 786432 2 >"$BATS_TEST_TMPDIR/b.img"
    nbdedup import a "$BATS_TEST_TMPDIR/a.img" --block-size 16K
    nbdedup set full-warn=70
    nbdedup set copies=2:1
    copier_waits ()
    {
        nbdedup status --json |
            jq -e '.copies | .looking and .made == 0' >/dev/null
    }
    serve "$pool"
    wait_for 10 copier_waits
    # Writes of clients get all the room.
    nbdedup create v 1M --block-size 16K
    nbdcopy --flush "$BATS_TEST_TMPDIR/b.img" "$(uri_of v)"
    assert_eq "$(pool_stat copy_bytes)" 0
    # With more room the copies are made.
    nbdedup set max-size=64M
    wait_for 60 is_figure copy_bytes 3932160
    stop
    nbdedup check
}

@test "copies survive kill -9, and none is half made" {
    make_pool
    nbdedup set copies=2:1
    for i in 1 2 3; do
        random_data 8388608 "$i" >"$BATS_TEST_TMPDIR/a.img"
        serve "$pool" commit-interval=1
        nbdedup create "v$i" 8M --block-size 4K
        nbdcopy --flush "$BATS_TEST_TMPDIR/a.img" "$(uri_of "v$i")"
        sleep 0.3
        crash
        nbdedup check
        nbdedup export "v$i" - | cmp - "$BATS_TEST_TMPDIR/a.img"
    done
    copy_all
    assert_eq "$(pool_stat copy_bytes)" $((3 * 8 * 1048576))
    nbdedup check
}

@test "a damaged page of the table of copies stops nothing, and is repaired" {
    need sqlite3 -version
    local page

    make_pool
    nbdedup set metadata-copy=off
    nbdedup set copies=2:1
    random_data 8M 1 >"$BATS_TEST_TMPDIR/a.img"
    nbdedup import a "$BATS_TEST_TMPDIR/a.img" --block-size 4K
    copy_all
    assert_eq "$(pool_stat copy_bytes)" 8388608
    # The last page: opening the pool reads the first one, for the sum.
    page=$(sqlite3 "file:$pool/pool.db?immutable=1" \
               "SELECT max (pageno) FROM dbstat
                WHERE name = 'copy' AND pagetype = 'leaf'")
    printf '\x5a' | dd of="$pool/pool.db" bs=1 conv=notrunc status=none \
        seek=$(( (page - 1) * 8192 + 4000 ))
    nbdedup export a - | cmp - "$BATS_TEST_TMPDIR/a.img"
    serve "$pool"
    nbdedup destroy a
    # The copies that it named keep their space, and everything else works.
    wait_for 30 is_figure records 0
    grep -q 'space of copies may stay in use' "$server_log"
    nbdedup create b 1M --block-size 4K
    qemu-io -f raw -c "write -P 7 0 1M" -c flush "$(uri_of b)" >/dev/null
    stop
    nbdedup recover
    nbdedup check --repair
    nbdedup check
    # The hash index has one first row, and each entry once.
    assert_eq "$(pool_stat ddt.entries)" "$(pool_stat records)"
    serve "$pool"
    wait_for 60 is_figure copy_bytes 512
    qemu-io -r -f raw -c "read -P 7 0 1M" "$(uri_of b)" >/dev/null
}

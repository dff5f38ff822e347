#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# What scrub repairs: from duplicates, and from images that the user names.

load ../rigs/helpers

# mixed_data MIB [SEED]: blocks that compress, and blocks that do not.
mixed_data ()
{
    python3 -c 'import random, sys
r = random.Random(int(sys.argv[2]))
for i in range(int(sys.argv[1]) * 64):
    n = r.choice((16384, 9000, 3000, 200))
    sys.stdout.buffer.write(r.randbytes(n) + bytes([1 + i % 250]) * (16384 - n))
' "$1" "${2:-1}"
}

# spoil: change a byte that is not zero in each 50,000 bytes of records.
spoil ()
{
    python3 -c 'import sys
with open(sys.argv[1], "r+b") as f:
    data = f.read()
    for i in range(70001, len(data), 50000):
        if data[i] != 0:
            f.seek(i)
            f.write(bytes([data[i] ^ 0x55]))
' "$pool/records"
}

# contents: a checksum of records, without the header, which each open changes
contents ()
{
    tail -c +65537 "$pool/records" | sha256sum
}

# figures: damaged and rewritten records of the scrub whose --json output is in
# $output
figures ()
{
    jq -c '[.errors - .summary_errors - .lost_blocks - .metadata_errors,
            .repaired_records]' <<<"$output"
}

# is_repaired FROM...: spoil records, which scrub alone cannot repair.  With
# these images it does, and all is as before.
is_repaired ()
{
    local bad from=() file before

    for file; do
        from+=(--from "$file")
    done
    spoil
    before=$(jq -c . < <(nbdedup list --json))
    run -1 --separate-stderr nbdedup scrub --json
    bad=$(jq '.errors - .summary_errors' <<<"$output")
    assert_num "$bad >= 10"
    run -0 --separate-stderr nbdedup scrub "${from[@]}" --json
    assert_eq "$(figures)" "[0,$bad]"
    assert_eq "$(jq -c .damaged <<<"$output")" '[]'
    assert_eq "$(nbdedup status --json |
                 jq -c '[.damage.damaged_records, .scrub.repaired_records]')" \
              "[0,$bad]"
    assert_eq "$(jq -c . < <(nbdedup list --json))" "$before"
    run -0 --separate-stderr nbdedup scrub --json
    assert_eq "$(figures)" "[0,0]"
    nbdedup check
}

@test "scrub --from writes damaged records again" {
    need jq --version
    for how in none lz4 zstd zstd-9; do
        rm -rf "$BATS_TEST_TMPDIR/pool"
        make_pool
        nbdedup set "compress=$how"
        mixed_data 4 1 >"$BATS_TEST_TMPDIR/img"
        nbdedup import v "$BATS_TEST_TMPDIR/img" --block-size 16K
        nbdedup snapshot v@s
        nbdedup clone v@s w
        is_repaired "$BATS_TEST_TMPDIR/img"
        for name in v v@s w; do
            nbdedup export "$name" - | cmp - "$BATS_TEST_TMPDIR/img"
        done
    done
}

@test "scrub --from works through a server, beside its clients" {
    need jq --version
    make_pool
    mixed_data 4 1 >"$BATS_TEST_TMPDIR/img"
    nbdedup import v "$BATS_TEST_TMPDIR/img" --block-size 64K
    serve "$pool" record-cache=0
    is_repaired "$BATS_TEST_TMPDIR/img"
    nbdcopy "$(uri_of v)" - | cmp - "$BATS_TEST_TMPDIR/img"
}

@test "scrub --from takes several images, in QEMU's formats, and ends of blocks" {
    need jq --version
    need qemu-img --version
    make_pool
    mixed_data 2 1 >"$BATS_TEST_TMPDIR/a"
    mixed_data 2 2 >"$BATS_TEST_TMPDIR/b"
    # The last block is incomplete.
    truncate -s 2093056 "$BATS_TEST_TMPDIR/b"
    nbdedup import a "$BATS_TEST_TMPDIR/a" --block-size 128K
    nbdedup import b "$BATS_TEST_TMPDIR/b" --block-size 4K
    qemu-img convert -f raw -O qcow2 -c "$BATS_TEST_TMPDIR/b" \
             "$BATS_TEST_TMPDIR/b.qcow2"
    is_repaired "$BATS_TEST_TMPDIR/a" "$BATS_TEST_TMPDIR/b.qcow2"
    nbdedup export a - | cmp - "$BATS_TEST_TMPDIR/a"
    nbdedup export b - | cmp - "$BATS_TEST_TMPDIR/b"
}

@test "scrub --from takes nothing that is not the content" {
    need jq --version
    make_pool
    damaged
    mixed_data 2 1 >"$BATS_TEST_TMPDIR/img"
    mixed_data 2 2 >"$BATS_TEST_TMPDIR/other"
    nbdedup import v "$BATS_TEST_TMPDIR/img" --block-size 16K
    spoil
    run -1 --separate-stderr nbdedup scrub --json
    before=$(figures)
    files=$(contents)
    run -1 --separate-stderr nbdedup scrub --from "$BATS_TEST_TMPDIR/other" \
        --json
    assert_eq "$(figures)" "$before"
    assert_eq "$(contents)" "$files"
    refused "no-such-file" scrub --from "$BATS_TEST_TMPDIR/no-such-file"
    run -2 nbdedup --read-only scrub --from "$BATS_TEST_TMPDIR/img"
    # scrub does not follow an image's reference to another file.
    need qemu-img --version
    qemu-img create -q -f qcow2 -b "$BATS_TEST_TMPDIR/img" -F raw \
             "$BATS_TEST_TMPDIR/overlay.qcow2"
    refused "" scrub --from "$BATS_TEST_TMPDIR/overlay.qcow2"
    nbdedup scrub --from "$BATS_TEST_TMPDIR/overlay.qcow2" --allow-backing
    nbdedup export v - | cmp - "$BATS_TEST_TMPDIR/img"
}

@test "scrub repairs a record from another one with the same content" {
    need jq --version
    make_pool
    random_data 1M 1 >"$BATS_TEST_TMPDIR/img"
    nbdedup set dedup=off
    nbdedup import v "$BATS_TEST_TMPDIR/img" --block-size 16K
    nbdedup import w "$BATS_TEST_TMPDIR/img" --block-size 16K
    # Damage the first of the two.
    python3 -c 'import sys
image, records = (open(f, "rb").read() for f in sys.argv[1:])
at = records.index(image[:64]) + 5000
with open(sys.argv[2], "r+b") as f:
    f.seek(at)
    f.write(b"damage")' "$BATS_TEST_TMPDIR/img" "$pool/records"
    run -1 nbdedup --read-only scrub
    run -0 nbdedup scrub
    [[ $output == *"1 record was damaged, and was written again"* ]]
    run -1 nbdedup status
    [[ $output == *"found and rewrote 1 damaged record"* ]]
    nbdedup scrub
    nbdedup export v - | cmp - "$BATS_TEST_TMPDIR/img"
}

# progress FILTER...: these are true of the scrub's progress.
progress ()
{
    local filter

    nbdedup status --json >"$BATS_TEST_TMPDIR/status" || :
    for filter; do
        jq -e ".scrub_progress | $filter" "$BATS_TEST_TMPDIR/status" \
           >/dev/null || return
    done
}

# begin_scrub: start it in the background, slowly, and wait until it has read
# the first records.  Sets $scrub.
begin_scrub ()
{
    nbdedup scrub --rate 512K >"$BATS_TEST_TMPDIR/out" \
            2>"$BATS_TEST_TMPDIR/err" 3>&- 4>&- &
    scrub=$!
    wait_for 60 progress '.running and .records > 10'
}

# spoil_first: damage the first record, which is read first.  Sets $offset, its
# place in the image.
spoil_first ()
{
    offset=$(python3 -c 'import sys
image, records = (open(f, "rb").read() for f in sys.argv[1:])
at, offset = min((records.index(image[i:i + 64]), i)
                 for i in range(0, len(image), 16384))
with open(sys.argv[2], "r+b") as f:
    f.seek(at)
    f.write(b"damage")
print(offset)' "$BATS_TEST_TMPDIR/img" "$pool/records")
}

# spoil_block OFFSET: damage the record of this block of the image.
spoil_block ()
{
    python3 -c 'import sys
image, records = (open(f, "rb").read() for f in sys.argv[2:])
offset = int(sys.argv[1])
with open(sys.argv[3], "r+b") as f:
    f.seek(records.index(image[offset:offset + 64]) + 700)
    f.write(b"damage")' "$1" "$BATS_TEST_TMPDIR/img" "$pool/records"
}

# names: those of all volumes and snapshots.
names ()
{
    nbdedup list --json |
        jq -r '.volumes[] | .name, (.name + "@" + .snapshots[].name)'
}

# expect_affected [NAME...]: scrub tells these, and no others can be read.
expect_affected ()
{
    local name

    run -1 --separate-stderr nbdedup scrub --json
    assert_eq "$(jq -r '.affected[]' <<<"$output" | xargs)" "$*"
    assert_eq "$(jq -r '.damaged[] | .name, .inherited_by[]?' <<<"$output" |
                     sort | xargs)" "$(xargs -n 1 <<<"$*" | sort | xargs)"
    for name in $(names); do
        if [[ " $* " == *" $name "* ]]; then
            run ! nbdedup export "$name" "$BATS_TEST_TMPDIR/out"
        else
            nbdedup export "$name" - >/dev/null
        fi
    done
}

# expect_line TEXT: the first line of scrub's output.
expect_line ()
{
    run -1 --separate-stderr nbdedup scrub
    assert_eq "${lines[0]}" "$1"
}

# overwrite NAME...: write other data where the damage is.
overwrite ()
{
    local name

    for name; do
        qemu-io -f raw -c 'write -q -P 7 96K 16K' -c flush "$(uri_of "$name")"
    done
}

@test "all that inherit damage are named, and none that do not" {
    local damage="16384 bytes at offset 98304 are damaged"

    need qemu-io --version
    make_pool --block-size 16K
    damaged
    random_data 128K 1 >"$BATS_TEST_TMPDIR/img"
    nbdedup import g "$BATS_TEST_TMPDIR/img"
    nbdedup snapshot g@1
    nbdedup clone g@1 a --count 6 >/dev/null
    nbdedup resize --shrink a5 64K
    nbdedup resize a5 128K
    serve "$pool" record-cache=0
    qemu-io -f raw -c 'write -q -z 96K 16K' -c flush "$(uri_of a6)"
    spoil_block 98304
    expect_line "g@1: $damage, inherited by a1 a2 a3 a4 g"
    expect_affected a1 a2 a3 a4 g g@1
    wait_for 20 has_logged "g@1: $damage, inherited by 5 volumes or snapshots"

    # Without the image's own names.
    nbdedup destroy --force g@1
    nbdedup destroy --wait g
    expect_line "a1: $damage, inherited by a2 a3 a4"
    nbdedup snapshot a1@s
    nbdedup clone a1@s deep
    expect_line "a1: $damage, inherited by a1@s a2 a3 a4 deep"
    expect_affected a1 a1@s a2 a3 a4 deep
    overwrite a1 a3
    expect_line "a1@s: $damage, inherited by a2 a4 deep"
    expect_affected a1@s a2 a4 deep
    stop
    expect_affected a1@s a2 a4 deep

    # Many are counted.
    nbdedup clone a1@s many --count 9 >/dev/null
    expect_line "a1@s: $damage, inherited by a2 a4 deep many1 many2 many3 many4 \
many5 and 4 more (--json lists all)"
    assert_eq "$(jq '.affected | length' < <(nbdedup scrub --json))" 13

    # None shows it any more.
    nbdedup destroy --force -r a1@s deep many{1..9}
    serve "$pool" record-cache=0
    overwrite a2 a4
    expect_line "1 damaged block is in no volume or snapshot any more: each that \
inherited it has other data there"
    expect_affected
    nbdedup scrub --from "$BATS_TEST_TMPDIR/img"
}

@test "a scrub that was interrupted goes on where it was stopped" {
    need jq --version
    make_pool
    random_data 8M 1 >"$BATS_TEST_TMPDIR/img"
    nbdedup import v "$BATS_TEST_TMPDIR/img" --block-size 16K
    serve "$pool" record-cache=0
    begin_scrub
    kill -TERM "$scrub"
    expect_failure "$scrub"
    [[ $(<"$BATS_TEST_TMPDIR/err") == *"interrupted; the next scrub continues"* ]]
    progress '.running == false' '.records < 512' '.total == 512'
    begun=$(jq .scrub_progress.begun "$BATS_TEST_TMPDIR/status")
    run -0 nbdedup status
    [[ $output == *"one was stopped: "*" of 512 records, 0 damaged"* ]]
    # It does not read the first ones again, not even after a restart.
    spoil_first
    stop
    serve "$pool" record-cache=0
    run -0 --separate-stderr nbdedup scrub --json
    assert_eq "$(jq -c '[.records, .bytes, .begun]' <<<"$output")" \
              "[512,8388608,$begun]"
    progress '. == null'
    # A complete scrub is not continued.
    run -1 --separate-stderr nbdedup scrub --json
    assert_eq "$(figures)" "[1,0]"
    assert_eq "$(jq .records <<<"$output")" 512
    nbdedup scrub --from "$BATS_TEST_TMPDIR/img"
}

@test "what a scrub found before it was stopped is told at its end" {
    need jq --version
    make_pool
    damaged
    random_data 8M 1 >"$BATS_TEST_TMPDIR/img"
    nbdedup import v "$BATS_TEST_TMPDIR/img" --block-size 16K
    spoil_first
    serve "$pool" commit-interval=1
    begin_scrub
    # The damage of the first record has been stored by now.
    wait_for 60 progress '.records > 100'
    status=0
    nbdedup status >/dev/null || status=$?
    assert_eq "$status" 2
    crash
    wait "$scrub" || :
    progress '.running == false' '.records > 10' '.errors == 1'
    run -1 --separate-stderr nbdedup scrub --json
    assert_eq "$(figures)" "[1,0]"
    assert_eq "$(jq -c '[.records, .damaged[0].offset]' <<<"$output")" "[512,$offset]"
    progress '. == null'
    # It starts from the beginning.
    begin_scrub_offline_and_stop
    run -1 --separate-stderr nbdedup scrub --restart --json
    assert_eq "$(jq -c '[.records, (.damaged | length)]' <<<"$output")" \
              "[512,1]"
}

@test "a read-only scrub reads everything, and writes nothing" {
    need jq --version
    make_pool
    damaged
    random_data 8M 1 >"$BATS_TEST_TMPDIR/img"
    nbdedup import v "$BATS_TEST_TMPDIR/img" --block-size 16K
    serve "$pool"
    begin_scrub
    stop
    expect_failure "$scrub"
    spoil_first
    # Damage a summary, too.
    chunk=$(LC_ALL=C grep -obUa NBDCHUNK "$pool/records" | head -1 |
                cut -d: -f1)
    printf 'damage' | dd of="$pool/records" bs=1 seek=$((chunk + 200)) \
                         conv=notrunc status=none
    files=$(cd "$pool" && sha256sum ./*)
    run -1 --separate-stderr nbdedup --read-only scrub --json
    assert_eq "$(jq -c '[.records, .errors, .repaired_records]' <<<"$output")" \
              "[512,1,0]"
    assert_eq "$(cd "$pool" && sha256sum ./*)" "$files"
}

# The command has the pool open itself.
begin_scrub_offline_and_stop ()
{
    nbdedup scrub --progress --rate 512K 2>"$BATS_TEST_TMPDIR/err" \
            3>&- 4>&- &
    scrub=$!
    wait_for 60 grep -q '[1-9]%' "$BATS_TEST_TMPDIR/err"
    kill -TERM "$scrub"
    expect_failure "$scrub"
}

@test "comparing the copies of pool.db is throttled, too, and can be stopped" {
    make_pool
    # There is only metadata, which would take 20 s.
    run -124 timeout -k 10 2 nbdedup scrub --rate 16K
    nbdedup scrub
}

@test "a server that ends does not wait for a scrub" {
    need jq --version
    make_pool
    random_data 32M 1 >"$BATS_TEST_TMPDIR/img"
    nbdedup import v "$BATS_TEST_TMPDIR/img" --block-size 16K
    serve "$pool"
    # It takes a minute, and other commands run meanwhile.
    begin_scrub
    nbdedup snapshot v@a
    stop
    expect_failure "$scrub"
    progress '.running == false' '.records > 10'
}

@test "scrub-rate is a property, and wrong ones are refused" {
    make_pool
    assert_eq "$(nbdedup get scrub-rate)" 104857600
    nbdedup set scrub-rate=none
    assert_eq "$(nbdedup get scrub-rate)" none
    nbdedup set scrub-rate=1M
    assert_eq "$(nbdedup get scrub-rate)" 1048576
    for value in 0 -1 fast ''; do
        run -2 nbdedup set "scrub-rate=$value"
    done
    run -2 nbdedup scrub --rate 0
    run -2 nbdedup scrub --rate fast
    nbdedup scrub --rate none
}

# has_logged TEXT: the server's log has it.
has_logged ()
{
    grep -q "$1" "$server_log"
}

# has_scrubbed FILTER: it is true of the last complete scrub.
has_scrubbed ()
{
    nbdedup status --json >"$BATS_TEST_TMPDIR/status" || :
    jq -e ".scrub != null and (.scrub | $1)" "$BATS_TEST_TMPDIR/status" \
       >/dev/null
}

@test "a server scrubs as scrub-interval says, and logs it" {
    need jq --version
    make_pool
    random_data 2M 1 >"$BATS_TEST_TMPDIR/img"
    nbdedup import v "$BATS_TEST_TMPDIR/img" --block-size 16K
    assert_eq "$(nbdedup get scrub-interval)" off
    serve "$pool" record-cache=0
    nbdedup set scrub-interval=5s
    wait_for 60 has_logged "a scheduled scrub begins (scrub-interval)"
    wait_for 60 has_scrubbed '.records == 128 and .errors == 0'
    wait_for 60 has_logged "128 records verified, 0 errors, 0 records and 0"
    # It finds the damage, and names the place.
    spoil_first
    wait_for 60 has_scrubbed '.errors == 1'
    wait_for 60 has_logged "v: 16384 bytes at offset $offset are damaged"
    wait_for 60 has_logged "128 records verified, 1 errors"
    run -2 nbdedup status
    nbdedup set scrub-interval=off
    nbdedup scrub --from "$BATS_TEST_TMPDIR/img"
    run -1 nbdedup status
    nbdedup scrub
    run -0 nbdedup status
}

# The server's own scrub, a slow one, has begun.
scheduled_scrub_begins ()
{
    make_pool
    random_data 8M 1 >"$BATS_TEST_TMPDIR/img"
    nbdedup import v "$BATS_TEST_TMPDIR/img" --block-size 16K
    nbdedup set scrub-rate=256K
    nbdedup set scrub-interval=1m
    serve "$pool" record-cache=0
    wait_for 60 progress '.running and .records > 40'
}

@test "a scrub on schedule gives way to a user's, which goes on there" {
    need jq --version
    scheduled_scrub_begins
    begun=$(jq .scrub_progress.begun "$BATS_TEST_TMPDIR/status")
    spoil_first
    run -0 --separate-stderr nbdedup scrub --rate none --json
    assert_eq "$(jq -c '[.records, .begun]' <<<"$output")" "[512,$begun]"
    nbdedup scrub --from "$BATS_TEST_TMPDIR/img" --rate none
}

@test "a scrub on schedule goes on with the next server, and can be turned off" {
    need jq --version
    scheduled_scrub_begins
    nbdedup set scrub-interval=off
    wait_for 60 progress '.running == false'
    nbdedup set scrub-interval=1m
    stop
    spoil_first
    nbdedup set scrub-rate=none
    serve "$pool" record-cache=0
    wait_for 60 has_scrubbed '.records == 512 and .errors == 0'
    has_logged "a scheduled scrub continues"
    nbdedup scrub --from "$BATS_TEST_TMPDIR/img"
}

@test "scrub-interval is a property, and wrong ones are refused" {
    make_pool
    for value in 90s 5m 12h 30d 52w off; do
        nbdedup set "scrub-interval=$value"
        assert_eq "$(nbdedup get scrub-interval)" "$value"
    done
    for value in on 0 0d 30 d 30x 30dd -1d 11000d 99999999999999999999s ''; do
        run -2 --separate-stderr nbdedup set "scrub-interval=$value"
        [[ $stderr == "nbdedup: set: scrub-interval"* ]] ||
            fail "scrub-interval=$value: $stderr"
    done
    assert_eq "$(nbdedup get scrub-interval)" off
}

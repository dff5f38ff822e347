#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154,SC2030,SC2031,SC2034
#
# DESCRIPTION
# Files that are not a pool, and damaged pools: the result is a one-line error
# that says so, or service in which every read is right or fails with EIO.
# Never a crash, a hang, wrong data, zeroes in place of data, or a pool that a
# failed opening has changed.
#
# STRATEGY
# 1. make_sample: a small pool, either cleanly closed or killed with work in
#    its journal, and images of its volumes.
# 2. Damage a copy of one of its files.
# 3. try_pool: open it with the server and with the command, and judge the
#    result.  must_refuse, where only a refusal is right.

load ../rigs/helpers

#----------------------------------------------------------------------

# one_line FILE WHO: the file has one line, from WHO, and no sign of a crash.
one_line ()
{
    # Lines about what it did before it gave up are allowed.
    grep -Ev 'ma(de|kes) (it|them) again|the damaged pages could not be removed|^nbdkit: dedup: ' "$1" \
         >"$1.errors" || :
    [ "$(wc -l <"$1.errors")" = 1 ] || fail "not one line:" "$(cat "$1")"
    grep -q "$2" "$1.errors" || fail "no message of $2:" "$(cat "$1")"
}

# refused_by_command DIR: a command that reads, and one that writes, refuse it.
refused_by_command ()
{
    local status

    for command in "list" "create x 1M"; do
        status=0
        # shellcheck disable=SC2086
        timeout 40 nbdedup -p "$1" $command \
            >"$BATS_TEST_TMPDIR/out" 2>"$BATS_TEST_TMPDIR/err" || status=$?
        assert_eq "$status" 1 "status of $command ($(cat "$BATS_TEST_TMPDIR/err"))"
        one_line "$BATS_TEST_TMPDIR/err" "^nbdedup: "
        [ ! -s "$BATS_TEST_TMPDIR/out" ] || fail "$command printed something"
    done
}

# start DIR [KEY=VALUE]: start a server in the background.  Returns 0 if it
# serves.  nbdkit listens before the plugin has opened the pool, so wait for an
# answer to a client, or for the server's end.
start ()
{
    local left=400

    rm -f "$BATS_TEST_TMPDIR/try.sock" "$BATS_TEST_TMPDIR/try.pid"
    try_sock="$BATS_TEST_TMPDIR/try.sock"
    nbdkit -f -P "$BATS_TEST_TMPDIR/try.pid" -U "$try_sock" "$plugin" \
           "pool=$1" "${@:2}" >"$BATS_TEST_TMPDIR/log" 2>&1 3>&- 4>&- &
    server=$!
    while kill -0 "$server" 2>/dev/null; do
        # A failure to open one of its volumes is an answer, too.
        if [ -S "$try_sock" ] &&
           { timeout 20 nbdinfo --list "nbd+unix:///?socket=$try_sock" \
                     >/dev/null 2>"$BATS_TEST_TMPDIR/info" ||
             grep -q 'server replied with error' "$BATS_TEST_TMPDIR/info"; }
        then
            return 0
        fi
        [ "$((left--))" -gt 0 ] || {
            kill_server
            wait "$server" || :
            fail "the server neither serves nor ends"
            exit 1
        }
        sleep 0.05
    done
    server_status=0
    wait "$server" || server_status=$?
    return 1
}

# "nbdkit" may be a function: $server is then a shell, and nbdkit its child.
kill_server ()
{
    pkill -9 -P "$server" || :
    kill -9 "$server" || :
}

end ()
{
    kill "$(cat "$BATS_TEST_TMPDIR/try.pid")" 2>/dev/null || :
    server_status=0
    wait_for 30 server_is_gone "$server" || {
        kill_server
        fail "the server does not end"
    }
    wait "$server" || server_status=$?
    [ "$server_status" -lt 2 ] ||
        fail "the server ended with status $server_status:" \
             "$(cat "$BATS_TEST_TMPDIR/log")"
}

refused_by_server ()
{
    ! start "$1" || { end; fail "the server serves this: $1"; }
    assert_eq "$server_status" 1 \
              "status of the server ($(cat "$BATS_TEST_TMPDIR/log"))"
    one_line "$BATS_TEST_TMPDIR/log" "error: "
}

# fingerprint DIR: the checksums of all files, except those that only name the
# process at work.  An empty WAL means the same as none.
fingerprint ()
{
    (cd "$1" && find . -type f ! -name lock ! -empty -exec sha256sum {} + | sort)
}

# all_files DIR: the same with lock, an empty WAL, and the modification times.
all_files ()
{
    (cd "$1" && find . -type f -exec stat -c '%n %s %y' {} + \
                     -exec sha256sum {} + | sort)
}

# must_refuse DIR [TEXT]: server and command refuse it, with TEXT in the line,
# and change nothing.
must_refuse ()
{
    local before after

    before=$(fingerprint "$1")
    refused_by_server "$1"
    [ -z "${2:-}" ] || grep -q "$2" "$BATS_TEST_TMPDIR/log" ||
        fail "no '$2' in:" "$(cat "$BATS_TEST_TMPDIR/log")"
    refused_by_command "$1"
    [ -z "${2:-}" ] || grep -q "$2" "$BATS_TEST_TMPDIR/err" ||
        fail "no '$2' in:" "$(cat "$BATS_TEST_TMPDIR/err")"
    after=$(fingerprint "$1")
    assert_eq "$after" "$before" "files after refusal"
}

# command_may_fail ARG...: the status must be 0, or 1 with one line; sets
# command_status.
command_may_fail ()
{
    command_status=0
    timeout 60 nbdedup "$@" >"$BATS_TEST_TMPDIR/out" \
        2>"$BATS_TEST_TMPDIR/err" || command_status=$?
    case $command_status in
        0) ;;
        1) one_line "$BATS_TEST_TMPDIR/err" "^nbdedup: " ;;
        *) fail "nbdedup $*: status $command_status:" \
                "$(cat "$BATS_TEST_TMPDIR/err")" ;;
    esac
}

# compare_reads: reads from the server are right, or EIO; sets outcome.
compare_reads ()
{
    local name status

    for name in v w; do
        status=0
        "$test_programs/rigs/read-compare" "$try_sock" $name \
            "$sample/$name.img" >"$BATS_TEST_TMPDIR/read" 2>&1 || status=$?
        case $status in
            0) grep -q ' 0 EIO' "$BATS_TEST_TMPDIR/read" || outcome=noticed ;;
            3) outcome=noticed ;;
            1) grep -q "open: volume $name cannot be read: its map is lost" \
                    "$BATS_TEST_TMPDIR/log" ||
                   fail "opening $name:" "$(cat "$BATS_TEST_TMPDIR/read")"
               outcome=noticed ;;
            *) cat "$BATS_TEST_TMPDIR/log" >&2
               fail "reading $name:" "$(head "$BATS_TEST_TMPDIR/read")" ;;
        esac
    done
}

# try_readonly DIR: the same with a read-only server.  No file may change,
# whatever the outcome.
try_readonly ()
{
    local before

    before=$(all_files "$1")
    outcome=served
    if start "$1" read-only=on; then
        compare_reads
        end
    else
        outcome=refused
        one_line "$BATS_TEST_TMPDIR/log" "error: "
    fi
    assert_eq "$(all_files "$1")" "$before" "files, opened read-only"
    readonly_outcome=$outcome
}

# try_pool DIR: sets outcome: refused, served (everything is right and no damage
# was found), noticed (by EIO, check or scrub).
try_pool ()
{
    local before

    try_readonly "$1"
    before=$(fingerprint "$1")
    if ! start "$1"; then
        assert_eq "$server_status" 1 \
                  "status of the server ($(cat "$BATS_TEST_TMPDIR/log"))"
        one_line "$BATS_TEST_TMPDIR/log" "error: "
        assert_eq "$(fingerprint "$1")" "$before" "files after refusal ($(cat "$BATS_TEST_TMPDIR/log"))"
        command_may_fail -p "$1" list
        assert_eq "$command_status" 1 "status of list"
        outcome=refused
        return
    fi
    outcome=served
    compare_reads
    for command in check scrub; do
        command_may_fail -p "$1" $command
        [ "$command_status" = 0 ] || outcome=noticed
    done
    # A write may succeed or be refused.
    qemu-io -f raw -c 'write -P 1 0 64K' -c flush \
            "nbd+unix:///last?socket=$try_sock" >/dev/null 2>&1 || :
    end
}

# make_sample DIR [crash]: make pool DIR/pool, and the contents of v and w in
# DIR/v.img and DIR/w.img.  A flush was answered after the last batch of a
# killed pool's journal, which has their last writes.
make_sample ()
{
    sample="$1"
    mkdir -p "$sample"
    nbdedup init "$sample/pool"
    # A copy would repair most damage to pool.db: test-metadata-copy.c.
    nbdedup -p "$sample/pool" set metadata-copy="${metadata_copy:-off}"
    nbdedup -p "$sample/pool" create v 2M --block-size 4K
    nbdedup -p "$sample/pool" create w 3M --block-size 64K --compress zstd
    nbdedup -p "$sample/pool" create last 1M --block-size 4K
    text_data 600K 1 >"$sample/text"
    random_data 300K 2 >"$sample/noise"
    serve "$sample/pool" commit-interval=1000
    for name in v w; do
        qemu-io -f raw -c "write -s $sample/text 0 600K" \
                -c "write -s $sample/noise 1M 300K" -c flush \
                "$(uri_of $name)" >/dev/null
    done
    nbdedup -p "$sample/pool" set compress=none last
    if [ "${2:-}" = crash ]; then
        for name in v w; do
            qemu-io -f raw -c "write -s $sample/noise 2k 200K" -c flush \
                    -c "write -s $sample/text 1500K 200K" -c flush \
                    -c "write -z 1200k 32k" -c flush \
                    "$(uri_of $name)" >/dev/null
        done
    fi
    for name in v w; do
        nbdcopy "$(uri_of $name)" "$sample/$name.img"
    done
    if [ "${2:-}" = crash ]; then
        crash
    else
        stop
    fi
}

# copy: make a new copy of the sample, in $copy.
copy ()
{
    copy="$BATS_TEST_TMPDIR/copy"
    rm -rf "$copy"
    cp -a "$sample/pool" "$copy"
}

# flip FILE SEED [zero]: flip one bit, preferably in a byte that is not zero;
# zero: fill its sector with zeroes.
flip ()
{
    local size offset byte

    size=$(stat -c %s "$1")
    RANDOM=$2
    for _ in 1 2 3 4 5 6; do
        offset=$(((RANDOM * 32768 * 32768 + RANDOM * 32768 + RANDOM) % size))
        byte=$(od -An -tu1 -j "$offset" -N1 "$1")
        [ "$byte" -eq 0 ] || break
    done
    if [ "${3:-}" = zero ]; then
        head -c 512 /dev/zero |
            dd of="$1" bs=512 seek=$((offset / 512)) conv=notrunc status=none
        flipped="sector of byte $offset of $(basename "$1")"
        return
    fi
    byte=$((byte ^ (1 << (RANDOM % 8))))
    # shellcheck disable=SC2059
    printf "\\x$(printf %02x "$byte")" |
        dd of="$1" bs=1 seek="$offset" conv=notrunc status=none
    flipped="bit of byte $offset of $(basename "$1")"
}

#----------------------------------------------------------------------

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

# spoil: damage whole files of the sample in all ways.  With SPOIL=all they are
# cut at more places.
spoil ()
{
    local file size cut cuts

    for file in pool.db journal records pool.db-wal; do
        [ -s "$sample/pool/$file" ] || continue
        size=$(stat -c %s "$sample/pool/$file")
        [ $file != pool.db ] || size=$(db_bytes "$sample/pool")
        cuts="$((size / 2)) $((size - 512))"
        [ -z "${SPOIL-}" ] || cuts+=" $((size - 1)) 4096 100"
        for cut in $cuts; do
            copy
            truncate -s "$cut" "$copy/$file"
            try_pool "$copy"
            echo "$file cut to $cut of $size: $outcome"
        done
        copy
        truncate -s +10000 "$copy/$file"
        try_pool "$copy"
        copy
        dd if=/dev/zero of="$copy/$file" bs=$((size / 4 + 1)) seek=1 count=1 \
           conv=notrunc status=none
        try_pool "$copy"
        echo "$file second quarter zeroed: $outcome"
        copy
        head -c 4096 /dev/zero |
            dd of="$copy/$file" conv=notrunc status=none
        try_pool "$copy"
        echo "$file first 4 KiB zeroed: $outcome"
        copy
        head -c "$size" /dev/zero >"$copy/$file"
        try_pool "$copy"
        echo "$file all zeroed: $outcome"
        [ "$outcome" != served ] || [ "$file" = pool.db-wal ] ||
            fail "$file full of zeroes: nobody noticed"
        copy
        random_data "$size" 5 >"$copy/$file"
        try_pool "$copy"
        echo "$file all noise: $outcome"
        [ "$outcome" != served ] || [ "$file" = pool.db-wal ] ||
            fail "$file full of noise: nobody noticed"
        copy
        rm "$copy/$file"
        try_pool "$copy"
        echo "$file removed: $outcome"
    done
}

@test "truncated, zeroed and garbled files of a closed pool" {
    damaged
    make_sample "$BATS_TEST_TMPDIR/sample"
    spoil
}

@test "truncated, zeroed and garbled files of a killed pool" {
    damaged
    make_sample "$BATS_TEST_TMPDIR/sample" crash
    spoil
}

# flips SEED COUNT: flip bits in all files.
flips ()
{
    local i files=() noticed=0

    for file in pool.db journal records pool.db-wal; do
        [ ! -s "$sample/pool/$file" ] || files+=("$file")
    done
    for i in $(seq 1 "$2"); do
        copy
        flip "$copy/${files[i % ${#files[@]}]}" $(($1 + i))
        try_pool "$copy" || fail "SEED=$1 flip $i: $flipped"
        echo "$flipped: $outcome; read-only: $readonly_outcome"
        [ "$outcome" = served ] || noticed=$((noticed + 1))
    done
    echo "$noticed of $2 noticed"
    # Of a few it may be none.
    [ "$2" -lt 30 ] || [ "$noticed" -gt 0 ] || fail "no flip was ever noticed"
}

@test "damage to one copy of pool.db: all is served" {
    damaged
    metadata_copy=on
    for state in "" crash; do
        make_sample "$BATS_TEST_TMPDIR/sample$state" $state
        for file in pool.db pool.db-wal pool.db.copy pool.db.copy-wal; do
            [ -s "$sample/pool/$file" ] || continue
            for damage in "rm -f" "truncate -s 5000" "flip"; do
                copy
                if [ "$damage" = flip ]; then
                    flip "$copy/$file" 7
                else
                    $damage "$copy/$file"
                fi
                try_pool "$copy"
                assert_eq "$outcome" served "$damage $file"
                cmp -n "$(db_bytes "$copy")" "$copy/pool.db" \
                    "$copy/pool.db.copy"
            done
        done
    done
}

@test "single flipped bits anywhere in a closed pool" {
    damaged
    make_sample "$BATS_TEST_TMPDIR/sample"
    SEED=${SEED:-$RANDOM}
    echo "SEED=$SEED"
    flips "$SEED" "${FLIPS:-6}"
}

@test "single flipped bits anywhere in a killed pool" {
    damaged
    make_sample "$BATS_TEST_TMPDIR/sample" crash
    SEED=${SEED:-$RANDOM}
    echo "SEED=$SEED"
    flips "$SEED" "${FLIPS:-6}"
}

@test "a zeroed sector anywhere in the records or journal of a killed pool" {
    local i files=(records journal)

    damaged
    make_sample "$BATS_TEST_TMPDIR/sample" crash
    SEED=${SEED:-$RANDOM}
    echo "SEED=$SEED"
    for i in $(seq 1 "${ROUNDS:-6}"); do
        copy
        flip "$copy/${files[i % 2]}" $((SEED + i)) zero
        try_pool "$copy" || fail "SEED=$SEED round $i: $flipped"
        echo "$flipped: $outcome"
    done
}

@test "read errors while a killed pool is opened lose nothing" {
    local file nth

    make_sample "$BATS_TEST_TMPDIR/sample" crash
    for file in records journal; do
        for nth in 1 2 3 4 6 9; do
            copy
            FAULT_FILE=$file FAULT_CALL=read FAULT_NTH=$nth FAULT_COUNT=3 \
                LD_PRELOAD="${sanitizer_preload:+$sanitizer_preload:}$test_programs/rigs/.libs/faults.so" \
                command nbdedup -p "$copy" list >"$BATS_TEST_TMPDIR/out" 2>&1 ||
                one_line "$BATS_TEST_TMPDIR/out" "^nbdedup: "
            try_pool "$copy" || fail "$file $nth"
            assert_eq "$outcome" served "$file $nth: $(cat "$BATS_TEST_TMPDIR/out")"
        done
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
    grep "recovered after a crash: 1 batches, 32 records, 32 blocks" \
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

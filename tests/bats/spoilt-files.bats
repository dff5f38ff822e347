#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154,SC2030,SC2031,SC2034
#
# Damage of all kinds to each file of a pool that is closed or was killed, and
# bits, sectors and reads at random: see badinput.bash.

load ../rigs/helpers
load badinput

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
        # In the root of table record: the tables that are made again are so
        # far behind this end that SQLite does not copy them from the WAL.
        [ $file != pool.db ] || cuts+=" $((12 * 8192 + 4096))"
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
            fail "$file full of zeroes was not noticed"
        copy
        random_data "$size" 5 >"$copy/$file"
        try_pool "$copy"
        echo "$file all noise: $outcome"
        [ "$outcome" != served ] || [ "$file" = pool.db-wal ] ||
            fail "$file full of noise was not noticed"
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

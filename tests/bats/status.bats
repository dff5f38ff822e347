#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154,SC1011
#
# "nbdedup status", and the log's warnings before a pool is full.  (Full and
# read-only pools: fault.bats and readonly.bats.)

load ../rigs/helpers

# status EXIT FILTER...: it has this exit status, and the filters are true.
status ()
{
    local expected=$1 filter

    shift
    run "-$expected" --separate-stderr nbdedup status --json
    for filter; do
        jq -e "$filter" <<<"$output" >/dev/null ||
            fail "not true: $filter" "$output"
    done
}

# logged TEXT NUMBER: the server's log has this number of lines with TEXT.  It
# does not wait for its log, so these may come a moment later.
logged ()
{
    wait_for 20 has_lines "$1" "$2"
}

has_lines () { [ "$(grep -c "$1" "$server_log")" = "$2" ]; }

# put_at OFFSET: write stdin into records.
put_at ()
{
    dd of="$pool/records" bs=1 seek="$1" conv=notrunc status=none
}

# damage_page NUMBER [.copy]: damage a page of pool.db, while it is closed.
damage_page ()
{
    printf 'damaged!' | dd of="$pool/pool.db${2:-}" bs=1 conv=notrunc \
                           status=none seek=$((($1 - 1) * 8192 + 8000))
}

@test "status of a closed pool changes nothing" {
    need jq --version
    make_pool
    random_data 4M >"$BATS_TEST_TMPDIR/img"
    nbdedup import v "$BATS_TEST_TMPDIR/img"
    files=$(cd "$pool" && stat -c '%n %s %.9Y %.9Z' . ./* && sha256sum ./*)
    status 0 '.state == "ok"' '.problems == []' '.open == null' \
           '.recovery == null' '.scrub == null' '.metadata_copy == null' \
           '.space.full == false' '.space.full_warn == 90' \
           '.space.max_size == null' '.space.used_bytes >= 4194304' \
           '.space.writable_min_bytes > 0' \
           '.space.writable_bytes >= .space.writable_min_bytes' \
           '.damage == {"stopped": false, "lost_blocks": 0,
                        "damaged_records": 0, "damaged_segments": 0}'
    assert_eq "$(jq -r .pool <<<"$output")" "$(realpath "$pool")"
    run -0 nbdedup status
    [[ ${lines[0]} == *": ok" ]]
    [[ $output =~ $'\n'open\ +no$'\n' ]]
    [[ $output =~ $'\n'scrub\ +never ]]
    assert_num "$(wc -l <<<"$output") <= 24"
    assert_eq "$(cd "$pool" && stat -c '%n %s %.9Y %.9Z' . ./* &&
                     sha256sum ./*)" "$files" "the pool's files"
}

@test "a pool whose path is not UTF-8 has all that other pools have" {
    local valid pid

    need jq --version
    pool=$BATS_TEST_TMPDIR/$'gr\xc3\xb6\xc3\x9fe-\xff'
    valid=$(realpath "$BATS_TEST_TMPDIR")/$'gr\xc3\xb6\xc3\x9fe-\xef\xbf\xbd'
    nbdedup init "$pool"
    export NBDEDUP_POOL=$pool
    nbdedup create v 1M
    status 0 '.state == "ok"'
    assert_eq "$(jq -r .pool <<<"$output")" "$valid"
    run -0 nbdedup stat --prometheus

    # An import has it.
    mkfifo "$BATS_TEST_TMPDIR/fifo"
    nbdedup import w - <"$BATS_TEST_TMPDIR/fifo" 3>&- 4>&- &
    pid=$!
    exec 5>"$BATS_TEST_TMPDIR/fifo"
    random_data 20M >&5
    status 0 '.state == "busy"'
    assert_eq "$(jq -r .pool <<<"$output")" "$valid"
    exec 5>&-
    wait "$pid"

    # A server has it.
    serve "$pool"
    status 0 '.open.by == "server"' '.metadata_copy.state == "current"'
    assert_eq "$(jq -r .pool <<<"$output")" "$valid"
    run -0 nbdedup top --once --json --interval 0.1
    assert_eq "$(jq -r .path <<<"$output")" "$valid"
    stop

    # A message with the path.
    mkdir "$BATS_TEST_TMPDIR/saved"
    mv "$pool"/pool.db* "$BATS_TEST_TMPDIR/saved"
    run -1 --separate-stderr nbdedup recover --json
    [[ $(jq -r .missing <<<"$output") == "$valid/pool.db: is missing"* ]]
    mv "$BATS_TEST_TMPDIR"/saved/* "$pool"
}

@test "status of a served pool names the server, its scrub and its recovery" {
    need jq --version
    make_pool
    nbdedup create v 8M
    serve "$pool"
    qemu-io -f raw -c 'write -P 1 0 1M' -c flush "$uri" >/dev/null
    status 0 '.open.by == "server"' ".open.pid == $server_pid" \
           '.open.read_only == false' '.scrub == null' \
           '.metadata_copy.state == "current"' \
           '.metadata_copy.pages_taken == 0'
    nbdedup scrub
    status 0 '.scrub.errors == 0' '.scrub.records == 1' \
           "$(date +%s) - .scrub.time < 600"
    qemu-io -f raw -c 'write -P 2 0 1M' -c flush "$uri" >/dev/null
    crash
    # No recovery has run yet.
    status 0 '.open == null' '.recovery == null'
    serve "$pool"
    status 0 '.recovery.blocks > 0' '.recovery.dropped_blocks == 0'
    run -0 nbdedup status
    [[ $output =~ $'\n'open\ +by\ the\ server\ .*\ \(PID\ $server_pid\) ]]
    [[ $output =~ $'\n'recovery\ +20.*batches ]]
}

# hold: run a command that has the pool open until its standard input ends.
hold ()
{
    mkfifo "$BATS_TEST_TMPDIR/fifo"
    nbdedup import held - <"$BATS_TEST_TMPDIR/fifo" 2>/dev/null 3>&- 4>&- &
    holder_job=$!
    exec 7>"$BATS_TEST_TMPDIR/fifo"
    # It reads the first bytes before it opens the pool.
    head -c 1M /dev/zero >&7
    wait_for 30 grep -q "^command [0-9]* nbdedup import" "$pool/lock"
    holder=$(cut -d' ' -f2 "$pool/lock")
}

release ()
{
    exec 7>&-
    wait "$holder_job"
}

@test "status of a pool that a command has says which, and what is free" {
    need jq --version
    make_pool
    hold # until "release": the answers do not wait for it
    status 0 '.state == "busy"' '.problems == []' '.open.by == "command"' \
           '.open.who == "nbdedup import"' ".open.pid == $holder" \
           '.open.read_only == false' \
           "$(date +%s) - .open.since | . >= 0 and . < 60" \
           '.space.free_bytes > 0' '.space.metadata_free_bytes > 0' \
           '.space.metadata_bytes > 0' '.space.file_bytes >= 0' \
           '[.space.used_bytes, .space.writable_bytes, .space.full, .damage,
             .recovery, .scrub, .scrub_progress, .copies, .metadata_copy] |
            all (. == null)'
    assert_eq "$(jq -r .pool <<<"$output")" "$(realpath "$pool")"
    run -0 nbdedup --read-only status
    [[ ${lines[0]} == "$(realpath "$pool"): busy" ]]
    [[ $output == *"by the command nbdedup import (PID $holder)"* ]]
    [[ $output =~ $'\n'free\ +[0-9.]+.*\ for\ records ]]
    # It has run for a day.
    touch -d '25 hours ago' "$pool/lock"
    status 1 '.state == "warning"' '.problems | length == 1' \
           '.problems[0].text | contains ("nbdedup import")' '.damage == null'
    run -1 nbdedup status
    [[ $output == *"warning: nbdedup import (PID $holder) has had the pool open for 25 hours"* ]]
    release
    status 0 '.state == "ok"' '.open == null'
}

# is_opening FILTER...: a server is opening the pool, and the filters are true.
is_opening ()
{
    local filter

    nbdedup status --json >"$BATS_TEST_TMPDIR/opening" || return
    for filter in '.state == "busy"' "$@"; do
        jq -e "$filter" <"$BATS_TEST_TMPDIR/opening" >/dev/null || return
    done
}

@test "status of a pool that a server recovers says how far it is" {
    local i

    need jq --version
    need qemu-io --version
    make_pool
    nbdedup create v 8M
    serve "$pool"
    for i in 1 2 3 4 5; do
        qemu-io -f raw -c "write -P $i ${i}M 64k" -c flush "$uri" >/dev/null
    done
    crash
    # Until the test removes a file, each write to pool.db's WAL takes longer
    # than "status" waits: first those that open it, then the recovery's fold.
    export FAULT_FILE=pool.db-wal FAULT_CALL=write FAULT_MS=7000
    export FAULT_COUNT=1000 FAULT_ARM="$BATS_TEST_TMPDIR/arm"
    : >"$FAULT_ARM"
    sanitizer_preload="${sanitizer_preload:+$sanitizer_preload:}$test_programs/rigs/.libs/faults.so" \
        serve "$pool"
    wait_for 120 is_opening '.open.by == "server"' ".open.pid == $server_pid" \
             '.open.opening.stage == "recovery"' '.open.opening.total >= 5' \
             '.open.opening.done == .open.opening.total' '.space.used_bytes == null'
    run -0 nbdedup status
    [[ ${lines[0]} == "$(realpath "$pool"): busy" ]] || fail "$output"
    [[ $output =~ is\ opening\ it:\ recovery,\ ([0-9]+)\ of\ ([0-9]+)\ batches ]] || fail "$output"
    assert_eq "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}"
    [[ $output == *"nothing more is known until it is open"* ]] || fail "$output"
    rm "$FAULT_ARM"
    nbdedup list                # waits until it is open
    status 0 '.state == "ok"' '.open.opening == null' '.recovery.batches >= 5'
    assert_eq "$(cat "$pool/lock")" "server $server_pid nbdkit"
}

@test "status is 3 where it cannot be told, and for wrong usage" {
    make_pool
    serve "$pool"
    nbdedup status              # succeeds: the server listens
    kill -STOP "$server_pid"
    run -3 nbdedup status
    kill -CONT "$server_pid"
    [[ $output == *"which does not answer on control.sock: it is stopped, "* ]]
    stop
    run -3 --separate-stderr nbdedup status -p "$BATS_TEST_TMPDIR/none"
    assert_eq "$(wc -l <<<"$stderr")" 1
    mkdir "$BATS_TEST_TMPDIR/dir"
    run -3 nbdedup status -p "$BATS_TEST_TMPDIR/dir"
    run -3 nbdedup status unexpected
    run -3 nbdedup status --nonesuch
    run -3 nbdedup status --read-only=perhaps
    NBDEDUP_POOL='' run -3 nbdedup status
    run -3 bash -c 'nbdedup status >/dev/full'
    run -0 nbdedup --read-only status
    # For other commands the exit status has not changed.
    run -2 nbdedup stat --nonesuch
}

@test "status warns of pages that came from the copy, and of those that have none" {
    need jq --version
    make_pool
    damaged
    random_data 1M >"$BATS_TEST_TMPDIR/img"
    nbdedup import v "$BATS_TEST_TMPDIR/img"
    for page in {3..9}; do
        damage_page "$page"
    done
    serve "$pool"
    status 1 '.metadata_copy.pages_taken > 0' '.problems | length == 1' \
           '.metadata_copy.pages_repaired == .metadata_copy.pages_taken'
    # scrub finds the rest.
    nbdedup scrub
    stop
    serve "$pool"
    status 0 '.metadata_copy.pages_taken == 0' '.scrub.metadata_errors == 0'
    # A page that the server does not read.
    stop
    damage_page 5
    damage_page 5 .copy
    serve "$pool"
    run -1 nbdedup scrub
    [[ $output == *"1 page of pool.db is damaged"* ]]
    status 2 '.scrub.metadata_errors == 1' '.damage.damaged_records == 0'
    nbdedup set metadata-copy=off
    status 2 '.metadata_copy.state == "off"'
}

@test "status is critical when a scrub has found damage, until the next" {
    need jq --version
    make_pool
    random_data 1M >"$BATS_TEST_TMPDIR/img"
    nbdedup import v "$BATS_TEST_TMPDIR/img"
    # Damage a place in the data.
    offset=$(python3 -c 'import sys
image, records = (open(f, "rb").read() for f in sys.argv[1:])
print(records.index(image[:64]))' "$BATS_TEST_TMPDIR/img" "$pool/records")
    printf 'damage' | put_at "$offset"
    status 0
    run -1 nbdedup scrub
    status 2 '.state == "critical"' '.damage.damaged_records == 1' \
           '.problems == [{"level": "critical", "text":
                           "the last scrub found 1 damaged records"}]'
    run -2 nbdedup status
    head -c 6 "$BATS_TEST_TMPDIR/img" | put_at "$offset"
    nbdedup scrub
    status 0 '.damage.damaged_records == 0'
}

@test "full-warn is logged once, and once when it is over" {
    need jq --version
    make_pool
    run -2 nbdedup set full-warn=101
    run -2 nbdedup set full-warn=1K
    run -2 nbdedup set full-warn=
    assert_eq "$(nbdedup get full-warn)" 90
    nbdedup create v 16M
    nbdedup set max-size=10M
    nbdedup set full-warn=50
    serve "$pool" commit-interval=0.2
    random_data 6M >"$BATS_TEST_TMPDIR/data"
    qemu-io -f raw -c "write -s $BATS_TEST_TMPDIR/data 0 6M" -c flush "$uri" \
            >/dev/null
    # The warning comes after a fold, without a command.
    wait_for 30 grep -q 'more than full-warn (50 %)' "$server_log"
    status 1 '.state == "warning"' '.space.used_percent > 60' \
           '.space.used_percent < 61.5' '.space.max_size == 10485760'
    # Each "set" folds and checks the space.
    nbdedup set full-warn=51
    nbdedup set full-warn=52
    logged 'more than full-warn' 1
    # Two points less are not enough if no more space is used.
    nbdedup set full-warn=62
    logged 'less than full-warn' 0
    status 0
    nbdedup set full-warn=64
    logged 'less than full-warn (64 %) again' 1
    nbdedup set full-warn=63
    logged 'less than full-warn' 1
    nbdedup set full-warn=40
    logged 'more than full-warn (40 %)' 1
    nbdedup set full-warn=100
    status 0
}

@test "max-size: stat says what can still be written, the log that it is full" {
    need jq --version
    make_pool --block-size 64K
    nbdedup create v 64M
    nbdedup set max-size=16M
    nbdedup set full-warn=100
    serve "$pool" commit-interval=0.2
    random_data 20M >"$BATS_TEST_TMPDIR/data"
    qemu-io -f raw -c "write -s $BATS_TEST_TMPDIR/data 0 1M" -c flush "$uri" \
            >/dev/null
    min=$(pool_stat writable_min_bytes)
    assert_num "$min > 14 * 1048576"
    assert_num "$min <= 15 * 1048576"
    qemu-io -f raw -c "write -s $BATS_TEST_TMPDIR/data 1M $min" -c flush \
            "$uri" >/dev/null
    run -0 nbdedup stat --prometheus
    [[ $output == *$'\n'nbdedup_pool_writable_min_bytes\ * ]]
    run ! qemu-io -f raw -c "write -s $BATS_TEST_TMPDIR/data 20M 20M" "$uri"
    qemu-io -f raw -c flush "$uri" >/dev/null
    logged 'is full and refuses new data: .*max-size' 1
    run ! qemu-io -f raw -c "write -P 9 50M 1M" -c 'write -P 8 40M 1M' \
        -c 'write -P 7 60M 1M' "$uri"
    logged 'is full and refuses new data' 1
    status 2 '.space.full' '.problems[0].level == "critical"'
    nbdedup set max-size=64M
    logged 'there is room for new data again' 1
    status 0 '.space.full == false'
}

@test "data that is deduplicated and compressed: likely is more than at worst" {
    need jq --version
    make_pool
    text_data 4M >"$BATS_TEST_TMPDIR/img"
    nbdedup import v "$BATS_TEST_TMPDIR/img"
    nbdedup import w "$BATS_TEST_TMPDIR/img"
    nbdedup set max-size=100M
    min=$(pool_stat writable_min_bytes) likely=$(pool_stat writable_bytes)
    ratio=$(pool_stat 'dedup_ratio * .pool.compress_ratio')
    assert_num "$min > 90 * 1048576 && $min < 100 * 1048576"
    assert_num "$likely > 0.9 * $ratio * $min"
    assert_num "$likely < 1.1 * $ratio * $min"
}

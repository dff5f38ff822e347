#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154,SC1011,SC2016
#
# "nbdedup top", and the counters of a server.  (What each counter counts:
# modules/test-counters.c.)

load ../rigs/helpers

teardown ()
{
    [ -z "$top_pid" ] || kill "$top_pid" 2>/dev/null || :
    stop
    check_pools
}

# start_top ARG...: run it in the background, for $reports and $messages.  bash
# lets such a process ignore SIGINT.
start_top ()
{
    reports="$BATS_TEST_TMPDIR/reports" messages="$BATS_TEST_TMPDIR/messages"
    python3 -c 'import os, signal, sys
signal.signal (signal.SIGINT, signal.SIG_DFL)
os.execvp (sys.argv[1], sys.argv[1:])' \
            nbdedup top --interval 0.1 "$@" >"$reports" 2>"$messages" \
            3>&- 4>&- &
    top_pid=$!
}

# end_top SIGNAL: it must end with status 0.
end_top ()
{
    local status=0

    kill "-$1" "$top_pid"
    wait "$top_pid" || status=$?
    top_pid=
    assert_eq "$status" 0 "exit status of top"
}

# count FILTER: what the reports so far add up to; FILTER is a rate.
count ()
{
    jq -s "[.[] | .interval_seconds * ($1)] | add + 0.5 | floor" "$reports"
}

# counted N FILTER
counted ()
{
    [ "$(count "$2" 2>/dev/null)" = "$1" ]
}

has_report ()
{
    [ -s "$reports" ]
}

volume ()
{
    echo ".volumes[] | select (.name == \"$1\") | $2"
}

@test "the reports of top add up to what clients did, and Ctrl-C ends them" {
    need jq --version
    make_pool --block-size 4K
    nbdedup create v 16M
    nbdedup create w 16M
    nbdedup create idle 16M
    random_data 1M >"$BATS_TEST_TMPDIR/data"
    serve "$pool"
    start_top --json
    wait_for 30 has_report
    # -t none: a flush is sent only for "flush".  The second read of one block
    # has it from the cache; runs of small records may pass that by.
    qemu-io -f raw -t none -c "write -s $BATS_TEST_TMPDIR/data 0 1M" -c flush \
            -c "write -s $BATS_TEST_TMPDIR/data 4M 1M" -c flush \
            -c 'read 0 512k' -c 'read 0 512k' \
            -c 'read 0 4k' -c 'read 0 4k' -c 'discard 4M 4k' \
            "$(uri_of v)" >"$BATS_TEST_TMPDIR/io"
    qemu-io -f raw -c 'read 0 1M' "$(uri_of w)" >>"$BATS_TEST_TMPDIR/io"
    wait_for 30 counted 1048576 "$(volume w .read.bytes_per_second)"
    assert_eq "$(count "$(volume v .write.bytes_per_second)")" 2097152
    assert_eq "$(count "$(volume v .write.requests_per_second)")" 2
    assert_eq "$(count "$(volume v .read.requests_per_second)")" 4
    assert_eq "$(count "$(volume v '(.trim.bytes_per_second +
                                     .zero.bytes_per_second)')")" 4096
    assert_eq "$(count .pool.read.bytes_per_second)" $((2 * 1048576 + 8192))
    assert_eq "$(count .pool.errors_per_second)" 0
    # The second copy was there already: so was half of the blocks.
    jq -se '[.[].volumes[] | select (.name == "v") | .dedup_hit_percent |
             numbers] | max > 0 and min < 100' "$reports"
    jq -se '[.[].volumes[] | select (.name == "v") | .cache_hit_percent |
             numbers] | max > 0' "$reports"
    jq -se '[.[].volumes[] | select (.name == "v") | .write.p99_ns | numbers] |
            all (. > 0 and . < 60e9) and length > 0' "$reports"
    jq -se 'all (.[]; .path == env.NBDEDUP_POOL and
                      .interval_seconds > 0.09 and
                      all (.volumes[]; .read.p50_ns == null or
                           .read.p50_ns <= .read.p99_ns))' "$reports"
    jq -se 'all (.[].volumes[]; .name != "idle")' "$reports"
    end_top INT
    assert_eq "$(cat "$messages")" ''
}

@test "top --once is one report, for people and as JSON" {
    need jq --version
    make_pool
    nbdedup create v 16M
    nbdedup create w.long-name 16M
    serve "$pool"
    run -0 --separate-stderr nbdedup top --once --interval 0.1
    [[ ${lines[0]} == "$pool: dirty 0 B of 64.0 MiB, journal "* ]]
    [[ ${lines[1]} =~ ^VOLUME\ +r/s\ +w/s\ +f/s\ +rMB/s\ +wMB/s\ .*\ clients$ ]]
    [[ ${lines[2]} =~ ^\(pool\)\ +0\ +0\ +0\ +0\ +0(\ +-){8}\ +0\ B\ +0\ +0$ ]]
    assert_eq "${#lines[@]}" 3
    assert_eq "$stderr" ''
    qemu-io -f raw -c 'read 0 1M' "$(uri_of w.long-name)" >/dev/null
    run -0 nbdedup --read-only top --once --interval 0.1
    [[ ${lines[3]} =~ ^w\.long-name\ +0\  ]]
    run -0 --separate-stderr nbdedup top --once --json --interval 0.1
    jq -e '(.volumes | length) == 1 and
           .pool.read.p50_ns == null' <<<"$output"
}

@test "top without a server says so in one line" {
    make_pool
    nbdedup create v 1M
    refused "no server has pool $pool open" top
    refused "no server has pool $pool open" top --once --json
    refused "$BATS_TEST_TMPDIR/none: No such file" top \
            -p "$BATS_TEST_TMPDIR/none"
    mkdir "$BATS_TEST_TMPDIR/dir"
    refused 'not a pool' top -p "$BATS_TEST_TMPDIR/dir"
    nbdkit -f -P "$BATS_TEST_TMPDIR/pid0" -U "$BATS_TEST_TMPDIR/sock" \
           "$plugin" "pool=$pool" read-only=on 3>&- 4>&- &
    servers+=("$!")
    wait_for 20 nbdinfo --list "nbd+unix:///?socket=$BATS_TEST_TMPDIR/sock" \
             >/dev/null 2>&1
    refused 'is open read-only' top --once
    # Nothing was made.
    assert_eq "$(ls -A "$BATS_TEST_TMPDIR/dir")" ''
}

@test "top says that a command has the pool" {
    make_pool
    mkfifo "$BATS_TEST_TMPDIR/fifo"
    nbdedup import held - <"$BATS_TEST_TMPDIR/fifo" 2>/dev/null 3>&- 4>&- &
    job=$!
    exec 7>"$BATS_TEST_TMPDIR/fifo"
    head -c 1M /dev/zero >&7
    wait_for 30 grep -q "^command [0-9]* nbdedup import" "$pool/lock"
    refused 'but nbdedup import (PID' top
    exec 7>&-
    wait "$job"
}

said ()
{
    grep -q "$1" "$messages"
}

# more_than N: so many reports came.
more_than ()
{
    [ "$(jq -s length "$reports")" -gt "$1" ]
}

@test "top goes on when the next server comes, and SIGTERM ends it" {
    need jq --version
    make_pool
    nbdedup create v 1M
    serve "$pool"
    qemu-io -f raw -c 'write 0 64k' -c flush "$uri" >/dev/null
    start_top --json
    wait_for 30 has_report
    stop
    wait_for 30 said 'waiting for it'
    nr=$(jq -s length "$reports")
    serve "$pool"
    wait_for 30 more_than "$nr"
    # What the first server had counted is no part of it.
    jq -se 'all (.[]; .pool.write.requests_per_second >= 0)' "$reports"
    end_top TERM
    assert_eq "$(wc -l <"$messages")" 1
}

@test "top has no interval from one server to the next" {
    need jq --version
    make_pool
    nbdedup create v 1M
    serve "$pool"
    qemu-io -f raw -c 'write 0 64k' -c flush "$uri" >/dev/null
    start_top --json
    wait_for 30 has_report
    kill -STOP "$top_pid"
    stop
    serve "$pool"
    qemu-io -f raw -c 'write 0 64k' -c 'write 0 64k' -c flush "$uri" >/dev/null
    nr=$(jq -s length "$reports")
    kill -CONT "$top_pid"
    # It may have been stopped in the middle of a report.
    wait_for 30 more_than $((nr + 2))
    # The requests before its first answer belong to no report.
    assert_eq "$(count .pool.write.requests_per_second)" 0
    end_top TERM
}

@test "on a terminal a report fits, and the terminal is left in order" {
    need script --version
    make_pool
    for i in {1..9}; do
        nbdedup create "v$i" 1M
    done
    serve "$pool"
    for i in {1..9}; do
        qemu-io -f raw -c 'read 0 4k' "$(uri_of "v$i")" >/dev/null
    done
    # It runs in the background of the terminal, so a signal ends it.
    run -0 script -qefc "stty rows 9 cols 60; nbdedup top --interval 0.1 &
        for i in \$(seq 300); do
            ! grep -q 'more volumes' '$BATS_TEST_TMPDIR/typescript' || break
            sleep 0.1
        done; kill -TERM \$!; wait \$!" "$BATS_TEST_TMPDIR/typescript"
    last=$(tr -d '\r' <<<"$output" |
               awk '/\033\[H/ { text = ""; sub (/.*\033\[J/, "") }
                    { text = text $0 "\n" } END { printf "%s", text }')
    assert_eq "$(grep -c '^v[1-9] ' <<<"$last")" 4
    grep -x 'and 5 more volumes.*' <<<"$last"
    # Wrapping is off only in a report.
    assert_eq "$(grep -o $'\x1b\[?7.' <<<"$output" | tail -n 1)" $'\x1b[?7h'
}

@test "top ends when its reader does" {
    make_pool
    serve "$pool"
    run -141 bash -c 'set -o pipefail; nbdedup top --interval 0.1 | head -n 1'
    run -1 bash -c 'nbdedup top --once --interval 0.1 2>&1 >/dev/full'
    assert_eq "$output" 'nbdedup: top: standard output: No space left on device'
}

@test "top refuses intervals that are none" {
    make_pool
    for interval in 0 -1 0.05 86401 1e9 nan inf x '' '1 s'; do
        misused 'is not a number of seconds from 0.1 to 86400' top \
                --interval "$interval"
    done
    misused "unexpected argument 'v'" top v
    NBDEDUP_POOL='' misused 'which pool' top
}

@test "status of a served pool has its queues, and what runs" {
    need jq --version
    make_pool
    nbdedup create v 8M
    serve "$pool"
    nbdedup status --json | jq -e '.queues.clients == 0 and
        .queues.requests == 0 and .queues.dirty_max_bytes == 67108864 and
        .queues.workers > 0 and .activity.freeing_bytes == 0 and
        .activity.folds >= 0'
    qemu-io -f raw -c 'write -P 1 0 1M' -c flush "$uri" >/dev/null
    # The client may not have left yet.
    run -0 nbdedup status
    [[ $output =~ $'\n'queues\ +[01]\ clients?,\ 0\ requests\;\ .*\ dirty\ of\ 64\.0\ MiB ]]
    [[ $output =~ $'\n'running\ +nothing ]]
    assert_num "$(wc -l <<<"$output") <= 24"
}

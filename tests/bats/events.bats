#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2030,SC2031,SC2154
#
# The log and "nbdedup history": who did what, through a server and without, in
# lines and as entries of the journal.  The module tests test-event, test-events
# and test-event-log check crashes, bounds, damage and quoting.

load ../rigs/helpers

setup ()
{
    need jq --version
}

# events FILTER: what a jq filter makes of each event of the history.
events ()
{
    nbdedup history --json | jq -cr ".history[] | $1"
}

# has_logged N TEXT: the server's log has N lines with TEXT.
has_logged ()
{
    [ "$(grep -cF -- "$2" "$server_log")" = "$1" ]
}

# has_logged_some TEXT: the server's log has a line with TEXT.
has_logged_some ()
{
    grep -qF -- "$1" "$server_log"
}

@test "history shows what was done, by whom and when" {
    make_pool --block-size 64K
    begun=$(date +%s)
    nbdedup create web1 1G
    nbdedup snapshot web1@v1
    nbdedup clone web1@v1 c --count 2
    serve "$pool"
    nbdedup rename c1 d
    nbdedup set compress=zstd d
    nbdedup set full-warn=80
    nbdedup resize d 2G
    nbdedup rollback web1@v1
    nbdedup rebase c2 web1@v1
    nbdedup destroy d c2
    nbdedup destroy web1@v1
    # Commands that fail, and those that only read, are none.
    run -1 nbdedup snapshot missing@v1
    nbdedup list >/dev/null
    nbdedup destroy web1 --dry-run
    events 'del (.time, .uid, .pid, .by)' >"$BATS_TEST_TMPDIR/events"
    diff "$BATS_TEST_TMPDIR/events" - <<'END'
{"event":"init","sector_bytes":512,"hash":"sha256","block_size":65536}
{"event":"create","volume":"web1","size":1073741824}
{"event":"snapshot","volume":"web1","snapshot":"v1"}
{"event":"clone","origin":"web1@v1","volume":"c","count":2}
{"event":"rename","volume":"c1","to":"d"}
{"event":"set","property":"compress","value":"zstd","volume":"d"}
{"event":"set","property":"full-warn","value":"80"}
{"event":"resize","volume":"d","size":2147483648}
{"event":"rollback","volume":"web1","snapshot":"v1"}
{"event":"rebase","volume":"c2","origin":"web1@v1","logical_bytes":0,"shared_bytes":0,"own_bytes_before":0,"own_bytes_after":0,"given_back_bytes":0}
{"event":"destroy","names":["d","c2"]}
{"event":"destroy","volume":"web1","snapshot":"v1"}
END
    # Who: this user, whether a server did it or not.
    assert_eq "$(events '[.uid, .by]' | uniq)" "[$(id -u),\"$(id -un)\"]"
    assert_eq "$(events 'select (.pid > 1) | 1' | wc -l)" 12
    # When: UTC for programs, local time for people.
    run -0 nbdedup history --json
    [[ $output == *'"time": "20'[0-9][0-9]-[0-9][0-9]-[0-9][0-9]T[0-9][0-9]:[0-9][0-9]:[0-9][0-9]Z'"'* ]]
    time=$(events .time | tail -n 1)
    assert_num "$(date -d "$time" +%s) >= $begun"
    assert_num "$(date -d "$time" +%s) <= $(date +%s)"
    run -0 env TZ=XXX-5 nbdedup history
    [[ ${lines[0]} == "TIME "*" BY "*" EVENT "*" FIELDS" ]]
    [[ ${lines[12]} == "$(TZ=XXX-5 date -d "$time" '+%F %T')  "*"  destroy  "*"volume=web1 snapshot=v1" ]]
}

@test "the process that asks a server is the one that the kernel names" {
    make_pool
    serve "$pool"
    bash -c 'echo $$ >"$1"; exec nbdedup create v 1M' - "$BATS_TEST_TMPDIR/asker"
    assert_eq "$(events 'select (.event == "create") | .pid')" \
              "$(cat "$BATS_TEST_TMPDIR/asker")"
    wait_for 20 has_logged 1 "event=create pool=$pool volume=v size=1048576 by=$(id -un) uid=$(id -u) pid=$(cat "$BATS_TEST_TMPDIR/asker")"
}

@test "what was answered is in the history after kill -9, and the recovery" {
    make_pool
    nbdedup create v 1M
    serve "$pool"
    nbdedup snapshot v@a
    nbdedup set compress=none v
    qemu-io -f raw -c 'write -P 5 0 64K' -c flush "$uri" >/dev/null
    crash
    # Read-only nothing is recovered yet.
    assert_eq "$(nbdedup --read-only history --json | jq -c '[.history[].event]')" \
              '["init","create","snapshot","set"]'
    serve "$pool"
    assert_eq "$(events .event | paste -sd ' ')" "init create snapshot set recovered"
    wait_for 20 has_logged 1 "event=recovered pool=$pool seconds="
    wait_for 20 has_logged 1 "event=opened pool=$pool version=$version seconds="
}

@test "a scrub and the damage that it finds" {
    damaged
    make_pool --block-size 16K
    random_data 256K >"$BATS_TEST_TMPDIR/img"
    nbdedup import v "$BATS_TEST_TMPDIR/img"
    assert_eq "$(events .event | paste -sd ' ')" "init create import"
    nbdedup scrub
    run -0 events 'select (.event == "scrub-ended") | [.outcome, .records, .errors, .by]'
    assert_eq "$output" "[\"done\",16,0,\"$(id -un)\"]"
    offset=$(python3 - "$pool/records" "$BATS_TEST_TMPDIR/img" <<'END'
import sys
with open(sys.argv[1], "r+b") as records, open(sys.argv[2], "rb") as image:
    at = records.read().index(image.read()[32768:49152])
    records.seek(at)
    records.write(b"damage")
END
    )
    serve "$pool" record-cache=0
    # A client meets it twice, and it is told once.
    run ! qemu-io -f raw -c 'read 32K 16K' -c 'read 40K 512' "$uri"
    wait_for 20 has_logged 1 "event=damage pool=$pool found=read offset=32768 length=16384 volume=v message="
    wait_for 20 events_are damage 1
    nbdedup set scrub-interval=1s
    # On a busy machine a second scrub may have ended before the first look.
    wait_for 60 has_logged_some "event=scrub-ended pool=$pool outcome=done scheduled=true"
    nbdedup set scrub-interval=off
    has_logged_some "event=damage pool=$pool found=scrub offset=32768 length=16384 volume=v message="
    # The server's own scrub has no asker.
    run -0 events 'select (.scheduled) | [.errors, .damaged, .by]'
    assert_eq "${lines[0]}" '[1,[{"name":"v","offset":32768,"length":16384}],null]'
    crash
    events_are damage 1
}

# events_are NAME N: the history has N of this name.
events_are () { [ "$(events .event | grep -cx "$1")" = "$2" ]; }

@test "a pool whose path has strange characters: the line stays one, and quoted" {
    local name
    damaged                         # check_pools cannot read such a name
    name=$'a "pool"\nevent=destroy \\x'

    mkdir "$BATS_TEST_TMPDIR/$name"
    export NBDEDUP_POOL="$BATS_TEST_TMPDIR/$name/p"
    nbdedup init "$NBDEDUP_POOL"
    serve "$NBDEDUP_POOL"
    nbdedup create v 1M
    wait_for 20 has_logged 1 "event=create pool=\"$BATS_TEST_TMPDIR/a \\\"pool\\\"\\u000aevent=destroy \\\\x/p\" volume=v size=1048576"
    has_logged 0 "nbdkit: dedup: event=destroy"
    run ! grep '^event=destroy' "$server_log"
    stop
    nbdedup check
}

# in_journal COMMAND...: run it where /run is empty but for a journal, whose
# entries go to $BATS_TEST_TMPDIR/entries.
in_journal ()
{
    unshare -rm bash -c '
        mount -t tmpfs none /run && mkdir -p /run/systemd/journal || exit
        python3 "$1" /run/systemd/journal/socket "$2" 3>&- 4>&- &
        trap "kill $!" EXIT
        until [ -S /run/systemd/journal/socket ]; do sleep 0.1; done
        shift 2
        "$@"' - "$top_srcdir/tests/bats/fake-journald.py" \
            "$BATS_TEST_TMPDIR/entries" "$@"
}

# journal_nbdkit: the command for nbdkit, as helpers.bash runs it.
journal_nbdkit ()
{
    echo "env ${sanitizer_preload:+LD_PRELOAD=$sanitizer_preload} nbdkit"
}

# entry FILTER: apply a jq filter to the journal's entries.
entry () { jq -c "$1" "$BATS_TEST_TMPDIR/entries"; }

@test "where standard error is the journal, events are entries with fields" {
    need unshare -rm mount -t tmpfs none /run
    make_pool
    cd "$BATS_TEST_TMPDIR"
    # The server's, and a command's own.
    in_journal bash -e -c '
        stream () { stat -L -c %d:%i "$1"; }
        nbdkit=$1 plugin=$2
        : >log
        JOURNAL_STREAM=$(stream log) $nbdkit -f -P pid -U sock "$plugin" "pool=$NBDEDUP_POOL" 2>log &
        until grep -qs "^server" "$NBDEDUP_POOL/lock" && [ -S "$NBDEDUP_POOL/control.sock" ]; do sleep 0.1; done
        nbdedup create v 1M
        nbdedup set compress=zstd
        kill $!
        wait
        : >err
        JOURNAL_STREAM=$(stream err) nbdedup snapshot v@a 2>err
        # It is another stream: nothing for the journal.
        JOURNAL_STREAM=$(stream log) nbdedup snapshot v@b 2>err
    ' - "$(journal_nbdkit)" "$plugin"
    wait_for 20 entries_are 4
    assert_eq "$(entry '.NBDEDUP_EVENT' | xargs)" "opened create set snapshot"
    assert_eq "$(entry 'select (.NBDEDUP_EVENT == "create") |
        [.PRIORITY, .SYSLOG_IDENTIFIER, .NBDEDUP_POOL, .NBDEDUP_VOLUME, .NBDEDUP_SIZE, .NBDEDUP_UID]')" \
        "[\"6\",\"nbdkit\",\"$pool\",\"v\",\"1048576\",\"0\"]"
    assert_eq "$(entry 'select (.NBDEDUP_EVENT == "snapshot") | [.SYSLOG_IDENTIFIER, .NBDEDUP_SNAPSHOT]')" \
        '["nbdedup","a"]'
    assert_eq "$(entry 'select (.NBDEDUP_EVENT == "opened") | .MESSAGE' | cut -c 1-20)" "\"${pool:0:19}"
    assert_eq "$(entry 'select (.NBDEDUP_EVENT == "create") | .MESSAGE')" \
        "$(jq -n --arg p "$pool" '"event=create pool=\($p) volume=v size=1048576 by=root uid=0 pid="' | sed 's/"$//')$(entry 'select (.NBDEDUP_EVENT == "create") | .NBDEDUP_PID' | tr -d '"')\""
    run ! grep event= log err
}

entries_are () { [ "$(wc -l <"$BATS_TEST_TMPDIR/entries")" = "$1" ]; }

@test "a pool that stops says so once, as an event" {
    need qemu-io --version
    make_pool
    nbdedup create v 8M
    export FAULT_FILE=journal FAULT_CALL=sync FAULT_NTH=1
    export FAULT_ARM="$BATS_TEST_TMPDIR/arm"
    sanitizer_preload="${sanitizer_preload:+$sanitizer_preload:}$faults" \
        serve "$pool"
    nbdedup list >/dev/null     # the pool is open
    : >"$FAULT_ARM"
    run ! qemu-io -f raw -c 'write -P 1 0 64k' -c flush "$(uri_of v)"
    run ! qemu-io -f raw -c 'write -P 1 0 64k' -c flush "$(uri_of v)"
    wait_for 20 grep -q 'event=stopped' "$server_log"
    run -0 grep 'event=stopped' "$server_log"
    assert_eq "${#lines[@]}" 1
    [[ $output == *" pool=$pool error=\"$pool/journal: "* ]] || fail "$output"
    [[ $output == *'message="the pool has stopped and writes nothing more: '* ]] ||
        fail "$output"
}

@test "the manual page has every event and its MESSAGE_ID" {
    local page="$top_srcdir/tools/nbdedup-history.pod" name id nr=0

    while read -r name id; do
        grep -qE "^ $name +$id\$" "$page" || fail "$name $id"
        grep -qE "^ $name( |\$)" <(sed '/MESSAGE_ID. is the same/,$d' "$page") ||
            fail "$name is not in the table of events"
        nr=$((nr + 1))
    done < <(sed -n 's/^  { "\([a-z-]*\)", "\([0-9a-f]\{32\}\)" },$/\1 \2/p' \
                 "$top_srcdir/lib/base/event.c")
    [ $nr -ge 28 ]
    # No id is there twice.
    assert_eq "$(grep -oE '[0-9a-f]{32}' "$page" | sort | uniq -d)" ""
    assert_eq "$(grep -cE ' [0-9a-f]{32}$' "$page")" $nr
}

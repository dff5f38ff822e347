# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154,SC2030,SC2031,SC2034
#
# Shared by badinput.bats and spoilt-files.bats.
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

# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
#
# Shared by the .bats files.  "load helpers" first.
#
# Every test works in $BATS_TEST_TMPDIR, with servers on private Unix
# sockets.  After each test all servers are stopped (a server that hangs,
# crashes, or leaves a sanitizer report fails the test), and every pool below
# $BATS_TEST_TMPDIR must pass "nbdedup check", unless the test called
# "damaged".

# shellcheck disable=SC2034,SC2154   # set in env.bash, or used by the tests

bats_require_minimum_version 1.5.0
# shellcheck source=/dev/null
source "${NBDEDUP_ENV:?run the tests through make check}"

# Bats also reads this once for the whole file, which has no such directory.
if [ -d "${BATS_TEST_TMPDIR:-}" ]; then
    cd "$BATS_TEST_TMPDIR" || exit
fi

servers=()                      # process ids, in order of start
nbdkit_args=()                  # options for serve: --filter=..., -r, ...
pools_are_damaged=

export UBSAN_OPTIONS=print_stacktrace=1
if [ -n "$sanitizer_preload" ]; then
    # nbdkit leaks by design at exit, and its own code has no sanitizer.
    export ASAN_OPTIONS="detect_leaks=0:${ASAN_OPTIONS:-}"
fi

# need CMD...: skip the test unless 'CMD...' works.
need ()
{
    "$@" </dev/null >/dev/null 2>&1 || skip "prerequisite missing: $*"
}

need_root ()
{
    [ "$(id -u)" = 0 ] || skip "needs root"
}

# nbdkit, able to load a plugin that was built with sanitizers.
nbdkit ()
{
    if [ -n "$sanitizer_preload" ]; then
        LD_PRELOAD="$sanitizer_preload" command nbdkit "$@"
    else
        command nbdkit "$@"
    fi
}

# fail TEXT...: end the test.
fail ()
{
    printf '%s\n' "$@" >&2
    return 1
}

# assert_eq FOUND EXPECTED [WHAT]
assert_eq ()
{
    [ "$1" = "$2" ] || fail "${3:-assert_eq}: found '$1', expected '$2'"
}

# assert_num EXPRESSION: the awk expression of numbers must be true.
assert_num ()
{
    awk "BEGIN { exit !($1) }" || fail "not true: $1"
}

# refused TEXT COMMAND...: "nbdedup COMMAND..." must fail with status 1 and one
# line that contains TEXT.
refused () { fails_with 1 "$@"; }

# misused TEXT COMMAND...: the same with status 2.
misused () { fails_with 2 "$@"; }

fails_with ()
{
    local expected=$1 text=$2

    shift 2
    run "-$expected" --separate-stderr nbdedup "$@"
    [[ $stderr == "nbdedup: $1: "*"$text"* ]] || fail "nbdedup $*: $stderr"
    assert_eq "$(wc -l <<<"$stderr")" 1 "nbdedup $*: lines"
    assert_eq "$output" "" "nbdedup $*: output"
}

# expect_failure PID: wait for this process, which must end with status 1.
expect_failure ()
{
    local status=0

    wait "$1" || status=$?
    assert_eq "$status" 1
}

# stop_nbd_server: end $other_pid, a server without a pool, if there is one.
stop_nbd_server ()
{
    [ -n "${other_pid:-}" ] || return 0
    kill "$other_pid" 2>/dev/null || :
    wait "$other_pid" || :
    other_pid=
}

# wait_for SECONDS CMD...: wait until 'CMD...' succeeds, in steps of 100 ms.
wait_for ()
{
    local left=$(( $1 * 10 ))

    shift
    while ! "$@"; do
        [ "$((left--))" -gt 0 ] || { fail "gave up waiting for: $*"; return; }
        sleep 0.1
    done
}

# catches_sigterm PID: true if the process has a handler for SIGTERM, and is no
# longer bash, which has one too before the exec.
catches_sigterm ()
{
    local mask

    [ "$(cat "/proc/$1/comm")" != bash ] || return 1
    mask=$(sed -n 's/^SigCgt:\s*/0x/p' "/proc/$1/status")
    (( ${mask:-0} & 1 << (15 - 1) ))
}

#----------------------------------------------------------------------
# Pools

# make_pool [OPTION...]: run nbdedup init for $pool; later commands use it.
make_pool ()
{
    pool="$BATS_TEST_TMPDIR/pool"
    export NBDEDUP_POOL="$pool"
    nbdedup init "$pool" "$@"
}

# damaged: this test damages its pools; do not check them at the end.
damaged ()
{
    pools_are_damaged=yes
}

# db_bytes POOL: print how much of pool.db SQLite uses; the file is longer.
db_bytes ()
{
    local n

    n=$(od -An -tu1 -j28 -N4 "$1/pool.db" | {
            read -r a b c d; echo $((a << 24 | b << 16 | c << 8 | d)); })
    echo $((n * 8192))
}

# For jq: since 1.7 it prints a number as in its input (3.0); arithmetic makes
# it 3, as in 1.6.
plain_number='if type == "number" then . + 0 else . end'

# pool_stat KEY: print a figure of $pool, e.g. stored_bytes, ddt.entries
pool_stat ()
{
    nbdedup -p "$pool" stat --json | jq -r ".pool.$1 | $plain_number"
}

# The records file is as large as an idle pool's may be, at most.
records_are_dense ()
{
    local stored

    stored=$(pool_stat stored_bytes)
    (($(pool_stat file_bytes) <= stored * 115 / 100 + (64 << 20)))
}

# volume_stat NAME KEY: print a figure of one volume.
volume_stat ()
{
    nbdedup -p "$pool" stat --json "$1" |
        jq -r --arg n "$1" ".volumes[] | select (.name == \$n) | .$2"
}

#----------------------------------------------------------------------
# Servers

# serve POOL [KEY=VALUE...]: serve a pool on a private Unix socket; sets
# $sock, $server_pid, $server_log, and $uri (of the default export).
# Options for nbdkit itself are in the array nbdkit_args.
serve ()
{
    local dir="$1" nr=${#servers[@]}

    shift
    sock="$BATS_TEST_TMPDIR/sock$nr"
    server_log="$BATS_TEST_TMPDIR/nbdkit$nr.log"
    uri="nbd+unix:///?socket=$sock"

    # nbdkit leaves its socket behind, and refuses to use an old one.
    rm -f "$sock"

    # bats waits for every process that holds its descriptors 3 and 4.
    nbdkit -f -P "$BATS_TEST_TMPDIR/pid$nr" -U "$sock" "${nbdkit_args[@]}" \
           "$plugin" "pool=$dir" "$@" >"$server_log" 2>&1 3>&- 4>&- &
    server_pid=$!
    servers+=("$server_pid")
    # nbdkit writes its process id before the plugin opens the pool.
    wait_for 60 server_is_up_or_dead "$server_pid" "$nr" "$dir"
    kill -0 "$server_pid" 2>/dev/null ||
        fail "nbdkit did not start:" "$(cat "$server_log")"

    # $! may be the shell of the function nbdkit.
    server_pid=$(cat "$BATS_TEST_TMPDIR/pid$nr")
}

server_is_up_or_dead ()
{
    local file="$BATS_TEST_TMPDIR/pid$2"

    ! kill -0 "$1" 2>/dev/null ||
        { [ -s "$file" ] && grep -q "^server $(cat "$file") " "$3/lock"; }
}

# uri_of NAME: print the URI of an export of the last server.
uri_of ()
{
    printf 'nbd+unix:///%s?socket=%s\n' "$1" "$sock"
}

# stop: end all servers as an administrator would, and fail if one does not end,
# or ends with an error.
stop ()
{
    local pid status nr=0 ret=0

    for pid in "${servers[@]}"; do
        local real=$pid

        if [ -s "$BATS_TEST_TMPDIR/pid$nr" ]; then
            real=$(cat "$BATS_TEST_TMPDIR/pid$nr")
        fi
        kill "$real" 2>/dev/null || :
        if ! wait_for 60 server_is_gone "$real"; then
            kill -9 "$real" || :
            ret=1
        fi
        status=0
        wait "$pid" 2>/dev/null || status=$?
        case $status in
            0|127|137|143) ;;     # done, already waited for, killed by us
            *) fail "nbdkit ended with status $status" || ret=1 ;;
        esac
        if grep -E 'ERROR: AddressSanitizer|runtime error:' \
                "$BATS_TEST_TMPDIR/nbdkit$nr.log"; then
            ret=1
        fi
        if [ $ret != 0 ]; then
            cat "$BATS_TEST_TMPDIR/nbdkit$nr.log" >&2
        fi
        rm -f "$BATS_TEST_TMPDIR/pid$nr"
        nr=$((nr + 1))
    done
    servers=()
    return $ret
}

server_is_gone ()
{
    local state

    # A zombie that no process has waited for yet is gone, too, unless other
    # threads of it still run, and hold the pool's lock.
    state=$(sed -n 's/^State:[[:space:]]*\(.\).*/\1/p' "/proc/$1/status" \
                2>/dev/null) || return 0
    [ -z "$state" ] ||
        { [ "$state" = Z ] &&
              [ "$(find "/proc/$1/task" -maxdepth 1 -name '[0-9]*' \
                   2>/dev/null | wc -l)" -le 1 ]; }
}

# crash: end the last server by kill -9, and wait until it is gone.
crash ()
{
    kill -9 "$server_pid"
    wait_for 10 server_is_gone "$server_pid"
    # A zombie's other threads may live a moment longer, and hold the lock.
    wait "${servers[${#servers[@]} - 1]}" 2>/dev/null || :
}

teardown ()
{
    stop
    check_pools
}

check_pools ()
{
    local db

    [ -z "$pools_are_damaged" ] || return 0
    while IFS= read -r db; do
        nbdedup -p "$(dirname "$db")" check >"$BATS_TEST_TMPDIR/check" 2>&1 ||
            fail "check of $(dirname "$db"):" "$(cat "$BATS_TEST_TMPDIR/check")"
    done < <(find "$BATS_TEST_TMPDIR" -name pool.db)
}

#----------------------------------------------------------------------
# Data.  The same arguments always make the same bytes.

# random_data SIZE [SEED]: incompressible data, on stdout.  SIZE as for head.
random_data ()
{
    # openssl complains when head has enough, which is no failure.
    { openssl enc -aes-128-ctr -pass "pass:${2:-1}" -nosalt -md sha256 \
              </dev/zero 2>/dev/null || :; } | head -c "$1"
}

# text_data SIZE [SEED]: LZ4 saves half or more; all 4 KiB blocks are different.
text_data ()
{
    { seq -f "line %.0f of some text that compresses" \
          "$(( ${2:-1} * 100000000 ))" 1000000000000 2>/dev/null || :; } |
        head -c "$1"
}

# server_peak_kib PID: print VmHWM.
server_peak_kib ()
{
    awk '/^VmHWM:/ { print $2 }' "/proc/$1/status"
}

# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154,SC2034
#
# NBD clients for the .bats files.  "load clients" after "load helpers".

holder=

# io URI COMMAND...: run qemu-io; fails if one of the commands fails.
io ()
{
    local u="$1" args=() command

    shift
    for command; do args+=(-c "$command"); done
    qemu-io -f raw -t writeback "$u" "${args[@]}" >"$BATS_TEST_TMPDIR/io" 2>&1 ||
        fail "qemu-io:" "$(cat "$BATS_TEST_TMPDIR/io")"
    if grep -qiE 'failed|error' "$BATS_TEST_TMPDIR/io"; then
        fail "qemu-io:" "$(cat "$BATS_TEST_TMPDIR/io")"
    fi
}

# hold URI COMMAND...: start a client that runs the commands, and then stays
# connected and silent, without a flush; sets $holder.  Returns when all
# commands are answered.
hold ()
{
    local u="$1" args=() command out="$BATS_TEST_TMPDIR/hold"

    shift
    for command; do args+=(-c "$command"); done
    : >"$out"           # not the lines of a client before
    stdbuf -oL qemu-io -f raw -t writeback "$u" "${args[@]}" \
           -c 'sleep 3600000' >"$out" 2>&1 3>&- 4>&- &
    holder=$!
    wait_for 30 has_lines "$out" 'bytes at offset\|failed' $# ||
        fail "qemu-io:" "$(cat "$out")"
    if grep -iE 'failed|error' "$out"; then
        fail "qemu-io:" "$(cat "$out")"
    fi
}

has_lines () { [ "$(grep -c -- "$2" "$1")" -ge "$3" ]; }

# let_go: kill the client of "hold", so that it flushes nothing.
let_go ()
{
    [ -n "$holder" ] || return 0
    kill -9 "$holder" 2>/dev/null || :
    wait "$holder" 2>/dev/null || :
    holder=
}

teardown ()
{
    let_go
    stop
    check_pools
}

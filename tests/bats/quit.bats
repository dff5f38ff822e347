#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# The end of a server that has clients: plugin/quit.h.

load ../rigs/helpers
load ../rigs/clients

setup ()
{
    make_pool
    nbdedup create v 64M
    nbdkit_args=()
    # Do not commit by time, so that nothing is durable before it must be.
    serve "$pool" commit-interval=3600
}

# restart SIGNAL: restart the server on the same socket.
restart ()
{
    kill "-$1" "$server_pid"
    wait_for 20 server_is_gone "$server_pid"
    # The next server gets the name of the one that is gone.
    rm -f "$BATS_TEST_TMPDIR/pid0"
    servers=()
    serve "$pool" commit-interval=3600
}

# writer: start a client that reconnects, with 150 writes without a flush, each
# with a pattern of its own.
writer ()
{
    local args=() i

    for i in {1..150}; do
        args+=(-c "aio_write -P $i $((i * 300007)) 250000" -c 'sleep 40')
    done
    qemu-io -t writeback "${args[@]}" -c aio_flush --image-opts \
        "driver=nbd,server.type=unix,server.path=$sock,export=v,reconnect-delay=60" \
        >"$BATS_TEST_TMPDIR/writer" 2>&1 3>&- 4>&- &
    holder=$!
}

@test "a server that is told to end does not wait for a silent client" {
    local signal

    for signal in TERM INT; do
        hold "$(uri_of v)" 'write -P 0x66 1 600000'
        restart $signal
        kill -0 "$holder"
        let_go
        io "$(uri_of v)" 'read -P 0x66 1 600000' 'write -z 0 1M'
    done
}

# all_traced PID
all_traced ()
{
    [ "$(cat /proc/"$1"/task/*/status | grep -c '^TracerPid:.*[1-9]')" = \
      "$(find "/proc/$1/task" -mindepth 1 -maxdepth 1 | wc -l)" ]
}

# ends_at_once: after the signal no thread of the server sleeps until a time
# that it had set.
ends_at_once ()
{
    local trace="$BATS_TEST_TMPDIR/trace" tracer

    strace -f -o "$trace" -p "$server_pid" 2>/dev/null 3>&- 4>&- &
    tracer=$!
    wait_for 20 all_traced "$server_pid" || return
    kill -TERM "$server_pid"
    wait "$tracer" || :
    grep -q -e '--- SIGTERM' "$trace" || return
    rm -f "$BATS_TEST_TMPDIR/pid0"
    servers=()
    ! sed '1,/--- SIGTERM/d' "$trace" |
        grep -E 'ETIMEDOUT|= 0 \(Timeout\)|nanosleep'
}

# A thread that looks at the file system from time to time may do so just then,
# but not three times.
always_ends_at_once ()
{
    local i

    for i in 1 2 3; do
        ! ends_at_once || return 0
        serve "$pool" commit-interval=3600
        "$@"
    done
    fail "$*: waits when it is told to end"
}

@test "a server that is told to end sleeps no more" {
    need strace -o /dev/null true

    always_ends_at_once :

    serve "$pool" commit-interval=3600
    io "$(uri_of v)" 'write -P 0x66 1 600000' 'flush'
    always_ends_at_once io "$(uri_of v)" 'write -P 0x67 1 600000' 'flush'

    serve "$pool" commit-interval=3600
    hold "$(uri_of v)" 'write -P 0x68 1 600000'
    always_ends_at_once hold "$(uri_of v)" 'write -P 0x69 1 600000'
}

@test "a client that connects again loses nothing when the server is restarted" {
    local args=() i

    writer
    for i in 1 2 3; do
        sleep 0.9
        kill -0 "$holder"
        restart TERM
    done
    wait "$holder"
    holder=
    run ! grep -iE 'failed|error' "$BATS_TEST_TMPDIR/writer"
    assert_eq "$(grep -c '^wrote 250000/250000' "$BATS_TEST_TMPDIR/writer")" 150

    for i in {1..150}; do
        args+=("read -P $i $((i * 300007)) 250000")
    done
    io "$(uri_of v)" "${args[@]}"
}

@test "a server on standard input ends when it is told to" {
    local status=0

    stop
    need perl -MSocket -e 1
    timeout 60 perl -MSocket -e '
        socketpair (my $a, my $b, AF_UNIX, SOCK_STREAM, 0) or die;
        my $pid = fork;
        if ($pid == 0) {
            open STDIN, "<&", $b; open STDOUT, ">&", $b; close $a;
            exec @ARGV;
        }
        close $b;
        sysread ($a, my $hello, 18) == 18 or die "no greeting";
        kill "TERM", $pid;
        sysread ($a, my $more, 1) == 0 or die "no end of file";
        waitpid $pid, 0;
        exit ($? != 0);' \
        env ${sanitizer_preload:+LD_PRELOAD="$sanitizer_preload"} nbdkit -s "$plugin" "pool=$pool" || status=$?
    assert_eq "$status" 0
}

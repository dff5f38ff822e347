#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# The end of a measurement of drift that takes long: by Ctrl-C, without a
# server and through one, and by the server's end.  test-drift-looks checks that
# drift looks often enough everywhere; here the disk is slow enough to interrupt
# drift in the middle of its work.

load ../rigs/helpers

setup ()
{
    need env --default-signal=INT true
    make_pool --block-size 4K --compress none
    random_data 64M >image
    nbdedup import golden image
    nbdedup snapshot golden@v1
    nbdedup clone golden@v1 web --count 3 >clones
    # With slow_disk preloaded each read of pool.db takes 30 ms.  Drift needs
    # about 180; half of them are done when it begins to sort in pieces.
    slow_disk=${sanitizer_preload:+$sanitizer_preload:}$faults
    export FAULT_FILE=pool.db FAULT_CALL=read FAULT_MS=30 FAULT_COUNT=1000000
    export FAULT_ARM="$PWD/slow_now" FAULT_LOG="$PWD/slow"
    touch slow_now
}

teardown ()
{
    rm -f slow_now
    stop
    check_pools
}

# sorts PID: the process has a temporary file of the pool open.
sorts ()
{
    find "/proc/$1/fd" -lname "$pool/* (deleted)" 2>/dev/null | grep -q .
}

sorts_not () { ! sorts "$1"; }

# reads: the number of slow reads so far.
reads () { wc -l <slow; }

# drift [OPTION...]: start drift in the background; sets $drift_pid.  A shell
# makes background processes ignore SIGINT.
drift ()
{
    env --default-signal=INT LD_PRELOAD="${preload:-}" \
        nbdedup drift --memory 1M "$@" >out 2>err 3>&- 4>&- &
    drift_pid=$!
}

# interrupt PID: wait until this process is in the middle of its work.  Then
# Ctrl-C must end it soon, with one line.
interrupt ()
{
    local before

    wait_for 60 sorts "$1"
    before=$(reads)
    kill -INT $drift_pid
    expect_failure $drift_pid
    assert_eq "$(cat out err)" "nbdedup: drift: interrupted"
    wait_for 20 sorts_not "$1"
    assert_num "$(reads) - $before < 50"
}

@test "Ctrl-C ends drift at once, and leaves nothing behind" {
    local names preload=$slow_disk

    names=$(ls "$pool")
    for option in "" --record; do
        drift $option
        interrupt $drift_pid
        assert_eq "$(ls "$pool")" "$names"
    done
    nbdedup drift --memory 1M >out
    assert_eq "$(nbdedup drift --history --json | jq -c .)" '{"samples":[]}'
}

@test "Ctrl-C ends drift in a server, which goes on" {
    sanitizer_preload=$slow_disk serve "$pool" drift-interval=0
    # Its disk is slow at its start, too, when drift would say that it waits.
    wait_for 60 test -S "$pool/control.sock"
    for option in "" --record; do
        drift $option
        interrupt "$server_pid"
    done
    rm -f slow_now
    nbdedup drift --memory 1M >out
    assert_eq "$(nbdedup drift --history --json | jq -c .)" '{"samples":[]}'
    kill -0 "$server_pid"
    touch slow_now
}

@test "drift says that the server does not answer, whichever way it asks" {
    local option

    [ -x "$NBDEDUP_LIBEXEC/nbdedup-files" ] ||
        skip "this build has no libtsk"
    sanitizer_preload=$slow_disk serve "$pool" drift-interval=0
    wait_for 60 test -S "$pool/control.sock"
    for option in "" --advise; do
        drift $option
        wait_for 60 sorts "$server_pid"
        kill -STOP "$server_pid"
        wait_for 30 grep -q "^nbdedup: drift: waiting: the pool's server, .* \
(PID $server_pid), has not answered since" err
        kill -CONT "$server_pid"
        kill -INT $drift_pid
        expect_failure $drift_pid
        wait_for 20 sorts_not "$server_pid"
    done
}

@test "a server in the midst of a sample ends when it is told to" {
    local before

    sanitizer_preload=$slow_disk serve "$pool" drift-interval=1 ddt-cache=8M
    wait_for 60 sorts "$server_pid"
    before=$(reads)
    kill "$server_pid"
    wait_for 30 server_is_gone "$server_pid"
    assert_num "$(reads) - $before < 50"
    assert_eq "$(nbdedup drift --history --json | jq -c .)" '{"samples":[]}'
}

# helper_of PID: print the process that looks into a clone for it.
helper_of ()
{
    pgrep -P "$1" -f nbdedup-files
}

helper_is_gone () { ! kill -0 "$1" 2>/dev/null; }

@test "Ctrl-C ends drift --files and --advise, and the helper with it" {
    local helper option preload=$slow_disk

    [ -x "$NBDEDUP_LIBEXEC/nbdedup-files" ] ||
        skip "this build has no libtsk"
    rm slow_now
    mkdir root
    for i in {1..200}; do echo "$i" >root/$i; done
    truncate -s 64M img
    mke2fs -q -b 1024 -t ext4 -d root img
    cp img changed
    random_data 1M 7 >noise
    debugfs -w -R "write noise noise" changed 2>/dev/null
    nbdedup import fs img
    nbdedup snapshot fs@v1
    nbdedup clone fs@v1 one
    serve "$pool" drift-interval=0
    qemu-img convert -n -f raw -O raw changed "$(uri_of one)"
    stop
    export FAULT_FILE=records
    for option in --files --advise; do
        touch slow_now
        drift fs@v1 $option
        wait_for 60 helper_of $drift_pid
        helper=$(helper_of $drift_pid)
        kill -INT $drift_pid
        expect_failure $drift_pid
        assert_eq "$(cat out err)" "nbdedup: drift: interrupted"
        wait_for 20 helper_is_gone "$helper"
        rm slow_now
        nbdedup drift fs@v1 $option >out
        grep -q noise out || [ $option = --advise ]
    done
}

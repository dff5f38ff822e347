#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# The units of systemd/, as far as that can be seen without systemd running:
# vm/systemd.bats boots a machine with them.

load ../rigs/helpers

setup ()
{
    manager=
}

teardown ()
{
    if [ -n "$manager" ]; then
        kill "$manager" 2>/dev/null || :
        wait "$manager" || :
    fi
    stop
    check_pools
}

# install_units: put all units in ./units, with the built programs.
install_units ()
{
    local unit

    [ -e "$top_builddir/systemd/nbdedup@.service" ] ||
        skip "built without libsystemd"
    mkdir -p units
    cp "$top_srcdir"/systemd/*.{socket,target,timer} units/
    for unit in "$top_builddir"/systemd/*.service; do
        sed "s,^ExecStart=/.*/nbdedup ,ExecStart=$top_builddir/tools/nbdedup ," \
            "$unit" >"units/$(basename "$unit")"
    done
    export SYSTEMD_UNIT_PATH="$PWD/units:"
}

# words UNIT [CONF]: the words of the unit's command for the pool "vms", each on
# a line, with this file of settings.
words ()
(
    local unit=units/$1

    eval "$(sed -n 's/^Environment=\(.*\)/export \1/p' "$unit" |
                sed 's/%i/vms/g')"
    # shellcheck source=/dev/null
    [ -z "${2-}" ] || source "$2"
    # The whole path of a plugin that is not where nbdkit looks for it.
    eval "printf '%s\n' $(sed -n 's/^ExecStart=//p' "$unit")" |
        sed 's,^/.*/nbdkit-dedup-plugin\.so$,dedup,'
)

# manage NAME [KEY=VALUE...]: run the command of nbdedup@.service on $pool, with
# a socket that stays; what it tells its manager is in ./told.
manage ()
{
    sock=$BATS_TEST_TMPDIR/managed.sock
    nbdkit_for_sanitizers
    python3 "$top_srcdir/tests/bats/manager.py" "$sock" told \
            nbdkit "$plugin" "pool=$pool" "$@" >log 2>&1 3>&- 4>&- &
    manager=$!
    wait_for 60 test -e told
}

# nbdkit_for_sanitizers: an nbdkit that can load a plugin built with them.
nbdkit_for_sanitizers ()
{
    [ -n "$sanitizer_preload" ] || return 0
    mkdir -p bin
    printf '#!/bin/sh\nLD_PRELOAD=%q exec %q "$@"\n' "$sanitizer_preload" \
           "$(type -P nbdkit)" >bin/nbdkit
    chmod +x bin/nbdkit
    PATH="$PWD/bin:$PATH"
}

# server_pid: print the process id of the server that runs now.
server_pid ()
{
    sed -n 's/^pid //p' told | tail -n 1
}

# ready N: N servers have said that they are.
ready ()
{
    [ "$(grep -cx READY=1 told)" = "$1" ]
}

@test "systemd understands every unit" {
    local unit

    need systemd-analyze --version
    install_units
    for unit in units/*; do
        run -0 systemd-analyze --man=no verify "$unit"
        assert_eq "$output" "" "$unit"
    done
    # What is wrong is seen.
    sed 's/^RestartSec=/RestartSecs=/' 'units/nbdedup@.service' \
        >'units/wrong@.service'
    run systemd-analyze --man=no verify 'units/wrong@.service'
    [[ $output == *RestartSecs* ]] || fail "$output"
}

@test "systemd-analyze rates every service below 3.0" {
    local unit

    need systemd-analyze --version
    install_units
    for unit in units/*.service; do
        run -0 systemd-analyze security --offline=true --threshold=29 "./$unit"
    done
    # One that is rated worse is seen.
    sed -i '/^PrivateNetwork/d; /^Restrict/d; /^SystemCall/d; /^Protect/d' \
        "units/nbdedup@.service"
    run ! systemd-analyze security --offline=true --threshold=29 \
        "./units/nbdedup@.service"
}

@test "without a file of settings the pool is in /var/lib/nbdedup" {
    install_units
    run -0 words "nbdedup@.service"
    assert_eq "$output" $'nbdkit\ndedup\npool=/var/lib/nbdedup/vms'
    run -0 words "nbdedup-prune@.service"
    assert_eq "$output" "$top_builddir/tools/nbdedup"$'\nprune\n--age=90d'
    run -0 words "nbdedup-scrub@.service"
    assert_eq "$output" "$top_builddir/tools/nbdedup"$'\nscrub'
    run -0 words "nbdedup-drift@.service"
    assert_eq "$output" "$top_builddir/tools/nbdedup"$'\ndrift\n--record'
}

@test "every setting of the example is used by a unit, and every word valid" {
    local conf=settings unit key

    install_units
    sed 's/^#\([A-Z]\)/\1/; s/POOL\>/vms/g' "$top_srcdir/systemd/pool.conf" \
        >"$conf"
    sed -i 's/^NBDEDUP_vms=/NBDEDUP_POOL=/' "$conf"
    for key in $(sed -n 's/^\([A-Z_]*\)=.*/\1/p' "$conf"); do
        grep -q "^ExecStart=.*\$$key\>\|^ExecStart=.*\${$key}\|^Environment=$key=" units/*.service ||
            fail "no unit uses $key"
        grep -q "$key" "$top_srcdir/systemd/nbdedup-systemd.pod" ||
            fail "the page does not have $key"
    done
    run -0 words "nbdedup@.service" "$conf"
    assert_eq "$output" "$(printf '%s\n' nbdkit --filter=fua dedup \
        pool=/var/lib/nbdedup/vms attach=exclusive ddt-cache=1G)"

    # The commands take the options of the example.
    make_pool
    for unit in scrub drift prune; do
        mapfile -t command < <(words "nbdedup-$unit@.service" "$conf" |
            sed "s,/var/lib/nbdedup,$PWD,")
        "${command[@]}" >out
    done
}

@test "a server tells its manager when it is ready, and when it stops" {
    make_pool
    nbdedup create disk 1M
    manage
    wait_for 60 ready 1
    grep -qx "STATUS=Serving $pool" told
    nbdinfo --size "nbd+unix:///disk?socket=$sock"
    run ! grep STOPPING told
    kill "$manager"
    wait "$manager"
    manager=
    assert_eq "$(grep -cx STOPPING=1 told)" 1
}

@test "a server that cannot serve is not ready" {
    make_pool
    manage volume=none only=on
    # The manager has started it again and again.
    wait_for 60 sh -c '[ "$(grep -c ^pid told)" -ge 3 ]'
    run ! grep READY told
    grep -q "only=on" log
}

@test "after kill -9 the next server needs no hand, and clients wait for it" {
    local i

    make_pool
    nbdedup create disk 16M
    manage
    for i in 1 2 3; do
        wait_for 60 ready "$i"
        random_data 1M "$i" |
            nbdcopy --flush -- - "nbd+unix:///disk?socket=$sock"
        [ -e "$pool/lock" ]
        [ -S "$pool/control.sock" ]
        kill -9 "$(server_pid)"
        # The socket is there, and what its queue has is served later.
        assert_eq "$(nbdcopy "nbd+unix:///disk?socket=$sock" - |
                         head -c 1M | sha256sum)" \
                  "$(random_data 1M "$i" | sha256sum)"
    done
    wait_for 60 ready 4
    # The next command finds the new server.
    nbdedup create other 1M
    nbdinfo --size "nbd+unix:///other?socket=$sock"
}

#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2030,SC2031,SC2154
#
# The history of drift, as a server makes it by itself: at its interval, after
# snapshots of clones, and not if nothing has changed; and the property
# "drift-keep".  test-history and test-sampler check the inside of the engine,
# which is not repeated here.  teardown runs "nbdedup check", which reads every
# sample.

load ../rigs/helpers
load ../rigs/clients

setup ()
{
    need jq --version
    need qemu-io --version
}

# engine COMMAND [ARGS]: print the result, in JSON.
engine () { "$test_programs/rigs/engine-call" "$pool" "$@"; }

# told FILTER: apply a jq filter to the whole history.
told () { engine drift-history | jq -c "$1"; }

# samples GOLDEN: the number of its samples.
samples () { told "[.samples[] | select (.golden == \"$1\")] | length"; }

has_samples () { [ "$(samples "$1")" -ge "$2" ]; }

# sampler KEY: a value of the server's sampler.
sampler () { engine info | jq -r ".sampler.$1"; }

has_counted () { [ "$(sampler "$1")" -ge "$2" ]; }

# priorities: the nice values of the server's threads that differ from its own:
# the 19th field, if names have no blanks.
priorities ()
{
    find "/proc/$server_pid/task" -mindepth 1 -maxdepth 1 \
         -exec cut -d ' ' -f 19 '{}/stat' ';' | grep -vxe "$(nice)" || :
}

# low_priority: the nice value of a thread that leaves the CPUs to others.
low_priority () { echo "$(($(nice) > 9 ? 19 : $(nice) + 10))"; }

# has_low_priority N: N threads have it, and no thread has another than the
# server's.
has_low_priority ()
{
    [ "$(priorities | uniq -c | tr -s ' ')" = " $1 $(low_priority)" ]
}

# golden_and_clones: golden@v1 with the clones c1 and c2.
golden_and_clones ()
{
    make_pool --block-size 4K
    random_data 1M >"$BATS_TEST_TMPDIR/image"
    nbdedup import golden "$BATS_TEST_TMPDIR/image"
    nbdedup snapshot golden@v1
    nbdedup clone golden@v1 c --count 2
}

@test "a server takes samples on its interval, if something has changed" {
    local n

    golden_and_clones
    serve "$pool" drift-interval=1
    wait_for 20 has_samples golden@v1 1
    wait_for 20 has_counted skipped 2
    assert_eq "$(samples golden@v1)" 1
    io "$(uri_of c1)" 'write -q -P 7 8k 12k' flush
    wait_for 20 has_samples golden@v1 2
    # A sample has the same figures as "drift".
    assert_eq "$(told '.samples[-1] | del (.time)')" \
              "$(engine drift '{"name":"golden@v1"}' | jq -c 'del (.time)')"
    assert_eq "$(told '[.samples[].clones[0] | .golden_same + .zero]')" \
              "[256,253]"
    # A trim by another client.
    io "$(uri_of c2)" 'discard -q 0 64k' flush
    wait_for 20 has_samples golden@v1 3
    assert_eq "$(told '.samples[-1].clones[1].zero')" 16
    n=$(sampler skipped)
    wait_for 20 has_counted skipped $((n + 2))
    assert_eq "$(samples golden@v1)" 3
    # Times only increase, and all samples are there without the server, too.
    assert_eq "$(told '[.samples[].time] | . == sort')" true
    stop
    assert_eq "$(samples golden@v1)" 3
    assert_eq "$(engine info | jq .sampler)" null
}

@test "a snapshot of a clone makes a sample, one of anything else does not" {
    golden_and_clones
    serve "$pool"
    nbdedup snapshot golden@v2
    nbdedup create plain 1M
    nbdedup snapshot plain@v1
    io "$(uri_of c1)" 'write -q -P 7 8k 12k'
    # The sample has all written data, flushed or not.
    nbdedup snapshot c1@monday
    wait_for 20 has_samples golden@v1 1
    assert_eq "$(told '.samples[0].clones[0].golden_same')" 253
    nbdedup snapshot c2@monday
    wait_for 20 has_counted skipped 1
    assert_eq "$(told '.samples | length')" 1
    assert_eq "$(sampler samples)" 1
}

@test "drift-interval=0: only when asked" {
    golden_and_clones
    serve "$pool" drift-interval=0
    nbdedup snapshot c1@monday
    assert_eq "$(engine info | jq -c .sampler)" null
    engine drift '{"record":true}' >/dev/null
    assert_eq "$(samples golden@v1)" 1
    # The scrubber, the copier, the compactor, the puncher and the warmer.
    wait_for 20 has_low_priority 5
}

@test "threads of the background have a low priority, and no other thread has" {
    golden_and_clones
    serve "$pool" drift-interval=60
    # Their threads may start after the server is there.
    wait_for 20 has_low_priority 6
}

@test "what was recorded survives kill -9" {
    golden_and_clones
    serve "$pool" drift-interval=0
    io "$(uri_of c1)" 'write -q -P 7 8k 12k' flush
    engine drift '{"name":"golden@v1","record":true}' >"$BATS_TEST_TMPDIR/recorded"
    crash
    assert_eq "$(told '.samples[0]')" "$(jq -c . "$BATS_TEST_TMPDIR/recorded")"
}

@test "drift-keep is a property of the pool, and wrong ones are refused" {
    local value

    golden_and_clones
    assert_eq "$(nbdedup get drift-keep)" \
              all:1d,hourly:7d,daily:90d,weekly:10y
    nbdedup set drift-keep=hourly:2w,weekly:forever
    assert_eq "$(nbdedup get drift-keep)" hourly:2w,weekly:forever
    for value in '' all all:1m hourly:30 daily:1d,hourly:2d all:1d,daily:1d \
                    all:forever,weekly:forever; do
        run -2 --separate-stderr nbdedup set "drift-keep=$value"
        [[ $stderr == "nbdedup: set: drift-keep"*": "* ]] ||
            fail "drift-keep=$value: $stderr"
    done
    assert_eq "$(nbdedup get drift-keep)" hourly:2w,weekly:forever
    # Of two samples in one hour the first stays; the newest always stays.
    engine drift '{"record":true}' >/dev/null
    engine drift '{"record":true}' >/dev/null
    engine drift '{"record":true}' >/dev/null
    assert_num "$(samples golden@v1) == 2 || $(samples golden@v1) == 3"
    run -2 nbdedup set drift-keep=all:1d c1
}

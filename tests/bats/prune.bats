#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# prune: a smaller dedup table, and the same data.

load ../rigs/helpers

setup ()
{
    need jq --version
    random_data 2M 1 >a
    random_data 2M 2 >b
    make_pool --block-size 4K
    nbdedup import a a
    # Half of it is in both.
    { head -c 1M a; head -c 1M b; } >ab
    nbdedup import ab ab
}

# entries: print how many entries the dedup table has.
entries ()
{
    pool_stat ddt.entries
}

all_is_there ()
{
    nbdedup export a - | cmp - a
    nbdedup export ab - | cmp - ab
    nbdedup check >/dev/null
    nbdedup scrub >/dev/null
}

# figures: print those that prune must not change.
figures ()
{
    nbdedup stat --ddt --json | jq -c '.volumes, (.pool |
        {logical_bytes, records, record_bytes, stored_bytes, dedup_ratio},
        .ddt.histogram)'
}

# The 256 blocks that both have stay, and the other 512 go.
prunes ()
{
    local before

    before=$(figures)
    assert_eq "$(entries)" 768
    assert_eq "$(nbdedup prune --percent 100 --dry-run)" \
              "would remove 512 of 768 entries of the dedup table"
    assert_eq "$(entries)" 768
    assert_eq "$(nbdedup prune --percent 25)" \
              "removed 128 of 768 entries of the dedup table"
    assert_eq "$(entries)" 640
    assert_eq "$(nbdedup prune --age 0s --json | jq -c .)" \
        '{"entries_before":640,"entries_after":256,"pruned_entries":384}'
    assert_eq "$(entries)" 256
    assert_eq "$(figures)" "$before"
    all_is_there

    # What both had is found, the rest is stored again, and found then.
    nbdedup import a2 a
    assert_eq "$(pool_stat records)" 1024
    nbdedup import a3 a
    assert_eq "$(pool_stat records)" 1024
    all_is_there
}

@test "prune removes what nothing shares, and changes nothing else" {
    prunes
}

@test "prune does the same through a server" {
    serve "$pool"
    prunes
}

# would_prune ARG...: print how many entries prune would remove.
would_prune ()
{
    nbdedup prune "$@" --dry-run --json | jq .pruned_entries
}

all_are_old () { [ "$(would_prune --age 2s)" = 512 ]; }

@test "prune removes the oldest first" {
    wait_for 30 all_are_old
    assert_eq "$(would_prune --age 1h)" 0
    random_data 1M 3 >c
    nbdedup import c c
    assert_eq "$(nbdedup prune --percent 10 --json | jq .pruned_entries)" 76
    # 692 are left that nothing shares, of which 256 are of c.
    assert_eq "$(nbdedup prune --percent 63 --json | jq .pruned_entries)" 435
    nbdedup import c2 c
    assert_eq "$(pool_stat records)" 1024
    assert_eq "$(nbdedup prune --age 0s --json | jq .pruned_entries)" 1
    all_is_there
}

@test "a table below its quota again takes new entries" {
    nbdedup set ddt-quota=20K
    random_data 1M 3 >c
    nbdedup import c c
    assert_eq "$(pool_stat ddt.over_quota)" 256
    assert_eq "$(entries)" 768
    nbdedup prune --percent 100 >/dev/null
    assert_eq "$(entries)" 256
    random_data 64K 4 >d
    nbdedup import d d
    assert_eq "$(entries)" 272
    assert_eq "$(pool_stat ddt.over_quota)" 256
    nbdedup destroy c
    all_is_there
}

@test "entries of snapshots and clones are pruned, and their data stays" {
    nbdedup snapshot a@1
    nbdedup clone a@1 clone
    nbdedup prune --percent 100 >/dev/null
    nbdedup export clone - | cmp - a
    nbdedup destroy a -r --force
    nbdedup export clone - | cmp - a
    nbdedup destroy clone --wait
    assert_eq "$(pool_stat records)" 512
}

@test "prune --dry-run needs no write, and prune refuses a read-only pool" {
    stat -c '%n %Y %s' "$pool"/* >before
    assert_eq "$(nbdedup --read-only prune --percent 50 --dry-run)" \
              "would remove 256 of 768 entries of the dedup table"
    misused "read-only" prune --read-only --percent 50
    stat -c '%n %Y %s' "$pool"/* | cmp - before
    serve "$pool"
    misused "read-only" prune --read-only --percent 50
}

# Clients write, and the server is killed, at any moment of it.
@test "prune goes on beside writes, and kill -9 amid it costs nothing" {
    local i copy prune

    for i in 1 2 3 4 5 6; do
        serve "$pool"
        random_data 1M "$((i + 10))" >new
        nbdcopy --flush new "$(uri_of a)" 2>/dev/null &
        copy=$!
        nbdedup prune --percent 30 >/dev/null 2>&1 &
        prune=$!
        sleep "0.0$i"
        crash
        wait "$copy" || :
        wait "$prune" || :
        nbdedup check
        nbdedup export ab - | cmp - ab
    done
    nbdedup scrub
    nbdedup prune --percent 100 >/dev/null
    nbdedup export ab - | cmp - ab
}

@test "prune can be interrupted, and repeated" {
    nbdedup prune --percent 100 &
    kill -INT $!
    wait $! || :
    nbdedup check
    nbdedup prune --percent 100 >/dev/null
    assert_eq "$(entries)" 256
    all_is_there
}

# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2030,SC2031,SC2154
#
# The fleet of drift.bats and drift-long.bats.  "load" it after helpers, clients
# and drift.

setup_file ()
{
    export PATH=$PATH:/sbin:/usr/sbin
    need mke2fs -V
    need sqlite3 --version
    need mkswap --version
    export base=$BATS_FILE_TMPDIR/base.raw
    mke2fs -q -t ext4 -b 4096 -E hash_seed=00000000-0000-4000-8000-000000000001 \
           -d "$top_srcdir/tests" "$base" 28M
}

setup ()
{
    need qemu-io --version
    need nbdcopy --version
}

# day NAME SEED [STEPS]: apply a day's changes to a machine.  A fleet's n-th
# day is the same in blocks of any size, so it is made only once: diverge takes
# longer than everything else.
day ()
{
    local images=$BATS_FILE_TMPDIR/day$((++nr_days))

    if [ ! -e "$images/done" ]; then
        rm -rf "$images"
        mkdir "$images"
        nbdedup export "$1" "$images/before"
        cp --sparse=always "$images/before" "$images/after"
        bash "$top_srcdir/vm-images/diverge" --seed "$2" \
             --steps "${3:-logs,database,swap}" "$images/after"
        touch "$images/done"
    fi
    "$test_programs/bats/write-changes" "$sock" "$1" "$images/before" \
        "$images/after"
}

# fleet BLOCK-SIZE: serve a pool with all kinds of changes, or a copy of the one
# that another test has kept.
fleet ()
{
    if [ -e "$BATS_FILE_TMPDIR/fleet-$1" ]; then
        pool="$BATS_TEST_TMPDIR/pool"
        export NBDEDUP_POOL="$pool"
        cp -r --sparse=always "$BATS_FILE_TMPDIR/fleet-$1" "$pool"
        serve "$pool"
    else
        make_fleet "$1"
    fi
}

# keep_fleet BLOCK-SIZE: keep it for the next tests; no server has it open.
keep_fleet ()
{
    local kept=$BATS_FILE_TMPDIR/fleet-$1

    cp -r --sparse=always "$pool" "$kept-new"
    mv "$kept-new" "$kept"
}

make_fleet ()
{
    local bs=$1 nr_days=0

    make_pool
    nbdedup import golden "$base" --block-size "$bs"
    nbdedup snapshot golden@v1
    serve "$pool"
    nbdedup clone golden@v1 web --count 5 >/dev/null

    # The same on two machines; other changes on others; none on web4.
    day web1 monday
    day web3 monday
    day web2 sunday logs,swap
    day web3 tuesday logs

    # A clone of a clone; and a clone of a machine that is destroyed.
    nbdedup snapshot web1@base
    nbdedup clone web1@base sub
    day sub friday
    nbdedup clone golden@v1 mid
    day mid monday database
    nbdedup snapshot mid@s
    nbdedup clone mid@s leaf --count 2 >/dev/null
    nbdedup destroy mid -r --force
    day leaf1 friday logs

    # Without dedup: contents that have several records.
    nbdedup set dedup=off web3
    day web3 monday swap
    day web3 friday logs

    # Roll back, and continue from there.
    nbdedup snapshot web2@keep
    day web2 thursday
    nbdedup rollback web2@keep
    day web2 friday logs

    # The golden image's next release; clones that move to it or back.
    day golden upgrade database
    nbdedup snapshot golden@v2
    nbdedup clone golden@v2 new --count 2 >/dev/null
    day new1 friday logs
    nbdedup rebase new2 golden@v1 >/dev/null
    nbdedup rebase leaf2 golden@v2 >/dev/null

    # Other sizes: larger, with data there; smaller, and not of whole blocks.
    nbdedup resize web2 32M
    io "$(uri_of web2)" "write -s $base 29M 1M" 'write -P 9 30M 3k' flush
    nbdedup clone golden@v1 small
    nbdedup resize small 5632000 --shrink
    io "$(uri_of small)" 'write -P 9 5600000 32000' flush

    # Overwritten with the same; moved; trimmed; parts of blocks.
    nbdcopy "$base" "$(uri_of web4)"
    io "$(uri_of web5)" "write -s $base 4M 1M" "write -s $base 9M 2M" \
       'discard 2M 1M' 'write -z 12M 1M' 'write -P 7 15M 1M' \
       'write -P 7 20000000 100000' 'discard 15700000 1000' 'write -P 0 1M 64k' \
       flush
}

families_are_exact ()
{
    drift_is_exact golden@v1 "$1" leaf1 new2 small sub web1 web2 web3 web4 web5
    drift_is_exact golden@v2 "$1" leaf2 new1
    drift_is_exact web1@base "$1" sub
    drift_is_exact web2@keep "$1"
}

# exact BLOCK-SIZE: while it is served, and while it is not.  All sizes run the
# same code, so three are enough for sanitizers.
exact ()
{
    [[ -z $sanitizer_preload || $1 =~ ^(4096|65536|1048576)$ ]] ||
        skip "for sanitizers it is like another size"
    fleet "$1"
    families_are_exact "$1"
    stop
    families_are_exact "$1"
    case $1 in 4096|16384|65536) keep_fleet "$1" ;; esac
}

# freed BLOCK-SIZE: what comes back is what destroying gives back.
freed ()
{
    fleet "$1"
    stop
    settled
    only_here_is_exact golden@v1
    only_here_is_exact golden@v2
    if_destroyed_is_exact web3
    if_destroyed_is_exact web1 sub
    if_destroyed_is_exact sub web2 leaf1
    if_destroyed_is_exact golden@v1
    if_destroyed_is_exact golden@v1 golden@v2 web1@base
    if_destroyed_is_exact golden
    if_destroyed_is_exact web1@base web1
    if_destroyed_is_exact golden web1 web2 web3 web4 web5 sub small leaf1 \
                          leaf2 new1 new2
}

#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2016,SC2030,SC2031,SC2034,SC2154
#
# Golden images: snapshot, clone, rollback, destroy, rename, rebase, diff; each
# rule offline and through a running server.  golden-serve.bats has what NBD
# clients see of them.  teardown runs "nbdedup check" after every test.

load ../rigs/helpers
load ../rigs/clients

setup ()
{
    need qemu-io --version
    need jq --version
}

# mode offline|online: whether a server has the pool open from now on.
mode ()
{
    make_pool
    mode=$1
    [ "$mode" = offline ] || serve "$pool"
}

# change NAME COMMAND...: run qemu-io through the server, or through a temporary
# one.
change ()
{
    local name=$1 args=() command

    shift
    if [ "$mode" = online ]; then
        io "$(uri_of "$name")" "$@" flush
        # The server sees the end when all threads of the connection have ended.
        wait_for 30 has_no_clients "$name"
        return
    fi
    for command in "$@" flush; do args+=("-c '$command'"); done
    # Libraries preloaded into nbdkit in a build with sanitizers make QEMU hang.
    run nbdkit -U - "$plugin" "pool=$pool" \
        --run "env -u LD_PRELOAD qemu-io -f raw 'nbd+unix:///$name?socket='\$unixsocket ${args[*]}" \
        3>&- 4>&-
    if [ "$status" != 0 ] || grep -qiE 'failed|error' <<<"$output"; then
        fail "qemu-io:" "$output"
    fi
}

has_no_clients ()
{
    [ "$(about "$1" .clients)" = 0 ]
}

# content NAME: a checksum of the content.
content ()
{
    nbdedup export "$1" - | sha256sum | cut -d' ' -f1
}

json ()
{
    nbdedup "$@" --json | jq -e .
}

# about NAME JQ: a value from the volume's object in list.
about ()
{
    json list | jq -cr --arg n "$1" ".volumes[] | select (.name == \$n) | $2"
}

volumes ()
{
    json list | jq -r '[.volumes[].name] | join (" ")'
}

# wrong_usage COMMAND...
wrong_usage ()
{
    run -2 --separate-stderr nbdedup "$@"
    assert_eq "$(wc -l <<<"$stderr")" 1 "nbdedup $*: lines"
    [[ $stderr == *"--help"* ]] || fail "nbdedup $*: $stderr"
}

# silently COMMAND...: it succeeds, and prints nothing.
silently ()
{
    run -0 nbdedup "$@"
    assert_eq "$output" "" "nbdedup $*"
}

# golden_v1: the volume golden, 6 MiB of 16 KiB blocks, with data, text and a
# hole of 1 MiB, and its snapshot v1.
golden_v1 ()
{
    { random_data 3M 1; head -c 1M /dev/zero; text_data 2M 2
    } >"$BATS_TEST_TMPDIR/image"
    nbdedup import golden "$BATS_TEST_TMPDIR/image" --block-size 16K
    nbdedup snapshot golden@v1
}


#----------------------------------------------------------------------
# Snapshots

snapshots ()
{
    local before after

    mode "$1"
    golden_v1
    before=$(date +%s)
    change golden 'write -P 1 100k 100k'
    silently snapshot golden@v2
    after=$(date +%s)
    assert_eq "$(about golden '[.snapshots[].name]')" '["v1","v2"]'
    assert_num "$(about golden '.snapshots[1].time') >= $before"
    assert_num "$(about golden '.snapshots[1].time') <= $after"
    assert_eq "$(about golden .own_bytes)" 0
    assert_eq "$(about golden .origin)" null

    # Snapshots do not change.
    change golden 'write -P 2 0 3M' 'write -z 4M 1M'
    assert_num "$(about golden .own_bytes) >= 3 * 1048576"
    assert_eq "$(content golden@v1)" \
              "$(sha256sum <"$BATS_TEST_TMPDIR/image" | cut -d' ' -f1)"
    change golden 'read -P 2 0 3M'
    [ "$(content golden@v2)" != "$(content golden@v1)" ]

    # stat has volumes, not snapshots.
    assert_eq "$(json stat | jq -c '[.volumes[].name]')" '["golden"]'
    assert_eq "$(json stat golden | jq '.volumes[0].logical_bytes')" \
              $((4 * 1048576))
}

@test "a snapshot stays what it is, offline" { snapshots offline; }
@test "a snapshot stays what it is, through a server" { snapshots online; }

several_snapshots ()
{
    mode "$1"
    golden_v1
    nbdedup clone golden@v1 web --count 2
    nbdedup create empty 1M

    # One of them cannot be, so none is made.
    refused nothing snapshot web1@a nothing@a web2@a
    refused "'golden@v1'" snapshot web1@a golden@v1
    misused "web1@a and web1@b" snapshot web1@a web2@a web1@b
    assert_eq "$(about web1 '.snapshots')" "[]"

    change web1 'write -P 1 0 1M'
    change web2 'write -P 2 1M 100k'
    silently snapshot web1@a golden@v2 empty@x web2@b
    assert_eq "$(json list |
                     jq -c '[.volumes[] | .name as $n | .snapshots[] | $n + "@" + .name]')" \
              '["empty@x","golden@v1","golden@v2","web1@a","web2@b"]'
    assert_eq "$(json list | jq '[.volumes[].snapshots[] | select(.name != "v1") | .time] |
                                 unique | length')" 1
    change web1 'write -P 3 0 1M'
    change web2 'write -P 4 0 2M'
    silently rollback web1@a
    silently rollback web2@b
    change web1 'read -P 1 0 1M'
    change web2 'read -P 2 1M 100k'
    assert_eq "$(json history |
                     jq -c '[.history[] | select(.names | length == 4)] |
                            map([.event, .names[1]])')" \
              '[["snapshot","golden@v2"]]'
}

@test "snapshots of several volumes are all made or none, offline" {
    several_snapshots offline
}
@test "snapshots of several volumes are all made or none, through a server" {
    several_snapshots online
}

@test "list shows snapshots below their volume, with their time" {
    mode offline
    golden_v1
    nbdedup clone golden@v1 web1
    run -0 nbdedup list
    assert_eq "${#lines[@]}" 4
    [[ ${lines[1]} =~ ^golden\ .*\ -$ ]]
    [[ ${lines[2]} =~ ^golden@v1\ +6\.00\ MiB\ .*\ 0\ +$(date +%Y)-[0-9-]+\ [0-9:]+\ +-$ ]]
    [[ ${lines[3]} =~ ^web1\ +6\.00\ MiB\ .*\ golden@v1$ ]]
}

bad_snapshots ()
{
    mode "$1"
    golden_v1
    refused "golden@v1" snapshot golden@v1
    refused "nothing" snapshot nothing@v1
    misused "golden@v1@w" snapshot golden@v1@w
    misused "letters" snapshot "golden@a b"
    misused "too long" snapshot "golden@$(printf '%0256d' 1)"
    misused "@" create golden@v2 1M
    misused "@" import golden@v2 "$BATS_TEST_TMPDIR/image"
    misused "golden@v1" resize golden@v1 20M
    misused "golden@v1" set compress=none golden@v1
    assert_eq "$(about golden '[.snapshots[].name]')" '["v1"]'
}

@test "what can be no snapshot is refused, offline" { bad_snapshots offline; }
@test "what can be no snapshot is refused, through a server" {
    bad_snapshots online
}

@test "a name without a snapshot, or without a volume, is wrong usage" {
    mode offline
    for command in snapshot rollback; do
        wrong_usage $command
        wrong_usage $command golden
        wrong_usage $command golden@
        wrong_usage $command @v1
        wrong_usage $command golden@v1 golden@v2
    done
    wrong_usage clone golden@v1
    wrong_usage clone golden web1
    wrong_usage clone golden@v1 web --count 0
    wrong_usage clone golden@v1 web --count -1
    wrong_usage clone golden@v1 web --count 1.5
    wrong_usage clone golden@v1 web --count 99999999999999999999
    wrong_usage clone golden@v1 web --start 5
    wrong_usage rebase web1
    wrong_usage rebase web1 golden
    wrong_usage diff golden@v1
    wrong_usage diff golden@v1 golden
}

#----------------------------------------------------------------------
# Clones

clones ()
{
    local golden

    mode "$1"
    golden_v1
    golden=$(content golden)
    silently clone golden@v1 web1
    assert_eq "$(about web1 '[.size, .block_size, .own_bytes, .origin]')" \
              '[6291456,16384,0,"golden@v1"]'
    assert_eq "$(about web1 .logical_bytes)" "$(about golden .logical_bytes)"
    assert_eq "$(content web1)" "$golden"

    # Each of them can be changed on its own.
    change web1 'write -P 1 1000 5000' 'write -z 2M 100k' 'discard 5M 300k'
    change golden 'write -P 2 3000 70000'
    change web1 'read -P 1 1000 5000' 'read -P 0 2M 100k' 'read -P 0 5M 300k'
    change golden 'read -P 2 3000 70000'
    assert_eq "$(content golden@v1)" "$golden"

    run -0 nbdedup clone golden@v1 desk --count 3
    assert_eq "$output" $'desk1\ndesk2\ndesk3'
    run -0 nbdedup clone golden@v1 desk --count 2 --start 9
    assert_eq "$output" $'desk9\ndesk10'
    assert_eq "$(nbdedup clone golden@v1 one --json | jq -c .)" \
              '{"clones":["one"]}'
    assert_eq "$(nbdedup clone golden@v1 n --count 2 --start 0 --json | jq -c .)" \
              '{"clones":["n0","n1"]}'
    assert_eq "$(content desk10)" "$golden"
    assert_eq "$(volumes)" \
              "desk1 desk2 desk3 desk9 desk10 golden n0 n1 one web1"
}

@test "clones start as their golden image and go their own way, offline" {
    clones offline
}
@test "clones start as their golden image and go their own way, through a server" {
    clones online
}

clones_all_or_none ()
{
    mode "$1"
    golden_v1
    nbdedup create desk2 1M
    refused desk2 clone golden@v1 desk --count 3
    refused desk2 clone golden@v1 desk2
    misused "" clone golden@v1 "$(printf '%0255d' 1)" --count 10
    refused v2 clone golden@v2 desk
    refused nothing clone nothing@v1 desk
    misused "no @" clone golden@v1 desk@x
    misused letters clone golden@v1 desk:x
    assert_eq "$(volumes)" "desk2 golden"
}

@test "of many clones all are made or none, offline" {
    clones_all_or_none offline
}
@test "of many clones all are made or none, through a server" {
    clones_all_or_none online
}

@test "a clone has the properties of its golden image, and may change them" {
    mode offline
    nbdedup create golden 1M --block-size 64K --compress zstd-7 --dedup verify
    nbdedup set "allow=0,4711" golden
    nbdedup set domain=tenant golden
    nbdedup snapshot golden@v1
    nbdedup clone golden@v1 web1
    for property in block-size compress dedup allow domain; do
        assert_eq "$(nbdedup get $property web1)" \
                  "$(nbdedup get $property golden)" $property
    done
    nbdedup set compress=none web1
    nbdedup set allow=all web1
    assert_eq "$(nbdedup get compress golden)" zstd-7
    assert_eq "$(nbdedup get allow golden)" 0,4711
}

@test "a clone may be larger or smaller than its golden image" {
    mode offline
    golden_v1
    nbdedup clone golden@v1 web --count 2
    nbdedup resize web1 20M
    change web1 'read -P 0 6M 14M' 'write -P 1 10M 1M' 'write -P 3 6291400 200'
    nbdedup export golden "$BATS_TEST_TMPDIR/golden"
    nbdedup export web1 "$BATS_TEST_TMPDIR/web1"
    cmp -n 6291400 "$BATS_TEST_TMPDIR/golden" "$BATS_TEST_TMPDIR/web1"

    # The dropped data does not come back.
    nbdedup resize web2 $((5 * 1048576 + 512)) --shrink
    nbdedup resize web2 6M
    change web2 "read -P 0 $((5 * 1048576 + 512)) $((1048576 - 512))"
    assert_eq "$(nbdedup export web2 - | head -c $((5 * 1048576 + 512)) | sha256sum)" \
              "$(head -c $((5 * 1048576 + 512)) "$BATS_TEST_TMPDIR/image" | sha256sum)"
    assert_eq "$(about golden .size)" 6291456
}

clone_of_clone ()
{
    local i name=golden

    mode "$1"
    golden_v1
    for i in {1..8}; do
        nbdedup clone "$name@v1" "level$i"
        change "level$i" "write -P $i ${i}00k 64k"
        nbdedup snapshot "level$i@v1"
        name=level$i
    done
    assert_eq "$(about level8 .origin)" level7@v1
    for i in {1..8}; do
        change level8 "read -P $i ${i}00k 64k"
    done
    change level7 "read -P 7 700k 64k"

    # Destroying one in the middle does not affect the others.
    before=$(content level8)
    nbdedup destroy level4 -r --force --wait
    nbdedup destroy level7 -r --force --wait
    assert_eq "$(content level8)" "$before"
    assert_eq "$(about level8 .origin)" "level7@v1 (destroyed)"
    assert_eq "$(about level5 .origin)" "level4@v1 (destroyed)"
}

@test "clones of clones, and some destroyed in between, offline" {
    clone_of_clone offline
}
@test "clones of clones, and some destroyed in between, through a server" {
    clone_of_clone online
}

#----------------------------------------------------------------------
# Rollback

rollbacks ()
{
    local v1 v2

    mode "$1"
    golden_v1
    v1=$(content golden)
    change golden 'write -P 1 64k 1M' 'discard 4M 1M'
    nbdedup snapshot golden@v2
    v2=$(content golden)
    nbdedup resize golden 12M
    change golden 'write -P 2 5M 6M'

    silently rollback golden@v1
    assert_eq "$(about golden '[.size, .own_bytes]')" '[6291456,0]'
    assert_eq "$(content golden)" "$v1"
    assert_eq "$(about golden '[.snapshots[].name]')" '["v1","v2"]'
    assert_eq "$(content golden@v2)" "$v2"

    # And forward again, to a snapshot that was taken later.
    change golden 'write -P 3 0 1M'
    silently rollback golden@v2
    assert_eq "$(content golden)" "$v2"
    nbdedup snapshot golden@v3
    assert_eq "$(json diff golden@v2 golden@v3)" '[]'
    refused v4 rollback golden@v4
    refused nothing rollback nothing@v1
}

@test "a rollback brings back content and size, and keeps later snapshots, offline" {
    rollbacks offline
}
@test "a rollback brings back content and size, and keeps later snapshots, through a server" {
    rollbacks online
}

@test "a clone is rolled back to its own snapshots only" {
    mode offline
    golden_v1
    nbdedup clone golden@v1 web1
    nbdedup snapshot web1@fresh
    change web1 'write -P 1 0 1M'
    refused v1 rollback web1@v1
    nbdedup rollback web1@fresh
    assert_eq "$(content web1)" "$(content golden@v1)"
    assert_eq "$(about web1 '[.own_bytes, .origin]')" '[0,"golden@v1"]'
}

#----------------------------------------------------------------------
# Destroy

destroys ()
{
    local web1

    mode "$1"
    golden_v1
    change golden 'write -P 1 0 1M'
    nbdedup snapshot golden@v2
    nbdedup clone golden@v1 web1
    change web1 'write -P 2 1M 1M'
    web1=$(content web1)

    refused "-r" destroy golden
    refused "--force" destroy golden -r
    refused "--force" destroy golden@v1
    refused v3 destroy golden@v3
    refused nothing destroy nothing
    refused nothing destroy nothing@v1

    # A snapshot without clones needs no option.
    run -0 nbdedup destroy golden@v2 --dry-run
    [[ ${lines[0]} == "would destroy golden@v2" ]]
    silently destroy golden@v2
    assert_eq "$(about golden '[.snapshots[].name]')" '["v1"]'

    # A snapshot with clones: the clones stay.
    silently destroy golden@v1 --force
    assert_eq "$(about golden '[.snapshots[].name]')" '[]'
    assert_eq "$(about web1 .origin)" "golden@v1 (destroyed)"
    assert_eq "$(json stat web1 | jq -r '.volumes[0].origin')" \
              "golden@v1 (destroyed)"
    assert_eq "$(content web1)" "$web1"

    # Another snapshot may use its name, and is a different one.
    nbdedup snapshot golden@v1
    assert_eq "$(about web1 .origin)" "golden@v1 (destroyed)"
    assert_eq "$(json destroy golden -r | jq -c '.destroyed | sort')" \
              '["golden","golden@v1"]'
    assert_eq "$(content web1)" "$web1"
    silently destroy web1 --wait
    assert_eq "$(json stat | jq -c '.pool | [.records, .freeing_bytes, .stored_bytes]')" \
              '[0,0,0]'
}

@test "destroy asks for -r and --force where it must, and clones live on, offline" {
    destroys offline
}
@test "destroy asks for -r and --force where it must, and clones live on, through a server" {
    destroys online
}

@test "a golden image that was destroyed gives space back as its clones let go" {
    local stored

    mode online
    golden_v1
    nbdedup clone golden@v1 web --count 2
    nbdedup destroy golden -r --force --wait
    assert_eq "$(volumes)" "web1 web2"
    stored=$(pool_stat stored_bytes)
    nbdedup destroy web1 --wait
    assert_eq "$(pool_stat stored_bytes)" "$stored"

    # The last one overwrites 2 MiB of random data.
    change web2 'write -z 0 2M'
    nbdedup snapshot web2@x
    nbdedup destroy web2@x --wait
    stop
    nbdedup destroy web2 -r --wait
    assert_eq "$(json stat | jq -c '.pool | [.records, .stored_bytes]')" '[0,0]'
}

@test "--dry-run of destroy says what comes back, and changes nothing" {
    local freed before

    mode offline
    golden_v1
    nbdedup clone golden@v1 web1
    random_data 1M 7 >"$BATS_TEST_TMPDIR/data"
    change web1 "write -s $BATS_TEST_TMPDIR/data 0 1M"
    freed=$(json destroy web1 --dry-run | jq .freed_bytes)
    assert_num "$freed >= 1048576 && $freed < 1300000"
    assert_eq "$(json destroy golden@v1 --force --dry-run | jq .freed_bytes)" 0
    assert_eq "$(json destroy golden -r --force --dry-run |
                     jq -c '.destroyed | sort')" '["golden","golden@v1"]'
    assert_eq "$(volumes)" "golden web1"
    before=$(pool_stat stored_bytes)
    nbdedup destroy web1 --wait
    assert_eq "$(pool_stat stored_bytes)" $((before - freed))
}

destroys_several ()
{
    mode "$1"
    golden_v1
    nbdedup clone golden@v1 web --count 3
    nbdedup snapshot web3@x

    # One of the names is refused, so nothing is destroyed.
    refused nothing destroy web1 nothing web2
    refused "-r" destroy web1 web3
    refused "--force" destroy web1 golden@v1
    refused "'y'" destroy web1 web3@y
    assert_eq "$(volumes)" "golden web1 web2 web3"
    assert_eq "$(about golden '[.snapshots[].name]')" '["v1"]'

    # A name that goes with another needs no option, in any order, also twice.
    assert_eq "$(json destroy web3 web1 web3@x web1 |
                     jq -c '.destroyed | sort')" '["web1","web3","web3@x"]'
    assert_eq "$(volumes)" "golden web2"
    silently destroy golden golden@v1 web2 --wait
    assert_eq "$(volumes)" ""
    assert_eq "$(json stat | jq -c '.pool | [.records, .freeing_bytes, .stored_bytes]')" \
              '[0,0,0]'
}

@test "destroy takes several names, all or none, offline" {
    destroys_several offline
}
@test "destroy takes several names, all or none, through a server" {
    destroys_several online
}

@test "--dry-run of destroy needs no option, and says what would need one" {
    local all

    mode online
    golden_v1
    nbdedup clone golden@v1 web1
    random_data 1M 7 >"$BATS_TEST_TMPDIR/data"
    change web1 "write -s $BATS_TEST_TMPDIR/data 0 1M"
    all=$(json destroy golden web1 -r --force --dry-run)
    jq -e '.needs == [] and .freed_bytes > 1048576' <<<"$all"
    run -0 nbdedup destroy golden --dry-run --json
    jq -e '(.destroyed | sort) == ["golden", "golden@v1"] and
           (.needs | map (.option)) == ["-r", "--force"] and
           (.needs[0].why | contains ("1 snapshot")) and
           (.needs[1].why | contains ("1 clone"))' <<<"$output"
    run -0 nbdedup destroy golden --dry-run
    [[ ${lines[2]} == "would need -r: volume golden has 1 snapshot"* ]]
    [[ ${lines[3]} == "would need --force: golden@v1 has 1 clone"* ]]
    [[ ${lines[4]} == "would free "* ]]
    run -0 nbdedup destroy web1 golden --dry-run --json
    jq -e --argjson all "$all" '(.needs | map (.option)) == ["-r"] and
           .freed_bytes == $all.freed_bytes' <<<"$output"
    # With a client, which is not disturbed.
    hold "$(uri_of web1)" 'read 0 4K'
    run -0 nbdedup destroy web1 --dry-run
    [[ ${lines[1]} == "would need --force: web1 is in use by 1 client"* ]]
    let_go
    assert_eq "$(volumes)" "golden web1"
}

#----------------------------------------------------------------------
# Rename

renames ()
{
    mode "$1"
    golden_v1
    nbdedup snapshot golden@v2
    nbdedup clone golden@v1 web1
    silently rename golden@v1 golden@gold
    assert_eq "$(about golden '[.snapshots[].name] | sort')" '["gold","v2"]'
    assert_eq "$(about web1 .origin)" golden@gold
    silently rename golden debian
    assert_eq "$(about web1 .origin)" debian@gold
    assert_eq "$(content debian@gold)" "$(content web1)"
    refused v2 rename debian@gold debian@v2
    misused "" rename debian@gold web1@gold
    misused "" rename debian@gold debian
    misused "" rename debian debian@new
    refused v1 rename debian@v1 debian@v3
    assert_eq "$(about debian '[.snapshots[].name] | sort')" '["gold","v2"]'
}

@test "snapshots are renamed, and origins follow, offline" { renames offline; }
@test "snapshots are renamed, and origins follow, through a server" {
    renames online
}

#----------------------------------------------------------------------
# Rebase

# two_goldens: golden@v2 has 1 MiB of text more than golden@v1.  web1, a clone
# of v1, has the same upgrade, and a change of its own.
two_goldens ()
{
    golden_v1
    text_data 1M 5 >"$BATS_TEST_TMPDIR/upgrade"
    nbdedup clone golden@v1 web1
    change golden "write -s $BATS_TEST_TMPDIR/upgrade 1M 1M"
    nbdedup snapshot golden@v2
    change web1 "write -s $BATS_TEST_TMPDIR/upgrade 1M 1M" 'write -P 9 4M 64k'
}

rebases ()
{
    local before dry

    mode "$1"
    two_goldens
    before=$(content web1)
    assert_eq "$(about web1 .own_bytes)" $((1048576 + 65536))
    dry=$(json rebase web1 golden@v2 --dry-run | jq -c .)
    assert_eq "$(jq .logical_bytes <<<"$dry")" "$(about web1 .logical_bytes)"
    assert_eq "$(jq .shared_bytes <<<"$dry")" \
              $(($(about web1 .logical_bytes) - 65536))
    assert_eq "$(jq .own_bytes_before <<<"$dry")" $((1048576 + 65536))
    assert_eq "$(jq .own_bytes_after <<<"$dry")" 65536
    assert_eq "$(jq .given_back_bytes <<<"$dry")" 1048576
    assert_eq "$(about web1 '[.own_bytes, .origin]')" \
              "[$((1048576 + 65536)),\"golden@v1\"]"

    assert_eq "$(json rebase web1 golden@v2 | jq -c .)" "$dry"
    assert_eq "$(about web1 '[.own_bytes, .origin]')" '[65536,"golden@v2"]'
    assert_eq "$(content web1)" "$before"

    # And back, with text output.
    run -0 nbdedup rebase web1 golden@v1 --dry-run
    assert_eq "$output" \
              "web1: would share 3.94 MiB of 5.00 MiB with golden@v1; \
own data 64.0 KiB -> 1.06 MiB, 0 B would no longer be its own"
    run -0 nbdedup rebase web1 golden@v1
    assert_eq "$output" "web1: shares 3.94 MiB of 5.00 MiB with golden@v1; \
own data 64.0 KiB -> 1.06 MiB, 0 B no longer its own"
    assert_eq "$(content web1)" "$before"
    assert_eq "$(about web1 .origin)" golden@v1
}

@test "a rebase keeps the content and gives back what the new parent has, offline" {
    rebases offline
}
@test "a rebase keeps the content and gives back what the new parent has, through a server" {
    rebases online
}

@test "a rebase promises no space for what is stored once already" {
    local stored

    mode offline
    golden_v1
    nbdedup export golden@v1 "$BATS_TEST_TMPDIR/same"
    nbdedup import x "$BATS_TEST_TMPDIR/same"
    stored=$(json stat | jq .pool.stored_bytes)
    run -0 nbdedup rebase x golden@v1 --dry-run
    [[ $output == *" -> 0 B, "*" MiB would no longer be its own" ]]
    run -0 nbdedup rebase x golden@v1
    [[ $output == *" -> 0 B, "*" MiB no longer its own" ]]
    assert_eq "$(json stat | jq .pool.stored_bytes)" "$stored"
    run -0 nbdedup rebase --help
    run ! grep -wE 'frees?|gives? back' <<<"$output"
}

@test "a rebase keeps the volume's snapshots and clones as they are" {
    mode online
    two_goldens
    nbdedup snapshot web1@a
    change web1 'write -P 3 0 64k'
    nbdedup clone web1@a child
    web1=$(content web1) a=$(content web1@a)
    nbdedup rebase web1 golden@v2 >/dev/null
    assert_eq "$(content web1)" "$web1"
    assert_eq "$(content web1@a)" "$a"
    assert_eq "$(content child)" "$a"
    assert_eq "$(about child .origin)" web1@a
    nbdedup rollback web1@a
    assert_eq "$(content web1)" "$a"
}

@test "a rebase works for volumes that never were clones, and for other sizes" {
    mode offline
    golden_v1
    nbdedup import copy "$BATS_TEST_TMPDIR/image" --block-size 16K
    nbdedup resize copy 8M
    change copy 'write -P 1 7M 64k'
    before=$(content copy)
    nbdedup rebase copy golden@v1 >/dev/null
    assert_eq "$(content copy)" "$before"
    assert_eq "$(about copy '[.own_bytes, .origin]')" '[65536,"golden@v1"]'

    # A larger parent must not show through, also after growing.
    nbdedup resize golden 12M
    change golden 'write -P 5 6M 6M'
    nbdedup snapshot golden@big
    nbdedup rebase copy golden@big >/dev/null
    assert_eq "$(content copy)" "$before"
    nbdedup resize copy 12M
    change copy 'read -P 0 8M 4M'
}

@test "a rebase that cannot be is refused" {
    mode offline
    two_goldens
    nbdedup create other 6M --block-size 64K
    nbdedup snapshot other@v1
    refused "blocks of" rebase web1 other@v1
    refused v9 rebase web1 golden@v9
    refused nothing rebase nothing golden@v1
    # A rebase onto a descendant of the volume itself is refused.
    nbdedup snapshot web1@a
    nbdedup clone web1@a child
    nbdedup snapshot child@b
    before=$(content web1)
    nbdedup rebase web1 child@b >/dev/null || :
    assert_eq "$(content web1)" "$before"
}

#----------------------------------------------------------------------
# Diff

diffs ()
{
    mode "$1"
    golden_v1
    change golden 'write -P 1 20000 100' 'write -P 2 1M 64k' 'write -z 2M 32k' \
           'write -P 1 3500k 1' 'write -z 3500k 1'
    nbdedup snapshot golden@v2
    # A block that became zero again, in the hole, is no difference.
    assert_eq "$(json diff golden@v1 golden@v2 | jq -c .)" \
'[{"offset":16384,"length":16384,"zero":false},{"offset":1048576,"length":65536,"zero":false},{"offset":2097152,"length":32768,"zero":true}]'
    run -0 nbdedup diff golden@v1 golden@v2
    assert_eq "$output" \
' OFFSET  LENGTH  NOW
  16384   16384  data
1048576   65536  data
2097152   32768  zero'
    silently diff golden@v1 golden@v1
    # In the other direction there is data where zeroes were.
    assert_eq "$(json diff golden@v2 golden@v1 | jq -c '[.[].zero]')" \
              '[false,false,false]'

    # Overwritten with the same data: no difference.
    head -c 1M "$BATS_TEST_TMPDIR/image" >"$BATS_TEST_TMPDIR/head"
    nbdedup rollback golden@v1
    change golden "write -s $BATS_TEST_TMPDIR/head 0 1M"
    nbdedup snapshot golden@v3
    assert_eq "$(json diff golden@v1 golden@v3)" '[]'
    refused v9 diff golden@v1 golden@v9
}

@test "diff has the extents that differ, and no others, offline" {
    diffs offline
}
@test "diff has the extents that differ, and no others, through a server" {
    diffs online
}

@test "diff tells about snapshots of different sizes" {
    mode offline
    golden_v1
    nbdedup resize golden 8M
    change golden 'write -P 1 7M 512'
    nbdedup snapshot golden@v2
    assert_eq "$(json diff golden@v1 golden@v2 |
                     jq -c '[.[] | select (.zero | not)]')" \
              '[{"offset":7340032,"length":16384,"zero":false}]'
}

#----------------------------------------------------------------------
# Behind the scenes

@test "what a shrunk volume has lost stays lost when its snapshot goes" {
    mode offline
    nbdedup create v 2M --block-size 4K
    change v 'write -P 1 0 2M'
    nbdedup snapshot v@s
    nbdedup resize v 1M --shrink
    nbdedup resize v 2M
    change v 'write -P 2 1M 1M'
    # The head has no entries for these blocks any more: only the limit of what
    # the head may inherit hides the snapshot's data.
    change v 'discard 1M 1M'
    nbdedup destroy v@s --wait
    change v 'read -P 1 0 1M' 'read -P 0 1M 1M'
    assert_num "$(about v .own_bytes) == 1048576"
}

#----------------------------------------------------------------------
# Durable

@test "what a command has done survives the server being killed" {
    mode online
    golden_v1
    before=$(content golden)
    nbdedup clone golden@v1 web --count 3
    nbdedup snapshot web1@a
    nbdedup rename web1@a web1@b
    nbdedup destroy web3
    change web1 'write -P 1 0 1M'
    nbdedup rollback web1@b
    crash
    assert_eq "$(about web1 '[.origin, .own_bytes, .snapshots[0].name]')" \
              '["golden@v1",0,"b"]'
    assert_eq "$(volumes)" "golden web1 web2"
    assert_eq "$(content web1)" "$before"
    assert_eq "$(content golden@v1)" "$before"
}

@test "list: natural order, figures of snapshots, the lineage, and a reader that leaves" {
    make_pool
    nbdedup create desk1 1M
    nbdedup create desk2 1M
    random_data 64K 1 >image
    truncate -s 1M image
    nbdedup import desk10 image
    nbdedup snapshot desk10@a
    nbdedup clone desk10@a c --count 2
    nbdedup snapshot desk10@b
    nbdedup clone desk10@b d
    nbdedup snapshot c2@x
    nbdedup clone c2@x e
    nbdedup destroy desk10@b --force
    run -0 bash -c "nbdedup list | awk '{ print \$1 }' | tail -n +2 | xargs"
    assert_eq "$output" "c1 c2 c2@x d desk1 desk2 desk10 desk10@a e"
    run -0 bash -c "nbdedup list --tree | tail -n +2 | sed -E 's/^( *[^ ]+).*/\1/'"
    assert_eq "$output" "desk1
desk2
desk10
  desk10@a
    c1
    c2
      c2@x
        e
desk10@b
  d"
    # The tables of other commands have the same order.
    run -0 bash -c "nbdedup stat | awk '/^NAME/ { f = 1 } f { print \$1 }' | tail -n +2 | xargs"
    assert_eq "$output" "c1 c2 d desk1 desk2 desk10 e"
    nbdedup clone desk10@a c10
    run -0 bash -c "nbdedup drift desk10@a | awk '/^c[0-9]/ { print \$1 }' | xargs"
    assert_eq "$output" "c1 c2 c10"
    # So have the documents, also after the pool was loaded.
    assert_eq "$(nbdedup list --json | jq -c '[.volumes[].name]')" \
              '["c1","c2","c10","d","desk1","desk2","desk10","e"]'
    assert_eq "$(nbdedup stat --json | jq -c '[.volumes[].name]')" \
              '["c1","c2","c10","d","desk1","desk2","desk10","e"]'
    assert_eq "$(nbdedup drift desk10@a --json | jq -c '[.clones[].name]')" \
              '["c1","c2","c10","e"]'
    assert_eq "$(nbdedup drift desk10@a --csv | cut -d, -f4 | grep '^[ce]' | xargs)" \
              "c1 c2 c10 e"
    nbdedup snapshot c2@x10
    nbdedup clone c2@x10 f
    assert_eq "$(nbdedup drift --json | jq -c '[.goldens[].golden]')" \
              '["c2@x","c2@x10","desk10@a","desk10@b (destroyed)"]'
    nbdedup destroy f
    assert_eq "$(nbdedup list --json | jq -c '.volumes[] |
                     select(.name == "desk10") | .snapshots |
                     map([.name, .size, .logical_bytes, .own_bytes, .clients])')" \
              '[["a",1048576,65536,65536,0]]'
    # What descends from a golden image stays below it, whatever was destroyed.
    nbdedup destroy c2 -r --force
    nbdedup destroy desk10@a --force
    run -0 bash -c "nbdedup list --tree | sed -En '/destroyed/,\$s/^( *[^ ]+).*/\1/p'"
    assert_eq "$output" "desk10@a
  c1
  c2@x
    e
  c10
desk10@b
  d"
    assert_eq "$(nbdedup list --json | jq -c '[.destroyed[] |
                     select(.name | startswith("c2"))]')" \
              '[{"name":"c2@x (destroyed)","origin":"desk10@a (destroyed)"}]'
    run -2 nbdedup list --tree --json
    run bash -c 'nbdedup list --tree | true; echo "${PIPESTATUS[*]}"'
    [[ $output == "0 0" || $output == "141 0" ]] || fail "$output"
}

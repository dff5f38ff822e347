#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# The same mistake has the same exit status in every command, with a server
# and without: 2 if it is wrong whatever the pool holds, 1 if it depends on the
# pool.  Each is told in one line; a parameter of the plugin is named.

load ../rigs/helpers

# STATUS|ARGUMENTS; "long" stands for a name of 300 letters.
mistakes=(
    # Names
    "2|create . 1M" "2|create a/b 1M" "2|create long 1M" "2|rename v a/b"
    "2|import a/b img" "2|clone v@1 a/b" "2|snapshot v" "2|snapshot v@"
    "2|snapshot v@a/b" "2|clone v c" "2|rollback v" "2|diff v v@1"
    "2|rebase v v" "2|drift v" "2|destroy v@"
    "1|create v 1M" "1|rename w v" "1|import v img" "1|clone v@1 w"
    "1|snapshot v@1"
    "1|stat none" "1|get all none" "1|set compress=lz4 none" "1|destroy none"
    "1|rename none x" "1|resize none 1M" "1|snapshot none@1" "1|clone v@9 x"
    "1|rollback v@9" "1|diff v@1 v@9" "1|rebase v w@9" "1|export none out"
    "1|drift v@9" "1|export v@9 out"
    # Values
    "2|create x 0" "2|create x 1000" "2|create x abc" "2|create x 10GB"
    "2|create x -1" "2|resize v abc" "2|resize v 0" "2|resize v 1000"
    "1|resize v 512"
    "2|create x 1M --block-size 3K" "2|import x img --block-size 3K"
    "2|set block-size=3K" "2|estimate img --block-size 3K"
    "2|init other --block-size 3K"
    "2|create x 1M --compress gzip" "2|import x img --compress gzip"
    "2|set compress=gzip" "2|set compress=gzip v" "2|init other --compress gzip"
    "2|create x 1M --dedup maybe" "2|import x img --dedup maybe"
    "2|set dedup=maybe v"
    "2|create x 1M --domain a/b" "2|import x img --domain a/b"
    "2|set domain=a/b v"
    "2|init other --sector 3K" "2|init other --hash md5"
    "2|estimate img --sector 3K"
    "2|clone v@1 x --count 0" "2|clone v@1 x --count 99999999"
    "2|clone v@1 x --count a" "2|scrub --rate 0" "2|drift --memory 1"
    # Properties
    "2|get foo" "2|get foo v" "2|set foo=1" "2|set foo=1 v" "2|set foo"
    "2|set =1" "2|set sector=4K" "2|set block-size=4K v" "2|set allow=root v"
    "2|set allow=99999999999 v" "2|set max-size=abc" "2|set full-warn=101"
    "2|set copies=9" "2|set metadata-copy=relative" "2|set scrub-rate=0"
    "2|set scrub-interval=x" "2|set drift-keep=x"
    "1|set max-size=1K" "1|destroy v" "1|destroy v@1" "1|init used"
    # Words and options
    "2|create x" "2|create x 1M y" "2|list x y" "2|rename v" "2|export v"
    "2|import v" "2|resize v" "2|diff v@1" "2|stat v w" "2|destroy"
    "2|stat --json --prometheus" "2|create x 1M --foo" "2|list --foo"
    "2|foo"
    # Files
    "1|import x none" "1|import x ." "1|export v none/out" "1|export v ."
    "1|estimate none" "1|-p none list" "1|-p img list" "1|-p . list"
    "1|scrub --from none"
)

# They are refused as the table says, and change nothing.
run_mistakes ()
{
    local wrong=() line status want words before command long

    printf -v long '%0300d' 0
    before=$(nbdedup list --json)
    for line in "${mistakes[@]}"; do
        IFS='|' read -r want words <<<"$line"
        words=${words/long/$long}
        # shellcheck disable=SC2086
        run --separate-stderr nbdedup $words
        command=${words#-p * }
        command=${command%% *}
        [ "$status" = "$want" ] || wrong+=("$line: status $status")
        [ -z "$output" ] || wrong+=("$line: prints $output")
        [[ $stderr == "nbdedup: $command: "* && $stderr != *$'\n'* ]] ||
            wrong+=("$line: $stderr")
        [[ $stderr != *importing-* ]] || wrong+=("$line: $stderr")
        # A path stands there once.
        ! grep -qE '(/[^ :]+|none|img): .*\1: ' <<<"$stderr" ||
            wrong+=("$line: $stderr")
    done
    assert_eq "$(nbdedup list --json)" "$before"
    [ "${#wrong[@]}" = 0 ] || fail "${wrong[@]}"
}

setup ()
{
    cd "$BATS_TEST_TMPDIR" || return
    make_pool
    mkdir used
    touch used/file
    random_data 1M >img
    nbdedup import v img
    nbdedup snapshot v@1
    nbdedup clone v@1 c
    nbdedup create w 1M
}

@test "mistakes have their exit status and one line" {
    run_mistakes
}

@test "mistakes are the same through a server" {
    serve "$pool"
    run_mistakes
}

# refused_key KEY VALUE
refused_key ()
{
    run -1 nbdkit -f -U - "$plugin" pool="$pool" "$1=$2" --run true
    [[ $output == "nbdkit: error: "*"$1="*"$2"* ]] || fail "$1=$2: $output"
    assert_eq "$(wc -l <<<"$output")" 1 "$1=$2"
}

@test "a parameter whose value is wrong is named, with the value" {
    for key in ddt-cache record-cache dirty-max; do
        for value in x -1 10GB 1.5.5G 99999999999999999999 2P \
                        9E 99999999999E 99999999999999999999s; do
            refused_key $key $value
        done
    done
    refused_key ddt-cache 1M
    refused_key dirty-max 1M
    for key in only read-only primarycache threads attach commit-interval \
                    drift-interval; do
        refused_key $key x
    done
    for key in commit-interval drift-interval; do
        refused_key $key -1
    done
    refused_key volume a/b
    refused_key foo x               # unknown
    # Sizes as nbdkit and as the command write them.
    for value in 16M 16MiB 0.5G 32768s 33554432b 33554432; do
        nbdkit -f -U - "$plugin" pool="$pool" ddt-cache=$value --run true
    done
}

@test "only=on with a name that the pool does not have is refused" {
    for name in typo typo@1 v@2; do
        run -1 nbdkit -f -U "$BATS_TEST_TMPDIR/sock" "$plugin" pool="$pool" \
            only=on volume=$name
        [[ $output == "nbdkit: error: only=on: "*"${name%@*}"* ]]
        assert_eq "$(wc -l <<<"$output")" 1
        # It was closed in order, and leaves no socket behind.
        [ ! -e "$BATS_TEST_TMPDIR/sock" ]
        nbdedup list
    done
    for name in v v@1; do
        nbdkit -f -U - "$plugin" pool="$pool" only=on volume=$name --run true
    done
}

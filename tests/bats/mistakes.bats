#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# The same mistake has the same exit status in every command, with a server
# and without: 2 if it is wrong whatever the pool holds, 1 if it depends on the
# pool.  The message is one line, which names a parameter of the plugin.

load ../rigs/helpers

# STATUS|ARGUMENTS; "long" stands for a name of 300 letters.
mistakes=(
    # Names
    "2|create . 1M" "2|create a/b 1M" "2|create long 1M" "2|rename v a/b"
    "2|import a/b img" "2|clone v@1 a/b" "2|snapshot v" "2|snapshot v@"
    "2|snapshot v@a/b" "2|clone v c" "2|rollback v" "2|diff v v@1"
    "2|rebase v v" "2|drift v" "2|destroy v@"
    # The same where a volume, or a snapshot, must exist
    "2|get all a/b" "2|get all v@1" "2|set compress=lz4 a/b"
    "2|set compress=lz4 v@1" "2|resize a/b 1M" "2|resize v@1 1M"
    "2|rename a/b x" "2|rename none a/b" "2|rename none@1 x@1" "2|destroy a/b"
    "2|rebase a/b v@1" "2|rebase w@1 v@1" "2|rollback a/b@1" "2|diff a/b@1 v@1"
    "2|stat a/b" "2|stat v@" "2|export a/b out" "2|export v@ out"
    "2|drift a/b@1" "2|drift v@1 --if-destroyed a/b"
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
    "2|create x 1M --domain=" "2|import x img --domain=" "2|set domain= v"
    "2|init other --sector 3K" "2|init other --hash md5"
    "2|estimate img --sector 3K"
    "2|clone v@1 x --count 0" "2|clone v@1 x --count 99999999"
    "2|clone v@1 x --count a" "2|scrub --rate 0" "2|drift --memory 1"
    "2|clone v@1 x --count 2 --start 99999999999" "2|estimate img --memory 1"
    "2|prune --age x" "2|prune --age 90" "2|prune --age -1d" "2|prune --age 99y"
    "2|prune --age 9999w" "2|prune --percent 0" "2|prune --percent 101"
    "2|prune --percent x" "2|prune --percent 5%"
    # The same even if the pool, or a file, would be refused, too
    "2|create v 0" "2|resize none 0" "2|set compress=gzip none"
    "2|set foo=1 none" "2|get foo none" "2|clone none@1 a/b"
    "2|clone v@9 x --count 0" "2|import v none --block-size 3K"
    "2|import v none --compress gzip" "2|import v none --dedup maybe"
    "2|import v none --domain a/b" "2|import v none --format foo"
    "2|export none out --format foo" "2|estimate none --format foo"
    "2|scrub --from none --format foo" "2|-p none prune --percent 0"
    "2|-p none prune --age x" "2|-p none prune"
    # Properties
    "2|get foo" "2|get foo v" "2|set foo=1" "2|set foo=1 v" "2|set foo"
    "2|set =1" "2|set sector=4K" "2|set block-size=4K v" "2|set allow=root v"
    "2|set allow=99999999999 v" "2|set max-size=abc" "2|set full-warn=101"
    "2|set max-size=0" "2|set ddt-quota=0K"
    "2|set copies=9" "2|set metadata-copy=relative" "2|set scrub-rate=0"
    "2|set scrub-interval=x" "2|set drift-keep=x"
    "1|set max-size=1K" "1|destroy v" "1|destroy v@1" "1|init used"
    # Words and options
    "2|create x" "2|create x 1M y" "2|list x y" "2|rename v" "2|export v"
    "2|import v" "2|resize v" "2|diff v@1" "2|stat v w" "2|destroy"
    "2|stat --json --prometheus" "2|create x 1M --foo" "2|list --foo"
    "2|foo" "2|drift --csv --json" "2|drift --html - --svg -"
    "2|list --tree --json" "2|clone v@1 x --start 2" "2|scrub --format raw"
    "2|scrub --allow-backing" "2|create x 1M --read-only"
    "2|destroy c --read-only" "2|drift --record --read-only"
    "2|recover --read-only" "2|list --read-only=foo"
    "2|-p none init other" "2|init other -p none"
    "2|prune" "2|prune --dry-run" "2|prune --age 1d --percent 5"
    "2|prune --percent 5 x" "2|rewrite" "2|rewrite v w" "2|rewrite v --foo"
    "1|rewrite none" "1|rewrite v@none"
    "2|check --repair --read-only" "2|init --json" "2|bench x" "3|status x"
    "2|bench --compressible 101"
    # Impossible for a stream, a server, or QEMU
    "2|import x - --format qcow2" "2|estimate - --format qcow2"
    "2|export v - --format qcow2" "2|export v nbd://x --format qcow2"
    "2|export v out --format dmg" "2|export v out.dmg"
    # Files
    "1|import x none" "1|import x ." "1|export v none/out" "1|export v ."
    "1|estimate none" "1|-p none list" "1|-p img list" "1|-p . list"
    "1|scrub --from none" "1|import x img --format qcow2"
    "1|export v none/out.qcow2" "1|export v /dev/full"
    "1|export v /dev/full --format qcow2" "1|drift v@1 --svg none/out"
    "1|set metadata-copy=/none/copy"
)

# The commands are refused as the table says, and change nothing.
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
        [[ $stderr != *@(im|ex)porting-* ]] || wrong+=("$line: $stderr")
        # The message has a path only once.
        ! grep -qE '(/[^ :]+|none|img): .*\1: ' <<<"$stderr" ||
            wrong+=("$line: $stderr")
    done
    assert_eq "$(nbdedup list --json)" "$before"
    [ "${#wrong[@]}" = 0 ] || fail "${wrong[@]}"
}

setup ()
{
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

@test "mistakes before the command's name are wrong usage for every command" {
    local words

    for words in "" --foo "--foo status" "--foo list" "-x status" \
                 "--pol=x list" "--read-only=foo list" --read-only=foo -p --pool; do
        # shellcheck disable=SC2086
        run --separate-stderr nbdedup $words
        assert_eq "$status:$output" "2:" "nbdedup $words"
        [[ $stderr == "nbdedup: "* && $stderr != *$'\n'* ]] ||
            fail "nbdedup $words: $stderr"
    done
}

@test "where there is no pool, a command says what makes one" {
    run -1 nbdedup -p "$PWD/none" list
    assert_eq "$output" "nbdedup: list: $PWD/none: No such file or directory; nbdedup init makes a pool"
    run -3 nbdedup -p "$PWD/none" status
    assert_eq "$output" "nbdedup: status: $PWD/none: No such file or directory; nbdedup init makes a pool"
    run -1 nbdedup -p "$PWD/used" list
    assert_eq "$output" "nbdedup: list: $PWD/used: not a pool; give the directory of one (nbdedup init makes one in an empty directory)"
    mkdir empty
    run -1 nbdedup -p "$PWD/empty" list
    assert_eq "$output" "nbdedup: list: $PWD/empty: not a pool; nbdedup init makes one"
    refused "there is a pool already" init "$pool"
}

# A script passes these if its variable is not set.
@test "empty arguments are wrong usage" {
    misused "argument 1 is empty" get ""
    misused "argument 2 is empty" get all ""
    misused "argument 1 is empty" destroy ""
    misused "argument 1 is empty" create "" 1M
    misused "argument 2 is empty" import x ""
    misused "argument 2 is empty" export v ""
    misused "argument 1 is empty" estimate ""
    misused "--from needs" scrub --from ""
    misused "--html needs" drift --html ""
    misused "--pool is empty" list -p ""
    misused "the domain is empty: write a name, or none" create x 1M --domain ""
    misused "the domain is empty: write a name, or none" import x img --domain ""
    misused "the domain is empty: write a name, or none" set domain= v
    misused "PROPERTY=VALUE" set =1
    run -3 --separate-stderr nbdedup -p "" status
    assert_eq "${stderr%% (*}" \
              "nbdedup: status: --pool is empty: give the pool's directory"
}

# getopt takes these for options.
@test "a negative number is told with what is wrong with it" {
    misused "'-1': no size and no number is negative" create x -1
    misused "'-5G': no size" resize v -5G
    misused "'-1'" create -1 1M
    nbdedup create -- -1 1M
    nbdedup destroy -- -1
}

@test "what --read-only forbids is told in the same words by every command" {
    local text="this command changes the pool, which --read-only forbids"
    misused "$text" create x 1M --read-only
    misused "$text" destroy c --read-only
    misused "$text" drift --record --read-only
    misused "$text" prune --age 1d --read-only
    run -2 nbdedup --read-only rebase c v@1
    [[ $output == "nbdedup: rebase: $text (see "* ]]
    misused "the only value is 'force'" list --read-only=foo
}

@test "output that fails is told with the command's name" {
    for cmd in list "get all" stat "diff v@1 v@1 --json" drift "export v -"; do
        run -1 --separate-stderr bash -c "nbdedup $cmd >/dev/full"
        assert_eq "$stderr" \
            "nbdedup: ${cmd%% *}: standard output: No space left on device"
    done
}

# QEMU names the file that it writes, which has a temporary name.
@test "an export that fails names the file that was asked for" {
    need qemu-img --version
    for file in out.qcow2 out.vmdk; do
        run -1 --separate-stderr bash -c \
            "ulimit -f 16; nbdedup export v '$PWD/$file'"
        [[ $stderr == "nbdedup: export: $PWD/$file: "* &&
           $stderr != *"$PWD/$file: "*"$file"* &&
           $stderr != *deleting* && $stderr != *$'\n'* ]] ||
            fail "$stderr"
        [ -z "$(find . -name 'out*')" ] || fail "left behind: $(echo out*)"
    done
}

# The message names the damaged file once, and says what to do.
@test "errors about the pool's files name a file once, and a command" {
    damaged
    local file at
    for file in records journal pool.db; do
        rm -rf bad
        cp -a "$pool" bad
        rm "bad/$file"
        [ "$file" != pool.db ] || rm bad/pool.db*
        run -1 --separate-stderr nbdedup -p "$PWD/bad" list
        at=$(grep -o "$PWD/bad" <<<"$stderr" | wc -l)
        [[ $at = 1 && $stderr != *$'\n'* && $stderr == *backup* ]] ||
            fail "$file: $stderr"
        # What it advises works.
        case $file in
            records) [[ $stderr != *read-only* ]] || fail "$stderr" ;;
            journal) [[ $stderr == *"(--read-only=force, "* ]] ||
                         fail "$stderr"
                     nbdedup -p bad --read-only=force list ;;
            pool.db) [[ $stderr == *"run nbdedup recover"* ]] ||
                         fail "$stderr" ;;
        esac
        run -1 nbdkit -f -U - "$plugin" "$PWD/bad" --run true
        at=$(grep -o "$PWD/bad" <<<"$output" | wc -l)
        [[ $at = 1 && $output != *$'\n'* && $output == *backup* ]] ||
            fail "$file: $output"
    done
    rm -rf bad
    cp -a "$pool" bad
    truncate -s 900K bad/records
    run -1 nbdedup -p bad list
    [[ $output == *"(--read-only, "* ]] || fail "$output"
    nbdedup -p bad --read-only list
    for file in bad/pool.db*; do cp img "$file"; done
    run -1 nbdedup -p bad list
    [[ $output == *"nbdedup recover says"* ]] || fail "$output"
    run -1 nbdedup -p bad recover
    [[ $output == *"its summaries name "* && $output != *read-only* ]] ||
        fail "$output"
    for file in img used; do
        run -1 nbdkit -f -U - "$plugin" "$PWD/$file" --run true
        [[ $output == "nbdkit: error: pool=$PWD/$file: not a pool"* ]] ||
            fail "$file: $output"
    done
}

@test "a read of what is damaged names scrub" {
    damaged
    nbdedup stat >/dev/null                     # the journal is empty now
    dd if=/dev/zero of="$pool/records" bs=4k seek=5 count=20 conv=notrunc
    run -1 --separate-stderr nbdedup export v -
    [[ $stderr == *"is damaged"*"nbdedup scrub"* && $stderr != *$'\n'* ]] ||
        fail "$stderr"
    run -1 --separate-stderr nbdedup scrub
    [[ $stderr == *"damaged: "*"--from"* && $stderr != *$'\n'* ]] ||
        fail "$stderr"
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
    # Sizes are accepted in nbdkit's form and in the command's.
    for value in 16M 16MiB 0.5G 32768s 33554432b 33554432; do
        nbdkit -f -U - "$plugin" pool="$pool" ddt-cache=$value --run true
    done
}

@test "only=on with a name that the pool does not have is refused" {
    for name in typo typo@1 v@2; do
        run -1 nbdkit -f -U "$BATS_TEST_TMPDIR/sock" "$plugin" pool="$pool" \
            only=on volume=$name
        # The log also has that the pool was opened.
        output=$(grep error: <<<"$output")
        [[ $output == "nbdkit: error: only=on: "*"${name%@*}"* ]]
        assert_eq "$(wc -l <<<"$output")" 1
        # The pool was closed, and no socket is left behind.
        [ ! -e "$BATS_TEST_TMPDIR/sock" ]
        nbdedup list
    done
    for name in v v@1; do
        nbdkit -f -U - "$plugin" pool="$pool" only=on volume=$name --run true
    done
}

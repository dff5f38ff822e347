#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154,SC2030,SC2031
#
# What bash, zsh and fish complete: tools/completion.

load ../rigs/helpers

setup ()
{
    local file

    # As installed, but from the source, and with more patience, for a machine
    # that is busy.
    here="$top_srcdir/tools/completion"
    engine="$BATS_TEST_TMPDIR/complete"
    sed 's/^seconds=2$/seconds=60/' "$here/complete" >"$engine"
    run ! cmp -s "$engine" "$here/complete"
    chmod 755 "$engine"
    for file in nbdedup _nbdedup nbdedup.fish; do
        sed "s,@pkglibexecdir@,$BATS_TEST_TMPDIR," "$here/$file.in" \
            >"$BATS_TEST_TMPDIR/$file"
    done
    export HOME="$BATS_TEST_TMPDIR" XDG_CONFIG_HOME="$BATS_TEST_TMPDIR/config"
    unset NBDEDUP_POOL
}

# fill_pool: make volumes and snapshots to complete.
fill_pool ()
{
    make_pool
    nbdedup create golden 1M
    nbdedup snapshot golden@v1
    nbdedup clone golden@v1 web --count 2
    nbdedup snapshot web1@mon
}

# offers WORD...: the words that can replace the last one, without their
# descriptions.
offers ()
{
    "$engine" nbdedup "$@" 2>&1 | cut -f 1
}

# assert_offers EXPECTED WORD...: those words are EXPECTED, in any order.
assert_offers ()
{
    local expected=$1

    shift
    assert_eq "$(offers "$@" | sort | xargs)" \
              "$(tr ' ' '\n' <<<"$expected" | sort | xargs)" "nbdedup $*"
}

# commands: the commands that "nbdedup --help" lists.
commands ()
{
    nbdedup --help | sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p'
}

@test "all commands are completed, with what they do" {
    assert_eq "$(offers "")" "$(commands)"
    assert_num "$(commands | wc -l) > 20"
    while IFS=$'\t' read -r command text; do
        nbdedup --help | grep -q "^  $command  *$text\$" || fail "$command"
    done < <("$engine" nbdedup "")
}

# Debian has mawk, unless another package needs gawk.
@test "options are completed with mawk, gawk and busybox's awk" {
    local awk words expected

    expected=$("$engine" nbdedup create -)
    mkdir bin
    for awk in "$(type -P mawk)" "$(type -P gawk)" "$(type -P busybox)"; do
        [ -n "$awk" ] || continue
        ln -sf "$awk" bin/awk
        words=$(PATH="$PWD/bin:$PATH" "$engine" nbdedup create - 2>&1)
        assert_eq "$words" "$expected" "$awk"
        [[ $words == *--block-size* ]] || fail "$awk: $words"
    done
}

@test "of each command all options of --help are completed, and no others" {
    while read -r command; do
        assert_eq "$(offers "$command" - | sed 's/=.*//' | sort -u)" \
                  "$(nbdedup "$command" --help | grep -oE '^ .*' |
                         grep -oE -e '  +(-.,? )*--[a-z-]+' |
                         grep -oE -e '--[a-z-]+' | sort -u)" "$command"
        # Each has a description.
        run "$engine" nbdedup "$command" -
        run ! grep -vE $'^--[a-z-]+(=[a-z]*)?\t.{5}' <<<"$output"
    done < <(commands)
    assert_offers "--read-only=force" list --read-only=
}

@test "an option that takes a value goes on, and its values are completed" {
    assert_offers "--compress=none --compress=lz4 --compress=zstd" \
                  create v 1M --compress=
    assert_offers "none lz4 zstd" create --compress ""
    assert_offers "on off verify" import --dedup ""
    assert_offers "--hash=sha256 --hash=sha512-256 --hash=blake2b512 \
        --hash=blake2s256 --hash=blake3 --hash=gmac --hash=auto" init --hash=
    assert_offers ":files" drift --html ""
    assert_offers ":files" scrub --from=
    assert_offers ":directories" -p ""
    assert_offers ":directories" list --pool=
    assert_offers "" drift --memory ""
    run offers create --
    [[ $output == *"--block-size="* ]]
    # The formats are those that import names.
    for format in $(offers import --format ""); do
        nbdedup import --help | grep -qw "$format" || fail "$format"
    done
}

# table: the properties in "nbdedup set --help": name, of what, set of what.
table ()
{
    nbdedup set --help | sed -n '/^  PROPERTY/,/^$/p' | awk '
        NR > 1 && NF == 4 { of[$1] = of[$1] $2; set[$1] = set[$1] $3 }
        END { for (p in of) print p, of[p], set[p] }' | sort
}

# set_of PROPERTY: "P", "V", "PV" or "-": where "set" does not refuse it.
set_of ()
{
    local of=''

    nbdedup set "$1=x" 2>&1 | grep -qE 'is fixed|has no property' || of+=P
    nbdedup set "$1=x" v 2>&1 | grep -qE 'is fixed|has no property' || of+=V
    echo "${of:--}"
}

@test "properties are completed, and those values that the pool takes" {
    make_pool
    nbdedup create v 1M
    for of in "" v; do
        # shellcheck disable=SC2086
        nbdedup get all $of --json | jq -r '.properties | keys_unsorted[]' |
            sort >"keys$of"
    done
    assert_eq "$(offers get "")" "$(sort -u keys keysv; echo all)"
    # The table has these properties, of the pool and of volumes.
    assert_eq "$(table | awk '$2 ~ /P/ { print $1 }')" "$(cat keys)"
    assert_eq "$(table | awk '$2 ~ /V/ { print $1 }')" "$(cat keysv)"
    while read -r property _ set_of; do
        assert_eq "$(set_of "$property")" "$set_of" "$property"
        for assignment in $(offers set "$property="); do
            [ "$set_of" != - ] || continue
            nbdedup set "$assignment" 2>errors ||
                nbdedup set "$assignment" v 2>errors ||
                fail "$assignment: $(cat errors)"
        done
    done < <(table)
    assert_eq "$(offers set "")" "$(table | awk '$3 != "-" { print $1 "=" }')"
    # Those that only "init" takes.
    for sector in $(offers init --sector ""); do
        nbdedup init "pool-$sector" --sector "$sector"
    done
}

@test "names in the pool are completed where a command takes them" {
    fill_pool
    assert_offers "golden web1 web2" resize ""
    assert_offers "golden web1 web2 golden@v1 web1@mon" destroy ""
    assert_offers "golden web1 web2 golden@v1 web1@mon" destroy web1 ""
    assert_offers "golden web1 web2 golden@v1 web1@mon" export ""
    assert_offers "golden web1 web2 golden@v1 web1@mon" rewrite ""
    assert_offers "golden web1 web2 golden@v1 web1@mon" \
                  drift --if-destroyed web1 ""
    assert_offers ":files" export web1 ""
    assert_offers "golden@v1 web1@mon" clone ""
    assert_offers "golden@v1 web1@mon" rebase web1 ""
    assert_offers "golden@ web1@ web2@" snapshot ""
    assert_offers "web1@" rename web1@mon ""
    # These are names of what there is not yet.
    for command in "create" "import" "clone golden@v1" "rename web1"; do
        # shellcheck disable=SC2086
        assert_offers "" $command ""
    done
    # An option in front of them does not count, nor does its value.
    assert_offers "golden@v1 web1@mon" clone --count 2 --json ""
    assert_offers "golden@v1 web1@mon" --read-only clone --count=2 ""
}

@test "names come from the pool that the line names, served or not" {
    fill_pool
    unset NBDEDUP_POOL
    assert_offers "" rollback ""
    assert_offers "golden@v1 web1@mon" -p "$pool" rollback ""
    assert_offers "golden@v1 web1@mon" "-p$pool" rollback ""
    assert_offers "golden@v1 web1@mon" rollback --pool "$pool" ""
    assert_offers "golden@v1 web1@mon" rollback "--pool=$pool" ""
    # shellcheck disable=SC2088
    assert_offers "golden@v1 web1@mon" -p "~/pool" rollback ""
    serve "$pool"
    assert_offers "golden@v1 web1@mon" -p "$pool" rollback ""
}

@test "without a pool, or while it is busy, nothing is said, and soon" {
    assert_offers "" -p /nonexistent destroy ""
    assert_offers "" -p /dev/null destroy ""
    assert_offers "" frobnicate ""
    assert_offers "" frobnicate --
    # A command that holds the pool would be waited for.
    fill_pool
    mkfifo feed
    nbdedup import slow - <feed &
    import=$!
    exec 5>feed
    head -c 1M /dev/zero >&5
    wait_for 60 eval 'nbdedup status | grep -q "nbdedup import"'
    start=$SECONDS
    engine="$here/complete"
    assert_offers "" destroy ""
    assert_num "$SECONDS - $start < 20"
    exec 5>&-
    wait "$import"
}

@test "completion changes no file of the pool" {
    fill_pool
    sum () { (cd "$pool" && sha256sum -- *); }
    before=$(sum)
    assert_offers "golden web1 web2" resize ""
    assert_eq "$(sum)" "$before"
}

#----------------------------------------------------------------------
# The shells

# bash_offers LINE: what bash completes at the end of LINE, as readline splits
# it into words.
bash_offers ()
{
    bash --norc -c '
        source /usr/share/bash-completion/bash_completion
        source ./nbdedup
        COMP_WORDBREAKS=$'"' \\t\\n\"\\'><=;|&(:@'"'
        COMP_LINE=$1 COMP_POINT=${#1}
        read -ra COMP_WORDS <<<"$(sed "s/[=@]/ & /g" <<<"$1")"
        [[ $1 != *" " ]] || COMP_WORDS+=("")
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        compopt () { :; }
        _nbdedup
        printf "%s\n" "${COMPREPLY[@]}"' bash "$1" 2>&1
}

# typed SHELL LINE: the words of LINE after a tab, in a SHELL at a terminal.
typed ()
{
    python3 "$top_srcdir/tests/bats/type-tab.py" "$@" 3>&- 4>&-
}

@test "bash completes commands, options, properties, names and files" {
    need test -e /usr/share/bash-completion/bash_completion
    fill_pool
    touch image.raw
    assert_eq "$(bash_offers "nbdedup ro")" rollback
    assert_eq "$(bash_offers "nbdedup destroy --d")" --dry-run
    assert_eq "$(bash_offers "nbdedup create v 1M --com")" "--compress="
    assert_eq "$(bash_offers "nbdedup create v 1M --compress=z")" zstd
    assert_eq "$(bash_offers "nbdedup set ded")" "dedup="
    assert_eq "$(bash_offers "nbdedup set dedup=o" | xargs)" "off on"
    assert_eq "$(bash_offers "nbdedup destroy w" | xargs)" "web1 web2 web1@mon"
    assert_eq "$(bash_offers "nbdedup clone golden@")" v1
    assert_eq "$(bash_offers "nbdedup import v im")" image.raw
    assert_eq "$(bash_offers "nbdedup -p po")" pool
}

@test "bash, zsh and fish complete what is typed" {
    need type zsh
    need type fish
    need test -e /usr/share/bash-completion/bash_completion
    fill_pool
    ln -s pool "my pool"
    touch image.raw
    for shell in bash zsh fish; do
        while IFS='>' read -r line expected; do
            assert_eq "$(typed "$shell" "$line" | sed 's,/$,,')" \
                      "$expected" "$shell: $line"
        done <<'END'
nbdedup ro>nbdedup rollback
nbdedup destroy --dr>nbdedup destroy --dry-run
nbdedup create v 1M --com>nbdedup create v 1M --compress=
nbdedup create v 1M --compress=z>nbdedup create v 1M --compress=zstd
nbdedup set compress=l>nbdedup set compress=lz4
nbdedup clone go>nbdedup clone golden@v1
nbdedup snapshot web2>nbdedup snapshot web2@
nbdedup rebase web1 golden@>nbdedup rebase web1 golden@v1
nbdedup import v im>nbdedup import v image.raw
nbdedup drift --html=im>nbdedup drift --html=image.raw
nbdedup -p po>nbdedup -p pool
nbdedup -p my\ pool rollback web1>nbdedup -p my pool rollback web1@mon
nbdedup -p "my pool" rollback web1>nbdedup -p my pool rollback web1@mon
END
    done
}

# SPDX-License-Identifier: BSD-3-Clause
#
# --help and the manual pages agree.

# helpers.bash and "run" set what seems to be unset; $'\n' stands in patterns
# shellcheck disable=SC2154,SC1011,SC2016,SC2030,SC2031

load ../rigs/helpers

setup ()
{
    unset NBDEDUP_POOL
    pod="$top_srcdir/tools/nbdedup.pod"
}

# commands: name and summary of each, as "nbdedup --help" lists them.
commands ()
{
    nbdedup --help | sed -n '/^Commands:/,/^$/s/^  \([a-z].*\)/\1/p'
}

# page COMMAND: the source of its manual page.
page ()
{
    echo "$top_srcdir/tools/nbdedup-$1.pod"
}

# section NAME FILE...: the text of the pages' sections of that name.
section ()
{
    local name=$1

    shift
    sed -n "/^=head1 $name\$/,/^=head1 /{/^=head1 /!p}" "$@"
}

# options_in: the long options in the text on stdin.
options_in ()
{
    grep -oE -e '--[a-z][a-z-]*' | sort -u
}

# items_in: the long options that are items of the POD on stdin.
items_in ()
{
    sed -n 's/^=item B<\(--[a-z-]*\)>.*/\1/p' | sort -u
}

@test "every command has a manual page, and every page a command" {
    commands=$(commands | sed 's/ .*//')
    [ "$(wc -l <<<"$commands")" -ge 14 ]
    assert_eq "$(cd "$top_srcdir/tools" && printf '%s\n' nbdedup-*.pod |
                     sed 's/^nbdedup-//; s/\.pod$//')" \
              "$(sort <<<"$commands")"
    # Its page is installed as well.
    assert_eq "$(sed -n 's/^\tnbdedup-\([a-z]*\)\.pod .*/\1/p' \
                     "$top_srcdir/tools/Makefile.am")" \
              "$(sort <<<"$commands")"
    # It is in the overview, in the order of --help.
    assert_eq "$(section COMMANDS "$pod" |
                     sed -n 's/^=item L<nbdedup-\([a-z]*\)(1)>$/\1/p')" \
              "$commands"
}

@test "a page's NAME, the overview and --help have the same summary" {
    while read -r command summary; do
        assert_eq "$(section NAME "$(page "$command")" | grep .)" \
                  "nbdedup-$command - $summary"
        assert_eq "$(sed -n "/^=item L<nbdedup-$command(1)>\$/,/^=/p" "$pod" |
                         grep -v -e '^=' -e '^$')" "${summary^}."
    done < <(commands)
}

@test "a page has the options of --help, and no others" {
    while read -r command _; do
        help=$(nbdedup "$command" --help | options_in)
        items=$(section OPTIONS "$(page "$command")" | items_in)
        all=$(section OPTIONS "$(page "$command")" "$pod" | items_in)
        assert_num "$(wc -l <<<"$help") >= 3"
        while read -r option; do
            grep -qxe "$option" <<<"$all" ||
                fail "$command: $option is not in the manual page"
        done <<<"$help"
        while read -r option; do
            grep -qxe "${option:---help}" <<<"$help" ||
                fail "$command: $option is not in --help"
        done <<<"$items"
        # If it has JSON output, the page describes it.
        ! grep -qxe --json <<<"$help" ||
            [ -n "$(section 'JSON OUTPUT' "$(page "$command")")" ] ||
            fail "$command: the manual page does not describe its JSON"
    done < <(commands)
}

@test "the page and \"set --help\" have the same properties" {
    assert_eq "$(section PROPERTIES "$pod" |
                     sed -n '/^ PROPERTY/,/^$/s/^ \([a-z][a-z-]*\).*/\1/p' |
                     sort -u)" \
              "$(nbdedup set --help | sed -n '/^  PROPERTY/,/^$/p' |
                     awk 'NR > 1 && NF > 2 { print $1 }' | sort -u)"
}

@test "a page's synopsis has the options of --help, and no others" {
    while read -r command _; do
        help=$(nbdedup "$command" --help | options_in |
                   grep -vxe --help -e --usage -e --version -e --pool \
                        -e --recursive || :)
        assert_eq "$(section SYNOPSIS "$(page "$command")" | options_in)" \
                  "$help"
    done < <(commands)
}

# order_of PAGE...: its sections, if they are not in the order of nbdkit's
# pages.  The last ones, AUTHORS and COPYRIGHT, are those of docs/page-end.pod.
order_of ()
{
    awk '
        BEGIN {
            split ("NAME|SYNOPSIS|DESCRIPTION|EXAMPLES|OPTIONS|PARAMETERS||" \
                   "EXIT STATUS|ENVIRONMENT VARIABLES|FILES|VERSION|SEE ALSO",
                   names, "|");
            for (i in names)
                place[names[i]] = i + 0;
            place["AUTHORS"] = place["COPYRIGHT"] = place["LICENSE"] = -1;
        }
        FNR == 1 { at = 0 }
        sub (/^=head1 /, "") {
            # All sections of their own are at the same place.
            now = $0 in place ? place[$0] : place[""];
            if (now < at)
                print FILENAME ": " $0;
            at = now;
        }' "$@"
}

@test "every page has its sections in the order of nbdkit's pages" {
    while read -r command _; do
        assert_eq "$(sed -n 's/^=head1 //p' "$(page "$command")" |
                         grep -vxE 'JSON OUTPUT|METRICS|FILES|NOTES' | xargs)" \
                  "NAME SYNOPSIS DESCRIPTION EXAMPLES OPTIONS EXIT STATUS SEE ALSO"
    done < <(commands)
    assert_eq "$(order_of "$top_srcdir"/{lib,plugin,systemd,tools}/*.pod)" ""
    for page in "$top_srcdir"/{lib,plugin,systemd,tools}/*.pod; do
        for name in NAME DESCRIPTION "SEE ALSO"; do
            grep -qx "=head1 $name" "$page" || fail "$page: no $name"
        done
    done
    # A page that is not in order is found.
    printf '=head1 %s\n\n' NAME OPTIONS EXAMPLES "SEE ALSO" FILES COPYRIGHT \
           >"$BATS_TEST_TMPDIR/page"
    assert_eq "$(order_of "$BATS_TEST_TMPDIR/page" | sed 's/.*: //' | xargs)" \
              "EXAMPLES FILES COPYRIGHT"
}

@test "all pages are made, with the same end" {
    need type pod2man
    local page man nr=0

    for page in "$top_srcdir"/{lib,plugin,systemd,tools}/*.pod; do
        man=${page/#"$top_srcdir"/"$top_builddir"}
        man=$(ls "${man%.pod}".[157])
        assert_eq "$(sed -n 's/^\.SH "*\([^"]*\)"*$/\1/p' "$man" |
                         tail -n 3 | xargs)" "SEE ALSO AUTHORS COPYRIGHT" "$man"
        nr=$((nr + 1))
    done
    assert_num "$nr >= 30"
}

# keys_in JSON: the keys of all objects in it.
keys_in ()
{
    jq -r '[.. | objects | keys[]] | unique[]' "$1"
}

# describes PAGE CALL: the page of a command has each key of the JSON of CALL.
describes ()
{
    local args text key

    read -ra args <<<"$2"
    nbdedup "${args[@]}" --json >"$BATS_TEST_TMPDIR/json"
    text=$(section 'JSON OUTPUT' "$(page "$1")")
    while read -r key; do
        grep -qwe "$key" <<<"$text" ||
            fail "$2: $key is not in the manual page"
    done < <(keys_in "$BATS_TEST_TMPDIR/json")
}

@test "a page describes every key of the command's JSON" {
    make_pool
    head -c 1M /dev/urandom >"$BATS_TEST_TMPDIR/image"
    nbdedup import v "$BATS_TEST_TMPDIR/image"
    nbdedup snapshot v@a
    nbdedup import w "$BATS_TEST_TMPDIR/image"
    nbdedup create empty 1M
    nbdedup rebase empty v@a
    nbdedup snapshot empty@b
    for call in "list" "stat --ddt" "check" "check --repair" "scrub" \
                       "status" "history" "prune --age 1d" "rewrite v --dedup" "bench" "clone v@a x" "rebase w v@a" "diff v@a empty@b" \
                       "destroy w --dry-run" "drift" "drift v@a" \
                       "drift v@a --if-destroyed w v" \
                       "drift --record --history" \
                       "estimate $BATS_TEST_TMPDIR/image"; do
        describes "${call%% *}" "$call"
    done
    # With a server, and a client that it has had.
    serve "$pool"
    qemu-io -f raw -c 'read 0 4k' "$(uri_of v)" >/dev/null
    describes status status
    describes top 'top --once --interval 0.1'
}

@test "--help, --usage and --version work everywhere and exit 0" {
    while read -r command _; do
        run -0 --separate-stderr nbdedup "$command" --help
        [[ $output == "Usage: nbdedup $command "* ]]
        [[ $output == *"  -?, -h, --help "* ]]
        assert_eq "$stderr" ""
        run -0 nbdedup "$command" --usage
        [[ $output == "Usage: nbdedup $command "* ]]
        run -0 nbdedup "$command" --version
        assert_eq "$output" "nbdedup $version"
    done < <(commands)
    run -0 nbdedup --help
    [[ $output == *"  -?, -h, --help "* ]]
    run -0 nbdedup --usage
    run -0 nbdedup --version
    assert_eq "$output" "nbdedup $version"
}

@test "the manual pages are good POD, and their links lead somewhere" {
    need type podchecker
    for page in "$top_srcdir"/{lib,plugin,systemd,tools}/*.pod; do
        podchecker -warnings "$page"
        while read -r name; do
            ls "$top_builddir"/{lib,plugin,systemd,tools}/"$name" 2>/dev/null |
                grep -q . || fail "$page: there is no $name"
        done < <(grep -oE 'L<nbd[a-z]*dedup[a-z-]*\([157]\)' "$page" |
                     sed 's/L<//; s/(/./; s/)//')
    done
}

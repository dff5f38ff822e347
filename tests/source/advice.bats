#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154,SC2030,SC2031
#
# No message and no page gives advice that does not exist: advice.py.

load ../rigs/helpers

setup ()
{
    need python3 --version
}

advice ()
{
    python3 "$top_srcdir/tests/source/advice.py" \
            "$1" "$top_builddir/tools/nbdedup" "$plugin"
}

@test "no message and no page advises a command or an option that is not there" {
    run -0 advice "$top_srcdir"
    assert_eq "$output" ""
}

# planted FILE TEXT EXPECTED: with TEXT at the end of FILE the script must
# report EXPECTED.
planted ()
{
    cp "tree/$1" saved
    printf '\n%s\n' "$2" >>"tree/$1"
    run advice tree
    mv saved "tree/$1"
    assert_eq "$status" 1 "$1: $2"
    assert_eq "$output" "$1: $3" "$1: $2"
}

@test "advice to use what is not there is found" {
    mkdir tree
    (cd "$top_srcdir" && cp -R lib tools plugin systemd ./*.md "$BATS_TEST_TMPDIR/tree")
    chmod -R u+w tree
    while IFS='|' read -r file text expected; do
        planted "$file" "$text" "$expected"
    done <<'END'
lib/core/ddt.c|"%s: run nbdedup fsck"|no command: nbdedup fsck
lib/core/ddt.c|refuse (": run nbdedup " "check --fix");|no option of check: --fix
lib/core/ddt.c|"in %" PRIu64 " blocks: see scrub --repair"|no option of scrub: --repair
lib/core/ddt.c|"use --salvage"|no option: --salvage
tools/cmd-list.c|"use --repair"|no option: --repair
plugin/keys.h|#define X "give cache-size=1G"|no parameter or property: cache-size=
tools/nbdedup-set.pod|C<nbdedup set ddt-cache=1G>|no property: ddt-cache
tools/nbdedup-set.pod| nbdedup -p /srv/pool send web1@a|no command: nbdedup send
tools/nbdedup-set.pod|See L<nbdedup-fsck(1)>.|no page: nbdedup-fsck
plugin/nbdkit-dedup-plugin.pod| nbdkit -U /run/a.sock dedup /srv/pool cache=1G|no parameter or property: cache=
CONTRIBUTING.md|`configure --enable-asserts`|no option: --enable-asserts
README.md|Run `nbdedup check --all`.|no option of check: --all
END
}

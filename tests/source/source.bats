#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# Rules of the source itself: which folder may include which (the figures in
# CONTRIBUTING.md and tests/README.md), and which symbols are visible.

load ../rigs/helpers

setup () {
    need python3 --version
    plants=() new_files=()
}

rules () { python3 "$top_srcdir/tests/source/source-rules.py" "$@"; }

# copy_source: copy the tree, to plant violations in the copy.
copy_source ()
{
    mkdir -p tree saved/tree
    (cd "$top_srcdir" &&
         cp -R .ci lib plugin tools tests vm-images CONTRIBUTING.md \
            Makefile.am common.mk configure.ac "$BATS_TEST_TMPDIR/tree/")
    chmod -R u+w tree
}

# planted FILE TEXT EXPECTED: put TEXT at the end of FILE; the next "found" expects
# a report of it with EXPECTED.
planted ()
{
    local file=tree/$1

    if [ ! -e "$file" ]; then
        mkdir -p "$(dirname "$file")"
        new_files+=("$file")
    elif [ ! -e "saved/$file" ]; then
        cp --parents "$file" saved
    fi
    printf '%s\n' "$2" >>"$file"
    plants+=("$1" "$3")
}

# found: the script must report all that was planted, a line each, and nothing
# else.  Then the tree is as before.  One run of the script takes a second.
found ()
{
    local file expected i

    run rules tree
    assert_eq "$status" 1 "$output"
    while [ ${#plants[@]} -gt 0 ]; do
        file=${plants[0]} expected=${plants[1]}
        plants=("${plants[@]:2}")
        for i in "${!lines[@]}"; do
            [[ ${lines[i]} != "$file:"*"$expected"* ]] || break
        done
        [[ ${lines[i]-} == "$file:"*"$expected"* ]] ||
            fail "$file: found '$output', expected '$expected'"
        unset "lines[i]"
    done
    assert_eq "${lines[*]}" ""
    [ ${#new_files[@]} = 0 ] || rm "${new_files[@]}"
    new_files=()
    cp -R saved/tree .
}

@test "the source keeps its rules: layers, SQL, nbdkit, licences, sizes" {
    run -0 rules "$top_srcdir"
    assert_eq "$output" ""
}

@test "an #include that breaks the layers is found" {
    cd "$BATS_TEST_TMPDIR"
    copy_source
    planted lib/format/format.h '#include "disk/store.h"' "includes disk/store.h, which stands above"
    planted lib/space/space-segs.c '#include "core/txg.h"' "includes core/txg.h, which stands above"
    planted lib/core/ddt.c '#  include "service/pool.h" /* why */' "includes service/pool.h, which stands above"
    planted lib/base/error.h '#include "core/fold-index.h"' "includes core/fold-index.h, which stands above"
    planted lib/vfs/cksum-wal.c '#include "disk/store.h"' "includes disk/store.h, which stands beside"
    planted lib/space/space.c '#include "estimate/estimate-set.h"' "includes estimate/estimate-set.h, which stands beside"
    planted lib/report/check.c '#include "volume/volume-int.h"' "includes volume/volume-int.h, which is for its own room"
    planted lib/disk/store.c '#include "journal.h"' "includes journal.h, no header of lib/"
    planted lib/report/check.c 'int x (void) { return nbdedup_pool_close (NULL); }' "calls nbdedup_pool_close, of a room above it"
    planted tools/cmd-list.c '#include "service/pool.h"' "includes service/pool.h, which is lib/'s own"
    planted plugin/keys.h '#include "../lib/base/error.h"' "includes ../lib/base/error.h, which is lib/'s own"
    found
    cp "$top_srcdir/CONTRIBUTING.md" tree/
    sed -i 's/^    base .*/&\n    base2/' tree/CONTRIBUTING.md
    run -1 rules tree
    [[ $output == "CONTRIBUTING.md: has a figure of 12 lines: at most 11"* ]]
    # Every room is in the figure, and every room of the figure exists.
    cp "$top_srcdir/CONTRIBUTING.md" tree/
    sed -i 's/^    space | estimate/    space /' tree/CONTRIBUTING.md
    run -1 rules tree
    [[ $output == *"lib/estimate/bench.c: is in no room of the figure"* ]]
    cp "$top_srcdir/CONTRIBUTING.md" tree/
    sed -i 's/^    base  /    base | vector  /' tree/CONTRIBUTING.md
    run -1 rules tree
    assert_eq "$output" \
        "CONTRIBUTING.md: names vector, which is no folder of lib/"
    cp "$top_srcdir/CONTRIBUTING.md" tree/
}

@test "a test in the wrong room is found" {
    local dollar='$'                # the rules read this file, too

    cd "$BATS_TEST_TMPDIR"
    copy_source
    planted tests/rigs/engine-rig.h '#include "models/op-log.h"' "includes models/op-log.h, which stands above"
    planted tests/models/op-log.c '#include "modules/concurrent.h"' "includes modules/concurrent.h, which stands above"
    planted tests/soak/soak.h '#include "crash/powercut-undo.h"' "includes crash/powercut-undo.h, which stands beside"
    planted tests/modules/test-hash.c '#include "testutil.h"' "includes testutil.h without its room"
    planted tests/bats/help.bats 'load ../crash/crash' "loads crash/crash.bash, which stands beside"
    planted tests/models/drift.bash 'load ../vm/guest' "loads vm/guest.bash, which stands above"
    planted tests/vm/image.bats "${dollar}test_programs/faults/full-io" "starts faults/full-io, which stands beside"
    planted tests/rigs/clients.bash "perl ${dollar}top_srcdir/tests/bats/nbd-hangup.pl" "starts bats/nbd-hangup.pl, which stands above"
    planted tests/test-new.c '/* SPDX-License-Identifier: BSD-3-Clause */' "is in no room of the figure"
    planted tests/new/test-new.c '/* SPDX-License-Identifier: BSD-3-Clause */' "is in no room of the figure"
    planted tests/bats/new.bats '# SPDX-License-Identifier: BSD-3-Clause' "is in no makefile of tests/"
    found
}

@test "each header of lib/ includes what it needs" {
    local header
    local -a cc=("${CC:-cc}" -fsyntax-only -Wall -Werror -D_GNU_SOURCE
                 -I "$top_builddir" -I "$top_builddir/lib"
                 -I "$top_srcdir/lib" -x c -)

    need "${cc[0]}" --version
    cd "$top_srcdir/lib"
    for header in */*.h; do
        printf '#include <config.h>\n#include "%s"\n' "$header" |
            "${cc[@]}" || fail "$header cannot be included alone"
    done
}

@test "a name for two things, and a function without callers, are found" {
    cd "$BATS_TEST_TMPDIR"
    copy_source
    planted lib/report/copier.c 'struct pace { int x; };' "defines struct pace, and so does lib/report/pace.h"
    planted lib/volume/rebase.c 'struct walk { int x; };' "defines struct walk, and so does lib/drift/view-walk.c"
    planted lib/volume/rebase.c 'struct step { int x; };' "defines struct step, and so does lib/volume/merge.c"
    planted lib/base/priority.h 'extern int priority_lost (void);' "declares priority_lost, which no file defines"
    found
    printf 'int\npriority_idle (void)\n{\n  return 0;\n}\n' >>tree/lib/base/priority.c
    planted lib/base/priority.h 'extern int priority_idle (void);' "declares priority_idle, which only lib/base/priority.c uses"
    found
    printf 'int x = priority_idle ();\n' >>tree/tests/modules/test-hash.c
    planted lib/base/priority.h 'extern int priority_idle (void);' "declares priority_idle, which only tests call"
    found
    printf 'int x = priority_idle ();\n' >>tree/tools/run.c
    echo 'extern int priority_idle (void);' >>tree/lib/base/priority.h
    run -0 rules tree
}

@test "SQL, SQLite and nbdkit are found where they do not belong" {
    local sql

    cd "$BATS_TEST_TMPDIR"
    copy_source
    for sql in 'SELECT 1 FROM block' 'UPDATE pool SET epoch = 1' \
               'DELETE FROM block' 'INSERT OR REPLACE INTO ddt' \
               'CREATE TABLE x (y)' 'PRAGMA wal_checkpoint' 'COMMIT'; do
        planted lib/report/stat.c "static const char *q = \"$sql\";" "has SQL"
    done
    planted lib/core/txg.c $'static const char *q =\n  "DELETE "\n  "FROM block";' "has SQL"
    planted tools/run.c 'static const char *q = "SELECT 1 FROM x";' "has SQL"
    planted lib/service/pool.c 'static sqlite3_stmt *st;' "sqlite3_stmt: only"
    planted lib/service/pool.h '#include <sqlite3.h>' "includes sqlite3.h: only"
    planted lib/data/io.c 'void x (void) { nbdkit_error ("no"); }' "nbdkit_error: only"
    planted lib/service/pool.h '#include <nbdkit-plugin.h>' "includes nbdkit-plugin.h: only"
    planted lib/base/error.c 'static const char *who = "nbdkit";' "names nbdkit"
    planted tools/main.c '#include <nbdkit-plugin.h>' "includes nbdkit-plugin.h: only"
    planted lib/report/stat.c 'static const char *t = "drift: " "no";' "begins with the command drift"
    planted lib/report/stat.c 'static const char *t = "drift-freed: no";' "begins with the command drift-freed"
    found
    # In comments, and in plugin/, it is allowed.
    printf '/* nbdkit_error, SELECT 1 FROM block */\n' >>tree/lib/data/io.c
    printf 'void y (void) { nbdkit_error ("why"); }\n' >>tree/plugin/keys.c
    run -0 rules tree
}

@test "a file without licence, unlisted or too long is found" {
    cd "$BATS_TEST_TMPDIR"
    copy_source
    planted vm-images/new.py '# no licence' "does not say"
    planted vm-images/new '#!/bin/sh' "does not say"
    planted tests/source/mutants.d/new '# SPDX-License-Identifier: BSD-3-Clause' "is in no makefile"
    planted tools/cmd-new.c '/* SPDX-License-Identifier: BSD-3-Clause */' "is not in tools/Makefile.am"
    planted lib/space/space-new.c '/* SPDX-License-Identifier: BSD-3-Clause */' "is not in lib/Makefile.am"
    planted lib/volume/volume.c "$(yes '/* */' | head -n 900)" "lines: at most 1000"
    planted plugin/dedup-plugin.c "$(yes '/* */' | head -n 900)" "lines: at most 1000"
    planted tests/modules/test-space.c "$(yes '/* */' | head -n 900)" "lines: at most 1000"
    planted tests/bats/golden.bats "$(yes '#' | head -n 900)" "lines: at most 1000"
    found
}

@test "a function that is too long, or hides that it needs a lock, is found" {
    local lines

    # make_function LINES NAME [STATEMENT]: one with so many lines between its braces
    make_function () {
        printf 'static int\n%s (struct x *x,\n    int y)\n{\n' "$2"
        lines=$(yes '  x->y++;' | head -n $(($1 - 1)))
        printf '%s\n%s\n}' "$lines" "${3-  return 0;}"
    }
    cd "$BATS_TEST_TMPDIR"
    copy_source
    planted plugin/keys.c "$(make_function 70 f)" "f has 72 lines: at most 71"
    planted tools/run.c "$(make_function 99 f)" "f has 101 lines: at most 71"
    planted lib/base/lock.h "$(make_function 70 f)" "f has 72 lines: at most 71"
    for lock in '&x->lock' 'x->lock' '&x->files[0].lock'; do
        planted lib/volume/allow.c "$(make_function 2 f "  assert_held ($lock);")" "f asserts that a lock is held"
    done
    planted lib/volume/allow.c "$(make_function 2 f_locked | tail -n +2)" "f_locked does not assert"
    found
    { make_function 69 f
      echo
      make_function 2 f_locked '  assert_held (&x->lock);'
      echo
      make_function 2 g '  assert_held (&pool->admin);'
    } >>tree/lib/volume/allow.c
    run -0 rules tree
}

@test "a line that is too long or has a tab is found" {
    local long

    cd "$BATS_TEST_TMPDIR"
    copy_source
    long=$(printf '/* %075d */' 0)
    planted lib/base/clock.h "$long" "has 81 columns: at most 80"
    planted plugin/keys.c "$long" "has 81 columns: at most 80"
    planted tools/run.c $'\t/* */' "has a tab"
    found
    printf '%s\n' "${long/0/}" >>tree/lib/base/clock.h
    run -0 rules tree
}

@test "a test that hangs is ended, with all it has started, and what they wait for is shown" {
    local limit=$top_srcdir/tests/rigs/time-limit nap=9999$$

    run -124 "$limit" 2 bash -c "sleep $nap.1 & sleep $nap.2; :"
    [[ $output == *"# hung: bash -c "*" has taken 2 s"* ]] || fail "$output"
    [[ $output == *"# hung: "*" sleep $nap.1"* ]] || fail "$output"
    assert_eq "$(pgrep -af "^sleep $nap" || :)" ""
    # Otherwise it changes nothing: the status, the input, signals.
    run -3 "$limit" 100 bash -c 'exit 3'
    assert_eq "$("$limit" 100 cat <<<text)" text
    run -5 env --ignore-signal=INT "$limit" 100 bash -c "trap 'exit 5' INT; kill -INT \$\$"
}

@test "what a .bats file mounts is in no namespace of another file" {
    local dir=$BATS_TEST_TMPDIR/mounted own=$top_srcdir/tests/rigs/own-mounts

    [ "$(id -u)" = 0 ] || skip "needs root"
    need unshare --mount true
    mkdir "$dir"
    run -0 "$own" sh -c 'mount -t tmpfs none "$1" && grep " $1 " /proc/mounts' - "$dir"
    run -1 grep " $dir " /proc/mounts
    run -3 "$own" sh -c 'exit 3'
    # The Makefile's rule for .bats files does this for each of them.
    grep '^BATS_LOG_COMPILER = .*rigs/own-mounts \$(BATS)$' "$top_srcdir/tests/Makefile.am"
}

@test "the plugin exports what nbdkit looks up, and nothing else" {
    run -0 nm -D --defined-only "$plugin"
    assert_eq "$(awk '{ print $3 }' <<<"$output" |
                     grep -vE '^(plugin_init|dedup_debug_.*)$')" ""
    [[ $output == *plugin_init* ]]
}

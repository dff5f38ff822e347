# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# Shared by crash.bats and crash-long.bats.

# model_directory ARG...: make a directory for these arguments.  Its name is
# short, whatever TMPDIR is, because of the sockets in it.  For simulated loss
# of power it is in memory, where syncs cost nothing.
model_directory ()
{
    local room

    room=$(df --output=avail /dev/shm 2>/dev/null | tail -n 1)
    if [[ " $* " == *" --power"* ]] && [ -w /dev/shm ] &&
            [ "${room:-0}" -gt $((4 << 20)) ]; then
        mktemp -d /dev/shm/nbdedup-crash.XXXXXX
    else
        mktemp -d /tmp/nbdedup-crash.XXXXXX
    fi
}

# run_model ARG...: run crash-model, and keep the pool if it fails.
run_model ()
{
    local dir kept

    dir=$(model_directory "$@")
    if ! "$test_programs/crash/crash-model" --plugin "$plugin" \
            --nbdedup "$top_builddir/tools/nbdedup" \
            ${sanitizer_preload:+--preload "$sanitizer_preload"} \
            "$@" "$dir" >"$dir/output" 2>&1 3>&- 4>&-; then
        kept="$test_programs/crash-failed"
        rm -rf "$kept"
        cp -a "$dir" "$kept" || kept="$dir"
        tail -n 40 "$dir/output"
        tail -n 5 "$dir/server.log"
        [ "$kept" = "$dir" ] || rm -rf "$dir"
        fail "the pool is kept in $kept"
    fi
    sed -n '1p;$p' "$dir/output"
    rm -rf "$dir"
}

# run_lineage ARG...: the same for lineage-crash.
run_lineage ()
{
    local dir kept

    dir=$(model_directory "$@")
    if ! "$test_programs/crash/lineage-crash" "$@" "$dir" >"$dir/output" 2>&1 \
            3>&- 4>&-; then
        kept="$test_programs/lineage-failed"
        rm -rf "$kept"
        cp -a "$dir" "$kept" || kept="$dir"
        head -n 3 "$dir/output"
        tail -n 60 "$dir/output"
        [ "$kept" = "$dir" ] || rm -rf "$dir"
        fail "the pool is kept in $kept"
    fi
    cat "$dir/output"
    rm -rf "$dir"
}

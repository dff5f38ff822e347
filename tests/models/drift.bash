# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# Drift compared with a program that reads exported images (drift-brute.c), and
# with the space that destroying on a copy of the pool frees.  "load drift"
# after "load helpers".

# figures: print the document on stdin as a table, without the figures that only
# the engine can know.
figures ()
{
    jq -r '
        "golden \(.golden), \(.golden_blocks) blocks of \(.block_size)",
        "name zero golden_same golden_moved sibling unique logical",
        (.clones[] | "\(.name) \(.zero) \(.golden_same) \(.golden_moved) " +
                     "\(.sibling) \(.unique) \(.logical)"),
        (.fleet | "fleet: logical \(.logical), distinct \(.distinct)")'
}

# expected_figures GOLDEN BLOCK-SIZE CLONE...: by brute force.  The figures of a
# golden image are kept: the test needs them again when its server has ended.
expected_figures ()
{
    local golden=$1 block_size=$2 dir=$BATS_TEST_TMPDIR/exported images=() name
    local known=$BATS_TEST_TMPDIR/expected-$1

    if [ -e "$known" ]; then
        cat "$known"
        return
    fi
    shift 2
    rm -rf "$dir"
    mkdir "$dir"
    for name in "$golden" "$@"; do
        nbdedup export "$name" "$dir/$name"
        images+=("$name=$dir/$name")
    done
    "$test_programs/models/drift-brute" --block-size "$block_size" "${images[@]}" |
        figures >"$known-new"
    rm -rf "$dir"
    mv "$known-new" "$known"
    cat "$known"
}

# drift_is_exact GOLDEN BLOCK-SIZE CLONE...: these are its clones, and drift's
# figures for them are right, to the block.  Leaves the document in $drift.
drift_is_exact ()
{
    local golden=$1

    drift=$(nbdedup drift "$golden" --json) || return
    diff -u --label "brute force" --label "nbdedup drift $golden" \
         <(expected_figures "$@") <(figures <<<"$drift") || return
    jq -e '.fleet | if .distinct == 0 then .dedup_ratio == null
        else (.dedup_ratio - .logical / .distinct | fabs) < 1e-6 end' \
        <<<"$drift" >/dev/null || fail "dedup_ratio: $(jq -c .fleet <<<"$drift")"
    # With little memory, and among all golden images, it is the same.
    diff -u <(jq 'del (.time)' <<<"$drift") \
         <(nbdedup drift "$golden" --json --memory 1M | jq 'del (.time)')
    diff -u <(jq 'del (.time) | select (.clones != [])' <<<"$drift") \
         <(nbdedup drift --json | jq --arg g "$golden" \
               '.goldens[] | select (.golden == $g) | del (.time)')
}

# The three below are for a pool without a server.

# settled: wait until nothing is left to be freed or merged.
settled ()
{
    nbdedup create settled 4K
    nbdedup destroy settled --wait
}

# given_back NAME...: print the space that destroying them on a copy frees.
given_back ()
{
    local copy=$BATS_TEST_TMPDIR/copy before name

    rm -rf "$copy"
    cp -r --sparse=always "$pool" "$copy"
    before=$(pool_stat stored_bytes)
    for name; do
        # It may have been destroyed with the volume before it.
        nbdedup -p "$copy" list --json | jq -e --arg n "$name" \
            '[.volumes[] | .name, "\(.name)@\(.snapshots[].name)"] |
             index ($n)' >/dev/null || continue
        nbdedup -p "$copy" destroy "$name" -r --force --wait
    done
    echo $((before - $(nbdedup -p "$copy" stat --json |
                           jq .pool.stored_bytes)))
    rm -rf "$copy"
}

# only_here_is_exact GOLDEN: check only_here_bytes of each of its clones.
only_here_is_exact ()
{
    local clones name bytes

    clones=$(nbdedup drift "$1" --json |
                 jq -er '.clones[] | "\(.name) \(.only_here_bytes)"')
    while read -r name bytes; do
        assert_eq "$bytes" "$(given_back "$name")" "only_here_bytes of $name"
    done <<<"$clones"
}

# if_destroyed_is_exact NAME...: check the space that destroying all of them
# frees.
if_destroyed_is_exact ()
{
    local bytes

    bytes=$(nbdedup drift --json --if-destroyed "$@" |
                jq -e .if_destroyed.freed_bytes)
    assert_eq "$bytes" "$(given_back "$@")" "--if-destroyed $*"
}

#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# A shrink that fails: the volume keeps its size and all of its bytes, and the
# pool can do all that it could do before.  (A shrink that is cut off:
# crash/shrink-crash.c, modules/test-shrink.c.)

load ../rigs/helpers

# figures: print what must not change.
figures ()
{
    nbdedup list --json | jq -c '.volumes'
}

# expect_grown SIZE NAME...: the volumes, which have grown again to the length of
# "img", have its first SIZE bytes, and then zeroes.
expect_grown ()
{
    local size=$1 len name

    shift
    len=$(stat -c %s img)
    { head -c "$size" img; head -c $((len - size)) /dev/zero; } >expected
    for name; do
        nbdedup export "$name" - | cmp - expected
    done
}

@test "a shrink that cuts a damaged block in two fails, and the pool goes on" {
    local before key

    need jq --version
    damaged
    make_pool --block-size 64K
    random_data 1M >img
    nbdedup import v img
    nbdedup import w img
    before=$(figures)
    key=$(tail -c +$((4 * 65536 + 1)) img | head -c 12 | od -An -tx1 |
              tr -d '\n' | sed 's/ /\\x/g')
    key=$(LC_ALL=C grep -obUaP "$key" "$pool/records" | cut -d: -f1)
    printf '\x55\xaa\x55' |
        dd of="$pool/records" bs=1 seek=$((key + 9000)) conv=notrunc status=none

    refused "volume v keeps its size: the block at 262144, which the end at \
262656 cuts in two, cannot be written again: records: the record at sector" \
            resize v 262656 --shrink
    assert_eq "$(figures)" "$before"
    nbdedup check
    run -1 --separate-stderr nbdedup scrub --json
    assert_eq "$(jq -c '.damaged | map(.name)' <<<"$output")" '["v","w"]'
    nbdedup snapshot v@s
    nbdedup destroy w
    # A block that goes as a whole, or stays as a whole, is not read.
    nbdedup resize v 128K --shrink
    nbdedup resize v 1M
    expect_grown 131072 v
    nbdedup rollback v@s
    serve "$pool"
    refused "volume v keeps its size: " resize v 262656 --shrink
    nbdedup resize v 256K --shrink
    nbdedup resize v 1M
    expect_grown 262144 v
}

# shrink_when_full: the whole test, beside a server or without.
shrink_when_full ()
{
    local before used

    random_data 8M >img
    nbdedup import v img
    nbdedup snapshot v@s
    used=$(nbdedup set max-size=1M 2>&1 |
               sed -n 's/.*: \([0-9]*\) bytes are in use.*/\1/p')
    nbdedup set max-size="$used"
    before=$(figures)
    refused "max-size" resize v 4194816 --shrink
    assert_eq "$(figures)" "$before"
    nbdedup export v - | cmp - img
    nbdedup snapshot v@t
    nbdedup set max-size=none
    nbdedup clone v@t c
    nbdedup export c - | cmp - img
    for name in c v; do
        nbdedup resize $name 4194816 --shrink
        nbdedup resize $name 8M
    done
    expect_grown 4194816 c v
    nbdedup rollback v@t
    nbdedup export v - | cmp - img
    nbdedup check
}

@test "a shrink of a full pool fails, and nothing else" {
    need jq --version
    make_pool --block-size 1M
    shrink_when_full
}

@test "the same beside a server" {
    need jq --version
    make_pool --block-size 1M
    serve "$pool"
    shrink_when_full
}

#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2030,SC2031,SC2154
#
# Tests the program that drift's figures are compared with (drift-brute.c), on
# images so small that the figures can be counted by hand, and on random ones
# against a few lines of Python that follow the definitions word by word.

load ../rigs/helpers

brute ()
{
    "$test_programs/models/drift-brute" "$@"
}

# image FILE BLOCKS [SIZE]: make an image with a block for each letter; "." is
# a block of zeroes, "_" a hole.
image ()
{
    perl -e '
        my ($file, $blocks, $size) = @ARGV;
        open my $fh, ">:raw", $file or die "$file: $!\n";
        for (split //, $blocks) {
            if ($_ eq "_") { seek $fh, $size, 1 }
            else { print $fh (($_ eq "." ? "\0" : $_) x $size) }
        }
        close $fh and truncate $file, $size * length $blocks
            or die "$file: $!\n";' "$1" "$2" "${3:-512}"
}

# clones: print "NAME zero same moved sibling unique logical" for each clone of
# the document on stdin.
clones ()
{
    jq -r '.clones[] | [.name, .zero, .golden_same, .golden_moved, .sibling,
                        .unique, .logical] | join (" ")'
}

@test "each block is in its class" {
    image g ABC.AD              # A B C D: five nonzero blocks
    image x ABD_XE              # same same moved zero sibling sibling
    image y XA.CYYF             # sibling moved zero moved unique*3
    image z EEB                 # sibling sibling moved
    brute --block-size 512 golden@v1=g z=z y=y x=x >out
    assert_eq "$(clones <out)" \
$'x 1 2 1 2 0 5\ny 1 0 2 1 3 6\nz 0 0 1 2 0 3'
    # A B C D E F X Y
    assert_eq "$(jq -c '[.golden, .block_size, .golden_blocks, .fleet]' out)" \
        '["golden@v1",512,5,{"logical":19,"distinct":8,"dedup_ratio":2.375}]'

    # The order of the clones changes nothing.  With another golden image the
    # blocks are the same, in other classes.
    brute --block-size 512 golden@v1=g x=x z=z y=y | cmp - out
    brute --block-size 512 x=x g=g y=y z=z >out
    assert_eq "$(clones <out)" \
$'g 1 2 2 1 0 5\ny 1 0 2 1 3 6\nz 0 0 3 0 0 3'
    assert_eq "$(jq -c .fleet out)" \
        '{"logical":19,"distinct":8,"dedup_ratio":2.375}'
}

@test "what only the clone itself has twice is unique; a block counts each time" {
    image g A
    image x BBBBAA
    image y CCB
    assert_eq "$(brute --block-size 512 g=g x=x | clones)" 'x 0 0 2 0 4 6'
    assert_eq "$(brute --block-size 512 g=g x=x y=y | clones)" \
$'x 0 0 2 4 0 6\ny 0 0 0 1 2 3'
}

@test "no clones, no blocks, and an empty file" {
    image g __..
    : >empty
    assert_eq "$(brute --block-size 512 g=g | jq -c .)" \
        '{"golden":"g","block_size":512,"golden_blocks":0,"clones":[],"fleet":{"logical":0,"distinct":0,"dedup_ratio":null}}'
    assert_eq "$(brute --block-size 512 g=g x=empty | clones)" 'x 0 0 0 0 0 0'
    assert_eq "$(brute --block-size 512 g=empty x=g | clones)" 'x 4 0 0 0 0 0'
}

@test "the last block counts whole, padded with zeroes" {
    image g AABBC               # of 1024: AA BB C.
    image x AABBC.
    image y CCC
    assert_eq "$(brute --block-size 1024 g=g x=x y=y | clones)" \
$'x 0 3 0 0 0 3\ny 0 0 1 0 1 2'
    printf 'A' >z
    image g A 1
    assert_eq "$(brute --block-size 512 g=g z=z | clones)" 'z 0 1 0 0 0 1'
}

@test "the block size decides what is equal" {
    image g ABCD 4096
    image x BADC 4096
    image y ABBA 4096
    assert_eq "$(brute --block-size 4096 g=g x=x y=y | clones)" \
$'x 0 0 4 0 0 4\ny 0 2 2 0 0 4'
    assert_eq "$(brute --block-size 8192 g=g x=x y=y | clones)" \
$'x 0 0 0 1 1 2\ny 0 1 0 1 0 2'
    assert_eq "$(brute --block-size 16384 g=g x=x y=y | clones)" \
$'x 0 0 0 0 1 1\ny 0 0 0 0 1 1'
    assert_eq "$(brute --block-size 16777216 g=g x=g y=g | clones)" \
$'x 0 1 0 0 0 1\ny 0 1 0 0 0 1'
}

@test "one byte makes a block another one" {
    image g AAAA 4096
    cp g x
    printf B | dd of=x bs=1 seek=8191 conv=notrunc status=none
    cp g y
    printf B | dd of=y bs=1 seek=12287 conv=notrunc status=none
    assert_eq "$(brute --block-size 4096 g=g x=x | clones)" 'x 0 3 0 0 1 4'
    assert_eq "$(brute --block-size 4096 g=g x=x y=y | clones)" \
$'x 0 3 0 1 0 4\ny 0 3 0 1 0 4'
}

@test "20 GiB with little in them take no time" {
    image a AB 4096
    truncate -s 20G g x y
    dd if=a of=g bs=4096 seek=5000000 conv=notrunc status=none
    dd if=a of=x bs=4096 seek=5000000 conv=notrunc status=none
    dd if=a of=y bs=4096 seek=0 conv=notrunc status=none
    dd if=a of=y bs=4096 seek=5242878 conv=notrunc status=none
    timeout 10 "$test_programs/models/drift-brute" --block-size 4096 g=g x=x y=y >out
    assert_eq "$(clones <out)" \
$'x 5242878 2 0 0 0 2\ny 5242876 0 4 0 0 4'
}

# The definitions again, in the words of nbdedup-drift(1).
naive ()
{
    /usr/bin/python3 - "$@" <<'END'
import sys

size = int(sys.argv[1])
images = []
for path in sys.argv[2:]:
    data = open(path, "rb").read()
    images.append([data[i:i + size].ljust(size, b"\0")
                   for i in range(0, len(data), size)])
golden, clones = images[0], images[1:]
zero = bytes(size)
for path, clone in zip(sys.argv[3:], clones):
    n = dict.fromkeys(("zero", "same", "moved", "sibling", "unique"), 0)
    for i, block in enumerate(clone):
        if block == zero:
            n["zero"] += 1
        elif i < len(golden) and golden[i] == block:
            n["same"] += 1
        elif block in golden:
            n["moved"] += 1
        elif any(block in other for other in clones if other is not clone):
            n["sibling"] += 1
        else:
            n["unique"] += 1
    print(path, *n.values(), len(clone) - n["zero"])
END
}

@test "random images, beside the definitions in Python" {
    local seed=${SEED:-$RANDOM} round i size letters

    echo "SEED=$seed"
    RANDOM=$seed
    for ((round = 0; round < 40; round++)); do
        letters=ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefgh.___
        letters=${letters:RANDOM % 20}
        for i in g v w x y; do
            : >$i
            for ((size = RANDOM % 60; size > 0; size--)); do
                printf '%s' "${letters:RANDOM % ${#letters}:1}" >>$i
            done
            image $i.img "$(cat $i)" $((512 << RANDOM % 2))
        done
        size=$((512 << RANDOM % 3))
        brute --block-size "$size" g=g.img {v,w,x,y}.img | clones >found
        naive "$size" {g,v,w,x,y}.img >expected
        diff -u expected found || fail "round $round: letters $letters, size $size"
    done
}

@test "wrong usage and what cannot be read" {
    image g A
    run -2 brute
    run -2 brute --block-size 512
    run -2 brute g
    run -1 brute --block-size 1000 g
    run -1 brute --block-size 512 g none
    run -1 brute --block-size 512 /dev/zero
}

# SPDX-License-Identifier: BSD-3-Clause
#
# A real Debian image, made by vm-images/debian-image.  It is built once and
# kept in the build directory, or in $NBDEDUP_IMAGES: see the script "image".

load ../rigs/helpers

setup_file ()
{
    need mmdebstrap --version
    need mke2fs -V
    # bats waits for every process that holds its descriptors 3 and 4.
    image=$(bash "$top_srcdir/tests/vm/image" "$top_builddir" 3>&- 4>&-)
    export image
}

# ratios IMAGE...: figures of the independent program, for a default pool.
ratios ()
{
    local block_size sector

    block_size=$(nbdedup -p "$pool" list --json | jq '.volumes[0].block_size')
    sector=$(nbdedup -p "$pool" get sector --json |
                 jq -r '.. | strings' | tail -n 1)
    /usr/bin/python3 "$top_srcdir/tests/models/ratios.py" --block-size "$block_size" \
            --sector "$sector" "$@"
}

# near A B TOLERANCE: equal within a relative tolerance.
near ()
{
    assert_num "($1 - $2) <= $3 * $2 && ($2 - $1) <= $3 * $2"
}

@test "a Debian image comes out of the pool as it went in" {
    make_pool
    nbdedup import golden "$image"
    nbdedup export golden "$BATS_TEST_TMPDIR/out.raw"
    cmp "$image" "$BATS_TEST_TMPDIR/out.raw"

    # The export is as sparse as possible.
    run -0 nbdedup stat golden --json
    assert_num "$(du -B1 "$BATS_TEST_TMPDIR/out.raw" | cut -f1) <= \
        $(jq '.volumes[0].logical_bytes' <<<"$output") * 1.02 + 1048576"
}

@test "a second copy of a Debian image stores less than 1 % more" {
    local before after

    make_pool
    nbdedup import golden "$image"
    before=$(pool_stat stored_bytes)
    nbdedup import copy "$image"
    after=$(pool_stat stored_bytes)
    assert_num "$after < $before * 1.01"
    assert_num "$(pool_stat dedup_ratio) >= 2"
    nbdedup export copy "$BATS_TEST_TMPDIR/out.raw"
    cmp "$image" "$BATS_TEST_TMPDIR/out.raw"
}

@test "the figures of stat are those of a program that reads exported images" {
    local figures=$BATS_TEST_TMPDIR/figures stat=$BATS_TEST_TMPDIR/stat key

    make_pool
    nbdedup import golden "$image"
    nbdedup import copy "$image"

    # Change the copy, in data, in zeroes and in shared blocks.
    serve "$pool"
    random_data 8M 1 >"$BATS_TEST_TMPDIR/random"
    write_file copy "$BATS_TEST_TMPDIR/random" 33333333
    write_file copy "$BATS_TEST_TMPDIR/random" 67108864
    qemu-io -f raw "$(uri_of copy)" -c 'write -z 134217728 16M' -c flush

    # Through the server, and again when it has ended.
    nbdedup export golden "$BATS_TEST_TMPDIR/golden.raw"
    nbdedup export copy "$BATS_TEST_TMPDIR/copy.raw"
    nbdedup stat --json >"$stat.served"
    stop
    nbdedup stat --json >"$stat"

    run ! cmp -s "$BATS_TEST_TMPDIR/golden.raw" "$BATS_TEST_TMPDIR/copy.raw"
    ratios "$BATS_TEST_TMPDIR/golden.raw" "$BATS_TEST_TMPDIR/copy.raw" >"$figures"
    for key in logical_bytes records record_bytes dedup_ratio; do
        near "$(jq ".pool.$key" "$stat.served")" "$(jq ".$key" "$figures")" 1e-9
        near "$(jq ".pool.$key" "$stat")" "$(jq ".$key" "$figures")" 1e-9
    done
    near "$(jq '.volumes[] | select (.name == "copy") | .logical_bytes' "$stat")" \
         "$(jq '.volumes[1].logical_bytes' "$figures")" 1e-9

    # The ratios are as nbdedup-stat(1) and the figures say.
    near "$(jq '.pool.compress_ratio' "$stat")" \
         "$(jq '.pool.record_bytes / .pool.stored_bytes' "$stat")" 1e-6
    near "$(jq '.pool.reduction' "$stat")" \
         "$(jq '.pool | .logical_bytes / (.stored_bytes + .metadata_bytes)' "$stat")" 1e-6
}

# write_file EXPORT FILE OFFSET: write a file into an export.
write_file ()
{
    qemu-io -f raw "$(uri_of "$1")" \
            -c "write -s $2 $3 $(stat -c %s "$2")" -c flush
}

@test "the compression ratio is that of LZ4 on each block" {
    local figures=$BATS_TEST_TMPDIR/figures

    need /usr/bin/python3 -c 'import lz4.block'
    make_pool
    nbdedup import golden "$image"
    ratios --lz4 "$image" >"$figures"

    # Another version of LZ4 may find a few bytes more or less.
    near "$(pool_stat stored_bytes)" "$(jq .stored_bytes "$figures")" 0.02
    near "$(pool_stat compress_ratio)" "$(jq .compress_ratio "$figures")" 0.02
}

# The start of vm-images/six-weeks: a system with pending upgrades.
@test "debian-image knows a release with and without its updates" {
    local bin=$BATS_TEST_TMPDIR/bin all

    mkdir "$bin"
    printf '#!/bin/sh\nprintf "deb http://m/ %%s main\\n" %s\n' \
        'bookworm bookworm-security bookworm-updates trixie' >"$bin/apt-get"
    chmod 755 "$bin/apt-get"
    PATH=$bin:$PATH
    all=$'deb http://m/ bookworm main
deb http://m/ bookworm-security main
deb http://m/ bookworm-updates main'
    run -0 "$top_srcdir/vm-images/debian-image" --list-sources --suite bookworm
    assert_eq "$output" "$all"
    run -0 "$top_srcdir/vm-images/debian-image" --list-sources \
        --suite bookworm --no-updates
    assert_eq "$output" "${all%%$'\n'*}"
}

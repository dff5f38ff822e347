# SPDX-License-Identifier: BSD-3-Clause

# Space that is free inside of the records file goes back to the file system.

load ../rigs/helpers

# scattered SIZE: import volume "v", of which every second 16 KiB block stays,
# and a snapshot that has some of them; "wanted" is its content.
scattered ()
{
    wanted="$BATS_TEST_TMPDIR/wanted"
    make_pool --compress none
    random_data "$1" >"$wanted"
    nbdedup import v "$wanted"
    serve "$pool"
    python3 - "$wanted" "$BATS_TEST_TMPDIR/holes" <<'PYTHON'
import os
import sys
size = os.path.getsize(sys.argv[1])
with open(sys.argv[1], "r+b") as image, open(sys.argv[2], "w") as commands:
    for offset in range(16384, size, 32768):
        image.seek(offset)
        image.write(bytes(16384))
        commands.write("discard -q %d 16k\n" % offset)
    commands.write("flush\n")
PYTHON
    qemu-io -f raw "$(uri_of v)" <"$BATS_TEST_TMPDIR/holes" >/dev/null
}

same ()
{
    nbdedup export "$1" - | cmp - "$wanted"
}

@test "compact gives the space of a server's pool back, and the data stays" {
    local before records

    # Less than the server compacts by itself.
    scattered 56M
    nbdedup snapshot v@s
    nbdedup clone v@s c
    before=$(pool_stat file_bytes)
    records=$(pool_stat records)
    assert_num "$before >= 56 * 1048576"
    run -0 --separate-stderr nbdedup compact --json
    jq -e '.moved_records > 1000 and .moved_bytes == .moved_records * 16384' \
       <<<"$output"
    # Some empty segments stay for new data.
    assert_num "$(jq .file_bytes <<<"$output") <= 49 * 1048576"
    assert_eq "$(pool_stat records)" "$records"
    same v
    same v@s
    same c
    nbdedup check
    nbdedup scrub
    stop
    assert_num "$(pool_stat file_bytes) <= 34 * 1048576"
    same v
    same c
    # What is left is dense.
    nbdedup compact
    assert_num "$(pool_stat file_bytes) <= 34 * 1048576"
}

@test "compact works without a server, also right after a crash" {
    scattered 40M
    crash
    run -0 nbdedup compact
    [[ $output =~ ^[0-9]+" records moved, "[12][0-9.]+" MiB; the records file" ]]
    assert_num "$(pool_stat file_bytes) <= 25 * 1048576"
    nbdedup check
    same v
}

@test "an idle server gives the space back by itself" {
    scattered 192M
    assert_num "$(pool_stat stored_bytes) == 96 * 1048576"
    wait_for 60 records_are_dense
    same v
    nbdedup check
    nbdedup scrub
}

@test "a pool that is open read-only is not compacted" {
    make_pool
    run -2 --separate-stderr nbdedup --read-only compact
}

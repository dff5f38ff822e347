#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154,SC2030,SC2031
#
# The hash that finds duplicates: each of them, from outside; and the secret key
# of "gmac": where it is, who may see it, and what follows if it is lost.

load ../rigs/helpers

# The key in the header of records, in hexadecimal digits.
key_of ()
{
    od -An -v -tx1 -j80 -N32 "$1/records" | tr -d ' \n'
}

# patch OFFSET VALUE: write 8 bytes into both copies of the header of records.
patch ()
{
    "$test_programs/bats/patch-header" "$pool/records" 8192 "$1" "$2"
}

# change_db SQL: change pool.db, which has no copy, and seal its pages again.
change_db ()
{
    python3 - "$pool/pool.db" "$1" <<'SCRIPT'
import ctypes
import sqlite3
import sys

xxh3 = ctypes.CDLL("libxxhash.so.0").XXH3_64bits_withSeed
xxh3.restype = ctypes.c_uint64
xxh3.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64]

db = sqlite3.connect(sys.argv[1])
assert db.execute(sys.argv[2]).rowcount == 1
db.commit()
db.close()
with open(sys.argv[1], "r+b") as f:
    data = bytearray(f.read())
    for page in range(int.from_bytes(data[28:32], "big")):
        off = page * 8192
        body = bytes(data[off:off + 8184])
        data[off + 8184:off + 8192] = \
            xxh3(body, len(body), off).to_bytes(8, "little")
    f.seek(0)
    f.write(data)
SCRIPT
}

# damage_page FILE...: flip a bit of the page with the pool's properties.
damage_page ()
{
    local page file

    page=$(sqlite3 "file:$pool/pool.db?immutable=1" \
               "SELECT rootpage FROM sqlite_schema WHERE name = 'property'")
    for file; do
        printf '\x5a' | dd of="$pool/$file" bs=1 conv=notrunc status=none \
            seek=$(( page * 8192 - 40 ))
    done
}

# keyed_pool: a pool with the keyed hash, and 2 MiB of data in v.
keyed_pool ()
{
    image="$BATS_TEST_TMPDIR/image"
    make_pool --hash gmac
    random_data 2M 7 >"$image"
    nbdedup import v "$image" --block-size 4K
    key=$(key_of "$pool")
}

# still_works: the pool has its key: it finds duplicates, and verifies digests.
still_works ()
{
    assert_eq "$(key_of "$pool")" "$key" "the key in the header"
    assert_eq "$(sqlite3 "file:$pool/pool.db?immutable=1" \
                 "SELECT value FROM property WHERE name = 'hash-key'")" \
              "$key" "the key in pool.db"
    nbdedup import again "$image" --block-size 4K
    assert_eq "$(pool_stat records)" 512
    nbdedup export v - | cmp - "$image"
    nbdedup check
    nbdedup scrub
    nbdedup destroy again --wait
}

@test "every hash finds duplicates, in clones and after kill -9" {
    need jq --version
    local hash hashes

    hashes=$(nbdkit --dump-plugin "$plugin" | sed -n 's/^hashes=//p')
    [[ ,$hashes, == *,gmac,* ]]
    random_data 1M 3 >"$BATS_TEST_TMPDIR/image"
    for hash in ${hashes//,/ }; do
        rm -rf "$BATS_TEST_TMPDIR/pool"
        make_pool --hash "$hash"
        assert_eq "$(nbdedup get hash)" "$hash"
        nbdedup import golden "$BATS_TEST_TMPDIR/image" --block-size 4K
        nbdedup snapshot golden@v1
        nbdedup clone golden@v1 web1
        nbdedup create apart 1M --block-size 4K --domain apart
        serve "$pool" commit-interval=3600
        # The image's content at another place, and new content twice.
        qemu-io -f raw -c "write -s $BATS_TEST_TMPDIR/image 512k 512k" \
                -c 'write -P 7 0 4k' -c 'write -P 7 8k 4k' -c flush \
                "$(uri_of web1)"
        qemu-io -f raw -c 'write -P 7 0 4k' -c flush "$(uri_of apart)"
        crash
        assert_eq "$(pool_stat records)" 258
        nbdedup check
        nbdedup scrub
        nbdedup import again "$BATS_TEST_TMPDIR/image" --block-size 4K
        assert_eq "$(pool_stat records)" 258
        nbdedup export again - | cmp - "$BATS_TEST_TMPDIR/image"
    done
}

@test "the key is secret: no command and no log has it, and files are private" {
    local file

    keyed_pool
    assert_num "${#key} == 64"
    assert_num "$(tr -d 0 <<<"$key" | wc -c) > 32"
    for file in "$pool"/*; do
        [[ $file == */lock ]] ||
            assert_eq "$(stat -c %a "$file")" 600 "$file"
    done
    assert_eq "$(stat -c %a "$pool")" 700
    nbdedup snapshot v@s
    nbdedup clone v@s w
    serve "$pool"
    {
        nbdedup get all
        nbdedup get all --json
        nbdedup stat --json
        nbdedup stat --prometheus
        nbdedup status --json
        nbdedup list --json
        nbdedup drift --json
        nbdedup check --json
        nbdedup scrub --json
        nbdedup export v -
        cat "$server_log"
    } >"$BATS_TEST_TMPDIR/printed"
    assert_eq "$(stat -c %a "$pool/control.sock")" 600
    run ! grep -aqi "$key" "$BATS_TEST_TMPDIR/printed"
    misused hash-key get hash-key
    misused hash-key set hash-key="$key"
    stop
    nbdedup get all | grep -Eq '^hash +gmac$'
}

@test "records that other users may read is refused for a keyed hash" {
    mkdir "$BATS_TEST_TMPDIR/disk"
    touch "$BATS_TEST_TMPDIR/disk/records"
    pool="$BATS_TEST_TMPDIR/pool"
    for mode in 644 640 604; do
        rm -rf "$pool"
        mkdir "$pool"
        ln -s ../disk/records "$pool/records"
        chmod "$mode" "$BATS_TEST_TMPDIR/disk/records"
        run -1 nbdedup init "$pool" --hash gmac
        [[ $output == *"/records: other users may read it"*"0600"* ]]
        [ ! -e "$pool/pool.db" ]
    done
    chmod 600 "$BATS_TEST_TMPDIR/disk/records"
    nbdedup init "$pool" --hash gmac
}

@test "each pool has a key of its own" {
    need sqlite3 -version
    local one two query

    query="SELECT hex (substr (data, -32)) FROM record ORDER BY grp"
    keyed_pool
    one=$(sqlite3 "file:$pool/pool.db?immutable=1" "$query")
    mv "$pool" "$BATS_TEST_TMPDIR/first"
    keyed_pool
    two=$(sqlite3 "file:$pool/pool.db?immutable=1" "$query")
    assert_num "$(wc -l <<<"$one") > 10"
    assert_eq "$(sort -u <<<"$one"$'\n'"$two" | wc -l)" \
              "$(( 2 * $(wc -l <<<"$one") ))"
    [ "$(key_of "$pool")" != "$(key_of "$BATS_TEST_TMPDIR/first")" ]
}

@test "a page with the key that is damaged in one copy costs nothing" {
    need sqlite3 -version
    local file

    keyed_pool
    for file in pool.db pool.db.copy; do
        damage_page "$file"
        nbdedup list
        still_works
    done
}

@test "without the key's row in pool.db, the header of records has it" {
    need sqlite3 -version

    keyed_pool
    damage_page pool.db pool.db.copy
    run -0 --separate-stderr nbdedup list
    [[ $stderr == *"the key of the pool's hash is missing in pool.db"* ]]
    still_works
    # A row that says nothing.
    nbdedup set metadata-copy=off
    change_db "UPDATE property SET value = 'x' WHERE name = 'hash-key'"
    nbdedup list
    still_works
}

@test "without pool.db its copy has the key, and the header of records" {
    need sqlite3 -version
    need jq --version

    keyed_pool
    cp -a "$pool" "$BATS_TEST_TMPDIR/all"
    rm "$pool"/pool.db "$pool"/pool.db-wal
    nbdedup recover
    still_works
    # Without the copy it cannot be recovered; nothing prints the key.
    rm "$pool"/pool.db*
    damaged
    run -1 nbdedup recover --json
    [[ $output != *"$key"* ]]
    assert_eq "$(key_of "$pool")" "$key"
    rm -rf "$pool"
    mv "$BATS_TEST_TMPDIR/all" "$pool"
    still_works
}

@test "without the key in the header of records, pool.db has it" {
    need sqlite3 -version

    keyed_pool
    patch 72 0
    patch 80 0
    run -0 --separate-stderr nbdedup list
    [[ $stderr == *"is missing in the header of records"* ]]
    still_works
}

@test "a key that is lost everywhere: reads work, and the error says so" {
    need sqlite3 -version

    keyed_pool
    nbdedup set metadata-copy=off
    cp -a "$pool" "$BATS_TEST_TMPDIR/all"
    change_db "DELETE FROM property WHERE name = 'hash-key'"
    patch 72 0
    run -1 nbdedup list
    [[ $output == *"the key of its hash is lost in pool.db and in the "* ]]
    [[ $output == *"restore the pool from a backup"*"--read-only"* ]]
    run -0 --separate-stderr nbdedup --read-only export v \
        "$BATS_TEST_TMPDIR/out"
    [[ $stderr == *"volumes can be read"* ]]
    cmp "$BATS_TEST_TMPDIR/out" "$image"
    run -1 nbdedup --read-only scrub
    [[ $output == *"the pool's key is lost"* ]]
    # Another key is not the key.
    patch 72 6
    patch 80 1
    run -1 nbdedup --read-only scrub
    [[ $output == *"512 records are damaged"* ]]
    rm -rf "$pool"
    mv "$BATS_TEST_TMPDIR/all" "$pool"
    still_works
}

@test "with two different keys a pool can only be read" {
    keyed_pool
    cp "$pool/records" "$BATS_TEST_TMPDIR/records"
    patch 80 1
    run -1 nbdedup list
    [[ $output == *"pool.db and records have different keys of its hash: "* ]]
    nbdedup --read-only export v - | cmp - "$image"
    cp "$BATS_TEST_TMPDIR/records" "$pool/records"
    nbdedup list
}

@test "scrub --from finds content by the keyed hash, through a server" {
    need jq --version

    keyed_pool
    serve "$pool" record-cache=0
    python3 -c 'import sys
with open(sys.argv[1], "r+b") as f:
    for at in 100000, 500000, 900000:
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ 1]))' "$pool/records"
    run -1 nbdedup scrub
    [[ $output == *"3 records are damaged"* ]]
    run -0 --separate-stderr nbdedup scrub --from "$image" --json
    assert_eq "$(jq .repaired_records <<<"$output")" 3
    [[ $output$stderr != *"$key"* ]]
    nbdedup scrub
    stop
    nbdedup export v - | cmp - "$image"
}

#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154,SC2034,SC2030,SC2031
#
# nbdedup-format(5) is true: format-reader.py, which is written from that page
# alone, verifies pools of all kinds and reads every volume as "nbdedup export"
# does, also from a pool whose server was killed.
#
# STRATEGY: the tests compare every byte of every volume, and the reader checks
# every structure, so a page (or a reader) that is wrong in one field fails
# here.  The last tests damage pools, to check that the reader can fail.

load ../rigs/helpers
load ../rigs/clients

setup ()
{
    need qemu-io --version
    need jq --version
    need sqlite3 -version
    reader="$top_srcdir/tests/models/format-reader.py"
    python=/usr/bin/python3     # not an interpreter of one user
    [ -x "$python" ] || python=python3
    data="$BATS_TEST_TMPDIR/data"
    cd "$BATS_TEST_TMPDIR" || exit
}

# No process may have the pool open.
decode () { "$python" "$reader" "$@"; }

# volumes POOL: list them from a copy, because SQLite would spoil the checksums
# of a pool that has a WAL.
volumes ()
{
    rm -rf copy
    mkdir copy
    cp "$1"/pool.db* copy
    sqlite3 copy/pool.db \
        "SELECT name FROM volume UNION
         SELECT volume.name || '@' || snapshot.name
             FROM snapshot JOIN volume ON volume = volume.id"
    rm -rf copy
}

# put NAME OFFSET FILE
put () { io "$(uri_of "$1")" "write -q -s $3 $2 $(stat -c %s "$3")"; }

# compare POOL: decode the pool as it is, then export and compare.  The reader's
# output is left in "figures".
compare ()
{
    local name names args=()

    names=$(volumes "$1")
    for name in $names; do
        args+=("$name" "reader.$name")
    done
    [ ${#args[@]} -gt 0 ]
    decode "$1" "${args[@]}" >figures
    cat figures
    for name in $names; do
        rm -f "export.$name"
        nbdedup -p "$1" export "$name" "export.$name"
        cmp "export.$name" "reader.$name"
        [[ $name == *@* ]] || assert_eq "$(stat -c %s "reader.$name")" \
                  "$(nbdedup -p "$1" list --json |
                     jq ".volumes[] | select (.name == \"$name\") | .size")"
        rm -f "export.$name" "reader.$name"
    done
}

# figure NAME: a figure of the last compare.
figure () { jq -r ".$1" figures; }

# age_volume NAME: write text, random data and runs of one byte; overwrite,
# trim, zero and write parts; make equal blocks within and between volumes.
# The volume must have 3 MiB or more.
age_volume ()
{
    text_data 700K 1 >"$data"
    put "$1" 8192 "$data"
    random_data 300K "${#1}" >"$data"
    put "$1" 1048576 "$data"
    put "$1" 2097152 "$data"
    io "$(uri_of "$1")" \
       'write -q -P 7 1500k 256k' 'write -q -P 7 1513k 3k' \
       'write -q -P 8 5k 1k' 'discard -q 1M 64k' 'write -q -z 32k 40k' \
       'write -q -P 0 1600k 64k' 'write -q -P 9 100k 512' flush
    # The last bytes, whatever the size.
    io "$(uri_of "$1")" "write -q -P 5 $(($(size_of "$1") - 512)) 512" flush
}

size_of ()
{
    nbdedup list --json | jq ".volumes[] | select (.name == \"$1\") | .size"
}

# pool_of_all_kinds BLOCK...: make volumes of these block sizes with every
# codec, and use them in all ways.
pool_of_all_kinds ()
{
    local block nr=0

    nbdedup create gone 4M --block-size 16K --compress none
    nbdedup create plain 4M --compress none --dedup off
    nbdedup create sure 4M --compress zstd-9 --dedup verify
    nbdedup create apart 4M
    nbdedup set domain=apart apart
    nbdedup create empty 1G
    nbdedup create nothing 512
    for block; do
        # The size is an odd number of sectors, not a whole number of blocks.
        nbdedup create "b$block" $((4 * 1048576 + 512 * (2 * nr + 1))) \
                --block-size "$block" --compress \
                "$(printf 'lz4\nzstd\nnone\n' | sed -n "$((nr % 3 + 1))p")"
        nr=$((nr + 1))
    done
    serve "$pool"
    age_volume gone
    age_volume plain
    age_volume sure
    age_volume apart
    for block; do
        age_volume "b$block"
    done
    nbdedup create short 4M
    age_volume short
    nbdedup resize short 1700K --shrink
    nbdedup resize short 3M
    nbdedup rename empty hollow
    nbdedup destroy gone --wait
    # They replace pointers that are in pool.db now: deltas.
    io "$(uri_of apart)" 'write -q -P 11 20k 512' 'write -q -P 12 2M 4k' flush
    stop
}

@test "a pool of 512-byte sectors reads as the format page says" {
    make_pool
    pool_of_all_kinds 4K 16K 1M
    compare "$pool"
    # In a quiet pool the journal and the WAL are empty.
    assert_eq "$(figure batches) $(figure wal_pages)" "0 0"
    assert_num "$(figure records) > 400"
    assert_num "$(figure deltas) > 1"
}

@test "a pool of 4 KiB sectors and blake2b512 reads as the page says" {
    make_pool --sector 4096 --hash blake2b512 --compress zstd
    pool_of_all_kinds 4K 8K 64K
    compare "$pool"
}

@test "a pool of 8 KiB sectors and sha512-256 reads as the page says" {
    make_pool --sector 8192 --hash sha512-256 --block-size 32K
    pool_of_all_kinds 8K 128K 512K
    compare "$pool"
}

@test "a pool with the keyed hash reads as the page says" {
    make_pool --hash gmac
    pool_of_all_kinds 4K 16K 128K
    compare "$pool"
}

@test "sectors of 1 KiB and 2 KiB, and blake2s256, are as the page says" {
    local sector

    for sector in 1024 2048; do
        rm -rf "$BATS_TEST_TMPDIR/pool"
        make_pool --sector "$sector" --hash blake2s256
        text_data 2M >"$data"
        nbdedup import a "$data" --block-size 8K
        nbdedup import b "$data" --block-size 4K
        compare "$pool"
    done
}

@test "records in many segments, and an index of many rows" {
    make_pool
    # 24 MiB of random data, 6 segments; 6,144 index entries.
    random_data 24M >"$data"
    nbdedup import a "$data" --block-size 4K
    head -c 12M "$data" >half
    nbdedup import b half --block-size 4K
    nbdedup destroy a --wait
    text_data 9M >"$data"
    nbdedup import c "$data" --block-size 4K
    compare "$pool"
    assert_num "$(figure records) > 5000"
}

@test "layers that inherit are resolved as the page says" {
    make_pool --block-size 4K
    text_data 1M 1 >"$data"
    nbdedup import golden "$data"
    nbdedup snapshot golden@v1
    nbdedup clone golden@v1 middle
    # In middle 200 of golden's 256 blocks are visible, and in top the first
    # 240 of middle's 512.
    nbdedup resize middle 800K --shrink
    nbdedup resize middle 2M
    serve "$pool" commit-interval=3600
    random_data 64K 1 >"$data"
    put middle 256k "$data"
    put middle 900k "$data"
    io "$(uri_of middle)" 'discard -q 64k 64k' 'write -q -P 1 1M 4k' flush
    nbdedup snapshot middle@v1
    nbdedup snapshot middle@v2
    nbdedup clone middle@v2 top
    nbdedup resize top 960K --shrink
    nbdedup resize top 2M
    io "$(uri_of top)" 'discard -q 256k 8k' 'discard -q 512k 100k' \
       'write -q -P 2 10k 1k' flush
    stop
    compare "$pool"
    # The same, read from the journal.
    serve "$pool" commit-interval=3600
    io "$(uri_of top)" 'discard -q 300k 12k' 'write -q -P 3 304k 5k' flush
    crash
    compare "$pool"
    assert_num "$(figure replayed_holes) > 0"
    # The volumes must not have only holes.
    decode "$pool" golden g middle m top t
    same g m 0 64
    same m /dev/zero 64 64
    cmp -i 262144:0 -n 65536 m "$data"
    same g m 320 480            # up to block 200
    same m /dev/zero 800 100    # no longer inherited
    same m t 16 240
    same t /dev/zero 256 8
    same m t 264 36
    same t /dev/zero 512 100
    same m t 612 348            # up to block 240
    same t /dev/zero 960 1088
    run -1 same m t 960 64
}

@test "what is destroyed, rolled back and rebased reads as the page says" {
    local i

    make_pool --block-size 4K
    text_data 1M 1 >"$data"
    nbdedup import golden "$data"
    nbdedup snapshot golden@v1
    nbdedup clone golden@v1 c --count 3
    serve "$pool" commit-interval=3600
    random_data 64K 1 >"$data"
    for i in 1 2 3; do
        put "c$i" "$((i * 100))k" "$data"
    done
    nbdedup snapshot c1@a
    put c1 20k "$data"
    nbdedup snapshot c1@b
    put c1 300k "$data"
    put golden 0 "$data"
    nbdedup snapshot golden@v2
    nbdedup rollback c1@a --force
    nbdedup rebase c2 golden@v2
    nbdedup destroy golden@v1 --force
    nbdedup destroy c1@b
    crash
    compare "$pool"
    assert_eq "$(nbdedup list --json |
                 jq -r '.volumes[] | select (.name == "c3") | .origin')" \
              "golden@v1 (destroyed)"
    nbdedup destroy golden -r --force --wait
    nbdedup destroy c1@a --wait
    compare "$pool"
}

# same A B KIB COUNT: this range, in KiB, of two files is equal.
same () { cmp -i $(($3 * 1024)) -n $(($4 * 1024)) "$1" "$2"; }

@test "the journal of a killed server reads as the page says" {
    make_pool
    nbdedup create a 64M --block-size 4K
    nbdedup create b 8M --block-size 64K --compress zstd
    nbdedup create gone 8M
    nbdedup set domain=d b
    serve "$pool" commit-interval=3600
    text_data 3M 1 >"$data"
    put a 0 "$data"
    put gone 0 "$data"
    put b 0 "$data"
    nbdedup destroy gone        # a fold; references still to drop
    # Small flushes carry their records, large ones do not.
    io "$(uri_of a)" 'write -q -P 1 4M 4k' flush 'write -q -P 2 5M 4k' \
       'discard -q 1M 256k' 'write -q -z 2M 5k' flush
    random_data 1M 2 >"$data"
    put a 6M "$data"
    io "$(uri_of a)" 'write -q -P 3 6M 20k' 'discard -q 32M 32M' flush
    random_data 20K 3 >"$data"
    put b 100000 "$data"
    crash
    compare "$pool"
    assert_num "$(figure batches) >= 4 && $(figure wal_pages) > 0"
    assert_num "$(figure carried) > 0"
    assert_num "$(figure replayed_records) > $(figure carried)"
    assert_num "$(figure replayed_pointers) > 0 && $(figure replayed_holes) > 0"
}

@test "a journal that has wrapped reads as the page says" {
    local i

    make_pool
    nbdedup create a 64M --block-size 4K
    serve "$pool" commit-interval=3600
    for i in $(seq 3); do
        # This makes 11 batches of about 8.5 KiB, and a fold that frees them.
        io "$(uri_of a)" "write -q -P $i 0 64k" flush
        random_data 64K "$i" >"$data"
        put a $((i * 1048576)) "$data"
        nbdedup set max-size=none
    done
    for i in $(seq 3 5); do
        random_data 32K "$i$i" >"$data"
        put a $((i * 2097152)) "$data"
    done
    crash
    compare "$pool"
    assert_num "$(figure batches) > 0 && $(figure wraps) == 1"
}

# unsettle JOURNAL: remove the mark, and make the last batch not settled.
unsettle ()
{
    "$python" - "$1" <<'SCRIPT'
import ctypes
import sys

xxh3 = ctypes.CDLL("libxxhash.so.0").XXH3_64bits
xxh3.restype = ctypes.c_uint64
xxh3.argtypes = [ctypes.c_char_p, ctypes.c_size_t]

with open(sys.argv[1], "r+b") as f:
    journal = bytearray(f.read())
    last, seq = None, 0
    for pos in range(8192, len(journal), 512):
        if journal[pos:pos + 5] in (b"NBJB\3", b"NBJT\1"):
            journal[pos:pos + 512] = bytes(512)
        number = int.from_bytes(journal[pos + 32:pos + 40], "little")
        if journal[pos:pos + 5] == b"NBJB\1" and number > seq:
            last, seq = pos, number
    h = journal[last:last + 96]
    h[80:88] = (seq - 1).to_bytes(8, "little")
    h[88:96] = xxh3(bytes(h[:88]), 88).to_bytes(8, "little")
    journal[last:last + 96] = h
    f.seek(0)
    f.write(journal)
SCRIPT
}

@test "a record of the last batch that is lost is left out, no other" {
    make_pool
    nbdedup create a 64M --block-size 4K
    serve "$pool" commit-interval=3600
    random_data 256K 1 >"$data"
    put a 0 "$data"
    # The last batch, as if it were not settled nor known to be durable.  One of
    # its records did not reach the disk.
    random_data 256K 2 >"$data"
    put a 1M "$data"
    crash
    damaged
    decode "$pool" a before >figures
    assert_eq "$(figure suspect)" 0
    unsettle "$pool/journal"
    decode "$pool" a before >figures
    assert_eq "$(figure suspect)" 1
    assert_eq "$(figure lost)" 0
    spoil_record before $((1048576 + 40960))
    compare "$pool"
    assert_eq "$(figure lost)" 1
    # Everything except that block is there.
    decode "$pool" a after
    cmp -n $((1048576 + 40960)) before after
    cmp -i $((1048576 + 45056)) before after
    assert_eq "$(tail -c +$((1048576 + 40961)) after | head -c 4096 |
                 tr -d '\0' | wc -c)" 0
}

@test "the drift history reads as the page says" {
    local i

    make_pool --block-size 4K
    text_data 1M >"$data"
    nbdedup import golden "$data"
    nbdedup snapshot golden@v1
    nbdedup clone golden@v1 c --count 10 >/dev/null
    serve "$pool" drift-interval=0
    for i in 1 2; do
        "$test_programs/rigs/engine-call" "$pool" drift '{"record":true}' >/dev/null
    done
    crash
    compare "$pool"
    assert_eq "$(figure samples)" 2
    assert_num "$(figure wal_pages) > 0"
    damaged
    nbdedup check
    assert_eq "$(sqlite3 "file:$pool/pool.db?immutable=1" \
                         'SELECT codec, length > length (data) FROM drift' |
                 xargs)" "1|1 1|1"
    cp -a "$pool" good
    spoil "UPDATE drift SET length = length - 1" "codec lz4: not"
    spoil "UPDATE drift SET codec = 3" "drift sample"
    spoil "UPDATE drift SET time = time + 1" "drift sample"
    spoil "UPDATE drift SET golden = 1000000" "drift sample"
    # Samples that do not compress; no row is missed.
    restore
    sqlite3 "$pool/pool.db" "UPDATE drift SET codec = 0, length = 25,
        time = 5, data = CAST ('{\"golden\":\"x@y\",\"time\":5}' AS BLOB)"
    assert_eq "$(decode --no-page-checksums "$pool" | jq .samples)" 2
    # The first versions had no such table.
    restore
    sqlite3 "$pool/pool.db" "DROP TABLE drift"
    assert_eq "$(decode --no-page-checksums "$pool" | jq .samples)" 0
}

@test "the format page names every table and column of pool.db" {
    local page="$top_srcdir/lib/nbdedup-format.pod" table column text

    need command -v podchecker
    podchecker -warnings "$page"
    cat "$top_srcdir"/lib/meta/schema*.sql | sqlite3 schema.db
    sqlite3 -separator ' ' schema.db \
            "SELECT t.name, c.name FROM sqlite_schema t,
             pragma_table_info (t.name) c WHERE t.type = 'table'" >columns
    [ "$(wc -l <columns)" -gt 50 ]
    while read -r table column; do
        text=$(sed -n "/^=head2 Table $table\$/,/^=head2/p" "$page")
        grep -qE "^ $column +(INTEGER|TEXT|BLOB)( |\$)" <<<"$text" ||
            fail "table $table, column $column"
    done <columns
}

#----------------------------------------------------------------------
# The reader can fail

# flip FILE OFFSET
flip ()
{
    "$python" - "$1" "$2" <<'SCRIPT'
import sys
with open(sys.argv[1], "r+b") as f:
    f.seek(int(sys.argv[2]))
    byte = f.read(1)[0]
    f.seek(int(sys.argv[2]))
    f.write(bytes([byte ^ 1]))
SCRIPT
}

# find_record IMAGE OFFSET: print the file offset in "records" of a raw record
# with these 4 KiB of the image.
find_record ()
{
    "$python" - "$1" "$2" "$pool/records" <<'SCRIPT'
import sys
with open(sys.argv[1], "rb") as f:
    f.seek(int(sys.argv[2]))
    block = f.read(4096)
with open(sys.argv[3], "rb") as f:
    print(f.read().index(block))
SCRIPT
}

spoil_record () { flip "$pool/records" "$(find_record "$1" "$2")"; }

small_pool ()
{
    make_pool
    random_data 1M >"$data"
    nbdedup import a "$data" --block-size 4K
    text_data 1M >text
    nbdedup import b text
    # References that come and go later: rows of table count, with dead records.
    nbdedup import c text
    serve "$pool"
    io "$(uri_of a)" 'discard -q 200k 40k' 'discard -q 600k 4k' flush
    dd if=/dev/zero of="$data" bs=4k seek=50 count=10 conv=notrunc status=none
    dd if=/dev/zero of="$data" bs=4k seek=150 count=1 conv=notrunc status=none
    stop
    decode "$pool" a image >/dev/null
    cmp image "$data"
    cp -a "$pool" good
    damaged
}

# restore: restore the pool that small_pool made.
restore () { rm -rf "$pool"; cp -a good "$pool"; }

# refuses TEXT: the reader must end with this message, without a traceback.
refuses ()
{
    run -1 decode "$pool"
    [[ $output == "format-reader: "*$1* ]] ||
        fail "expected '$1', found:" "$output"
}

@test "one wrong byte makes the reader fail: records, journal, pool.db" {
    local offset

    small_pool
    spoil_record image 40960
    refuses "is damaged"

    # One copy of a header may be damaged, but not both.
    restore
    flip "$pool/records" 57
    flip "$pool/journal" 4160
    decode "$pool"
    flip "$pool/records" $((8192 + 500))
    refuses "records: no valid copy"
    restore
    flip "$pool/journal" 0
    flip "$pool/journal" 4096
    refuses "journal: no valid copy"

    # Flip any byte of any page.
    for offset in 90 5000 8191 16380 20000 $(($(db_bytes good) - 9000)); do
        restore
        flip "$pool/pool.db" "$offset"
        refuses "pool.db: page $((offset / 8192 + 1)) has a wrong checksum"
    done
    restore
    truncate -s "$(($(db_bytes good) - 8192))" "$pool/pool.db"
    refuses "pool.db:"
}

@test "one wrong byte makes the reader fail: summaries" {
    local chunk

    small_pool
    # Find the first chunk, by its magic; its slot 3 describes a record.
    chunk=$(grep -obUa NBDCHUNK "$pool/records" | head -n 1 | cut -d: -f1)
    flip "$pool/records" $((chunk + 32))
    refuses "chunk 0 header"
    restore
    flip "$pool/records" $((chunk + 3 * 64 + 20))
    refuses "checksum"
}

@test "summaries that scrub writes again are as the page says" {
    local chunk

    small_pool
    chunk=$(grep -obUa NBDCHUNK "$pool/records" | head -n 1 | cut -d: -f1)
    head -c 4096 /dev/zero |
        dd of="$pool/records" bs=512 seek=$((chunk / 512)) conv=notrunc \
           status=none
    refuses "chunk 0 header"
    run -0 --separate-stderr nbdedup scrub
    # 63 slots, some of discarded blocks: the workers decide which.
    [[ $output =~ ^([0-9]+)" summaries were damaged".*"records," ]] ||
        fail "$output"
    ((BASH_REMATCH[1] >= 52 && BASH_REMATCH[1] <= 63)) || fail "$output"
    decode "$pool" a image >/dev/null
    cmp image "$data"
    run -0 nbdedup scrub
    [[ $output != *damaged* ]] || fail "$output"
}

@test "one wrong byte makes the reader fail: a journal batch" {
    local position

    make_pool
    nbdedup create a 8M --block-size 4K
    serve "$pool" commit-interval=3600
    io "$(uri_of a)" 'write -q -P 1 0 4k' flush 'write -q -P 2 4k 4k' flush \
       'write -q -P 3 8k 4k' flush
    crash
    damaged
    decode "$pool" a before >figures
    assert_eq "$(figure batches)" 3
    position=$(batches | sed -n 2p)
    cp -a "$pool" good
    # The third batch knows that this one is durable, so it is not the log's
    # end.  Its trailer has the header's fields and the list of its blocks.
    flip "$pool/journal" $((position + 40))
    decode "$pool" a after >figures
    assert_eq "$(figure batches)/$(figure damaged)" 3/0
    cmp before after
    flip "$pool/journal" $((position + 520))
    refuses "is damaged"
    restore
    flip "$pool/journal" $((position + 120))
    run -1 decode "$pool" a after
    [[ $output == *"block 1 is lost" ]] || fail "$output"
    decode "$pool" >figures
    assert_eq "$(figure batches)/$(figure damaged)" 3/1
    flip "$pool/journal" $((position + 520))
    refuses "is damaged"
    # The same for the last batch, because of a mark.  Without it the batch is
    # ignored.
    restore
    position=$(batches | tail -n 1)
    flip "$pool/journal" $((position + 120))
    run -1 decode "$pool" a after
    [[ $output == *"block 2 is lost" ]] || fail "$output"
    unsettle "$pool/journal"
    decode "$pool" a after >figures
    assert_eq "$(figure batches)" 2
    run -1 cmp before after
    # A pool.db without its WAL is older than the journal.
    restore
    nbdedup stat >/dev/null
    rm -rf newer
    mv "$pool" newer
    restore
    cp newer/journal "$pool/journal"
    refuses "journal: session"
}

# The offsets of the last three batches in the journal.
batches ()
{
    LC_ALL=C grep -obUaP 'NBJB\x01' "$pool/journal" | cut -d: -f1 | tail -n 3
}

# spoil SQL TEXT: after this change to pool.db the reader must print TEXT.
# Functions for the SQL: at (BLOB, OFFSET, NUMBER), sealed (MAP, SEGMENT), and
# records (ROW), entries (ROW): a row of record and of ddt that is not packed.
spoil ()
{
    restore
    "$python" - "$pool/pool.db" "$1" "$top_srcdir/tests/models" <<'SCRIPT'
import ctypes
import sqlite3
import sys

sys.path.append(sys.argv[3])
import format_rows

xxh3 = ctypes.CDLL("libxxhash.so.0").XXH3_64bits_withSeed
xxh3.restype = ctypes.c_uint64
xxh3.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64]

def at(blob, offset, number):
    b = bytearray(blob)
    b[offset] = number
    return bytes(b)

def sealed(blob, segment):
    b = blob[:8] + blob[16:]
    return blob[:8] + xxh3(b, len(b), segment).to_bytes(8, "little") + \
        blob[16:]

db = sqlite3.connect(sys.argv[1])
db.create_function("at", 3, at)
db.create_function("sealed", 2, sealed)
db.create_function("records", 1, format_rows.record_row)
db.create_function("entries", 1, format_rows.index_row)
assert db.execute(sys.argv[2]).rowcount > 0
db.commit()
db.close()
SCRIPT
    # SQLite alone made the change, so the checksum of the page is wrong.
    refuses "has a wrong checksum"
    run -1 decode --no-page-checksums "$pool"
    [[ $output == "format-reader: "*$2* ]] ||
        fail "$1: expected '$2', found:" "$output"
}

@test "contradictions within pool.db make the reader fail" {
    local first

    small_pool
    first='WHERE rowid = (SELECT min (rowid)'
    spoil "UPDATE record SET data = at (records (data), 8, 2)
           $first FROM record)" references
    spoil "UPDATE record SET data = at (records (data), 24, 0)
           $first FROM record)" digest
    spoil "UPDATE record SET data = at (records (data), 2, 99)
           $first FROM record)" slot
    spoil "UPDATE record SET data = at (records (data), 0, 255)
           $first FROM record)" order
    spoil "DELETE FROM record $first FROM record)" "points to no record"
    spoil "UPDATE leaf SET data = at (data, 30, 1) WHERE leaf = 1" \
          "points to no record"
    spoil "UPDATE leaf SET data = at (data, 0, 255) WHERE leaf = 1" "too long"
    spoil "DELETE FROM leaf WHERE leaf = 1" pointers
    spoil "UPDATE segment SET map = at (map, 100, 1) $first FROM segment)" \
          "wrong checksum"
    # The last sector, which is free.
    spoil "UPDATE segment SET map = sealed (at (map, 1039, 128), id),
           nr_free = nr_free - 1, largest_run = largest_run - 1
           $first FROM segment)" "sectors in use"
    spoil "UPDATE segment SET nr_free = nr_free + 1" "free space"
    spoil "UPDATE ddt SET entries = at (entries (entries), 5, 255)" \
          "hash index: order"
    spoil "UPDATE state SET index_entries = index_entries + 1" index_entries
    spoil "UPDATE state SET records = records - 1" "state: records"
    spoil "UPDATE state SET epoch = epoch + 1" "session"
    spoil "UPDATE record SET data = substr (data, 1, length (data) - 1)" \
          "cut short"
    spoil "UPDATE record SET data = at (data, 2, 255)" "record"
    spoil "UPDATE state SET features_incompat = 3" feature
    spoil "UPDATE state SET features_incompat = 8" feature
    spoil "UPDATE state SET features_incompat = 0" feature
    spoil "UPDATE count SET data = at (data, 1, 9)" references
    spoil "UPDATE count SET data = at (data, 0, 255)" "counts"
    spoil "UPDATE count SET data = at (data, length (data) - 1, 128)" counts
    spoil "UPDATE count SET grp = grp + 1000" counts
    spoil "UPDATE count SET data = x'0000'" "points to no record"
    spoil "DELETE FROM count" references
    spoil "UPDATE state SET uuid = at (uuid, 0, 1)" "another pool"
    spoil "UPDATE volume SET size = 4096 WHERE name = 'a'" "past its end"
    spoil "UPDATE layer SET pointers = pointers + 1" pointers
    spoil "INSERT INTO limbo VALUES (5)" limbo
}

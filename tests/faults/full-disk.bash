# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# The part of fault.bats that runs in a mount namespace of its own, where $small
# is a small file system: bash full-disk.bash SIZE FUNCTION.

set -euo pipefail

# helpers.bash is made for bats; this script is not run by bats.
bats_require_minimum_version () { :; }
# shellcheck source=tests/rigs/helpers.bash
source "$(dirname "$0")/../rigs/helpers.bash"
trap 'kill "${servers[@]}" 2>/dev/null || :' EXIT
# bats would name a line of fault.bats only.
set -E
trap 'echo "line $LINENO: $BASH_COMMAND: $?" >&2' ERR

small="$BATS_TEST_TMPDIR/small"
mkdir -p "$small"
# FULL_FS=ext4, xfs ...: another file system, in a file (root only).
if [ "${FULL_FS:-tmpfs}" = tmpfs ]; then
    mount -t tmpfs -o "size=$1" none "$small"
else
    truncate -s "$1" "$BATS_TEST_TMPDIR/fs"
    "mkfs.$FULL_FS" -q "$BATS_TEST_TMPDIR/fs"
    mount -o loop "$BATS_TEST_TMPDIR/fs" "$small"
fi
pool="$small/pool"
export NBDEDUP_POOL="$pool"

# Fill, overwrite, trim, fill again (full-io.c); restart when full; destroy.
fill_and_recover ()
{
    nbdedup init "$pool"
    nbdedup create v 200M --block-size 64K
    nbdedup create w 20M --block-size 16K
    serve "$pool" commit-interval=0.5
    random_data 2M 77 >"$BATS_TEST_TMPDIR/w"
    qemu-io -f raw -c "write -s $BATS_TEST_TMPDIR/w 0 2M" -c flush \
            "$(uri_of w)" >/dev/null
    "$test_programs/faults/full-io" "$sock" v "$BATS_TEST_TMPDIR/v.img"
    nbdedup check
    nbdedup scrub
    nbdedup stat --json >"$BATS_TEST_TMPDIR/stat"
    df -k "$small" | tail -1

    echo "restart when full, after a clean stop and after a crash"
    stop
    serve "$pool"
    "$test_programs/rigs/read-compare" "$sock" v "$BATS_TEST_TMPDIR/v.img" 65536
    crash
    serve "$pool" commit-interval=0.5
    "$test_programs/rigs/read-compare" "$sock" v "$BATS_TEST_TMPDIR/v.img" 65536
    head -c 2M <(nbdcopy "$(uri_of w)" -) | cmp - "$BATS_TEST_TMPDIR/w"

    echo "commands when full"
    nbdedup list >/dev/null
    nbdedup get all v >/dev/null
    nbdedup check
    nbdedup destroy v --wait
    assert_eq "$(pool_stat freeing_bytes)" 0
    assert_eq "$(pool_stat stored_bytes)" 2097152

    echo "there is room again"
    nbdedup create x 20M --block-size 16K
    random_data 15M 78 >"$BATS_TEST_TMPDIR/x"
    qemu-io -f raw -c "write -s $BATS_TEST_TMPDIR/x 0 15M" -c flush \
            "$(uri_of x)" >/dev/null
    nbdcopy "$(uri_of x)" "$BATS_TEST_TMPDIR/x.img"
    cmp -n 15M "$BATS_TEST_TMPDIR/x" "$BATS_TEST_TMPDIR/x.img"
    stop
    nbdedup check
    nbdedup scrub
}

# may_be_full CMD...: it succeeds, or fails with one line about a full disk.
may_be_full ()
{
    local status=0

    "$@" 2>"$BATS_TEST_TMPDIR/err" || status=$?
    [ $status != 0 ] || return 0
    assert_eq $status 1 "status of $*"
    assert_eq "$(wc -l <"$BATS_TEST_TMPDIR/err")" 1
    grep -Eq 'full|No space' "$BATS_TEST_TMPDIR/err" ||
        fail "not clear: $(cat "$BATS_TEST_TMPDIR/err")"
}

# Another program takes the space, and frees it.
neighbour ()
{
    nbdedup init "$pool"
    nbdedup create v 100M --block-size 4K
    serve "$pool" commit-interval=0.2
    random_data 4M 1 >"$BATS_TEST_TMPDIR/a"
    qemu-io -f raw -c "write -s $BATS_TEST_TMPDIR/a 0 4M" -c flush "$uri" \
            >/dev/null
    dd if=/dev/zero of="$small/other" bs=64K status=none 2>/dev/null || :
    random_data 20M 2 >"$BATS_TEST_TMPDIR/b"
    # A part fits into the pool's reserve, the rest does not.
    if qemu-io -f raw -c "write -s $BATS_TEST_TMPDIR/b 10M 20M" "$uri" \
            >"$BATS_TEST_TMPDIR/io" 2>&1; then
        fail "20 MiB fit into a full file system"
    fi
    grep -q 'No space left' "$BATS_TEST_TMPDIR/io" ||
        fail "not ENOSPC: $(cat "$BATS_TEST_TMPDIR/io")"
    qemu-io -f raw -c flush "$uri"
    head -c 4M <(nbdcopy "$uri" -) | cmp - "$BATS_TEST_TMPDIR/a"
    # A command that needs room for metadata may fail, but soon, with a clear
    # error.
    may_be_full timeout 60 nbdedup check
    head -c 4M <(nbdcopy "$uri" -) | cmp - "$BATS_TEST_TMPDIR/a"

    echo "stop and start without any room"
    stop
    may_be_full timeout 60 nbdedup list >/dev/null
    rm "$small/other"
    serve "$pool" commit-interval=0.2
    head -c 4M <(nbdcopy "$uri" -) | cmp - "$BATS_TEST_TMPDIR/a"
    dd if=/dev/zero of="$small/other" bs=64K status=none 2>/dev/null || :
    qemu-io -f raw -c 'write -P 9 0 64K' -c flush "$uri" >/dev/null || :
    crash
    may_be_full timeout 60 nbdedup list >/dev/null
    rm "$small/other"
    serve "$pool" commit-interval=0.2
    nbdcopy "$uri" "$BATS_TEST_TMPDIR/img"
    cmp -i 65536 -n 4128768 "$BATS_TEST_TMPDIR/img" "$BATS_TEST_TMPDIR/a"
    qemu-io -f raw -c "write -s $BATS_TEST_TMPDIR/b 10M 20M" -c flush "$uri"
    nbdcopy "$uri" "$BATS_TEST_TMPDIR/img"
    cmp -n 20M -i 10M:0 "$BATS_TEST_TMPDIR/img" "$BATS_TEST_TMPDIR/b"
    stop
    nbdedup check
}

# compressible BYTES SEED: each 4 KiB is different, and compresses to 512 bytes.
compressible ()
{
    python3 - "$1" "$2" <<'EOF'
import random, sys
rng = random.Random(int(sys.argv[2]))
for _ in range(int(sys.argv[1]) // 4096):
    sys.stdout.buffer.write(rng.randbytes(64) + bytes(4032))
EOF
}

# readable IMAGE DATA BLOCK: each write is there or was refused.
readable ()
{
    python3 - "$@" <<'EOF'
import sys
image, data = (open(f, "rb").read() for f in sys.argv[1:3])
size = int(sys.argv[3])
there = 0
for i in range(0, len(data), size):
    block = image[i:i + size]
    if block == data[i:i + size]:
        there += 1
    elif any(block):
        sys.exit("block at %d is neither what was written nor zeroes" % i)
print(there, "of", len(data) // size, "blocks")
if there * 4 < min(len(data) // size, 40):
    sys.exit("hardly anything was accepted")
EOF
}

free_kib ()
{
    echo $(($(df --output=avail -k "$small" | tail -1)))
}

# A client fills the pool as fast as it can; then another program takes the rest
# of the space, the server is killed, and only the pool's own room is left.
#
# fast_fill BLOCK_SIZE random|compressible BYTES FLUSH
fast_fill ()
{
    local size block data="$BATS_TEST_TMPDIR/data" image="$BATS_TEST_TMPDIR/image"
    local flush=$4

    size=$(numfmt --from=iec "$3") block=$(numfmt --from=iec "$1")
    if [ "$2" = random ]; then
        random_data "$size" 3 >"$data"
    else
        compressible "$size" 3 >"$data"
    fi
    nbdedup init "$pool"
    nbdedup create v 512M --block-size "$1"
    nbdedup create keep 4M --block-size 16K
    serve "$pool"
    random_data 1M 4 >"$BATS_TEST_TMPDIR/keep"
    qemu-io -f raw -c "write -s $BATS_TEST_TMPDIR/keep 0 1M" -c flush \
            "$(uri_of keep)" >/dev/null
    if timeout 60 nbdcopy ${flush:+--flush} "$data" "$(uri_of v)" \
               2>"$BATS_TEST_TMPDIR/err"; then
        fail "it fit"
    fi
    grep -q 'No space left' "$BATS_TEST_TMPDIR/err" ||
        fail "not ENOSPC: $(cat "$BATS_TEST_TMPDIR/err")"

    echo "full: flush, list, stat, read"
    qemu-io -f raw -c flush "$(uri_of v)" >/dev/null
    timeout 30 nbdedup list >/dev/null
    timeout 30 nbdedup stat >/dev/null
    nbdcopy "$(uri_of v)" "$image"
    readable "$image" "$data" "$block"

    echo "others take the rest, kill -9, open with nothing free"
    dd if=/dev/zero of="$small/other" bs=4K status=none 2>/dev/null || :
    crash
    # XFS counts as free the space for one more file's own metadata.
    assert_num "$(free_kib) < 512"
    timeout 60 nbdedup list >/dev/null
    timeout 60 nbdedup export v "$image.2" --format raw
    cmp "$image" "$image.2"
    nbdedup check

    echo "serve with nothing free: overwrite, flush, trim"
    dd if=/dev/zero of="$small/other2" bs=4K status=none 2>/dev/null || :
    serve "$pool"
    for i in 1 2 3; do
        random_data 1M "$((10 + i))" >"$BATS_TEST_TMPDIR/over"
        qemu-io -f raw -c "write -s $BATS_TEST_TMPDIR/over 0 1M" -c flush \
                "$(uri_of keep)" || fail "$(cat "$server_log")"
    done
    head -c 1M <(nbdcopy "$(uri_of keep)" -) | cmp - "$BATS_TEST_TMPDIR/over"
    qemu-io -f raw -c 'discard 0 16M' -c flush "$(uri_of v)" ||
        fail "$(cat "$server_log")"
    timeout 60 nbdedup destroy v --force --wait
    assert_eq "$(pool_stat freeing_bytes)" 0
    nbdedup create x 8M --block-size "$1"
    qemu-io -f raw -c "write -s $data 0 4M" -c flush "$(uri_of x)" >/dev/null
    head -c 4M <(nbdcopy "$(uri_of x)" -) | cmp -n 4M - "$data"
    head -c 1M <(nbdcopy "$(uri_of keep)" -) | cmp - "$BATS_TEST_TMPDIR/over"

    echo "and there is room again, without a restart"
    rm "$small/other"*
    nbdedup create w 64M --block-size "$1"
    head -c 16M "$data" >"$BATS_TEST_TMPDIR/w"
    qemu-io -f raw -c "write -s $BATS_TEST_TMPDIR/w 0 16M" -c flush \
            "$(uri_of w)" >/dev/null
    head -c 16M <(nbdcopy "$(uri_of w)" -) | cmp - "$BATS_TEST_TMPDIR/w"
    stop
    nbdedup check
    nbdedup scrub >/dev/null
}

is_small ()
{
    [ "$(stat -c %s "$1")" -lt $((2 << 20)) ]
}

# A hash index of many runs, and no room to merge them: scattered blocks and
# then all of them go, and the index with them.
many_records ()
{
    nbdedup init "$pool"
    nbdedup create v 2G --block-size 4K
    serve "$pool"
    if compressible $((1200 << 20)) 5 | timeout 120 nbdcopy - "$(uri_of v)" \
               2>"$BATS_TEST_TMPDIR/err"; then
        fail "it fit"
    fi
    assert_num "$(pool_stat records) > 200000"
    dd if=/dev/zero of="$small/other" bs=4K status=none 2>/dev/null || :
    seq -f 'discard %.0fk 4k' 0 8 200000 |
        timeout 60 qemu-io -f raw --discard=unmap "$(uri_of v)" >/dev/null
    timeout 60 nbdedup destroy v --force --wait
    assert_eq "$(pool_stat records)" 0
    # An idle pool merges what is left of its index, and gives the pages back.
    wait_for 180 is_small "$pool/pool.db" ||
        fail "$(ls -l "$pool"; df -k "$small"; cat "$server_log")"
    stop
    nbdedup check
}

# full_model ROUNDS: see full-model.c.
full_model ()
{
    "$test_programs/faults/full-model" --plugin "$plugin" \
        --nbdedup "$top_builddir/tools/nbdedup" \
        ${sanitizer_preload:+--preload "$sanitizer_preload"} \
        "$small" "$1" || {
        tail -n 5 "$small.server-log"
        [ -z "${KEEP:-}" ] || cp -a --sparse=never "$pool" "$KEEP"
        return 1
    }
}

# Samples of drift take nothing from the reserve, which is for freeing space.
samples_when_full ()
{
    local i n engine=("$test_programs/rigs/engine-call" "$pool")

    nbdedup init "$pool"
    # Without the copy, whose room would go to others when it is lost.
    nbdedup set metadata-copy=off
    random_data 16M >"$BATS_TEST_TMPDIR/v"
    nbdedup import v "$BATS_TEST_TMPDIR/v" --block-size 4K
    nbdedup snapshot v@v1
    nbdedup clone v@v1 c --count 100 >/dev/null
    serve "$pool" drift-interval=0
    "${engine[@]}" drift '{"record":true}' >/dev/null
    dd if=/dev/zero of="$small/other" bs=4K status=none 2>/dev/null || :
    i=$(stat -c '%b %n' "$pool"/*)
    # Samples may use up what was allocated for others and not needed.
    for n in $(seq 300); do
        "${engine[@]}" drift '{"record":true}' >/dev/null \
            2>"$BATS_TEST_TMPDIR/err" || break
    done
    assert_num "$n < 300"
    for _ in 1 2 3; do
        if "${engine[@]}" drift '{"record":true}' >/dev/null \
           2>"$BATS_TEST_TMPDIR/err"; then
            fail "a sample was recorded on a full disk"
        fi
        grep -q 'is full: nothing was recorded' "$BATS_TEST_TMPDIR/err" ||
            fail "not clear: $(cat "$BATS_TEST_TMPDIR/err")"
    done
    assert_eq "$(stat -c '%b %n' "$pool"/*)" "$i"
    rm "$small/other"
    "${engine[@]}" drift '{"record":true}' >/dev/null
    assert_eq "$("${engine[@]}" drift-history | jq '.samples | length')" \
              $((n + 1))
    stop
    nbdedup check
}

# Without room for a pool, init leaves no part of one.
init_without_room ()
{
    local status

    dd if=/dev/zero of="$small/other" bs=4K status=none 2>/dev/null || :
    mkdir -p "$pool" 2>/dev/null || :
    status=0
    nbdedup init "$pool" 2>"$BATS_TEST_TMPDIR/err" || status=$?
    assert_eq "$status" 1
    assert_eq "$(wc -l <"$BATS_TEST_TMPDIR/err")" 1
    rm "$small/other"
    nbdedup init "$pool"
    nbdedup check
}

# status_is EXIT FILTER: "nbdedup status" has this exit status, and the filter
# is true.
status_is ()
{
    local status=0

    nbdedup status --json >"$BATS_TEST_TMPDIR/status" || status=$?
    if [ $status != "$1" ] || ! jq -e "$2" "$BATS_TEST_TMPDIR/status" >/dev/null
    then
        cat "$BATS_TEST_TMPDIR/status"
        return 1
    fi
}

# The least that "stat" promises fits; "status" and the log report a pool that
# is full, and then one that no longer is.
#
# scatter FILE SIZE: write the file's blocks of 4 KiB to "v", which has this size
# and is empty, in random places.
scatter ()
{
    truncate -s "$2" "$BATS_TEST_TMPDIR/new"
    python3 - "$1" "$BATS_TEST_TMPDIR/new" <<'END'
import os, random, sys
with open (sys.argv[1], "rb") as source, open (sys.argv[2], "r+b") as out:
    size = os.fstat (out.fileno ()).st_size // 4096
    blocks = os.fstat (source.fileno ()).st_size // 4096
    for place in random.Random (1).sample (range (size), blocks):
        out.seek (place * 4096)
        out.write (source.read (4096))
END
    qemu-img convert -n -f raw -O raw "$BATS_TEST_TMPDIR/new" "$(uri_of v)"
}

# status_when_full BLOCK_SIZE
status_when_full ()
{
    local data="$BATS_TEST_TMPDIR/data" min total

    nbdedup init "$pool" --block-size "$1"
    nbdedup create v 1G
    serve "$pool" commit-interval=0.5
    random_data 130M 5 >"$data"
    qemu-io -f raw -c "write -s $data 0 1M" -c flush "$(uri_of v)" >/dev/null
    status_is 0 '.space.full == false'
    min=$(pool_stat writable_min_bytes)
    total=$(($(df --output=avail -B1 "$small" | tail -1)))
    echo "$min at worst of $total"
    assert_num "$min > 0.5 * $total && $min <= $total"
    # Small blocks need more metadata, at worst a page of several tables each.
    echo "$min" >>"$BATS_TEST_TMPDIR/mins"
    [ "$1" != 4K ] || assert_num "$min < 0.9 * $(head -n 1 "$BATS_TEST_TMPDIR/mins")"
    head -c "$min" <(tail -c +$((1048576 + 1)) "$data") >"$data.min"
    if [ "$1" = 4K ]; then
        scatter "$data.min" 1G
    else
        nbdcopy "$data.min" "$(uri_of v)"
    fi
    qemu-io -f raw -c flush "$(uri_of v)" >/dev/null

    echo "full"
    # One request at a time: nbdcopy ends with the first that is refused, while
    # others still hold much of the room.
    if nbdcopy --connections=1 --requests=1 -- "$data" "$(uri_of v)" \
            2>/dev/null &&
       qemu-io -f raw -c "write -s $data 200M 120M" "$(uri_of v)" >/dev/null
    then
        fail "it fit"
    fi
    status_is 2 '.space.full and .state == "critical"'
    wait_for 20 grep -q 'is full and refuses new data' "$server_log"
    assert_eq "$(grep -c 'is full and refuses new data' "$server_log")" 1
    wait_for 20 grep -q 'more than full-warn (90 %)' "$server_log"
    assert_eq "$(grep -c 'more than full-warn' "$server_log")" 1
    stop
    status_is 2 '.space.full and .open == null'

    echo "room again"
    serve "$pool" commit-interval=0.5
    qemu-io -f raw -c "write -P 3 900M 64M" "$(uri_of v)" >/dev/null || :
    nbdcopy "$data" "$(uri_of v)" 2>/dev/null || :
    nbdedup destroy v --force --wait
    wait_for 30 status_is 0 '.space.full == false'
    nbdedup create w 64M
    qemu-io -f raw -c "write -s $data 0 16M" -c flush "$(uri_of w)" >/dev/null
    status_is 0 '.space.full == false'
    stop

    echo "a second copy that was lost for lack of room is made again"
    serve "$pool" commit-interval=0.5
    nbdedup set metadata-copy=off
    dd if=/dev/zero of="$small/other" bs=64K status=none 2>/dev/null || :
    nbdedup set metadata-copy=on
    qemu-io -f raw -c "write -s $data 0 32M" "$(uri_of w)" >/dev/null || :
    status_is 2 '.space.full and .metadata_copy.state == "lost"'
    rm "$small/other"
    wait_for 20 status_is 0 '.metadata_copy.state == "current"' >/dev/null
    stop

    echo "others fill the file system"
    dd if=/dev/zero of="$small/other" bs=64K status=none 2>/dev/null || :
    files=$(sha256sum "$pool"/*)
    status_is 2 '.space.full'
    assert_eq "$(sha256sum "$pool"/*)" "$files"
    rm "$small/other"
    status_is 0 '.space.full == false'
}

# Without room for the second copy of pool.db less is used than with it.
copy_gives_way ()
{
    local data="$BATS_TEST_TMPDIR/data" warn

    nbdedup init "$pool" --block-size 4K
    nbdedup create v 1G
    nbdedup set full-warn=10
    serve "$pool" commit-interval=0.5
    random_data 50M 5 >"$data"
    scatter "$data" 1G
    wait_for 20 grep -q "more than full-warn (10 %)" "$server_log"
    nbdedup set full-warn=11        # checks the space, with the copy
    nbdedup set metadata-copy=off
    dd if=/dev/zero of="$small/other" bs=64K status=none 2>/dev/null || :
    nbdedup set metadata-copy=on
    # Room for the pool, but not for a copy.
    truncate -s -4M "$small/other"
    status_is 1 '.metadata_copy.state == "lost" and .space.full == false'
    warn=$(($(jq '.space.used_percent | floor' "$BATS_TEST_TMPDIR/status") + 4))
    nbdedup set "full-warn=$warn"   # checks the space
    status_is 1 '.metadata_copy.state == "lost"'
    assert_eq "$(grep -c 'less than full-warn' "$server_log")" 0

    # With more room than metadata that may come back.
    truncate -s -20M "$small/other"
    nbdedup set "full-warn=$((warn + 1))"
    wait_for 20 grep -q 'less than full-warn' "$server_log"
    stop
}

# The file system has little room, and half of "records" is free, in segments
# that all have records: the server moves them together.
#
# sparse_when_full BLOCK_SIZE FREE
sparse_when_full ()
{
    local data="$BATS_TEST_TMPDIR/data"

    nbdedup init "$pool" --compress none --block-size "$1"
    nbdedup create v 240M
    serve "$pool" commit-interval=0.2
    random_data 240M 1 >"$data"
    nbdcopy --flush "$data" "$(uri_of v)"
    dd if=/dev/zero of="$small/other" bs=4K status=none 2>/dev/null || :
    truncate -s "-$2" "$small/other"
    assert_num "$(free_kib) < 32 * 1024"
    python3 - "$data" >"$BATS_TEST_TMPDIR/holes" <<'END'
import os, sys
with open (sys.argv[1], "r+b") as image:
    size = os.fstat (image.fileno ()).st_size
    for offset in range (65536, size, 131072):
        image.seek (offset)
        image.write (bytes (65536))
        print (f"discard -q {offset} 64k")
print ("flush")
END
    qemu-io -f raw --discard=unmap "$(uri_of v)" <"$BATS_TEST_TMPDIR/holes" \
            >/dev/null
    wait_for 30 records_are_dense ||
        fail "$(nbdedup stat; df -k "$small"; cat "$server_log")"
    nbdcopy "$(uri_of v)" - | cmp - "$data"
    stop
    nbdedup check
}

# events FILTER: the names of the events that a jq filter selects.
events ()
{
    nbdedup history --json | jq -r "[.history[] | select ($1) | .event] |
        join (\" \")"
}

# Not one byte is free: commands that free space do, and what they did is in the
# history as soon as that has room.
history_when_full ()
{
    nbdedup init "$pool"
    for name in a b c d; do
        nbdedup create "$name" 30M --block-size 4K
    done
    serve "$pool" commit-interval=0.2
    random_data 30M 1 >"$BATS_TEST_TMPDIR/data"
    nbdcopy --connections=1 --requests=1 -- "$BATS_TEST_TMPDIR/data" \
            "$(uri_of a)" 2>/dev/null || :
    random_data 30M 2 >"$BATS_TEST_TMPDIR/data"
    nbdcopy --connections=1 --requests=1 -- "$BATS_TEST_TMPDIR/data" \
            "$(uri_of b)" 2>/dev/null || :
    stop
    dd if=/dev/zero of="$small/other" bs=4K status=none 2>/dev/null || :
    assert_eq "$(stat -f -c %f "$small")" 0 "free blocks"

    echo "many commands that need no room, with a server and without"
    serve "$pool" commit-interval=0.2
    for ((i = 0; i < 150; ++i)); do
        nbdedup set "full-warn=$((i % 50 + 50))"
        dd if=/dev/zero of="$small/other" bs=4K oflag=append conv=notrunc \
           status=none 2>/dev/null || :
    done
    nbdedup rename c cc
    nbdedup destroy d
    stop
    nbdedup rename cc c
    nbdedup check
    nbdedup destroy c
    serve "$pool" commit-interval=0.2
    nbdedup destroy a --wait
    # Its own event, and those that waited for room.
    assert_eq "$(events '.event == "destroy" and .volume == "a"')" destroy
    random_data 1M 3 >"$BATS_TEST_TMPDIR/data"
    nbdcopy "$BATS_TEST_TMPDIR/data" "$(uri_of b)"
    crash
    assert_eq "$(events '.event == "init" or .event == "create"')" \
              "init create create create create"
    nbdedup scrub
    nbdedup destroy b
    assert_eq "$(events '.event == "destroy" and .volume == "b"')" destroy
}

# A pool of an earlier version, without a byte that is free: it opens, works,
# and begins its history when there is room.
old_pool_when_full ()
{
    nbdedup init "$pool"
    nbdedup create a 30M --block-size 4K
    nbdedup create b 30M --block-size 4K
    serve "$pool" commit-interval=0.2
    random_data 30M 1 >"$BATS_TEST_TMPDIR/data"
    nbdcopy --connections=1 --requests=1 -- "$BATS_TEST_TMPDIR/data" \
            "$(uri_of a)" 2>/dev/null || :
    stop
    "$test_programs/faults/drop-table" "$pool" event
    dd if=/dev/zero of="$small/other" bs=4K status=none 2>/dev/null || :
    assert_eq "$(stat -f -c %f "$small")" 0 "free blocks"
    assert_eq "$(nbdedup --read-only history --json | jq '.history | length')" 0
    serve "$pool" commit-interval=0.2
    nbdedup destroy a --wait
    crash
    nbdedup check
    nbdedup snapshot b@1
    assert_eq "$(events '.event == "snapshot"')" snapshot
}

"${@:2}"

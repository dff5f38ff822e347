#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154,SC1011
#
# Pools that are opened without a write to any of their files.

load ../rigs/helpers

bats_require_minimum_version 1.5.0

# on_readonly CMD...: run it with $pool mounted read-only, in its own namespace.
on_readonly ()
{
    local unshare=(unshare -Urm)

    [ "$(id -u)" != 0 ] || unshare=(unshare -m)
    # shellcheck disable=SC2016
    "${unshare[@]}" bash -c '
        mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" || exit 125
        ! touch "$1/x" 2>/dev/null || exit 126
        shift; exec "$@"' - "$pool" "$@" 3>&- 4>&-
}

# without_rights CMD...: run it without root's right to bypass file modes.
without_rights ()
{
    if [ "$(id -u)" = 0 ]; then
        setpriv --bounding-set=-dac_override,-dac_read_search \
                --inh-caps=-dac_override,-dac_read_search "$@"
    else
        "$@"
    fi
}

# note_files: print the state of every file of the pool, and of its directory.
note_files ()
{
    (cd "$pool" && stat -c '%n %s %a %u %.9Y %.9Z %i' . ./* &&
         sha256sum journal lock pool.db* records) 2>/dev/null
}

# nothing_written: nothing has changed since 'files=$(note_files)'.
nothing_written ()
{
    assert_eq "$(note_files)" "$files" "the pool's files"
}

# page_of TABLE [WHICH]: print the numbers of the pages of a table (or index).
page_of ()
{
    sqlite3 "file:$pool/pool.db?immutable=1" \
            "SELECT pageno FROM dbstat WHERE name = '$1' ${2:-}"
}

# spoil TABLE [WHICH]: flip a byte in each of these pages.
spoil ()
{
    local page nr=0

    for page in $(page_of "$@"); do
        printf '\x5a' | dd of="$pool/pool.db" bs=1 conv=notrunc status=none \
            seek=$(( (page - 1) * 8192 + 4000 ))
        nr=$((nr + 1))
    done
    [ "$nr" -gt 0 ] || fail "$1 has no such page"
}

# old_pool: $pool with volume a (3 MiB of $a), its snapshot a@s, and b, a
# clone of the snapshot with 64 KiB of $b.
old_pool ()
{
    need qemu-io --version
    need jq --version
    make_pool
    nbdedup set metadata-copy=off
    a="$BATS_TEST_TMPDIR/a.img"
    random_data 3M 1 >"$a"
    nbdedup import a "$a"
    nbdedup snapshot a@s
    nbdedup clone a@s b
    b="$BATS_TEST_TMPDIR/b.img"
    { random_data 64K 2; tail -c +65537 "$a"; } >"$b"
    random_data 64K 2 >"$BATS_TEST_TMPDIR/part"
    serve "$pool"
    qemu-io -f raw -c "write -s $BATS_TEST_TMPDIR/part 0 64K" -c flush \
            "$(uri_of b)" >/dev/null
    stop
}

# exported NAME FILE [OPTION]: NAME, opened read-only, must equal FILE.
exported ()
{
    nbdedup "${3:---read-only}" export "$1" - | cmp - "$2"
}

all_is_there ()
{
    exported a "$a"
    exported a@s "$a"
    exported b "$b"
}

# readonly_serve NAME [KEY=VALUE...]: start a server besides others; sets $sock
# and $server_log.
readonly_serve ()
{
    sock="$BATS_TEST_TMPDIR/$1.sock"
    # For "stop", as "serve" does.
    local nr=${#servers[@]}
    local pidfile="$BATS_TEST_TMPDIR/pid$nr"

    server_log="$BATS_TEST_TMPDIR/nbdkit$nr.log"

    shift
    nbdkit -f -P "$pidfile" -U "$sock" "$plugin" pool="$pool" \
           "${@:-read-only=on}" >"$server_log" 2>&1 3>&- 4>&- &
    servers+=("$!")
    wait_for 20 nbdinfo --list "nbd+unix:///?socket=$sock" >/dev/null 2>&1 ||
        fail "$(cat "$server_log")"
}

need_readonly_mount ()
{
    local pool="$BATS_TEST_TMPDIR/mounted"

    mkdir -p "$pool"
    need on_readonly true
}

# readonly_nbdkit ARG...: run nbdkit where $pool is read-only.
readonly_nbdkit ()
{
    on_readonly env ${sanitizer_preload:+LD_PRELOAD="$sanitizer_preload"} \
        nbdkit -U - "$plugin" pool="$pool" "$@"
}

# crashed_pool: old_pool, killed with flushed writes in its journal (100 KiB of
# a at 1 MiB, 40 KiB of zeroes at 2 MiB) and with folds in its WAL.  The records
# that the journal carries are lost, as if the power had failed.
crashed_pool ()
{
    old_pool
    serve "$pool"
    qemu-io -f raw -c "write -s $BATS_TEST_TMPDIR/part 512K 64K" -c flush \
            "$(uri_of a)" >/dev/null
    nbdedup stat >/dev/null     # folds the journal
    cp "$pool/records" "$BATS_TEST_TMPDIR/records"
    qemu-io -f raw -c "write -P 0x61 1M 64K" -c flush \
            -c "write -P 0x62 1088K 16K" -c "write -P 0x63 1104K 20K" \
            -c "write -z 2M 40K" -c flush "$(uri_of a)" >/dev/null
    crash
    # 1: the WAL has the fold.
    [ "$(stat -c %s "$pool/pool.db-wal")" -gt 8192 ]
    cp "$BATS_TEST_TMPDIR/records" "$pool/records"
    dd if="$BATS_TEST_TMPDIR/part" of="$a" bs=64K seek=8 conv=notrunc \
       status=none
    # qemu-io flushes after each write; this is the state after the second one.
    cp "$a" "$BATS_TEST_TMPDIR/a-second.img"
    { head -c 64K /dev/zero | tr '\0' a; head -c 16K /dev/zero | tr '\0' b; } |
        dd of="$BATS_TEST_TMPDIR/a-second.img" bs=64K seek=16 conv=notrunc \
           status=none
    cp "$a" "$BATS_TEST_TMPDIR/a-folded.img"
    { head -c 1M "$a"
      head -c 64K /dev/zero | tr '\0' a
      head -c 16K /dev/zero | tr '\0' b
      head -c 20K /dev/zero | tr '\0' c
      head -c 2M "$a" | tail -c +1150977
      head -c 40K /dev/zero
      tail -c +2138113 "$a"
    } >"$BATS_TEST_TMPDIR/a-flushed.img"
    assert_eq "$(stat -c %s "$BATS_TEST_TMPDIR/a-flushed.img")" 3145728
    mv "$BATS_TEST_TMPDIR/a-flushed.img" "$a"
}

@test "a closed pool on a read-only file system is listed, read and verified" {
    need_readonly_mount
    old_pool
    files=$(note_files)
    run -1 on_readonly nbdedup list
    [[ $output == *"read-only"* ]]
    on_readonly nbdedup --read-only list --json >"$BATS_TEST_TMPDIR/list"
    assert_eq "$(jq -r '.volumes[].name' "$BATS_TEST_TMPDIR/list" | xargs)" \
              "a b"
    on_readonly nbdedup --read-only stat >/dev/null
    on_readonly nbdedup stat --read-only --ddt >/dev/null
    on_readonly nbdedup --read-only get all >/dev/null
    on_readonly nbdedup --read-only get all b >/dev/null
    on_readonly nbdedup --read-only check
    on_readonly nbdedup --read-only scrub
    on_readonly nbdedup --read-only drift a@s >/dev/null
    on_readonly nbdedup --read-only drift --history >/dev/null
    on_readonly nbdedup --read-only destroy a@s --dry-run --force >/dev/null
    on_readonly nbdedup --read-only rebase b a@s --dry-run >/dev/null
    on_readonly nbdedup --read-only prune --percent 9 --dry-run >/dev/null
    on_readonly nbdedup --read-only diff a@s a@s >/dev/null
    on_readonly nbdedup --read-only export b - | cmp - "$b"
    on_readonly nbdedup --read-only export a@s - | cmp - "$a"
    # shellcheck disable=SC2016
    readonly_nbdkit read-only=on \
        --run 'nbdcopy "nbd+unix:///b?socket=$unixsocket" -' | cmp - "$b"
    nothing_written
}

@test "a killed pool on a read-only file system has all that was flushed" {
    need_readonly_mount
    crashed_pool
    files=$(note_files)
    on_readonly nbdedup --read-only export a - | cmp - "$a"
    on_readonly nbdedup --read-only export b - | cmp - "$b"
    # shellcheck disable=SC2016
    readonly_nbdkit read-only=on \
        --run 'nbdcopy "nbd+unix:///a?socket=$unixsocket" -' | cmp - "$a"
    # 3 MiB without the 40 KiB: 2.5 blocks of 16 KiB; the half one is read.
    assert_eq "$(on_readonly nbdedup --read-only list --json |
                     jq '.volumes[0].logical_bytes')" $((3145728 - 32768))
    on_readonly nbdedup --read-only check
    on_readonly nbdedup --read-only scrub
    nothing_written

    # After opening for writing it has the same content.
    nbdedup export a - | cmp - "$a"
    assert_eq "$(nbdedup list --json | jq '.volumes[0].logical_bytes')" \
              $((3145728 - 32768))
}

@test "a flush too large for the journal is read from a killed pool" {
    old_pool
    random_data 2M 5 >"$BATS_TEST_TMPDIR/large"
    serve "$pool"
    qemu-io -f raw -c "write -s $BATS_TEST_TMPDIR/large 0 2M" -c flush \
            "$(uri_of a)" >/dev/null
    crash
    files=$(note_files)
    { cat "$BATS_TEST_TMPDIR/large"; tail -c 1M "$a"; } |
        cmp - <(nbdedup --read-only export a -)
    nothing_written
}

@test "the right to read is enough" {
    local option command

    need without_rights true
    crashed_pool
    chmod a-w "$pool" "$pool"/*
    files=$(note_files)
    run -1 without_rights nbdedup list
    [[ $output == *"a user who may write to $pool; "*"use --read-only" ]]
    # Not an option that the command would refuse.
    for command in "create c 1M" "destroy b" "import c $a" recover; do
        # shellcheck disable=SC2086
        run -1 without_rights nbdedup $command
        [[ $output == *"a user who may write to $pool" ]] || fail "$output"
    done
    without_rights nbdedup --read-only list >/dev/null
    without_rights nbdedup --read-only export a - | cmp - "$a"
    without_rights nbdedup --read-only check
    nothing_written

    # But a file that cannot be read is not treated as missing.
    chmod u-r "$pool/pool.db-wal"
    for option in --read-only --read-only=force; do
        run -1 without_rights nbdedup $option list
        [[ $output == *"pool.db-wal: "*"Permission denied"* ]]
    done
    chmod u+r "$pool/pool.db-wal"
    chmod u-r "$pool/journal"
    run -1 without_rights nbdedup --read-only=force list
    chmod u+rw "$pool" "$pool"/*
    chmod u-x "$pool"
    run -1 without_rights nbdedup recover
    [[ $output == "nbdedup: recover: $pool: Permission denied"* ]]
    chmod u+x "$pool"
}

@test "commands that change something are refused with --read-only" {
    local command

    old_pool
    files=$(note_files)
    for command in "create c 1M" "set compress zstd" "resize a 4M" \
                   "rename a c" "snapshot a@t" "clone a@s c" \
                   "rollback a@s" "import c $a" "init $BATS_TEST_TMPDIR/q"; do
        # shellcheck disable=SC2086
        run -2 --separate-stderr nbdedup --read-only $command
        assert_eq "$(wc -l <<<"$stderr")" 1 "$command"
        [[ $stderr == "nbdedup: ${command%% *}: "*"--read-only"* ]]
    done
    for command in "destroy b" "rebase b a@s" "drift a@s --record" \
                   "prune --age 1d"; do
        # shellcheck disable=SC2086
        run -2 --separate-stderr nbdedup --read-only $command
        assert_eq "$(wc -l <<<"$stderr")" 1 "$command"
        [[ $stderr == "nbdedup: ${command%% *}: "*"read-only"* ]]
    done
    run -2 nbdedup --read-only=yes list
    nothing_written

    # A server that could do it is not asked to do it.
    serve "$pool"
    run -2 nbdedup --read-only destroy b
    nbdedup --read-only list >/dev/null
    exported b "$b"
}

@test "a read-only server offers nothing but reading" {
    old_pool
    files=$(note_files)
    readonly_serve one
    assert_eq "$(nbdinfo --json "nbd+unix:///b?socket=$sock" |
                     jq -c '.exports[0] | [.is_read_only, .can_trim,
                                           .can_zero]')" '[true,false,false]'
    nbdcopy "nbd+unix:///b?socket=$sock" - | cmp - "$b"
    nbdcopy "nbd+unix:///a@s?socket=$sock" - | cmp - "$a"
    run ! qemu-io -f raw -c 'write 0 4k' "nbd+unix:///b?socket=$sock"
    assert_eq "$(nbdinfo --map "nbd+unix:///b?socket=$sock" | wc -l)" 1
    nothing_written
    [ ! -e "$pool/control.sock" ]
    run -1 nbdedup status
    [[ $output == *"warning: the pool is open read-only"* ]]
    [[ $output =~ $'\n'open\ +read-only,\ by\ a\ server$'\n' ]]
    nothing_written
    stop
    nothing_written
}

@test "several read at once, and not beside one that writes" {
    old_pool
    readonly_serve one
    readonly_serve two
    nbdcopy "nbd+unix:///b?socket=$sock" - | cmp - "$b"
    all_is_there
    refused "read-only=on" list
    run ! nbdkit -f -U - "$plugin" pool="$pool" --run true
    [[ $output == *"read-only=on"* ]]
    stop

    serve "$pool"
    run ! nbdkit -f -U - "$plugin" pool="$pool" read-only=on --run true
    [[ $output == *"in use by nbdkit"* ]]
    all_is_there                # through the server
}

@test "damage to what can be derived costs a read-only pool nothing" {
    local table

    need sqlite3 -version
    damaged
    old_pool
    need page_of record
    for table in record ddt segment limbo copy drift drift_golden property domain \
                 sqlite_autoindex_domain_1 sqlite_autoindex_layer_1 \
                 sqlite_autoindex_volume_1 sqlite_autoindex_snapshot_1; do
        spoil "$table"
    done
    files=$(note_files)
    nbdedup --read-only list >/dev/null
    nbdedup --read-only stat >/dev/null
    all_is_there
    run -1 nbdedup --read-only check
    readonly_serve one
    nbdcopy "nbd+unix:///b?socket=$sock" - | cmp - "$b"
    stop
    nothing_written
}

# many_volumes: make w1000 ... w2499, clones of v@s, with the content of $one;
# each table has several pages.
many_volumes ()
{
    make_pool
    nbdedup set metadata-copy=off
    one="$BATS_TEST_TMPDIR/one"
    random_data 4K >"$one"
    nbdedup import v "$one" --block-size 4K
    nbdedup snapshot v@s
    nbdedup clone v@s w --count 1500 --start 1000 >/dev/null
}

@test "a damaged page of layers, volumes or snapshots costs what it held" {
    local table left lost nr

    need sqlite3 -version
    damaged
    many_volumes
    cp -r "$pool" "$BATS_TEST_TMPDIR/whole"
    for table in layer volume; do
        rm -rf "$pool"
        cp -r "$BATS_TEST_TMPDIR/whole" "$pool"
        nr=$(page_of "$table" "AND pagetype = 'leaf'" | wc -l)
        [ "$nr" -ge 3 ] || fail "$table has only $nr pages"
        spoil "$table" "AND pagetype = 'leaf' ORDER BY pageno LIMIT 1 OFFSET 1"
        run -1 nbdedup list
        files=$(note_files)
        nbdedup --read-only list --json >"$BATS_TEST_TMPDIR/list" \
            2>"$BATS_TEST_TMPDIR/log"
        grep -q "a page of ${table}s is damaged" "$BATS_TEST_TMPDIR/log"
        nbdedup --read-only export w1000 - 2>/dev/null | cmp - "$one"
        nbdedup --read-only export w2499 - 2>/dev/null | cmp - "$one"
        left=$(jq '.volumes | length' "$BATS_TEST_TMPDIR/list")
        if [ "$table" = volume ]; then
            assert_num "$left > 1000 && $left < 1501"
        else
            # The volume is still listed, and reading it fails.
            assert_eq "$left" 1501
            lost=$(grep -o 'volume w.* has lost its map' \
                        "$BATS_TEST_TMPDIR/log" | head -1 | cut -d' ' -f2)
            # Before the command looks at the file, which it could not make.
            run -1 nbdedup --read-only export "$lost" \
                "$BATS_TEST_TMPDIR/none/image"
            [[ ${lines[-1]} == *"export: volume $lost "*"its map is lost"* ]]
        fi
        nothing_written
    done
}

@test "what stands on a lost layer, also through others, is not read" {
    need sqlite3 -version
    damaged
    many_volumes
    # Its rows are in the last page; those of its origin are in the first.
    nbdedup snapshot w2499@t
    nbdedup clone w2499@t x
    exported x "$one"
    spoil layer "AND pagetype = 'leaf' ORDER BY path LIMIT 1"
    for name in w2499 w2499@t x; do
        run -1 nbdedup --read-only export "$name" /dev/null
        [[ $output == *"its map is lost"* ]]
    done
    # Over NBD: an I/O error, as for a lost block; the export exists.
    need nbdcopy --version
    readonly_serve lost
    for name in w2499 w2499@t x; do
        run ! qemu-io -r -f raw -c 'read 0 4K' "$(uri_of "$name")"
        [[ $output == *"Input/output error"* ]] || fail "$output"
        run ! nbdinfo --map "$(uri_of "$name")"
        [[ $output == *"Input/output error"* ]] || fail "$output"
        run ! nbdcopy "$(uri_of "$name")" "$BATS_TEST_TMPDIR/copy"
        grep -q "volume $name cannot be read: its map is lost .*: restore" \
             "$server_log" || fail "$(cat "$server_log")"
    done
    run ! nbdinfo "$(uri_of none)"
    [[ $output == *"No such file"* ]]
}

@test "a lost volume's snapshots, and names without their layers" {
    need sqlite3 -version
    damaged
    old_pool
    cp -r "$pool" "$BATS_TEST_TMPDIR/whole"
    spoil volume
    nbdedup --read-only list --json 2>/dev/null >"$BATS_TEST_TMPDIR/list"
    assert_eq "$(jq -r '.volumes[].snapshots[].name' \
                    "$BATS_TEST_TMPDIR/list")" s
    exported "$(jq -r '.volumes[0].name' "$BATS_TEST_TMPDIR/list")@s" "$a"

    rm -rf "$pool"
    cp -r "$BATS_TEST_TMPDIR/whole" "$pool"
    spoil snapshot
    exported a "$a"
    exported b "$b"
    run -1 nbdedup --read-only export a@s /dev/null

    rm -rf "$pool"
    cp -r "$BATS_TEST_TMPDIR/whole" "$pool"
    spoil layer
    run -1 nbdedup --read-only export b /dev/null
    run -1 nbdedup --read-only export a@s /dev/null
}

@test "a damaged leaf of a map costs its range" {
    need sqlite3 -version
    damaged
    make_pool
    nbdedup set metadata-copy=off
    random_data 64M 3 >"$BATS_TEST_TMPDIR/img"
    nbdedup import v "$BATS_TEST_TMPDIR/img" --block-size 4K
    spoil leaf "AND pagetype = 'leaf' ORDER BY pageno LIMIT 1 OFFSET 2"
    files=$(note_files)
    readonly_serve one
    # A leaf has 64 blocks.
    run -0 "$test_programs/rigs/read-compare" "$sock" v "$BATS_TEST_TMPDIR/img" \
        262144
    [[ $output =~ ([0-9]+)" right, "([0-9]+)" EIO" ]]
    assert_num "${BASH_REMATCH[1]} > 192 && ${BASH_REMATCH[2]} > 0"
    stop
    nothing_written
}

@test "a damaged journal is refused, and passed over when forced to" {
    damaged
    crashed_pool
    # The third batch after the fold, which was durable when the fourth was
    # written.  Overwrite all of it, including its trailer.
    python3 - "$pool/journal" <<'END'
import struct, sys
with open(sys.argv[1], "r+b") as f:
    data = f.read()
    batches = {}
    for i in range(8192, len(data), 512):
        kind, = struct.unpack_from("<I", data, i + 4)
        seq, = struct.unpack_from("<Q", data, i + 32)
        if data[i:i + 4] == b"NBJB" and kind == 1:
            batches.setdefault(seq, i)
    last = [batches[seq] for seq in sorted(batches)[-2:]]
    f.seek(last[0])
    f.write(bytes(last[1] - last[0]))
END
    files=$(note_files)
    run -1 --separate-stderr nbdedup --read-only list
    assert_eq "$(wc -l <<<"$stderr")" 1
    [[ $stderr == *"read-only=force"* ]]
    run -1 nbdedup --read-only export a /dev/null
    run -0 --separate-stderr nbdedup --read-only=force list
    [[ $stderr == *"reads may return old data"* ]]
    exported a "$BATS_TEST_TMPDIR/a-second.img" --read-only=force
    exported b "$b" --read-only=force
    nothing_written

    rm "$pool/journal"
    run -1 nbdedup --read-only list
    [[ $output == *"is missing"*"read-only=force"* ]]
    exported a "$BATS_TEST_TMPDIR/a-folded.img" --read-only=force
    readonly_serve one read-only=force
    nbdcopy "nbd+unix:///a?socket=$sock" - |
        cmp - "$BATS_TEST_TMPDIR/a-folded.img"
}

@test "an older pool.db is refused, and read when forced to" {
    damaged
    old_pool
    cp "$pool/pool.db" "$BATS_TEST_TMPDIR/older"
    serve "$pool"
    qemu-io -f raw -c 'write -P 0x77 0 64k' -c flush "$(uri_of a)" >/dev/null
    stop
    cp "$BATS_TEST_TMPDIR/older" "$pool/pool.db"
    run -1 nbdedup --read-only list
    [[ $output == *"read-only=force"* ]]
    exported a "$a" --read-only=force
    exported b "$b" --read-only=force
}

@test "the state of a pool that is lost is taken from its records" {
    need sqlite3 -version
    damaged
    old_pool
    spoil state
    run -1 nbdedup list
    run -1 nbdedup --read-only list
    [[ $output == *"read-only=force"* ]]
    exported a "$a" --read-only=force
    exported b "$b" --read-only=force
}

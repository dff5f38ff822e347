# SPDX-License-Identifier: BSD-3-Clause
#
# The nbdedup command on a pool without a server.  control.bats does the same
# with a server.

# helpers.bash and "run" set what seems to be unset; $'\n' stands in patterns
# shellcheck disable=SC2154,SC1011,SC2016,SC2030,SC2031

load ../rigs/helpers

# refused STATUS TEXT CMD...: 'nbdedup CMD...' exits with STATUS and prints one
# line that begins with "nbdedup: " and has TEXT in it.
refused ()
{
    local status_wanted=$1 text=$2

    shift 2
    run "-$status_wanted" --separate-stderr nbdedup "$@"
    assert_eq "$output" "" "nbdedup $*: stdout"
    [[ $stderr == "nbdedup: "*"$text"* ]] || fail "nbdedup $*: $stderr"
    assert_eq "$(wc -l <<<"$stderr")" 1 "nbdedup $*: lines"
}

# sparse_image FILE: make 40 MiB with two islands of data, at odd places.
sparse_image ()
{
    truncate -s 40M "$1"
    text_data 3000001 | dd of="$1" bs=4096 seek=1001 conv=notrunc status=none
    random_data 5000000 | dd of="$1" bs=1000 seek=20001 conv=notrunc \
                             status=none
}

json ()
{
    nbdedup "$@" --json | jq -e .
}

#----------------------------------------------------------------------
# Wrong usage, bad input

@test "without a command, or with an unknown one, it exits 2" {
    refused 2 "no command given"
    refused 2 "frobnicate: unknown command" frobnicate
}

@test "wrong usage exits 2 and touches nothing" {
    make_pool
    refused 2 "too few arguments" create web1
    refused 2 "unexpected argument 'x'" create web1 1G x
    refused 2 "unexpected argument" list x
    refused 2 "not a size" create web1 1X
    refused 2 "not a size" create web1 1KK
    refused 2 "not a size" create web1 1.5
    refused 2 "not a size" create web1 1.G
    refused 2 "not a size" create web1 1Gi
    refused 2 "write G or GiB" create web1 10GB
    refused 2 "write M or MiB" create web1 1.5mb
    refused 2 "too large" create web1 9999999.5T
    refused 2 "at least 512 bytes" create web1 0
    refused 2 "is empty" create web1 ""
    refused 2 "not a size" create web1 0x10
    refused 2 "too large" create web1 18446744073709551616
    refused 2 "too large" create web1 9223372036854775808
    refused 2 "too large" create web1 8388608T
    refused 2 "block-size 0: must be" create web1 1G --block-size 0
    refused 2 "PROPERTY=VALUE" set compress
    refused 2 "PROPERTY=VALUE" set =lz4
    refused 2 "not both" stat --json --prometheus
    refused 2 "UTF-8" create $'\xff' 1G
    refused 2 "unrecognized option '--nonesuch'" create --nonesuch
    refused 2 "option '--block-size' requires an argument" create a 1G --block-size
    refused 2 "unrecognized option '--nonesuch'" --nonesuch
    run -0 nbdedup -h
    assert_eq "$output" "$(nbdedup --help)"
    run -0 nbdedup create -h
    assert_eq "$output" "$(nbdedup create --help)"
    run ! nbdedup create -- -1 -1
    assert_eq "$status" 2
    assert_eq "$(json list | jq '.volumes | length')" 0
}

@test "a command needs a pool, from -p or from the environment" {
    make_pool
    nbdedup create web1 1M
    unset NBDEDUP_POOL
    refused 2 "which pool" list
    refused 2 "which pool" recover
    NBDEDUP_POOL="" refused 2 "which pool" list
    NBDEDUP_POOL="$pool" nbdedup list | grep web1
    nbdedup -p "$pool" list | grep web1
    nbdedup list -p "$pool" | grep web1
    nbdedup --pool="$pool" list | grep web1
    NBDEDUP_POOL=/nonexistent nbdedup list -p "$pool" | grep web1
}

@test "what is no pool is refused and left alone" {
    mkdir "$BATS_TEST_TMPDIR/dir"
    refused 1 "$BATS_TEST_TMPDIR/nonesuch" -p "$BATS_TEST_TMPDIR/nonesuch" list
    refused 1 "$BATS_TEST_TMPDIR/dir" -p "$BATS_TEST_TMPDIR/dir" list
    refused 1 "/dev/null" -p /dev/null list
    refused 1 "nonesuch: No such file" -p "$BATS_TEST_TMPDIR/nonesuch" recover
    ln -s loop "$BATS_TEST_TMPDIR/loop"
    refused 1 "loop: Too many levels" -p "$BATS_TEST_TMPDIR/loop" recover
    refused 1 "/dev/null: not a pool" -p /dev/null recover
    refused 1 "dir: not a pool" -p "$BATS_TEST_TMPDIR/dir" recover
    refused 1 "$BATS_TEST_TMPDIR/dir" -p "$BATS_TEST_TMPDIR/dir" check
    assert_eq "$(ls -A "$BATS_TEST_TMPDIR/dir")" ""
}

@test "init refuses a pool, a directory with files, and bad values" {
    make_pool
    refused 1 "$pool" init "$pool"
    mkdir "$BATS_TEST_TMPDIR/full"
    touch "$BATS_TEST_TMPDIR/full/file"
    refused 1 "$BATS_TEST_TMPDIR/full" init "$BATS_TEST_TMPDIR/full"
    assert_eq "$(ls -A "$BATS_TEST_TMPDIR/full")" file
    for bad in --sector=100 --sector=1000 --sector=16K --hash=md5 \
               --block-size=2K --block-size=2M --block-size=5000 \
               --compress=gzip --compress=zstd-99; do
        refused 2 "" init "$BATS_TEST_TMPDIR/new" "$bad"
        [ ! -e "$BATS_TEST_TMPDIR/new/pool.db" ]
    done
    refused 2 "two pools" init -p "$BATS_TEST_TMPDIR/a" "$BATS_TEST_TMPDIR/b"
    refused 2 "two pools" -p "$BATS_TEST_TMPDIR/a" init "$BATS_TEST_TMPDIR/b"
}

@test "init takes the pool from the word, -p or the environment" {
    nbdedup init "$BATS_TEST_TMPDIR/a"
    nbdedup -p "$BATS_TEST_TMPDIR/b" init
    nbdedup init -p "$BATS_TEST_TMPDIR/c"
    NBDEDUP_POOL="$BATS_TEST_TMPDIR/d" nbdedup init
    for p in a b c d; do
        nbdedup -p "$BATS_TEST_TMPDIR/$p" check
    done
}

@test "bad names, bad sizes and existing names are refused" {
    make_pool
    nbdedup create web1 1M
    refused 1 web1 create web1 1M
    for bad in a@b a/b ../a . .. "a b" "" "$(printf '%0256d' 0)" $'a\nb' ä; do
        refused 2 "" create "$bad" 1M
        refused 2 "" rename web1 "$bad"
    done
    nbdedup create "$(printf '%0255d' 0)" 1M
    nbdedup create A-b_c.9 1M
    refused 2 "" create odd 1000
    refused 2 "" create blk 1M --block-size 5000
    refused 2 "" create blk 1M --block-size 2M
    refused 2 "" create cmp 1M --compress gzip
    refused 2 "" create ddp 1M --dedup maybe
    refused 1 nonesuch destroy nonesuch
    refused 1 nonesuch rename nonesuch other
    refused 1 A-b_c.9 rename web1 A-b_c.9
    refused 1 nonesuch resize nonesuch 1M
    refused 1 nonesuch get all nonesuch
    refused 1 nonesuch set compress=lz4 nonesuch
    refused 1 nonesuch stat nonesuch
    refused 1 nonesuch export nonesuch "$BATS_TEST_TMPDIR/out"
    [ ! -e "$BATS_TEST_TMPDIR/out" ]
    assert_eq "$(json list | jq '.volumes | length')" 3
}

#----------------------------------------------------------------------
# Volumes and properties

@test "check says what it has looked at" {
    make_pool
    random_data 1M 1 >image
    nbdedup import a image
    nbdedup import b image
    run -0 nbdedup check
    assert_eq "$output" "No errors: 2 layers of volumes and snapshots, 128\
 references, 64 records, 64 entries of the hash index"
    refused 1 "bytes are in use already" set max-size=512K
    assert_eq "$(nbdedup get max-size)" none
    nbdedup set max-size=64M
    assert_eq "$(json check | jq -c .checked)" \
              '{"layers":2,"references":128,"records":64,"index_entries":64}'
}

@test "volumes are created, listed, renamed, resized and destroyed" {
    make_pool
    nbdedup create web1 100M --block-size 32K --compress zstd-5 --dedup verify
    nbdedup create web2 10G
    assert_eq "$(json list | jq -c '[.volumes[] | .name] | sort')" \
              '["web1","web2"]'
    assert_eq "$(json list | jq -c '.volumes[] | select(.name == "web1") |
                     [.size, .block_size, .logical_bytes, .own_bytes, .origin,
                      .snapshots, .clients]')" \
              '[104857600,32768,0,0,null,[],0]'
    assert_eq "$(nbdedup get compress web1)" zstd-5
    assert_eq "$(nbdedup get dedup web1)" verify
    assert_eq "$(nbdedup get block-size web1)" 32768

    nbdedup rename web1 db1
    refused 1 web1 stat web1
    assert_eq "$(json list | jq -c '[.volumes[] | .name] | sort')" \
              '["db1","web2"]'

    nbdedup resize db1 200M
    refused 1 shrink resize db1 50M
    assert_eq "$(volume_stat db1 size)" 209715200
    nbdedup resize db1 50M --shrink
    assert_eq "$(volume_stat db1 size)" 52428800

    nbdedup destroy db1
    refused 1 db1 destroy db1
    assert_eq "$(json list | jq -c '[.volumes[] | .name]')" '["web2"]'
}

@test "list is a table for people" {
    make_pool
    nbdedup create web1 1G --block-size 64K
    run -0 nbdedup list
    [[ ${lines[0]} =~ ^NAME\ +SIZE\ +BLOCK\ +LOGICAL\ +OWN\ +CLIENTS\ +TIME\ +ORIGIN$ ]]
    [[ ${lines[1]} =~ ^web1\ +1\.00\ GiB\ +64\.0\ KiB\ +0\ B\ +0\ B\ +0\ +-\ +-$ ]]
}

@test "init's options are the pool's properties and its volumes' defaults" {
    make_pool --sector 4K --hash blake2b512 --block-size 128K --compress zstd
    assert_eq "$(nbdedup get sector)" 4096
    assert_eq "$(nbdedup get hash)" blake2b512
    assert_eq "$(nbdedup get block-size)" 131072
    assert_eq "$(nbdedup get compress)" zstd
    nbdedup create web1 1M
    assert_eq "$(nbdedup get block-size web1)" 131072
    assert_eq "$(nbdedup get compress web1)" zstd
}

@test "init without options has the documented defaults; auto names a hash" {
    make_pool
    assert_eq "$(nbdedup get sector)" 512
    assert_eq "$(nbdedup get hash)" sha256
    assert_eq "$(nbdedup get compress)" lz4
    assert_eq "$(nbdedup get dedup)" on
    run -0 --separate-stderr nbdedup init "$BATS_TEST_TMPDIR/auto" --hash auto
    assert_eq "$output" ""
    hash=$(nbdedup -p "$BATS_TEST_TMPDIR/auto" get hash)
    [[ $hash =~ ^(sha|blake|gmac) ]]
    # It says what it took and why, and that a key is a secret.
    [[ $stderr == "nbdedup: init: hash $hash: "*"as fast"* ]]
    [[ $hash != gmac || $stderr == *"secret key"* ]]
}

@test "properties are shown and changed; fixed and unknown ones are refused" {
    make_pool
    nbdedup create web1 1M
    nbdedup set compress=none web1
    nbdedup set dedup=off web1
    nbdedup set compress=zstd
    assert_eq "$(nbdedup get compress web1)" none
    assert_eq "$(nbdedup get dedup web1)" off
    assert_eq "$(nbdedup get compress)" zstd
    assert_eq "$(json get all web1 | jq -r .properties.compress)" none
    assert_eq "$(json get compress | jq -c .)" \
              '{"properties":{"compress":"zstd"}}'
    run -0 nbdedup get all
    [[ ${lines[0]} =~ ^PROPERTY\ +VALUE$ ]]
    [[ $output =~ $'\n'hash\ +sha256 ]]

    refused 2 frob get frob
    refused 2 frob set frob=1
    refused 2 frob get frob web1
    refused 2 hash set hash=sha256
    refused 2 sector set sector=4K
    refused 2 block-size set block-size=4K web1
    refused 2 "" set compress=gzip web1
    refused 2 "" set dedup=perhaps web1
    refused 2 "" set dedup= web1
    refused 2 "not a size" set max-size=1Q
    refused 2 "use none for no limit" set max-size=0
    refused 2 "use none for no limit" set ddt-quota=0
    assert_eq "$(nbdedup get compress web1)" none
}

@test "destroy --dry-run says what would be freed and frees nothing" {
    make_pool
    random_data 4M >"$BATS_TEST_TMPDIR/img"
    nbdedup import web1 "$BATS_TEST_TMPDIR/img"
    run -0 nbdedup destroy web1 --dry-run
    [[ ${lines[0]} == "would destroy web1" ]]
    [[ ${lines[1]} == "would free "*" MiB" ]]
    freed=$(json destroy web1 --dry-run | jq .freed_bytes)
    assert_num "$freed >= 4194304 && $freed < 4500000"
    assert_eq "$(json destroy web1 --dry-run | jq -c .destroyed)" '["web1"]'
    nbdedup export web1 - | cmp - "$BATS_TEST_TMPDIR/img"

    run -0 nbdedup destroy web1 --wait
    assert_eq "$output" ""
    assert_eq "$(pool_stat stored_bytes)" 0
    assert_eq "$(pool_stat freeing_bytes)" 0
}

#----------------------------------------------------------------------
# Figures

@test "stat explains a records file that is larger than what is stored" {
    make_pool --compress none
    random_data 96M >"$BATS_TEST_TMPDIR/all"
    run -0 nbdedup stat
    [[ $output != *"segments of 4 MiB"* ]]
    nbdedup import all "$BATS_TEST_TMPDIR/all"
    # "half" has half of the records of each segment.
    python3 - "$BATS_TEST_TMPDIR/all" "$BATS_TEST_TMPDIR/half" <<'PYTHON'
import sys
with open(sys.argv[1], "rb") as whole, open(sys.argv[2], "wb") as half:
    while block := whole.read(16384):
        half.write(block)
        whole.seek(16384, 1)
PYTHON
    nbdedup import half "$BATS_TEST_TMPDIR/half"
    run -0 nbdedup stat
    [[ $output != *"segments of 4 MiB"* ]]
    nbdedup destroy all --wait
    run -0 nbdedup stat
    [[ $output =~ [45][0-9.]+" MiB of the records file are free, in segments of 4 MiB" ]]
}

@test "stat has all the figures, in JSON, as a table and for Prometheus" {
    make_pool
    nbdedup create empty 1M
    text_data 4M >"$BATS_TEST_TMPDIR/img"
    nbdedup import web1 "$BATS_TEST_TMPDIR/img"
    nbdedup import web2 "$BATS_TEST_TMPDIR/img"

    json stat >"$BATS_TEST_TMPDIR/stat"
    assert_eq "$(jq -c '.pool | keys' "$BATS_TEST_TMPDIR/stat")" \
        "$(jq -nc '["logical_bytes", "records", "record_bytes", "stored_bytes",
             "copy_bytes", "file_bytes", "metadata_bytes", "freeing_bytes", "dedup_ratio",
             "compress_ratio", "reduction", "ddt", "writable_bytes",
             "writable_min_bytes"] | sort')"
    assert_eq "$(jq -c '.pool.ddt | keys' "$BATS_TEST_TMPDIR/stat")" \
        '["cache_bytes","cache_hits","cache_misses","entries"]'
    assert_eq "$(jq -c '.volumes[0] | keys' "$BATS_TEST_TMPDIR/stat")" \
        "$(jq -nc '["name", "size", "block_size", "compress", "origin",
             "logical_bytes", "own_bytes"] | sort')"
    jq -e '[.pool | .. | numbers] | length >= 13' "$BATS_TEST_TMPDIR/stat"
    assert_eq "$(jq .pool.logical_bytes "$BATS_TEST_TMPDIR/stat")" 8388608
    assert_eq "$(jq .pool.record_bytes "$BATS_TEST_TMPDIR/stat")" 4194304
    assert_eq "$(jq ".pool.dedup_ratio | $plain_number" "$BATS_TEST_TMPDIR/stat")" 2
    jq -e '.pool.compress_ratio > 2' "$BATS_TEST_TMPDIR/stat"

    assert_eq "$(json stat web1 | jq -c '[.volumes[].name]')" '["web1"]'
    assert_eq "$(volume_stat web1 logical_bytes)" 4194304

    run -0 nbdedup stat
    [[ $output =~ (^|$'\n')"dedup ratio"\ +2\.00$'\n' ]]
    [[ $output =~ $'\n'web1\ +4\.00\ MiB ]]

    nbdedup stat --prometheus >"$BATS_TEST_TMPDIR/prom"
    grep -x 'nbdedup_pool_logical_bytes 8388608' "$BATS_TEST_TMPDIR/prom"
    grep -x 'nbdedup_volume_logical_bytes{volume="web2"} 4194304' \
         "$BATS_TEST_TMPDIR/prom"
    # Every sample comes after its HELP and TYPE.
    awk '/^# HELP/ { help[$3] = 1; next }
         /^# TYPE/ { if (!help[$3]) exit 1; type[$3] = $4; next }
         { sub (/[{ ].*/, ""); if (!type[$0]) exit 1; n++ }
         END { exit n < 20 }' "$BATS_TEST_TMPDIR/prom"
}

@test "an empty pool's ratios are null, a dash, and NaN" {
    make_pool
    assert_eq "$(json stat | jq -c '[.pool.logical_bytes, .pool.records,
                     .pool.dedup_ratio, .pool.compress_ratio]')" \
              '[0,0,null,null]'
    run -0 nbdedup stat
    [[ $output =~ "dedup ratio"\ +-$'\n' ]]
    nbdedup stat --prometheus | grep -x 'nbdedup_pool_dedup_ratio NaN'
}

@test "stat --ddt adds how many records are referred to how often" {
    make_pool
    random_data 1M >"$BATS_TEST_TMPDIR/img"
    nbdedup import web1 "$BATS_TEST_TMPDIR/img" --block-size 64K
    nbdedup import web2 "$BATS_TEST_TMPDIR/img" --block-size 64K
    json stat --ddt |
        jq -e '.pool.ddt.histogram == [{refcount: 2, records: 16,
                 record_bytes: 1048576, stored_bytes: 1048576, references: 32}]'
    run -0 nbdedup stat --ddt
    [[ $output =~ "DDT of the pool:"$'\n'.*$'\n'\ *2\+\ +16\ +1\.00\ MiB ]]
    nbdedup stat --ddt --prometheus |
        grep -x 'nbdedup_ddt_records{refcount="2"} 16'
}

@test "stat --ddt NAME tells what a volume, or a golden image's family, has" {
    make_pool
    random_data 1M >"$BATS_TEST_TMPDIR/img"
    nbdedup import golden "$BATS_TEST_TMPDIR/img" --block-size 64K
    nbdedup import other "$BATS_TEST_TMPDIR/img" --block-size 64K
    nbdedup snapshot golden@v1
    nbdedup clone golden@v1 web --count 3
    # Four blocks of its own; two of them are written to two clones.
    random_data 128K 2 >"$BATS_TEST_TMPDIR/new1"
    random_data 128K 3 >"$BATS_TEST_TMPDIR/new2"
    serve "$pool"
    qemu-io -f raw -c "write -s $BATS_TEST_TMPDIR/new1 0 128k" \
            -c "write -s $BATS_TEST_TMPDIR/new2 128k 128k" "$(uri_of web1)"
    qemu-io -f raw -c "write -s $BATS_TEST_TMPDIR/new1 512k 128k" \
            "$(uri_of web2)"
    stop

    json stat --ddt web1 |
        jq -e '.ddt == {name: "web1", histogram:
                 [{refcount: 1, records: 2, record_bytes: 131072,
                   stored_bytes: 131072, references: 2},
                  {refcount: 2, records: 14, record_bytes: 917504,
                   stored_bytes: 917504, references: 14}]}'
    json stat --ddt golden@v1 |
        jq -e '.ddt == {name: "golden@v1", histogram:
                 [{refcount: 1, records: 2, record_bytes: 131072,
                   stored_bytes: 131072, references: 2},
                  {refcount: 2, records: 18, record_bytes: 1179648,
                   stored_bytes: 1179648, references: 20}]}'
    assert_eq "$(json stat golden@v1 | jq -c '[.volumes[].name]')" \
              '["web1","web2","web3"]'
    run -0 nbdedup stat --ddt web1
    [[ $output == *"DDT of web1:"* ]]
    nbdedup stat --ddt web1 --prometheus |
        grep -x 'nbdedup_ddt_references{name="web1",refcount="2"} 14'
    refused 1 "volume golden has no snapshot 'v2'" stat golden@v2
    nbdedup check
}

@test "check and scrub find nothing wrong with a good pool" {
    make_pool
    random_data 3M >"$BATS_TEST_TMPDIR/img"
    nbdedup import web1 "$BATS_TEST_TMPDIR/img"
    run -0 nbdedup check
    [[ $output == "No errors: "* ]]
    assert_eq "$(json check | jq -c '[.errors, .problems]')" '[0,[]]'
    run -0 nbdedup scrub
    [[ $output == *" records, 3.00 MiB verified" ]]
    assert_eq "$(json scrub | jq -c '[.errors, .damaged, .bytes]')" \
              '[0,[],3145728]'
}

@test "scrub finds a damaged record, says where, and exits 1" {
    make_pool
    damaged
    random_data 1M >"$BATS_TEST_TMPDIR/img"
    nbdedup import web1 "$BATS_TEST_TMPDIR/img" --block-size 64K
    # Find the content, which is incompressible, hence stored as it is.
    needle=$(head -c 262160 "$BATS_TEST_TMPDIR/img" | tail -c 16 |
                 od -An -v -tx1 -w16)
    at=$(od -An -v -tx1 -w16 "$pool/records" | grep -n -m1 "$needle" |
             cut -d: -f1)
    printf XXXX | dd of="$pool/records" bs=1 seek=$(( (at - 1) * 16 )) \
                     conv=notrunc status=none

    run ! --separate-stderr nbdedup scrub
    assert_eq "$status" 1
    [[ $output == *"web1: 65536 bytes at offset 262144 are damaged"* ]]
    [[ $stderr == "nbdedup: scrub: "*"1 record is damaged: repair it with"* ]]
    run ! --separate-stderr nbdedup scrub --json
    assert_eq "$(jq -c '.damaged[0] | [.name, .offset, .length]' \
                    <<<"$output")" '["web1",262144,65536]'
    run ! nbdedup export web1 "$BATS_TEST_TMPDIR/out"
    assert_eq "$status" 1
    [ ! -e "$BATS_TEST_TMPDIR/out" ]
}

@test "output that cannot be written is a failure" {
    [ -c /dev/full ] || skip "no /dev/full"
    make_pool
    nbdedup create web1 1M
    for cmd in "list" "stat" "stat --json" "get all" "--help" "list --help"; do
        # shellcheck disable=SC2086   # words
        run ! bash -c "nbdedup $cmd >/dev/full"
        assert_eq "$status" 1
        [[ $output == "nbdedup: "*"No space left on device" ]]
    done
    run ! bash -c "nbdedup export web1 - >/dev/full"
    assert_eq "$status" 1
}

@test "a closed stream takes no file's place" {
    make_pool
    random_data 1M | nbdedup import web1 -
    nbdedup snapshot web1@a
    nbdedup clone web1@a web2
    # Progress goes to stderr, and must not go into the lock file, which names
    # the process that has the pool.
    run -0 bash -c 'nbdedup scrub --progress 2>&-'
    run -0 grep -a -x 'command [0-9]* nbdedup scrub' "$pool/lock"
    assert_eq "$(wc -l <"$pool/lock")" 1
    # Without a stdout it fails if it has output, and only then.
    for cmd in list drift "drift --json" "destroy web2 --dry-run"; do
        run -1 bash -c "nbdedup $cmd >&-"
        assert_eq "$output" \
                  "nbdedup: ${cmd%% *}: standard output: Bad file descriptor"
    done
    nbdedup snapshot web1@b >&-
    nbdedup snapshot web1@c <&- >&- 2>&-
    run -1 bash -c 'nbdedup import web3 - <&-'
    [[ $output == "nbdedup: import: "*"Bad file descriptor"* ]]
}

@test "bench times every hash and codec on zero and random data" {
    nbdedup bench --json >"$BATS_TEST_TMPDIR/bench"
    for name in sha256 sha512-256 blake2b512 blake2s256 lz4 zstd; do
        assert_eq "$(jq -c "[.[] | select (.name == \"$name\")] |
                     [length, (map (.block_size) | min, max),
                      (map (.data) | unique)]" "$BATS_TEST_TMPDIR/bench")" \
                  '[22,1024,1048576,["random","zero"]]' "$name"
    done
    jq -e 'map (select (.ns <= 0)) | length == 0' "$BATS_TEST_TMPDIR/bench"
    jq -e 'map (select (.kind == "codec" and .ns_decompress <= 0)) |
           length == 0' "$BATS_TEST_TMPDIR/bench"
    nbdedup bench --compressible 50 --json |
        jq -e 'map (select (.name == "zstd")) |
               length == 11 and all (.data == "mixed" and .ns > 0)'
}

#----------------------------------------------------------------------
# Import and export

@test "a sparse image comes back byte for byte, and as sparse" {
    make_pool
    sparse_image "$BATS_TEST_TMPDIR/img"
    nbdedup import web1 "$BATS_TEST_TMPDIR/img"
    nbdedup export web1 "$BATS_TEST_TMPDIR/out"
    cmp "$BATS_TEST_TMPDIR/img" "$BATS_TEST_TMPDIR/out"
    assert_num "$(volume_stat web1 logical_bytes) < 9000000"
    assert_num "$(stat -c %b "$BATS_TEST_TMPDIR/out") * 512 < 9000000"
    nbdedup export web1 - | cmp "$BATS_TEST_TMPDIR/img"
    nbdedup export web1 - --format raw >"$BATS_TEST_TMPDIR/out2"
    cmp "$BATS_TEST_TMPDIR/img" "$BATS_TEST_TMPDIR/out2"
}

@test "an import from a pipe of unknown length is exact" {
    make_pool
    sparse_image "$BATS_TEST_TMPDIR/img"
    nbdedup import web1 - <"$BATS_TEST_TMPDIR/img"
    nbdedup import web2 - < <(cat "$BATS_TEST_TMPDIR/img")
    assert_eq "$(volume_stat web2 size)" 41943040
    nbdedup export web2 - | cmp "$BATS_TEST_TMPDIR/img"
    nbdedup export web1 - | cmp "$BATS_TEST_TMPDIR/img"
    # Larger than the first size of such a volume, and exactly that size.
    random_data 70M | nbdedup import big -
    nbdedup export big - | cmp - <(random_data 70M)
    assert_eq "$(volume_stat big size)" 73400320
    text_data 64M | nbdedup import fit -
    assert_eq "$(volume_stat fit size)" 67108864
    nbdedup export fit - | cmp - <(text_data 64M)
}

@test "a size that is no multiple of 512 is rounded up with zeroes, and said" {
    make_pool
    random_data 1000001 >"$BATS_TEST_TMPDIR/img"
    cp "$BATS_TEST_TMPDIR/img" "$BATS_TEST_TMPDIR/padded"
    truncate -s 1000448 "$BATS_TEST_TMPDIR/padded"
    run -0 nbdedup import web1 "$BATS_TEST_TMPDIR/img"
    assert_eq "$output" "nbdedup: import: web1: rounded up with zeroes from\
 1000001 to 1000448 bytes"
    run -0 bash -c "cat '$BATS_TEST_TMPDIR/img' | nbdedup import web2 -"
    [[ $output == *"rounded up"* ]]
    for v in web1 web2; do
        assert_eq "$(volume_stat $v size)" 1000448
        nbdedup export $v - | cmp - "$BATS_TEST_TMPDIR/padded"
    done
    run -0 nbdedup import web3 "$BATS_TEST_TMPDIR/padded"
    assert_eq "$output" ""
    printf x | nbdedup import one -
    assert_eq "$(volume_stat one size)" 512
}

@test "import refuses what exists, what is empty, and what is not there" {
    make_pool
    random_data 1M >"$BATS_TEST_TMPDIR/img"
    nbdedup import web1 "$BATS_TEST_TMPDIR/img" --block-size 8K
    assert_eq "$(nbdedup get block-size web1)" 8192
    refused 1 web1 import web1 "$BATS_TEST_TMPDIR/img"
    nbdedup export web1 - | cmp - "$BATS_TEST_TMPDIR/img"
    : >"$BATS_TEST_TMPDIR/empty"
    refused 1 "is empty" import web2 "$BATS_TEST_TMPDIR/empty"
    refused 1 "is empty" import web2 - <"$BATS_TEST_TMPDIR/empty"
    refused 1 "is empty" import web2 - < <(:)
    refused 1 "No such file" import web2 "$BATS_TEST_TMPDIR/nonesuch"
    refused 1 "Is a directory" import web2 "$BATS_TEST_TMPDIR"
    refused 2 "" import a/b "$BATS_TEST_TMPDIR/img"
    refused 2 "" import web2 "$BATS_TEST_TMPDIR/img" --block-size 5000
    assert_eq "$(json list | jq -c '[.volumes[].name]')" '["web1"]'
}

@test "compressed files, and streams that look like images, are raw on demand" {
    make_pool
    local nr=0

    printf 'QFI\xfb\0\0\0\3' >"$BATS_TEST_TMPDIR/qcow2"
    printf 'KDMV\1\0\0\0' >"$BATS_TEST_TMPDIR/vmdk"
    printf 'vhdxfile' >"$BATS_TEST_TMPDIR/vhdx"
    printf '\x1f\x8b\x08\0' >"$BATS_TEST_TMPDIR/gzip"
    for format in qcow2 vmdk vhdx gzip; do
        truncate -s 64K "$BATS_TEST_TMPDIR/$format"
        refused 1 "is a $format" import web1 - <"$BATS_TEST_TMPDIR/$format"
        refused 1 "is a $format" import web1 - \
                < <(cat "$BATS_TEST_TMPDIR/$format")
        nr=$((nr + 1))
        nbdedup import "v$nr" "$BATS_TEST_TMPDIR/$format" --format raw
        nbdedup export "v$nr" - | cmp - "$BATS_TEST_TMPDIR/$format"
    done
    refused 1 "is a gzip" import web1 "$BATS_TEST_TMPDIR/gzip"
    refused 2 "is read as raw" import web1 - --format qcow2 \
            <"$BATS_TEST_TMPDIR/qcow2"
    refused 2 "is written as raw" export v1 - --format qcow2
}

@test "export replaces a file, and refuses directories and the pool's files" {
    make_pool
    random_data 1M >"$BATS_TEST_TMPDIR/img"
    nbdedup import web1 "$BATS_TEST_TMPDIR/img"
    text_data 5M >"$BATS_TEST_TMPDIR/out"
    nbdedup export web1 "$BATS_TEST_TMPDIR/out"
    cmp "$BATS_TEST_TMPDIR/img" "$BATS_TEST_TMPDIR/out"
    refused 1 "Is a directory" export web1 "$BATS_TEST_TMPDIR"
    refused 1 "No such file" export web1 "$BATS_TEST_TMPDIR/no/out"
    for file in pool.db records; do
        refused 1 "file of the pool" export web1 "$pool/$file"
    done
    ln -s "$pool/records" "$BATS_TEST_TMPDIR/link"
    refused 1 "file of the pool" export web1 "$BATS_TEST_TMPDIR/link"
    nbdedup export web1 - | cmp - "$BATS_TEST_TMPDIR/img"
}

@test "export to a block device writes zeroes over what was there" {
    need_root
    need losetup -f
    make_pool
    sparse_image "$BATS_TEST_TMPDIR/img"
    nbdedup import web1 "$BATS_TEST_TMPDIR/img"
    random_data 41M >"$BATS_TEST_TMPDIR/disk"
    loop=$(losetup -f --show "$BATS_TEST_TMPDIR/disk") || skip "no loop device"
    status=0
    nbdedup export web1 "$loop" || status=$?
    cmp -n 41943040 "$BATS_TEST_TMPDIR/img" "$loop" || status=$?
    nbdedup import web2 "$loop" || status=$?
    nbdedup create large 50M
    run nbdedup export large "$loop"
    losetup -d "$loop"
    assert_eq "$status" 1
    [[ $output == *"the device has 42991616 bytes"* ]]
    nbdedup export web2 - | cmp -n 41943040 - "$BATS_TEST_TMPDIR/img"
}

@test "export - and import - refuse a terminal" {
    need script --version
    make_pool
    nbdedup create web1 1M
    run script -qec "nbdedup export web1 -" /dev/null
    [[ $output == *"is a terminal"* ]]
    run script -qec "nbdedup import web2 -" /dev/null
    [[ $output == *"is a terminal"* ]]
    assert_eq "$(json list | jq -c '[.volumes[].name]')" '["web1"]'
}

@test "progress is shown with --progress, and not by itself" {
    make_pool
    random_data 5M >"$BATS_TEST_TMPDIR/img"
    run -0 nbdedup import web1 "$BATS_TEST_TMPDIR/img"
    assert_eq "$output" ""
    run -0 --separate-stderr nbdedup import web2 "$BATS_TEST_TMPDIR/img" \
        --progress
    assert_eq "$output" ""
    [[ $stderr == *"import 100%  5.00 MiB of 5.00 MiB "*"/s" ]]
    run -0 --separate-stderr nbdedup export web2 - --progress >/dev/null
    [[ $stderr == *"export 100%"* ]]
}

# interrupt SIGNAL: interrupt an import that waits for its input.
interrupt ()
{
    local fifo="$BATS_TEST_TMPDIR/fifo.$1" pid

    mkfifo "$fifo"
    nbdedup import web1 - <"$fifo" 2>"$BATS_TEST_TMPDIR/err" 3>&- 4>&- &
    pid=$!
    exec 5>"$fifo"
    random_data 20M >&5
    # It has read all data except what the pipe holds, so the volume exists.
    kill "-$1" "$pid"
    expect_failure "$pid"
    exec 5>&-
    assert_eq "$(cat "$BATS_TEST_TMPDIR/err")" "nbdedup: import: interrupted"
    assert_eq "$(json list | jq -c '[.volumes[].name]')" '[]'
}

@test "an import that is interrupted leaves no volume behind" {
    make_pool
    interrupt TERM
    # A script's background processes ignore SIGINT, and those of nohup ignore
    # SIGHUP; the command must respect this.
    trap -p HUP | grep -q "''" || interrupt HUP
}

@test "an import whose input fails leaves no volume behind" {
    [ -e /proc/self/mem ] || skip "no /proc/self/mem"
    make_pool
    refused 1 "" import web1 /proc/self/mem
    assert_eq "$(json list | jq -c '[.volumes[].name]')" '[]'
}

@test "an export whose reader goes away is a failure" {
    make_pool
    random_data 5M >"$BATS_TEST_TMPDIR/img"
    nbdedup import web1 "$BATS_TEST_TMPDIR/img"
    run ! bash -c 'nbdedup export web1 - | head -c 100000 >/dev/null
                   exit ${PIPESTATUS[0]}'
    assert_eq "$status" 1
    [[ $output == "nbdedup: export: standard output: Broken pipe" ]]
}

# hold_pool: make a pool that an import has until descriptor 5 is closed.  Sets
# $importer, its process.
hold_pool ()
{
    make_pool
    mkfifo "$BATS_TEST_TMPDIR/fifo"
    nbdedup import web1 - <"$BATS_TEST_TMPDIR/fifo" 3>&- 4>&- &
    importer=$!
    exec 5>"$BATS_TEST_TMPDIR/fifo"
    random_data 20M >&5         # the import has the pool until fd 5 is closed
}

@test "two commands at once: the second waits for the first" {
    hold_pool
    { sleep 1; exec 5>&-; } 3>&- 4>&- &
    exec 5>&-
    run -0 nbdedup create web2 1M
    wait "$importer"
    assert_eq "$(json list | jq -c '[.volumes[].name] | sort')" \
              '["web1","web2"]'
}

@test "a command that waits says for whom, and since when that has the pool" {
    local err=$BATS_TEST_TMPDIR/err importer pid time

    hold_pool
    time=$(date '+%Y-%m-%d %H:%M:%S' -r "$pool/lock")
    nbdedup create web2 1M 2>"$err" 3>&- 4>&- 5>&- &
    pid=$!
    wait_for 20 grep -q . "$err"
    assert_eq "$(cat "$err")" "nbdedup: create: waiting for up to 30 s: pool \
$pool is in use by nbdedup import (PID $importer) since $time"
    exec 5>&-
    wait "$pid"
    wait "$importer"
    assert_eq "$(wc -l <"$err")" 1
}

@test "an error is written in one piece, so those of two commands do not mix" {
    run -0 python3 -c 'if True:
        import socket, subprocess
        ours, theirs = socket.socketpair (socket.AF_UNIX, socket.SOCK_DGRAM)
        subprocess.run (["nbdedup", "-p", "none", "list"], stderr=theirs)
        print (ours.recv (4096).decode (), end="")'
    [[ $output == "nbdedup: list: none: No such file or directory; "* ]]
}

@test "export to import through other programs says what to do" {
    local err=$BATS_TEST_TMPDIR/err pid

    make_pool
    random_data 8M | nbdedup import web1 -
    setsid bash -c 'nbdedup export web1 - 2>>"$1" | cat |
                        nbdedup import web2 - 2>>"$1"' bash "$err" 3>&- 4>&- &
    pid=$!
    wait_for 20 grep "waiting for up to 30 s: pool .* is in use by .*: if a \
pipe joins the two, each waits for the other: start a server for the pool, or \
use a file instead of the pipe$" "$err"
    kill -- "-$pid"
    wait "$pid" || :
}

@test "export to import through a pipe, in one pool, is refused at once, or works" {
    local err=$BATS_TEST_TMPDIR/err

    make_pool
    random_data 8M | nbdedup import web1 -
    # The first one gets the pool; the other one does not wait 30 s.
    run ! timeout 20 bash -o pipefail -c '
        nbdedup export web1 - 2>"$1.export" |
            nbdedup import web2 - 2>"$1.import"' bash "$err"
    [ "$status" != 124 ]
    assert_eq "$(cat "$err.export" "$err.import" |
                 grep -c "other end of a pipe: start a server for the pool")" 1
    assert_eq "$(json list | jq -c '[.volumes[].name]')" '["web1"]'

    # It waits for a command that only writes to the same pipe.
    mkfifo "$BATS_TEST_TMPDIR/fifo"
    { nbdedup import web3 - <"$BATS_TEST_TMPDIR/fifo" &
      exec 5>"$BATS_TEST_TMPDIR/fifo"
      random_data 20M >&5
      nbdedup list 5>&- &
      wait_for 20 grep -q waiting "$err"
      exec 5>&-
      wait; } 2>&1 3>&- 4>&- | tee "$err" | cat >"$BATS_TEST_TMPDIR/out"
    grep -E '^web3 ' "$err"

    serve "$pool"
    nbdedup export web1 - | nbdedup import web2 -
    nbdedup export web2 - | cmp - <(random_data 8M)
}

@test "who waits for another command can be interrupted" {
    hold_pool
    for cmd in drift "destroy web2" "export web2 $BATS_TEST_TMPDIR/out"; do
        # shellcheck disable=SC2086   # words
        nbdedup $cmd 2>"$BATS_TEST_TMPDIR/err" 3>&- 4>&- 5>&- &
        pid=$!
        wait_for 20 catches_sigterm "$pid"
        kill -TERM "$pid"
        expect_failure "$pid"
        # It may have printed before that it waits.
        assert_eq "$(tail -n 1 "$BATS_TEST_TMPDIR/err")" \
                  "nbdedup: ${cmd%% *}: interrupted"
    done
    exec 5>&-
    wait "$importer"
    [ ! -e "$BATS_TEST_TMPDIR/out" ]
}

@test "what root's commands create in another user's pool is that user's" {
    need_root
    cd "$BATS_TEST_TMPDIR"
    pool=$BATS_TEST_TMPDIR/pool
    export NBDEDUP_POOL=$pool
    mkdir pool
    chown 12345:12346 pool
    nbdedup init
    assert_eq "$(find pool ! -uid 12345 -o ! -gid 12346)" ""

    # The files that a closed pool lacks, or whose loss commands repair.
    random_data 1M 1 >image
    nbdedup import disk image
    nbdedup set metadata-copy=off
    nbdedup set metadata-copy=on
    nbdedup snapshot disk@a
    nbdedup scrub
    serve "$pool"
    nbdcopy "nbd+unix:///disk?socket=$sock" null:
    stop
    [ -e pool/warm ]
    assert_eq "$(find pool ! -uid 12345 -o ! -gid 12346)" ""
    mv pool/pool.db lost.db
    nbdedup recover
    mv pool/lock lost.lock
    nbdedup check
    assert_eq "$(find pool ! -uid 12345 -o ! -gid 12346)" ""

    # A pool of root's stays root's.
    nbdedup init root-pool
    assert_eq "$(find root-pool ! -uid 0)" ""
}

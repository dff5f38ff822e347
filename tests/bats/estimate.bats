# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154,SC2030,SC2031
#
# estimate: it prints the figures that importing the same files gives.  If it
# samples they are right within the stated error.

load ../rigs/helpers

# images: make three disks of about 30 MiB.  Programs compress in many ways.
#   a.raw    data, holes, zeroes; ends in the middle of a block
#   b.raw    much of a.raw, some of it shifted by a block of 4 KiB
#   c.qcow2  with holes, and data of a.raw
# They are made once, and copied.  "programs" has the data of a.raw.
images ()
{
    local made=$BATS_FILE_TMPDIR/images

    if [ ! -e "$made" ]; then
        mkdir "$made-new"
        (cd "$made-new"; make_images)
        mv "$made-new" "$made"
    fi
    cp --sparse=always "$made"/* .
    files=(a.raw b.raw c.qcow2)
}

make_images ()
{
    find /usr/bin /usr/lib -type f -size +64k -print0 2>/dev/null |
        LC_ALL=C sort -z | xargs -0 cat 2>/dev/null | head -c 14M >programs
    assert_eq "$(stat -c %s programs)" 14680064
    truncate -s 40M a.raw
    dd if=programs of=a.raw bs=64K seek=16 conv=notrunc status=none
    text_data 4M 2 | dd of=a.raw bs=64K seek=320 conv=notrunc status=none
    random_data 5M 3 | dd of=a.raw bs=64K seek=400 conv=notrunc status=none
    dd if=/dev/zero of=a.raw bs=64K seek=500 count=20 conv=notrunc status=none
    random_data 5000 4 | dd of=a.raw bs=4K seek=10100 conv=notrunc status=none
    truncate -s 41400000 a.raw

    head -c 30M a.raw >b.raw
    dd if=programs of=b.raw bs=4K seek=2301 count=1000 conv=notrunc status=none
    text_data 1M 9 | dd of=b.raw bs=4K seek=5003 conv=notrunc status=none
    random_data 300 10 >>b.raw

    truncate -s 64M c.raw
    dd if=a.raw of=c.raw bs=1M seek=20 skip=1 count=12 conv=notrunc status=none
    random_data 3M 11 | dd of=c.raw bs=1M seek=50 conv=notrunc status=none
    qemu-img convert -f raw -O qcow2 c.raw c.qcow2
}

setup ()
{
    mkdir tmp
    export TMPDIR="$PWD/tmp"
}

# estimate ARG...: set $estimate to the JSON document.
estimate ()
{
    estimate=$(nbdedup estimate --json "$@" 2>err) ||
        fail "estimate $*: $(cat err)"
}

# row SIZE KEY: print a figure of $estimate.
row ()
{
    jq -r --argjson s "$1" ".[] | select (.block_size == \$s) | (.$2) |
           $plain_number" \
       <<<"$estimate"
}

# import_all SIZE INIT-OPTION...: import the files into a new pool $pool.
import_all ()
{
    local size=$1 f

    shift
    rm -rf "$BATS_TEST_TMPDIR/pool"
    make_pool "$@"
    for f in "${files[@]}"; do
        nbdedup import "v-${f%.*}" "$f" --block-size "$size" 2>/dev/null
    done
    nbdedup stat --json >stat.json
}

# compare SIZE: compare $estimate, made with --exact, with the pool.
#
# The reduction may differ by 1 %, because it includes the model of the
# metadata.  The journal is a part of that.  It doubles as it grows, and was
# emptied after each of several imports, so it may lack the last doubling of
# these images, 512 KiB.
compare ()
{
    local size=$1 found

    found=$(jq -c '.pool | [.logical_bytes, .records, .record_bytes,
                            .stored_bytes, .dedup_ratio]' stat.json)
    assert_eq "$(jq -c --argjson s "$size" '.[] | select (.block_size == $s) |
                   [(.blocks - .zero) * $s, .distinct, .distinct * $s,
                    .stored_bytes, .dedup_ratio]' <<<"$estimate")" \
              "$found" "blocks of $size"
    assert_num "$(row "$size" compress_error) == 0"
    assert_num "$(row "$size" dedup_error) == 0"
    near "$(row "$size" compress_ratio)" \
         "$(jq .pool.compress_ratio stat.json)" 1e-9
    near "$(row "$size" reduction)" "$(jq .pool.reduction stat.json)" \
         "$(jq '.pool | .reduction * (0.01 + 524288 /
                    (.stored_bytes + .metadata_bytes))' stat.json)"
}

# near FOUND EXPECTED DIFFERENCE
near ()
{
    assert_num "($1) - ($2) <= ($3) && ($2) - ($1) <= ($3)"
}

@test "its exact figures are those of a pool with the same images" {
    local size

    images
    estimate --exact "${files[@]}"
    assert_eq "$(jq -c '[.[].block_size]' <<<"$estimate")" \
              "[4096,8192,16384,32768,65536,131072]"
    for size in 4096 16384 131072; do
        import_all "$size"
        compare "$size"
        assert_eq "$(row "$size" blocks)" \
            $(( (41400000 + size - 1) / size + (31457280 + 300 + size - 1) /
                size + 67108864 / size ))
        # Some blocks are shared, and some are zero.
        assert_num "$(row "$size" dedup_ratio) > 1.1"
        assert_num "$(row "$size" zero) > 100"
    done
}

@test "what a pool takes that has next to nothing is counted" {
    random_data 512 1 >a.raw
    files=(a.raw)
    import_all 4096
    estimate a.raw
    near "$(row 4096 metadata_bytes)" "$(jq .pool.metadata_bytes stat.json)" \
         8192
    # Both files without the pages that they keep for the next writes.
    near "$(row 4096 database_bytes)" "2 * $(db_bytes "$pool")" 16384
    assert_eq "$(row 4096 journal_bytes)" "$(stat -c %s "$pool/journal")"
    assert_eq "$(row 4096 summary_bytes)" 65
    # The least that there is.
    assert_eq "$(row 4096 ddt_cache_bytes)" 8388608
}

@test "its exact figures hold for other sectors and codecs" {
    local size=65536

    images
    estimate --exact --sector 4K --compress zstd --block-size 1M,64K \
             "${files[@]}"
    assert_eq "$(jq -c '[.[].block_size]' <<<"$estimate")" "[65536,1048576]"
    for size in 65536 1048576; do
        import_all "$size" --sector 4K --compress zstd
        compare "$size"
    done
    estimate --exact --compress none --block-size 8K "${files[@]}"
    import_all 8192 --compress none
    compare 8192
    near "$(row 8192 compress_ratio)" 1 0
}

@test "a sample of the compression is right within its error" {
    local size exact error

    images
    estimate --exact "${files[@]}"
    exact=$estimate
    estimate "${files[@]}"
    # All counts are the same.
    assert_eq "$(jq -c '[.[] | [.blocks, .zero, .distinct, .dedup_ratio,
                                .dedup_error]]' <<<"$estimate")" \
              "$(jq -c '[.[] | [.blocks, .zero, .distinct, .dedup_ratio,
                                .dedup_error]]' <<<"$exact")"
    for size in 4096 8192 16384 32768 65536 131072; do
        error=$(row "$size" compress_error)
        assert_num "$error > 0 && $error < 0.06 * $(row "$size" compress_ratio)"
        # The error is for 95 %; twice as much occurs once in 10,000 times.
        near "$(row "$size" compress_ratio)" \
             "$(estimate=$exact; row "$size" compress_ratio)" "2 * $error"
        assert_num "$(row "$size" reduction_error) > 0"
    done
}

@test "contents that do not fit into the memory are sampled, and it says so" {
    local size exact

    images
    # With these, more distinct blocks of 4 KiB than fit in memory, whatever
    # programs this machine has.
    random_data 12M 12 >d.raw
    files+=(d.raw)
    estimate "${files[@]}"
    exact=$estimate
    estimate --memory 256K "${files[@]}"
    assert_num "$(row 4096 dedup_error) > 0"
    assert_num "$(row 131072 dedup_error) == 0"
    for size in 4096 8192; do
        assert_eq "$(row "$size" 'blocks, .zero')" \
            "$(estimate=$exact; row "$size" 'blocks, .zero')"
        near "$(row "$size" dedup_ratio)" \
             "$(estimate=$exact; row "$size" dedup_ratio)" \
             "2 * $(row "$size" dedup_error) + 1e-9"
    done
    run -0 --separate-stderr nbdedup estimate --memory 256K "${files[@]}"
    [[ $output == *"did not fit into memory"* ]]
    run -0 --separate-stderr nbdedup estimate "${files[@]}"
    [[ $output != *"did not fit into memory"* ]]

    # --exact does not sample.
    run -1 --separate-stderr nbdedup estimate --exact --memory 256K \
        a.raw b.raw c.raw d.raw
    assert_eq "$output" ""
    assert_eq "$stderr" "nbdedup: estimate: the distinct contents do not fit\
 into the 262144 bytes of memory allowed for them: give more with --memory, or\
 leave --exact out"
}

@test "its memory is bounded" {
    local peak

    [ -z "$sanitizer_preload" ] || skip "sanitizers need memory themselves"
    need python3 --version
    # 800 MiB of distinct data: without a limit their hashes would take 8 MiB.
    random_data 800M 1 >big.raw
    peak=$(python3 -c 'if True:
        import resource, subprocess, sys
        subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
        print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)' \
               nbdedup estimate --memory 1M big.raw)
    # Each thread has 1 MiB to read into, and buffers.
    assert_num "$peak < 16384 + $(nproc) * 2 * 2048"
    estimate --memory 1M --block-size 4K big.raw
    assert_num "$(row 4096 dedup_error) > 0"
}

@test "all formats, NBD and standard input say the same as the raw image" {
    local f expected

    images
    estimate --exact --block-size 4K,64K c.raw
    expected=$estimate
    for f in qcow2 vmdk vdi vhdx; do
        qemu-img convert -f raw -O "$f" c.raw "other.$f"
        estimate --exact --block-size 4K,64K "other.$f"
        assert_eq "$estimate" "$expected" "$f"
        assert_eq "$(cat err)" "nbdedup: estimate: other.$f: is read as $f;\
 --format raw reads its bytes as they are"
    done
    estimate --exact --block-size 4K,64K - <c.raw
    assert_eq "$estimate" "$expected" "standard input"
    # The size of a stream is unknown before its end.
    # shellcheck disable=SC2002
    estimate=$(cat c.raw |
                   nbdedup estimate --json --exact --block-size 4K,64K -)
    assert_eq "$estimate" "$expected" "a pipe"
    make_pool
    nbdedup import v c.raw
    serve "$pool"
    estimate --exact --block-size 4K,64K "$(uri_of v)"
    assert_eq "$estimate" "$expected" "NBD"
    # Read it as raw data.
    estimate --format raw --block-size 4K other.qcow2
    assert_eq "$(row 4096 blocks)" \
              "$(( ($(stat -c %s other.qcow2) + 4095) / 4096 ))"
}

@test "the same file twice is two disks with the same content" {
    random_data 1M 1 >a.raw
    estimate --block-size 4K a.raw a.raw
    assert_eq "$(row 4096 'blocks, .zero, .distinct, .dedup_ratio' | xargs)" \
              "512 0 256 2"
}

# classes_of FILE NAME: those of a clone, without what is estimated.
classes_of ()
{
    jq -cS --arg name "$2" '.clones[] | select (.name == $name) |
        del (.name, .only_here_bytes)' "$1"
}

@test "--golden has the classes that drift has after the import" {
    local pool=$PWD/pool bs i

    random_data 3M 20 >golden
    truncate -s 5000192 golden
    for i in 1 2 3; do
        cp golden "m$i"
        random_data 300K 21 | dd of="m$i" bs=4K seek=700 conv=notrunc \
            status=none
        random_data 100K "3$i" | dd of="m$i" bs=4K seek=$((90 * i)) \
            conv=notrunc status=none
        dd if=golden of="m$i" bs=4K skip=3 seek=400 count=40 conv=notrunc \
            status=none
    done
    truncate -s 6M m3
    random_data 4K 50 >>m3
    for bs in 4K 64K; do
        rm -rf "$pool"
        # All blocks take the same space, so the stored bytes are exact, too.
        nbdedup init "$pool" --compress none
        nbdedup -p "$pool" import golden golden --block-size "$bs"
        nbdedup -p "$pool" snapshot golden@1
        nbdedup -p "$pool" clone golden@1 m --count 3
        for i in 1 2 3; do
            nbdedup -p "$pool" resize "m$i" "$(stat -c %s "m$i")"
        done
        serve "$pool"
        for i in 1 2 3; do
            nbdcopy "m$i" "$(uri_of "m$i")"
        done
        nbdedup -p "$pool" drift golden@1 --json >drift
        stop
        nbdedup estimate --golden golden m1 m2 m3 --block-size "$bs" \
            --compress none --json | jq '.[0].drift' >estimate
        for i in 1 2 3; do
            assert_eq "$(classes_of estimate "m$i")" "$(classes_of drift "m$i")"
        done
        assert_eq "$(jq -c '[.golden, .block_size, .golden_blocks,
                             .fleet.logical, .fleet.distinct,
                             .fleet.dedup_ratio]' estimate)" \
            "$(jq -c '["golden", .block_size, .golden_blocks,
                       .fleet.logical, .fleet.distinct,
                       .fleet.dedup_ratio]' drift)"
        assert_eq "$(jq -c '[.fleet.distinct_stored_bytes,
                             .clones[].only_here_bytes]' estimate)" \
            "$(jq -c '[.fleet.distinct_stored_bytes,
                       .clones[].only_here_bytes]' drift)"
    done
}

@test "--golden with names that are not UTF-8" {
    random_data 1M 20 >$'g\xff'
    cp $'g\xff' $'m\xff'
    nbdedup estimate --golden $'g\xff' $'m\xff' --json >estimate
    assert_eq "$(jq -r '.[0].drift | .golden, .clones[].name' estimate)" \
              $'g\xef\xbf\xbd\nm\xef\xbf\xbd'
}

@test "--history has a sample for each date" {
    local out

    random_data 1M 20 >golden.raw
    for day in 03 10 17; do
        cp golden.raw "web-2026-10-$day.raw"
        random_data "$((10#$day))K" "$day" |
            dd of="web-2026-10-$day.raw" bs=4K seek=10 conv=notrunc status=none
    done
    cp golden.raw "db.20261010T0000.raw"
    # Neither is a date.
    cp golden.raw "x-20261410.raw"
    touch -d '2026-10-17 00:00' "x-20261410.raw"

    TZ=UTC nbdedup estimate --golden golden.raw --history --block-size 4K \
        --json web-*.raw db.*.raw x-*.raw >out
    assert_eq "$(jq -c '.[0].samples[] | [.golden, .time,
                 [.clones[] | [.name, .unique]]]' out)" \
        '["golden.raw",1790985600,[["web.raw",1]]]
["golden.raw",1791590400,[["web.raw",3],["db.raw",0]]]
["golden.raw",1792195200,[["web.raw",5],["x-20261410.raw",0]]]'
    assert_eq "$(jq '.[0] | has ("drift")' out)" false

    out=$(TZ=UTC nbdedup estimate --golden golden.raw --history web-*.raw)
    grep -q '^golden.raw: 3 samples, 2026-10-03 to 2026-10-17$' <<<"$out"

    run nbdedup estimate --history web-*.raw
    assert_eq "$status" 2
    assert_eq "${#lines[@]}" 1
    run nbdedup estimate --golden golden.raw --history - <golden.raw
    assert_eq "$status" 2
    [[ $output == *"has no date in its name"* ]]
}

@test "nothing but zeroes, and holes that are not read" {
    truncate -s 8T big.raw
    random_data 4K 1 | dd of=big.raw bs=1M seek=5 conv=notrunc status=none
    estimate --block-size 4K,1M big.raw
    assert_eq "$(row 4096 distinct) $(row 1048576 distinct)" "1 1"
    assert_eq "$(row 4096 'blocks - .zero') $(row 1048576 'blocks - .zero')" \
              "1 1"
    assert_eq "$(row 4096 blocks)" \
              "$(( ($(stat -c %s big.raw) + 4095) / 4096 ))"

    truncate -s 1M zero.raw
    estimate zero.raw
    assert_eq "$(jq -c '.[0] | [.blocks, .zero, .distinct, .dedup_ratio,
                  .dedup_error, .compress_ratio, .compress_error,
                  .stored_bytes, .reduction, .best] |
                  map ('"$plain_number"')' <<<"$estimate")" \
              "[256,256,0,null,null,null,null,0,0,false]"
    run -0 nbdedup estimate zero.raw
    [[ $output == *"Nothing but zeroes"* ]]
}

@test "the table marks the block size that pays best, and a sentence names it" {
    # Equal blocks of 16 KiB, each at another place in the larger blocks, and
    # metadata that is negligible.
    random_data 2M 1 >piece
    for i in $(seq 1 60); do
        head -c $(( i * 16384 )) /dev/zero
        cat piece
    done >small.raw
    estimate --compress none small.raw
    assert_eq "$(jq '.[] | select (.best).block_size' <<<"$estimate")" 16384
    assert_eq "$(jq -c '[.[] | .reduction] | index (max)' <<<"$estimate")" \
              "$(jq -c 'map (.best) | index (true)' <<<"$estimate")"
    assert_eq "$(jq '[.[] | select (.best)] | length' <<<"$estimate")" 1

    images
    estimate --exact a.raw a.raw b.raw
    best=$(jq '.[] | select (.best).block_size / 1024' <<<"$estimate")
    run -0 nbdedup estimate --exact a.raw a.raw b.raw
    grep -E "^ *${best}K .* best\$" <<<"$output"
    assert_eq "$(grep -c 'best$' <<<"$output")" 1
    [[ $output == *"Blocks of ${best}K pay best: "* ]]
    run -0 --separate-stderr nbdedup estimate --block-size 4K b.raw
    # Two tables of two lines, and a line on each.
    assert_eq "${#lines[@]}" 6 "$output"
    [[ ${lines[4]} == *POOL.DB*JOURNAL*SUMMARIES*DDT-CACHE ]]

    random_data 1M 1 >noise.raw
    run -0 nbdedup estimate noise.raw
    [[ $output == *"Nothing is saved: "* ]]
    # Sizes are printed as users write them.
    run -0 nbdedup estimate --block-size 512K,1M noise.raw
    grep -E '^ *512K ' <<<"$output"
    grep -E '^ *1M .* best$' <<<"$output"
    [[ $output == *"with blocks of 1M the data"* ]]
}

# refused STATUS TEXT ARG...: it prints one line with TEXT, and no figures.
refused ()
{
    local expected=$1 text=$2

    shift 2
    run --separate-stderr nbdedup estimate "$@"
    assert_eq "$status" "$expected" "$*"
    assert_eq "$output" "" "$*"
    assert_eq "$(wc -l <<<"$stderr")" 1 "$*: $stderr"
    [[ $stderr == "nbdedup: estimate: "*"$text"* ]] || fail "$*: $stderr"
}

@test "what cannot be read is refused with one line" {
    random_data 1M 1 >a.raw
    : >empty
    mkdir folder
    refused 1 "empty: is empty" empty
    refused 1 "empty: is empty" a.raw empty
    refused 1 "standard input: is empty" - </dev/null
    refused 1 "folder: Is a directory" folder
    refused 1 "missing: No such file" a.raw missing
    refused 1 "connect: No such file" "nbd+unix:///?socket=$PWD/none"
    refused 1 "is not in qcow2 format" a.raw --format qcow2
    gzip -k a.raw
    refused 1 "is a gzip file" a.raw.gz
    qemu-img convert -f raw -O qcow2 a.raw a.qcow2
    truncate -s 700K a.qcow2
    refused 1 "is damaged" a.qcow2
    if [ "$(id -u)" != 0 ]; then
        chmod 0 a.raw
        refused 1 "Permission denied" a.raw
    fi
}

@test "wrong usage is refused with status 2" {
    local size

    random_data 1M 1 >a.raw
    refused 2 "too few arguments"
    for size in 2K 5000 2M 0 "" "4K," x 4G 9999999999999; do
        refused 2 "block size" a.raw --block-size "$size"
    done
    refused 2 "not below the sector" a.raw --sector 8K --block-size 4K
    refused 2 "sector" a.raw --sector 16K
    refused 2 "sector" a.raw --sector 1000
    refused 2 "not known; choose one of" a.raw --compress gzip
    refused 2 "memory" a.raw --memory 1K
    refused 2 "memory" a.raw --memory much
}

@test "the usual block sizes are those that the sector allows" {
    random_data 1M 1 >a.raw
    estimate a.raw --sector 8K
    assert_eq "$(jq -c '[.[].block_size]' <<<"$estimate")" \
              "[8192,16384,32768,65536,131072]"
    estimate a.raw --sector 4K
    assert_eq "$(jq -c '.[0].block_size' <<<"$estimate")" 4096
}

@test "a file that is cut off while it waits is an error, not zeroes" {
    mkfifo fifo
    random_data 2M 1 >a.raw
    # It opens all files before it reads the first to its end.
    nbdedup estimate - a.raw <fifo >out 2>err 3>&- 4>&- &
    pid=$!
    exec 5>fifo
    random_data 5M >&5
    truncate -s 1M a.raw
    exec 5>&-
    expect_failure $pid
    assert_eq "$(cat out err)" \
        "nbdedup: estimate: a.raw: became shorter while it was read"
}

has_ended ()
{
    ! kill -0 "$1" 2>/dev/null
}

@test "a signal ends it while it waits for a writer that never writes" {
    mkfifo fifo
    exec 5<>fifo
    nbdedup estimate - <fifo >out 2>err 3>&- 4>&- 5>&- &
    pid=$!
    wait_for 10 catches_sigterm $pid
    kill -TERM $pid
    wait_for 10 has_ended $pid ||
        { kill -KILL $pid; fail "it does not end"; }
    expect_failure $pid
    exec 5>&-
    assert_eq "$(cat out err)" "nbdedup: estimate: interrupted"
}

@test "a signal ends it at once" {
    mkfifo fifo
    # A stream whose writer has stopped writing.
    nbdedup estimate - <fifo >out 2>err 3>&- 4>&- &
    pid=$!
    exec 5>fifo
    random_data 5M >&5
    # A shell makes background processes ignore SIGINT.
    kill -TERM $pid
    expect_failure $pid
    exec 5>&-
    assert_eq "$(cat out err)" "nbdedup: estimate: interrupted"
}

@test "progress is of all files together" {
    images
    run -0 --separate-stderr nbdedup estimate --progress "${files[@]}"
    [[ $stderr == *"estimate 100%  133 MiB of 133 MiB "* ]] ||
        fail "$stderr"
    run -0 --separate-stderr nbdedup estimate --json a.raw
    assert_eq "$stderr" ""
}

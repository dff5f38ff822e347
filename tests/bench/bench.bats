#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# The programs of "make bench" and "make bench-page" work; what they measure is
# not looked at.

load ../rigs/helpers

setup ()
{
    need fio --version
    need qemu-nbd --version
    need gnuplot --version
    json=$BATS_TEST_TMPDIR/bench.json
}

# bench ARGUMENT...: measure something small, in a moment.
bench ()
{
    "$top_srcdir/tests/bench/bench.py" --quick --size 16M --dirty-max 4M \
        --seconds 0.2 --dir "$BATS_TEST_TMPDIR" --json "$json" "$@"
}

# figure FILTER: what jq finds in the results.
figure ()
{
    jq -e -r "$1" "$json"
}

# has_keys OF KEY...: what the filter OF finds has all of these keys.
has_keys ()
{
    local of=$1 key

    shift
    for key; do
        figure "$of | has(\"$key\")" >/dev/null || fail "$of: has no $key"
    done
}

# write_page: make a page of the results, in $docs.
write_page ()
{
    docs=$BATS_TEST_TMPDIR/docs
    mkdir -p "$docs"
    "$top_srcdir/tests/bench/bench-page.py" "$json" --docs "$docs"
}

@test "a line of make bench has all figures, and the page shows them" {
    run -0 bench --only randwrite-4k
    [[ $output == *randwrite-4k*nbdedup*qcow2* ]]
    has_keys .machine cpu cpus memory_bytes kernel nbdkit qemu file_system \
        plain_file_bytes_per_second
    has_keys '.lines["randwrite-4k"].summary.nbdedup' ratio cpu_per_gib \
        floor_per_gib floor_ratio latency_p50_us latency_p95_us \
        latency_p99_us latency_max_us half_latency_p99_us half_p99_ratio
    has_keys '.lines["randwrite-4k"].summary' file qcow2
    # The hash comes on top of what file takes.
    figure '.lines["randwrite-4k"].summary |
            .nbdedup.floor_per_gib > .file.cpu_per_gib'

    write_page
    grep -q 'Do not quote' "$docs/benchmarks.md"
    grep -q "^| .randwrite-4k. |" "$docs/benchmarks.md"
    grep -q '<svg' "$docs/benchmarks-requests.svg"
    cmp "$json" "$docs/benchmarks.json"
}

@test "the page says why nbdedup is slower, and only where it is" {
    run -0 bench --only seqwrite-128k-zero
    for speed in 1 9e12; do
        jq ".lines[].summary.nbdedup.bytes_per_second = $speed" "$json" \
            >"$json.changed"
        mv "$json.changed" "$json"
        write_page
        grep -c '^- .*seqwrite-128k-zero.* of file, .* of qcow2' \
            "$docs/benchmarks.md" || :
    done >"$BATS_TEST_TMPDIR/found"
    assert_eq "1 0" "$(tr '\n' ' ' <"$BATS_TEST_TMPDIR/found" | sed 's/ $//')"
    grep -q 'not slower than a peer in any line' "$docs/benchmarks.md"
}

@test "an aged volume stands beside a fresh one" {
    run -0 bench --only aged-randread-16k
    [[ $output == *aged-randread-16k*nbdedup*nbdedup-aged* ]]
    has_keys '.lines["aged-randread-16k"].summary["nbdedup-aged"]' \
        fresh_ratio fresh_p50_ratio fresh_p99_ratio half_p99_ratio
    # What was trimmed is there again.
    figure '.lines["aged-randread-16k"].rounds[0] |
            [.nbdedup, .["nbdedup-aged"]] | map (.stat.logical_bytes) |
            .[0] == .[1] and .[0] == 16777216'

    write_page
    grep -q '^| .aged-randread-16k. | [0-9]* | [0-9]* | \*\*[0-9.]*\*\* |' \
        "$docs/benchmarks.md"
}

@test "a run that was stopped goes on where it stopped" {
    run -0 bench --only seqwrite-128k-zero
    first=$(figure '.lines["seqwrite-128k-zero"].rounds[0].nbdedup.seconds')
    # As after a kill: the last server of the round is missing.
    jq 'del(.lines["seqwrite-128k-zero"].rounds[0].qcow2)' "$json" \
        >"$json.cut"
    mv "$json.cut" "$json"
    run -0 bench --only seqwrite-128k-zero
    assert_eq "$first" \
        "$(figure '.lines["seqwrite-128k-zero"].rounds[0].nbdedup.seconds')"
    has_keys '.lines["seqwrite-128k-zero"].rounds[0]' qcow2
    assert_eq 2 "$(figure '.starts | length')"

    run ! bench --only seqwrite-128k-zero --dirty-max 2M
    [[ $output == *"of a run with other settings"* ]]
}

@test "the page has the figures of a growing pool, and its sizing" {
    run -0 bench --only seqwrite-128k-zero
    mkdir "$BATS_TEST_TMPDIR/docs"
    : >"$BATS_TEST_TMPDIR/docs/benchmarks-gone.svg"
    for millions in 1 2; do
        echo "{\"millions\": $millions, \"image\": 9, \"longest_ms\": 3," \
            '"disk_ms": 7, "pooldb_bytes": 200, "disk_bytes": 240,' \
            '"read_bytes": 1, "written_bytes": 512}'
    done >"$BATS_TEST_TMPDIR/docs/benchmarks-ddt.json"
    write_page
    grep -q '^| 2 | 9 |.*| 3 | 7 |$' "$docs/benchmarks.md"
    # 2^28 blocks in a TiB, with 200 and 40 bytes, and 16 / 7 of memory.
    grep -q '^| 4k | 268 M | 50 GiB | 10 GiB | 585 MiB |.*| 1.125 | 1.250 |' \
        "$docs/benchmarks.md"
    grep -q '<svg' "$docs/benchmarks-fill.svg"
    # A plot of an older page does not stay.
    [ ! -e "$docs/benchmarks-gone.svg" ]
}

# model FIGURE BLOCK: what estimate says of each record of 64 MiB of random
# data, without what an empty pool takes.
model ()
{
    nbdedup estimate --json --compress none --block-size "$2" big.raw none.raw |
        jq ".[0].$1" >all
    nbdedup estimate --json --compress none --block-size "$2" none.raw |
        jq ".[0].$1" >empty
    jq -n --slurpfile a all --slurpfile e empty --argjson b "$2" \
        '($a[0] - $e[0]) / (67108864 / $b)'
}

@test "estimate, the page and what was measured agree about the sizing" {
    local page="$top_srcdir/docs/benchmarks.md" line said measured

    cd "$BATS_TEST_TMPDIR"
    random_data 64M >big.raw
    truncate -s 1M none.raw
    line=$(grep '^Measured with .* million records' "$page")
    measured=$(sed 's/.*records: \([0-9]*\) bytes.*/\1/' <<<"$line")
    said=$(sed -n 's/.*reckons with \([0-9]*\) bytes.*/\1/p' "$page")
    assert_num "$(model database_bytes 4096) / $said > 0.99"
    assert_num "$(model database_bytes 4096) / $said < 1.01"
    assert_num "$measured / $said > 0.85 && $measured / $said < 1.15"
    said=$(sed -n 's/.* and \([0-9]*\) in summaries\.$/\1/p' "$page")
    measured=$(sed 's/.*; \([0-9]*\) in summaries.*/\1/' <<<"$line")
    assert_num "$(model summary_bytes 4096) == $said"
    # The journal and "lock" are in it, too.
    assert_num "$measured >= $said && $measured <= $said * 1.5"
    said=$(sed -n 's/^    ddt-cache *\([0-9.]*\) × N.*/\1/p' "$page")
    assert_eq "$said" "$(python3 -c 'import sys; sys.path.insert (0, sys.argv[1])
from bench_sizing import per_record
print ("%.1f" % per_record (4096)[2])' "$top_srcdir/tests/bench")"
}

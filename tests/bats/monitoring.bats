#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154,SC1011,SC2016
#
# "stat --prometheus", and the files of monitoring/ that use it.

load ../rigs/helpers

setup ()
{
    metrics="$BATS_TEST_TMPDIR/metrics"
    monitoring="$top_srcdir/monitoring"
}

# get ARG...: the metrics, which promtool accepts.
get ()
{
    nbdedup stat --prometheus "$@" >"$metrics"
    run -0 promtool check metrics <"$metrics"
    assert_eq "$output" ''
}

# value SERIES: the value of a metric with its labels.
value ()
{
    awk -v series="nbdedup_$1" '$1 == series { print $2 }' "$metrics"
}

# full_pool: a served pool that has each kind of metric, and known traffic.
full_pool ()
{
    make_pool --block-size 4K
    nbdedup create v 8M
    nbdedup create w 8M
    nbdedup set max-size=1G
    random_data 1M >"$BATS_TEST_TMPDIR/data"
    serve "$pool"
    qemu-io -f raw -c 'write -P 1 0 64k' "$(uri_of v)" >/dev/null
    crash
    serve "$pool"
    qemu-io -f raw -t none -c "write -s $BATS_TEST_TMPDIR/data 0 1M" -c flush \
            -c "write -s $BATS_TEST_TMPDIR/data 4M 1M" -c flush \
            -c 'write -P 0 7M 64k' -c 'read 0 512k' "$(uri_of v)" >/dev/null
    nbdedup snapshot v@s
    nbdedup clone v@s c
    nbdedup drift v@s --record >/dev/null
    nbdedup scrub >/dev/null
}

@test "promtool accepts the metrics of a pool that is empty and closed" {
    need promtool --version
    make_pool
    get
    assert_eq "$(value pool_served)" 0
    assert_eq "$(value collect_success)" 1
    # Without a server there are no counters.
    assert_eq "$(grep -c nbdedup_pool_clients "$metrics" || :)" 0
    nbdedup create v 8M
    get --ddt
}

@test "promtool accepts all metrics, and labels with any value" {
    need promtool --version
    full_pool
    get
    get v
    get v@s
    get --ddt --label pool="$pool" --label "odd=\"\\"
    grep -F 'nbdedup_pool_served{pool="'"$pool"'",odd="\"\\"} 1' "$metrics"
    assert_eq "$(grep -v '^#' "$metrics" | grep -vcF 'pool="' || :)" 0
}

@test "a label that stands in another one's value was not given twice" {
    make_pool
    nbdedup stat --prometheus --label 'a=x",b=' --label b=1 --label ab=2 |
        grep -F 'nbdedup_pool_served{a="x\",b=",b="1",ab="2"} 0'
    misused "--label 'b=2': it was given twice" stat --prometheus \
            --label 'a=x",b=' --label b=1 --label b=2
    misused "--label 'a=': it was given twice" stat --prometheus \
            --label a=1 --label b=1 --label a=
}

@test "the metrics say what clients did" {
    need jq --version
    full_pool
    nbdedup stat --prometheus >"$metrics"
    assert_eq "$(value pool_served)" 1
    assert_eq "$(value 'pool_state{state="ok"}')" 1
    assert_eq "$(value 'pool_state{state="critical"}')" 0
    assert_eq "$(value pool_max_size_bytes)" 1073741824
    assert_eq "$(value pool_full_warn_ratio)" 0.90000000000000002
    assert_num "$(value pool_free_bytes) > 0"
    assert_eq "$(value last_scrub_errors)" 0
    assert_num "$(date +%s) - $(value last_scrub_timestamp_seconds) < 600"
    assert_num "$(date +%s) - $(value last_recovery_timestamp_seconds) < 600"
    assert_eq "$(value 'volume_requests_total{volume="v",op="write"}')" 3
    assert_eq "$(value 'volume_request_bytes_total{volume="v",op="write"}')" \
              2162688
    assert_eq "$(value 'volume_request_bytes_total{volume="v",op="read"}')" \
              524288
    assert_eq "$(value 'volume_request_errors_total{volume="v",op="read"}')" 0
    assert_eq "$(value 'volume_dedup_hits_total{volume="v"}')" 256
    assert_eq "$(value 'volume_dedup_misses_total{volume="v"}')" 256
    assert_eq "$(value 'volume_zero_blocks_total{volume="v"}')" 16
    assert_eq "$(value 'volume_stored_bytes_total{volume="v"}')" 1048576
    assert_num "$(value 'device_written_bytes_total{file="records"}') >= 1048576"
    assert_num "$(value 'device_written_bytes_total{file="journal"}') > 0"
    assert_num "$(value 'device_written_bytes_total{file="pool.db-wal"}') > 0"
    assert_num "$(value 'device_written_bytes_total{file="pool.db.copy"}') > 0"
    assert_num "$(value folds_total) > 0"
    # A volume that no client had has no counters.
    assert_num "$(value 'volume_clients{volume="v"}') <= 1"
    assert_eq "$(value 'volume_clients{volume="w"}')" ''
    nbdedup stat --prometheus c >"$metrics"
    assert_eq "$(grep -c 'nbdedup_volume_clients' "$metrics" || :)" 0
}

@test "latencies are histograms: cumulative, and complete" {
    full_pool
    nbdedup stat --prometheus >"$metrics"
    run -0 awk '
        /^nbdedup_volume_request_duration_seconds_bucket/ {
            series = $1; sub (/,le=.*/, "", series)
            le = $1; sub (/.*le="/, "", le); sub (/".*/, "", le)
            if (series != last) { nr = 0; bound = 0 }
            if ($2 < nr || (le != "+Inf" && le + 0 <= bound)) exit 1
            nr = $2; bound = le + 0; last = series; buckets[series]++
            if (le == "+Inf") all[series] = $2
        }
        /^nbdedup_volume_request_duration_seconds_count/ {
            series = $1; sub (/_count/, "_bucket", series)
            sub (/}$/, "", series)
            if (all[series] != $2) exit 2
            n++
        }
        /^nbdedup_volume_requests_total.*op="write"/ { writes = $2 }
        END {
            for (s in buckets) if (buckets[s] != 25) exit 3
            for (s in all) if (s ~ /write/ && all[s] != writes) exit 4
            print n
        }' "$metrics"
    assert_eq "$output" 3
    assert_num "$(value 'volume_request_duration_seconds_sum{volume="v",op="write"}') > 0"
}

@test "a pool that has stopped still has the metrics that say so" {
    need promtool --version
    make_pool
    nbdedup create v 8M
    export FAULT_FILE=journal FAULT_CALL=sync FAULT_NTH=1
    export FAULT_ARM="$BATS_TEST_TMPDIR/arm"
    sanitizer_preload="${sanitizer_preload:+$sanitizer_preload:}$faults" \
        serve "$pool"
    get
    assert_eq "$(value pool_stopped)" 0
    assert_eq "$(value collect_success)" 1
    : >"$FAULT_ARM"
    run ! qemu-io -f raw -c 'write -P 1 0 64k' -c flush "$uri"
    run -1 --separate-stderr nbdedup stat --prometheus
    [[ $stderr == 'nbdedup: stat: the pool has stopped'* ]]
    promtool check metrics <<<"$output"
    echo "$output" >"$metrics"
    assert_eq "$(value pool_stopped)" 1
    assert_eq "$(value 'pool_state{state="critical"}')" 1
    assert_eq "$(value collect_success)" 0
    assert_num "$(value 'volume_request_errors_total{volume="v",op="flush"}') > 0"
}

@test "a page describes every metric" {
    full_pool
    nbdedup stat --prometheus --ddt v >"$metrics"
    nbdedup stat --prometheus >>"$metrics"
    text=$(sed -n '/^=head1 METRICS/,/^=head1 JSON/p' \
               "$top_srcdir/tools/nbdedup-stat.pod")
    while read -r name; do
        grep -qw "$name" <<<"$text" ||
            fail "$name is not in the manual page"
    done < <(sed -n 's/^# TYPE nbdedup_\([a-z_]*\).*/\1/p' "$metrics")
}

@test "the alert rules fire for what they say, and for nothing else" {
    need promtool --version
    run -0 promtool check rules "$monitoring/nbdedup-rules.yml"
    run -0 promtool test rules "$monitoring/nbdedup-rules-test.yml"
    # Each alert is expected there.
    while read -r alert; do
        grep -q "alertname=\"$alert\"" "$monitoring/nbdedup-rules-test.yml" ||
            fail "no test expects $alert"
    done < <(sed -n 's/^  - alert: //p' "$monitoring/nbdedup-rules.yml")
}

@test "the dashboard and the rules ask for metrics that exist" {
    full_pool
    nbdedup set drift-alert-ratio=1000
    nbdedup stat --prometheus >"$metrics"
    run -0 python3 "$BATS_TEST_DIRNAME/monitoring.py" "$monitoring" metrics
    assert_num "${#lines[@]} > 40"
    for name in "${lines[@]}"; do
        grep -q "^${name}[{ ]" "$metrics" || fail "nbdedup has no metric $name"
    done
    python3 "$BATS_TEST_DIRNAME/monitoring.py" "$monitoring" layout
}

@test "the dashboard's expressions are valid" {
    need promtool --version
    python3 "$BATS_TEST_DIRNAME/monitoring.py" "$monitoring" rules \
            >"$BATS_TEST_TMPDIR/rules.yml"
    run -0 promtool check rules "$BATS_TEST_TMPDIR/rules.yml"
}

# run_unit: the command of the service, as systemd would start it.
run_unit ()
{
    local command

    command=$(sed -n '/^ExecStart=/,/[^\\]$/p' \
                  "$monitoring/nbdedup-metrics@.service" |
                  sed -e 's/^ExecStart=//' -e 's/\\$//' | tr -d '\n' |
                  sed -e 's/\$\$/$/g' -e "s,%f,$pool,g" -e 's,%i,x-pool,g')
    [[ $command == "/bin/sh -c '"*"'" ]] || fail "not expected: $command"
    command=${command#"/bin/sh -c '"}
    DIRECTORY="$BATS_TEST_TMPDIR/collector" /bin/sh -c "${command%\'}"
}

@test "the unit for the textfile collector writes a pool's metrics" {
    make_pool
    mkdir "$BATS_TEST_TMPDIR/collector"
    file="$BATS_TEST_TMPDIR/collector/nbdedup-x-pool.prom"
    serve "$pool"
    run_unit
    grep -qxF "nbdedup_pool_served{pool=\"$pool\"} 1" "$file"
    grep -qxF "nbdedup_collect_success{pool=\"$pool\"} 1" "$file"
    stop
    # What fails leaves the last metrics, whose age is an alert.
    mv "$pool" "$pool.away"
    run ! run_unit
    grep -qxF "nbdedup_pool_served{pool=\"$pool\"} 1" "$file"
    mv "$pool.away" "$pool"
    run_unit
    grep -qxF "nbdedup_pool_served{pool=\"$pool\"} 0" "$file"
    assert_eq "$(ls "$BATS_TEST_TMPDIR/collector")" nbdedup-x-pool.prom
}

@test "systemd accepts the units" {
    need systemd-analyze --version
    ln -s "$(command -v true)" "$BATS_TEST_TMPDIR/nbdedup"
    cp "$monitoring"/nbdedup-metrics@.* "$BATS_TEST_TMPDIR"
    cd "$BATS_TEST_TMPDIR"
    run -0 systemd-analyze verify --man=no ./nbdedup-metrics@srv-pool.service \
        ./nbdedup-metrics@srv-pool.timer
    assert_eq "$(grep -c nbdedup-metrics <<<"$output" || :)" 0
}

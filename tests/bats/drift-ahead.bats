# SPDX-License-Identifier: BSD-3-Clause
#
# Where drift leads, and the alerts when it goes too far: what users see of
# them.  test-forecast checks the forecasts themselves.

# helpers.bash and "run" set what seems to be unset
# shellcheck disable=SC2154,SC2030,SC2031

load ../rigs/helpers

setup ()
{
    need jq --version
    need qemu-io --version
}

# make_fleet: golden@v1 of 4 MiB with the clones web1 and web2.
make_fleet ()
{
    make_pool --block-size 16K --compress none
    random_data 4M >"$BATS_TEST_TMPDIR/image"
    nbdedup import golden "$BATS_TEST_TMPDIR/image"
    nbdedup snapshot golden@v1
    nbdedup clone golden@v1 web --count 2 >/dev/null
}

# live DAYS: each day, until yesterday, web1 writes 64 KiB.
live ()
{
    "$test_programs/bats/drift-days" "$pool" web1 \
        $(($(date +%s) - $1 * 86400)) "$1" 65536
}

# write_new SEED SIZE: web1 gets so much new data at its start.
write_new ()
{
    random_data "$2" "$1" >"$BATS_TEST_TMPDIR/new"
    qemu-io -f raw "$(uri_of web1)" \
            -c "write -q -s $BATS_TEST_TMPDIR/new 0 $2" -c flush
}

# logged TEXT N: the server's log has it so many times.  It does not wait for
# its log, so that may be a moment later.
logged ()
{
    wait_for 20 has_lines "$1" "$2"
}

has_lines () { [ "$(grep -cF -- "$1" "$server_log")" = "$2" ]; }

# kinds: the present alerts, by kind.
kinds ()
{
    nbdedup drift --alert --json | jq -r '[.alerts[].kind] | join (" ")'
}

@test "with too few samples there is no forecast, and the command says so" {
    make_fleet
    run -0 nbdedup drift
    assert_eq "${lines[-1]}" "no forecast: too few samples: 1 over 0 days; at least 8, well apart, over at least 7 days are needed"
    live 6
    run -0 nbdedup drift --forecast
    assert_eq "$output" "golden@v1: no forecast: too few samples: 7 over 6 days; at least 8, well apart, over at least 7 days are needed"
    run -0 nbdedup drift golden@v1 --json --ratio-below 1.1
    assert_eq "$(jq -c '.forecast | [.samples, .ratio_below, .pool_full,
                     .unique_bytes.method, .unique_bytes.values]' <<<"$output")" \
              '[7,null,null,null,[]]'
    assert_eq "$(jq -r '.forecast | keys_unsorted | join (" ")' <<<"$output")" \
              "samples since unique_bytes dedup_ratio pool_used_bytes ratio_below pool_full"
    assert_eq "$(jq -r '[.forecast[] | objects | keys_unsorted | join (" ")] | unique[]' <<<"$output")" \
              "now method reason error values"
    # Documents without a history are equal, but for the time.
    jq -e '.forecast | .since != null and .unique_bytes.now == null' <<<"$output"
    # Documents of the history have none, and nothing else that is new.
    nbdedup drift --history --json >"$BATS_TEST_TMPDIR/samples"
    assert_eq "$(jq -r '[.samples[] | keys | join (" ")] | unique[]' \
                     "$BATS_TEST_TMPDIR/samples")" \
              "block_size clones fleet golden golden_blocks golden_id time"
}

@test "a forecast has values with an interval, and times" {
    make_fleet
    live 40
    # 2.5 MiB are unique after 40 days, and 1.875 MiB more after 30 others.
    run -0 nbdedup drift golden@v1
    [[ ${lines[-1]} =~ ^"in 30 days: unique 4."[0-9]+" MiB (4."[0-9]+" MiB to 4."[0-9]+" MiB), dedup ratio 1.4"[0-9]" (1."[0-9]+" to 1."[0-9]+"), used in the pool "[89.0-9]+" MiB " ]] ||
        fail "${lines[-1]}"
    nbdedup drift golden@v1 --json --ratio-below 1.5 >"$BATS_TEST_TMPDIR/json"
    jq -e '.forecast |
        (.unique_bytes, .dedup_ratio, .pool_used_bytes |
         .method != null and .reason == null and .error < 0.01 and
         [.values[].days] == [7, 14, 30] and
         all (.values[]; .low <= .value and .value <= .high)) and
        (.unique_bytes.values[2].value - 4587520 | fabs) < 150000 and
        .unique_bytes.now == 2621440 and .samples == 41' \
        "$BATS_TEST_TMPDIR/json" || fail "$(jq -c .forecast "$BATS_TEST_TMPDIR/json")"
    # The ratio is 12 / (4 + u) MiB, so it is below 1.5 with 4 MiB, in 24 days.
    jq -e '(.forecast.ratio_below.time - .time) / 86400 | . > 21 and . < 26' \
       "$BATS_TEST_TMPDIR/json"
    jq -e '.forecast.ratio_below | .ratio == 1.5 and .earliest <= .time and
           .time <= .latest' "$BATS_TEST_TMPDIR/json"
    run -0 nbdedup drift --forecast --ratio-below 1.5
    assert_eq "${lines[0]%% since*}" "golden@v1: forecast from 41 samples"
    assert_eq "$(awk '{ print $1, $2 }' <<<"$output" | sed -n '3,6p')" \
$'FIGURE NOW\nunique 2.50\ndedup ratio\nused in'
    grep -E '^the dedup ratio is below 1.5: about 20[0-9-]+ \(20[0-9-]+ to 20[0-9-]+\)$' <<<"$output"
    grep -E '^the pool is full: not before 20' <<<"$output"
    # The threshold of the alert is the ratio of interest.
    nbdedup set drift-alert-ratio=1.45
    nbdedup drift --forecast --json | jq -e '.goldens[0].forecast.ratio_below.ratio == 1.45'
    run -0 nbdedup drift --ratio-below 3
    assert_eq "${lines[-1]}" "the dedup ratio is below 3: now"
    # So much is written in ten days.
    used=$(nbdedup status --json | jq .space.used_bytes)
    nbdedup set max-size=$((used + 655360))
    nbdedup drift --forecast --json >"$BATS_TEST_TMPDIR/json"
    jq -e '.goldens[0] | (.forecast.pool_full.time - .time) / 86400 |
           . > 7 and . < 13' "$BATS_TEST_TMPDIR/json"
    run -0 nbdedup drift
    [[ ${lines[-1]} == "the pool is full: about 20"* ]]
}

@test "the forecast is the same read-only and through a server" {
    make_fleet
    live 20
    forecast ()
    {
        nbdedup "$@" drift --forecast --json |
            jq -c '.goldens[0].forecast | [.samples, .unique_bytes.method,
                (.unique_bytes.values[0].value / 10000 | floor)]'
    }
    expected=$(forecast)
    assert_eq "$(forecast --read-only)" "$expected"
    serve "$pool"
    assert_eq "$(forecast)" "$expected"
}

@test "the page draws the forecast" {
    need gnuplot --version
    make_fleet
    live 40
    nbdedup drift --html "$BATS_TEST_TMPDIR/page"
    grep -q '<h3[^>]*>Where that leads</h3>' "$BATS_TEST_TMPDIR/page"
    grep -q '^<p>in 30 days: unique ' "$BATS_TEST_TMPDIR/page"
    assert_eq "$(grep -c 'and \(its\|their\) forecast"><g>' "$BATS_TEST_TMPDIR/page")" 2
    # Dashed: logical bytes, and what is expected, twice.
    assert_eq "$(grep -c "stroke-dasharray='8.0,5.0'" "$BATS_TEST_TMPDIR/page")" 3
    # A band around each.
    for colour in '213,  94,   0' '204, 121, 167'; do
        grep -qF "polygon fill = 'rgb($colour)' fill-opacity = '0.25" \
             "$BATS_TEST_TMPDIR/page" || fail "$colour"
    done
}

@test "thresholds are properties, and wrong ones are refused" {
    local value property

    make_fleet
    for property in ratio growth unique; do
        assert_eq "$(nbdedup get drift-alert-$property)" none
    done
    assert_eq "$(nbdedup get drift-alert-unique web1)" default
    for value in '' 1 0.5 2x -2 1.5.1 2,5 1e3 nan 1234567890123456 default; do
        run -2 --separate-stderr nbdedup set "drift-alert-ratio=$value"
        [[ $stderr == "nbdedup: set: drift-alert-ratio '$value'"* ]] || fail "$stderr"
    done
    for property in drift-alert-growth drift-alert-unique; do
        for value in '' x 5x -1 default; do
            run -2 --separate-stderr nbdedup set "$property=$value"
            [[ $stderr == "nbdedup: set: $property '$value'"* ]] || fail "$stderr"
        done
    done
    run -2 nbdedup set drift-alert-unique=much web1
    run -2 nbdedup set drift-alert-ratio=2 web1
    run -1 nbdedup set drift-alert-unique=1M missing
    nbdedup set drift-alert-ratio=2.5
    nbdedup set drift-alert-growth=1.5G
    nbdedup set drift-alert-unique=1M
    nbdedup set drift-alert-unique=2M web1
    nbdedup set drift-alert-unique=none web2
    assert_eq "$(nbdedup get drift-alert-ratio)" 2.5
    assert_eq "$(nbdedup get drift-alert-growth)" 1610612736
    assert_eq "$(nbdedup get drift-alert-unique)" 1048576
    # A volume keeps its own through a rename, and loses it with its life.
    nbdedup rename web1 www
    assert_eq "$(nbdedup get drift-alert-unique www)" 2097152
    assert_eq "$(nbdedup get drift-alert-unique web2)" none
    nbdedup set drift-alert-unique=default web2
    assert_eq "$(nbdedup get drift-alert-unique web2)" default
    nbdedup destroy www
    assert_eq "$(sqlite3 "$pool/pool.db" "SELECT count (*) FROM property
                     WHERE name LIKE 'drift-alert-unique/%'")" 0
    run -2 nbdedup drift --alert --record
    run -2 nbdedup drift --alert --html x
    run -2 nbdedup drift --ratio-below 1
    run -2 nbdedup drift --ratio-below 1.2.3
    run -2 nbdedup drift --forecast --csv
    run -2 nbdedup drift --forecast --history
}

@test "an alert comes with a sample, once, and goes; served" {
    make_fleet
    serve "$pool" drift-interval=0
    nbdedup set drift-alert-ratio=2.5
    nbdedup set drift-alert-unique=256K
    nbdedup drift --record >/dev/null
    run -0 nbdedup drift --alert
    assert_eq "$output" ""
    run -0 nbdedup status
    assert_eq "$(nbdedup stat --prometheus | grep -c drift_alert || :)" 0

    # 12 MiB by 5: below 2.5.  Nothing is noticed without a sample.
    write_new 5 1M
    run -0 nbdedup drift --alert
    nbdedup drift --record >/dev/null
    ratio="golden@v1: the dedup ratio 2.40 is below drift-alert-ratio (2.5)"
    unique="web1: 1.0 MiB are unique, more than drift-alert-unique (256 KiB)"
    run -1 nbdedup drift --alert
    [[ ${lines[0]} == "$ratio (since 20"*"): see nbdedup drift golden@v1" ]]
    [[ ${lines[1]} == "$unique (since 20"*"): see nbdedup drift golden@v1" ]]
    assert_eq "${#lines[@]}" 2
    run -1 nbdedup drift golden@v1 --alert
    run -0 nbdedup drift other@v1 --alert
    run -1 nbdedup status
    assert_eq "${lines[1]}" "  warning: $ratio: see nbdedup drift golden@v1"
    assert_eq "${lines[2]}" "  warning: $unique: see nbdedup drift golden@v1"
    run -1 nbdedup status --json
    assert_eq "$(jq -c '[.drift_alerts[] | [.kind, .golden, .clone, .command]]' <<<"$output")" \
              '[["ratio","golden@v1",null,"nbdedup drift golden@v1"],["unique","golden@v1","web1","nbdedup drift golden@v1"]]'
    assert_eq "$(nbdedup stat --prometheus | grep '^nbdedup_drift_alert')" \
'nbdedup_drift_alert{golden="golden@v1",kind="ratio"} 1
nbdedup_drift_alert{golden="golden@v1",clone="web1",kind="unique"} 1'
    nbdedup stat --prometheus | grep '^# HELP nbdedup_drift_alert .*nbdedup drift NAME@SNAP'
    assert_eq "$(nbdedup stat --prometheus web2 | grep -c drift_alert || :)" 0
    logged "$ratio: see nbdedup drift golden@v1" 1
    logged "$unique: see nbdedup drift golden@v1" 1

    # While it stays it is no news, with another value either; a rename is none.
    since=$(nbdedup drift --alert --json | jq .alerts[0].since || :)
    write_new 6 2M
    nbdedup drift --record >/dev/null
    nbdedup rename web1 www
    nbdedup drift --record >/dev/null
    logged "is below drift-alert-ratio" 1
    logged "are unique" 1
    run -1 nbdedup drift --alert --json
    assert_eq "$(jq -c '[.alerts[] | [.clone, .value, .since]]' <<<"$output")" \
              "[[null,2,$since],[\"www\",2097152,$since]]"
    nbdedup rename www web1

    # Killed between: the alert stays, and is no news.
    crash
    run -1 nbdedup status
    assert_eq "$(kinds)" "ratio unique"
    serve "$pool" drift-interval=0
    nbdedup drift --record >/dev/null
    run -1 nbdedup drift --alert
    logged "is below drift-alert-ratio" 0
    logged "are unique" 0

    # It goes with the data, and comes again.
    qemu-io -f raw "$(uri_of web1)" -c 'discard -q 0 4M' -c flush
    nbdedup drift --record >/dev/null
    assert_eq "$(kinds)" "ratio"
    logged "web1: the alert of drift-alert-unique is over" 1
    write_new 7 512K
    nbdedup drift --record >/dev/null
    assert_eq "$(kinds)" "ratio unique"
    logged "are unique" 1
    # A threshold that changes takes effect at once.
    nbdedup set drift-alert-ratio=none
    assert_eq "$(kinds)" "unique"
    logged "golden@v1: the alert of drift-alert-ratio is over" 1
    nbdedup set drift-alert-unique=none web1
    run -0 nbdedup status
    nbdedup set drift-alert-unique=default web1
    run -1 nbdedup status
    logged "are unique" 2
    # Clones that do not exist any more have none.
    nbdedup destroy --force web1
    run -0 nbdedup status
    run -0 nbdedup drift --alert
    assert_eq "$output" ""
}

@test "growth in a week, without a server; the command prints what is new" {
    make_fleet
    nbdedup set drift-alert-growth=400K
    # 64 KiB each day are 448 in a week.
    run -0 --separate-stderr live 5
    assert_eq "$(kinds)" ""
    live 20
    run -1 nbdedup drift --alert
    [[ $output == "golden@v1: image and clones have grown by 448 KiB in a week, more than drift-alert-growth (400 KiB) (since 20"* ]]
    nbdedup set drift-alert-growth=450K
    run -0 nbdedup drift --alert
    run -0 --separate-stderr nbdedup set drift-alert-growth=440K
    assert_eq "$stderr" "nbdedup: $pool: golden@v1: image and clones have grown by 448 KiB in a week, more than drift-alert-growth (440 KiB): see nbdedup drift golden@v1"
    # The sample of now is a day later, without growth in it.
    run -0 --separate-stderr nbdedup drift --record
    assert_eq "$stderr" ""
    run -0 nbdedup drift --alert
    # Reading writes nothing.
    nbdedup set drift-alert-growth=100K
    run -1 nbdedup --read-only drift --alert
    run -1 nbdedup --read-only status
    run -3 nbdedup -p "$BATS_TEST_TMPDIR/none" drift --alert
    # The golden image is destroyed, and its alert tells how to name it.
    nbdedup destroy --force golden@v1
    run -1 nbdedup drift --alert
    [[ $output == *": see nbdedup drift 'golden@v1 (destroyed)'" ]]
    nbdedup destroy web1 web2
    run -0 nbdedup drift --alert
}

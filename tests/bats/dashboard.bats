#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154,SC2016
#
# The dashboard of monitoring/, drawn from the metrics of a real pool as Grafana
# would draw it (Debian has no Grafana), and looked at in a browser.
#
# The pictures stay in tests/dashboard-pictures of the build.

load ../rigs/helpers

readings=24                     # of the pool
step=60                         # seconds between them, in the history

setup ()
{
    need python3 --version
    need promtool --version
    need prometheus --version
    need fio --version
    need jq --version
    export PYTHONDONTWRITEBYTECODE=1
    scripts="$BATS_TEST_DIRNAME/dashboard"
    dashboard="$top_srcdir/monitoring/nbdedup-dashboard.json"
    shared="$BATS_FILE_TMPDIR"
    page="$BATS_TEST_TMPDIR/page.html"
    load_pid='' prometheus_pid=''
    [ -e "$shared/now" ] || make_history
    start_prometheus
}

teardown ()
{
    end_process "$load_pid"
    end_process "$prometheus_pid"
    stop
    check_pools
}

# end_process PID: if there is one.
end_process ()
{
    [ -n "$1" ] || return 0
    kill "$1" 2>/dev/null || :
    wait "$1" || :
}

#----------------------------------------------------------------------
# A real pool, its load, and its metrics as a history

# take_reading FOLDER NR: as the unit for the textfile collector does it.
take_reading ()
{
    nbdedup stat --prometheus --label pool=/srv/pool \
            >"$(printf '%s/%s/%03d' "$shared" "$1" "$2")"
}

# writes NR: the writes of volume db, in a reading of the served pool.
writes ()
{
    awk '/^nbdedup_volume_requests_total.*volume="db",op="write"/ { print $2 }' \
        "$(printf '%s/served/%03d' "$shared" "$1")"
}

# has_moved NR: this reading of the served pool shows more load than the last.
has_moved ()
{
    take_reading served "$1"
    [ "$(writes "$1")" -gt "$(writes $(($1 - 1)))" ]
}

# use_clones NR: each kind of request, to each of $clones, of which some write
# more than others.
use_clones ()
{
    local clone nr=$1

    for clone in $clones; do
        qemu-io -f raw -t none \
                -c "write -s $BATS_TEST_TMPDIR/other $((nr * 64))k $((${clone#web} * 32))k" \
                -c "read $((nr * 32))k 256k" -c flush \
                -c "discard 3M 64k" -c "write -z $((3072 + nr * 4))k 64k" \
                "$(uri_of "$clone")" >/dev/null
    done
}

# fail_a_write: of web1, while the pool is full.
fail_a_write ()
{
    local used

    used=$(sed -n 's/^nbdedup_pool_stored_bytes{.*} //p' "$shared/served/000")
    nbdedup set max-size=$((used + (2 << 20)))
    run ! qemu-io -f raw -t none -c "write -s $BATS_TEST_TMPDIR/more 0 4M" \
        -c flush "$(uri_of web1)"
    nbdedup set max-size=1G
}

# administer NR: what an administrator does in the meantime.
administer ()
{
    case $1 in
        6|12|18) nbdedup drift golden@v1 --record >/dev/null ;;
        10) nbdedup scrub >/dev/null ;;
        14) nbdedup destroy web3
            clones="web1 web2" ;;
    esac
}

# The history is that of a host with a served pool, and of another host where a
# pool of the same path is closed and has no volume.
make_history ()
{
    local end nr now clones="web1 web2 web3"

    mkdir -p "$shared/served" "$shared/closed"
    make_pool --block-size 4K
    take_reading closed 0
    take_reading closed 1

    random_data 4M >"$BATS_TEST_TMPDIR/image"
    random_data 4M 2 >"$BATS_TEST_TMPDIR/other"
    random_data 4M 3 >"$BATS_TEST_TMPDIR/more"
    text_data 8M >"$BATS_TEST_TMPDIR/data"
    nbdedup import golden "$BATS_TEST_TMPDIR/image"
    nbdedup snapshot golden@v1
    nbdedup clone golden@v1 web --count 3
    nbdedup create db 16M
    nbdedup set drift-alert-ratio=1000
    serve "$pool"
    nbdcopy "$BATS_TEST_TMPDIR/data" "$(uri_of db)"
    use_clones 0
    take_reading served 0
    fail_a_write
    fio --name=db --ioengine=nbd --uri="$(uri_of db)" --rw=randrw --bs=4k \
        --size=16m --io_size=4g --rate_iops=300 --iodepth=8 --fsync=16 \
        --dedupe_percentage=40 --buffer_compress_percentage=50 --randseed=1 \
        --output="$BATS_TEST_TMPDIR/fio" \
        3>&- 4>&- &
    load_pid=$!
    for ((nr = 1; nr < readings; nr++)); do
        use_clones $nr
        administer $nr
        wait_for 60 has_moved $nr
    done
    end_process "$load_pid"
    load_pid=
    stop

    # The last reading was at second 37 of a past minute: Grafana asks for whole
    # minutes, and no reading is ever taken at one.
    now=$(date +%s)
    end=$((now / step * step - 23))
    python3 "$scripts/history.py" $end $step "a:9100=$shared/served" \
            "b:9100=$shared/closed" >"$BATS_TEST_TMPDIR/history"
    run -0 promtool tsdb create-blocks-from openmetrics \
        "$BATS_TEST_TMPDIR/history" "$shared/tsdb"
    echo $((end - (readings - 1) * step)) >"$shared/start"
    echo "$now" >"$shared/now"
}

start_prometheus ()
{
    local log="$BATS_TEST_TMPDIR/prometheus.log"

    echo 'global: {}' >"$BATS_TEST_TMPDIR/prometheus.yml"
    prometheus --config.file="$BATS_TEST_TMPDIR/prometheus.yml" \
               --storage.tsdb.path="$shared/tsdb" \
               --storage.tsdb.retention.time=10y \
               --web.listen-address=127.0.0.1:0 >"$log" 2>&1 3>&- 4>&- &
    prometheus_pid=$!
    wait_for 60 grep -q 'Server is ready' "$log"
    address=$(sed -n 's/.*Listening on.* address=\(127.0.0.1:[0-9]*\).*/\1/p' \
                  "$log")
}

# render DASHBOARD [--closed] [NAME=VALUE...]
render ()
{
    python3 "$scripts/render.py" "$1" "$address" "$(cat "$shared/start")" \
            "$(cat "$shared/now")" "$page" "${@:2}"
}

# look VIEW...: what look.py says of the page, with pictures in $seen.
look ()
{
    # Chromium may be installed, but not start, so ask once.
    if [ ! -e "$shared/starts" ]; then
        need timeout 60 chromium --headless --no-sandbox --disable-gpu \
             --user-data-dir="$BATS_TEST_TMPDIR/asked" --dump-dom about:blank
        touch "$shared/starts"
    fi
    seen="$BATS_TEST_TMPDIR/seen"
    run python3 "$scripts/look.py" "$page" "$seen" "$@"
}

# change FILTER: the dashboard, changed by jq in $changed.  The filter has
# panel(TITLE), and query(TITLE) for the panel's first query.
change ()
{
    changed="$BATS_TEST_TMPDIR/changed.json"
    jq "def panel(t): .panels[] | select (.title == t);
        def query(t): panel(t).targets[0]; $1" "$dashboard" >"$changed"
    ! cmp -s <(jq . "$dashboard") "$changed" || fail "$1 changes nothing"
}

# is_found FILTER LINE: the dashboard that the filter changes must fail, and say
# so.
is_found ()
{
    change "$1"
    run -1 render "$changed" instance=a:9100
    grep -qxF -e "$2" <<<"$output" || fail "$1:" "$output"
}

#----------------------------------------------------------------------

@test "each panel of the dashboard shows what a pool under load did" {
    render "$dashboard" instance=a:9100
    # Each panel is in the page, with a chart, a gauge or a number.
    assert_eq "$(grep -c '<section ' "$page")" \
              "$(jq '.panels | length' "$dashboard")"
    assert_eq "$(grep -c '<section .*class="\(plot\|value\)"' "$page")" \
              "$(jq '[.panels[] | select (.type != "row")] | length' \
                    "$dashboard")"
    assert_eq "$(grep -c 'class="none"' "$page" || :)" 0
}

@test "the dashboard of a pool that nothing uses has no empty number" {
    render "$dashboard" instance=b:9100 --closed
    for text in 'not served' never 'no sample'; do
        grep -q ">$text<" "$page" || fail "no panel says $text"
    done
}

@test "nothing of the dashboard is cut off, light and dark, wide and narrow" {
    render "$dashboard" instance=a:9100
    look 1600l 1600d 900l 900d
    mkdir -p "$test_programs/dashboard-pictures"
    cp "$seen"/*.png "$test_programs/dashboard-pictures"
    assert_eq "$status" 0 "$output"
    for picture in 1600l 1600d 900l 900d; do
        # A page without its charts is far smaller.
        assert_num "$(stat -c %s "$seen/$picture.png") > 100000"
    done
}

@test "texts that are cut off or overlap, and a page that is too wide, are found" {
    change '(panel("State").title) = "State as nbdedup status says it" |
            (query("Folds").legendFormat) = ("of the time " * 20)'
    render "$changed" instance=a:9100
    look 900l
    assert_eq "$status" 1 "$output"
    [[ $output == *"panel 'State as nbdedup status says it': "*" is cut off"* ]]
    [[ $output == *"panel 'Folds': 'of the time "*" is cut off"* ]]

    render "$dashboard" instance=a:9100
    sed -i -e 's/left:[0-9.]*%/left:50%/g' \
        -e 's/minmax(0, 1fr));/60px);/' \
        -e 's,<main>,<img src="http://192.0.2.1/a.png">&,' "$page"
    look 900l
    assert_eq "$status" 1 "$output"
    [[ $output == *"900l: panel 'Data': '"*" lies over '"* ]]
    [[ $output == *"900l: the page is "*" pixels too wide"* ]]
    [[ $output == *"Failed to load resource"* ]]
}

@test "a dashboard that is wrong is found" {
    # What its data shows.
    is_found '(query("Folds").expr) |= sub ("fold_seconds"; "fold_second")' \
             "panel 'Folds': query A: No data"
    is_found '(panel("Ratios").targets[2].expr) |= sub ("pool=";"pol=")' \
             "panel 'Ratios': query C: No data"
    is_found '(query("Requests").legendFormat) = "{{operation}}"' \
             "panel 'Requests': query A: the legend's label 'operation' does not exist"
    is_found '(query("Data").legendFormat) = "bytes"' \
             "panel 'Data': query A: two series have the name 'bytes'"
    is_found '(query("Ratios").expr) |= sub ("instance=[^,]*,"; "")' \
             "panel 'Ratios': query A: two series have the name 'dedup'"
    # Without a Min step the rate of metrics that are read once in a minute is
    # never known.
    is_found 'del (query("Written, by file").interval)' \
             "panel 'Written, by file': query A: No data"
    change '(query("Space used").expr) = "rate("'
    run -1 render "$changed" instance=a:9100
    [[ $output == "panel 'Space used': query A: "*"parse error"* ]]
    is_found '(.templating.list[2].query.query) |= sub (", pool"; ", pol")' \
             "variable pool: it has no values"
    # What its file shows.
    is_found '(panel("Data").gridPos.x) = 4' "panel 'Data': it lies over 'Requests'"
    is_found '(panel("Queues").gridPos.x) = 20' "panel 'Queues': it leaves the grid"
    is_found '(panel("Data").id) = 1' "panel 'Data': 'State' has the same id, 1"
    is_found '(panel("Data").title) = "State"' \
             "panel 'State': 'State' has the same title, State"
    is_found '(panel("Data").fieldConfig.defaults.unit) = "binBpss"' \
             "panel 'Data': Grafana has no unit 'binBpss', or this test does not draw it"
    is_found '(panel("Data").type) = "graph2"' \
             "panel 'Data': unknown type of panel: graph2"
    is_found '(query("Data").expr) |= sub ("pool=.[$]pool"; "pool=\"$pol")' \
             "panel 'Data': there is no variable \$pol"
    is_found 'del (panel("Room, at worst").fieldConfig.defaults.thresholds)' \
             "panel 'Room, at worst': without thresholds Grafana paints all over 80 red"
}

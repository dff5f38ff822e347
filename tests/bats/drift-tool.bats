# SPDX-License-Identifier: BSD-3-Clause
#
# The output of "nbdedup drift".  Other tests check its figures; here they are
# few enough to be known.

# helpers.bash and "run" set what seems to be unset
# shellcheck disable=SC2154,SC2030,SC2031

load ../rigs/helpers

# fixture [OPTION...]: print documents of an invented fleet.
fixture ()
{
    python3 "$top_srcdir/tests/bats/drift-fixture.py" "$@"
}

# forms FORM [FILE]: format the documents on stdin as the command does.
forms ()
{
    "$test_programs/bats/drift-forms" "$@"
}

# make_fleet: golden@v1 of 8 MiB.  web1 and web2 have the same new MiB, web1
# has 512 KiB of its own, 1 MiB of zeroes and 256 KiB of the golden image at
# another place; web3 has nothing of its own.
make_fleet ()
{
    local dir=$BATS_TEST_TMPDIR

    make_pool --block-size 16K --compress none
    random_data 8M >"$dir/image"
    random_data 1M 2 >"$dir/update"
    random_data 512K 3 >"$dir/own"
    head -c 256K "$dir/image" >"$dir/moved"
    nbdedup import golden "$dir/image"
    nbdedup snapshot golden@v1
    nbdedup clone golden@v1 web --count 3
    serve "$pool"
    qemu-io -f raw "$(uri_of web2)" -c "write -q -s $dir/update 1M 1M"
    qemu-io -f raw "$(uri_of web1)" -c "write -q -s $dir/update 1M 1M" \
            -c "write -q -s $dir/own 4M 512K" -c 'write -q -z 6M 1M' \
            -c "write -q -s $dir/moved 5M 256K" -c flush
}

# check_xml FILE: it is XML that runs nothing and refers to nothing.
check_xml ()
{
    python3 - "$1" <<'END'
import sys
import xml.etree.ElementTree as ET
ids = set()
for e in ET.parse(sys.argv[1]).iter():
    assert e.tag.split("}")[-1] not in ("script", "image", "use",
                                        "foreignObject"), e.tag
    for key, value in e.attrib.items():
        assert not key.split("}")[-1].startswith(("on", "href")), key
        assert "url(" not in value and "://" not in value, value
        if key == "id":
            assert value not in ids, value
            ids.add(value)
END
}

@test "for people: bytes first, then each clone's classes, the ratio last" {
    make_fleet
    run -0 --separate-stderr nbdedup drift golden@v1
    assert_eq "$stderr" ""
    expected=$(cat <<'END'
golden@v1 and 3 clones: 31.0 MiB logical, 9.50 MiB distinct (9.50 MiB stored)
the clones' 23.0 MiB: 88 % as in the golden image, 1 % moved, 9 % only among siblings, 2 % unique

CLONE       LOGICAL         SAME       MOVED      SIBLING      UNIQUE   ZERO  ONLY-HERE
web1          7.00M  5.25M  75 %  256K   4 %  1.00M  14 %  512K   7 %  1.00M       512K
web2          8.00M  7.00M  88 %    0B   0 %  1.00M  12 %    0B   0 %     0B         0B
web3          8.00M  8.00M 100 %    0B   0 %     0B   0 %    0B   0 %     0B         0B
all clones    23.0M  20.2M  88 %  256K   1 %  2.00M   9 %  512K   2 %  1.00M          -

dedup ratio 3.26
no forecast: too few samples: 1 over 0 days; at least 8, well apart, over at least 7 days are needed
END
)
    assert_eq "$output" "$expected"
    # Without a name it prints all golden images, one block each.
    nbdedup snapshot web1@gold
    nbdedup clone web1@gold deep
    run -0 nbdedup drift
    assert_eq "$(grep -c ' and .* clones*: ' <<<"$output")" 2
    assert_eq "${lines[0]%% and*}" "golden@v1"
    [[ $output == *$'\n\nweb1@gold and 1 clone: '* ]]
    # With one clone there is no line for all clones.
    run -0 nbdedup drift web1@gold
    [[ $output != *"all clones"* ]]
}

@test "without golden images, clones or data there is still an answer" {
    make_pool
    run -0 nbdedup drift
    assert_eq "$output" "no golden images: no volume is a clone of a snapshot"
    assert_eq "$(nbdedup drift --json | jq -c .)" '{"goldens":[]}'
    assert_eq "$(nbdedup drift --csv | wc -l)" 1
    run -0 nbdedup drift --history
    assert_eq "$output" "no samples yet: 'nbdedup drift --record' takes one"
    assert_eq "$(nbdedup drift --history --json | jq -c .)" '{"samples":[]}'
    nbdedup create empty 1M
    nbdedup snapshot empty@a
    run -0 nbdedup drift empty@a
    assert_eq "$output" "empty@a and no clones: 0 B logical, 0 B distinct (0 B stored)"
    nbdedup clone empty@a twin
    run -0 nbdedup drift empty@a
    assert_eq "${lines[0]}" "empty@a and 1 clone: 0 B logical, 0 B distinct (0 B stored)"
    [[ ${lines[2]} =~ ^twin\ +0B\ +0B\ +-\ +0B\ +-\ +0B\ +-\ +0B\ +-\ +1.00M\ +0B$ ]]
    [[ $output != *ratio* ]]
}

# without_names: a document without the members that the destroy of a golden
# image changes.
without_names ()
{
    jq 'del (.golden, .time)'
}

is_merged ()
{
    nbdedup drift --json | jq -e '.goldens[0].golden_merged'
}

@test "a golden image that was destroyed stays as long as a clone lives" {
    make_fleet
    nbdedup drift golden@v1 --record --json | without_names \
                                                >"$BATS_TEST_TMPDIR/before"
    run -1 nbdedup destroy golden@v1
    nbdedup destroy --force --wait golden@v1

    # By either name, and without one, with a server and without.
    name='golden@v1 (destroyed)'
    for _ in served stopped; do
        for argument in golden@v1 "$name"; do
            nbdedup drift "$argument" --json >"$BATS_TEST_TMPDIR/json"
            assert_eq "$(jq -r .golden "$BATS_TEST_TMPDIR/json")" "$name"
            without_names <"$BATS_TEST_TMPDIR/json" |
                diff - "$BATS_TEST_TMPDIR/before"
        done
        nbdedup drift --json | jq '.goldens[0]' | without_names |
            diff - "$BATS_TEST_TMPDIR/before"
        run -0 nbdedup drift
        assert_eq "${lines[0]%%:*}" "$name and 3 clones"
        stop
    done

    # Its history continues.
    nbdedup drift --record >/dev/null
    for argument in golden@v1 "$name"; do
        run -0 nbdedup drift --history "$argument" --json
        assert_eq "$(jq -c '[.samples[].golden]' <<<"$output")" \
                  "[\"golden@v1\",\"$name\"]"
    done
    nbdedup stat --prometheus |
        grep "^nbdedup_drift_clones{golden=\"golden@v1 (destroyed)\"}"

    # Another snapshot takes the name, but the clones are still the old one's.
    nbdedup snapshot golden@v1
    nbdedup drift golden@v1 --json | jq -e '.clones == []'
    nbdedup drift "$name" --json | without_names |
        diff - "$BATS_TEST_TMPDIR/before"
    run -1 --separate-stderr nbdedup drift 'golden@v2 (destroyed)'
    assert_eq "${#stderr_lines[@]}" 1

    # It merges with the last clone, and disappears with it.
    nbdedup destroy -r golden --wait
    nbdedup drift "$name" --json | without_names |
        diff - "$BATS_TEST_TMPDIR/before"
    nbdedup destroy web2 web3 --wait
    wait_for 20 is_merged
    run -0 nbdedup drift golden@v1
    assert_eq "${lines[0]%%:*}" "$name and 1 clone"
    [[ ${lines[2]} == "the destroyed snapshot has merged with a clone"* ]]
    nbdedup destroy web1
    run -0 nbdedup drift
    assert_eq "$output" "no golden images: no volume is a clone of a snapshot"
}

# record_at TIME: take a sample of all golden images at a time in the past.
record_at ()
{
    CLOCK=$(date -u -d "$1" +%s) "$test_programs/rigs/engine-call" "$pool" \
        drift '{"record":true}' >/dev/null
}

# make_image NAME KIB CLONES: a golden image of so much data.
make_image ()
{
    random_data "$2K" "$2" >"$BATS_TEST_TMPDIR/image"
    nbdedup import "${1%@*}" "$BATS_TEST_TMPDIR/image"
    nbdedup snapshot "$1"
    nbdedup clone "$1" "of$2-" --count "$3" >/dev/null
}

# make_namesakes: two golden images that were both g@1 when they were destroyed.
# The first has three samples, over three days, the second has one.
make_namesakes ()
{
    make_pool
    make_image g@1 64 3
    record_at "5 days ago"
    record_at "4 days ago"
    nbdedup destroy --force g@1
    nbdedup destroy g
    make_image g@1 32 1
    record_at "2 days ago"
    nbdedup destroy --force g@1
}

# without_gnuplot COMMAND...: with a program in its place that draws nothing, and
# keeps what it was to draw.
without_gnuplot ()
{
    mkdir -p "$BATS_TEST_TMPDIR/bin"
    cat >"$BATS_TEST_TMPDIR/bin/gnuplot" <<END
#!/bin/sh
cat >"$BATS_TEST_TMPDIR/script"
yes '<svg></defs></svg>' | head -n 100
END
    chmod +x "$BATS_TEST_TMPDIR/bin/gnuplot"
    PATH="$BATS_TEST_TMPDIR/bin:$PATH" "$@"
}

@test "golden images that had one name have charts of their own samples" {
    make_namesakes
    without_gnuplot nbdedup drift --svg "$BATS_TEST_TMPDIR/x.svg"
    # The eighth column has the logical bytes of an image and its clones.  Each
    # sample is a point, and so are the two ends of a chart.
    assert_eq "$(awk '/^\$fleet <</ { print "chart" }
                      NF == 11 && /^[0-9]/ { print $8 }' \
                     "$BATS_TEST_TMPDIR/script" | uniq -c | xargs)" \
              "1 chart 6 262144 1 chart 4 65536"
}

# parts: the heads of the parts of a history, without the days, and the rows of
# their tables as the numbers of clones.
parts ()
{
    sed -nE 's/^([^ ].*): ([0-9]+) samples?, .*/\1: \2:/p
             s/^20[^ ]* [^ ]* +([0-9]+) .*/\1/p' | xargs
}

@test "the history of an image is one, whatever its names, and another's is another" {
    make_pool
    make_image golden@v1 64 3
    record_at "5 days ago"
    record_at "4 days ago"
    nbdedup rename golden old
    make_image golden@v1 32 1
    record_at "3 days ago"
    assert_eq "$(nbdedup drift --history | parts)" \
              "golden@v1: 1: 1 old@v1: 3: 3 3 3"
    assert_eq "$(nbdedup drift --history old@v1 | parts)" "old@v1: 3: 3 3 3"
    assert_eq "$(nbdedup drift --history golden@v1 | parts)" "golden@v1: 1: 1"
    nbdedup destroy --force old@v1 golden@v1
    record_at "2 days ago"
    assert_eq "$(nbdedup drift --history | parts)" \
              "golden@v1 (destroyed): 2: 1 1 old@v1 (destroyed): 4: 3 3 3 3"
    # JSON and CSV keep the recorded names, and tell the images apart.
    nbdedup drift --history --json >"$BATS_TEST_TMPDIR/samples"
    assert_eq "$(jq -r '.samples | group_by (.golden_id)[] | map (.golden) | join (" ")' \
                     "$BATS_TEST_TMPDIR/samples" | sed 's/ (destroyed)/!/g')" \
              "golden@v1 golden@v1 old@v1 old@v1!"$'\n'"golden@v1 golden@v1!"
    assert_eq "$(nbdedup drift --history --csv | tr -d '\r' | grep ,fleet, |
                     awk -F, '{ print $1 "," $NF }')" \
              "$(jq -r '.samples[] | "\(.golden),\(.golden_id)"' \
                     "$BATS_TEST_TMPDIR/samples")"
}

@test "golden images that had one name have forecasts of their own" {
    [ -x "$NBDEDUP_LIBEXEC/nbdedup-files" ] || skip "this build has no libtsk"
    make_namesakes
    without_gnuplot nbdedup drift --files --html "$BATS_TEST_TMPDIR/page.html"
    assert_eq "$(grep -o 'too few samples: . over . days' \
                      "$BATS_TEST_TMPDIR/page.html" | cut -d ' ' -f 4- | xargs)" \
              "4 over 5 days 2 over 2 days"
}

@test "JSON has the keys that were promised" {
    make_fleet
    one="$BATS_TEST_TMPDIR/one.json"
    nbdedup drift golden@v1 --json >"$one"
    assert_eq "$(jq -r 'keys | join (" ")' "$one")" \
              "block_size clones fleet golden golden_blocks golden_id time"
    assert_eq "$(jq -r '[.clones[] | keys | join (" ")] | unique[]' "$one")" \
              "golden_moved golden_same logical name only_here_bytes sibling unique zero"
    assert_eq "$(jq -r '.fleet | keys | join (" ")' "$one")" \
              "dedup_ratio distinct distinct_stored_bytes logical"
    assert_eq "$(jq -c '.clones[] | [.name, .zero, .golden_same, .golden_moved,
                     .sibling, .unique, .logical, .only_here_bytes]' "$one")" \
'["web1",64,336,16,64,32,448,524288]
["web2",0,448,0,64,0,512,0]
["web3",0,512,0,0,0,512,0]'
    assert_eq "$(nbdedup drift --json | jq -c '.goldens | map (del (.time))')" \
              "$(jq -c '[del (.time)]' "$one")"
    now=$(date +%s)
    assert_num "$(jq .time "$one") > $now - 600 && $(jq .time "$one") <= $now"
}

@test "golden images and clones come by name, whichever was made first" {
    make_pool
    for volume in m z; do
        nbdedup create $volume 1M
        nbdedup snapshot $volume@b
        nbdedup snapshot $volume@a
        nbdedup clone $volume@b ${volume}2
        nbdedup clone $volume@a ${volume}1
        nbdedup clone $volume@b ${volume}0
    done
    nbdedup rename z a
    assert_eq "$(nbdedup drift --json |
                     jq -c '[.goldens[] | [.golden, .clones[].name]]')" \
              '[["a@a","z1"],["a@b","z0","z2"],["m@a","m1"],["m@b","m0","m2"]]'
    assert_eq "$(nbdedup drift | grep -o '^.@.')" $'a@a\na@b\nm@a\nm@b'
}

@test "CSV is read by others, and every row adds up" {
    need python3 --version
    make_fleet
    nbdedup drift --record >/dev/null
    nbdedup drift --csv >"$BATS_TEST_TMPDIR/now.csv"
    nbdedup drift --csv --history >"$BATS_TEST_TMPDIR/history.csv"
    fixture --clones 4 --samples 5 | forms csv >"$BATS_TEST_TMPDIR/long.csv"
    python3 - "$BATS_TEST_TMPDIR" <<'END'
import csv, datetime, sys

def read(name):
    with open("%s/%s" % (sys.argv[1], name), newline="") as f:
        text = f.read()
    assert text.count("\r\n") == text.count("\n"), "line ends"
    rows = list(csv.DictReader(text.splitlines(True), strict=True))
    for r in rows:
        assert None not in r and None not in r.values(), r
        datetime.datetime.strptime(r["time"], "%Y-%m-%dT%H:%M:%SZ")
        classes = sum(int(r[k + "_bytes"]) for k in
                      ("golden_same", "golden_moved", "sibling", "unique"))
        if r["kind"] == "clone":
            assert int(r["logical_bytes"]) == classes, r
            assert r["golden_bytes"] == r["dedup_ratio"] == "", r
        else:
            assert r["kind"] == "fleet" and r["name"] == "", r
            assert int(r["logical_bytes"]) == classes + \
                int(r["golden_bytes"]), r
            assert abs(float(r["dedup_ratio"]) - int(r["logical_bytes"]) /
                       int(r["distinct_bytes"])) < 1e-9, r
            assert r["only_here_bytes"] == "", r
    return rows

now = read("now.csv")
assert [r["name"] for r in now] == ["web1", "web2", "web3", ""], now
assert now[0]["unique_bytes"] == "524288", now[0]
assert now[0]["zero_bytes"] == "1048576", now[0]
assert now[0]["only_here_bytes"] == "524288", now[0]
history = read("history.csv")
assert [dict(r, time="") for r in history] == [dict(r, time="") for r in now]
rows = read("long.csv")
fleet = [r for r in rows if r["kind"] == "fleet"]
assert len(fleet) == 5, fleet
assert [r["time"] for r in fleet] == sorted(r["time"] for r in fleet)
END
    # Names with a separator need quotes.
    fixture --clones 1 --samples 1 --name 'a,"b"' | forms csv >"$BATS_TEST_TMPDIR/odd.csv"
    grep -qF ',clone,"a,""b""",' "$BATS_TEST_TMPDIR/odd.csv"
}

@test "--if-destroyed takes all words up to the next option" {
    make_fleet
    run -0 nbdedup drift --if-destroyed web1 web2
    assert_eq "$output" "destroying web1, web2 gives back 1.50 MiB (stored)"
    run -0 nbdedup drift golden@v1 --if-destroyed web1
    assert_eq "${lines[0]%%:*}" "golden@v1 and 3 clones"
    assert_eq "${lines[-1]}" "destroying web1 gives back 512 KiB (stored)"
    # The name of the golden image may come later.
    run -0 nbdedup drift --if-destroyed web2 web1 --memory 4M golden@v1 --json
    assert_eq "$(jq -c '[.golden, .if_destroyed.freed_bytes]' <<<"$output")" \
              '["golden@v1",1572864]'
    assert_eq "$(jq -c '.if_destroyed.names | sort' <<<"$output")" \
              '["web1","web2"]'
    assert_eq "$(nbdedup drift --if-destroyed web1 --json | jq -c .)" \
              '{"if_destroyed":{"names":["web1"],"freed_bytes":524288}}'
    # A volume goes together with its snapshots, whether it belongs to a golden
    # image or not.
    nbdedup import alone "$BATS_TEST_TMPDIR/own"
    nbdedup snapshot alone@a
    nbdedup snapshot alone@b
    run -0 nbdedup drift --if-destroyed alone web1
    assert_eq "$output" "destroying alone, web1 (and 2 snapshots) gives back 512 KiB (stored)"
    run -1 nbdedup drift --if-destroyed web1 nobody
    assert_eq "$output" "nbdedup: drift: there is no volume 'nobody'"
}

@test "samples are kept with --record, and shown with --history" {
    make_fleet
    run -1 nbdedup drift --history nothing@v1
    assert_eq "${#lines[@]}" 1
    nbdedup drift --record --json golden@v1 >"$BATS_TEST_TMPDIR/1"
    qemu-io -f raw "$(uri_of web3)" -c 'write -q -P 7 0 16K' -c flush
    run -0 nbdedup drift --record
    [[ ${lines[0]} == "golden@v1 and 3 clones: "* ]]
    nbdedup drift --record --history --json >"$BATS_TEST_TMPDIR/all"
    assert_eq "$(jq '.samples | length' "$BATS_TEST_TMPDIR/all")" 3
    assert_eq "$(jq -cS '.samples[0]' "$BATS_TEST_TMPDIR/all")" \
              "$(jq -cS . "$BATS_TEST_TMPDIR/1")"
    assert_eq "$(jq -c '[.samples[].clones[2].unique]' "$BATS_TEST_TMPDIR/all")" \
              '[0,1,1]'
    # drift without --record adds no sample.
    nbdedup drift >/dev/null
    assert_eq "$(nbdedup drift --history golden@v1 --json | jq -c .)" \
              "$(jq -c . "$BATS_TEST_TMPDIR/all")"
    run -0 nbdedup drift --history
    [[ ${lines[0]} == "golden@v1: 3 samples, 20"* ]]
    assert_eq "$(tail -n 3 <<<"$output" | awk '{ print $3, $NF }')" \
'3 3.26
3 3.26
3 3.26'
}

# metrics [NAME]: print drift's metrics, after checking the form of all metrics:
# names, labels and numbers; the lines of a metric are together, below one HELP
# and TYPE; no line occurs twice.
metrics ()
{
    nbdedup stat --prometheus "$@" >"$BATS_TEST_TMPDIR/metrics"
    awk '/^# HELP [a-z_]+ [^ ].*[.]$/ {
             if (seen[$3]++) exit 1; now = $3; next }
         /^# TYPE [a-z_]+ (gauge|counter)$/ { if ($3 != now) exit 1; next }
         !/^[a-z_]+({([a-z]+="[^"\\]*",?)+})? ([0-9.e+-]+|NaN)$/ { exit 1 }
         { name = $1; sub (/{.*/, "", name)
           if (name != now || series[$1]++) exit 1 }' \
        "$BATS_TEST_TMPDIR/metrics" || fail "$(<"$BATS_TEST_TMPDIR/metrics")"
    if command -v promtool >/dev/null; then
        promtool check metrics <"$BATS_TEST_TMPDIR/metrics"
    fi
    grep '^nbdedup_drift_' "$BATS_TEST_TMPDIR/metrics" || :
}

@test "stat --prometheus has the newest samples, and measures nothing" {
    make_fleet
    assert_eq "$(metrics)" ""
    nbdedup drift --record >/dev/null
    qemu-io -f raw "$(uri_of web3)" -c 'write -q -P 7 0 64K' -c flush
    json=$(nbdedup drift --record --json)
    # This change is not in the history.
    qemu-io -f raw "$(uri_of web3)" -c 'write -q -P 8 0 1M' -c flush
    expected=$(cat <<END
nbdedup_drift_sample_timestamp_seconds{golden="golden@v1"} $(
    jq '.goldens[0].time' <<<"$json")
nbdedup_drift_clones{golden="golden@v1"} 3
nbdedup_drift_golden_bytes{golden="golden@v1"} 8388608
nbdedup_drift_logical_bytes{golden="golden@v1"} 32505856
nbdedup_drift_distinct_bytes{golden="golden@v1"} 9977856
nbdedup_drift_distinct_stored_bytes{golden="golden@v1"} 9977856
nbdedup_drift_dedup_ratio{golden="golden@v1"} 3.2577996715927751
nbdedup_drift_clone_bytes{golden="golden@v1",clone="web1",class="golden_same"} 5505024
nbdedup_drift_clone_bytes{golden="golden@v1",clone="web1",class="golden_moved"} 262144
nbdedup_drift_clone_bytes{golden="golden@v1",clone="web1",class="sibling"} 1048576
nbdedup_drift_clone_bytes{golden="golden@v1",clone="web1",class="unique"} 524288
nbdedup_drift_clone_bytes{golden="golden@v1",clone="web1",class="zero"} 1048576
nbdedup_drift_clone_bytes{golden="golden@v1",clone="web2",class="golden_same"} 7340032
nbdedup_drift_clone_bytes{golden="golden@v1",clone="web2",class="golden_moved"} 0
nbdedup_drift_clone_bytes{golden="golden@v1",clone="web2",class="sibling"} 1048576
nbdedup_drift_clone_bytes{golden="golden@v1",clone="web2",class="unique"} 0
nbdedup_drift_clone_bytes{golden="golden@v1",clone="web2",class="zero"} 0
nbdedup_drift_clone_bytes{golden="golden@v1",clone="web3",class="golden_same"} 8323072
nbdedup_drift_clone_bytes{golden="golden@v1",clone="web3",class="golden_moved"} 0
nbdedup_drift_clone_bytes{golden="golden@v1",clone="web3",class="sibling"} 0
nbdedup_drift_clone_bytes{golden="golden@v1",clone="web3",class="unique"} 65536
nbdedup_drift_clone_bytes{golden="golden@v1",clone="web3",class="zero"} 0
nbdedup_drift_clone_only_here_bytes{golden="golden@v1",clone="web1"} 524288
nbdedup_drift_clone_only_here_bytes{golden="golden@v1",clone="web2"} 0
nbdedup_drift_clone_only_here_bytes{golden="golden@v1",clone="web3"} 16384
END
)
    assert_eq "$(metrics)" "$expected"
    # The same without a server.
    stop
    assert_eq "$(metrics)" "$expected"
    assert_eq "$(metrics golden@v1)" "$expected"
    # For a clone: its golden images, with this clone only.
    assert_eq "$(metrics web2)" "$(grep -v 'clone="web[13]"' <<<"$expected")"
    assert_eq "$(metrics golden)" ""
    # It has its present name, even if another golden image has the old one.
    nbdedup rename golden old
    nbdedup create golden 1M
    nbdedup snapshot golden@v1
    nbdedup clone golden@v1 empty
    assert_eq "$(metrics)" "${expected//golden@v1/old@v1}"
    assert_eq "$(metrics golden@v1)" ""
    nbdedup drift golden@v1 --record >/dev/null
    metrics golden@v1 |
        grep -xF 'nbdedup_drift_dedup_ratio{golden="golden@v1"} NaN'
    # A golden image without clones has no metrics, and nothing in JSON.
    nbdedup destroy empty
    assert_eq "$(metrics)" "${expected//golden@v1/old@v1}"
    assert_eq "$(nbdedup stat --json | jq -c keys)" '["pool","volumes"]'
}

@test "a history that is too long for one answer is shown in full" {
    make_pool
    nbdedup create golden 1M
    nbdedup snapshot golden@v1
    nbdedup clone golden@v1 "$(printf '%0240d' 0)" --count 1000 >/dev/null
    for _ in {1..55}; do
        nbdedup drift --record >/dev/null
    done
    nbdedup drift --history --json | jq -c . >"$BATS_TEST_TMPDIR/all"
    # The engine returns 16 MiB at a time.
    assert_num "$(stat -c %s "$BATS_TEST_TMPDIR/all") > 17 * 1048576"
    assert_eq "$(jq '.samples | length' "$BATS_TEST_TMPDIR/all")" 55
    assert_eq "$(jq '.samples | map (.time) | . == sort' "$BATS_TEST_TMPDIR/all")" true
}

@test "the history is a line of blocks, and a table in local time" {
    # 8 days, each with a little more: the line rises, the ratio falls.
    fixture --clones 2 --samples 9 --days 8 >"$BATS_TEST_TMPDIR/samples"
    export TZ=UTC
    LC_ALL=C.UTF-8 forms history <"$BATS_TEST_TMPDIR/samples" >"$BATS_TEST_TMPDIR/utf8"
    LC_ALL=C forms history <"$BATS_TEST_TMPDIR/samples" >"$BATS_TEST_TMPDIR/ascii"
    run -0 cat "$BATS_TEST_TMPDIR/utf8"
    assert_eq "${lines[0]}" "golden@v1: 9 samples, 2026-01-01 to 2026-01-09"
    assert_eq "${lines[1]}" "distinct  ▁▁▁▁▁▁▁▂▂▂▂▂▂▂▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▄▄▄▄▄▄▄▄▅▅▅▅▅▅▅▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆█  1.53 GiB to 2.11 GiB"
    assert_eq "${lines[2]}" "ratio     ███████▇▇▇▇▇▇▇▆▆▆▆▆▆▆▆▅▅▅▅▅▅▅▄▄▄▄▄▄▄▄▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▂▂▂▂▂▂▂▁  3.00 to 2.38"
    assert_eq "$(sed -n '5p' "$BATS_TEST_TMPDIR/utf8")" \
              "TIME                 CLONES  LOGICAL  DISTINCT  STORED   SAME  MOVED  SIBLING  UNIQUE  RATIO"
    assert_eq "$(sed -n 6p "$BATS_TEST_TMPDIR/utf8")" "2026-01-01 00:00:00       2    4.58G     1.53G    694M  3.05G     0B       0B      0B   3.00"
    run ! grep -P '[^\x00-\x7f]' "$BATS_TEST_TMPDIR/ascii"
    run -0 cat "$BATS_TEST_TMPDIR/ascii"
    assert_eq "${lines[1]}" "distinct  _______.......---------------::::::::=======+++++++++++++++#  1.53 GiB to 2.11 GiB"
    TZ=Asia/Tokyo forms history <"$BATS_TEST_TMPDIR/samples" |
        grep -q '^2026-01-01 09:00:00 '
    # Distant samples stay apart: after 1 day, then after 99.
    jq -c '.[0:3] | .[1].time = .[0].time + 86400 |
           .[2].time = .[0].time + 8640000' "$BATS_TEST_TMPDIR/samples" |
        LC_ALL=C forms history >"$BATS_TEST_TMPDIR/far"
    assert_eq "$(sed -n 2p "$BATS_TEST_TMPDIR/far")" \
              "distinct  :::::::::::::::::::::::::::::::::::::::::::::::::::::::::::#  1.53 GiB to 1.67 GiB"
}

@test "a clock that was set back spoils nothing" {
    need gnuplot --version
    fixture --clones 2 --samples 4 | jq -c '[.[0, 2, 1, 3]]' >"$BATS_TEST_TMPDIR/back"
    fixture --clones 2 --samples 4 | forms history >"$BATS_TEST_TMPDIR/a"
    forms history <"$BATS_TEST_TMPDIR/back" >"$BATS_TEST_TMPDIR/b"
    assert_eq "$(cat "$BATS_TEST_TMPDIR/b")" "$(cat "$BATS_TEST_TMPDIR/a")"
    fixture --clones 2 --samples 4 | forms svg "$BATS_TEST_TMPDIR/a.svg"
    forms svg "$BATS_TEST_TMPDIR/b.svg" <"$BATS_TEST_TMPDIR/back"
    cmp "$BATS_TEST_TMPDIR/a.svg" "$BATS_TEST_TMPDIR/b.svg"
}

@test "samples are told oldest first, also after a clock was set back" {
    make_pool
    nbdedup create golden 1M
    nbdedup snapshot golden@v1
    nbdedup clone golden@v1 web
    for day in 3 1 2; do
        CLOCK=$(date -u -d "2026-01-0$day" +%s) "$test_programs/rigs/engine-call" \
            "$pool" drift '{"record":true}' >/dev/null
    done
    assert_eq "$(nbdedup drift --history --json |
                     jq -r '.samples[].time | strftime ("%d")' | xargs)" "01 02 03"
    assert_eq "$(nbdedup drift --history --csv | grep fleet | cut -c 11-20 | xargs)" \
              "2026-01-01 2026-01-02 2026-01-03"
}

@test "shares are rounded, but a little is not nothing and not all" {
    fixture --clones 1 --samples 1 | jq -c '.[0] | [.clones[0] |=
        (.golden_same = 99990 | .golden_moved = 0 | .sibling = 4 |
         .unique = 6 | .logical = 100000) | .]' | forms text >"$BATS_TEST_TMPDIR/text"
    grep -qF '>99 % as in the golden image, 0 % moved, <1 % only among siblings, <1 % unique' \
         "$BATS_TEST_TMPDIR/text"
}

@test "--svg draws each golden image, without scripts and references" {
    need gnuplot --version
    need python3 --version
    file="$BATS_TEST_TMPDIR/chart.svg"
    make_fleet
    run -0 nbdedup drift --svg "$file"
    assert_eq "$output" ""
    check_xml "$file"
    grep -qF '>golden@v1: bytes of the image and its clones<' "$file"
    grep -qF "what the clones' bytes are" "$file"
    grep -qF '>golden@v1: dedup ratio<' "$file"
    for class in '  0, 114, 178' ' 86, 180, 233' '230, 159,   0' '213,  94,   0'; do
        grep -qF "polygon fill = 'rgb($class)'" "$file" || fail "$class"
    done
    # A second chart, below the first; to stdout.
    nbdedup snapshot web1@gold
    nbdedup clone web1@gold deep
    nbdedup drift --svg - >"$BATS_TEST_TMPDIR/two.svg"
    check_xml "$BATS_TEST_TMPDIR/two.svg"
    assert_eq "$(grep -c 'dedup ratio<' "$BATS_TEST_TMPDIR/two.svg")" 2
    nbdedup drift web1@gold --svg - >"$BATS_TEST_TMPDIR/one.svg"
    assert_eq "$(grep -c 'dedup ratio<' "$BATS_TEST_TMPDIR/one.svg")" 1
    # Names are plain text for gnuplot and in XML.
    fixture --golden "a'b <i>&_{x}\`id\`" --clones 2 --samples 3 |
        forms svg "$BATS_TEST_TMPDIR/odd.svg"
    check_xml "$BATS_TEST_TMPDIR/odd.svg"
    grep -qF "a'b &lt;i>&amp;_{x}\`id\`: dedup ratio" "$BATS_TEST_TMPDIR/odd.svg"
    fixture --golden $'a\nb\\' --clones 2 --samples 3 |
        forms svg "$BATS_TEST_TMPDIR/odd.svg"
    check_xml "$BATS_TEST_TMPDIR/odd.svg"
    grep -qF '>a b\: dedup ratio<' "$BATS_TEST_TMPDIR/odd.svg"
    # The longest possible name leaves room for the text after it.
    local name

    name=$(printf 'n%.0s' {1..255})
    fixture --golden "a$name@${name}z" --clones 2 --samples 3 |
        forms svg "$BATS_TEST_TMPDIR/long.svg"
    check_xml "$BATS_TEST_TMPDIR/long.svg"
    assert_eq "$(grep -cE ">an{23}…n{23}z: (bytes|what|dedup)" \
                      "$BATS_TEST_TMPDIR/long.svg")" 3
}

# labels FILE: the title of each chart, and the labels of its axes.
labels ()
{
    python3 - "$1" <<'END'
import re
import sys
with open(sys.argv[1], encoding="utf-8") as f:
    for name, body in re.findall(
            r'<svg[^>]* aria-label(?:ledby)?="([^"]*)"[^>]*>(.*?)</svg>',
            f.read(), re.DOTALL):
        print(name + ": " + "|".join(re.findall("<text>([^<]*)</text>", body)))
END
}

@test "the axis of time has times on a pool's first day, in this time zone" {
    local form minutes

    need gnuplot --version
    need python3 --version
    # From 17:46:40 in UTC; the shortest has no full hour.
    for minutes in 0.1 12 58 300 1430; do
        fixture --clones 2 --samples 4 --start 1795283200 \
                --days "$(jq -n "$minutes / 1440")" >"$BATS_TEST_TMPDIR/first"
        for form in svg html; do
            TZ=Asia/Kolkata forms "$form" "$BATS_TEST_TMPDIR/x.$form" \
                <"$BATS_TEST_TMPDIR/first"
            labels "$BATS_TEST_TMPDIR/x.$form" >"$BATS_TEST_TMPDIR/labels"
            run ! grep -F 'e+' "$BATS_TEST_TMPDIR/labels"
            # Each chart has at least two times, and the date once or twice.
            awk -F '[|]' '{ n = dates = 0
                            for (i = 1; i <= NF; ++i) {
                                n += $i ~ /[0-2][0-9]:[0-5][0-9](:[0-5][0-9])?$/
                                dates += $i ~ /2[12] Nov 2026/
                            }
                            if (n < 2 || n > 3 * 14 || dates < 1) exit 1 }
                          END { if (NR == 0) exit 1 }' "$BATS_TEST_TMPDIR/labels" ||
                fail "$minutes: $(cat "$BATS_TEST_TMPDIR/labels")"
        done
    done
    fixture --clones 2 --samples 4 --start 1795283200 --days 0.008 |
        TZ=Asia/Kolkata forms svg "$BATS_TEST_TMPDIR/x.svg"
    [[ $(labels "$BATS_TEST_TMPDIR/x.svg") == *"|23:18|23:20|23:22|23:24|23:26|23:28|golden@"*"|21 Nov 2026|"* ]]
    # It has the only sample's own time.
    fixture --clones 2 --samples 1 --start 1795283200 --days 0 |
        TZ=Asia/Kolkata forms svg "$BATS_TEST_TMPDIR/x.svg"
    [[ $(labels "$BATS_TEST_TMPDIR/x.svg") == *"|21 Nov 2026 23:16|"* ]]
}

@test "charts have several tics of time, however long the history is" {
    local days

    need gnuplot --version
    need python3 --version
    for days in 1.1 2 4 7 14 30 42 60 100 183 365 800 3000 7000; do
        fixture --clones 3 --samples 20 --days "$days" |
            forms html "$BATS_TEST_TMPDIR/x.html"
        labels "$BATS_TEST_TMPDIR/x.html" >"$BATS_TEST_TMPDIR/labels"
        assert_eq "$(wc -l <"$BATS_TEST_TMPDIR/labels")" 9
        # There is one label for each 60 pixels.
        awk -F '[|]' '{ n = 0
                        for (i = 1; i <= NF; ++i)
                            n += $i ~ /^([0-2][0-9]:00|([0-9]+ )?[A-Z][a-z][a-z]( 20[0-9][0-9])?|20[0-9][0-9])$/
                        if ($0 ~ /:.*:/) n /= 2
                        if (n < 2 || n > ($0 ~ /of all/ ? 9 : 5)) exit 1 }' \
            "$BATS_TEST_TMPDIR/labels" || fail "$days: $(cat "$BATS_TEST_TMPDIR/labels")"
    done
    fixture --clones 3 --samples 20 --days 42 | forms html "$BATS_TEST_TMPDIR/x.html"
    labels "$BATS_TEST_TMPDIR/x.html" >"$BATS_TEST_TMPDIR/labels"
    assert_eq "$(grep -c '^Composition over time of [a-z]*: .*|1 Jan|15 Jan|29 Jan|12 Feb$' \
                      "$BATS_TEST_TMPDIR/labels")" 3
}

@test "a line that is dashed is so in its legend" {
    need gnuplot --version
    fixture --clones 2 --samples 4 >"$BATS_TEST_TMPDIR/samples"
    forms svg "$BATS_TEST_TMPDIR/x.svg" <"$BATS_TEST_TMPDIR/samples"
    forms html "$BATS_TEST_TMPDIR/x.html" <"$BATS_TEST_TMPDIR/samples"
    run -0 grep -c stroke-dasharray "$BATS_TEST_TMPDIR/x.svg"
    assert_eq "$output" 2
    # The first line of a colour is the legend's, which has room for more than
    # two dashes: those of logical and of stored bytes.
    for colour in '128, 128, 128' '  0, 158, 115'; do
        grep -oP "rgb\\($colour\\)' +stroke-dasharray='\\K.*" "$BATS_TEST_TMPDIR/x.svg" |
            tr -c '0-9.\n' ' ' >"$BATS_TEST_TMPDIR/dashes"
        awk '{ ok = $5 - $3 > 2 * ($1 + $2); exit } END { exit !ok }' \
            "$BATS_TEST_TMPDIR/dashes" || fail "$(cat "$BATS_TEST_TMPDIR/dashes")"
    done
    # In the page: the logical bytes, twice the stored ones, and the second
    # clone; their legends have gaps as well.
    assert_eq "$(grep -c stroke-dasharray "$BATS_TEST_TMPDIR/x.html")" 4
    assert_eq "$(grep -oP '^\.line\.\K[a-z]+(?=\{.*transparent)' \
                      "$BATS_TEST_TMPDIR/x.html" | xargs)" "logical stored"
    assert_eq "$(grep -o 'key line" style="[^"]*transparent' \
                      "$BATS_TEST_TMPDIR/x.html" | wc -l)" 1
    grep -qP "stroke='rgb\\(128, 128, 128\\)' stroke-dasharray" "$BATS_TEST_TMPDIR/x.html"
}

@test "axes of bytes have whole bytes, and one tick without any" {
    need gnuplot --version
    need python3 --version
    # shellcheck disable=SC2016
    document='[{"golden": "e@a", "time": 1795283200, "block_size": $b, "golden_blocks": $n,
                "clones": [{"name": "c", "zero": 9, "golden_same": 0, "golden_moved": 0,
                            "sibling": 0, "unique": $n, "logical": $n, "only_here_bytes": 0}],
                "fleet": {"logical": (2 * $n), "distinct": $n, "dedup_ratio": null,
                          "distinct_stored_bytes": ($n * 3)}}]'
    for n in 0 1 2; do
        for form in svg html; do
            jq -n --argjson b 512 --argjson n "$n" "$document" |
                forms "$form" "$BATS_TEST_TMPDIR/x.$form"
            labels "$BATS_TEST_TMPDIR/x.$form" >"$BATS_TEST_TMPDIR/labels"
            run ! grep -P '[0-9]\.[0-9]+ (B|KiB)' "$BATS_TEST_TMPDIR/labels"
            grep -qP '\|[0-9]+ (B|KiB)\|' "$BATS_TEST_TMPDIR/labels"
        done
    done
    jq -n --argjson b 512 --argjson n 0 "$document" | forms html "$BATS_TEST_TMPDIR/x.html"
    labels "$BATS_TEST_TMPDIR/x.html" >"$BATS_TEST_TMPDIR/labels"
    assert_eq "$(grep -oP '[0-9.]+ [KMG]?i?B(?=\|)' "$BATS_TEST_TMPDIR/labels" | sort -u | xargs)" \
              "0 B 1 B"
}

@test "no golden images, no clones, no data: charts are files all the same" {
    need gnuplot --version
    make_pool
    for step in 'create empty 1M' 'snapshot empty@a' 'clone empty@a b'; do
        nbdedup drift --svg "$BATS_TEST_TMPDIR/x.svg" --html "$BATS_TEST_TMPDIR/x.html"
        check_xml "$BATS_TEST_TMPDIR/x.svg"
        grep -q '^</html>$' "$BATS_TEST_TMPDIR/x.html"
        read -ra args <<<"$step"
        nbdedup "${args[@]}"
    done
    nbdedup drift --svg "$BATS_TEST_TMPDIR/x.svg" --html "$BATS_TEST_TMPDIR/x.html"
    check_xml "$BATS_TEST_TMPDIR/x.svg"
    grep -qF '>empty@a<' "$BATS_TEST_TMPDIR/x.html"
}

@test "files are replaced when they are complete, and else left alone" {
    need gnuplot --version
    file="$BATS_TEST_TMPDIR/page.html"
    make_fleet
    echo old >"$file"
    chmod 640 "$file"
    # Without gnuplot nothing changes.
    mkdir "$BATS_TEST_TMPDIR/bin"
    run -1 env PATH="$BATS_TEST_TMPDIR/bin" "$top_builddir/tools/nbdedup" drift --html "$file"
    assert_eq "$output" "nbdedup: drift: $file: needs gnuplot, which is not installed: install gnuplot (Debian's gnuplot-nox)"
    printf '#!/bin/sh\necho "line 1: too old" >&2\nexit 1\n' >"$BATS_TEST_TMPDIR/bin/gnuplot"
    chmod +x "$BATS_TEST_TMPDIR/bin/gnuplot"
    run -1 env PATH="$BATS_TEST_TMPDIR/bin:$PATH" nbdedup drift --html "$file"
    assert_eq "$output" "nbdedup: drift: $file: line 1: too old"
    # gnuplot's output is not understood.
    printf '#!/bin/sh\necho "<svg></svg>"\n' >"$BATS_TEST_TMPDIR/bin/gnuplot"
    run -1 env PATH="$BATS_TEST_TMPDIR/bin:$PATH" nbdedup drift --html "$file"
    [[ $output == "nbdedup: drift: this version of gnuplot writes SVG "* ]]
    assert_eq "$(cat "$file")" old
    run ! compgen -G "$file.*"
    run -0 nbdedup drift --html "$file"
    assert_eq "$output" ""
    grep -q '^</html>$' "$file"
    assert_eq "$(stat -c %a "$file")" 640
    run ! compgen -G "$file.*"
    # A device stays a device.
    run -0 nbdedup drift --html /dev/null
    [ -c /dev/null ]
    run -1 nbdedup drift --svg /dev/full
    assert_eq "$output" "nbdedup: drift: /dev/full: No space left on device"
    [ -c /dev/full ]
    run -1 nbdedup drift --html "$BATS_TEST_TMPDIR/nowhere/x"
    [[ $output == "nbdedup: drift: $BATS_TEST_TMPDIR/nowhere/x"* ]]
    assert_eq "${#lines[@]}" 1
    # There is no room for the whole page.
    run -1 bash -c "ulimit -f 1; nbdedup drift --html '$file'"
    assert_eq "${#lines[@]}" 1
    grep -q '^</html>$' "$file"
    run ! compgen -G "$file.*"
    # Other output has to be requested.
    run -0 nbdedup drift --html "$file" --csv
    assert_num "${#lines[@]} == 5"
}

@test "an interrupt while charts are drawn leaves nothing behind" {
    file="$BATS_TEST_TMPDIR/page.html"
    make_fleet
    mkdir "$BATS_TEST_TMPDIR/bin"
    printf '#!/bin/sh\necho $$ >"%s"\nexec sleep 300\n' "$BATS_TEST_TMPDIR/drawing" \
           >"$BATS_TEST_TMPDIR/bin/gnuplot"
    chmod +x "$BATS_TEST_TMPDIR/bin/gnuplot"
    PATH="$BATS_TEST_TMPDIR/bin:$PATH" nbdedup drift --html "$file" \
        2>"$BATS_TEST_TMPDIR/err" 3>&- 4>&- &
    wait_for 30 test -s "$BATS_TEST_TMPDIR/drawing"
    kill -TERM $!
    expect_failure $!
    assert_eq "$(cat "$BATS_TEST_TMPDIR/err")" "nbdedup: drift: interrupted"
    wait_for 10 server_is_gone "$(cat "$BATS_TEST_TMPDIR/drawing")"
    run ! compgen -G "$file*"
}

@test "wrong usage exits 2 with one line, and says what to do" {
    make_fleet
    usage ()
    {
        local expected=$1

        shift
        run -2 --separate-stderr nbdedup drift "$@"
        assert_eq "$output" ""
        assert_eq "${#stderr_lines[@]}" 1 "$*: $stderr"
        # shellcheck disable=SC2053   # a pattern
        [[ $stderr == "nbdedup: drift: "$expected" (see 'nbdedup drift --help')" ]] ||
            fail "$*: $stderr"
    }
    usage "'golden' is not a golden image: give a snapshot, as in golden@v1, or no name for all golden images" golden
    usage "'@v1' is not a snapshot's name, NAME@SNAP" @v1
    usage "'golden@' is not a snapshot's name, NAME@SNAP" golden@
    usage "unexpected argument 'web1'" golden@v1 web1
    usage "--json or --csv, not both" --json --csv
    usage "--if-destroyed needs the names of volumes or snapshots" --if-destroyed --json
    for option in --history --csv --html=x --svg=x; do
        usage "--if-destroyed cannot be used with --history, --csv, --html or --svg" \
              --if-destroyed web1 "$option"
    done
    usage "--if-destroyed with --record needs the name of a golden image" \
          --if-destroyed web1 --record
    usage "--html and --svg need different files" --html - --svg -
    usage "only one report can go to standard output" --html - --json
    usage "only one report can go to standard output" --svg - --history
    usage "--html and --svg need different files" --svg same --html same
    usage "--memory cannot be used with --history, which only reads samples" --history --memory 1M
    usage "--memory 'much'*" --memory much
    for size in 0 1K 1023K; do
        usage "--memory '$size': at least 1.00 MiB is needed" --memory $size
    done
    usage "--html needs the name of a file" --html ""
    usage "--svg needs the name of a file" --svg=
    [ ! -e x ] && [ ! -e same ]
    run -1 nbdedup drift golden@v2
    assert_eq "$output" "nbdedup: drift: there is no snapshot 'golden@v2'"
    # A sanitizer reports this as an error.
    if [ -z "$sanitizer_preload" ]; then
        run -1 nbdedup drift --memory 1000T
        [[ $output == "nbdedup: drift: cannot allocate "*" bytes of memory for sorting: allow less" ]]
    fi
    run -0 nbdedup drift --memory 2M golden@v1
}

@test "progress is shown when asked for, output that fails is a failure" {
    make_fleet
    run -0 --separate-stderr nbdedup drift --progress
    assert_eq "${stderr_lines[-1]}" "drift 100%"
    run -0 --separate-stderr nbdedup destroy web1 --dry-run --progress
    assert_eq "${stderr_lines[-1]}" "destroy 100%"
    run -1 --separate-stderr bash -c 'nbdedup drift >/dev/full'
    [[ $stderr == "nbdedup: drift: standard output: "* ]]
    run -1 --separate-stderr bash -c 'nbdedup drift --svg - >/dev/full'
    [[ $stderr == *"nbdedup: "* ]]
}

# SPDX-License-Identifier: BSD-3-Clause
#
# The page of "nbdedup drift --html" in a browser.

# helpers.bash and "run" set what seems to be unset
# shellcheck disable=SC2154

load ../rigs/helpers

setup ()
{
    need python3 --version
    need gnuplot --version
    # Chromium may be installed, but not start, so ask once.
    if [ ! -e "$BATS_FILE_TMPDIR/starts" ]; then
        need timeout 60 chromium --headless --no-sandbox --disable-gpu \
             --user-data-dir="$BATS_TEST_TMPDIR/profile" --dump-dom about:blank
        touch "$BATS_FILE_TMPDIR/starts"
    fi
    page="$BATS_TEST_TMPDIR/page.html"
    seen="$BATS_TEST_TMPDIR/seen"
}

# fixture [OPTION...]: print documents of an invented fleet.
fixture ()
{
    python3 "$top_srcdir/tests/bats/drift-fixture.py" "$@"
}

# open_page PAGE [WIDTH...]
open_page ()
{
    python3 "$top_srcdir/tests/bats/open-page.py" "$1" "$seen" "${@:2}"
}

# is_clean: the page makes no complaints and no requests.
is_clean ()
{
    assert_eq "$(cat "$seen/console")" ""
    assert_eq "$(cat "$seen/requests")" ""
}

# count PATTERN: the number of occurrences in the browser's document.
count ()
{
    grep -o -e "$1" "$seen/dom.html" | wc -l
}

# pixels COLOUR: the number of such pixels in the page.
pixels ()
{
    awk -v c="$1" '$2 == c { n = $1 } END { print n + 0 }' "$seen/colours"
}

@test "this test sees requests, complaints and blank pages" {
    cat >"$page" <<END
<!DOCTYPE html><meta charset=utf-8><title>x</title>
<img src="http://192.0.2.1/a.png"><script>console.error ("oh")</script>
END
    open_page "$page"
    [[ $(cat "$seen/requests") == *"GET http://192.0.2.1/a.png"* ]]
    [[ $(cat "$seen/console") == *'"oh"'* ]]
    assert_eq "$(pixels 0072b2)" 0
    # If the page's policy blocks something, that is a complaint, too.
    fixture --clones 1 --samples 2 |
        "$test_programs/bats/drift-forms" html "$BATS_TEST_TMPDIR/good.html"
    sed 's|<main>|<main><script src="http://192.0.2.1/a.js"></script>|' \
        "$BATS_TEST_TMPDIR/good.html" >"$page"
    open_page "$page"
    [[ $(cat "$seen/console") == *"Content Security Policy"* ]]
    assert_eq "$(cat "$seen/requests")" ""
}

@test "a browser shows all charts of a fleet, and makes no request" {
    fixture --clones 7 --samples 40 |
        "$test_programs/bats/drift-forms" html "$page"
    open_page "$page"
    is_clean
    # Three of the fleet's bytes and ratio, one of how far the clones diverged,
    # two of all clones (for wide and narrow windows), one of each clone.
    assert_eq "$(count '<svg ')" 13
    assert_eq "$(count '<svg [^>]*role="img" aria-label="[^"]*over time of')" 13
    # There are areas and bars of each class, and lines of each kind.
    for colour in 0072b2 56b4e9 e69f00 d55e00; do
        assert_num "$(pixels "$colour") > 300"
    done
    assert_num "$(pixels 009e73) > 30"
    assert_num "$(pixels cc79a7) > 30"
}

@test "with 100 clones the page stays short: the most diverged are shown" {
    fixture --clones 100 --samples 120 --days 700 >"$BATS_TEST_TMPDIR/samples"
    "$test_programs/bats/drift-forms" html "$page" <"$BATS_TEST_TMPDIR/samples"
    assert_num "$(stat -c %s "$page") < 4000000"
    open_page "$page"
    is_clean
    assert_eq "$(count '<svg ')" 106
    assert_eq "$(count '<summary>Each clone, the most diverged first (100)')" 1
    # The table and the charts have this order.
    expected=$(jq -r '.[-1].clones | sort_by (-.sibling - .unique, .name) |
                   .[].name' "$BATS_TEST_TMPDIR/samples")
    rows=$(grep -oP '<th scope="row">\K[^<]*' "$seen/dom.html" | head -n 100)
    charts=$(grep -oP 'aria-label="Composition over time of \K[a-z]+[0-9]*(?=")' \
                  "$seen/dom.html")
    assert_eq "$rows" "$expected"
    assert_eq "$charts" "$expected"
}

@test "with a thousand clones it can still be opened" {
    fixture --clones 1000 --samples 3 |
        "$test_programs/bats/drift-forms" html "$page"
    open_page "$page"
    is_clean
    assert_eq "$(count '<svg ')" 206
    assert_eq "$(count '<summary>Each clone, the most diverged first (200)')" 1
    assert_eq "$(count 'The 800 least diverged are in the table only')" 1
    # There are rows for each clone and their sum, and no others.
    assert_eq "$(count '<th scope="row">')" 1001
}

@test "one sample is shown as bars" {
    fixture --clones 3 --samples 1 |
        "$test_programs/bats/drift-forms" html "$page"
    open_page "$page"
    is_clean
    assert_eq "$(count '<svg ')" 9
    # The bar of all clones alone has more pixels than the table's.
    assert_num "$(pixels 0072b2) > 20000"
    assert_num "$(pixels d55e00) > 1000"
}

@test "nothing is cut off or too small to read, in narrow windows and on paper" {
    local name

    # The name is as long as possible.
    name=$(printf 'n%.0s' {1..255})
    fixture --clones 5 --samples 30 --blocks 800000000 --name "$name" \
            --golden "$name@$name" |
        "$test_programs/bats/drift-forms" html "$page"
    # A4 with margins of 1 cm has 718 pixels; small text must still be readable.
    open_page "$page" 360 700 760 1080 1090 1280 718p
    is_clean
    assert_eq "$(wc -l <"$seen/layout")" 7
    awk '$2 != 0 || $3 < ($1 ~ /p/ ? 5 : 9) { exit 1 }' "$seen/layout" ||
        fail "$(cat "$seen/layout")"
}

@test "on a phone, charts of each clone are folded away; on paper they are not" {
    local clones

    for clones in 2 9; do
        fixture --clones "$clones" --samples 30 --days 42 |
            "$test_programs/bats/drift-forms" html "$page"
        open_page "$page" 360 1280 718p
        # The fleet's three, one with a line for each of six, one of them all.
        assert_eq "$(awk '{ print $1, $4 }' "$seen/layout" | xargs)" \
                  "360 5 1280 5 718p $((clones + 5))"
        assert_eq "$(count '<span class="key line" style=')" \
                  $((clones < 6 ? clones : 6))
    done
    # Too many clones for paper.
    fixture --clones 13 --samples 3 |
        "$test_programs/bats/drift-forms" html "$page"
    open_page "$page" 718p
    assert_eq "$(awk '{ print $4 }' "$seen/layout")" 5
}

@test "whatever a name has in it, it is text" {
    fixture --clones 2 --samples 3 --golden "<img src=x>&'\"" \
            --name '</figcaption><script>console.error("no")</script>' |
        "$test_programs/bats/drift-forms" html "$page"
    open_page "$page"
    is_clean
    assert_eq "$(count '<script')" 0
    assert_eq "$(count '<img')" 0
    assert_eq "$(count '<h2 id="g1">&lt;img src=x&gt;&amp;')" 1
}

@test "a real pool's page shows it, with and without samples" {
    make_pool --block-size 4K
    random_data 1M >"$BATS_TEST_TMPDIR/image"
    nbdedup import golden "$BATS_TEST_TMPDIR/image"
    nbdedup snapshot golden@v1
    nbdedup drift --html "$page"
    open_page "$page"
    is_clean
    assert_eq "$(count 'There are no golden images')" 1
    nbdedup clone golden@v1 web --count 2
    for _ in 1 2; do
        nbdedup drift --record --html "$page"
        open_page "$page"
        is_clean
        assert_eq "$(count '<svg ')" 8
        assert_num "$(pixels 0072b2) > 5000"
    done
}

@test "the forecast is drawn with its interval, in narrow windows too" {
    make_pool --block-size 4K
    random_data 1M >"$BATS_TEST_TMPDIR/image"
    nbdedup import golden "$BATS_TEST_TMPDIR/image"
    nbdedup snapshot golden@v1
    nbdedup clone golden@v1 web --count 2
    "$test_programs/bats/drift-days" "$pool" web1 \
        $(($(date +%s) - 40 * 86400)) 40 16384
    nbdedup drift --ratio-below 1.2 --html "$page"
    open_page "$page" 360 760 1280 718p
    is_clean
    assert_eq "$(count '<svg ')" 10
    assert_eq "$(count '<p>in 30 days: unique ')" 1
    awk '$2 != 0 || $3 < ($1 ~ /p/ ? 5 : 9) { exit 1 }' "$seen/layout" ||
        fail "$(cat "$seen/layout")"
}

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

# open_page PAGE [picture] [WIDTH...]: "picture" for "pixels" without a width.
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

# pixels COLOUR [WIDTH]: the number of such pixels in the page, or in its
# picture of that width.
pixels ()
{
    awk -v c="$1" '$2 == c { n = $1 } END { print n + 0 }' \
        "$seen/${2:+$2.}colours"
}

# fits: at all widths nothing is too wide, nor too small to be read.
fits ()
{
    awk '$2 != 0 || $3 < ($1 ~ /p/ ? 5 : 9) { exit 1 }' "$seen/layout" ||
        fail "$(cat "$seen/layout")"
}

# has_headings NAME...: these, in this order.
has_headings ()
{
    assert_eq "$(grep -oP '<h3[^>]*>\K[^<]*' "$seen/dom.html")" \
              "$(printf '%s\n' "$@")"
}

@test "this test sees requests, complaints and blank pages" {
    cat >"$page" <<END
<!DOCTYPE html><meta charset=utf-8><title>x</title>
<img src="http://192.0.2.1/a.png"><script>console.error ("oh")</script>
END
    open_page "$page" picture
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
    open_page "$page" picture
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
    open_page "$page" picture
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
    fits
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
        open_page "$page" picture
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
    fits
}

@test "with --files: why, what to do and where, light and dark, wide and narrow" {
    local width

    fixture --clones 8 --samples 20 --files |
        "$test_programs/bats/drift-forms" html "$page"
    open_page "$page" 390l 390d 1280l 1280d 360 718p
    is_clean
    fits
    has_headings "What the clones’ bytes are" Why "What to do" \
                 "The most diverged clones" "The fleet over time" \
                 "Now, the most diverged first"
    # Five of six clones with their reasons, and the charts of each clone.
    assert_eq "$(awk '{ print $5 }' "$seen/layout" | sort -u)" 6
    assert_eq "$(count '<details class="reason"')" 6
    assert_eq "$(count 'aria-label="Block map of ')" 6
    assert_eq "$(count '<code>/var/lib/mysql/</code>')" 1
    assert_eq "$(count '<code>/var/lib/mysql/ibdata1</code>')" 6
    assert_eq "$(count '<code>/var/lib/</code>')" 0
    for width in 390l 390d 1280l 1280d; do
        for colour in 0072b2 e69f00 d55e00; do
            assert_num "$(pixels "$colour" $width) > 300"
        done
    done
    # Paper is white, and black.
    assert_num "$(pixels ffffff 390l) > 500000"
    assert_num "$(pixels 14171b 390d) > 500000"
    assert_num "$(pixels ffffff 390d) < 20000"
}

@test "without files and advice the page has no headings for them" {
    fixture --clones 2 --samples 3 |
        "$test_programs/bats/drift-forms" html "$page"
    open_page "$page"
    has_headings "What the clones’ bytes are" "The fleet over time" \
                 "Now, the most diverged first"
}

@test "advice is ranked, with its commands line by line" {
    local line

    fixture --clones 12 --samples 3 --files |
        "$test_programs/bats/drift-forms" html "$page"
    open_page "$page"
    assert_eq "$(grep -oP '<span class="saves">\K[^<]*' "$seen/dom.html" | xargs)" \
              "saves 3.00 GiB saves 5.00 MiB"
    for line in 'in the guest: fstrim -av' 'nbdedup rebase web golden@v2' \
                'nbdedup rebase web golden@v2 --dry-run'; do
        grep -qFx -e "$line" -e "<pre>$line" "$seen/dom.html" || fail "$line"
    done
    assert_eq "$(count '1.00 MiB, and 4 more<')" 1
    # Many commands are folded.
    assert_eq "$(count ' commands</summary>')" 0
    fixture --clones 1 --samples 1 --files |
        jq '.[0].advice[1].commands = [range (1000) | "nbdedup rebase vm\(.) golden@v2"]' |
        "$test_programs/bats/drift-forms" html "$page"
    open_page "$page" 390
    fits
    assert_eq "$(count '<summary>1000 commands</summary>')" 1
    assert_eq "$(count '^nbdedup rebase vm[0-9]* golden@v2$')" 999
    fixture --clones 1 --samples 1 --files | jq '.[0].advice = []' |
        "$test_programs/bats/drift-forms" html "$page"
    open_page "$page"
    assert_eq "$(count 'no step is known that would save space')" 1
}

@test "one clone and a thousand, with files: short, and nothing is too wide" {
    local clones

    for clones in 1 2 50 1000; do
        fixture --clones "$clones" --samples 3 --files |
            "$test_programs/bats/drift-forms" html "$page"
        open_page "$page" 390 1280
        is_clean
        fits
        assert_eq "$(count 'class="reason"')" $((clones < 6 ? clones : 6))
        assert_num "$(stat -c %s "$page") < 5000000"
    done
    # Seven causes, and eight directories.
    assert_eq "$(count '1000 clones: ')" 15
}

@test "whatever a guest's file is called, it is text" {
    fixture --clones 2 --samples 3 --files |
        jq '"<script>console.error (1)</script>&<img src=x>'\''\"" as $x |
            .[-1] |= (.clones[] |= (
                (.files[], .causes[], .packages[]) |=
                    with_entries (if .value | type == "string"
                                  then .value += $x else . end) |
                .notes = [$x]) |
            .advice[] |= (.text = $x | .commands = [$x, "a\n<b>" + $x]))' |
        "$test_programs/bats/drift-forms" html "$page"
    open_page "$page" 390
    is_clean
    fits
    assert_eq "$(count '<script')" 0
    assert_eq "$(count '<img')" 0
    assert_eq "$(count '<b>&lt;script')" 0
    assert_num "$(count '&lt;script&gt;console') > 20"
}

@test "a real clone's files and blocks are in its page" {
    [ -x "$NBDEDUP_LIBEXEC/nbdedup-files" ] || skip "this build has no libtsk"
    cd "$BATS_TEST_TMPDIR" || return
    truncate -s 48M img
    mke2fs -q -b 4096 -t ext4 img
    cp img changed
    random_data 3M 7 >data
    debugfs -w changed >/dev/null 2>&1 <<'END'
mkdir var
mkdir var/log
mkdir var/log/<script>alert(1)<
write data var/log/<script>alert(1)</script>
END
    make_pool --block-size 4K
    nbdedup import golden img
    nbdedup snapshot golden@v1
    nbdedup clone golden@v1 web
    nbdedup clone golden@v1 same
    serve "$pool"
    qemu-img convert -n -f raw -O raw changed "$(uri_of web)"
    nbdedup drift --record
    nbdedup drift --html "$page" --files --json >json
    stop
    nbdedup drift --html advice.html --advise
    assert_eq "$(grep -c '<h3 id="do1">What to do</h3>' advice.html)" 1
    assert_eq "$(grep -c 'aria-label="Block map of ' advice.html)" 2
    # The map and the forecast are the page's.
    assert_eq "$(jq '[.. | objects | has ("map", "forecast")] | any' json)" false
    open_page "$page" 390d 1280l
    is_clean
    fits
    has_headings "What the clones’ bytes are" Why "The most diverged clones" \
                 "The fleet over time" "Where that leads" \
                 "Now, the most diverged first"
    assert_eq "$(count '<script')" 0
    # A directory is called so, and a file in it.
    assert_eq "$(count '<code>/var/log/&lt;script&gt;alert(1)&lt;/</code>')" 1
    assert_eq "$(count '<code>/var/log/&lt;script&gt;alert(1)&lt;/script&gt;</code>')" 1
    # The squares, of eight blocks, with a content that the golden image lacks.
    squares=$(python3 - <<'END'
golden, clone = (open(name, "rb").read() for name in ("img", "changed"))
known = {golden[i:i + 4096] for i in range(0, len(golden), 4096)}
print(len({i // 32768 for i in range(0, len(clone), 4096)
           if clone[i:i + 4096] not in known}))
END
              )
    assert_num "$squares >= 96"
    assert_eq "$(count "of 1536 squares of 32.0 KiB $squares have unique blocks, 0 ")" 1
    assert_eq "$(count 'of 1536 squares of 32.0 KiB 0 have unique blocks, 0 ')" 1
    assert_eq "$(count 'It has nothing that the golden image lacks')" 1
}

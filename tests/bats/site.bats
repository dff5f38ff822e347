#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154,SC2030,SC2031
#
# The site that "make html" makes: docs/site.

load ../rigs/helpers

setup ()
{
    need cmark-gfm --version
    site="$BATS_TEST_TMPDIR/site"
}

# make_site [SOURCE]
make_site ()
{
    "$top_srcdir/docs/site/make-site" "${1:-$top_srcdir}" "$site" "$version"
}

# check_site links, or check_site look WIDTH...
check_site ()
{
    python3 "$top_srcdir/tests/bats/check-site.py" "$1" "$site" "${@:2}"
}

need_chromium ()
{
    need timeout 60 chromium --headless --no-sandbox --disable-gpu \
         --user-data-dir="$BATS_TEST_TMPDIR/profile" --dump-dom about:blank
}

# pixels COLOUR WIDTH: how many of that colour the picture of WIDTH has.
pixels ()
{
    awk -v c="$1" '$2 == c { n = $1 } END { print n + 0 }' "$seen/$2.colours"
}

# small_source: a copy of the few files that a site needs, to change them.
small_source ()
{
    mkdir "$BATS_TEST_TMPDIR/source"
    (cd "$top_srcdir" &&
         cp -r --parents ./*.md docs tests/README.md tools/nbdedup.pod \
            tools/nbdedup-init.pod "$BATS_TEST_TMPDIR/source")
    chmod -R u+w "$BATS_TEST_TMPDIR/source"
    echo "$BATS_TEST_TMPDIR/source"
}

@test "make html makes a page of each document and of each manual page" {
    # Not as a part of the make that runs this test.
    env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL make -s -C "$top_builddir" \
        html-local
    site="$top_builddir/html"
    assert_eq "$(cd "$site/man" && printf '%s\n' *.html | grep -vx index.html |
                     sed 's/\.html$//' | sort)" \
              "$(find "$top_builddir"/{lib,plugin,systemd,tools} -name '*.[1578]' |
                     sed 's/.*\///' | sort)"
    for page in index architecture benchmarks changes comparison faq \
                six-weeks; do
        grep -q '<h1>' "$site/$page.html" || fail "$page"
    done
}

@test "no link of the site is broken, and every page is reached" {
    make_site
    assert_eq "$(check_site links)" ""
    run ! grep -rlE '<script|<iframe' --include='*.html' --exclude-dir=docs \
        "$site"
    assert_num "$(find "$site" -name '*.html' | wc -l) > 40"
}

@test "a broken link is found, and a page that none leads to" {
    local source

    source=$(small_source)
    make_site "$source"
    run check_site links
    # Pages of commands that were not copied are only named.
    assert_eq "$output" ""
    cat >>"$site/faq.html" <<'END'
<a href="nowhere.html">x</a> <a href="index.html#nothing">x</a>
<img src="https://example.com/x.png">
END
    cp "$site/faq.html" "$site/alone.html"
    echo 'p { background: url(x.png) }' >>"$site/style.css"
    run check_site links
    [[ $output == *"faq.html: nowhere.html is not there"* ]]
    [[ $output == *"faq.html: index.html#nothing: no such name"* ]]
    [[ $output == *"faq.html: loads https://example.com/x.png"* ]]
    [[ $output == *"alone.html: no page leads here"* ]]
    [[ $output == *"style.css: url("* ]]
    # A link of a document to a file that is not there stops the making.
    echo '[x](nothing.md)' >>"$source/docs/faq.md"
    run ! make_site "$source"
    [[ $output == *"docs/faq.md: there is no docs/nothing.md"* ]]
}

@test "nothing but an older site is replaced" {
    mkdir "$site"
    echo mine >"$site/file"
    run ! make_site
    [[ $output == *"is no site"* ]]
    assert_eq "$(cat "$site/file")" mine
}

@test "all pages can be read at 360, 400 and 1280 pixels" {
    need_chromium
    make_site
    run -0 check_site look 360 400 1280
    nr=$(find "$site" -name '*.html' -not -path '*/docs/*' | wc -l)
    assert_eq "$output" "$(printf "%s: looked at $nr\n" 360 400 1280)"
}

@test "a page that is too wide is found" {
    need_chromium
    make_site "$(small_source)"
    sed -i 's|<main>|&<p style="width:500px">wide</p><img src="x.png">|' \
        "$site/faq.html"
    run -0 check_site look 400
    [[ $output == *"faq.html: is 5"* ]]
    [[ $output == *"faq.html: cannot show x.png"* ]]
}

@test "the site is light on a light desktop and dark on a dark one, offline" {
    need_chromium
    make_site
    seen="$BATS_TEST_TMPDIR/seen"
    python3 "$top_srcdir/tests/bats/open-page.py" "$site/comparison.html" \
            "$seen" 400l 400d
    assert_eq "$(cat "$seen/requests")" ""
    assert_eq "$(cat "$seen/console")" ""
    assert_num "$(pixels ffffff 400l) > 500000"
    assert_num "$(pixels 14171b 400d) > 500000"
    assert_eq "$(pixels ffffff 400d)" 0
}

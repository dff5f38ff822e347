#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause

"""Open a page in headless Chromium:

  open-page.py PAGE DIRECTORY [picture] [WIDTH...]

All network requests of the browser go to a proxy in this program, which notes
and refuses them.  Leaves in DIRECTORY

  dom.html   the document, as the browser understood it
  console    errors and warnings, one per line
  requests   the page's requests, one per line, without the browser's own

with "picture"

  page.png   a picture of the page
  colours    the colours of page.png, most frequent first: "N RRGGBB"

and, if there are WIDTHs, in pixels of the window, or with a "p" of paper,

  layout     a line for each: "WIDTH OVERFLOW LETTERS CHARTS DETAILS", where
             OVERFLOW is the number of pixels by which the page, or a part of it
             that scrolls, or any element, is too wide; LETTERS the height of
             the smallest letters of a chart; CHARTS the number of visible
             charts; DETAILS the number of folded parts, all of which are opened
             after that, before the other two are measured

A WIDTH with an "l" or "d" is one in a light or dark desktop, of which it leaves
WIDTH.png, a picture of the page's first 5000 pixels, or 2500 of a wide one, and
WIDTH.colours.
"""

import collections
import os
import re
import socketserver
import struct
import subprocess
import sys
import threading
import zlib

TIMEOUT = 120
BROWSER = [
    "chromium", "--headless", "--no-sandbox", "--disable-gpu",
    "--disable-dev-shm-usage", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
    "--disable-default-apps", "--disable-extensions",
    "--disable-domain-reliability", "--disable-client-side-phishing-detection",
    "--disable-features=OptimizationHints,MediaRouter,Translate",
    "--hide-scrollbars", "--window-size=1000,1400",
    "--enable-logging=stderr", "--v=0",
]

# The browser's own updates, which no option turns off completely.
OWN = re.compile(r"[/. ]google\.com[:/ ]|[/ ]update\.googleapis\.com[:/ ]")

requests = []
log = []


class Refuse(socketserver.StreamRequestHandler):
    def handle(self):
        line = self.rfile.readline(4096).decode("latin-1").strip()
        if not OWN.search(line):
            requests.append(line)
        self.wfile.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n"
                         b"Connection: close\r\n\r\n")


def browse(page, directory, port, *args):
    # Without this the browser would not use the proxy for this machine.
    done = subprocess.run(
        BROWSER + ["--user-data-dir=" + os.path.join(directory, "profile"),
                   "--proxy-server=127.0.0.1:%d" % port,
                   "--proxy-bypass-list=<-loopback>"] + list(args) +
        ["file://" + os.path.abspath(page)],
        stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT)
    log.extend(done.stderr.decode(errors="replace").splitlines())
    if done.returncode != 0:
        sys.exit("chromium ended with status %d: %s"
                 % (done.returncode, done.stderr.decode(errors="replace")))
    return done


# The page itself runs no scripts, so another page looks at it in frames, one for
# each width, because a start of the browser takes longer than a look.
FRAME = """<iframe style="border:0" width=%d height=1000 data-width="%s"
 src="file://%s"></iframe>
"""
MEASURE = """<!DOCTYPE html><meta charset=utf-8>
%s
<pre id=layout></pre>
<script>
/* As if the window were paper. */
function print (d) {
  let style = "";
  for (const sheet of d.styleSheets)
    for (const rule of sheet.cssRules)
      if (!rule.media)
        style += rule.cssText;
      else if (!/screen|prefers/.test (rule.media.mediaText))
        style += rule.cssText.replace (/^@media [^{]*/, "@media all ");
  d.querySelector ("style").textContent = style;
}
function room (e) { return e.scrollWidth - e.clientWidth; }
function look (frame) {
  const d = frame.contentDocument;
  if (/p$/.test (frame.dataset.width))
    print (d);
  const charts = Array.from (d.querySelectorAll ("svg"))
    .filter (c => c.checkVisibility ());
  const details = Array.from (d.querySelectorAll ("details"));
  const folded = details.filter (e => !e.open);
  for (const e of folded)
    e.querySelector ("summary").click ();
  if (details.some (e => !e.open))
    throw new Error ("a folded part does not open");
  const parts = [d.documentElement].concat (
    Array.from (d.querySelectorAll (".scroll")));
  /* What is only for those who hear the page is cut off by intent. */
  const all = Array.from (d.querySelectorAll ("body *"))
    .filter (e => !e.closest ("thead") && !e.closest ("svg"))
    .map (e => Math.ceil (e.getBoundingClientRect ().right -
                          d.documentElement.clientWidth));
  const letters = Array.from (d.querySelectorAll ("svg text"))
    .map (t => t.getBoundingClientRect ().height).filter (h => h > 0);
  const least = letters.reduce ((a, b) => Math.min (a, b), Infinity);
  const most = parts.map (room).concat (all)
    .reduce ((a, b) => Math.max (a, b), 0);
  return frame.dataset.width + " " + most + " " + least.toFixed (1) + " " +
    charts.length + " " + folded.length + "\\n";
}
window.onload = function () {
  document.querySelector ("#layout").textContent =
    Array.from (document.querySelectorAll ("iframe")).map (look).join ("");
};
</script>
"""


def scheme(width):
    """Chromium's option for the colour scheme that a user prefers."""
    return (["--blink-settings=preferredColorScheme=%d" % (width[-1] == "l")]
            if width[-1] in "ld" else [])


def height(width):
    """The height of a picture in pixels; more of them take long to count."""
    return 5000 if int(width[:-1]) < 1000 else 2500


def measure(page, directory, port, widths):
    """The lines of these widths, which have one colour scheme."""
    path = os.path.join(directory, "measure.html")
    with open(path, "w", encoding="utf-8") as f:
        f.write(MEASURE % "".join(FRAME % (int(w.rstrip("pld")), w,
                                           os.path.abspath(page))
                                  for w in widths))
    done = browse(path, directory, port, "--allow-file-access-from-files",
                  "--dump-dom", *scheme(widths[0]))
    found = re.search(r'<pre id="layout">([^<]+)</pre>', done.stdout.decode())
    if not found:
        sys.exit("%s: cannot be measured" % page)
    return found.group(1).splitlines()


def unfilter(kind, row, above, bpp):
    """A row of a PNG, in place (PNG specification, 9.2)."""
    for i in range(len(row)):
        left = row[i - bpp] if i >= bpp else 0
        up = above[i]
        if kind == 1:
            row[i] = (row[i] + left) & 255
        elif kind == 3:
            row[i] = (row[i] + (left + up) // 2) & 255
        elif kind == 4:
            corner = above[i - bpp] if i >= bpp else 0
            p = left + up - corner
            a, b, c = abs(p - left), abs(p - up), abs(p - corner)
            best = left if a <= b and a <= c else up if b <= c else corner
            row[i] = (row[i] + best) & 255
        elif kind == 2:
            row[i] = (row[i] + up) & 255


def png_colours(path):
    with open(path, "rb") as f:
        data = f.read()
    at, packed = 8, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", body[:10])
        elif kind == b"IDAT":
            packed += body
        at += 12 + length
    if depth != 8 or colour not in (2, 6):
        sys.exit("%s: depth %d, colour type %d" % (path, depth, colour))
    bpp = 3 if colour == 2 else 4
    raw = zlib.decompress(packed)
    above = bytearray(width * bpp)
    rows = collections.Counter()
    for y in range(height):
        start = y * (width * bpp + 1)
        row = bytearray(raw[start + 1:start + 1 + width * bpp])
        if raw[start] != 2 or any(row):     # else it is the same as above
            unfilter(raw[start], row, above, bpp)
            above = row
        rows[bytes(above)] += 1
    # Most rows of a page are like others.
    counts = collections.Counter()
    for row, n in rows.items():
        for rgb, m in collections.Counter(
                zip(row[0::bpp], row[1::bpp], row[2::bpp])).items():
            counts[rgb] += n * m
    return counts


def main():
    page, directory, *widths = sys.argv[1:]
    picture = "picture" in widths
    widths = [w for w in widths if w != "picture"]
    os.makedirs(directory, exist_ok=True)
    proxy = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Refuse)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    port = proxy.server_address[1]

    def write(name, text):
        with open(os.path.join(directory, name), "w", encoding="utf-8") as f:
            f.write(text)

    def take_picture(name, colours, *args):
        png = os.path.join(directory, name)
        browse(page, directory, port, "--screenshot=" + png, *args)
        write(colours, "".join("%d %02x%02x%02x\n" % ((n,) + rgb)
                               for rgb, n in png_colours(png).most_common()))

    done = browse(page, directory, port, "--dump-dom")
    write("dom.html", done.stdout.decode())
    if picture:
        take_picture("page.png", "colours")
    if widths:
        lines = {}
        for options in {tuple(scheme(w)) for w in widths}:
            same = [w for w in widths if tuple(scheme(w)) == options]
            lines.update(zip(same, measure(page, directory, port, same)))
        write("layout", "".join(lines[w] + "\n" for w in widths))
    for width in widths:
        if width[-1] in "ld":
            take_picture(width + ".png", width + ".colours",
                         "--window-size=%s,%d" % (width[:-1], height(width)),
                         *scheme(width))
    write("requests", "".join(r + "\n" for r in requests))
    write("console", "".join(line + "\n" for line in log
                             if re.search(r":CONSOLE[:(]", line)))


main()

#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause

"""check-site.py links DIRECTORY, or check-site.py look DIRECTORY WIDTH...

links: print every link and reference of the pages below DIRECTORY that leads
nowhere: to a file that is not there, to a name that its page does not have, or,
for what a browser loads by itself, to the network.  Also pages to which none
leads, from index.html.

look: open all pages in headless Chromium, as wide as WIDTH pixels, and print
those that are wider than that, have a picture that cannot be shown, or letters
smaller than 11 pixels.
"""

import html.parser
import os
import re
import subprocess
import sys
import tempfile
import urllib.parse

LOADED = {("img", "src"), ("link", "href"), ("script", "src"),
          ("iframe", "src")}


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.names = set()
        self.links = []         # (tag, attribute, value)
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        for key, value in attrs:
            if key == "id":
                self.names.add(value)
            elif key in ("href", "src"):
                self.links.append((tag, key, value))


def read_pages(top):
    pages = {}
    for directory, _, files in os.walk(top):
        for name in files:
            path = os.path.relpath(os.path.join(directory, name), top)
            if path.endswith(".html"):
                with open(os.path.join(top, path), encoding="utf-8") as file:
                    pages[path] = Page(file.read())
    return pages


def target(path, link):
    """The file and the name to which a link of the page 'path' leads."""
    file, _, name = link.partition("#")
    file = urllib.parse.unquote(file)
    if not file:
        return path, name
    return os.path.normpath(os.path.join(os.path.dirname(path), file)), name


def check_links(top):
    pages = read_pages(top)
    reached = {"index.html"}
    for path, page in sorted(pages.items()):
        for tag, key, link in page.links:
            if link.startswith(("http:", "https:", "mailto:")):
                if (tag, key) in LOADED:
                    print(f"{path}: loads {link}")
                continue
            if link.startswith("data:"):
                continue
            file, name = target(path, link)
            if not os.path.isfile(os.path.join(top, file)):
                print(f"{path}: {link} is not there")
            elif name and name not in pages[file].names:
                print(f"{path}: {link}: no such name")
            if file != path:
                reached.add(file)
    for path in sorted(set(pages) - reached):
        print(f"{path}: no page leads here")
    for directory, _, files in os.walk(top):
        for name in files:
            if name.endswith(".css"):
                with open(os.path.join(directory, name),
                          encoding="utf-8") as file:
                    for link in re.findall(r"url\(|@import", file.read()):
                        print(f"{name}: {link}")


# The pages run no scripts, so another page looks at them in frames.
LOOK = """<!DOCTYPE html><meta charset=utf-8>
%s
<p id=found></p>
<script>
function faults (d) {
  const found = [];
  const width = d.documentElement.clientWidth;
  if (d.documentElement.scrollWidth > width)
    found.push ("is " + d.documentElement.scrollWidth + " pixels wide");
  for (const e of d.querySelectorAll ("body *")) {
    if (e.closest ("pre, thead, svg") && e.localName != "pre")
      continue;
    const box = e.getBoundingClientRect ();
    if (box.width > 0 && box.right > width + 1)
      found.push (e.localName + " ends at " + Math.round (box.right) + ": " +
                  e.textContent.slice (0, 40));
    if (parseFloat (getComputedStyle (e).fontSize) < 11 && e.textContent)
      found.push (e.localName + " has small letters");
  }
  for (const e of d.querySelectorAll ("img"))
    if (!e.complete || e.naturalWidth == 0)
      found.push ("cannot show " + e.getAttribute ("src"));
  if (d.querySelectorAll ("h1").length != 1)
    found.push ("has not one title");
  return found;
}
window.onload = function () {
  const lines = ["looked at " + document.querySelectorAll ("iframe").length];
  for (const frame of document.querySelectorAll ("iframe"))
    for (const fault of faults (frame.contentDocument))
      lines.push (frame.title + ": " + fault);
  document.querySelector ("#found").textContent = lines.join ("\\n");
};
</script>
"""


def look(top, width):
    frames = "\n".join(
        '<iframe title="%s" style="border:0" width=%d height=900 '
        'src="file://%s"></iframe>' % (path, width, os.path.join(top, path))
        for path in sorted(read_pages(top)) if not path.startswith("docs/"))
    with tempfile.TemporaryDirectory() as work:
        page = os.path.join(work, "look.html")
        with open(page, "w", encoding="utf-8") as file:
            file.write(LOOK % frames)
        done = subprocess.run(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu",
             "--disable-dev-shm-usage", "--no-first-run",
             "--allow-file-access-from-files", "--virtual-time-budget=60000",
             "--user-data-dir=" + work, "--dump-dom", "file://" + page],
            stdin=subprocess.DEVNULL, capture_output=True, check=True,
            timeout=300)
    found = re.search(r'<p id="found">([^<]*)</p>', done.stdout.decode())
    if not found or not found[1]:
        sys.exit("check-site.py: the pages cannot be looked at")
    for line in html.unescape(found[1]).splitlines():
        print(f"{width}: {line}")


def main():
    what, top = sys.argv[1:3]
    top = os.path.abspath(top)
    if what == "links":
        check_links(top)
    else:
        for width in sys.argv[3:]:
            look(top, int(width))


main()

#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause

"""Look at a dashboard's page in headless Chromium:

  look.py PAGE FOLDER VIEW...

A VIEW is the width of the window in pixels with an "l" or a "d" for a light or
dark desktop, of which VIEW.png, a picture of the whole page, is left in FOLDER.
Fails, with a line for each problem, if a text is cut off, leaves its panel or
lies over another one, if the page is too wide, or if the browser complains.

One browser is enough for all views: it is led over a pair of pipes (DevTools
protocol), which need no port.
"""

import base64
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time

TIMEOUT = 120
BROWSER = [
    "chromium", "--headless", "--no-sandbox", "--disable-gpu",
    "--disable-dev-shm-usage", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
    "--disable-default-apps", "--disable-extensions", "--hide-scrollbars",
    "--remote-debugging-pipe",
    # Nothing outside of this machine can be reached.
    "--proxy-server=127.0.0.1:9", "about:blank",
]

MEASURE = """
(function () {
  const problems = [];
  const outside = (a, b) => Math.max (b.left - a.left, a.right - b.right,
                                      b.top - a.top, a.bottom - b.bottom);
  const over = (a, b) => Math.min (a.right - b.left, b.right - a.left,
                                   a.bottom - b.top, b.bottom - a.top);
  let panels = 0, texts = 0;
  for (const panel of document.querySelectorAll ("section")) {
    const say = (text, what) => problems.push (
      "panel '" + panel.dataset.title + "': '" + text + "' " + what);
    const seen = [];
    panels++;
    const walker = document.createTreeWalker (panel, NodeFilter.SHOW_TEXT);
    while (walker.nextNode ()) {
      const node = walker.currentNode, range = document.createRange ();
      range.selectNodeContents (node);
      if (node.parentElement.tagName == "I")
        continue;
      texts++;
      const box = range.getBoundingClientRect ();
      for (let e = node.parentElement; e != panel.parentElement;
           e = e.parentElement)
        if ((e == panel || getComputedStyle (e).overflow == "hidden") &&
            outside (box, e.getBoundingClientRect ()) > 1) {
          say (node.data, "is cut off");
          break;
        }
      for (const [text, other] of seen)
        if (over (box, other) > 2)
          say (node.data, "lies over '" + text + "'");
      seen.push ([node.data, box]);
    }
  }
  const room = document.documentElement.scrollWidth - innerWidth;
  if (room > 0)
    problems.push ("the page is " + room + " pixels too wide");
  if (panels == 0 || texts < panels)
    problems.push ("there are " + panels + " panels, " + texts + " texts");
  return { problems: problems,
           height: document.documentElement.scrollHeight };
}) ()
"""


class Browser:
    def __init__(self, folder):
        # Descriptor 3 is what the browser reads, 4 what it writes.
        theirs_in, self.out = os.pipe()
        self.into, theirs_out = os.pipe()

        def plumb():
            low = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10)
                   for fd in (theirs_in, theirs_out)]
            os.dup2(low[0], 3)
            os.dup2(low[1], 4)

        self.process = subprocess.Popen(
            BROWSER[:-1] + ["--user-data-dir=" + os.path.join(folder, "profile"),
                            BROWSER[-1]],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=open(os.path.join(folder, "chromium.log"), "wb"),
            preexec_fn=plumb, pass_fds=(3, 4), start_new_session=True)
        os.close(theirs_in)
        os.close(theirs_out)
        self.buffer, self.number, self.complaints = b"", 0, []
        self.session = None
        self.events = set()
        self.deadline = time.monotonic() + TIMEOUT

    def message(self):
        while b"\0" not in self.buffer:
            left = self.deadline - time.monotonic()
            if left < 0 or not select.select([self.into], [], [], left)[0]:
                raise OSError("the browser does not answer")
            more = os.read(self.into, 1 << 20)
            if not more:
                raise OSError("the browser has ended")
            self.buffer += more
        text, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(text)

    def take(self, message):
        """Note an event."""
        method, params = message.get("method"), message.get("params", {})
        self.events.add(method)
        if method == "Log.entryAdded":
            self.complaints.append(params["entry"]["text"])

    def call(self, method, **params):
        self.number += 1
        request = {"id": self.number, "method": method, "params": params}
        if self.session:
            request["sessionId"] = self.session
        data = json.dumps(request).encode() + b"\0"
        while data:
            data = data[os.write(self.out, data):]
        while True:
            message = self.message()
            if message.get("id") == self.number:
                if "error" in message:
                    raise OSError("%s: %s" % (method, message["error"]))
                return message["result"]
            self.take(message)

    def open(self, page):
        target = self.call("Target.createTarget", url="about:blank")
        self.session = self.call("Target.attachToTarget", flatten=True,
                                 targetId=target["targetId"])["sessionId"]
        self.call("Page.enable")
        self.call("Log.enable")
        self.events.clear()
        self.call("Page.navigate", url="file://" + os.path.abspath(page))
        while "Page.loadEventFired" not in self.events:
            self.take(self.message())

    def evaluate(self, script):
        result = self.call("Runtime.evaluate", expression=script,
                           returnByValue=True)
        if "exceptionDetails" in result:
            raise OSError(result["exceptionDetails"])
        return result["result"]["value"]

    def look(self, view, folder):
        """The problems of a view, of which a picture is taken."""
        def resize(height):
            self.call("Emulation.setDeviceMetricsOverride", mobile=False,
                      width=int(view[:-1]), height=height, deviceScaleFactor=1)

        resize(800)
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme",
             "value": {"l": "light", "d": "dark"}[view[-1]]}])
        seen = self.evaluate(MEASURE)
        resize(seen["height"])
        picture = self.call("Page.captureScreenshot", format="png")["data"]
        with open(os.path.join(folder, view + ".png"), "wb") as f:
            f.write(base64.b64decode(picture))
        return seen["problems"]

    def end(self):
        """The browser has several processes, of a session of their own."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def main():
    page, folder, views = sys.argv[1], sys.argv[2], sys.argv[3:]
    os.makedirs(folder, exist_ok=True)
    browser = Browser(folder)
    problems = []
    try:
        browser.open(page)
        for view in views:
            problems += ["%s: %s" % (view, p)
                         for p in browser.look(view, folder)]
    except OSError as e:
        problems.append("%s: %s" % (page, e))
    finally:
        browser.end()
    problems += browser.complaints
    if problems:
        sys.exit("\n".join(problems))


main()

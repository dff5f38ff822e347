#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
#
# examples.py DIR POD...: the sections EXAMPLES of manual pages, as scripts.
#
# Each page, and each =head2 of it, becomes a scenario that runs on a machine
# of its own: DIR/PAGE or DIR/PAGE: HEADING.  Its lines call functions of
# examples.bash:
#
#   step LEAD           the text above the next commands
#   command COMMAND     as printed
#   metrics EXPRESSION  for Prometheus
#   xml TEXT            of the file that the text above names

import os
import re
import shlex
import subprocess
import sys

CRON = re.compile(r"(?:[\d*/,-]+ +){5}(.*)")
PROMETHEUS = re.compile(r"(sum|time) (without|\(\))")


def complete(text):
    """True if this is a complete command, for bash."""
    if text.endswith(("\\", "|", "&&")):
        return False
    return subprocess.run(["bash", "-n", "-c", text], check=False,
                          stderr=subprocess.DEVNULL).returncode == 0


def commands(lines):
    """Divide a paragraph into commands; one may take several lines."""
    text = ""
    for line in lines:
        text = f"{text}\n{line}" if text else line
        cron = CRON.fullmatch(text)
        if cron:
            text = cron[1]
        if complete(text):
            yield text
            text = ""
    if text:
        sys.exit(f"examples.py: this is no command: {text}")


def calls(paragraph):
    """Turn a verbatim paragraph into calls."""
    lines = [line[1:] for line in paragraph.splitlines()]
    if lines[0].startswith("<"):
        yield "xml", "\n".join(lines)
    elif PROMETHEUS.match(lines[0]):
        yield "metrics", "\n".join(lines)
    else:
        for command in commands(lines):
            yield "command", command


def paragraphs(path):
    with open(path, encoding="utf-8") as file:
        return re.split(r"\n(?:[ \t]*\n)+", file.read().strip())


def examples(path):
    """Yield (scenario, call, argument) for a page."""
    page = scenario = os.path.basename(path).removesuffix(".pod")
    inside = False
    lead = ""
    for paragraph in paragraphs(path):
        if paragraph.startswith("=head1"):
            inside = paragraph == "=head1 EXAMPLES"
        elif not inside:
            continue
        elif paragraph.startswith("=head2"):
            lead = ""
            scenario = f"{page}: {paragraph.removeprefix('=head2 ')}"
        elif paragraph[0] in " \t":
            yield scenario, "step", lead
            for call, argument in calls(paragraph):
                yield scenario, call, argument
        elif paragraph[0] != "=":
            lead = " ".join(paragraph.split())


def main():
    directory, *pods = sys.argv[1:]
    for path in pods:
        for scenario, call, argument in examples(path):
            with open(os.path.join(directory, scenario), "a",
                      encoding="utf-8") as file:
                file.write(f"{call} {shlex.quote(argument)}\n")


main()

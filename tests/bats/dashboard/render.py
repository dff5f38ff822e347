#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause

"""Draw Grafana's dashboard without Grafana, from the data of a Prometheus:

  render.py DASHBOARD ADDRESS START END PAGE [--closed] [NAME=VALUE...]

ADDRESS is Prometheus' HOST:PORT, START and END are seconds since 1970, PAGE the
HTML file to write, NAME=VALUE a variable of the dashboard to choose.  Fails,
with a line for each panel and problem, for what Grafana would show as an error,
as "No data" or wrongly.  --closed is for a pool that no server and no client
has: then only the numbers must have something to show, which may be a text for
the case that there is no value.
"""

import sys

import board
import data
import draw


def fill(panel, source, problems, closed):
    """Add to the panel's drawing what its queries find."""
    drawing = draw.Drawing(panel)
    field = panel["fieldConfig"]["defaults"]

    def say(letter, problem):
        problems.append("panel '%s': query %s: %s"
                        % (panel["title"], letter, problem))

    for target in panel["targets"]:
        letter = target["refId"]
        try:
            series = source.query(target)
        except data.QueryError as e:
            say(letter, e)
            continue
        if not any(v is not None for _, points in series for _, v in points) \
           and not (closed and (panel["type"] == "timeseries" or
                                "noValue" in field)):
            say(letter, "No data")
        for labels, points in series:
            name, missing = data.legend(target, labels)
            for label in missing:
                say(letter, "the legend's label '%s' does not exist" % label)
            if name in drawing.names():
                say(letter, "two series have the name '%s'" % name)
            drawing.add(name, points)
    return drawing


def main():
    dashboard = board.Board(sys.argv[1])
    start, end = int(sys.argv[3]), int(sys.argv[4])
    chosen = dict(a.split("=", 1) for a in sys.argv[6:] if "=" in a)
    closed = "--closed" in sys.argv[6:]
    problems = list(dashboard.problems())
    if problems:
        sys.exit("\n".join(problems))

    source = data.Data(data.Source(sys.argv[2]), start, end)
    for variable in dashboard.variables:
        try:
            source.choose(variable, chosen)
        except data.QueryError as e:
            sys.exit("variable %s: %s" % (variable["name"], e))
    drawings = [draw.Drawing(panel) if panel["type"] == "row" else
                fill(panel, source, problems, closed)
                for panel in dashboard.panels]
    with open(sys.argv[5], "w", encoding="utf-8") as f:
        f.write(draw.page(dashboard, source, drawings))
    if problems:
        sys.exit("\n".join(problems))


main()

# SPDX-License-Identifier: BSD-3-Clause

"""The dashboard's file, and what is wrong with it whatever the data is."""

import json
import re

import units

COLUMNS = 24
BUILT_IN = {"__rate_interval", "__interval", "__range", "__all"}
VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)\}?")

# What draw.py draws, and Grafana too.  Anything else in the dashboard is an
# error: it would be missing in the picture that the test looks at.
FIELD = {"unit", "min", "max", "decimals", "thresholds", "mappings", "noValue",
         "custom"}
CUSTOM = {"fillOpacity", "stacking"}
OPTIONS = {
    "stat": {"reduceOptions", "colorMode", "graphMode"},
    "gauge": {"reduceOptions"},
    "timeseries": {"legend", "tooltip"},
    "row": set(),
}
LEGEND = {"displayMode": "list", "placement": "bottom", "showLegend": True}
REDUCE = {"calcs": ["lastNotNull"], "fields": "", "values": False}
COLOURS = {"green", "orange", "red", "blue", "text"}


class Board:
    def __init__(self, path):
        with open(path, encoding="utf-8") as f:
            self.json = json.load(f)
        self.variables = self.json["templating"]["list"]
        self.panels = []
        for panel in self.json["panels"]:
            self.panels.append(panel)
            # A folded row has its panels inside.
            self.panels += panel.get("panels", [])

    def names(self):
        return {v["name"] for v in self.variables}

    def problems(self):
        """Each problem, with the panel that has it."""
        taken, ids, titles = {}, {}, {}
        for variable in self.variables:
            for problem in check_variables(json.dumps(variable), self.names()):
                yield "variable %s: %s" % (variable["name"], problem)
        for panel in self.panels:
            for problem in self.panel_problems(panel, taken, ids, titles):
                yield "panel '%s': %s" % (panel["title"], problem)

    def panel_problems(self, panel, taken, ids, titles):
        yield from check_place(panel, taken)
        for key, seen in (("id", ids), ("title", titles)):
            if panel[key] in seen:
                yield "'%s' has the same %s, %s" % (seen[panel[key]], key,
                                                    panel[key])
            seen.setdefault(panel[key], panel["title"])
        yield from check_variables(json.dumps(panel), self.names())
        if panel["type"] not in OPTIONS:
            yield "unknown type of panel: %s" % panel["type"]
        elif panel["type"] == "row":
            yield from unknown(panel, {"id", "type", "title", "gridPos",
                                       "collapsed", "panels"}, "key")
        else:
            yield from check_field(panel)
            yield from check_options(panel)
            yield from check_targets(panel)


def unknown(found, known, what):
    for key in sorted(set(found) - known):
        yield "%s '%s' is not drawn by this test" % (what, key)


def check_variables(text, names):
    for name in sorted(set(VARIABLE.findall(text)) - names - BUILT_IN):
        yield "there is no variable $%s" % name


def check_place(panel, taken):
    place = panel["gridPos"]
    if place["x"] < 0 or place["x"] + place["w"] > COLUMNS:
        yield "it leaves the grid"
    over = set()
    for x in range(place["x"], place["x"] + place["w"]):
        for y in range(place["y"], place["y"] + place["h"]):
            over.add(taken.setdefault((x, y), panel["title"]))
    for title in sorted(over - {panel["title"]}):
        yield "it lies over '%s'" % title


def check_field(panel):
    config = panel["fieldConfig"]
    field = config["defaults"]
    if config["overrides"]:
        yield "overrides are not drawn by this test"
    yield from unknown(field, FIELD, "field option")
    yield from unknown(field.get("custom", {}), CUSTOM, "field option")
    unit = field.get("unit")
    if unit not in units.UNITS:
        yield "Grafana has no unit '%s', or this test does not draw it" % unit
    if panel["type"] in ("stat", "gauge") and "thresholds" not in field:
        yield "without thresholds Grafana paints all over 80 red"
    last = None
    for step in field.get("thresholds", {}).get("steps", []):
        if step["color"] not in COLOURS:
            yield "this test does not draw the colour '%s'" % step["color"]
        if (step["value"] is None) != (last is None) or \
           (last is not None and step["value"] <= last):
            yield "the thresholds are not in order"
        last = float("-inf") if step["value"] is None else step["value"]
    for mapping in field.get("mappings", []):
        if mapping["type"] != "value":
            yield "this test does not draw mappings of %s" % mapping["type"]


def check_options(panel):
    options = panel.get("options", {})
    yield from unknown(options, OPTIONS[panel["type"]], "option")
    if panel["type"] == "timeseries":
        if options.get("legend") != LEGEND:
            yield "this test draws another legend"
        return
    if options.get("reduceOptions") != REDUCE:
        yield "this test draws the last value only"
    if panel["type"] == "stat":
        if options.get("graphMode") != "none":
            yield "this test draws no chart behind a number"
        if options.get("colorMode") not in ("none", "value", "background"):
            yield "this test does not draw such a colour mode"


def check_targets(panel):
    targets = panel.get("targets", [])
    if not targets:
        yield "it has no query"
    letters = [target["refId"] for target in targets]
    if len(set(letters)) != len(letters):
        yield "two queries have one letter"
    for target in targets:
        if target.get("instant", False) != (panel["type"] != "timeseries"):
            yield "query %s: an instant for a chart, or a range for a number" \
                % target["refId"]
        if panel["type"] == "timeseries" and not target.get("legendFormat"):
            yield "query %s: the legend would be all labels" % target["refId"]
        if target["datasource"] != panel["datasource"]:
            yield "query %s: another data source" % target["refId"]
        yield from unknown(target, {"refId", "datasource", "expr", "instant",
                                    "legendFormat", "interval"}, "query option")

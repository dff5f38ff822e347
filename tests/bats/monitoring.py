#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause

"""What the dashboard and the alert rules ask for: monitoring.py FOLDER COMMAND

metrics: each metric of nbdedup that they name, on a line of its own.
rules: the dashboard's expressions as recording rules, so that promtool checks
their syntax.
layout: fails if two panels of the dashboard lie over each other, or have one
number.
"""

import json
import os
import re
import sys


def load_dashboard(folder):
    with open(os.path.join(folder, "nbdedup-dashboard.json"),
              encoding="utf-8") as f:
        return json.load(f)


def expressions(dashboard):
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield target["expr"]


def queries(dashboard):
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


def print_metrics(folder):
    dashboard = load_dashboard(folder)
    with open(os.path.join(folder, "nbdedup-rules.yml"),
              encoding="utf-8") as f:
        texts = re.findall(r"expr:((?:.|\n)*?)\n    \w+:", f.read())
    texts += list(expressions(dashboard)) + list(queries(dashboard))
    for name in sorted(set(re.findall(r"\bnbdedup_\w+", " ".join(texts)))):
        print(name)


def print_rules(folder):
    print("groups:\n- name: dashboard\n  rules:")
    for i, expr in enumerate(expressions(load_dashboard(folder))):
        for name, value in (("$__rate_interval", "5m"), ("$pool", "p"),
                            ("$volume", "v"), ("$instance", "i")):
            expr = expr.replace(name, value)
        if "$" in expr:
            sys.exit("unknown variable: " + expr)
        print("  - {record: r%d, expr: %s}" % (i, json.dumps(expr)))


def cells(panel):
    p = panel["gridPos"]
    for x in range(p["x"], p["x"] + p["w"]):
        for y in range(p["y"], p["y"] + p["h"]):
            yield x, y


def check_layout(folder):
    taken, ids = set(), set()
    for panel in load_dashboard(folder)["panels"]:
        if panel["id"] in ids:
            sys.exit("two panels have the number %d" % panel["id"])
        ids.add(panel["id"])
        for cell in cells(panel):
            if cell in taken or cell[0] >= 24:
                sys.exit("no place for the panel " + panel["title"])
            taken.add(cell)
    if len(ids) < 20:
        sys.exit("the dashboard has lost its panels")


COMMANDS = {"metrics": print_metrics, "rules": print_rules,
            "layout": check_layout}

COMMANDS[sys.argv[2]](sys.argv[1])

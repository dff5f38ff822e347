# SPDX-License-Identifier: BSD-3-Clause

"""Ask Prometheus what Grafana would ask it for the dashboard."""

import http.client
import json
import math
import re
import urllib.parse

import board

# A data source of which nothing was configured says so; the metrics are read
# less often (the history of this test has one reading in 60 seconds).
SOURCE_INTERVAL = 15
# Grafana asks for one point per pixel at the most.
PIXELS = 600


class QueryError(Exception):
    pass


class Source:
    def __init__(self, address):
        self.http = http.client.HTTPConnection(address, timeout=60)

    def get(self, path, **params):
        self.http.request("GET", "/api/v1/%s?%s" % (
            path, urllib.parse.urlencode(params)))
        answer = json.loads(self.http.getresponse().read())
        if answer["status"] != "success":
            raise QueryError(answer["error"])
        return answer["data"]


def seconds(text):
    """Grafana's "30s", "1m" or "2h"."""
    found = re.fullmatch(r"(\d+)([smh])", text)
    if not found:
        raise QueryError("not an interval: " + text)
    return int(found.group(1)) * {"s": 1, "m": 60, "h": 3600}[found.group(2)]


class Data:
    """The dashboard's variables and queries, from start to end."""

    def __init__(self, source, start, end):
        self.source, self.start, self.end = source, start, end
        self.values = {}

    def replace(self, text, extra=()):
        values = dict(self.values, __range="%ds" % (self.end - self.start),
                      **dict(extra))
        return board.VARIABLE.sub(lambda m: values[m.group(1)], text)

    def choose(self, variable, chosen):
        """Give a variable its first value, or the one that is chosen."""
        name = variable["name"]
        if variable["type"] == "datasource":
            self.values[name] = variable["query"]
            return
        found = re.fullmatch(r"label_values\((.*), *(\w+)\)",
                             self.replace(variable["query"]["query"]))
        if not found:
            raise QueryError("not a query for a variable")
        values = self.source.get("label/%s/values" % found.group(2),
                                 **{"match[]": found.group(1),
                                    "start": self.start, "end": self.end})
        if variable.get("includeAll"):
            values = [variable["allValue"]] + values
        elif not values:
            raise QueryError("it has no values")
        self.values[name] = chosen.get(name, values[0])

    def shown(self, variable):
        """The value of a variable as its menu shows it."""
        value = self.values[variable["name"]]
        return "All" if value == variable.get("allValue") else value

    def interval(self, target):
        """$__interval and $__rate_interval of a query, in seconds."""
        least = seconds(target.get("interval", "%ds" % SOURCE_INTERVAL))
        step = max(least, math.ceil((self.end - self.start) / PIXELS))
        return step, max(step + least, 4 * least)

    def query(self, target):
        """The series of a query: a list of (labels, points)."""
        step, rate = self.interval(target)
        expr = self.replace(target["expr"], (("__interval", "%ds" % step),
                                             ("__rate_interval", "%ds" % rate)))
        if target.get("instant"):
            found = self.source.get("query", query=expr, time=self.end)
            if found["resultType"] != "vector":
                raise QueryError("a %s, not a vector" % found["resultType"])
            return [(s["metric"], [finite(s["value"])])
                    for s in found["result"]]
        # Like Grafana, at multiples of the step.
        found = self.source.get("query_range", query=expr, step=step,
                                start=self.start // step * step,
                                end=self.end // step * step)
        return [(s["metric"], [finite(p) for p in s["values"]])
                for s in found["result"]]


def finite(point):
    """(time, value), where the value is None if it cannot be drawn."""
    value = float(point[1])
    return point[0], value if math.isfinite(value) else None


def legend(target, labels):
    """The name of a series, and the labels in it that do not exist."""
    missing = []

    def label(found):
        if found.group(1) not in labels:
            missing.append(found.group(1))
        return labels.get(found.group(1), "")

    return re.sub(r"{{ *(\w+) *}}", label,
                  target.get("legendFormat", "")), missing

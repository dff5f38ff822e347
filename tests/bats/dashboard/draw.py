# SPDX-License-Identifier: BSD-3-Clause

"""The dashboard as a page of HTML, without scripts."""

import html
import time

import units

PALETTE = ("#7eb26d", "#eab839", "#6ed0e0", "#ef843c", "#e24d42", "#1f78c1",
           "#ba43a9", "#705da0", "#508642", "#cca300")
COLOURS = {"green": "#56a64b", "orange": "#e0780b", "red": "#e02f44",
           "blue": "#3274d9", "text": "var(--text)"}
# Grafana's: cells of 30 pixels, 8 between them, legends of 35 % at the most.
STYLE = """
:root { --page: #f4f5f5; --panel: #fff; --line: #dcdde0; --text: #24292e;
  --weak: #62666c; color-scheme: light dark; }
@media (prefers-color-scheme: dark) {
  :root { --page: #111217; --panel: #181b1f; --line: #2c3036; --text: #ccccdc;
    --weak: #9a9bab; } }
* { box-sizing: border-box; margin: 0; }
body { background: var(--page); color: var(--text); padding: 8px;
  font: 12px/1.5 Inter, "Helvetica Neue", Arial, sans-serif; }
header { display: flex; flex-wrap: wrap; gap: 4px 24px; padding: 4px 0 12px; }
header h1 { font-size: 18px; font-weight: 500; }
header b { font-weight: 500; color: var(--weak); }
main { display: grid; grid-template-columns: repeat(24, minmax(0, 1fr));
  grid-auto-rows: 30px; gap: 8px; }
section { background: var(--panel); border: 1px solid var(--line);
  border-radius: 2px; display: flex; flex-direction: column; min-width: 0;
  overflow: hidden; padding: 4px 8px; }
section.row { background: none; border: none; padding: 4px 0;
  justify-content: center; }
h2 { font-size: 14px; font-weight: 500; line-height: 22px; white-space: nowrap;
  overflow: hidden; text-overflow: ellipsis; flex: none; }
.row h2 { font-size: 16px; }
.value { flex: 1; min-height: 0; display: flex; align-items: center;
  justify-content: center; container-type: size; border-radius: 2px;
  white-space: nowrap; }
.value span { font-size: min(48px, 70cqh, calc(150cqw / var(--letters)));
  line-height: 1.2; font-weight: 500; }
.filled, .filled .value { color: #fff; }
.gauge { position: relative; height: 100%; aspect-ratio: 2 / 1;
  max-width: 100%; }
.gauge svg { position: absolute; inset: 0; width: 100%; height: 100%; }
.gauge span { position: absolute; inset: auto 0 0; text-align: center;
  font-size: 20px; }
.plot { flex: 1; min-height: 0; display: grid; column-gap: 6px;
  grid-template: minmax(0, 1fr) 18px / max-content minmax(0, 1fr);
  padding-top: 8px; }
.plot svg { width: 100%; height: 100%; overflow: visible; }
.plot path { fill: none; stroke-width: 1.3; vector-effect: non-scaling-stroke;
  stroke-linecap: round; }
.plot path.grid { stroke: var(--line); stroke-width: 1; }
.plot path.area { stroke: none; }
.y, .x { color: var(--weak); position: relative; white-space: nowrap; }
.y i { display: block; height: 0; overflow: hidden; }
.y span, .x span { position: absolute; }
.y span { right: 0; transform: translateY(50%); line-height: 14px; }
.x { grid-column: 2; }
.x span { transform: translateX(-50%); line-height: 18px; }
.none { flex: 1; display: flex; align-items: center; justify-content: center;
  font-size: 16px; color: var(--weak); }
.legend { flex: none; max-height: 35%; overflow: hidden; display: flex;
  flex-wrap: wrap; gap: 0 12px; }
.legend span::before { content: ""; display: inline-block; width: 14px;
  height: 4px; border-radius: 2px; background: var(--key); margin-right: 6px;
  vertical-align: middle; }
"""


class Drawing:
    """A panel and its series."""

    def __init__(self, panel):
        self.panel, self.series = panel, []
        self.field = panel.get("fieldConfig", {}).get("defaults", {})

    def add(self, name, points):
        self.series.append((name, points))

    def names(self):
        return {name for name, _ in self.series}

    def values(self):
        return [v for _, points in self.series for _, v in points
                if v is not None]

    def mode(self):
        """What of a number is coloured: its value, its background or none."""
        return self.panel.get("options", {}).get("colorMode")

    def nothing(self):
        return '<p class="none">%s</p>' % html.escape(
            self.field.get("noValue", "No data"))

    def write(self, value):
        for mapping in self.field.get("mappings", []):
            found = mapping["options"].get("%g" % value)
            if found:
                return found["text"]
        return units.write(self.field["unit"], value,
                           self.field.get("decimals"))

    def colour(self, value):
        steps = self.field["thresholds"]["steps"]
        name = [s["color"] for s in steps
                if s["value"] is None or value >= s["value"]][-1]
        return COLOURS[name]


def stat(drawing, _data):
    value = drawing.values()[-1]
    text = drawing.write(value)
    colour = drawing.colour(value) if drawing.mode() == "value" else "inherit"
    return '<div class="value" style="--letters:%d;color:%s"><span>%s</span>' \
        '</div>' % (max(4, len(text)), colour, html.escape(text))


def gauge(drawing, _data):
    value = drawing.values()[-1]
    low, high = drawing.field.get("min", 0), drawing.field.get("max", 100)
    part = min(max((value - low) / (high - low), 0), 1)
    return ('<div class="value"><div class="gauge">'
            '<svg viewBox="0 0 200 100">%s%s</svg>'
            '<span>%s</span></div></div>'
            % (arc(1, "var(--line)"), arc(part, drawing.colour(value)),
               html.escape(drawing.write(value))))


def arc(part, colour):
    """A part of the upper half of a circle."""
    return ('<path d="M 20 98 A 80 80 0 0 1 180 98" pathLength="100" '
            'fill="none" stroke="%s" stroke-width="22" '
            'stroke-dasharray="%.1f 200"/>' % (colour, part * 100))


def bounds(drawing, tops):
    """The axis' least and greatest value; it begins with the least one."""
    low = drawing.field.get("min", min(tops))
    high = drawing.field.get("max", max(tops))
    if high <= low:
        high = low + (abs(low) or 1)
    return low, high


def chart(drawing, data):
    stacked = drawing.field.get("custom", {}).get("stacking", {}) \
        .get("mode") == "normal"
    below, lines = {}, []
    for name, points in drawing.series:
        found = []
        for when, value in points:
            base = below.get(when, 0) if stacked else None
            if value is not None and stacked:
                value += base
                below[when] = value
            found.append((when, value, base))
        lines.append((name, found))
    low, high = bounds(drawing, [v for _, points in lines
                                 for _, v, _ in points if v is not None])
    fill = drawing.field.get("custom", {}).get("fillOpacity", 0) / 100

    def place(when, value):
        return ((when - data.start) / (data.end - data.start) * 1000,
                100 - (value - low) / (high - low) * 100)

    marks = units.ticks(drawing.field["unit"], low, high,
                        drawing.field.get("decimals"))
    svg = "".join('<path class="grid" d="M 0 %.2f H 1000"/>'
                  % place(data.start, mark)[1] for mark in marks)
    # What is stacked highest is drawn first.
    for nr, (_, points) in reversed(list(enumerate(lines))):
        svg += line(points, place, low, PALETTE[nr % len(PALETTE)], fill)
    labels = [drawing.write(mark) for mark in marks]
    return ('<div class="plot"><div class="y">%s%s</div>'
            '<svg viewBox="0 0 1000 100" preserveAspectRatio="none">%s</svg>'
            '<div class="x">%s</div></div><div class="legend">%s</div>' % (
                # These give the column its width.
                "".join("<i>%s</i>" % text for text in labels),
                "".join('<span style="bottom:%.2f%%">%s</span>'
                        % (100 - place(0, mark)[1], text)
                        for mark, text in zip(marks, labels)),
                svg, hours(data),
                "".join('<span style="--key:%s">%s</span>'
                        % (PALETTE[nr % len(PALETTE)], html.escape(name))
                        for nr, (name, _) in enumerate(lines))))


def line(points, place, low, colour, fill):
    """A line through the points, with gaps; a point alone is a dot."""
    path, area, run = "", "", []
    for when, value, base in points + [(None, None, None)]:
        if value is not None:
            run.append((place(when, value),
                        place(when, low if base is None else base)))
            continue
        if run:
            path += "M" + "L".join("%.1f %.2f" % top for top, _ in run)
            path += "h0" if len(run) == 1 else ""
            area += "M" + "L".join("%.1f %.2f" % p for p in
                                   [top for top, _ in run] +
                                   [bottom for _, bottom in reversed(run)])
        run = []
    return ('<path class="area" style="fill:%s;fill-opacity:%g" d="%s"/>'
            '<path style="stroke:%s" d="%s"/>'
            % (colour, fill, area, colour, path))


def hours(data):
    """The labels of the time: four or so, at round minutes."""
    step = next(s for s in (60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400)
                if (data.end - data.start) / s <= 5)
    first = (data.start // step + 1) * step
    text = ""
    for when in range(first, data.end, step):
        part = (when - data.start) / (data.end - data.start) * 100
        if 5 < part < 93:
            text += '<span style="left:%.2f%%">%s</span>' % (
                part, time.strftime("%H:%M", time.gmtime(when)))
    return text


KINDS = {"stat": stat, "gauge": gauge, "timeseries": chart}


def section(drawing, data):
    panel, place = drawing.panel, drawing.panel["gridPos"]
    body, kind, style = "", panel["type"], ""
    if drawing.mode() == "background" and drawing.values():
        kind += " filled"
        style = ";background:" + drawing.colour(drawing.values()[-1])
    if panel["type"] != "row":
        body = (KINDS[panel["type"]](drawing, data) if drawing.values()
                else drawing.nothing())
    return ('<section class="%s" data-title="%s" style="grid-area:%d/%d/'
            'span %d/span %d%s"><h2>%s</h2>%s</section>\n' % (
                kind, html.escape(panel["title"]), place["y"] + 1,
                place["x"] + 1, place["h"], place["w"], style,
                html.escape(data.replace(panel["title"])), body))


def page(dashboard, data, drawings):
    chosen = "".join("<span><b>%s</b> %s</span>" % (
        html.escape(v.get("label", v["name"])),
        html.escape(data.shown(v))) for v in dashboard.variables)
    return ("<!DOCTYPE html><html lang=en><meta charset=utf-8>"
            "<title>%s</title><style>%s</style>"
            "<header><h1>%s</h1>%s</header><main>\n%s</main></html>\n" % (
                html.escape(dashboard.json["title"]), STYLE,
                html.escape(dashboard.json["title"]), chosen,
                "".join(section(d, data) for d in drawings)))

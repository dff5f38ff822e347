# SPDX-License-Identifier: BSD-3-Clause
"""Plots of the benchmarks' page: gnuplot writes each as a file of SVG."""

import subprocess

from bench_servers import BenchError

COLORS = {"file": "#808080", "nbdedup": "#0072b2", "qcow2": "#e69f00",
          "qcow2-overlay": "#d55e00", "qcow2-compressed": "#cc79a7",
          "floor": "#009e73"}
STYLE = """set encoding utf8
set border 3 lc rgb '#707070'
set tics nomirror out scale 0.5
set grid xtics lt 1 lw 1 lc rgb '#b0808080'
set style fill solid 1 noborder
"""
BAR = 14                        # pixels


def gnuplot(script):
    # -d: no ~/.gnuplot.
    result = subprocess.run(["gnuplot", "-d"], input=script, text=True,
                            capture_output=True)
    if result.returncode != 0:
        raise BenchError("gnuplot: " + result.stderr.strip())


def terminal(path, height, width=800):
    return (f"set terminal svg dynamic size {width},{height} noenhanced "
            "background '#ffffff' font 'system-ui,sans-serif,12'\n"
            f"set output '{path}'\n" + STYLE)


def place_bars(rows, series):
    """Where the bars are, from the top: ({series: [(value, y)]}, tics)."""
    places = {s: [] for s in series}
    tics = []
    y = 0.0
    for name, values in rows:
        present = [s for s in series if values.get(s) is not None]
        tics.append(f'"{name}" {y - (len(present) - 1) / 2}')
        for s in present:
            places[s].append((values[s], y))
            y -= 1
        y -= 0.8
    return places, tics, y


def bars(path, title, rows, log=False):
    """Horizontal bars: rows are (name, {series: value}); a bar is left out
    where there is no value."""
    series = [s for s in COLORS
              if any(values.get(s) is not None for _, values in rows)]
    places, tics, bottom = place_bars(rows, series)
    low = min(v for of in places.values() for v, _ in of) / 2 if log else 0
    script = terminal(path, int(-bottom * BAR) + 100)
    for n, s in enumerate(series):
        script += f"$s{n} << END\n" + "".join(
            f"{value:.6g} {y:.2f}\n" for value, y in places[s]) + "END\n"
    # What is relative to nbdkit file shows where its 1 is.
    script += "set logscale x\n" if log else \
        "set arrow from 1,graph 0 to 1,graph 1 nohead lc rgb '#707070'\n"
    script += (
        f"set xrange [{low:.6g}:{'*' if log else '1.05<*'}]\n"
        f"set yrange [{bottom + 0.5:.2f}:0.8]\n"
        f"set ytics ({', '.join(tics)})\nset xlabel '{title}'\n"
        "set key above left Left reverse horizontal samplen 2\n")
    # A box from the left edge: its middle, and half of its size.
    script += "plot " + ", ".join(
        f"$s{n} using (({low:.6g}+$1)/2):2:({low:.6g}):1:($2-.45):($2+.45) "
        f"with boxxyerror lc rgb '{COLORS[s]}' title '{s}'"
        for n, s in enumerate(series)) + "\n"
    gnuplot(script)


def curves(path, xlabel, ylabel, series):
    """Lines over a logarithmic x: series are (name, [(x, y)], number of
    the colour, dashed)."""
    script = terminal(path, 420)
    for n, (_, points, *_) in enumerate(series):
        script += f"$s{n} << END\n" + "".join(
            f"{x:.6g} {y:.6g}\n" for x, y in points) + "END\n"
    script += (f"set xlabel '{xlabel}'\nset ylabel '{ylabel}'\n"
               "set logscale xy\nset grid ytics\n"
               "set format y '%.0s%c'\n"
               "set key outside right top Left reverse\nplot ")
    colors = list(COLORS.values())
    script += ", ".join(
        f"$s{n} using 1:2 with linespoints pt 7 ps 0.5 lw 2 "
        f"dt {2 if dashed else 1} lc rgb '{colors[color]}' "
        f"title '{name}'"
        for n, (name, _, color, dashed) in enumerate(series)) + "\n"
    gnuplot(script)

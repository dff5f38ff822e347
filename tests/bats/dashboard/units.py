# SPDX-License-Identifier: BSD-3-Clause

"""Numbers as Grafana writes them, in the units that the dashboard has."""

import math

SI = ("", "k", "M", "G", "T", "P")
BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi")
SHORT = ("", " K", " Mil", " Bil", " Tri", " Quadr")
SECONDS = ((1e-6, "ns", 1e9), (1e-3, "µs", 1e6), (1, "ms", 1e3), (60, "s", 1),
           (3600, "mins", 1 / 60), (86400, "hours", 1 / 3600),
           (604800, "days", 1 / 86400), (31536000, "weeks", 1 / 604800),
           (math.inf, "years", 1 / 31536000))


def digits(value, decimals):
    """About three digits, without zeroes at the end."""
    if decimals is not None:
        return "%.*f" % (decimals, value)
    size = math.floor(math.log10(abs(value))) if value else 0
    text = "%.*f" % (max(0, min(2 - size, 6)), value)
    return text.rstrip("0").rstrip(".") if "." in text else text


def scale(value, base, prefixes):
    step = 0
    while abs(value) >= base and step < len(prefixes) - 1:
        value /= base
        step += 1
    return value, prefixes[step]


def scaled(base, prefixes, name):
    def write(value, decimals):
        value, prefix = scale(value, base, prefixes)
        unit = prefix + name
        return digits(value, decimals) + (" " if name else "") + unit
    return write


def seconds(value, decimals):
    for limit, name, factor in SECONDS:
        if abs(value) < limit and value:
            return "%s %s" % (digits(value * factor, decimals), name)
    return "0 s"


# Grafana has many more, and a unit that it does not know is written behind the
# number as it is.  A new one in the dashboard needs a line here.
UNITS = {
    "none": digits,
    "short": scaled(1000, SHORT, ""),
    "percentunit": lambda v, d: digits(v * 100, d) + "%",
    "bytes": scaled(1024, BINARY, "B"),
    "binBps": scaled(1024, BINARY, "B/s"),
    "Bps": scaled(1000, SI, "B/s"),
    "iops": scaled(1000, SI, "io/s"),
    "s": seconds,
}


def write(unit, value, decimals=None):
    return UNITS[unit](value, decimals)


def ticks(unit, low, high, decimals=None):
    """Three to six round values from low to high, or fewer whole ones."""
    base = 2 if unit in ("bytes", "binBps") else 10
    steps = [1] if base == 2 else [1, 2, 5]
    rough = (high - low) / 5
    power = math.floor(math.log(rough, base))
    step = min(s * base ** p for p in (power, power + 1) for s in steps
               if s * base ** p >= rough * 0.999)
    if decimals == 0:
        step = max(step, 1)
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]

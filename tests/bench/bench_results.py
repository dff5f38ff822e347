# SPDX-License-Identifier: BSD-3-Clause
"""The results of a run: one JSON file, complete after each measurement.

    {"settings", "machine", "speed", "starts", "lines":
     {NAME: {"group", ..., "rounds": [{SERVER: figures}], "summary"}}}

A run that goes on adds to "starts" when it did, and how busy the machine was.
"""

import hashlib
import json
import os
import statistics
import time

from bench_lines import GIB
from bench_machine import describe, floor, own_speed
from bench_servers import BenchError

MEDIANS = ("bytes_per_second", "iops", "seconds", "cpu_seconds",
           "peak_rss_bytes", "latency_p50_us", "latency_p95_us",
           "latency_p99_us", "latency_max_us", "flush_p50_us",
           "flush_p99_us", "half_iops", "half_latency_p50_us",
           "half_latency_p95_us", "half_latency_p99_us",
           "half_latency_max_us", "cpu_per_gib")


def rounded(value):
    """The same with at most five digits of each figure."""
    if isinstance(value, dict):
        return {key: rounded(v) for key, v in value.items()}
    if isinstance(value, list):
        return [rounded(v) for v in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def ratio(rounds, which, key, to="file"):
    """The median of the rounds' own ratios of two servers, or None."""
    found = [r[which][key] / r[to][key] for r in rounds
             if which in r and r.get(to, {}).get(key)
             and r[which].get(key) is not None]
    return statistics.median(found) if found else None


def summarize_server(rounds, which):
    figures = [r[which] for r in rounds if which in r]
    found = {key: statistics.median(f[key] for f in figures)
             for key in MEDIANS if key in figures[0]}
    if which != "file":
        found["ratio"] = ratio(rounds, which, "bytes_per_second")
        for name in ("p50", "p95", "p99"):
            key = f"half_latency_{name}_us"
            if key in found:
                found[f"half_{name}_ratio"] = ratio(rounds, which, key)
    if which == "nbdedup-aged":
        for name, key in (("fresh_ratio", "bytes_per_second"),
                          ("fresh_p50_ratio", "latency_p50_us"),
                          ("fresh_p99_ratio", "latency_p99_us")):
            found[name] = ratio(rounds, which, key, "nbdedup")
    return found


def summarize(line, rounds, speed, hash_name):
    """The medians of each server, the ratios to file, and the floor."""
    names = [which for which in line.servers
             if any(which in r for r in rounds)]
    summary = {which: summarize_server(rounds, which) for which in names}
    if line.fio and "file" in summary and "nbdedup" in summary:
        least = floor(line, speed, hash_name, summary["file"]["cpu_per_gib"])
        if least:
            of = summary["nbdedup"]
            of["floor_per_gib"] = least
            of["floor_ratio"] = of["cpu_per_gib"] / least
    return summary


def settings_of(args):
    """What is the same in all of a run."""
    found = {key: getattr(args, key) for key in (
        "size", "dirty_max", "seconds", "quick", "init", "key", "hash")}
    with open(args.plugin, "rb") as f:
        found["plugin"] = hashlib.sha256(f.read()).hexdigest()
    return found


class Results:
    """The file, and what it still lacks."""

    def __init__(self, path, args):
        self.path = path
        load = os.getloadavg()[0]   # before own_speed adds to it
        settings = settings_of(args)
        if os.path.exists(path) and os.path.getsize(path):
            with open(path) as f:
                self.data = json.load(f)
            if self.data.get("settings") != settings:
                raise BenchError(f"{path}: is of a run with other settings, "
                                 "or of another build: remove it, or choose "
                                 "another --json")
        else:
            self.data = {"settings": settings, "machine": describe(args),
                         "speed": own_speed(args), "starts": [], "lines": {}}
        self.data["starts"].append({"time": int(time.time()),
                                    "load": load})

    def rounds(self, line):
        entry = self.data["lines"].setdefault(line.name, {
            "group": line.group, "fio": line.fio, "block": line.block,
            "codec": line.codec, "rounds": []})
        return entry["rounds"]

    def has(self, line, number, which):
        rounds = self.rounds(line)
        return number < len(rounds) and which in rounds[number]

    def add(self, line, number, which, figures):
        """Keep one measurement, durably."""
        rounds = self.rounds(line)
        while len(rounds) <= number:
            rounds.append({})
        figures["cpu_per_gib"] = figures["cpu_seconds"] * GIB / \
            figures["io_bytes"]
        rounds[number][which] = figures
        self.data["lines"][line.name]["summary"] = summarize(
            line, rounds, self.data["speed"], self.data["settings"]["hash"])
        self.save()

    def summary(self, line):
        return self.data["lines"][line.name]["summary"]

    def save(self):
        new = self.path + ".new"
        with open(new, "w") as f:
            json.dump(rounded(self.data), f, indent=None,
                      separators=(",", ":"))
            f.write("\n")
            f.flush()
            os.fsync(f.fileno())
        os.rename(new, self.path)

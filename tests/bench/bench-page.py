#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""Write the benchmarks' page, and its plots, from the JSON of "make bench".

It copies the figures to benchmarks.json, beside the page.  benchmarks-ddt.json
and benchmarks-fill.json there, if they exist, are what bench-ddt and bench-fill
append to JSON: how a growing pool behaves, and what it takes.

Run it with "make bench-page", e.g. make bench-page BENCH_JSON=bench.json.
"""

import argparse
import fnmatch
import json
import os
import shutil
import sys
import time

sys.dont_write_bytecode = True

from bench_lines import GIB, MIB, name_size
from bench_machine import is_busy
from bench_plots import bars, curves
from bench_servers import BenchError
from bench_sizing import (fill_series, fill_table, read_lines, size_text,
                          sizing)
from bench_why import why

SLOWER = 0.95                   # of a peer, or less
GROUPS = {
    "requests": "Sizes of requests",
    "cold reads": "Cold reads",
    "mix": "Reads and writes, 70 to 30",
    "duplicates": "Duplicates",
    "settings": "Dedup, caches, the metadata's copy",
    "codecs": "Codecs",
    "block sizes": "Block sizes of the volume",
    "clones": "Clones",
    "aged": "A volume that has been in use",
    "images": "Images in and out, source trees",
}
TEXTS = {
    "requests": "One connection, 16 requests at a time (sequential: 4, "
    "`write-flush`: 1), random data, all of it new. The volume's block is the "
    "request, but at most 16 KiB.",
    "cold reads": "One connection, 16 requests at a time; nothing of the "
    "server's files is in the page cache.",
    "mix": "128 KiB requests; *J*x*D*: *J* connections with *D* requests at a "
    "time each.",
    "duplicates": "The percentage is the share of the requests that repeat "
    "one of the same run; `duplicate`: all data is in another volume already.",
    "settings": "The same as the lines without the setting, beside the same "
    "nbdkit file; beside `primarycache` nbdkit file has `cache=none`, so that "
    "neither keeps what it reads.",
    "codecs": "Half of each 4 KiB compresses away.",
    "block sizes": "Requests of 128 KiB.",
    "clones": "The volume is a clone of a full one; for qcow2 an overlay on a "
    "raw file, for nbdkit file a plain, full file.",
    "aged": "`nbdedup-aged`: all of the volume was overwritten ten times at "
    "random (twice in the quick form), half of it trimmed, in scattered "
    "blocks, and that half filled again; `nbdedup`: it was filled once, in "
    "order.",
    "images": "`import`: half of each 4 KiB compresses away; `duplicate`: the "
    "pool has the image already. `image`: a real one. `checkout`: this "
    "project's sources, eight times, on ext4 through nbdfuse and a loop "
    "device.",
}


class Page:
    """The lines of the page, and where its plots go."""

    def __init__(self, data, docs):
        self.data, self.docs = data, docs
        self.lines, self.plots = [], []
        self.summaries = {name: line["summary"]
                          for name, line in data["lines"].items()
                          if "nbdedup" in line.get("summary", {})}

    def add(self, *lines):
        self.lines += lines

    def plot(self, name, alt, draw, *args, **others):
        file = f"benchmarks-{name}.svg"
        draw(os.path.join(self.docs, file), *args, **others)
        self.plots.append(file)
        self.add(f"![{alt}]({file})", "")

    def group(self, name):
        return {line: s for line, s in self.summaries.items()
                if self.data["lines"][line]["group"] == name}


def number(figures, key, scale=1.0, digits=2):
    value = (figures or {}).get(key)
    return "–" if value is None else f"{value / scale:,.{digits}f}"


def date(seconds):
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))


def was_busy(data):
    return any(is_busy(start["load"], data["machine"]["cpus"])
               for start in data["starts"])


def head(page):
    data, machine = page.data, page.data["machine"]
    settings = data["settings"]
    rounds = sorted({len(line["rounds"]) for line in data["lines"].values()})
    of_rounds = " to ".join(str(n) for n in {rounds[0]: 0, rounds[-1]: 0})
    page.add("# Benchmarks", "",
             "`make bench-page` made this page from "
             "[benchmarks.json](benchmarks.json), which has every figure.", "")
    doubts = []
    if was_busy(data):
        load = max(start["load"] for start in data["starts"])
        doubts.append("the machine was **busy with other work** (load "
                      f"{load:.0f} on {machine['cpus']} processors)")
    if settings["quick"]:
        doubts.append(f"it was the **quick form** ({of_rounds} round, "
                      f"{settings['size'] // MIB} MiB a line)")
    if doubts:
        page.add("> **Do not quote these figures:** " + ", and ".join(doubts) +
                 ".", "")
    plain = machine["plain_file_bytes_per_second"]
    rows = {
        "measured": f"{date(data['starts'][0]['time'])}; each figure is a "
        f"median, rounds: {of_rounds}, of {settings['size'] // MIB} MiB",
        "processor": f"{machine['cpu']}, {machine['cpus']} of them",
        "memory": size_text(machine["memory_bytes"]),
        "a plain file": f"writes {plain['write'] / 1e9:.1f} GB/s to the page "
        f"cache, {plain['write_and_sync'] / 1e9:.2f} GB/s to the disk, reads "
        f"{plain['read'] / 1e9:.1f} GB/s from the page cache",
        "file system": machine["file_system"],
        "system": f"{machine['system']}, Linux {machine['kernel']}",
        "programs": ", ".join(f"{name} {machine[name]}" for name in
                              ("nbdedup", "nbdkit", "qemu", "fio")),
        "settings": " ".join(settings["init"] + settings["key"]) or
        "the defaults",
    }
    if machine.get("image"):
        rows["the real image"] = os.path.basename(machine["image"]) \
            if machine["image"].startswith("/") else machine["image"]
    page.add("| | |", "| --- | --- |",
             *(f"| {key} | {value} |" for key, value in rows.items()), "")


def how_to_read(page):
    page.add(
        "Run it yourself: `make bench BENCH_ARGS=--quick` takes minutes, `make "
        "bench` an hour or two; `make bench-page BENCH_JSON=…` makes the "
        "page.", "",
        "A *ratio* is speed relative to `nbdkit file` in the same round: 1 is "
        "as fast as no deduplication at all. *CPU* is the server's seconds "
        "for each GiB. The *floor* is what nbdkit file took for the same "
        "requests, plus the hash and the codec at the speed of `nbdedup "
        "bench`, for the share of the blocks that need them: nothing that "
        "hashes and compresses takes less. The peers, all on the same disk: "
        "`qemu-nbd` with a qcow2 image (`qcow2`), with an overlay on a raw "
        "file (`qcow2-overlay`), and with compressed writes, which qcow2 "
        "accepts only once for each cluster (`qcow2-compressed`).", "")


def peers_of(summaries):
    return [p for p in ("qcow2", "qcow2-overlay", "qcow2-compressed")
            if any(p in s for s in summaries.values())]


def table(page, summaries):
    peers = peers_of(summaries)
    columns = ["line", "file, MiB/s", "nbdedup, MiB/s", "ratio", *peers,
               "CPU, file", "CPU, nbdedup", "floor", "× floor",
               "p99 µs, file", "p99 µs, nbdedup"]
    page.add("| " + " | ".join(columns) + " |",
             "| --- |" + " ---: |" * (len(columns) - 1))
    for name, s in summaries.items():
        file, own = s.get("file"), s["nbdedup"]
        cells = [f"`{name}`", number(file, "bytes_per_second", MIB, 0),
                 number(own, "bytes_per_second", MIB, 0),
                 f"**{number(own, 'ratio')}**",
                 *(number(s.get(p), "ratio") for p in peers),
                 number(file, "cpu_per_gib"), number(own, "cpu_per_gib"),
                 number(own, "floor_per_gib"), number(own, "floor_ratio"),
                 number(file, "latency_p99_us", 1, 0),
                 number(own, "latency_p99_us", 1, 0)]
        page.add("| " + " | ".join(cells) + " |")
    page.add("")


def aged_table(page, summaries):
    page.add("| line | fresh, MiB/s | aged, MiB/s | aged ÷ fresh | p50 µs, "
             "fresh | p50 ÷ | p99 µs, fresh | p99 ÷ |",
             "| --- |" + " ---: |" * 7)
    for name, s in summaries.items():
        fresh, old = s["nbdedup"], s.get("nbdedup-aged")
        cells = [f"`{name}`", number(fresh, "bytes_per_second", MIB, 0),
                 number(old, "bytes_per_second", MIB, 0),
                 f"**{number(old, 'fresh_ratio')}**",
                 number(fresh, "latency_p50_us", 1, 0),
                 number(old, "fresh_p50_ratio"),
                 number(fresh, "latency_p99_us", 1, 0),
                 number(old, "fresh_p99_ratio")]
        page.add("| " + " | ".join(cells) + " |")
    page.add("")


def groups(page):
    for name, title in GROUPS.items():
        summaries = page.group(name)
        if not summaries:
            continue
        page.add(f"## {title}", "", TEXTS[name], "")
        page.plot(name.replace(" ", "-"), f"{title}: speed",
                  bars, "speed relative to nbdkit file",
                  [(line, {which: f.get("ratio") for which, f in s.items()
                           if which != "file"})
                   for line, s in summaries.items()])
        table(page, summaries)
        if name == "aged":
            aged_table(page, summaries)


def cpu(page):
    rows = [(line, {"file": s["file"]["cpu_per_gib"],
                    "floor": s["nbdedup"]["floor_per_gib"],
                    "nbdedup": s["nbdedup"]["cpu_per_gib"]})
            for line, s in page.summaries.items()
            if "floor_per_gib" in s["nbdedup"] and "file" in s]
    if rows:
        page.add("## Processor time and its floor", "")
        page.plot("cpu", "processor time", bars,
                  "server CPU, seconds for each GiB (logarithmic)",
                  rows, log=True)


def latency(page):
    rows = [(line, which, f) for line, s in page.summaries.items()
            for which, f in s.items() if "half_latency_p50_us" in f]
    if not rows:
        return
    page.add("## Latency at half of the rate", "",
             "The client sends half of the requests that the same server "
             "answered in the lines above, evenly. Microseconds; in brackets "
             "the ratio to nbdkit file at half of its own rate.", "",
             "nbdkit file works only while it answers. nbdedup hashes and "
             "compresses in threads of its own. While less than half of "
             "dirty-max is taken only half of them run, and below three "
             "eighths they give way after every 32 KiB. "
             "What is left, with two processors, is the fold of each "
             "second, and the kernel's thread that writes for its sync: one "
             "request in a hundred waits for them, and nbdkit file syncs "
             "nothing. A lower priority of the threads (nice 5 to 19, "
             "SCHED_BATCH), other slices (0.1 to 100 ms), smaller batches and "
             "a fold that gives way did not change it; SCHED_IDLE would let a "
             "busy guest stop all writes.", "")
    page.plot("latency", "latency at half of the rate", bars,
              "p99 at half of the rate, microseconds (logarithmic)",
              [(line, {which: f["half_latency_p99_us"] for which, f in
                       page.summaries[line].items()})
               for line in dict.fromkeys(line for line, _, _ in rows)],
              log=True)
    page.add("| line | server | requests/s | p50 | p95 | p99 | max |",
             "| --- | --- |" + " ---: |" * 5)
    for line, which, f in rows:
        cells = [number(f, "half_iops", 1, 0)]
        for name in ("p50", "p95", "p99"):
            cells.append(number(f, f"half_latency_{name}_us", 1, 0))
            if f.get(f"half_{name}_ratio") is not None:
                cells[-1] += f" ({f[f'half_{name}_ratio']:.2f})"
        cells.append(number(f, "half_latency_max_us", 1, 0))
        page.add(f"| `{line}` | {which} | " + " | ".join(cells) + " |")
    page.add("")


def slower(page):
    """Where nbdedup is slower than a peer, by reason."""
    reasons = {}
    for line, s in page.summaries.items():
        own = s["nbdedup"]["bytes_per_second"]
        for peer, f in s.items():
            if peer.startswith("nbdedup") or \
               own >= SLOWER * f["bytes_per_second"]:
                continue
            lines = reasons.setdefault(why(line, peer), {})
            lines.setdefault(line, []).append(
                f"{own / f['bytes_per_second']:.2f} of {peer}")
    page.add("## Where nbdedup is slower, and why", "")
    for text, lines in reasons.items():
        page.add(f"- {text} " + "; ".join(
            f"`{line}`: {', '.join(of)}" for line, of in lines.items()) + ".")
    if not reasons:
        page.add("It is not slower than a peer in any line.")
    page.add("")


def growing(page, ddt, fill):
    if ddt or fill:
        page.add("## A pool that fills", "",
                 "`make bench-ddt` fills the metadata through the engine's own "
                 "code, without data; `make bench-fill` writes real blocks of "
                 "4 KiB through NBD. Blocks each second, at each size:", "")
        page.plot("fill", "speed against the size of the pool", curves,
                  "million records in the pool", "blocks each second",
                  fill_series(ddt, fill))
    for rows, title in ((ddt, "`bench-ddt`:"), (fill, "`bench-fill`:")):
        if rows:
            page.add(title, "", *fill_table(rows), "")
    if ddt:
        page.add("## Sizing", "", *sizing(ddt), "")


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json", help="what make bench wrote")
    parser.add_argument("--docs", required=True, metavar="DIR",
                        help="where the page and its plots go")
    return parser.parse_args()


def growing_json(docs, name):
    path = os.path.join(docs, f"benchmarks-{name}.json")
    return read_lines(path) if os.path.exists(path) else []


def write(page):
    """Write the page.  Plots of an older one must not stay beside it."""
    while page.lines[-1] == "":
        page.lines.pop()
    for name in os.listdir(page.docs):
        if fnmatch.fnmatch(name, "benchmarks-*.svg") and \
           name not in page.plots:
            os.unlink(os.path.join(page.docs, name))
    with open(os.path.join(page.docs, "benchmarks.md"), "w") as f:
        f.write("\n".join(page.lines) + "\n")


def main():
    args = parse_arguments()
    with open(args.json) as f:
        page = Page(json.load(f), args.docs)
    if not page.summaries:
        raise BenchError(f"{args.json}: has no complete line: run make bench")
    head(page)
    how_to_read(page)
    groups(page)
    cpu(page)
    latency(page)
    slower(page)
    growing(page, growing_json(args.docs, "ddt"),
            growing_json(args.docs, "fill"))
    write(page)
    copy = os.path.join(args.docs, "benchmarks.json")
    if os.path.realpath(copy) != os.path.realpath(args.json):
        shutil.copyfile(args.json, copy)


if __name__ == "__main__":
    try:
        main()
    except (BenchError, OSError, KeyError, ValueError) as e:
        sys.exit(f"bench-page: {type(e).__name__}: {e}")

#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause

"""Print documents of drift of an invented fleet: drift-fixture.py [OPTION...]

Prints a JSON array, oldest first, of documents as "nbdedup drift --json" prints
them for one golden image; the same options give the same figures.  Every
clone's classes add up to its logical blocks.
"""

import argparse
import json
import random
import sys


def clone(name, rnd, speed, age, golden_blocks):
    """A machine that has diverged for a part of its life, 'age' (0 .. 1)."""
    written = int(golden_blocks * speed * age * (0.9 + 0.2 * rnd.random()))
    same = max(golden_blocks - int(written * 0.6), golden_blocks // 8)
    moved = int(written * 0.10)
    sibling = int(written * 0.55)
    unique = int(written * 0.35)
    return {"name": name, "zero": 200000 - written // 3, "golden_same": same,
            "golden_moved": moved, "sibling": sibling, "unique": unique,
            "logical": same + moved + sibling + unique,
            "only_here_bytes": unique * 16384 * 2 // 5 // 512 * 512}


def document(golden, time, clones, golden_blocks):
    logical = golden_blocks + sum(c["logical"] for c in clones)
    distinct = golden_blocks + sum(c["unique"] + c["sibling"] // 3
                                   for c in clones)
    return {"golden": golden, "time": time, "block_size": 16384,
            "golden_blocks": golden_blocks, "clones": clones,
            "fleet": {"logical": logical, "distinct": distinct,
                      "dedup_ratio": logical / distinct if distinct else None,
                      "distinct_stored_bytes": distinct * 16384 * 4 // 9}}


# Of a clone's unique bytes and of those that siblings have: the parts, per
# cent, that a file has.
FILES = (("/var/log/syslog", "logs", 20, 0),
         ("/var/lib/mysql/ibdata1", "databases", 25, 0),
         ("/usr/lib/x86_64-linux-gnu/libssl.so.3", "package upgrade", 2, 50),
         ("/usr/bin/python3.11", "package upgrade", 0, 30),
         ("<journal>", "journal", 10, 0),
         ("<free space>", "deleted but not trimmed", 25, 10),
         ("/var/cache/apt/archives/a.deb", "caches and temporary files", 8, 0),
         ("<metadata>", "metadata", 10, 10))


def add(sums, key, name, sibling, unique):
    entry = sums.setdefault(name, {key: name, "sibling": 0, "unique": 0})
    entry["sibling"] += sibling
    entry["unique"] += unique
    return entry


def by_bytes(sums):
    return sorted(sums.values(), key=lambda e: -e["sibling"] - e["unique"])


def add_files(clone, block_size):
    """The lists of --files, whose sums are the classes' bytes."""
    files, causes, packages = {}, {}, {}
    left = [clone["sibling"] * block_size, clone["unique"] * block_size]
    whole = list(left)
    for path, cause, unique, sibling in FILES:
        part = [whole[0] * sibling // 100, whole[1] * unique // 100]
        if path == FILES[-1][0]:
            part = left
        left = [a - b for a, b in zip(left, part)]
        add(files, "path", path, *part)["cause"] = cause
        add(causes, "cause", cause, *part)
        if cause == "package upgrade":
            add(packages, "package", path.rsplit("/", 1)[1], *part)
        for i, c in enumerate(path):
            if c == "/":
                add(files, "path", path[:i + 1], *part)
    clone["files"] = by_bytes(files)
    clone["causes"] = by_bytes(causes)
    clone["packages"] = by_bytes(packages)
    clone["notes"] = ["partition 5: XFS: its files cannot be seen"]


def add_map(clone, block_size):
    """A block map, for the page alone (tools/drift-map.h)."""
    rnd = random.Random(clone["name"])
    cells = []
    for i in range(1000):
        unique, sibling = rnd.randrange(257), rnd.randrange(257)
        cells.append([0, 0, 0] if i % 3 else
                     [0, min(sibling, 256 - unique), unique])
    clone["map"] = {"cell_blocks": 256, "block_size": block_size,
                    "size": 1000 * 256 * block_size, "cells": cells}


def advice(clones):
    return [{"action": "trim", "saves_bytes": 3 << 30,
             "text": "Trim free space: deleted files still take 3 GiB.",
             "commands": ["in the guest: fstrim -av"],
             "clones": [{"name": c["name"], "saves_bytes": 1 << 20}
                        for c in clones]},
            {"action": "rebase", "saves_bytes": 5 << 20,
             "text": "Rebase the clones onto golden@v2.",
             "commands": ["nbdedup rebase web golden@v2 --dry-run",
                          "nbdedup rebase web golden@v2"],
             "target": "golden@v2"}]


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--golden", default="golden@v1")
    p.add_argument("--samples", type=int, default=60)
    p.add_argument("--clones", type=int, default=6)
    p.add_argument("--days", type=float, default=60)
    p.add_argument("--blocks", type=int, default=100000)
    p.add_argument("--start", type=int, default=1767225600)
    p.add_argument("--name", default=None, help="of the first clone")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--files", action="store_true",
                   help="the last document has those keys, and advice")
    args = p.parse_args()

    names = ["web", "db", "python", "compiler", "log", "idle"]
    names = [names[i] if i < len(names) else "node%03d" % i
             for i in range(args.clones)]
    if args.name is not None:
        names[0] = args.name
    rnd = random.Random(args.seed)
    speed = {n: 0.03 + rnd.random() ** 3 for n in names}
    # Some clones begin later than others.
    born = {n: 0.4 * rnd.random() if i % 4 == 3 else 0
            for i, n in enumerate(names)}

    documents = []
    for i in range(args.samples):
        at = i / (args.samples - 1) if args.samples > 1 else 1
        clones = [clone(n, rnd, speed[n], at - born[n], args.blocks)
                  for n in sorted(names) if at >= born[n]]
        documents.append(document(args.golden,
                                  args.start + int(at * args.days * 86400),
                                  clones, args.blocks))
    if args.files:
        last = documents[-1]
        for c in last["clones"]:
            add_files(c, last["block_size"])
        for c in sorted(last["clones"],
                        key=lambda c: (-c["sibling"] - c["unique"],
                                       c["name"]))[:6]:
            add_map(c, last["block_size"])
        last["advice"] = advice(last["clones"])
    json.dump(documents, sys.stdout)
    print()


main()

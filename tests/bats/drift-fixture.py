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
    json.dump(documents, sys.stdout)
    print()


main()

#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""Compute the effect of dedup and compression, from raw images alone.

    ratios.py --block-size N --sector N [--lz4] IMAGE...

reads whole disk images (as "nbdedup export" writes them) and computes the
figures that "nbdedup stat" must print for a pool with these volumes, by their
definitions.  It shares no code with the engine: it cuts, hashes (BLAKE2,
whatever the pool uses) and compresses the blocks itself.

The result is one JSON document.  It has "stored_bytes" and "compress_ratio"
with --lz4 only: each distinct block is compressed on its own, if that saves a
sector, and rounded up to whole sectors.
"""

import argparse
import hashlib
import json
import os
import sys


def blocks(path, block_size):
    """Yield the blocks of an image, without holes; the last one is padded."""
    zero = bytes(block_size)
    with open(path, "rb") as image:
        while True:
            block = image.read(block_size)
            if not block:
                return
            block = block.ljust(block_size, b"\0")
            if block != zero:
                yield block


def stored_size(block, sector, compress):
    """The size of one record's sectors, in bytes."""
    def sectors(length):
        return (length + sector - 1) // sector * sector

    if compress is None:
        return sectors(len(block))
    return min(sectors(len(compress(block))), sectors(len(block)))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--block-size", type=int, required=True)
    parser.add_argument("--sector", type=int, default=512)
    parser.add_argument("--lz4", action="store_true")
    parser.add_argument("image", nargs="+")
    args = parser.parse_args()

    compress = None
    if args.lz4:
        import lz4.block
        compress = lambda b: lz4.block.compress(b, store_size=False)

    logical = 0
    stored = 0
    volumes = []
    seen = set()
    for path in args.image:
        own = 0
        for block in blocks(path, args.block_size):
            own += len(block)
            digest = hashlib.blake2b(block, digest_size=32).digest()
            if digest not in seen:
                seen.add(digest)
                stored += stored_size(block, args.sector, compress)
        volumes.append({"image": path, "size": os.path.getsize(path),
                        "logical_bytes": own})
        logical += own

    record_bytes = len(seen) * args.block_size
    result = {"logical_bytes": logical, "records": len(seen),
              "record_bytes": record_bytes,
              "dedup_ratio": logical / record_bytes if seen else None,
              "volumes": volumes}
    if args.lz4:
        result["stored_bytes"] = stored
        result["compress_ratio"] = record_bytes / stored if seen else None
    json.dump(result, sys.stdout, indent=1)
    print()


main()

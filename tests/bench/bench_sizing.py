# SPDX-License-Identifier: BSD-3-Clause
"""How a growing pool behaves, and what it takes: from the JSON of bench-ddt
and bench-fill, an object on each line."""

import json
import os
import re

from bench_lines import GIB, KIB, MIB, name_size

TIB = 1 << 40
JOURNAL_MAX = 64 * MIB          # JOURNAL_MAX_BYTES of disk/journal.h
# The model of "nbdedup estimate": its constants, and their source.
SIZING_H = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                        "../../lib/estimate/sizing.h")
FIXED = 192 * MIB               # record-cache, dirty-max, and 64 MiB
RATES = (("image", "new, image order"), ("scattered", "new, scattered"),
         ("run1", "duplicates, runs of 1"),
         ("run1000", "duplicates, runs of 1000"),
         ("returned", "given back"), ("overwritten", "overwritten at random"))


def constants():
    """The numbers of sizing.h by name, without SIZING_."""
    with open(SIZING_H) as f:
        return {name: float(value) for name, value in
                re.findall(r"^#define SIZING_(\w+) ([\d.]+)$", f.read(), re.M)}


def per_record(block):
    """What "estimate" says of each of many records in blocks of this size,
    each mapped once, incompressible: pool.db and its copy, the summary, the
    ddt-cache."""
    c = constants()
    segment = 4 * MIB
    return (2 * (c["DB_RECORD_BYTES"] + c["DB_POINTER_BYTES"] +
                 c["DB_SEGMENT_BYTES"] * block / segment),
            c["SUMMARY_RECORD_BYTES"],
            c["FILTER_BITS"] / 8 * 64 / c["FILTER_SHARE"])


def read_lines(path):
    """An object for each size; of two runs of one size the later one."""
    with open(path) as f:
        rows = [json.loads(line) for line in f if line.strip()]
    sizes = {row["millions"]: row for row in rows}
    return [sizes[millions] for millions in sorted(sizes)]


def fill_series(ddt, fill):
    """What curves () takes: the rates over the size."""
    return [(name + suffix, [(row["millions"], row[key]) for row in rows
                             if row.get(key)], color, dashed)
            for rows, suffix, dashed in ((ddt, "", False),
                                         (fill, ", through NBD", True))
            for color, (key, name) in enumerate(RATES)
            if any(row.get(key) for row in rows)]


def fill_table(rows):
    sometimes = ("overwritten", "disk_ms", "overwritten_bytes")
    columns = [(key, name) for key, name in
               (*RATES, ("longest_ms", "longest, ms"),
                ("disk_ms", "longest plain read meanwhile, ms"),
                ("overwritten_bytes", "written for each overwritten block"))
               if key not in sometimes or any(row.get(key) for row in rows)]
    head = [name for _, name in columns]
    yield "| million records | " + " | ".join(head) + " |"
    yield "| ---: |" + " ---: |" * len(head)
    for row in rows:
        cells = [f"{row[key]:,.0f}" if row.get(key) else "–"
                 for key, _ in columns]
        yield f"| {row['millions']:g} | " + " | ".join(cells) + " |"


def size_text(size):
    for unit, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size / KIB:.3g} KiB"


def sizing(ddt):
    """A table and a formula, from the largest size that was measured."""
    row = max(ddt, key=lambda r: r["millions"])
    database = row["pooldb_bytes"]
    others = max(0, row["disk_bytes"] - database)
    written = row["written_bytes"]
    model, summary, cache_each = per_record(4 * KIB)
    yield (f"Measured with {row['millions']:g} million records: "
           f"{database:.0f} bytes of each record in `pool.db`, its copy and "
           f"their WALs; {others:.0f} in summaries, filter and journal; "
           f"{written:.0f} bytes of metadata written, and "
           f"{row['read_bytes']:.0f} read, for each new block in image order; "
           f"{row.get('rss_mib', 0):.0f} MiB of memory, with the default "
           "`ddt-cache`.")
    yield (f"`nbdedup estimate` reckons with {model:.0f} bytes in `pool.db` "
           f"and its copy, and {summary:.0f} in summaries.")
    yield ""
    yield "For *S* bytes of distinct data in blocks of *B* bytes, before " \
        "compression (a TiB that is stored holds *C* times as many blocks, " \
        "if they compress to 1 / *C*):"
    yield ""
    yield "    records             N = S / B"
    yield (f"    pool.db, its copy   {database:.0f} × N      (half of it with "
           "metadata-copy=off)")
    yield f"    summaries, filter   {others:.0f} × N"
    yield f"    journal             at most {JOURNAL_MAX // MIB} MiB"
    yield (f"    ddt-cache           {cache_each:.1f} × N      (less "
           "works, but new blocks then cost reads of the index)")
    yield ("    memory              ddt-cache + record-cache + dirty-max + "
           "64 MiB")
    yield (f"    written             (B / C + {written:.0f}) / (B / C)   for "
           "each byte stored")
    yield ""
    yield ("| block | records for each TiB | `pool.db`, copy | summaries, "
           "filter | `ddt-cache` | memory | written ÷ stored, *C* = 1 | "
           "*C* = 2 |")
    yield "| ---: |" + " ---: |" * 7
    for block in [KIB << n for n in range(2, 8)] + [MIB]:
        n = TIB / block
        cache = cache_each * n
        yield (f"| {name_size(block)} | {n / 1e6:.3g} M | "
               f"{size_text(database * n)} | {size_text(others * n)} | "
               f"{size_text(cache)} | {size_text(cache + FIXED)} | "
               f"{1 + written / block:.3f} | {1 + 2 * written / block:.3f} |")

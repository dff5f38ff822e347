# SPDX-License-Identifier: BSD-3-Clause
"""What this machine is, and how fast it is by itself."""

import json
import os
import platform
import re
import sys
import tempfile
import time

from bench_lines import GIB, MIB, all_lines
from bench_servers import run


def first_match(path, pattern):
    with open(path) as f:
        found = re.search(pattern, f.read(), re.M)
    return found[1].strip().strip('"') if found else "unknown"


def version(*command):
    """The first number with a dot that a program says of itself."""
    found = re.search(r"\d+\.[\w.]+", run(*command))
    return found[0] if found else "unknown"


def is_busy(load, cpus):
    """Would so much other work disturb the figures?"""
    return load > 0.3 * cpus


def wait_until_idle(seconds):
    """Let the build of "make bench" go from the average of the load."""
    cpus = len(os.sched_getaffinity(0))
    deadline = time.monotonic() + seconds
    if is_busy(os.getloadavg()[0], cpus):
        print(f"waiting for an idle machine, at most {seconds} seconds",
              file=sys.stderr, flush=True)
    while is_busy(os.getloadavg()[0], cpus) and time.monotonic() < deadline:
        time.sleep(1)


def plain_file(directory):
    """How fast a file is: bytes per second, through the page cache, with a
    sync at the end, and read back from the page cache."""
    size = 256 * MIB
    data = os.urandom(MIB)
    buffer = bytearray(MIB)
    with tempfile.TemporaryFile(dir=directory, buffering=0) as f:
        start = time.monotonic()
        for _ in range(size // MIB):
            f.write(data)
        written = time.monotonic()
        os.fsync(f.fileno())
        synced = time.monotonic()
        f.seek(0)
        read = time.monotonic()
        while f.readinto(buffer):
            pass
        end = time.monotonic()
    return {"write": size / (written - start),
            "write_and_sync": size / (synced - start),
            "read": size / (end - read)}


def describe(args):
    memory = int(first_match("/proc/meminfo", r"^MemTotal:\s*(\d+)")) * 1024
    return {
        "cpu": first_match("/proc/cpuinfo", r"^model name\s*:\s*(.*)"),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": memory,
        "kernel": platform.release(),
        "system": first_match("/etc/os-release", r"^PRETTY_NAME=(.*)"),
        "file_system": run("findmnt", "-n", "-o", "FSTYPE", "-T",
                           args.dir).strip(),
        "nbdedup": version(args.nbdedup, "--version"),
        "nbdkit": version("nbdkit", "--version"),
        "qemu": version("qemu-nbd", "--version"),
        "fio": version("fio", "--version"),
        "plain_file_bytes_per_second": plain_file(args.dir),
    }


def own_speed(args):
    """What "nbdedup bench" says, the fastest of its runs: {name: {block:
    {compressible percent: seconds}}}, and the same of expanding as
    NAME-expand."""
    speed = {}
    for percent in sorted({line.compressible for line in all_lines()}):
        for _ in range(2 if args.quick else 3):
            for row in json.loads(run(args.nbdedup, "bench", "--json",
                                      "--compressible", str(percent))):
                add_speed(speed, row, str(percent))
    return speed


def add_speed(speed, row, percent):
    if row["block_size"] < 4096:
        return
    for key, suffix in (("ns", ""), ("ns_decompress", "-expand")):
        if key in row:
            sizes = speed.setdefault(row["name"] + suffix, {})
            at = sizes.setdefault(str(row["block_size"]), {})
            at[percent] = min(row[key] / 1e9, at.get(percent, 1.0))


def floor(line, speed, hash_name, file_cpu_per_gib):
    """The CPU seconds for each GiB that this line cannot do without: those
    of nbdkit file, and of the hash and the codec for the share of the blocks
    that need them.  None if "nbdedup bench" does not time the codec."""
    if line.codec not in speed and line.codec != "none":
        return None
    blocks = GIB / min(line.request, line.block)

    def of(name):
        if line.codec == "none" and name != hash_name:
            return 0.0
        return speed[name][str(line.block)][str(line.compressible)]

    writes = line.writes * (line.hashed * of(hash_name) +
                            line.new * of(line.codec))
    # What does not compress is stored as it is, and only copied.
    reads = (1 - line.writes) * of(line.codec + "-expand") \
        if line.compressible else 0.0
    return file_cpu_per_gib + blocks * (writes + reads)

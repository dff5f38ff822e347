#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause

"""Measure "nbdedup estimate" on an image in the page cache.

    bench-estimate.py [--image FILE] [--gib N] [--runs N] [NBDEDUP]

Times, in turn: cat and sha256sum of the file, as baselines, and estimate
with the default block sizes, with one, with --exact, and with little memory.
Without --image the file is made of this machine's programs and libraries
(at most N GiB).  Prints the medians of the runs: GB (10^9 bytes) of data,
without holes, per second; the processor time for one GB; and the peak of
memory.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time


def make_image(path, max_bytes):
    """Join files of /usr, each padded to a multiple of 4 KiB."""
    done = 0
    with open(path, "wb") as out:
        for folder, dirs, names in os.walk("/usr"):
            dirs.sort()
            for name in sorted(names):
                source = os.path.join(folder, name)
                if os.path.islink(source) or not os.path.isfile(source):
                    continue
                with open(source, "rb") as f:
                    data = f.read(max_bytes - done)
                data += bytes(-len(data) % 4096)
                out.write(data)
                done += len(data)
                if done >= max_bytes:
                    return


def data_bytes(path):
    """The file's size without its holes."""
    st = os.stat(path)
    return min(st.st_size, st.st_blocks * 512)


def run(argv):
    """Run a command: wall and processor seconds, peak memory in MiB."""
    start = time.monotonic()
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE) as child:
        errors = child.stderr.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        sys.exit("%s: %s" % (" ".join(argv), errors.decode()))
    return (time.monotonic() - start, usage.ru_utime + usage.ru_stime,
            usage.ru_maxrss / 1024)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--image")
    parser.add_argument("--gib", type=float, default=2)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("nbdedup", nargs="?", default="nbdedup")
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        image = args.image
        if image is None:
            image = os.path.join(folder, "image")
            make_image(image, int(args.gib * 2 ** 30))
        estimate = [args.nbdedup, "estimate", image]
        cases = [
            ("cat >/dev/null", ["cat", image]),
            ("sha256sum", ["sha256sum", image]),
            ("estimate", estimate),
            ("estimate --block-size 16K", estimate + ["--block-size", "16K"]),
            ("estimate --memory 4M", estimate + ["--memory", "4M"]),
            ("estimate --exact", estimate + ["--exact"]),
        ]
        gb = data_bytes(image) / 1e9
        print("%.2f GB of data, %d runs, %d processors, load %.1f" %
              (gb, args.runs, os.cpu_count(), os.getloadavg()[0]))
        run(cases[0][1])                # into the page cache
        results = {name: [] for name, _ in cases}
        for _ in range(args.runs):
            for name, argv in cases:
                results[name].append(run(argv))
        print("%-28s %8s %12s %9s" % ("", "GB/s", "CPU s by GB", "peak"))
        for name, _ in cases:
            wall, cpu, peak = (statistics.median(column)
                               for column in zip(*results[name]))
            print("%-28s %8.2f %12.2f %5.0f MiB" %
                  (name, gb / wall, cpu / gb, peak))


main()

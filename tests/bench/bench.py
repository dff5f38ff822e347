#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""Compare nbdedup with nbdkit's file plugin and qcow2, on the same disk.

For each line and round the servers run, one after the other, in an order that
changes with each round; each starts on a new pool, file or image.  fio's nbd
engine sends the requests.  The timed window ends when the server has answered
a FLUSH, and fio writes more in it than the plugin may keep in memory (at least
4 x dirty-max), so the time includes all of the work.

Figures are medians over the rounds; a ratio is the median of the rounds' own
ratios to nbdkit file, so 1.0 is as fast as no deduplication at all.  Reads come
from a warm page cache, except in the lines "cold".  CPU is the server's seconds
for each GiB; the floor is what nbdkit file took in the same rounds, plus hash
and codec at the speed of "nbdedup bench", for the share of the blocks that need
them.  Lines with "half" measure the latency again, while the client sends half
of what the same server could do.

Every measurement is in the JSON file as soon as it is done; if the file is
there, a run goes on where it stopped.  "make bench-page" writes
docs/benchmarks.md from it.

Run it with "make bench", e.g. make bench BENCH_ARGS='--quick' (minutes), or
make bench BENCH_ARGS='--only mix-* --rounds 5'.
"""

import argparse
import fnmatch
import os
import subprocess
import sys

sys.dont_write_bytecode = True

from bench_fio import measure
from bench_images import IMAGE_LINES, Images, cannot, measure_image
from bench_lines import MIB, all_lines, parse_size
from bench_machine import wait_until_idle
from bench_results import Results
from bench_servers import BenchError

LINES = all_lines() + IMAGE_LINES
QUICK = {"rounds": 1, "size": 256 * MIB, "seconds": 1.0}
FULL = {"rounds": 3, "size": 1024 * MIB, "seconds": 5.0}


def read_env(path):
    """Read the results of configure from env.bash."""
    names = ("plugin", "top_builddir", "top_srcdir", "sanitizer_preload")
    script = 'source "$1"; shift; for n; do printf "%s\\n" "${!n}"; done'
    out = subprocess.run(["bash", "-c", script, "bash", path, *names],
                         check=True, capture_output=True, text=True).stdout
    return out.split("\n")


def make_parser():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true",
                        help="some lines, 1 round, 256M: minutes")
    parser.add_argument("--rounds", type=int, help="default 3, or $ROUNDS")
    parser.add_argument("--size", type=parse_size,
                        help="of the volume, and written (default 1G, or "
                             "$SIZE)")
    parser.add_argument("--seconds", type=float,
                        help="of what has no size: flushes, and latencies at "
                             "half of the rate (default 5)")
    parser.add_argument("--dirty-max", type=parse_size, default=64 * MIB,
                        help="for the plugin (default 64M, the plugin's own)")
    parser.add_argument("--dir", default=os.environ.get("TMPDIR", "/var/tmp"),
                        help="where pools and files go: on the disk to measure")
    parser.add_argument("--only", action="append", metavar="LINE",
                        help="a line, or a pattern of lines (mix-*)")
    parser.add_argument("--list", action="store_true",
                        help="print the lines, and who is measured in each")
    parser.add_argument("--image", metavar="FILE",
                        help="a raw image for image-in and image-out (default: "
                             "the tests' own, or one with files of /usr)")
    parser.add_argument("--init", action="append", default=[],
                        help="an option for nbdedup init, e.g. "
                             "--init=--hash=blake2b512")
    parser.add_argument("--key", action="append", default=[],
                        help="KEY=VALUE for the plugin")
    parser.add_argument("--json", default="bench.json", metavar="FILE",
                        help="all figures (default ./bench.json)")
    return parser


def choose_lines(args, parser):
    if args.only:
        lines = [line for line in LINES if any(
            fnmatch.fnmatch(line.name, o) for o in args.only)]
        for o in args.only:
            if not any(fnmatch.fnmatch(line.name, o) for line in LINES):
                parser.error(f"--only {o}: is no line: see --list")
        return lines
    return [line for line in LINES if line.quick or not args.quick]


def set_defaults(args):
    for name, value in (QUICK if args.quick else FULL).items():
        if getattr(args, name) is None:
            text = os.environ.get(name.upper())
            if text and name in ("rounds", "size"):
                value = parse_size(text)
            setattr(args, name, value)
    args.hash = "sha256"
    for option in args.init:
        if option.startswith("--hash="):
            args.hash = option.partition("=")[2]


def parse_arguments():
    parser = make_parser()
    args = parser.parse_args()
    set_defaults(args)
    lines = choose_lines(args, parser)
    if args.list:
        for line in lines:
            print(f"{line.name:34} {line.group:12} {' '.join(line.servers)}")
        sys.exit(0)
    if args.size < 4 * args.dirty_max:
        parser.error("--size must be at least 4 x --dirty-max: less would "
                     "time how fast memory is")
    if args.rounds < 1:
        parser.error("--rounds must be at least 1")
    if "NBDEDUP_ENV" not in os.environ:
        parser.error("run it through 'make bench'")
    args.plugin, build, args.top_srcdir, args.preload = read_env(
        os.environ["NBDEDUP_ENV"])[:4]
    args.nbdedup = os.path.join(build, "tools", "nbdedup")
    images = os.environ.get("NBDEDUP_IMAGES", os.path.join(build, "images"))
    for name in ("debian.raw", "debian-small.raw"):
        if args.image is None and os.path.exists(os.path.join(images, name)):
            args.image = os.path.join(images, name)
    return args, lines


HEAD = ("line", "server", "MiB/s", "ratio", "p50 us", "p99 us", "half p50",
        "half p99", "CPU/GiB", "floor", "x floor", "MiB mem")
FORMAT = "{:30} {:16}" + " {:>8}" * (len(HEAD) - 2)


def cell(figures, key, scale=1, digits=0):
    value = figures.get(key)
    return "" if value is None else f"{value / scale:.{digits}f}"


def print_line(line, summary):
    name = line.name
    for which, f in summary.items():
        print(FORMAT.format(
            name, which, cell(f, "bytes_per_second", MIB),
            cell(f, "ratio", 1, 2),
            cell(f, "latency_p50_us"), cell(f, "latency_p99_us"),
            cell(f, "half_latency_p50_us"), cell(f, "half_latency_p99_us"),
            cell(f, "cpu_per_gib", 1, 2), cell(f, "floor_per_gib", 1, 2),
            cell(f, "floor_ratio", 1, 2),
            cell(f, "peak_rss_bytes", MIB)).rstrip(), flush=True)
        name = ""


def run_line(args, line, results, images):
    """All rounds of a line that the results lack."""
    for number in range(args.rounds):
        shift = number % len(line.servers)
        for which in line.servers[shift:] + line.servers[:shift]:
            if results.has(line, number, which):
                continue
            figures = measure(args, line, which) if line.fio else \
                measure_image(args, line, which, images)
            results.add(line, number, which, figures)
    print_line(line, results.summary(line))


def main():
    # mke2fs is there, also for who is not root.
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    args, lines = parse_arguments()
    if not args.quick and not args.only:
        wait_until_idle(120)
    results = Results(args.json, args)
    images = Images(args)
    print(FORMAT.format(*HEAD), flush=True)
    try:
        for line in lines:
            reason = cannot(args, line)
            if reason:
                print(f"{line.name:30} left out: it {reason}", flush=True)
            else:
                run_line(args, line, results, images)
    finally:
        if images.real_name:
            results.data["machine"]["image"] = images.real_name
        images.close()
        results.save()
    print(f"all figures: {os.path.abspath(args.json)}")


if __name__ == "__main__":
    try:
        main()
    except (BenchError, OSError, subprocess.CalledProcessError) as e:
        sys.exit(f"bench: {e}")
    except KeyboardInterrupt:
        sys.exit("bench: interrupted: run it again, and it goes on")

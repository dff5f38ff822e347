#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""Compare nbdedup with nbdkit's file plugin, on the same disk.

For each workload and round both servers run, one after the other, in an
order that changes with each round; each starts on a new pool or file.  fio's
nbd engine sends the requests.  The timed window ends when the server has
answered a FLUSH, and fio writes more in it than the plugin may keep in memory
(at least 4 x dirty-max), so the time includes all of the work.

Figures are medians over the rounds; "ratio" is the median of the rounds'
own ratios, nbdedup to file, so 1.0 is as fast as no deduplication at all.
Reads come from a warm page cache on both sides.

import-new and import-duplicate compare "nbdedup import" of an image (without
a server; the time includes closing the pool) with "nbdcopy --flush" of the
same image to a new file of nbdkit file.  Half of the image's bytes compress
away.  Their CPU seconds are those of all programs.

Run it with "make bench", e.g. make bench BENCH_ARGS='--rounds 5'.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20

# name, fio's parameters, the volume's block size (None: the default), and
# the preparation: "fill" the volume with its data, "twin" the same data in
# another volume.
WORKLOADS = [
    ("randwrite-4k", dict(rw="randwrite", bs="4k", iodepth=16), "4K", None),
    ("randwrite-16k", dict(rw="randwrite", bs="16k", iodepth=16), "16K", None),
    ("randwrite-16k-mix",
     dict(rw="randwrite", bs="16k", iodepth=16, dedupe_percentage=30,
          buffer_compress_percentage=30), "16K", None),
    ("randread-4k", dict(rw="randread", bs="4k", iodepth=16), "4K", "fill"),
    ("randread-16k", dict(rw="randread", bs="16k", iodepth=16), "16K", "fill"),
    ("seqwrite-128k-new", dict(rw="write", bs="128k", iodepth=4), None, None),
    ("seqwrite-128k-duplicate",
     dict(rw="write", bs="128k", iodepth=1), None, "twin"),
    ("seqwrite-128k-zero",
     dict(rw="write", bs="128k", iodepth=4, zero_buffers=1), None, None),
    ("write-flush-4k",
     dict(rw="randwrite", bs="4k", iodepth=1, fsync=1), "4K", None),
]

# The same, but of a whole program: what is in the pool already.
IMPORTS = {"import-new": False, "import-duplicate": True}
NAMES = [w[0] for w in WORKLOADS] + list(IMPORTS)


def read_env(path):
    """Read the results of configure from env.bash."""
    script = 'source "$1"; printf "%s\\n" "$plugin" "$top_builddir"'
    out = subprocess.run(["bash", "-c", script, "bash", path], check=True,
                         capture_output=True, text=True).stdout.split("\n")
    return out[0], out[1]


def parse_size(text):
    units = {"K": 1 << 10, "M": MIB, "G": 1 << 30}
    text = text.upper()
    if text[-1:] in units:
        return int(text[:-1]) * units[text[-1]]
    return int(text)


class Server:
    """nbdkit with one plugin, on a Unix socket."""

    def __init__(self, directory, arguments):
        self.socket = os.path.join(directory, "sock")
        self.log = os.path.join(directory, "server.log")
        pid_file = os.path.join(directory, "pid")
        for path in (self.socket, pid_file):
            if os.path.exists(path):
                os.unlink(path)
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                ["nbdkit", "-f", "-U", self.socket, "-P", pid_file] + arguments,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + 30
        while not (os.path.exists(pid_file) and os.path.getsize(pid_file)):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                raise RuntimeError("nbdkit did not start: " +
                                   open(self.log).read())
            time.sleep(0.02)
        self.pid = self.process.pid

    def cpu_seconds(self):
        with open(f"/proc/{self.pid}/stat") as f:
            fields = f.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_bytes(self):
        with open(f"/proc/{self.pid}/status") as f:
            for line in f:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
        raise RuntimeError("no VmHWM")

    def stop(self):
        """End the server.  Returns its processor time, including the end."""
        self.process.terminate()
        _, status, usage = os.wait4(self.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        if self.process.returncode != 0:
            raise RuntimeError(f"nbdkit ended with {self.process.returncode}: "
                               + open(self.log).read())
        return usage.ru_utime + usage.ru_stime


def run_fio(directory, server, export, size, parameters):
    """One timed fio run; returns fio's figures of the one direction."""
    job = os.path.join(directory, "job.fio")
    out = os.path.join(directory, "fio.json")
    settings = dict(ioengine="nbd", size=size, io_size=size, end_fsync=1,
                    refill_buffers=1, randrepeat=1, allrandrepeat=1,
                    uri=f"nbd+unix:///{export}?socket={server.socket}")
    settings.update(parameters)
    if "fsync" in settings:
        # Time, not size, limits a workload that waits for the disk.
        settings.update(time_based=1, runtime=5)
    with open(job, "w") as f:
        f.write("[job]\n")
        for key, value in settings.items():
            f.write(f"{key}={value}\n")
    result = subprocess.run(
        ["fio", "--output-format=json", f"--output={out}", job],
        stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if result.returncode != 0:
        raise RuntimeError("fio: " + result.stdout + result.stderr +
                           open(server.log).read())
    with open(out) as f:
        text = f.read()
    job = json.loads(text[text.index("{"):])["jobs"][0]
    if job["error"]:
        raise RuntimeError(f"fio: error {job['error']}")
    side = job["read" if "read" in settings["rw"] else "write"]
    return {"bytes_per_second": side["io_bytes"] * 1000 / side["runtime"],
            "iops": side["total_ios"] * 1000 / side["runtime"],
            "io_bytes": side["io_bytes"],
            "seconds": side["runtime"] / 1000,
            "latency_p99_us":
                side["clat_ns"]["percentile"]["99.000000"] / 1000,
            "flush_p50_us": job["sync"]["lat_ns"].get(
                "percentile", {}).get("50.000000", 0) / 1000,
            "flush_p99_us": job["sync"]["lat_ns"].get(
                "percentile", {}).get("99.000000", 0) / 1000}


def measure(args, which, workload):
    """One round of one workload on one server."""
    _, parameters, block_size, before = workload
    directory = tempfile.mkdtemp(prefix="nbdedup-bench.", dir=args.dir)
    try:
        if which == "file":
            names = {n: os.path.join(directory, n) for n in ("disk", "twin")}
            for path in names.values():
                with open(path, "w") as f:
                    f.truncate(args.size)
            # In dir mode file has the same exports as the pool.
            os.mkdir(os.path.join(directory, "exports"))
            for n, path in names.items():
                os.rename(path, os.path.join(directory, "exports", n))
            arguments = ["file", "dir=" + os.path.join(directory, "exports")]
        else:
            pool = os.path.join(directory, "pool")
            run = lambda *a: subprocess.run(
                [args.nbdedup, "-p", pool] + list(a), check=True)
            run("init", *args.init)
            for n in ("disk", "twin"):
                run("create", n, str(args.size),
                    *(["--block-size", block_size] if block_size else []))
            arguments = [args.plugin, "pool=" + pool,
                         f"dirty-max={args.dirty_max}"] + args.key

        server = Server(directory, arguments)
        try:
            if before == "fill":
                run_fio(directory, server, "disk", args.size,
                        dict(rw="write", bs="128k", iodepth=4))
                server.stop()           # reads begin with empty caches
                server = Server(directory, arguments)
            elif before == "twin":
                run_fio(directory, server, "twin", args.size, parameters)
            cpu = server.cpu_seconds()
            figures = run_fio(directory, server, "disk", args.size, parameters)
            figures["cpu_seconds"] = server.cpu_seconds() - cpu
            figures["peak_rss_bytes"] = server.peak_bytes()
            if "write" in parameters["rw"] and "fsync" not in parameters:
                assert figures["io_bytes"] >= 4 * args.dirty_max, figures
        finally:
            # After an error, too, no file of ours may stay behind.
            if server.process.returncode is None:
                total = server.stop()
        figures["cpu_seconds_until_exit"] = total
        if which == "nbdedup":
            out = subprocess.run([args.nbdedup, "-p", pool, "stat", "--json"],
                                 check=True, capture_output=True).stdout
            stat = json.loads(out)["pool"]
            figures["stat"] = {k: stat[k] for k in (
                "logical_bytes", "record_bytes", "stored_bytes",
                "file_bytes", "metadata_bytes", "dedup_ratio",
                "compress_ratio")}
            subprocess.run([args.nbdedup, "-p", pool, "check"], check=True,
                           stdout=subprocess.DEVNULL)
        return figures
    finally:
        shutil.rmtree(directory)


def make_image(path, size):
    """Write the same bytes each time; all 4 KiB blocks are different."""
    text = b"what compresses away, line for line, in every block\n" * 40
    random_bytes = random.Random(1).randbytes
    with open(path, "wb") as f:
        for _ in range(size // MIB):
            chunk = bytearray()
            for _ in range(MIB // 4096):
                chunk += random_bytes(2048) + text[:2048]
            f.write(chunk)
        os.fsync(f.fileno())


def run_timed(command):
    """Run a command.  Returns its seconds, processor time and memory."""
    start = time.monotonic()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(" ".join(command) + " failed")
    return seconds, usage


def measure_import(args, which, image, duplicate):
    """One import, or one nbdcopy."""
    directory = tempfile.mkdtemp(prefix="nbdedup-bench.", dir=args.dir)
    server = None
    try:
        server_cpu = 0
        if which == "file":
            disk = os.path.join(directory, "disk")
            with open(disk, "w") as f:
                f.truncate(args.size)
            server = Server(directory, ["file", disk])
            os.sync()
            seconds, usage = run_timed(
                ["nbdcopy", "--flush", image,
                 f"nbd+unix:///?socket={server.socket}"])
            peak = usage.ru_maxrss * 1024 + server.peak_bytes()
            server_cpu = server.stop()
        else:
            command = [args.nbdedup, "-p", os.path.join(directory, "pool")]
            subprocess.run(command + ["init", *args.init], check=True)
            if duplicate:
                subprocess.run(command + ["import", "twin", image], check=True)
            os.sync()
            seconds, usage = run_timed(command + ["import", "disk", image])
            peak = usage.ru_maxrss * 1024
            subprocess.run(command + ["check"], check=True,
                           stdout=subprocess.DEVNULL)
        cpu = usage.ru_utime + usage.ru_stime + server_cpu
        return {"bytes_per_second": args.size / seconds, "iops": 0,
                "seconds": seconds, "latency_p99_us": 0, "flush_p50_us": 0,
                "flush_p99_us": 0, "cpu_seconds": cpu,
                "cpu_seconds_until_exit": cpu, "peak_rss_bytes": peak}
    finally:
        if server is not None and server.process.returncode is None:
            server.stop()
        shutil.rmtree(directory)


def summarize(rounds):
    """Medians of both sides, and of the rounds' ratios."""
    def median(which, key):
        return statistics.median(r[which][key] for r in rounds)

    result = {"rounds": rounds}
    for which in ("file", "nbdedup"):
        result[which] = {key: median(which, key) for key in (
            "bytes_per_second", "iops", "latency_p99_us", "flush_p50_us",
            "flush_p99_us", "cpu_seconds", "cpu_seconds_until_exit",
            "peak_rss_bytes")}
    result["ratio"] = statistics.median(
        r["nbdedup"]["bytes_per_second"] / r["file"]["bytes_per_second"]
        for r in rounds)
    return result


def print_row(name, summary):
    file, nbdedup = summary["file"], summary["nbdedup"]
    print(f"{name:24} {file['bytes_per_second'] / MIB:9.1f}"
          f" {nbdedup['bytes_per_second'] / MIB:9.1f} {summary['ratio']:6.2f}"
          f" {file['cpu_seconds']:7.2f} {nbdedup['cpu_seconds']:7.2f}"
          f" {nbdedup['peak_rss_bytes'] / MIB:7.0f}"
          f" {file['latency_p99_us']:9.0f} {nbdedup['latency_p99_us']:9.0f}",
          flush=True)


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int,
                        default=int(os.environ.get("ROUNDS") or 3))
    parser.add_argument("--size", type=parse_size,
                        default=parse_size(os.environ.get("SIZE") or "1G"),
                        help="of the volume, and written (default 1G)")
    parser.add_argument("--dirty-max", type=parse_size, default=64 * MIB,
                        help="for the plugin (default 64M, the plugin's own)")
    parser.add_argument("--dir", default=os.environ.get("TMPDIR", "/var/tmp"),
                        help="where pools and files go: on the disk to measure")
    parser.add_argument("--only", action="append", metavar="WORKLOAD",
                        choices=NAMES)
    parser.add_argument("--init", action="append", default=[],
                        help="an option for nbdedup init, e.g. "
                             "--init=--hash=blake2b512")
    parser.add_argument("--key", action="append", default=[],
                        help="KEY=VALUE for the plugin")
    parser.add_argument("--json", default="bench.json", metavar="FILE",
                        help="all figures (default ./bench.json)")
    args = parser.parse_args()

    if args.size < 4 * args.dirty_max:
        parser.error("--size must be at least 4 x --dirty-max: less would "
                     "time how fast memory is")
    if args.rounds < 1:
        parser.error("--rounds must be at least 1")
    if "NBDEDUP_ENV" not in os.environ:
        parser.error("run it through 'make bench'")
    args.plugin, top_builddir = read_env(os.environ["NBDEDUP_ENV"])
    args.nbdedup = os.path.join(top_builddir, "tools", "nbdedup")
    return args


def main():
    args = parse_arguments()
    results = {}

    print(f"{'':24} {'MiB per second':>19} {'':6} {'server CPU s':>15}"
          f" {'VmHWM':>7} {'p99 latency us':>19}")
    print(f"{'workload':24} {'file':>9} {'nbdedup':>9} {'ratio':>6}"
          f" {'file':>7} {'nbdedup':>7} {'MiB':>7} {'file':>9} {'nbdedup':>9}",
          flush=True)
    def run_rounds(name, measure_one):
        if args.only and name not in args.only:
            return
        rounds = []
        for nr in range(args.rounds):
            order = ["file", "nbdedup"]
            if nr % 2:
                order.reverse()
            rounds.append({which: measure_one(which) for which in order})
        results[name] = summarize(rounds)
        print_row(name, results[name])

    for workload in WORKLOADS:
        run_rounds(workload[0],
                   lambda which, w=workload: measure(args, which, w))
    with tempfile.TemporaryDirectory(prefix="nbdedup-bench.",
                                     dir=args.dir) as directory:
        image = os.path.join(directory, "image")
        if not args.only or set(args.only) & set(IMPORTS):
            make_image(image, args.size)
        for name, duplicate in IMPORTS.items():
            run_rounds(name, lambda which, d=duplicate:
                       measure_import(args, which, image, d))

    with open(args.json, "w") as f:
        json.dump({"size": args.size, "dirty_max": args.dirty_max,
                   "rounds": args.rounds, "workloads": results}, f, indent=1)
    print(f"all figures: {os.path.abspath(args.json)}")


if __name__ == "__main__":
    try:
        main()
    except (RuntimeError, subprocess.CalledProcessError) as e:
        sys.exit(f"bench: {e}")

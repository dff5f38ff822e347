# SPDX-License-Identifier: BSD-3-Clause
"""One measurement of one line: fio's requests to one server."""

import json
import os
import shutil
import subprocess
import tempfile

from bench_servers import KINDS, BenchError, drop_page_cache

READ_SECONDS_MAX = 30
# How often an aged disk is overwritten.
AGED_TIMES = 10
AGED_TIMES_QUICK = 2
PERCENTILES = {"p50": "50.000000", "p95": "95.000000", "p99": "99.000000"}


def microseconds(figures):
    """p50, p95, p99 and max of one of fio's latencies."""
    found = {name: figures.get("percentile", {}).get(key, 0) / 1000
             for name, key in PERCENTILES.items()}
    found["max"] = figures.get("max", 0) / 1000
    return found


def run_fio(directory, server, export, settings):
    """Run fio's job.  Returns its figures, of reads and writes together."""
    job = os.path.join(directory, "job.fio")
    out = os.path.join(directory, "fio.json")
    with open(job, "w") as f:
        f.write("[job]\n")
        for key, value in settings.items():
            f.write(f"{key}={value}\n")
    result = subprocess.run(
        ["fio", "--output-format=json", f"--output={out}", job],
        stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if result.returncode != 0:
        raise BenchError("fio: " + result.stdout + result.stderr +
                         server.said())
    with open(out) as f:
        text = f.read()
    found = json.loads(text[text.index("{"):])["jobs"][0]
    if found["error"]:
        raise BenchError(f"fio: error {found['error']}: {server.said()}")
    side = found.get("mixed") or \
        found[next(side for side in ("read", "trim", "write")
                   if side in settings["rw"])]
    figures = {"bytes_per_second": side["io_bytes"] * 1000 / side["runtime"],
               "iops": side["total_ios"] * 1000 / side["runtime"],
               "io_bytes": side["io_bytes"],
               "seconds": side["runtime"] / 1000}
    for name, value in microseconds(side["clat_ns"]).items():
        figures[f"latency_{name}_us"] = value
    if "fsync" in settings:
        for name, value in microseconds(found["sync"]["lat_ns"]).items():
            figures[f"flush_{name}_us"] = value
    return figures


def milliseconds(args):
    """What has no size ends after so long; fio takes no fractions."""
    return f"{int(args.seconds * 1000)}ms"


def job_settings(args, line, server, export, parameters):
    jobs = parameters.get("numjobs", 1)
    settings = dict(ioengine="nbd", uri=server.uri(export), size=args.size,
                    io_size=args.size // jobs, end_fsync=1, refill_buffers=1,
                    randseed=1, group_reporting=1)
    if parameters["rw"] == "randrw":
        settings.update(unified_rw_reporting="mixed")
    if "read" in parameters["rw"]:
        settings.update(runtime=READ_SECONDS_MAX)
    settings.update(parameters)
    if "fsync" in settings:
        # Time, not size, limits a workload that waits for the disk.
        settings.update(time_based=1, runtime=milliseconds(args))
    return settings


def fill(args, line, server, export):
    """Write all of a disk, in order, with data like the line's own."""
    parameters = {key: value for key, value in line.fio.items()
                  if key.startswith("buffer_")}
    parameters.update(rw="write", bs="128k", iodepth=4)
    settings = job_settings(args, line, server, export, parameters)
    # What is written over it later must be other data.
    settings.update(randseed=2)
    run_fio(server.directory, server, export, settings)


def age(args, line, server, export):
    """Overwrite all of a full disk at random, ten times; then trim a half of
    it, scattered, and fill that half again with other data."""
    block = str(line.block)
    times = AGED_TIMES_QUICK if args.quick else AGED_TIMES
    # Without randrepeat=0 fio has the same order of places for every seed.
    common = dict(bs=block, iodepth=16, randrepeat=0)
    steps = [dict(common, rw="randwrite", randseed=10 + i)
             for i in range(times)]
    # The same seed: the same places.
    half = dict(common, randseed=5, io_size=args.size // 2)
    steps += [dict(half, rw="randtrim"), dict(half, rw="randwrite")]
    for parameters in steps:
        run_fio(server.directory, server, export,
                job_settings(args, line, server, export, parameters))


def prepare(args, line, kind):
    """Do what the line has before it.  Returns the server to measure."""
    if line.before is None:
        return kind.start("disk")
    source = {"fill": "disk", "twin": "twin", "clone": "golden"}[line.before]
    if line.before == "clone" and not kind.clones:
        source = "disk"
    server = kind.start(source)
    try:
        if line.before == "twin":
            run_fio(server.directory, server, source, job_settings(
                args, line, server, source, line.fio))
            if kind.serves_all:
                return server
        else:
            fill(args, line, server, source)
            if kind.ages:
                age(args, line, server, source)
    except BaseException:
        server.stop()
        raise
    server.stop()               # reads begin with empty caches
    if source == "golden":
        kind.clone()
    if line.cold:
        drop_page_cache(server.directory)
    return kind.start("disk")


def half_rate(args, line, server, iops):
    """The latency of a client that sends half of what would be possible."""
    rate = max(1, int(iops / 2 / line.jobs))
    parameters = dict(line.fio, time_based=1, runtime=milliseconds(args),
                      randseed=3, rate_iops=rate)
    if line.fio["rw"] == "randrw":
        writes = max(1, int(rate * line.writes))
        parameters["rate_iops"] = f"{max(1, rate - writes)},{writes}"
    settings = job_settings(args, line, server, "disk", parameters)
    del settings["io_size"]
    figures = run_fio(server.directory, server, "disk", settings)
    return {f"half_{key}": figures[key] for key in (
        "iops", "latency_p50_us", "latency_p95_us", "latency_p99_us",
        "latency_max_us")}


def timed(args, line, server):
    cpu = server.cpu_seconds()
    figures = run_fio(server.directory, server, "disk", job_settings(
        args, line, server, "disk", line.fio))
    figures["cpu_seconds"] = server.cpu_seconds() - cpu
    figures["peak_rss_bytes"] = server.peak_bytes()
    if line.fio["rw"] in ("write", "randwrite") and "fsync" not in line.fio \
       and figures["io_bytes"] < 4 * args.dirty_max:
        raise BenchError(f"{line.name}: fio wrote too little: "
                         f"{figures['io_bytes']} bytes")
    if line.half:
        figures.update(half_rate(args, line, server, figures["iops"]))
    return figures


def measure(args, line, which):
    """One round of one line on one server, with disks of its own."""
    directory = tempfile.mkdtemp(prefix="nbdedup-bench.", dir=args.dir)
    try:
        kind = KINDS[which](args, line, directory)
        server = prepare(args, line, kind)
        before = server.cpu_seconds()
        try:
            figures = timed(args, line, server)
        finally:
            # After an error, too, no process of ours may stay behind.
            total = server.stop()
        if not line.half:
            figures["cpu_seconds_until_exit"] = total - before
        if hasattr(kind, "finish"):
            kind.finish(figures)
        return figures
    finally:
        shutil.rmtree(directory)

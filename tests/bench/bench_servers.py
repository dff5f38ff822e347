# SPDX-License-Identifier: BSD-3-Clause
"""The servers that are compared: nbdkit with two plugins, and qemu-nbd.

Each kind makes its disks in a directory of its own, and serves them under the
names "disk" and "twin" (another disk, of the same size).
"""

import json
import os
import signal
import socket
import subprocess
import time


class BenchError(Exception):
    """What went wrong, for the user."""


def run(*command):
    """Run a command.  Returns what it printed; raises BenchError."""
    result = subprocess.run(command, stdin=subprocess.DEVNULL,
                            capture_output=True, text=True)
    if result.returncode != 0:
        raise BenchError(" ".join(command) + ": " + result.stderr.strip())
    return result.stdout


class Server:
    """A process that serves NBD on a Unix socket."""

    def __init__(self, directory, command, environment=None):
        self.directory = directory
        self.socket = os.path.join(directory, "sock")
        self.log = os.path.join(directory, "server.log")
        if os.path.exists(self.socket):
            os.unlink(self.socket)
        # In a session of its own, so that Ctrl-C does not end it first.
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                command + [self.socket], stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, env=environment,
                start_new_session=True)
        self.pid = self.process.pid
        deadline = time.monotonic() + 60
        while not self.listens():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                self.process.wait()
                raise BenchError(f"{command[0]}: did not start: {self.said()}")
            time.sleep(0.02)

    def listens(self):
        with socket.socket(socket.AF_UNIX) as s:
            try:
                s.connect(self.socket)
                return True
            except OSError:
                return False

    def said(self):
        with open(self.log) as f:
            return f.read().strip()

    def uri(self, export):
        return f"nbd+unix:///{export}?socket={self.socket}"

    def cpu_seconds(self):
        """Of all threads, also those that have ended, in nanoseconds' steps:
        the clock that clock_getcpuclockid(3) names."""
        return time.clock_gettime((~self.pid << 3) | 2)

    def peak_bytes(self):
        with open(f"/proc/{self.pid}/status") as f:
            for line in f:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
        raise BenchError(f"{self.pid}: has no VmHWM")

    def stop(self):
        """End the server.  Returns its processor time, including the end."""
        # Not terminate (), which would take the status of a dead one.
        os.kill(self.pid, signal.SIGTERM)
        _, status, usage = os.wait4(self.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        if self.process.returncode != 0:
            raise BenchError(f"{self.process.args[0]}: ended with "
                             f"{self.process.returncode}: {self.said()}")
        return usage.ru_utime + usage.ru_stime


def make_file(path, size):
    with open(path, "w") as f:
        f.truncate(size)


class File:
    """nbdkit's file plugin: what no deduplication costs."""

    # One server has both disks; a clone is what its golden image was.
    serves_all = True
    clones = False
    ages = False

    def __init__(self, args, line, directory):
        self.directory, self.line = directory, line
        self.exports = os.path.join(directory, "exports")
        os.mkdir(self.exports)
        for name in ("disk", "twin"):
            make_file(os.path.join(self.exports, name), args.size)

    def start(self, export):
        return Server(self.directory,
                      ["nbdkit", "-f", "file", "dir=" + self.exports,
                       *self.line.file_keys, "-U"])


class Nbdedup:
    """The plugin, with a pool that has two volumes."""

    serves_all = True
    clones = True
    ages = False

    def __init__(self, args, line, directory):
        self.args, self.line, self.directory = args, line, directory
        self.pool = os.path.join(directory, "pool")
        self.command("init", *args.init)
        for setting in line.pool:
            self.command("set", setting)
        names = ("golden",) if line.before == "clone" else ("disk", "twin")
        for name in names:
            self.command("create", name, str(args.size), "--block-size",
                         str(line.block), *line.volume)

    def command(self, *words):
        return run(self.args.nbdedup, "-p", self.pool, *words)

    def start(self, export):
        environment = None
        if self.args.preload:
            environment = dict(os.environ, LD_PRELOAD=self.args.preload)
        return Server(self.directory,
                      ["nbdkit", "-f", self.args.plugin, "pool=" + self.pool,
                       f"dirty-max={self.args.dirty_max}", *self.line.keys,
                       *self.args.key, "-U"], environment)

    def clone(self):
        self.command("snapshot", "golden@v1")
        self.command("clone", "golden@v1", "disk")

    def finish(self, figures):
        stat = json.loads(self.command("stat", "--json"))["pool"]
        figures["stat"] = {key: stat[key] for key in (
            "logical_bytes", "record_bytes", "stored_bytes", "file_bytes",
            "metadata_bytes")}
        self.command("check")


class Aged(Nbdedup):
    """The same, with a disk that has been in use for long."""

    ages = True


class Qcow2:
    """qemu-nbd, with an image for each disk; nothing is preallocated."""

    serves_all = False
    clones = False
    ages = False

    def __init__(self, args, line, directory):
        self.directory = directory
        for name in ("disk", "twin"):
            run("qemu-img", "create", "-q", "-f", "qcow2", self.path(name),
                str(args.size))

    def path(self, name):
        return os.path.join(self.directory, name)

    def image(self, export):
        return ["-f", "qcow2", self.path(export)]

    def start(self, export):
        return Server(self.directory,
                      ["qemu-nbd", "-t", "-e", "64", "-x", export,
                       "--discard=unmap", *self.image(export), "-k"])


class Overlay(Qcow2):
    """An image on top of a raw one, its golden image."""

    clones = True

    def __init__(self, args, line, directory):
        self.directory = directory
        make_file(self.path("golden"), args.size)

    def image(self, export):
        return ["-f", "raw" if export == "golden" else "qcow2",
                self.path(export)]

    def clone(self):
        run("qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b",
            self.path("golden"), self.path("disk"))


class Compressed(Qcow2):
    """The first server compresses all writes (zlib); qcow2 refuses to
    overwrite them.  Later ones read: the first takes whole clusters only."""

    compresses = True

    def image(self, export):
        if not self.compresses:
            return super().image(export)
        self.compresses = False
        return ["--image-opts", "driver=compress,file.driver=qcow2,"
                "file.file.driver=file,file.file.filename=" +
                self.path(export)]


KINDS = {"file": File, "nbdedup": Nbdedup, "nbdedup-aged": Aged,
         "qcow2": Qcow2,
         "qcow2-overlay": Overlay, "qcow2-compressed": Compressed}


def drop_page_cache(directory):
    """Forget the files below a directory; needs no root."""
    for where, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(where, name)
            if not os.path.isfile(path):
                continue
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)

# SPDX-License-Identifier: BSD-3-Clause
"""Lines that time whole programs: images in and out, and source trees on a
disk that is mounted.

Where an image goes in or out, nbdedup has no server; the time includes closing
the pool.  File is "nbdcopy --flush" to and from nbdkit file, qcow2 is
"qemu-img convert".  The processor time is that of all programs.
"""

import os
import random
import shutil
import subprocess
import tempfile
import time

from bench_lines import COMMON, MIB, OWN, Line
from bench_servers import KINDS, BenchError, Server, make_file, run

CHECKOUTS = 8
TREE_MAX = 32 * MIB             # what the sources take at most
ALL = COMMON + ("qcow2-compressed",)
IMAGE_LINES = [
    Line("import-new", "images", servers=OWN),
    Line("import-duplicate", "images", servers=OWN),
    Line("image-in", "images", servers=ALL, quick=True),
    Line("image-out", "images", servers=ALL, quick=True),
    Line("checkout", "images", servers=COMMON),
]


def make_synthetic(path, size):
    """Write the same bytes each time; all 4 KiB blocks are different, and
    half of them compresses away."""
    text = b"what compresses away, line for line, in every block\n" * 40
    random_bytes = random.Random(1).randbytes
    with open(path, "wb") as f:
        for _ in range(size // MIB):
            chunk = bytearray()
            for _ in range(MIB // 4096):
                chunk += random_bytes(2048) + text[:2048]
            f.write(chunk)
        os.fsync(f.fileno())


def choose_folder(most):
    """The largest folder of /usr that takes at most so much, and its size."""
    found = []
    # It fails if there is a folder that only root may read.
    listed = subprocess.run(["du", "-xk", "--max-depth=2", "/usr"], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                            check=False).stdout
    for row in listed.splitlines():
        kib, folder = row.split("\t")
        if int(kib) * 1024 <= most:
            found.append((int(kib) * 1024, folder))
    if not found:
        raise BenchError("/usr: has no folder that small: give an --image")
    return max(found)


def make_file_system(path, most):
    """Write a file system with what fits of this machine's own files."""
    size, folder = choose_folder(int(most * 0.7))
    with open(path, "w") as f:
        f.truncate((int(size * 1.3) // MIB + 8) * MIB)
    run("mke2fs", "-q", "-t", "ext4", "-F", "-d", folder, path)
    return f"ext4 with {folder} of this machine, {size // MIB} MiB"


class Images:
    """The images of a run; each is made when a line first needs it."""

    def __init__(self, args):
        self.args = args
        self.directory = tempfile.mkdtemp(prefix="nbdedup-bench.",
                                          dir=args.dir)
        self.real_name = args.image

    def close(self):
        shutil.rmtree(self.directory)

    def synthetic(self):
        path = os.path.join(self.directory, "synthetic")
        if not os.path.exists(path):
            make_synthetic(path, self.args.size)
        return path

    def real(self):
        """The user's, one that the tests have made, or one of /usr."""
        if self.args.image:
            return self.args.image
        path = os.path.join(self.directory, "real")
        if not os.path.exists(path):
            self.real_name = make_file_system(path, self.args.size)
        return path


class Stopwatch:
    """The time and processor time of programs, one after the other."""

    def __init__(self):
        self.seconds = self.cpu = 0.0
        self.peak = 0

    def run(self, *command):
        start = time.monotonic()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        self.seconds += time.monotonic() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise BenchError(" ".join(command) + ": failed")
        self.cpu += usage.ru_utime + usage.ru_stime
        self.peak = max(self.peak, usage.ru_maxrss * 1024)

    def figures(self, io_bytes):
        return {"bytes_per_second": io_bytes / self.seconds,
                "io_bytes": io_bytes, "seconds": self.seconds,
                "cpu_seconds": self.cpu, "peak_rss_bytes": self.peak}


class FileImage:
    """nbdcopy to and from nbdkit file."""

    def __init__(self, args, which, directory):
        self.directory = directory
        self.disk = os.path.join(directory, "disk")

    def copy(self, watch, ends):
        server = Server(self.directory,
                        ["nbdkit", "-f", "file", self.disk, "-U"])
        try:
            watch.run("nbdcopy", "--flush", *ends(server.uri("")))
            watch.cpu += server.cpu_seconds()
            watch.peak += server.peak_bytes()
        finally:
            server.stop()

    def bring_in(self, watch, image):
        make_file(self.disk, os.path.getsize(image))
        self.copy(watch, lambda uri: (image, uri))

    def take_out(self, watch, path):
        self.copy(watch, lambda uri: (uri, path))


class PoolImage:
    """nbdedup import and export."""

    def __init__(self, args, which, directory):
        self.command = [args.nbdedup, "-p", os.path.join(directory, "pool")]
        run(*self.command, "init", *args.init)

    def bring_in(self, watch, image, name="disk"):
        watch.run(*self.command, "import", name, image)

    def take_out(self, watch, path):
        run(*self.command, "check")
        watch.run(*self.command, "export", "disk", path)


class QemuImage:
    """qemu-img convert; -c compresses."""

    def __init__(self, args, which, directory):
        self.packed = ["-c"] if which == "qcow2-compressed" else []
        self.disk = os.path.join(directory, "disk")

    def bring_in(self, watch, image):
        watch.run("qemu-img", "convert", "-t", "writeback", *self.packed,
                  "-f", "raw", "-O", "qcow2", image, self.disk)

    def take_out(self, watch, path):
        watch.run("qemu-img", "convert", "-t", "writeback", "-f", "qcow2",
                  "-O", "raw", self.disk, path)


IMAGE_KINDS = {"file": FileImage, "nbdedup": PoolImage, "qcow2": QemuImage,
               "qcow2-compressed": QemuImage}


def copy_image(args, which, line, directory, images):
    watch = Stopwatch()
    kind = IMAGE_KINDS[which](args, which, directory)
    image = images.synthetic() if line.name.startswith("import") \
        else images.real()
    if line.name == "import-duplicate" and which == "nbdedup":
        kind.bring_in(Stopwatch(), image, "twin")
    os.sync()
    kind.bring_in(watch, image)
    if line.name == "image-out":
        watch = Stopwatch()
        kind.take_out(watch, os.path.join(directory, "out"))
    return watch.figures(os.path.getsize(image))


def pack_sources(args, directory):
    """The sources of this project, as one file."""
    path = os.path.join(directory, "sources.tar")
    run("tar", "-C", args.top_srcdir, "-cf", path, "lib", "plugin", "tools",
        "tests", "docs")
    return path


def unpack(archive, folder, watch):
    for number in range(CHECKOUTS):
        tree = os.path.join(folder, str(number))
        os.mkdir(tree)
        watch.run("tar", "-C", tree, "-xf", archive)
    watch.run("sync", "-f", folder)


class Mounted:
    """A file system in an export: nbdfuse shows the export as a file, and a
    loop device mounts that."""

    def __init__(self, uri, directory):
        self.folder = os.path.join(directory, "mounted")
        self.fuse = os.path.join(directory, "fuse")
        os.mkdir(self.folder)
        os.mkdir(self.fuse)
        self.client = subprocess.Popen(["nbdfuse", self.fuse, uri],
                                       stdin=subprocess.DEVNULL)

    def __enter__(self):
        try:
            disk = os.path.join(self.fuse, "nbd")
            deadline = time.monotonic() + 30
            while not os.path.exists(disk):
                if self.client.poll() is not None or \
                   time.monotonic() > deadline:
                    raise BenchError("nbdfuse: did not start")
                time.sleep(0.02)
            run("mke2fs", "-q", "-t", "ext4", "-F", disk)
            run("mount", "-o", "loop", disk, self.folder)
        except BaseException:
            self.unfuse()
            raise
        return self.folder

    def unfuse(self):
        subprocess.run(["fusermount3", "-u", self.fuse], check=False)
        self.client.wait()

    def __exit__(self, *_):
        try:
            run("umount", self.folder)
        finally:
            self.unfuse()


def checkout(args, which, line, directory):
    """Unpack the sources several times.  Processor time: the server's."""
    archive = pack_sources(args, directory)
    server = KINDS[which](args, line, directory).start("disk")
    watch = Stopwatch()
    try:
        with Mounted(server.uri("disk"), directory) as folder:
            cpu = server.cpu_seconds()
            unpack(archive, folder, watch)
            watch.cpu = server.cpu_seconds() - cpu
            watch.peak = server.peak_bytes()
    finally:
        server.stop()
    return watch.figures(CHECKOUTS * os.path.getsize(archive))


def cannot(args, line):
    """Why a line cannot run here, or None."""
    if line.name == "checkout":
        if args.size < CHECKOUTS * TREE_MAX:
            return f"needs --size={CHECKOUTS * TREE_MAX // MIB}M"
        if os.geteuid() != 0 or not os.path.exists("/dev/loop-control"):
            return "needs root, and loop devices"
        if not (shutil.which("nbdfuse") and os.path.exists("/dev/fuse")):
            return "needs nbdfuse, and /dev/fuse"
    return None


def measure_image(args, line, which, images):
    """One round of one of these lines."""
    directory = tempfile.mkdtemp(prefix="nbdedup-bench.", dir=args.dir)
    try:
        if line.name == "checkout":
            return checkout(args, which, line, directory)
        return copy_image(args, which, line, directory, images)
    finally:
        shutil.rmtree(directory)
